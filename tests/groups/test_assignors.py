"""Assignments and topic filters, compared with those of each release's own classes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from etl.ledger.topic_filters import cleaned
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
from tests.groups.random_patterns import PER_REQUEST, in_java, in_python, option_of, pattern_of


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


def test_a_pattern_matches_the_names_that_it_matches_in_java_or_is_refused(tmp_path: Path) -> None:
    with Process("LeaderAssignors", "3.9.1", tmp_path, sources=SOURCES) as java:
        for first in range(0, 10 * GROUPS, PER_REQUEST):
            patterns = [pattern_of(seed) for seed in range(first, first + PER_REQUEST)]
            for pattern, theirs in zip(patterns, in_java(java, patterns), strict=True):
                assert in_python(pattern) in (theirs, None), pattern


def test_an_option_pattern_is_found_in_the_names_in_which_java_finds_it_or_is_refused(
    tmp_path: Path,
) -> None:
    with Process("LeaderAssignors", "3.9.1", tmp_path, sources=SOURCES) as java:
        for first in range(0, GROUPS, PER_REQUEST):
            patterns = [option_of(seed) for seed in range(first, first + PER_REQUEST)]
            for question in ("matches", "finds"):
                for pattern, theirs in zip(
                    patterns, in_java(java, patterns, question), strict=True
                ):
                    assert in_python(pattern, question) in (theirs, None), (question, pattern)


def test_a_filter_is_cleaned_as_a_consumer_does(tmp_path: Path) -> None:
    texts = [
        "a, b",
        ' "a,b" ',
        "'a'",
        "\"'a'\"",
        "a b",
        "\ta\n",
        'a"b',
        '"a"\x85',
        "a\u2028",
        "'a'\u2029'",
        " ' a' ",
        "a,,b",
        '""a',
        " a\x00",
    ]
    with Process("ScalaAssignors", "0.8.2.2", tmp_path, sources=SOURCES) as scala:
        found = [
            bytes.fromhex(line[0][1:]).decode()
            for line in scala.ask("clean", *(f"x{text.encode().hex()}" for text in texts))
        ]
    assert [cleaned(text) for text in texts] == found
