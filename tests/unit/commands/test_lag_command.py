"""`etl lag` prints known values as numbers and unknown ones with the reason; it never guesses."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from etl.commands.lag import find_table_gaps, first_unread_offsets, lags_of
from etl.decide.run_requests import interval_between
from etl.errors import LedgersDisagree, SettingsError
from etl.model.partitions import OldestRecord, Retention, TopicPartition
from etl.report.lag import Lags
from etl.settings.sections import Settings
from tests.builders import plain_settings, plain_snapshot
from tests.fakes.outside import Outside
from tests.fakes.planning import A, B, snapshot_of
from tests.fakes.planning import settings_of as plan_settings
from tests.fakes.stories import LOGS, SETTINGS, grow, outside_of, run, settings_of
from tests.fakes.world import FakeWorld

NOW_MS = 1_700_000_000_000
OLDEST_RECORDS = {partition: OldestRecord(NOW_MS - 90_000) for partition in (*LOGS, A, B)}


def lags(outside: Outside, settings: Settings = SETTINGS, oldest: Any = OLDEST_RECORDS) -> Lags:
    return lags_of(FakeWorld(outside, settings).observe(), settings, oldest, now_ms=NOW_MS)


def loaded() -> Outside:
    outside = outside_of(5, 3, 4)
    run(outside)
    grow(outside, 2, 0, 1)
    return outside


def test_a_partition_has_its_lag_in_records_bytes_and_time_and_the_sum_is_reported() -> None:
    found = lags(loaded())
    document = found.as_json()
    assert json.loads(json.dumps(document)) == document
    assert document["at"] == "2023-11-14T22:13:20.000+00:00"
    first, second, third = document["partitions"]
    names = ("loaded_until", "log_end", "lag", "records_at_most", "estimated_bytes", "behind_s")
    assert [first[name] for name in names] == [5, 7, 2, 2, 200, 90.0]
    assert first["oldest_unread_at"] == "2023-11-14T22:11:50.000+00:00"
    assert [second[name] for name in names[2:]] == [0, 0, 0, 0.0]
    assert second["oldest_unread_at"] is None
    assert third["lag"] == 1 and "behind_s" not in third["unknown"]
    totals = {"partitions": 3, "partitions_unknown": 0, "lag": 3, "records_at_most": 3}
    unknown = {"headroom_s": None, "headroom_bytes": None}
    assert found.totals == {**totals, "estimated_bytes": 300, "behind_s": 90.0, **unknown}


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ({"broker_version": "0.9"}, "source.broker_version"),
        ({"broker_type": "jafka", "assume_cluster_id": "c"}, "source.broker_type"),
    ],
)
def test_brokers_that_find_no_times_have_no_intervals_with_gaps(
    source: dict[str, Any], key: str
) -> None:
    day = interval_between(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))
    with pytest.raises(SettingsError, match="cannot find the record of a time") as raised:
        find_table_gaps(plain_settings(source=source), day, timedelta(hours=1))
    assert raised.value.where["key"] == key and "etl verify CONF" in raised.value.action


def first_unread(outside: Outside) -> dict[TopicPartition, int]:
    return dict(first_unread_offsets(FakeWorld(outside, SETTINGS).observe(), SETTINGS))


def test_the_oldest_unread_record_is_requested_only_for_logs_with_a_lag() -> None:
    outside = loaded()
    outside.logs[LOGS[2]].log_start = 5
    assert first_unread(outside) == {LOGS[0]: 5}
    grow(outside, 0, 0, 1)
    assert first_unread(outside) == {LOGS[0]: 5, LOGS[2]: 5}, "expired offsets are not requested"


def test_a_partition_without_a_leader_is_listed_with_null_and_is_in_no_sum() -> None:
    outside, settings = loaded(), settings_of(on_no_leader="skip")
    outside.logs[LOGS[0]].has_leader = False
    found = lags(outside, settings)
    row = found.as_json()["partitions"][0]
    known = {name for name, value in row.items() if value is not None}
    assert known == {"topic", "partition", "loaded_until", "unknown"}
    assert row["unknown"] == {"lag": "it has no leader"}
    assert (found.totals["partitions_unknown"], found.totals["lag"]) == (1, 1)
    assert found.unknown[0] == "clicks 0: the lag is unknown: it has no leader"
    assert found.refusal is None


def test_an_unknown_time_is_null_with_the_reason_and_not_in_the_longest() -> None:
    why = "its message format has no timestamps"
    found = lags(loaded(), oldest={**OLDEST_RECORDS, LOGS[0]: OldestRecord(why=why)})
    row = found.as_json()["partitions"][0]
    assert (row["lag"], row["behind_s"], row["oldest_unread_at"]) == (2, None, None)
    assert row["unknown"]["behind_s"] == why and found.totals["behind_s"] == 90.0
    assert f"clicks 0: the time behind is unknown: {why}" in found.unknown
    future = lags(loaded(), oldest={**OLDEST_RECORDS, LOGS[0]: OldestRecord(NOW_MS + 5000)})
    row = future.as_json()["partitions"][0]
    assert (row["behind_s"], row["oldest_unread_at"]) == (0.0, "2023-11-14T22:13:25.000+00:00")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"bytes_per_offset": {}}, "brokers do not report the size of the partition"),
        (
            {"bytes_per_offset": {A: 10.0}, "retention": {"clicks": Retention(is_tiered=True)}},
            "part of the partition is in remote storage",
        ),
    ],
)
def test_an_unknown_size_is_not_assumed(changes: dict[str, Any], why: str) -> None:
    found = lags_of(
        snapshot_of({A: (0, 50)}, **changes), plan_settings(), OLDEST_RECORDS, now_ms=NOW_MS
    )
    assert (found.totals["lag"], found.totals["estimated_bytes"]) == (50, None)
    assert found.partitions[0].unknown["estimated_bytes"] == why


def test_the_total_has_the_least_headroom_of_all_partitions() -> None:
    reported = {A: OldestRecord(NOW_MS - 60_000), B: OldestRecord(NOW_MS - 120_000)}
    snapshot = snapshot_of(
        {A: (0, 50), B: (0, 50)},
        bytes_per_offset={A: 10.0, B: 20.0},
        retention={"clicks": Retention(ms=200_000, bytes=2000)},
    )
    found = lags_of(snapshot, plan_settings(), reported, now_ms=NOW_MS)
    assert [
        (row["headroom_s"], row["headroom_bytes"], row["headroom_rests_on"])
        for row in found.as_json()["partitions"]
    ] == [(140.0, 1500, "retention.ms"), (80.0, 1000, "retention.ms")]
    assert (found.totals["headroom_s"], found.totals["headroom_bytes"]) == (80.0, 1000)


def test_a_physical_log_lags_in_bytes_and_has_neither_records_nor_a_time() -> None:
    partition = TopicPartition("clicks", 0, 1)
    snapshot = plain_snapshot({partition: (100, 400)}, bytes_per_offset={partition: 1.0})
    found = lags_of(snapshot, plan_settings(broker_type="jafka"), {}, now_ms=NOW_MS)
    [row] = found.as_json()["partitions"]
    names = ("lag", "records_at_most", "estimated_bytes", "behind_s")
    assert [row[name] for name in ("broker_id", *names)] == [1, 300, None, 300, None]
    assert row["unknown"]["behind_s"] == "messages of these brokers have no timestamps"
    assert [found.totals[name] for name in names[:3]] == [300, None, 300]


def test_if_the_ledgers_disagree_every_partition_and_the_exit_code_report_it() -> None:
    outside = loaded()
    outside.table = None
    found = lags(outside)
    assert {row["lag"] for row in found.as_json()["partitions"]} == {None}
    assert isinstance(found.refusal, LedgersDisagree)
    assert found.totals["lag"] is None and found.totals["partitions_unknown"] == 3
    assert first_unread(outside) == {}


def test_a_log_of_another_incarnation_has_no_lag_and_no_request() -> None:
    outside = loaded()
    outside.logs[LOGS[0]].cut(3)
    grow(outside, 5, 0, 0)
    found = lags(outside)
    assert found.partitions[0].unknown == {"lag": "the partition was recreated or truncated"}
    assert found.refusal is not None and first_unread(outside) == {LOGS[2]: 4}


def test_records_after_an_open_transaction_are_no_lag_and_are_reported() -> None:
    outside = loaded()
    outside.logs[LOGS[0]].held_back = 2
    found = lags(outside)
    assert found.partitions[0].lag == 0 and len(found.open_transactions) == 1
    assert "2 offsets below the high watermark wait" in found.open_transactions[0]
