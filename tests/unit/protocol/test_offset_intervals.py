"""Partitions and offset intervals as text: rendered text is parsed, and nothing else is."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.model.partitions import (
    TopicPartition,
    parse_interval,
    parse_intervals,
    parse_partition,
    quoted_partition,
    render_intervals,
    render_partition,
)

TOPICS = st.text(st.sampled_from("ab.Z9_-"), min_size=1, max_size=6).filter(
    lambda name: name not in (".", "..")
)
LOGS = st.builds(
    TopicPartition, TOPICS, st.integers(0, 999_999_999), st.none() | st.integers(0, 2**31 - 1)
)


OLD_TOPICS = st.sampled_from(
    [
        "page views",
        "user:clicks",
        "größe",
        "a$b",
        "x,y",
        "it's",
        "a\\b",
        "a:3",
        "a:1-0:2-3",
        "__HIVE__",
        "t%41 #",
    ]
)
"""Jafka and Kafka 0.7 forbid only '/', control characters, '.' and '..'."""


@given(OLD_TOPICS, st.integers(0, 99), st.integers(0, 99))
def test_any_topic_name_is_parsed(topic: str, broker: int, start: int) -> None:
    partition = TopicPartition(topic, 0, broker)
    assert parse_partition(render_partition(partition)) == partition
    assert parse_interval(render_intervals([(partition, start, start + 9)])) == (
        partition,
        start,
        start + 9,
    )
    assert shlex.split(quoted_partition(partition)) == [render_partition(partition)]


@given(
    st.lists(
        st.tuples(LOGS, st.integers(0, 2**62), st.integers(1, 2**62)).map(
            lambda s: (s[0], s[1], s[1] + s[2])
        ),
        max_size=4,
    )
)
def test_intervals_are_parsed_as_rendered(found: list[tuple[TopicPartition, int, int]]) -> None:
    assert parse_intervals(render_intervals(found)) == tuple(found)


def test_the_partition_of_a_physical_log_is_broker_and_partition() -> None:
    assert render_partition(TopicPartition("clicks", 0, 1)) == "clicks:1-0"
    assert parse_interval("clicks:1-0:100-131") == (TopicPartition("clicks", 0, 1), 100, 131)
    assert TopicPartition("clicks", 0, 1).place == {
        "topic": "clicks",
        "partition": 0,
        "broker_id": 1,
    }
    assert str(TopicPartition("clicks", 0, 1)) == "clicks 1-0"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "clicks",
        "clicks:1",
        "clicks:1:2",
        "clicks:1:2-2",
        "clicks:1:3-2",
        "clicks:a-1:2-3",
        "clicks:1-0-2:2-3",
        "clicks:01:2-3",
        ":1:2-3",
        "clicks:1:2-3-4",
        "cl/icks:1:2-3",
        "cl\nicks:1:2-3",
        "..:1:2-3",
        "clicks:1:-2-3",
    ],
)
def test_anything_else_is_no_interval(text: str) -> None:
    assert parse_interval(text) is None
