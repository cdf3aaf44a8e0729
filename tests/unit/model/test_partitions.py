"""How an operator names topics and partitions."""

from __future__ import annotations

import pytest

from etl.errors import SettingsError
from etl.model.partitions import Named, TopicPartition, parse_named

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
