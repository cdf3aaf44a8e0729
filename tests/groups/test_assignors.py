"""Whatever a random group looks like, we divide it as each release's own classes do."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.brokers.foreign import Process
from tests.groups.oracles import (
    DIVIDED,
    GROUPS,
    SOURCES,
    Oracle,
    group_for,
    lead,
    led_by_java,
    ours,
)
from tests.groups.random_groups import led_group_of


@pytest.mark.parametrize("version", dict(DIVIDED))
def test_a_group_in_zookeeper_is_divided_as_its_own_consumers_do(
    version: str, tmp_path: Path
) -> None:
    """By each strategy that they have."""
    strategies = [strategy for one, strategy in DIVIDED if one == version]
    request, groups = itertools.tee(group_for(version, seed) for seed in range(GROUPS))
    with Oracle(version, tmp_path) as oracle:
        for seed, (theirs, group) in enumerate(
            zip(oracle.shares(request, *strategies), groups, strict=True)
        ):
            assert [ours(group, strategy) for strategy in strategies] == theirs, f"group {seed}"


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_a_group_that_we_lead_is_divided_as_its_java_consumers_would(
    strategy: str, tmp_path: Path
) -> None:
    request, groups = itertools.tee(map(led_group_of, range(GROUPS)))
    with Process("LeaderAssignors", "3.9.1", tmp_path, sources=SOURCES, is_short=False) as java:
        for seed, (theirs, group) in enumerate(
            zip(led_by_java(java, strategy, request), groups, strict=True)
        ):
            assert lead(strategy, *group) == theirs, f"group {seed}"
