"""What a run says when it is given a broken transform, folder, znode or record batch, or when others misbehave while it works."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from etl import doors
from etl.embedded.server import wait_until
from etl.errors import Unreachable
from etl.ingest import World
from etl.settings import load_settings, split_address
from tests.fakes.batches import Batch, Codec, Rec, encode
from tests.fakes.broker import FETCH, FakeBroker, instead, never
from tests.system.driving import Pipeline, Said


def refused(said: Said, code: int, *words: str) -> None:
    """The exit code, a message that says all of `words` and what to check, one document, and no traceback."""
    assert said.code == code, said.err + said.out
    assert "Traceback" not in said.err, said.err
    assert "check: " in said.err, said.err
    for word in words:
        assert word in said.err, said.err
    assert said.document["exit_code"] == code


# -- 2: what the conf points at -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"- a\n- list\n", b"version: 1\n  group: [\n", b"\xff\xfe\x00", None], ids=[
    "empty", "a list", "no YAML", "no text", "a folder"])
def test_what_is_no_conf_file_is_named(make_pipeline: Callable[..., Pipeline], content: bytes | None) -> None:
    from etl.cli import main

    path = make_pipeline().folder / "odd.yaml"
    path.mkdir() if content is None else path.write_bytes(content)
    err = _said_by(lambda: main(["run", str(path)]))
    assert err[0] == 2
    assert "odd.yaml" in err[1] and "check: " in err[1] and "Traceback" not in err[1]


@pytest.mark.parametrize(("transform", "words"), [
    ("no_such_module_of_tests:shaped", ("no_such_module_of_tests",)),
    ("transforms_of_tests:missing", ("missing",)),
    ("transforms_of_tests:number", ("number",)),
    ("transforms_of_tests:fails", ("no luck", "transforms_of_tests.py:3")),
    ("transforms_of_tests:asks_for_a_column", ("colour", "transforms_of_tests.py:5")),
    ("transforms_of_tests:forgets_to_return", ("NoneType",)),
    ("broken_of_tests:shaped", ("SyntaxError",)),
])
def test_a_transform_that_does_not_work_is_named_before_a_plan_binds_the_conf_to_it(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, transform: str, words: tuple[str, ...],
) -> None:
    (pipeline.folder / "broken_of_tests.py").write_text("def shaped(rows)\n")
    (pipeline.folder / "transforms_of_tests.py").write_text(
        "number = 3\n"
        "def fails(rows):\n    raise ValueError('no luck')\n"
        "def asks_for_a_column(rows):\n    return rows.select('colour')\n"
        "def forgets_to_return(rows):\n    pass\n")
    monkeypatch.syspath_prepend(str(pipeline.folder))
    monkeypatch.delitem(sys.modules, "transforms_of_tests", raising=False)
    pipeline.produce(40)
    pipeline.settings = {"transform": transform}
    refused(pipeline.run(), 2, "transform", *words)
    with pipeline.zookeeper() as client:
        assert not client.exists(f"/consumers/{pipeline.group}/etl/clicks/plans")


@pytest.mark.parametrize(("name", "made", "words"), [
    ("unlucky", "lucky('value')", ("ValueError: no luck", "unlucky_of_tests.py:6")),
    ("unknown", "f.udf(of_the_module, 'int')('value')", ("No module named 'unknown_of_tests'", "the workers have its module")),
    ("divided", "f.expr('1 / (offset - 7)')", ("DIVIDE_BY_ZERO",)),
])
def test_a_transform_that_fails_on_a_row_is_named_and_the_mended_one_finishes_the_plan(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, name: str, made: str, words: tuple[str, ...],
) -> None:
    module = pipeline.folder / f"{name}_of_tests.py"
    module.write_text(
        "from pyspark.sql import functions as f\n\n"
        "@f.udf('int')\ndef lucky(value):\n    if value:\n        raise ValueError('no luck')\n\n"
        "def of_the_module(value):\n    return 1\n\n"
        f"def shaped(rows):\n    return rows.withColumn('size', {made})\n")
    monkeypatch.syspath_prepend(str(pipeline.folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    pipeline.produce(400)
    pipeline.settings = {"transform": f"{name}_of_tests:shaped"}
    refused(pipeline.run(), 2, "the transform failed on a row", *words)
    module.write_text("def shaped(rows):\n    return rows\n")
    monkeypatch.delitem(sys.modules, f"{name}_of_tests")
    assert pipeline.ran().outcomes == ["replayed", "ingested"]
    assert pipeline.is_whole()
    monkeypatch.delitem(sys.modules, f"{name}_of_tests")


def test_a_partitioning_that_the_rows_or_the_table_do_not_have_is_named(pipeline: Pipeline) -> None:
    pipeline.produce(40)
    pipeline.settings = {"table": {"path": str(pipeline.table), "partition_by": ["colour"]}}
    refused(pipeline.run(), 2, "colour", "table.partition_by")
    pipeline.settings = {}
    pipeline.ran()
    pipeline.settings = {"table": {"path": str(pipeline.table), "partition_by": ["partition"]}}
    pipeline.produce(40)
    refused(pipeline.run(), 2, "partition", "table.partition_by")


# -- 2 and 7: folders of somebody else's --------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody with fewer rights")
def test_a_folder_that_only_its_owner_may_write_is_named(make_pipeline: Callable[..., Pipeline]) -> None:
    pipeline = make_pipeline()
    pipeline.produce(40)
    with _folder_for_everybody() as home:
        pipeline.settings = {"table": {"path": str(home / "closed" / "table")}, "report": {"path": str(home / "reports")}}
        (home / "closed").mkdir(mode=0o755)
        refused(_as_nobody(pipeline, home), 7, str(home / "closed"), "ermission denied", "retry")
        pipeline.settings["report"]["path"] = str(home / "closed" / "reports")
        refused(_as_nobody(pipeline, home), 2, "report.path", "ermission denied")
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


def _as_nobody(pipeline: Pipeline, home: Path) -> Said:
    """The run with the rights of a user who owns nothing; what it imports was imported before."""
    from etl import cli, screens, wiring  # noqa: F401
    from etl.cli import main

    pipeline.door("plan")
    conf = home / "conf.yaml"
    conf.write_bytes(pipeline.conf.read_bytes())
    out: list[str] = []
    os.seteuid(65534)
    try:
        code, err = _said_by(lambda: main(["run", str(conf), "--json"]), out)
    finally:
        os.seteuid(0)
    return Said(code, out[0], err)


def _said_by(call: Callable[[], int], printed: list[str] | None = None) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = call()
    if printed is not None:
        printed.append(out.getvalue())
    return code, err.getvalue()


# -- 5: what the brokers or the ledger hold is not what it should be ----------------------------------------------------


@pytest.fixture
def spoiled(make_pipeline: Callable[..., Pipeline], spark: SparkSession) -> Iterator[tuple[Pipeline, FakeBroker]]:
    """A pipeline on a broker of our own that can misbehave; its ledger is in the real ZooKeeper."""
    with FakeBroker() as broker:
        pipeline = make_pipeline(source={"bootstrap": f"127.0.0.1:{broker.port}", "timeout_s": 3})
        records = [Rec(delta, b"value-%d" % delta) for delta in range(10)]
        broker.append(pipeline.topic, 0, *(encode(Batch(10 * n, records)) for n in range(3)))
        yield pipeline, broker


def _old_format(offset: int) -> bytes:
    """A message of format 1, as logs written before 0.11 hold them.

    Its timestamp ends in zeros because the broker of the tests takes these bytes for the last offset's distance.
    """
    message = struct.pack(">Ibbqi", 0, 1, 0, 1_700_000_000_000 & ~0xFFFFFF, 1) + b"k" + struct.pack(">i", 2) + b"v1"
    return struct.pack(">qi", offset, len(message)) + message


RECORDS = [Rec(delta, b"value-%d" % delta) for delta in range(10)]


@pytest.mark.parametrize("batch", [
    encode(Batch(10, RECORDS, count=9)), encode(Batch(10, RECORDS, count=2**31 - 1)),
    encode(Batch(10, RECORDS, Codec.ZSTD, payload=b"zstd?")), encode(Batch(10, RECORDS, payload=b"\x80" * 80)),
], ids=["too few records", "an absurd count", "no zstd", "no varint"])
def test_a_record_batch_that_lies_under_a_right_crc_is_named_to_the_offset(spoiled: tuple[Pipeline, FakeBroker], batch: bytes) -> None:
    pipeline, broker = spoiled
    broker.log(pipeline.topic, 0).batches[1] = batch
    refused(pipeline.run(), 5, f"topic {pipeline.topic}", "partition 0", "offset 10")
    assert not DeltaTable.is_deltatable(str(pipeline.table))


def test_a_response_with_an_absurd_frame_length_is_named(spoiled: tuple[Pipeline, FakeBroker]) -> None:
    pipeline, broker = spoiled
    broker.script[FETCH].extend([instead(struct.pack(">i", 0x7FFFFFFF) + b"rest")] * 30)
    refused(pipeline.run(), 5, f"127.0.0.1:{broker.port}")
    broker.script.clear()
    assert pipeline.ran().outcomes == ["replayed", "ingested"]


def test_a_topic_in_the_format_from_before_0_11_is_named(spoiled: tuple[Pipeline, FakeBroker]) -> None:
    pipeline, broker = spoiled
    broker.log(pipeline.topic, 0).batches[:1] = [_old_format(offset) for offset in range(10)]
    refused(pipeline.run(), 5, "format v1", f"topic {pipeline.topic}", "partition 0", "offset 0")


@pytest.mark.parametrize("what", ["plans", "applied", "uid"])
def test_a_znode_of_the_ledger_that_is_not_ours_to_read_is_named(pipeline: Pipeline, what: str) -> None:
    pipeline.produce(40)
    pipeline.ran()
    root = f"/consumers/{pipeline.group}/etl/clicks"
    with pipeline.zookeeper() as client:
        node = root if what == "uid" else f"{root}/{what}/" + max(client.get_children(f"{root}/{what}"))
        client.set(node, b"\xac\xed\x00 junk")
    for words in (("run",), ("plan",), ("offsets", "show"), ("plans", "list"), ("verify",)):
        said = pipeline.door(*words)
        if what == "uid" and words[0] in ("offsets", "plans"):
            continue
        refused(said, 5, f"/consumers/{pipeline.group}/etl/clicks" if what != "uid" else "uid")


# -- 2, 6: what can fail in the middle ----------------------------------------------------------------------------------


def test_a_topic_that_we_may_not_read_is_named(spoiled: tuple[Pipeline, FakeBroker]) -> None:
    pipeline, broker = spoiled
    broker.log(pipeline.topic, 0).refusals.extend([29] * 50)
    refused(pipeline.run(), 2, pipeline.topic, "ACL")


@pytest.mark.parametrize(("verb", "then"), [("store", ["ingested"]), ("record", ["repaired", "repaired", "ingested"])])
def test_a_zookeeper_that_goes_away_in_the_middle_is_named_and_the_next_run_completes(
    pipeline: Pipeline, verb: str, then: list[str],
) -> None:
    pipeline.produce(40)
    hosts, _, chroot = pipeline.cluster.zookeeper_connect.partition("/")
    with Line(*split_address(hosts)) as line:
        pipeline.settings = {
            "zookeeper": {"connect": f"127.0.0.1:{line.port}/{chroot}", "session_timeout_s": 1, "connect_timeout_s": 1}}
        with pytest.raises(Unreachable) as caught:
            doors.run(load_settings(pipeline.conf), around=lambda world: Before(world, verb, line.cut))
    assert (caught.value.exit_code, bool(caught.value.check)) == (6, True)
    pipeline.settings = {"ownership": {"wait_for_driver_s": 30}}
    pipeline.produce(40)
    assert pipeline.ran().outcomes == then
    pipeline.ran()
    assert pipeline.is_whole()
    assert pipeline.committed() == {0: 40, 1: 40, 2: 0, 3: 0}


class Before:
    """A world to which something happens before one verb."""

    def __init__(self, world: World, verb: str, happens: Callable[[], None]) -> None:
        self._world, self._verb, self._happens = world, verb, happens

    def __getattr__(self, name: str) -> Any:
        if name == self._verb:
            self._happens()
        return getattr(self._world, name)


class Line:
    """A port that leads to another one until the line is cut."""

    def __init__(self, host: str, port: int) -> None:
        self._there = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []

    def __enter__(self) -> Line:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def cut(self) -> None:
        for end in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection(self._there)
                self._open += [here, there]
                for source, sink in ((here, there), (there, here)):
                    threading.Thread(target=_carry, args=(source, sink), daemon=True).start()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while content := source.recv(65_536):
            sink.sendall(content)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def test_a_run_that_breaks_leaves_no_report_that_says_all_is_well(pipeline: Pipeline) -> None:
    pipeline.produce(40)

    def bug() -> None:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        doors.run(load_settings(pipeline.conf), around=lambda world: Before(world, "fetch", bug))
    [written] = (pipeline.folder / "reports").glob("*.json")
    report = json.loads(written.read_text())
    assert (report["exit_code"], report["outcomes"][-1]["outcome"]) == (1, "failed")
    assert "ZeroDivisionError: a bug" in report["error"]["what"]


# -- 4 and 130: two at once, and the first is stopped -------------------------------------------------------------------


@pytest.mark.parametrize("what", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "a scheduler"])
def test_a_second_driver_leaves_the_first_alone_and_when_that_is_stopped_nothing_is_lost_or_left_behind(
    spoiled: tuple[Pipeline, FakeBroker], what: signal.Signals,
) -> None:
    """Terminals and Airflow send their signal to all processes of a job, and SIGTERM ends Spark's JVM before the run is asked."""
    pipeline, broker = spoiled
    pipeline.settings["source"]["timeout_s"] = 120
    broker.script[FETCH].extend([never] * 50)
    child = pipeline.start("etl.cli", "run", str(pipeline.conf), "--json")
    try:
        assert wait_until(lambda: any(key == FETCH for key, _ in broker.requests), 120), "the run never came to its fetch"
        refused(pipeline.run(), 4, f"pid {child.pid}", "retry")
        os.killpg(child.pid, what)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130, err
    assert "etl: stopped; nothing is lost" in err
    assert len(err.splitlines()) == 1 or what is signal.SIGTERM, err
    assert json.loads(out)["exit_code"] == 130
    assert wait_until(lambda: not of_session(child.pid), 20), of_session(child.pid)
    [_, stopped] = sorted((pipeline.folder / "reports").glob("*.json"), key=lambda path: json.loads(path.read_text())["exit_code"])
    assert json.loads(stopped.read_text())["outcomes"][-1]["outcome"] == "failed"
    broker.script.clear()
    broker.hang_up_on_everybody()
    assert pipeline.ran().outcomes == ["replayed", "ingested"]
    assert sum(pipeline.in_table().values()) == 30


def test_ctrl_c_while_spark_starts_leaves_no_jvm_behind(spoiled: tuple[Pipeline, FakeBroker]) -> None:
    pipeline, _ = spoiled
    child = pipeline.start("etl.cli", "run", str(pipeline.conf), "--json")
    try:
        assert wait_until(lambda: any("deploy.SparkSubmit" in line for line in of_session(child.pid)), 60)
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert (child.returncode, json.loads(out)["exit_code"], len(err.splitlines())) == (130, 130, 1), err
    assert wait_until(lambda: not of_session(child.pid), 20), of_session(child.pid)
    assert pipeline.ran().outcomes == ["replayed", "ingested"]


def of_session(leader: int) -> list[str]:
    """Command lines of the living processes in the session that `leader` began."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append((stat.parent / "cmdline").read_text().replace("\0", " "))
    return found
