"""Whatever a random group looks like, we divide it as each release's own classes do."""

from __future__ import annotations

from pathlib import Path

import pytest

from etl.decisions.membership.assignment import Strategy
from tests.brokers.foreign import Process
from tests.groups.oracles import DIVIDED, GROUPS, SOURCES, Oracle, group_for, lead, lead_by_java, ours
from tests.groups.random_groups import led_group_of


@pytest.mark.parametrize(("version", "strategy"), DIVIDED)
def test_a_group_in_zookeeper_is_divided_as_its_own_consumers_do(version: str, strategy: Strategy, tmp_path: Path) -> None:
    with Oracle(version, tmp_path) as oracle:
        for seed in range(GROUPS):
            group = group_for(version, seed)
            assert ours(group, strategy) == oracle.shares(group, strategy), f"group {seed}"


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_a_group_that_we_lead_is_divided_as_its_java_consumers_would(strategy: str, tmp_path: Path) -> None:
    with Process("LeaderAssignors", "3.9.1", tmp_path, sources=SOURCES) as java:
        for seed in range(GROUPS):
            members, partitions = led_group_of(seed)
            assert lead(strategy, members, partitions) == lead_by_java(java, strategy, members, partitions), f"group {seed}"
