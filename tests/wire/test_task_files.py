"""A task that writes its rows itself, against a fake broker and without Spark."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import compute, parquet

from etl.decide.tasks import pack_tasks
from etl.errors import CorruptData, EtlError, SettingsError, TableUnreachable, unmark
from etl.io.delta.data_files import DataFiles
from etl.model.columns import COLUMNS
from etl.model.partitions import Broker, Leader, TopicPartition
from etl.model.plans import FileOptions, OffsetRange, Written
from etl.reader.batch_transform import load_arrow_transform
from etl.reader.run_task import TaskFailed, write_task
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FakeBroker
from tests.fakes.worker_here import reading_from, tasks_of

RECORDS = [Rec(delta, b"v%d" % delta, key=b"k" if delta % 2 else None) for delta in range(10)]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        for partition in range(3):
            for start in (0, 10):
                running.append("clicks", partition, encode(Batch(start, RECORDS)))
        yield running


def write(
    broker: FakeBroker,
    root: Path,
    tasks: list[list[int]],
    *,
    incarnations: dict[TopicPartition, int] | None = None,
    partition_by: tuple[str, ...] = (),
) -> list[Written]:
    """Ranges [3, 17) of three partitions, read and written by these tasks."""
    ranges = [
        OffsetRange(TopicPartition("clicks", partition), 3, 17, leader(broker))
        for partition in range(3)
    ]
    options = FileOptions(str(root), COLUMNS, partition_by)
    return [
        write_task(task, reading_from(broker), options)
        for task in tasks_of(ranges, tasks, incarnations)
    ]


def leader(broker: FakeBroker) -> Leader:
    return Leader(Broker(broker.broker_id, broker.host, broker.port), None)


def rows_of(root: Path, written: list[Written]) -> pa.Table:
    return pa.concat_tables(
        [parquet.read_table(root / file.path) for one in written for file in one.files]
    )


def failure_of(broker: FakeBroker, root: Path, partition_by: tuple[str, ...] = ()) -> EtlError:
    with pytest.raises(TaskFailed) as raised:
        write(broker, root, [[0]], partition_by=partition_by)
    found = unmark(str(raised.value))
    assert found is not None
    return found


def test_ranges_of_a_task_share_a_file(broker: FakeBroker, tmp_path: Path) -> None:
    epochs = {TopicPartition("clicks", 1): 2}
    written = write(broker, tmp_path, [[0, 2], [1]], incarnations=epochs)
    assert [(one.indices, len(one.files), one.rows) for one in written] == [
        ((0, 2), 1, 28),
        ((1,), 1, 14),
    ]
    results = {i: result.rows for one in written for i, result in one.results.items()}
    assert results == {0: 14, 1: 14, 2: 14}
    table = rows_of(tmp_path, written)
    assert table.column_names == [name for name in COLUMNS if name != "headers"]
    columns = table.select(["partition", "offset", "value", "incarnation"])
    assert sorted(tuple(row.values()) for row in columns.to_pylist()) == [
        (partition, offset, b"v%d" % (offset % 10), 2 if partition == 1 else 0)
        for partition in range(3)
        for offset in range(3, 17)
    ]


def test_a_task_of_two_leaders_writes_one_file(broker: FakeBroker, tmp_path: Path) -> None:
    with FakeBroker(broker.world, broker_id=2) as other:
        broker.world.logs["clicks", 1].leader_id = 2
        ranges = [
            OffsetRange(TopicPartition("clicks", partition), 3, 17, leader(led_by))
            for partition, led_by in enumerate((broker, other, broker))
        ]
        tasks = tasks_of(ranges, pack_tasks(ranges, {}, 2**28, parallelism=1))
        options = FileOptions(str(tmp_path), COLUMNS)
        written = [write_task(task, reading_from(broker), options) for task in tasks]
        assert [(one.indices, len(one.files), one.rows) for one in written] == [((0, 1, 2), 1, 42)]
        assert (broker.connections, other.connections) == (1, 1)
        assert [topic_partition for request in other.fetched for topic_partition in request] == [
            ("clicks", 1)
        ]
        assert len(broker.fetched) == 1


def test_damage_deletes_the_written_files(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandon, lay_there = DataFiles.abandon, list[Path]()

    def looking(files: DataFiles) -> None:
        lay_there.extend(tmp_path.rglob("*.parquet"))
        abandon(files)

    monkeypatch.setattr(DataFiles, "abandon", looking)
    spoiled = bytearray(encode(Batch(20, RECORDS)))
    spoiled[-1] ^= 1
    broker.append("clicks", 0, bytes(spoiled))
    reading = reading_from(broker, fetch_max_bytes=200)
    ranges = [OffsetRange(TopicPartition("clicks", 0), 0, 30, leader(broker))]
    [task] = tasks_of(ranges, [[0]])
    with pytest.raises(TaskFailed) as raised:
        write_task(task, reading, FileOptions(str(tmp_path), COLUMNS, row_group_bytes=1))
    reported = unmark(str(raised.value))
    assert isinstance(reported, CorruptData) and reported.where["offset"] == 20
    assert len(lay_there) == 1 and [*tmp_path.rglob("*.parquet")] == []


def test_an_unwritable_folder_is_an_error_of_the_table(broker: FakeBroker, tmp_path: Path) -> None:
    (tmp_path / "partition=0").write_text("in the way")
    reported = failure_of(broker, tmp_path, ("partition",))
    assert isinstance(reported, TableUnreachable) and "cannot be written" in reported.message


def test_a_removed_folder_is_not_created_again(broker: FakeBroker, tmp_path: Path) -> None:
    """The next run would treat it as files of another writer."""
    reported = failure_of(broker, tmp_path / "gone")
    assert isinstance(reported, TableUnreachable)
    assert reported.message == "The table's directory does not exist"
    assert not (tmp_path / "gone").exists()


def test_a_full_disk_keeps_no_file(broker: FakeBroker, tmp_path: Path) -> None:
    """No process may write a longer file here than the first pages take."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, limits[1]))
    try:
        reported = failure_of(broker, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert isinstance(reported, TableUnreachable) and "cannot be written" in reported.message
    assert [*tmp_path.rglob("*")] == []
    assert not any(
        ".parquet" in os.readlink(file)
        for file in Path("/proc/self/fd").iterdir()
        if file.is_symlink()
    )


def evens_twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    """No row of odd offsets, two of each other one, and a column more."""
    evens = batch.filter(compute.equal(compute.bit_wise_and(batch["offset"], 1), 0))
    twice = pa.concat_batches([evens, evens])
    return twice.append_column("size", compute.binary_length(twice["value"]))


def unlucky(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.num_rows and batch["offset"][0].as_py() >= 10:
        raise ValueError("no luck")
    return batch


def write_transformed(
    broker: FakeBroker, root: Path, name: str, by: tuple[str, ...] = ()
) -> Written:
    transform = load_arrow_transform(f"{__name__}:{name}")
    reading = reading_from(broker, fetch_max_bytes=100, transform=transform)
    partition = TopicPartition("clicks", 0)
    ranges = [OffsetRange(partition, *part, leader(broker)) for part in ((3, 10), (10, 17))]
    [task] = tasks_of(ranges, [[0, 1]])
    return write_task(
        task,
        reading,
        FileOptions(str(root), tuple(transform.stored.names), by, schema=transform.stored),
    )


def test_files_have_the_rows_of_a_transform(broker: FakeBroker, tmp_path: Path) -> None:
    written = write_transformed(broker, tmp_path, "evens_twice", ("size",))
    counts = [(result.records_read, result.rows) for _, result in sorted(written.results.items())]
    assert counts == [(7, 3), (7, 4)], "records that were read, and those that have a row"
    assert (written.made, written.rows) == (14, 14)
    assert [file.partition_values for file in written.files] == [{"size": "2"}]
    table = parquet.read_table(tmp_path / written.files[0].path, partitioning=None)
    assert (
        sorted(table["offset"].to_pylist()) == sorted([*range(4, 17, 2)] * 2)
        and "size" not in table.column_names
    )
    assert table["topic"].unique().to_pylist() == ["clicks"]


def test_a_failing_transform_leaves_no_file(broker: FakeBroker, tmp_path: Path) -> None:
    with pytest.raises(TaskFailed) as raised:
        write_transformed(broker, tmp_path, "unlucky")
    reported = unmark(str(raised.value))
    text = "The Arrow transform failed for a batch with rows: ValueError: no luck"
    assert isinstance(reported, SettingsError) and reported.message == text
    assert str(reported.where["line"]).startswith(__file__)
    assert [*tmp_path.rglob("*.parquet")] == []
