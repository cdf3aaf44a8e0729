"""An audit of Jafka partitions in a real table: Spark counts the messages of each entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pytest
from deltalake import write_deltalake

from etl.audit.compare_rows import AuditedPartition, EntryInterval, Expected, PartitionFindings
from etl.errors import SettingsError
from etl.io.delta.offsets_of_rows import EntryScan, rows_in_intervals
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange, RangeResult
from etl.model.snapshot import Interval

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ONE, TWO = TopicPartition("clicks", 0, 1), TopicPartition("clicks", 0, 2)
"""The same partition of a topic on two brokers."""
Key = tuple[str | None, int | None, int | None, int | None, int | None]
"""Topic, broker, partition, entry and index."""
ENTRIES, BYTES = 4_000, 37
MESSAGES = [(at * BYTES, index) for at in range(ENTRIES) for index in range(1 + at % 3)]
UNTIL = ENTRIES * BYTES


def rows_of(keys: Sequence[Key], epochs: Sequence[int | None] | None = None) -> pyarrow.Table:
    kinds = {
        "topic": pyarrow.string(),
        "broker_id": pyarrow.int32(),
        "partition": pyarrow.int32(),
        "offset": pyarrow.int64(),
        "message_index": pyarrow.int32(),
    }
    columns = {
        name: pyarrow.array([key[i] for key in keys], kind)
        for i, (name, kind) in enumerate(kinds.items())
    }
    if epochs:
        columns["incarnation"] = pyarrow.array(epochs, pyarrow.int32())
    return pyarrow.table(columns)


def of(partition: TopicPartition, messages: Sequence[tuple[int, int]]) -> list[Key]:
    return [
        (partition.topic, partition.broker_id, partition.partition, entry, index)
        for entry, index in messages
    ]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a table of ours")


EXPECTED = {
    AuditedPartition(ONE): Expected(
        (
            (
                OffsetRange(ONE, 3_000 * BYTES, UNTIL),
                RangeResult(
                    rows=sum(entry >= 3_000 * BYTES for entry, _ in MESSAGES), fetched_bytes=9
                ),
            ),
        ),
        (Interval(0, 3_000 * BYTES, sum(entry < 3_000 * BYTES for entry, _ in MESSAGES)),),
    ),
    AuditedPartition(TWO): Expected(
        ((OffsetRange(TWO, 0, 100), RangeResult(rows=2, fetched_bytes=9)),)
    ),
}


def find(
    spark: SparkSession, path: str
) -> tuple[dict[AuditedPartition, PartitionFindings], EntryScan]:
    scan = EntryScan(spark, path)
    return {found.audited: found for found in scan.findings(EXPECTED)}, scan


def test_a_table_of_physical_logs_is_right_until_messages_are_missing_double_or_strange(
    spark: SparkSession, path: str
) -> None:
    keys = [*of(ONE, MESSAGES), *of(TWO, [(0, 0), (50, 0)])]
    write_deltalake(path, rows_of([keys[at * 5_003 % len(keys)] for at in range(len(keys))]))
    found, scan = find(spark, path)
    assert all(one.is_right for one in found.values()) and scan.rows_without_partition == 0
    assert found[AuditedPartition(ONE)].found_rows == len(MESSAGES)
    more: list[Key] = [
        *of(ONE, [(74, 2), (74, 2), (74, 0)]),
        *of(TWO, [(100, 0)]),
        ("clicks", 1, 7, 5, 0),
        (None, 1, 0, 5, 0),
        ("clicks", None, 0, 5, 0),
        ("clicks", 1, 0, 5, None),
        ("clicks", 1, 0, 5, -1),
    ]
    write_deltalake(path, rows_of(more), mode="append")
    found, scan = find(spark, path)
    assert scan.rows_without_partition == 4
    names = {"topic", "broker_id", "partition", "offset", "message_index"}
    assert all(set(one) == names for one in scan.first_without_partition())
    one, two = found[AuditedPartition(ONE)], found[AuditedPartition(TWO)]
    strange = found[AuditedPartition(TopicPartition("clicks", 7, 1))]
    assert (one.double_rows, one.double_places, one.missing, one.unexpected) == (3, (74,), 0, 0)
    assert scan.doubles(one) == [((74, 0), 2), ((74, 2), 3)] and scan.doubles(two) == []
    assert (two.unexpected, two.unexpected_first, strange.unexpected) == (1, (100,), 1)


def test_missing_messages_and_other_incarnations_of_a_log_are_distinguished(
    spark: SparkSession, path: str
) -> None:
    there = [message for message in MESSAGES if message not in ((74, 1), (3_002 * BYTES, 0))]
    keys = [*of(ONE, there), *of(ONE, [(0, 0)]), *of(TWO, [(0, 0), (50, 1)])]
    write_deltalake(path, rows_of(keys, [None] * len(there) + [1, 0, 0]))
    found, _ = find(spark, path)
    one, two = found[AuditedPartition(ONE)], found[AuditedPartition(TWO)]
    assert (one.missing, one.missing_first) == (2, (74, 3_002 * BYTES))
    short = [(part.from_offset, part.missing) for part in one.short]
    assert short == [(0, 1), (3_000 * BYTES, 1)]
    assert (two.missing, two.entries_with_holes, two.entries_with_holes_first) == (0, 1, (50,))
    assert found[AuditedPartition(ONE, 1)].unexpected == 1


def test_a_table_without_the_key_of_physical_logs_cannot_be_proven(
    spark: SparkSession, path: str
) -> None:
    write_deltalake(path, rows_of(of(ONE, MESSAGES[:5])).drop_columns(["message_index"]))
    with pytest.raises(SettingsError, match="no column message_index") as refused:
        find(spark, path)
    names = "topic, broker_id, partition, offset and message_index"
    assert f"it must leave {names} as they are" in refused.value.action


def test_an_empty_table_lacks_everything(spark: SparkSession, path: str) -> None:
    write_deltalake(path, rows_of([]))
    found, _ = find(spark, path)
    assert {audited: one.missing for audited, one in found.items()} == {
        AuditedPartition(ONE): len(MESSAGES),
        AuditedPartition(TWO): 2,
    }


def test_in_a_table_with_rows_in_read_order_no_message_is_counted_alone(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = list[AuditedPartition]()

    def count(
        scan: EntryScan, keys: DataFrame, edges: dict[AuditedPartition, Sequence[int]]
    ) -> Iterator[tuple[AuditedPartition, EntryInterval]]:
        counted.extend(edges)
        return iter(())

    monkeypatch.setattr(EntryScan, "_counted", count)
    ours = of(ONE, MESSAGES)
    for part in (
        ours[5_001:],
        of(TWO, [(0, 0)]),
        [*ours[:2_500], *of(TWO, [(50, 0)]), *ours[2_500:5_001]],
    ):  # the cut is inside an entry
        write_deltalake(path, rows_of(part), mode="append")
    found, _ = find(spark, path)
    assert all(one.is_right for one in found.values()) and not counted
    write_deltalake(path, rows_of(of(TWO, [(50, 0)])), mode="append")
    find(spark, path)
    assert counted == [AuditedPartition(TWO)]


def test_rows_from_before_plan_one_are_left_out_and_counted_by_log_and_life(
    spark: SparkSession, path: str
) -> None:
    write_deltalake(
        path,
        rows_of([*of(ONE, [(10, 0), (10, 0), (20, 0)]), *of(TWO, [(0, 0), (50, 0), (500, 0)])]),
    )
    before = {AuditedPartition(ONE): [(0, 15), (18, 30)], AuditedPartition(TWO): [(400, 600)]}
    expected = {AuditedPartition(TWO): EXPECTED[AuditedPartition(TWO)]}
    [found] = EntryScan(spark, path, before=before).findings(expected)
    assert found.audited == AuditedPartition(TWO) and found.is_right
    assert rows_in_intervals(spark, path, None, before, physical=True) == {
        AuditedPartition(ONE): 3,
        AuditedPartition(TWO): 1,
    }
    assert rows_in_intervals(spark, path, None, {}, physical=True) == {}
