"""A conf for Jafka: its defaults, and the keys that are refused, each with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from etl.errors import SettingsError
from etl.model.partitions import BrokerFamily, Isolation
from etl.settings.choices import OnNoLeader, StartAt
from tests.builders import plain_settings

JAFKA = {"assume_cluster_id": "old", "broker_type": "jafka"}


def refusal(**sections: Any) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        plain_settings(**{"source": JAFKA, **sections})
    assert caught.value.exit_code == 2
    return caught.value


def test_the_least_conf_for_jafka_uses_no_feature_that_its_brokers_lack() -> None:
    source = plain_settings(source=JAFKA).source
    assert (source.broker_type, source.is_physical) == (BrokerFamily.JAFKA, True)
    assert source.isolation_level is Isolation.READ_UNCOMMITTED
    assert source.on_no_leader is OnNoLeader.SKIP
    assert not plain_settings(source={**JAFKA, "broker_type": "kafka"}).source.is_physical


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
    error = refusal(source={**JAFKA, key: value})
    assert error.where["key"] == f"source.{key}"
    assert why in error.message


def test_the_same_keys_are_taken_where_they_ask_for_what_there_is() -> None:
    keys: dict[str, Any] = {
        "bootstrap_servers": None,
        "starting_offsets": "latest",
        "isolation_level": "read_uncommitted",
        "on_no_leader": "skip",
        "assume_compacted": [],
    }
    source = plain_settings(source={**JAFKA, **keys}).source
    assert source.starting_offsets is StartAt.LATEST


def test_records_cannot_be_counted_from_byte_positions() -> None:
    by_records = refusal(limits={"max_records_per_plan": 10})
    assert by_records.where["key"] == "limits.max_records_per_plan"
    by_bytes = plain_settings(source=JAFKA, limits={"max_bytes_per_plan": 10})
    assert by_bytes.limits.max_bytes_per_plan == 10


def test_a_date_of_the_record_needs_a_transform_that_gives_one() -> None:
    table = {"partition_by": ["topic", "event_date"]}
    assert refusal(table=table).where["key"] == "table.partition_by"
    plain_settings(source=JAFKA, table=table, transform="package.module:function")


def test_all_incompatible_keys_are_reported_at_once() -> None:
    source = {**JAFKA, "bootstrap_servers": "a:9092", "isolation_level": "read_committed"}
    error = refusal(source=source, limits={"max_records_per_plan": 10})
    first, *more = error.message.splitlines()
    assert first == "With source.broker_type: jafka, 3 keys are not supported:"
    assert [line.split()[0] for line in more] == [
        "source.bootstrap_servers",
        "source.isolation_level",
        "limits.max_records_per_plan",
    ]
