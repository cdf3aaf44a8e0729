"""The real command with a wrong conf: exit code, error, place in the conf and action."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import write_deltalake
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from etl.io.brokers.cluster_requests import Cluster as Brokers
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.model.partitions import BrokerPartition
from etl.reader.source import OffsetRanges
from etl.settings.choices import split_address
from tests.command_result import CommandResult, refused, run_etl
from tests.fakes.broker import FakeBroker
from tests.fakes.listening import listening
from tests.system.driving import Pipeline

# -- the size of a fetch
# ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_record_batch_that_is_larger_than_a_fetch_may_grow_names_the_setting_and_is_read_with_it(
    make_pipeline: Callable[..., Pipeline],
    spark: SparkSession,
) -> None:
    small = {"fetch_max_bytes": 65_536, "max_batch_bytes": 65_536}
    pipeline = make_pipeline(partitions=1, config={"max.message.bytes": "4000000"}, source=small)
    with Brokers(
        [split_address(address) for address in pipeline.cluster.bootstrap.split(",")]
    ) as brokers:
        leader = (
            brokers.describe([pipeline.topic]).leaders[BrokerPartition(pipeline.topic, 0)].broker
        )
    with SimpleConsumer(leader.host, leader.port) as broker:
        broker.produce(pipeline.topic, 0, [(None, b"x" * 100_000)] * 30)
    refused(
        pipeline.run(),
        2,
        "A record batch is too large",
        "Raise source.max_batch_bytes",
        pipeline.topic,
        "offset 0",
    )
    spark.dataSource.register(OffsetRanges)
    alone = spark.read.format("offset_ranges").options(
        **{"kafka.bootstrap.servers": pipeline.cluster.bootstrap},
        subscribe=pipeline.topic,
        **small,
    )
    with pytest.raises(
        PySparkException, match="A record batch is too large.*Raise the option max_batch_bytes"
    ):
        alone.load().count()
    pipeline.settings = {"source": {**small, "max_batch_bytes": 4_000_000}}
    assert pipeline.ran().outcomes == ["plan_resumed", "ingested"]
    assert pipeline.is_whole()


# -- the transform and the partitioning
# -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        ("no_such_module_of_tests:shaped", ("no_such_module_of_tests",)),
        ("transforms_of_tests:missing", ("missing",)),
        ("transforms_of_tests:number", ("number",)),
        ("transforms_of_tests:fails", ("no luck", "transforms_of_tests.py:3")),
        ("transforms_of_tests:asks_for_a_column", ("colour", "transforms_of_tests.py:5")),
        ("transforms_of_tests:forgets_to_return", ("NoneType",)),
        ("broken_of_tests:shaped", ("SyntaxError",)),
    ],
)
def test_a_transform_that_does_not_work_is_named_before_a_plan_binds_the_conf_to_it(
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    transform: str,
    words: tuple[str, ...],
) -> None:
    (pipeline.folder / "broken_of_tests.py").write_text("def shaped(rows)\n")
    (pipeline.folder / "transforms_of_tests.py").write_text(
        "number = 3\n"
        "def fails(rows):\n    raise ValueError('no luck')\n"
        "def asks_for_a_column(rows):\n    return rows.select('colour')\n"
        "def forgets_to_return(rows):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(pipeline.folder))
    monkeypatch.delitem(sys.modules, "transforms_of_tests", raising=False)
    pipeline.produce(40)
    pipeline.settings = {"transform": transform}
    refused(pipeline.run(), 2, "transform", *words)
    with pipeline.zookeeper() as client:
        assert not client.exists(f"/consumers/{pipeline.group}/etl/clicks/plans")


@pytest.mark.parametrize(
    ("name", "made", "words"),
    [
        ("unlucky", "lucky('value')", ("ValueError: no luck", "unlucky_of_tests.py:6")),
        pytest.param(
            "unknown",
            "f.udf(of_the_module, 'int')('value')",
            ("No module named 'unknown_of_tests'", "the workers have its module"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            "shuffled",
            "f.expr('1 / (offset - 7)')).repartition(2, f.col('size')",
            ("DIVIDE_BY_ZERO",),
            marks=pytest.mark.long,
        ),
        pytest.param(
            "closed",
            "closed('value')",
            ("PermissionError", "closed_of_tests.py:13"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_transform_that_fails_on_a_row_is_named_and_the_mended_one_finishes_the_plan(
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    made: str,
    words: tuple[str, ...],
) -> None:
    module = pipeline.folder / f"{name}_of_tests.py"
    module.write_text(
        "from pyspark.sql import functions as f\n\n"
        "@f.udf('int')\ndef lucky(value):\n    if value:\n        raise ValueError('no luck')\n\n"
        "def of_the_module(value):\n    return 1\n\n"
        "@f.udf('int')\ndef closed(value):\n    raise PermissionError(13, 'Permission "
        "denied', '/data/lookup.csv')\n\n"
        f"def shaped(rows):\n    return rows.withColumn('size', {made})\n"
    )
    monkeypatch.syspath_prepend(str(pipeline.folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    pipeline.produce(400)
    pipeline.settings = {"transform": f"{name}_of_tests:shaped"}
    refused(pipeline.run(), 2, "The transform failed on a row", *words)
    module.write_text("def shaped(rows):\n    return rows\n")
    monkeypatch.delitem(sys.modules, f"{name}_of_tests")
    assert pipeline.ran().outcomes == ["plan_resumed", "ingested"]
    assert pipeline.is_whole()
    monkeypatch.delitem(sys.modules, f"{name}_of_tests")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("leaving", "import sys\nsys.exit(0)\n", ("cannot be imported", "sys.exit, with 0")),
        (
            "left",
            "import sys\n\ndef shaped(rows):\n    sys.exit(0)\n",
            ("The transform failed", "left_of_tests.py:4"),
        ),
        (
            "blank",
            "from pyspark.sql import functions as f\n\ndef shaped(rows):\n    return "
            "rows.withColumn('a b', f.lit(1))\n",
            ("'a b'",),
        ),
    ],
)
def test_a_transform_that_exits_or_has_no_columns_is_reported_by_doctor_and_run_alike(
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
    name: str,
    text: str,
    words: tuple[str, ...],
) -> None:
    (pipeline.folder / f"{name}_of_tests.py").write_text(text)
    monkeypatch.syspath_prepend(str(pipeline.folder))
    pipeline.produce(40)
    pipeline.settings = {"transform": f"{name}_of_tests:shaped"}
    refused(pipeline.run(), 2, *words)
    assert pipeline.door("doctor").code == 2
    pipeline.settings = {}
    assert pipeline.ran().outcomes == ["ingested"], "no plan was stored"


def test_a_partitioning_that_the_rows_or_the_table_do_not_have_is_named(pipeline: Pipeline) -> None:
    pipeline.produce(40)
    pipeline.settings = {"table": {"path": str(pipeline.table), "partition_by": ["colour"]}}
    refused(pipeline.run(), 2, "colour", "table.partition_by")
    pipeline.settings = {"table": {"path": str(pipeline.table), "partition_by": ["key"]}}
    refused(pipeline.run(), 2, "F.hex('key')", "table.partition_by")
    assert [pipeline.door(*words).code for words in (("doctor",), ("run", "--dry-run"))] == [2, 2]
    pipeline.settings = {}
    pipeline.ran()
    pipeline.settings = {"table": {"path": str(pipeline.table), "partition_by": ["partition"]}}
    pipeline.produce(40)
    refused(pipeline.run(), 2, "partition", "table.partition_by")


# -- topics, addresses, tables
# ----------------------------------------------------------------------------------------


def test_a_topic_that_is_not_there_is_named(make_pipeline: Callable[..., Pipeline]) -> None:
    refused(
        make_pipeline(source={"topics": ["no-such-topic"]}).run(),
        2,
        "topic no-such-topic",
        "source.topics",
    )
    refused(make_pipeline(source={"topics": ["no-such-.*"]}).run(), 2, "no-such-.*")


def test_a_topic_that_we_may_not_read_is_named(spoiled: tuple[Pipeline, FakeBroker]) -> None:
    pipeline, broker = spoiled
    broker.log(pipeline.topic, 0).refusals.extend([29] * 50)
    refused(pipeline.run(), 2, pipeline.topic, "ACL")


def test_a_wrong_chroot_is_named_and_stays_empty(make_pipeline: Callable[..., Pipeline]) -> None:
    pipeline = make_pipeline()
    hosts = pipeline.cluster.zookeeper.connect
    pipeline.settings = {"zookeeper": {"connect": f"{hosts}/kafak"}}
    refused(pipeline.run(), 2, "/kafak", "chroot")
    with pipeline.zookeeper() as client:
        client.chroot = ""
        assert not client.exists("/kafak")


def test_a_port_that_speaks_http_is_named(make_pipeline: Callable[..., Pipeline]) -> None:
    with listening(
        lambda c: c.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    ) as port:
        refused(
            make_pipeline(source={"bootstrap_servers": f"127.0.0.1:{port}"}).run(),
            2,
            f"127.0.0.1:{port}",
            "HTTP",
        )


def test_a_port_that_speaks_tls_is_named(
    make_pipeline: Callable[..., Pipeline], tmp_path: Path
) -> None:
    key = tmp_path / "key.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=localhost",
        "-days",
        "1",
    ]
    subprocess.run(
        [*made, "-keyout", str(key), "-out", str(key) + ".crt"], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(key) + ".crt", str(key))

    def shake(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            context.wrap_socket(connection, server_side=True)

    with listening(shake) as port:
        refused(
            make_pipeline(source={"bootstrap_servers": f"127.0.0.1:{port}"}).run(),
            2,
            f"127.0.0.1:{port}",
            "TLS",
        )


def test_a_table_path_that_holds_something_else_is_named(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline()
    pipeline.table.write_text("a file")
    refused(pipeline.run(), 2, str(pipeline.table), "file")
    pipeline.table.unlink()
    pipeline.table.mkdir()
    (pipeline.table / "part-0.parquet").write_text("rows of another program")
    refused(pipeline.run(), 2, str(pipeline.table), "part-0.parquet")


def test_a_table_of_another_shape_is_named_with_the_column(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    import pyarrow

    pipeline = make_pipeline()
    write_deltalake(str(pipeline.table), pyarrow.table({"key": ["text"], "value": [b"bytes"]}))
    refused(pipeline.run(), 2, str(pipeline.table), "column key is string, expected binary")


# -- folders
# --------------------------------------------------------------------------------------------------


def test_a_place_where_no_table_can_be_is_named_before_a_plan_is_stored(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline()
    pipeline.produce(40)
    (pipeline.folder / "file").write_text("in the way")
    pipeline.settings = {"table": {"path": str(pipeline.folder / "file" / "table")}}
    refused(pipeline.run(), 2, "file is a file, and the path lies below it", "file/table")
    pipeline.settings = {"table": {"path": "s4://bucket/clicks"}}
    refused(pipeline.run(), 2, "The store of this URL is not supported", "s4")
    with pipeline.zookeeper() as client:
        assert not client.exists(f"/consumers/{pipeline.group}/etl/clicks/plans")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user with fewer rights")
def test_a_folder_that_only_its_owner_may_write_is_named(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline()
    pipeline.produce(40)
    with _folder_for_everybody() as home:
        pipeline.settings = {
            "table": {"path": str(home / "closed" / "table")},
            "report": {"path": str(home / "reports")},
        }
        (home / "closed").mkdir(mode=0o755)
        refused(_unprivileged(pipeline, home), 7, str(home / "closed"), "ermission denied", "retry")
        pipeline.settings["report"]["path"] = str(home / "closed" / "reports")
        refused(_unprivileged(pipeline, home), 2, "report.path", "ermission denied")
    with pipeline.zookeeper() as client:
        assert not client.exists(f"/consumers/{pipeline.group}/etl/clicks/plans")


@contextlib.contextmanager
def _folder_for_everybody() -> Iterator[Path]:
    """pytest's own temporary folders are closed to everybody else."""
    home = Path(tempfile.mkdtemp(prefix="etl-test-"))
    try:
        home.chmod(0o777)
        yield home
    finally:
        shutil.rmtree(home)


def _unprivileged(pipeline: Pipeline, home: Path) -> CommandResult:
    """The run with the rights of a user who owns nothing; what it imports was imported before."""
    # noqa: F401
    # noqa: F401

    pipeline.door("run", after=["--dry-run"])
    conf = home / "conf.yaml"
    conf.write_bytes(pipeline.conf.read_bytes())
    os.seteuid(65534)
    try:
        return run_etl("run", str(conf), "--json")
    finally:
        os.seteuid(0)
