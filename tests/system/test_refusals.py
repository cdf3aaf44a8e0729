"""What bad input gets from the real command: an exit code, what was wrong, where, and what to check; and nothing is lost by it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from pyspark.sql import SparkSession

from etl.embedded.server import wait_until
from tests.fakes.batches import Batch, Codec, Rec, encode
from tests.fakes.broker import FETCH, FakeBroker, altered, cut_to, never
from tests.system.driving import Pipeline, Said


def refused(said: Said, code: int, *words: str) -> None:
    """The exit code, and a message of two lines or three that says all of `words`; no traceback."""
    assert said.code == code, said.err + said.out
    assert "Traceback" not in said.err
    assert "check: " in said.err
    for word in words:
        assert word in said.err, said.err
    assert said.document["exit_code"] == code


# -- 2: settings, or what they point at ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "words"), [
    ({"source": {"strat": "latest"}}, ("unknown key", "source.strat")),
    ({"limits": {"max_records_per_run": "many"}}, ("limits.max_records_per_run", "many")),
    ({"source": {"start": "yesterday"}}, ("source.start", "earliest, latest")),
    ({"source": {"start": {"timestamp": "2026-01-31T00:00:00"}}}, ("source.start.timestamp", "UTC offset")),
    ({"ownership": {"mode": "join"}}, ("ownership.mode", "claim")),
])
def test_a_wrong_key_is_named_with_its_path(
    make_pipeline: Callable[..., Pipeline], settings: dict[str, Any], words: tuple[str, ...],
) -> None:
    refused(make_pipeline(**settings).run(), 2, "conf.yaml", *words)


def test_a_conf_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    from etl.cli import main

    assert main(["run", "no/such.yaml"]) == 2
    assert "the conf file is not there (path no/such.yaml)" in capsys.readouterr().err


def test_a_topic_that_is_not_there_is_named(make_pipeline: Callable[..., Pipeline]) -> None:
    refused(make_pipeline(source={"topics": {"allow": ["no-such-topic"]}}).run(), 2, "topic no-such-topic", "source.topics.allow")
    refused(make_pipeline(source={"topics": {"allow": ["no-such-.*"]}}).run(), 2, "no-such-.*")


def test_a_wrong_chroot_is_named_and_stays_empty(make_pipeline: Callable[..., Pipeline]) -> None:
    pipeline = make_pipeline()
    hosts = pipeline.cluster.zookeeper.connect
    pipeline.settings = {"zookeeper": {"connect": f"{hosts}/kafak"}}
    refused(pipeline.run(), 2, "/kafak", "chroot")
    with pipeline.zookeeper() as client:
        client.chroot = ""
        assert not client.exists("/kafak")


def test_a_port_that_speaks_http_is_named(make_pipeline: Callable[..., Pipeline]) -> None:
    with listening(lambda c: c.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")) as port:
        refused(make_pipeline(source={"bootstrap": f"127.0.0.1:{port}"}).run(), 2, f"127.0.0.1:{port}", "HTTP")


def test_a_port_that_speaks_tls_is_named(make_pipeline: Callable[..., Pipeline], tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "1"]
    subprocess.run([*made, "-keyout", str(key), "-out", str(key) + ".crt"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(key) + ".crt", str(key))

    def shake(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            context.wrap_socket(connection, server_side=True)

    with listening(shake) as port:
        refused(make_pipeline(source={"bootstrap": f"127.0.0.1:{port}"}).run(), 2, f"127.0.0.1:{port}", "TLS")


def test_a_table_path_that_holds_something_else_is_named(make_pipeline: Callable[..., Pipeline]) -> None:
    pipeline = make_pipeline()
    pipeline.table.write_text("a file")
    refused(pipeline.run(), 2, str(pipeline.table), "file")
    pipeline.table.unlink()
    pipeline.table.mkdir()
    (pipeline.table / "part-0.parquet").write_text("rows of somebody")
    refused(pipeline.run(), 2, str(pipeline.table), "part-0.parquet")


def test_a_table_of_another_shape_is_named_with_the_column(make_pipeline: Callable[..., Pipeline]) -> None:
    import pyarrow

    pipeline = make_pipeline()
    write_deltalake(str(pipeline.table), pyarrow.table({"key": ["text"], "value": [b"bytes"]}))
    refused(pipeline.run(), 2, str(pipeline.table), "column key is string, expected binary")


# -- 4: somebody else is at work ----------------------------------------------------------------------------------------


def test_a_live_group_an_owned_partition_and_a_second_driver_are_left_alone(make_pipeline: Callable[..., Pipeline]) -> None:
    pipeline = make_pipeline()
    pipeline.produce(40)
    root = f"/consumers/{pipeline.group}"
    with pipeline.zookeeper() as client:
        client.create(f"{root}/ids/old-consumer-1", b"{}", ephemeral=True, makepath=True)
        refused(pipeline.run(), 4, "old-consumer-1", "retry")
        client.delete(f"{root}/ids/old-consumer-1")
        client.create(f"{root}/owners/{pipeline.topic}/2", b"old-consumer-1-0", ephemeral=True, makepath=True)
        refused(pipeline.run(), 4, "old-consumer-1-0", "partition 2", pipeline.topic)
        client.delete(f"{root}/owners/{pipeline.topic}/2")
        driver = b'{"host": "elsewhere", "pid": 7, "started": null, "run_id": "theirs"}'
        client.create(f"{root}/etl/clicks/driver", driver, ephemeral=True, makepath=True)
        refused(pipeline.run(), 4, "run theirs, pid 7 on elsewhere")
        assert not client.exists(f"{root}/etl/clicks/plans")


# -- 5: a person must decide --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "words"), [
    (b"5", ("the log starts at 10", "partition 0", "offset 5", "on_data_loss")),
    (b"99", ("above the end of the log", "partition 0", "offset 99")),
    (b"12\n", ("no number", "12", "partition 0")),
    (b"\xac\xed\x00\x05t\x00\x0212", ("no number", "partition 0")),
], ids=["below the log start", "above the log end", "with a newline", "serialised by Java"])
def test_a_committed_offset_that_cannot_be_is_named(make_pipeline: Callable[..., Pipeline], offset: bytes, words: tuple[str, ...]) -> None:
    pipeline = make_pipeline()
    pipeline.produce(80)
    with KafkaAdminClient(bootstrap_servers=pipeline.cluster.bootstrap) as admin:
        admin.delete_records({TopicPartition(pipeline.topic, 0): 10})
    with pipeline.zookeeper() as client:
        client.create(f"/consumers/{pipeline.group}/offsets/{pipeline.topic}/0", offset, makepath=True)
        refused(pipeline.run(), 5, pipeline.topic, *words)
        assert client.get(f"/consumers/{pipeline.group}/offsets/{pipeline.topic}/0")[0] == offset
    assert not pipeline.table.exists()


def test_an_offset_that_somebody_moved_is_named_and_followed_where_policy_says_so(pipeline: Pipeline) -> None:
    pipeline.produce(80)
    pipeline.ran()
    path = f"/consumers/{pipeline.group}/offsets/{pipeline.topic}/1"
    with pipeline.zookeeper() as client:
        client.set(path, b"13")
        refused(pipeline.run(), 5, "it is 13, ours is 20", "partition 1", "load rows twice")
        pipeline.produce(80)
        client.set(path, b"27")
    refused(pipeline.run(), 5, "it is 27, ours is 20", "partition 1", "source.on_moved")
    pipeline.settings = {"source": {"on_moved": "follow"}}
    assert pipeline.ran().outcomes == ["followed", "records lost", "ingested"]
    assert pipeline.committed() == dict.fromkeys(range(4), 40)
    assert sum(pipeline.in_table().values()) == 160 - 7


@pytest.fixture
def spoiled(make_pipeline: Callable[..., Pipeline], spark: SparkSession) -> Iterator[tuple[Pipeline, FakeBroker]]:
    """A pipeline on a broker of our own that can misbehave; its ledger is in the real ZooKeeper."""
    with FakeBroker() as broker:
        pipeline = make_pipeline(source={"bootstrap": f"127.0.0.1:{broker.port}", "timeout_s": 3})
        records = [Rec(delta, b"value-%d" % delta) for delta in range(10)]
        broker.append(pipeline.topic, 0, *(encode(Batch(10 * n, records, Codec.NONE)) for n in range(3)))
        yield pipeline, broker


def test_a_record_batch_with_a_wrong_crc_is_named_to_the_offset(spoiled: tuple[Pipeline, FakeBroker]) -> None:
    pipeline, broker = spoiled
    log = broker.log(pipeline.topic, 0)
    whole = log.batches[1]
    log.batches[1] = whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:]
    refused(pipeline.run(), 5, "CRC", f"topic {pipeline.topic}", "partition 0", "offset 10")
    assert not DeltaTable.is_deltatable(str(pipeline.table))
    log.batches[1] = whole
    assert pipeline.ran().outcomes == ["replayed", "ingested"]
    assert sum(pipeline.in_table().values()) == 30


def test_an_absurd_length_in_a_response_is_named(spoiled: tuple[Pipeline, FakeBroker]) -> None:
    pipeline, broker = spoiled
    length = struct.pack(">i", sum(len(batch) for batch in broker.log(pipeline.topic, 0).batches))
    broker.script[FETCH].extend([altered(lambda frame: frame.replace(length, b"\x7f\xff\xff\xff"))] * 8)
    refused(pipeline.run(), 5, f"topic {pipeline.topic}", "partition 0", "offset 0")
    broker.script.clear()
    assert pipeline.ran().outcomes == ["replayed", "ingested"]


def test_a_response_that_is_cut_off_costs_a_retry_and_no_record(spoiled: tuple[Pipeline, FakeBroker]) -> None:
    pipeline, broker = spoiled
    broker.script[FETCH].append(cut_to(60))
    assert pipeline.ran().document["records"] == 30


# -- 6 and 7: what cannot be reached ------------------------------------------------------------------------------------


def test_a_zookeeper_that_is_down_and_a_broker_that_is_down_are_named(make_pipeline: Callable[..., Pipeline]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    no_zookeeper = make_pipeline(zookeeper={"connect": f"127.0.0.1:{port}/kafka", "connect_timeout_s": 1})
    refused(no_zookeeper.run(), 6, f"127.0.0.1:{port}", "retry")
    no_broker = make_pipeline(source={"bootstrap": f"127.0.0.1:{port}", "timeout_s": 2})
    refused(no_broker.run(), 6, f"127.0.0.1:{port}", "retry")


def test_a_table_folder_that_cannot_be_written_is_named_before_a_plan_is_stored(make_pipeline: Callable[..., Pipeline]) -> None:
    pipeline = make_pipeline()
    pipeline.produce(40)
    (pipeline.folder / "file").write_text("in the way")
    pipeline.settings = {"table": {"path": str(pipeline.folder / "file" / "table")}}
    refused(pipeline.run(), 7, "file/table", "retry")
    with pipeline.zookeeper() as client:
        assert not client.exists(f"/consumers/{pipeline.group}/etl/clicks/plans")


# -- 130: stopped -------------------------------------------------------------------------------------------------------


def test_a_run_that_is_terminated_during_the_fetch_loses_nothing(spoiled: tuple[Pipeline, FakeBroker]) -> None:
    pipeline, broker = spoiled
    pipeline.settings["source"]["timeout_s"] = 120
    broker.script[FETCH].extend([never] * 50)
    child = pipeline.start("etl.cli", "run", str(pipeline.conf), "--json")
    assert wait_until(lambda: any(key == FETCH for key, _ in broker.requests), 120), "the run never came to its fetch"
    child.terminate()
    _, err = child.communicate(timeout=60)
    assert (child.returncode, "Traceback" in err) == (130, False), err
    assert "nothing is lost" in err
    broker.script.clear()
    broker.hang_up_on_everybody()
    assert pipeline.ran().outcomes == ["replayed", "ingested"]
    assert sum(pipeline.in_table().values()) == 30


def test_a_demo_that_is_stopped_stops_all_that_it_started(make_pipeline: Callable[..., Pipeline]) -> None:
    pipeline = make_pipeline()
    home = pipeline.folder / "demo"
    child = pipeline.start("etl.cli", "demo", "--records", "8000", "--folder", str(home))
    assert wait_until(lambda: (home / "reports").exists(), 120), "the demo never came to its first run"
    os.killpg(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert wait_until(lambda: not processes_that_name(str(home)), 30), processes_that_name(str(home))


def processes_that_name(text: str) -> list[str]:
    """Command lines of living processes that mention `text`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = entry.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if text in line:
                found.append(line)
    return found


@contextlib.contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port of this machine on which `answer` is given to whoever says something."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(10)
                    connection.recv(1, socket.MSG_PEEK)
                    answer(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(10)
