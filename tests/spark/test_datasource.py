"""`offset_ranges`: its options, and real topics as DataFrames, with receipts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from etl.datasource import NAME, OffsetRanges, Task, _INLINE_BYTES, parse_options, parse_ranges, parse_tasks, read_tasks, render_tasks
from etl.edges import delta
from etl.edges.delta import Result
from etl.errors import NeedsDecision, SettingsError
from etl.frame import spark_schema
from etl.model import Broker, BrokerPartition, Isolation, Leader, OffsetRange, Plan, Receipt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from etl.embedded.cluster import Cluster

CLICKS = BrokerPartition("clicks", 2)


def test_tasks_survive_their_text() -> None:
    led = OffsetRange(CLICKS, 5, 9, Leader(Broker(1, "h", 9092), 7))
    ranges = [led, OffsetRange(BrokerPartition("views", 0, 3), 0, 4), OffsetRange(CLICKS, 9, 12, Leader(Broker(1, "h", 9092)))]
    ids = {"clicks": "id of clicks", "views": "id of views", "others": "id of others"}
    assert parse_tasks(render_tasks(ranges, [[2, 0], [1]], ids)) == [
        Task((2, 0), (ranges[2], ranges[0]), {"clicks": "id of clicks"}), Task((1,), (ranges[1],), {"views": "id of views"})]


def test_ranges_are_written_as_json() -> None:
    text = '[{"topic": "clicks", "partition": 2, "from": 5, "until": 9}]'
    assert parse_ranges(text) == (OffsetRange(CLICKS, 5, 9),)


@pytest.mark.parametrize("options, named", [
    ({"bootstrap": "h:1", "topics": "t", "topicz": "t"}, "topicz"),
    ({"bootstrap": "h:1"}, "topics"),
    ({"bootstrap": "h:1", "topics": "t", "ranges": "[]"}, "topics"),
    ({"topics": "t"}, "bootstrap"),
    ({"bootstrap": "h", "topics": "t"}, "'h'"),
    ({"bootstrap": "h:99999", "topics": "t"}, "'h:99999'"),
    ({"bootstrap": "h:0", "topics": "t"}, "'h:0'"),
    ({"bootstrap": "h" * 80 + ":1", "topics": "t"}, "host's name"),
    ({"bootstrap": "h:1", "topics": "t", "isolation": "dirty"}, "dirty"),
    ({"bootstrap": "h:1", "topics": "t", "columns": "key,nothing"}, "nothing"),
    ({"bootstrap": "h:1", "topics": "t", "columns": " , "}, "columns"),
    ({"bootstrap": "h:1", "topics": "t", "fetch_max_bytes": "-1"}, "fetch_max_bytes"),
    ({"bootstrap": "h:1", "topics": "t", "fetch_max_bytes": str(2**31)}, "fetch_max_bytes"),
    ({"bootstrap": "h:1", "topics": "t", "fetch_limit_bytes": str(2**31)}, "fetch_limit_bytes"),
    ({"bootstrap": "h:1", "topics": "t", "timeout_s": "soon"}, "timeout_s"),
    ({"bootstrap": "h:1", "topics": "t", "timeout_s": "1e300"}, "timeout_s"),
    ({"bootstrap": "h:1", "topics": "t", "timeout_s": "nan"}, "timeout_s"),
])
def test_a_wrong_option_is_refused_by_name(options: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        parse_options(options)


@pytest.mark.parametrize("text", ["", "{}x", '[{"topic": "t"}]', '[{"topic": "t", "partition": 0, "from": 9, "until": 5}]', "[1]",
                                  '[{"topic": "t", "partition": 2147483648, "from": 0, "until": 5}]',
                                  '[{"topic": "t", "partition": 0, "from": 0, "until": 9223372036854775808}]',
                                  '[{"topic": "t", "partition": 0, "from": 0.5, "until": 5}]'])
def test_what_is_no_list_of_ranges_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(SettingsError, match='"from": 10'):
        parse_ranges(text)


@pytest.mark.parametrize("said, seconds", [({}, 30.0), ({"timeout_s": "2.5"}, 2.5)])
def test_a_task_asks_brokers_under_the_deadline_of_its_options(
    said: dict[str, str], seconds: float, monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("etl.fetch.read_ranges", lambda ranges, **manner: iter(asked.update(manner) or ()))
    reader = OffsetRanges({"bootstrap": "h:1", "tasks": render_tasks([OffsetRange(CLICKS, 5, 9)], [[0]]), **said}).reader(None)
    [task] = reader.partitions()
    assert list(reader.read(task)) == []
    assert asked["timeout_s"] == seconds


def test_a_task_that_is_tried_again_has_less_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def read(ranges: Any, *, deadline_s: float, **manner: Any) -> Any:
        waits.append(deadline_s)
        return iter(())

    monkeypatch.setattr("etl.fetch.read_ranges", read)
    reader = OffsetRanges({"bootstrap": "h:1", "tasks": render_tasks([OffsetRange(CLICKS, 5, 9)], [[0]])}).reader(None)
    for attempt in range(3):
        monkeypatch.setattr("pyspark.TaskContext.get", lambda attempt=attempt: SimpleNamespace(attemptNumber=lambda: attempt))
        assert list(reader.read(reader.partitions()[0])) == []
    assert waits[0] > waits[1] == waits[2]


@pytest.fixture(scope="module")
def filled(cluster: Cluster, topic: Any) -> str:
    """A topic with three partitions of 40 records each."""
    from kafka import KafkaProducer

    name: str = topic(partitions=3, config={"retention.ms": "-1"})
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
    for n in range(120):
        at = 1_700_000_000_000 + n
        producer.send(name, key=str(n).encode(), value=b"v" * 20, partition=n % 3, timestamp_ms=at, headers=[("h", b"1")])
    producer.close()
    return name


def test_a_topic_is_a_dataframe_without_any_of_the_rest(spark: SparkSession, cluster: Cluster, filled: str) -> None:
    from pyspark.sql.types import StructType

    spark.dataSource.register(OffsetRanges)
    frame = spark.read.format("offset_ranges").option("bootstrap", cluster.bootstrap).option("topics", filled).load()
    assert frame.schema == StructType.fromDDL(spark_schema())
    rows = frame.selectExpr("*", "unix_micros(timestamp) at").collect()
    assert sorted((r.partition, r.offset, int(r.key)) for r in rows) == [(p, o, o * 3 + p) for p in range(3) for o in range(40)]
    assert {(r.topic, bytes(r.value), r.timestampType, r.log_epoch) for r in rows} == {(filled, b"v" * 20, 0, 0)}
    assert [(h.key, bytes(h.value)) for h in rows[0].headers] == [("h", b"1")]
    assert {(r.partition, r.offset): r.at for r in rows}[(1, 0)] == 1_700_000_000_001_000


def test_exact_ranges_and_chosen_columns(spark: SparkSession, cluster: Cluster, filled: str) -> None:
    spark.dataSource.register(OffsetRanges)
    ranges = [{"topic": filled, "partition": 1, "from": 7, "until": 9}, {"topic": filled, "partition": 2, "from": 0, "until": 1}]
    reader = spark.read.format(NAME).option("bootstrap", cluster.bootstrap).option("ranges", json.dumps(ranges))
    frame = reader.option("columns", "offset,partition").option("isolation", "read_uncommitted").load()
    assert frame.columns == ["partition", "offset"]
    assert sorted(map(tuple, frame.collect())) == [(1, 7), (1, 8), (2, 0)]


def test_nothing_to_read_is_an_empty_dataframe(spark: SparkSession, cluster: Cluster, topic: Any) -> None:
    spark.dataSource.register(OffsetRanges)
    assert spark.read.format(NAME).option("bootstrap", cluster.bootstrap).option("topics", topic()).load().collect() == []


def test_a_missing_topic_and_a_wrong_option_are_told_by_what_they_are(spark: SparkSession, cluster: Cluster) -> None:
    spark.dataSource.register(OffsetRanges)
    reader = spark.read.format(NAME).option("bootstrap", cluster.bootstrap)
    with pytest.raises(Exception, match="topic no-such"):
        reader.option("topics", "no-such").load().collect()
    with pytest.raises(Exception, match="no option 'tpics'"):
        reader.option("tpics", "x").load()


def _led(cluster: Cluster, topic: str, *bounds: tuple[int, int, int]) -> list[OffsetRange]:
    host, _, port = cluster.bootstrap.partition(":")
    leader = Leader(Broker(0, host, int(port)))
    return [OffsetRange(BrokerPartition(topic, p), start, until, leader) for p, start, until in bounds]


@pytest.mark.parametrize("padding", [0, 3_000], ids=["as an option", "as a file"])
def test_a_plans_rows_reach_the_table_and_its_receipts_come_back(
    spark: SparkSession, cluster: Cluster, filled: str, make_plan: Callable[..., Plan], tmp_path: Path, padding: int
) -> None:
    ranges = _led(cluster, filled, (0, 0, 40), (1, 10, 30), (2, 5, 5), *[(0, 40, 40)] * padding)
    assert (len(render_tasks(ranges, [])) > _INLINE_BYTES) == bool(padding)
    tasks = [[1], [0, 2], list(range(3, 3 + padding))]
    plan, path = make_plan(1, ranges=tuple(ranges[:2])), str(tmp_path / "table")
    frame, received = read_tasks(spark, ranges, tasks, bootstrap=[cluster.bootstrap], isolation=Isolation.READ_COMMITTED)
    assert received.in_order(3) is None
    outcome = delta.append(frame, plan, app_id="app", path=path, partition_by=("partition",), known=None)
    assert outcome.result is Result.APPLIED
    receipts = received.in_order(3 + padding)
    assert receipts is not None
    assert [r.rows for r in receipts[:3]] == [40, 20, 0]
    assert receipts[0].fetched_bytes
    assert spark.read.format("delta").load(path).count() == 60


def test_a_range_that_is_read_twice_has_one_receipt(spark: SparkSession, cluster: Cluster, filled: str) -> None:
    ranges = _led(cluster, filled, (0, 0, 40))
    frame, received = read_tasks(spark, ranges, [[0]], bootstrap=[cluster.bootstrap], isolation=Isolation.READ_COMMITTED)
    assert frame.union(frame).count() == 80
    assert {i: r.rows for i, r in received.receipts.items()} == {0: 40}


def test_a_task_that_is_tried_again_asks_for_the_leader(spark: SparkSession, cluster: Cluster, filled: str) -> None:
    gone = Leader(Broker(9, "127.0.0.1", 1))
    ranges = [OffsetRange(BrokerPartition(filled, 0), 0, 40, gone)]
    frame, received = read_tasks(spark, ranges, [[0]], bootstrap=[cluster.bootstrap], isolation=Isolation.READ_COMMITTED)
    assert frame.count() == 40
    assert received.in_order(1) == (Receipt(rows=40, fetched_bytes=received.receipts[0].fetched_bytes),)


def test_a_failure_in_a_task_comes_back_as_itself(
    spark: SparkSession, cluster: Cluster, filled: str, make_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    beyond = tuple(_led(cluster, filled, (0, 1_000, 1_040)))
    plan = make_plan(1, ranges=beyond)
    frame, received = read_tasks(spark, beyond, [[0]], bootstrap=[cluster.bootstrap], isolation=Isolation.READ_COMMITTED)
    with pytest.raises(NeedsDecision) as caught:
        delta.append(frame, plan, app_id="app", path=str(tmp_path / "table"), partition_by=(), known=None)
    assert (caught.value.where["topic"], caught.value.where["partition"]) == (filled, 0)
    assert received.in_order(1) is None
