"""Topics, partitions and offset intervals as an operator writes them."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.errors import SettingsError
from etl.model.partitions import (
    Named,
    TopicPartition,
    parse_interval,
    parse_intervals,
    parse_named,
    parse_partition,
    quoted_partition,
    render_intervals,
    render_partition,
)

B = TopicPartition("clicks", 1)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("clicks", Named("clicks")),
        ("a.b-c_d:12", Named("a.b-c_d", TopicPartition("a.b-c_d", 12))),
        ("clicks:1-0", Named("clicks", TopicPartition("clicks", 0, 1))),
        ("page views", Named("page views")),
        ("user:clicks", Named("user:clicks")),
        ("user:clicks:1-0", Named("user:clicks", TopicPartition("user:clicks", 0, 1))),
    ],
)
def test_a_log_is_named_by_its_topic_and_partition(text: str, named: Named) -> None:
    assert parse_named(text) == named
    assert str(named) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "clicks:",
        ":1",
        "a/b",
        "a\nb",
        ".",
        "..",
        "..:1",
        "clicks:1234567890",
        "clicks:1-",
        "clicks:1-0-0",
        "clicks:01",
    ],
)
def test_what_names_no_log_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="names no log"):
        parse_named(text)


def test_a_named_topic_covers_all_its_partitions_and_no_other() -> None:
    assert Named("clicks").covers(B) and Named("clicks", B).covers(B)
    assert not Named("clicks", TopicPartition("clicks", 0)).covers(B) and not Named("click").covers(
        TopicPartition("clicks", 0)
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
