"""A conf for Jafka: its defaults, and what it cannot ask for, each with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from etl.errors import SettingsError
from etl.model.partitions import BrokerFamily, Isolation
from etl.settings.choices import OnNoLeader, StartAt
from etl.settings.load import parse_settings


def document(**source: Any) -> dict[str, Any]:
    return {
        "pipeline": "clicks",
        "group": "etl-clicks",
        "zookeeper": {"connect": "127.0.0.1:2181"},
        "source": {
            "assume_cluster_id": "old",
            "broker_type": "jafka",
            "topics": ["clicks"],
            **source,
        },
        "table": {"path": "warehouse/clicks"},
    }


def refusal(request: dict[str, Any]) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        parse_settings(request, path="/some/clicks.yaml")
    assert caught.value.exit_code == 2
    assert caught.value.where["path"] == "/some/clicks.yaml"
    return caught.value


def test_the_least_conf_for_jafka_uses_no_feature_that_its_brokers_lack() -> None:
    source = parse_settings(document()).source
    assert (source.broker_type, source.is_physical) == (BrokerFamily.JAFKA, True)
    assert source.isolation_level is Isolation.READ_UNCOMMITTED
    assert source.on_no_leader is OnNoLeader.SKIP
    assert not parse_settings({**document(broker_type="kafka")}).source.is_physical


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("bootstrap_servers", "a:9092", "registered in the ZooKeeper"),
        ("starting_offsets", "2026-01-31T00:00:00+00:00", "one too"),
        ("isolation_level", "read_committed", "no transactions"),
        ("on_no_leader", "fail", "one broker only"),
        ("assume_compacted", ["clicks"], "no compaction"),
        ("assume_cluster_id", None, "no cluster id"),
    ],
)
def test_what_brokers_of_byte_positions_cannot_do_is_refused_with_the_reason(
    key: str, value: Any, why: str
) -> None:
    error = refusal(document(**{key: value}))
    assert error.where["key"] == f"source.{key}"
    assert why in error.message


def test_the_same_keys_are_taken_where_they_ask_for_what_there_is() -> None:
    result: dict[str, Any] = {
        "bootstrap_servers": None,
        "starting_offsets": "latest",
        "isolation_level": "read_uncommitted",
        "on_no_leader": "skip",
        "assume_compacted": [],
    }
    assert parse_settings(document(**result)).source.starting_offsets is StartAt.LATEST


def test_records_cannot_be_counted_from_byte_positions() -> None:
    records = {**document(), "limits": {"max_records_per_plan": 10}}
    assert refusal(records).where["key"] == "limits.max_records_per_plan"
    by_bytes = {**document(), "limits": {"max_bytes_per_plan": 10}}
    assert parse_settings(by_bytes).limits.max_bytes_per_plan == 10


def test_a_date_of_the_record_needs_a_transform_that_gives_one() -> None:
    table = {"path": "warehouse/clicks", "partition_by": ["topic", "event_date"]}
    request = {**document(), "table": table}
    assert refusal(request).where["key"] == "table.partition_by"
    parse_settings({**request, "transform": "package.module:function"})


def test_all_incompatible_keys_are_reported_at_once() -> None:
    error = refusal(
        {
            **document(bootstrap_servers="a:9092", isolation_level="read_committed"),
            "limits": {"max_records_per_plan": 10},
        }
    )
    first, *more = error.message.splitlines()
    assert first == "With source.broker_type: jafka, 3 keys are not supported:"
    assert [line.split()[0] for line in more] == [
        "source.bootstrap_servers",
        "source.isolation_level",
        "limits.max_records_per_plan",
    ]
