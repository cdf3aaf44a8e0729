"""`offset_ranges`: its tasks, options and columns, and real topics as DataFrames, with range results."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from kafka import KafkaProducer
from kafka import TopicPartition as KafkaTopicPartition
from kafka.admin import KafkaAdminClient
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from etl import OffsetRanges
from etl.errors import EtlError, NeedsDecision
from etl.io.delta.loaded_plans import Result
from etl.io.delta.table_shape import with_event_date_field
from etl.model.columns import arrow_schema, raw_columns, spark_schema
from etl.model.partitions import Broker, Cleanup, Fingerprint, Isolation, Leader, TopicPartition
from etl.model.plans import OffsetRange, Plan, RangeResult
from etl.reader.batch_transform import load_arrow_transform
from etl.reader.fetch_options import FetchOptions
from etl.reader.query_ranges import NAME, ReadOptions, Task, tasks_of_ranges
from etl.reader.spark_tasks import read_tasks
from etl.records import arrow_buffers
from etl.run.read_rows import translating_transform_errors
from etl.settings.choices import MAX_BATCH_BYTES, MAX_RECORD_BYTES
from etl.testkit.brokers import JAFKA
from etl.testkit.cluster import EmbeddedCluster
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FakeBroker
from tests.spark.appending import append_rows
from tests.traffic.jafka import JafkaTraffic
from tests.traffic.modern import grow_topic
from tests.traffic.rows import Row, hash_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


CLICKS = TopicPartition("clicks", 2)


def planned(
    ranges: Sequence[OffsetRange], tasks: Sequence[Sequence[int]], **known: Any
) -> list[Task]:
    names = ("topic_ids", "leader_epochs", "incarnations", "cleanups", "fingerprints")
    nothing: dict[str, Any] = {name: {} for name in names}
    return tasks_of_ranges(ranges, tasks, **{**nothing, **known})


def reading_at(bootstrap: str, transform: str | None = None) -> ReadOptions:
    host, port = bootstrap.split(":")
    return ReadOptions(
        fetch=FetchOptions(
            bootstrap=((host, int(port)),),
            isolation=Isolation.READ_COMMITTED,
            fetch_max_bytes=2**20,
            max_batch_bytes=MAX_BATCH_BYTES,
            max_record_bytes=MAX_RECORD_BYTES,
            timeout_s=10.0,
        ),
        columns=raw_columns(),
        target_task_bytes=2**28,
        transform=load_arrow_transform(transform) if transform else None,
    )


def read(
    spark: SparkSession,
    bootstrap: str,
    ranges: Sequence[OffsetRange],
    tasks: Sequence[Sequence[int]],
    transform: str | None = None,
) -> Any:
    """The rows and the range results of these tasks, as a run reads them."""
    return read_tasks(spark, planned(ranges, tasks), reading_at(bootstrap, transform))


def test_each_task_has_its_ranges_in_its_own_order_and_what_concerns_them_alone() -> None:
    views, tail = TopicPartition("views", 0, 3), Fingerprint(40, 12, "0a1b")
    leader = Leader(Broker(1, "h", 9092), 7)
    ranges = [
        OffsetRange(CLICKS, 5, 9, leader),
        OffsetRange(views, 0, 4),
        OffsetRange(CLICKS, 9, 12, leader),
    ]
    assert planned(
        ranges,
        [[2, 0], [1]],
        topic_ids={"clicks": "1", "views": "2", "others": "3"},
        cleanups={"clicks": Cleanup(True), "others": Cleanup(False)},
        fingerprints={views: tail},
    ) == [
        Task(
            (2, 0),
            (ranges[2], ranges[0]),
            topic_ids={"clicks": "1"},
            cleanups={"clicks": Cleanup(True)},
        ),
        Task((1,), (ranges[1],), topic_ids={"views": "2"}, fingerprints={views: tail}),
    ]


@pytest.mark.parametrize(
    ("configs", "value", "known"),
    [
        ({"cleanup.policy": "compact"}, {}, Cleanup(True)),
        (None, {}, Cleanup()),
        (
            {"cleanup.policy": "delete", "remote.storage.enable": "true"},
            {"assume_compacted": "clicks"},
            Cleanup(True, is_tiered=True),
        ),
    ],
)
def test_the_brokers_are_queried_for_the_reason_of_missing_offsets(
    configs: dict[str, str] | None, value: dict[str, str], known: Cleanup
) -> None:
    with FakeBroker() as broker:
        broker.append("clicks", 0, encode(Batch(0, [Rec(0)])))
        broker.world.configs = {} if configs is None else {"clicks": configs}
        servers = {"kafka.bootstrap.servers": f"{broker.host}:{broker.port}"}
        reader = OffsetRanges({**servers, "subscribe": "clicks", **value}).reader(None)
        [partition] = reader.partitions()
        assert partition.value.cleanups == {"clicks": known}


def test_a_task_uses_the_timeout_of_its_options_and_has_less_patience_when_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    def read(ranges: Any, options: FetchOptions, **others: Any) -> Any:
        assert options.timeout_s == 2.5
        waits.append(options.deadline_s)
        return iter(())

    monkeypatch.setattr("etl.reader.fetch.read_ranges", read)
    # Not the first task of a process, which asks Spark for the files of spark-submit.
    monkeypatch.setattr("etl.reader.run_task._tasks", 2)
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "clicks", "request_timeout_s": "2.5"}
    reader = OffsetRanges(options).reader(None)
    for attempt in range(3):
        monkeypatch.setattr(
            "pyspark.TaskContext.get",
            lambda attempt=attempt: SimpleNamespace(attemptNumber=lambda: attempt),
        )
        assert list(reader.read(InputPartition(Task((0,), (OffsetRange(CLICKS, 5, 9),))))) == []
    assert waits[0] > waits[1] == waits[2]


@pytest.fixture(scope="module")
def filled(cluster: EmbeddedCluster, topic: Any) -> str:
    """A topic with three partitions of 40 records each."""
    name: str = topic(partitions=3, config={"retention.ms": "-1"})
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
    for n in range(120):
        at = 1_700_000_000_000 + n
        place = {"partition": n % 3, "timestamp_ms": at, "headers": [("h", b"1")]}
        producer.send(name, key=str(n).encode(), value=b"v" * 20, **place)
    producer.close()
    return name


@pytest.fixture
def load(spark: SparkSession, cluster: EmbeddedCluster) -> Callable[..., DataFrame]:
    """`load(subscribe="clicks")`: the DataFrame of these options, of the tests' brokers."""
    spark.dataSource.register(OffsetRanges)

    def loaded(**options: Any) -> DataFrame:
        servers = {"kafka.bootstrap.servers": cluster.bootstrap}
        return spark.read.format(NAME).options(**servers, **options).load()

    return loaded


def test_a_topic_is_a_dataframe_without_any_of_the_rest(
    load: Callable[..., DataFrame], filled: str
) -> None:
    frame = load(subscribe=filled)
    assert frame.schema == StructType.fromDDL(spark_schema())
    rows = frame.selectExpr("*", "unix_micros(timestamp) at").collect()
    assert sorted((r.partition, r.offset, int(r.key)) for r in rows) == [
        (p, o, o * 3 + p) for p in range(3) for o in range(40)
    ]
    assert {(r.topic, bytes(r.value), r.timestampType, r.incarnation) for r in rows} == {
        (filled, b"v" * 20, 0, 0)
    }
    assert [(h.key, bytes(h.value)) for h in rows[0].headers] == [("h", b"1")]
    assert {(r.partition, r.offset): r.at for r in rows}[(1, 0)] == 1_700_000_000_001_000


def test_exact_ranges_and_chosen_columns(load: Callable[..., DataFrame], filled: str) -> None:
    ranges = [
        {"topic": filled, "partition": 1, "from": 7, "until": 9},
        {"topic": filled, "partition": 2, "from": 0, "until": 1},
    ]
    isolation = {"kafka.isolation.level": "read_uncommitted"}
    frame = load(ranges=json.dumps(ranges), columns="offset,partition", **isolation)
    assert frame.columns == ["partition", "offset"]
    assert sorted(map(tuple, frame.collect())) == [(1, 7), (1, 8), (2, 0)]


def test_options_of_sparks_own_source_read_the_same(
    load: Callable[..., DataFrame], filled: str
) -> None:
    frame = load(
        subscribe=filled,
        startingOffsets=json.dumps({filled: {"0": 4, "1": -2, "2": 3}}),
        minPartitions=6,
        endingTimestamp=1_700_000_000_010,
        columns="partition,offset",
        **{"kafka.fetch.min.bytes": 1},
    )
    assert sorted(map(tuple, frame.collect())) == [(1, n) for n in range(3)]
    frame = load(
        assign=json.dumps({filled: [0]}),
        startingTimestamp=1_700_000_000_100,
        includeHeaders="false",
    )
    assert "headers" not in frame.columns
    assert sorted(row.offset for row in frame.collect()) == list(range(34, 40))


def test_what_is_missing_is_reported_when_the_query_is_planned_and_a_wrong_option_before(
    load: Callable[..., DataFrame], filled: str
) -> None:
    with pytest.raises(Exception, match="no option 'tpics'"):
        load(tpics="x")
    with pytest.raises(Exception, match="topic no-such"):
        load(subscribe="no-such").collect()
    for partition, until, value in (
        (9, 5, "3 partitions, numbered from 0, and not this one.*partition 9"),
        (1, 41, "read up to 40"),
    ):
        ranges = json.dumps([{"topic": filled, "partition": partition, "from": 0, "until": until}])
        with pytest.raises(Exception, match=value):
            load(ranges=ranges).collect()


def _produce(cluster: EmbeddedCluster, topic: str, count: int, *, partition: int = 0) -> None:
    with contextlib.closing(KafkaProducer(bootstrap_servers=cluster.bootstrap)) as producer:
        for _ in range(count):
            producer.send(topic, b"v", partition=partition)


def test_each_query_of_a_dataframe_and_of_its_views_reads_up_to_the_end_of_the_log_at_that_time(
    spark: SparkSession, cluster: EmbeddedCluster, topic: Any, load: Callable[..., DataFrame]
) -> None:
    name = topic(config={"retention.ms": "-1"})
    frame = load(subscribe=name)
    frame.createOrReplaceTempView("temporary_view")
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW sql_view USING {NAME} OPTIONS (kafka.bootstrap.servers "
        f"'{cluster.bootstrap}', subscribe '{name}')"
    )

    def counts() -> list[int]:
        return [
            frame.count(),
            spark.table("temporary_view").count(),
            spark.sql("SELECT * FROM sql_view").count(),
        ]

    assert counts() == [0, 0, 0]
    _produce(cluster, name, 20)
    assert counts() == [20, 20, 20]
    with KafkaAdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        admin.delete_records({KafkaTopicPartition(name, 0): 15})
    assert counts() == [5, 5, 5]
    assert sorted(row.offset for row in frame.collect()) == list(range(15, 20))
    assert frame.where("offset > 17").count() == 2


def test_partitions_and_topics_that_come_after_the_first_query_are_read_by_the_next(
    cluster: EmbeddedCluster, topic: Any, load: Callable[..., DataFrame]
) -> None:
    first, second = topic(config={"retention.ms": "-1"}), f"made-later-{topic()}"
    named, matching = load(subscribe=first), load(subscribePattern=f"^({first}|{second})$")
    assert (named.count(), matching.count()) == (0, 0)
    grow_topic(cluster, first, 3)
    _produce(cluster, first, 4, partition=2)
    cluster.create_topic(second, 1)
    _produce(cluster, second, 5)
    assert (named.count(), matching.count()) == (4, 9)
    assert {(row.topic, row.partition) for row in matching.collect()} == {(first, 2), (second, 0)}


def _led(cluster: EmbeddedCluster, topic: str, *bounds: tuple[int, int, int]) -> list[OffsetRange]:
    host, _, port = cluster.bootstrap.partition(":")
    leader = Leader(Broker(0, host, int(port)))
    return [
        OffsetRange(TopicPartition(topic, p), start, until, leader) for p, start, until in bounds
    ]


@pytest.mark.parametrize("padding", [0, 3_000], ids=["few ranges", "many"])
def test_a_plans_rows_reach_the_table_and_its_results_come_back(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    filled: str,
    make_plan: Callable[..., Plan],
    tmp_path: Path,
    padding: int,
) -> None:
    ranges = _led(cluster, filled, (0, 0, 40), (1, 10, 30), (2, 5, 5), *[(0, 40, 40)] * padding)
    tasks = [[1], [0, 2], *([list(range(3, 3 + padding))] if padding else [])]
    plan, path = make_plan(1, ranges=tuple(ranges[:2])), str(tmp_path / "table")
    frame, received = read(spark, cluster.bootstrap, ranges, tasks)
    assert received.in_order(3) is None
    outcome = append_rows(frame, plan, app_id="app", path=path, partition_by=("partition",))
    assert outcome.result is Result.APPLIED
    results = received.in_order(3 + padding)
    assert results is not None
    assert [r.rows for r in results[:3]] == [40, 20, 0]
    assert results[0].fetched_bytes
    assert spark.read.format("delta").load(path).count() == 60


def test_spark_estimates_a_plan_as_large_so_that_a_join_broadcasts_the_other_side(
    spark: SparkSession,
) -> None:
    rows, _ = read(spark, "127.0.0.1:1", [OffsetRange(CLICKS, 0, 5)], [[0]])
    assert rows._jdf.queryExecution().optimizedPlan().stats().sizeInBytes() > 2**40


def test_a_bug_of_our_reader_is_not_reported_as_an_error_of_the_transform(
    spark: SparkSession,
) -> None:
    broken: Any = (None,)
    rows, _ = read_tasks(spark, [Task((0,), broken)], reading_at("127.0.0.1:1"))
    with (
        pytest.raises(Exception, match="AttributeError") as raised,
        translating_transform_errors("shaping:shape"),
    ):
        rows.where("offset > 0").count()
    assert not isinstance(raised.value, EtlError)


def test_a_transform_may_join_the_rows_of_a_plan_with_themselves(spark: SparkSession) -> None:
    with FakeBroker() as broker:
        broker.append("clicks", 2, encode(Batch(0, [Rec(n, b"v") for n in range(5)])))
        ranges = [OffsetRange(CLICKS, 0, 5, Leader(Broker(0, broker.host, broker.port)))]
        rows, received = read(spark, f"{broker.host}:{broker.port}", ranges, [[0]])
        joined = rows.join(rows.groupBy("topic").count(), "topic").join(
            rows.select("offset", "value"), "offset"
        )
        assert sorted((row["offset"], row["count"]) for row in joined.collect()) == [
            (n, 5) for n in range(5)
        ]
    assert received.results[0].rows == 5


def test_a_plan_without_ranges_is_an_empty_dataframe_of_its_columns(spark: SparkSession) -> None:
    rows, received = read(spark, "127.0.0.1:1", [], [])
    assert (rows.schema, rows.collect(), received.in_order(0)) == (
        StructType.fromDDL(spark_schema()),
        [],
        (),
    )


def test_each_task_reports_its_beginning_and_returns_the_rows_of_the_transform(
    spark: SparkSession,
) -> None:
    begun = "tests.system.transform_functions:begun"
    with FakeBroker() as broker:
        broker.append("clicks", 2, encode(Batch(0, [Rec(n, b"v") for n in range(5)])))
        ranges = [OffsetRange(CLICKS, 0, 5, Leader(Broker(0, broker.host, broker.port)))]
        rows, received = read(spark, f"{broker.host}:{broker.port}", ranges, [[0]], begun)
        found = rows.select("offset", "task", "all", "by_name").collect()
    assert [(row.offset, row.all, row.by_name) for row in found] == [
        (n, [row.task], {"task": row.task}) for n, row in enumerate(found)
    ]
    assert len(found) == received.results[0].rows == 5 and found[0].task >= 1


def test_a_range_that_is_read_twice_has_one_result(
    spark: SparkSession, cluster: EmbeddedCluster, filled: str
) -> None:
    ranges = _led(cluster, filled, (0, 0, 40))
    frame, received = read(spark, cluster.bootstrap, ranges, [[0]])
    assert frame.union(frame).count() == 80
    assert {i: r.rows for i, r in received.results.items()} == {0: 40}


def test_a_retried_task_looks_up_the_leader(
    spark: SparkSession, cluster: EmbeddedCluster, filled: str
) -> None:
    gone = Leader(Broker(9, "127.0.0.1", 1))
    ranges = [OffsetRange(TopicPartition(filled, 0), 0, 40, gone)]
    frame, received = read(spark, cluster.bootstrap, ranges, [[0]])
    assert frame.count() == 40
    found = received.results[0]
    assert received.in_order(1) == (
        RangeResult(rows=40, fetched_bytes=found.fetched_bytes, last_epoch=0, epochs=((0, 0),)),
    )


def test_a_failure_in_a_task_comes_back_as_itself(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    filled: str,
    make_plan: Callable[..., Plan],
    tmp_path: Path,
) -> None:
    beyond = tuple(_led(cluster, filled, (0, 1_000, 1_040)))
    plan = make_plan(1, ranges=beyond)
    frame, received = read(spark, cluster.bootstrap, beyond, [[0]])
    with pytest.raises(NeedsDecision) as caught:
        append_rows(frame, plan, app_id="app", path=str(tmp_path / "table"))
    assert (caught.value.where["topic"], caught.value.where["partition"]) == (filled, 0)
    assert received.in_order(1) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.timestampType", "TIMESTAMP_NTZ"),
        ("spark.sql.ansi.enabled", "false"),
        ("spark.sql.caseSensitive", "true"),
        ("spark.sql.execution.arrow.useLargeVarTypes", "true"),
        ("spark.sql.session.timeZone", "Pacific/Apia"),
        ("spark.sql.parquet.outputTimestampType", "INT96"),
        ("spark.sql.storeAssignmentPolicy", "STRICT"),
    ],
)
def test_settings_of_the_session_change_no_row(
    spark: SparkSession, make_plan: Callable[..., Plan], tmp_path: Path, key: str, value: str
) -> None:
    path, before = str(tmp_path / "table"), spark.conf.get(key) or ""
    records = [
        Rec(0, b"v", b"k", ((b"h", b"1"), (b"n", None))),
        Rec(1, None, None, timestamp_delta=5_000_000),
    ]
    columns = with_event_date_field(arrow_schema(), ["event_date"])
    expected = DeltaTable.create(str(tmp_path / "like"), columns, partition_by=["event_date"])
    with FakeBroker() as broker:
        broker.append("clicks", 0, encode(Batch(0, records)))
        plan = make_plan(1, ranges=(OffsetRange(TopicPartition("clicks", 0), 0, 2),))
        spark.conf.set(key, value)
        try:
            rows, _ = read(spark, f"127.0.0.1:{broker.port}", plan.ranges, [[0]])
            append_rows(rows, plan, app_id="app", path=path, partition_by=["event_date"])
        finally:
            spark.conf.set(key, before)
    assert DeltaTable(path).schema() == expected.schema()
    found = sorted(DeltaTable(path).to_pyarrow_table().to_pylist(), key=lambda row: row["offset"])
    headers = [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    assert [(row["key"], row["value"], row["headers"]) for row in found] == [
        (b"k", b"v", headers),
        (None, None, None),
    ]
    moments = [row["timestamp"].timestamp() for row in found]
    assert moments == [1_700_000_000, 1_700_005_000]
    assert {row["event_date"].isoformat() for row in found} == {"2023-11-14"}


@pytest.fixture
def clicks(spark: SparkSession) -> Iterator[Any]:
    """A reader of a topic with ten records."""
    spark.dataSource.register(OffsetRanges)
    with FakeBroker() as broker:
        broker.append(
            "clicks",
            0,
            encode(Batch(0, [Rec(n, b"v%d" % n, b"k", ((b"h", b"1"),)) for n in range(10)])),
        )
        yield (
            spark.read.format("offset_ranges")
            .option("kafka.bootstrap.servers", f"{broker.host}:{broker.port}")
            .option("subscribe", "clicks")
        )


def test_a_query_that_names_columns_by_a_schema_gets_those_in_its_order(clicks: Any) -> None:
    frame = clicks.schema("offset BIGINT, value BINARY, timestamp TIMESTAMP").load()
    assert frame.columns == ["offset", "value", "timestamp"]
    found = (
        frame.where("offset > 8")
        .selectExpr("offset", "cast(value as string)", "unix_millis(timestamp)")
        .collect()
    )
    assert list(map(tuple, found)) == [(9, "v9", 1_700_000_000_000)]


def test_a_schema_with_another_type_of_a_column_is_reported_with_the_column(clicks: Any) -> None:
    with pytest.raises(Exception, match="The schema says that offset is int, it is bigint"):
        clicks.schema("offset INT").load().collect()


def test_columns_that_a_schema_leaves_out_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[frozenset[str]] = []
    fill = arrow_buffers.BatchBuffers.__init__

    def watched(self: Any, columns: Any, **more: Any) -> None:
        built.append(frozenset(columns))
        fill(self, columns, **more)

    monkeypatch.setattr(arrow_buffers.BatchBuffers, "__init__", watched)
    schema = StructType().add("value", "binary").add("partition", "integer")
    with FakeBroker() as broker:
        broker.append("clicks", 0, encode(Batch(0, [Rec(0, b"v", b"k", ((b"h", b"1"),))])))
        servers = {"kafka.bootstrap.servers": f"{broker.host}:{broker.port}"}
        reader = OffsetRanges({**servers, "subscribe": "clicks"}).reader(schema)
        [task] = reader.partitions()
        batches: Any = reader.read(task)
        assert [batch.to_pylist() for batch in batches] == [[{"value": b"v", "partition": 0}]]
    assert built == [frozenset({"value", "partition"})]


def test_our_rows_are_all_there_for_every_query_where_a_session_pushes_filters(
    spark: SparkSession, clicks: Any
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = clicks.load()
        assert [row.offset for row in frame.where("offset = 7").collect()] == [7]
        assert frame.select("offset").count() == 10
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


TRAFFIC = JafkaTraffic()
TOPIC = "clicks"


@pytest.fixture(scope="module")
def jafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """Two brokers with two logs of several segments, plain and compressed entries."""
    folder, properties = tmp_path_factory.mktemp("jafka"), {"log.file.size": "4096"}
    with EmbeddedCluster(2, version=JAFKA, folder=folder, properties=properties) as cluster:
        TRAFFIC.create_topic(cluster, TOPIC, 4, replication_factor=1, config=None)
        TRAFFIC.load(cluster, TOPIC, 0, 2_000, 4)
        yield cluster


def messages_of(frame: DataFrame) -> Counter[Row]:
    return Counter(
        (*(row[column] for column in TRAFFIC.place), hash_of(row["value"]))
        for row in frame.collect()
    )


@pytest.mark.long
def test_every_message_of_two_real_brokers_of_jafka_is_a_row_once_and_goes_into_a_delta_table(
    spark: SparkSession, jafka: EmbeddedCluster, tmp_path: Path
) -> None:
    spark.dataSource.register(OffsetRanges)
    options = {"broker_type": "jafka", "zookeeper": jafka.zookeeper_connect, "subscribe": TOPIC}
    sizes = {"target_task_bytes": "4096", "fetch_max_bytes": "1024"}
    frame = spark.read.format(NAME).options(**options, **sizes).load()
    expected = TRAFFIC.in_topic(jafka, TOPIC)
    assert sum(expected.values()) == 2_000
    assert messages_of(frame) == expected
    path = str(tmp_path / "table")
    frame.write.format("delta").save(path)
    assert messages_of(spark.read.format("delta").load(path)) == expected
