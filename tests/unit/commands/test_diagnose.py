"""The doctor's rules without a world: which line is the worst, what waits for what, and what single
checks make of what they see.
"""

from __future__ import annotations

import configparser
import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from etl.commands import doctor, doctor_machine
from etl.commands.doctor import CHECKS, Diagnosis, describe_state, diagnose
from etl.commands.doctor_machine import Check, Fact, Findings, Line, Verdict, advice, failed, ok
from etl.commands.doctor_services import acl_line
from etl.errors import (
    BrokerUnreachable,
    EtlError,
    LedgersDisagree,
    NotOurTable,
    Owned,
    PermissionDenied,
    SettingsError,
    TableUnreachable,
    ZooKeeperUnreachable,
)
from etl.io.report_files import installed_version
from etl.io.zookeeper.permissions import ask_server
from etl.kafka.versions import release
from etl.model.partitions import TopicPartition
from etl.model.security import EVERYBODY, Acl
from etl.model.snapshot import (
    FirstRun,
    PipelineState,
    RebuildFromTable,
    Replay,
    Supersede,
    UpToDate,
)
from etl.settings.sections import Settings
from tests.builders import plain_plan, plain_settings

ROOT = Path(__file__).parents[3]


def settings(**sections: object) -> Settings:
    return plain_settings(**{"group": "g", "table": {"path": "table"}, **sections})


def lines_of(look: object, **sections: object) -> list[Line]:
    """The lines of one check that needs no other."""
    with contextlib.ExitStack() as closing:
        findings = Findings(settings(**sections), closing)
        return list(Check("x", look).lines(findings))  # type: ignore[arg-type]


# -- the worst
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ((), 0),
        ((Owned("o"), TableUnreachable("t")), 7),
        ((TableUnreachable("t"), BrokerUnreachable("b"), Owned("o")), 7),
        ((ZooKeeperUnreachable("z"), LedgersDisagree("l")), 5),
        ((LedgersDisagree("l"), ZooKeeperUnreachable("z"), NotOurTable("n")), 5),
        ((SettingsError("s"), EtlError("a bug")), 1),
        ((SettingsError("first"), PermissionDenied("second")), 2),
    ],
)
def test_what_no_retry_mends_is_worse_than_what_one_may_mend_and_of_two_the_first_is_the_worst(
    errors: tuple[EtlError, ...], code: int
) -> None:
    lines = (ok("fine", ""), advice("so so", "", "do"), *(failed("bad", one) for one in errors))
    diagnosis = Diagnosis(lines)
    assert diagnosis.exit_code == code == diagnosis.as_json()["exit_code"]
    assert diagnosis.worst is next((one for one in errors if one.exit_code == code), None)


def test_a_line_has_places_and_an_action_and_the_document_has_all_of_it() -> None:
    line = failed(
        "broker 7", BrokerUnreachable("no connection", broker="h:9092", action="that it runs")
    )
    assert line.as_json() == {
        "name": "broker 7",
        "verdict": "failed",
        "found": "no connection (broker h:9092)",
        "to_do": "that it runs",
        "exit_code": 6,
        "error": "BrokerUnreachable",
    }


def _refusing(name: str, findings: Findings) -> Iterator[Line]:
    yield ok(name, "so far")
    raise ZooKeeperUnreachable("no answer", action="that it runs")


def _never(name: str, findings: Findings) -> Iterator[Line]:
    raise AssertionError("this check must not run")


def test_a_check_with_a_failed_precondition_is_skipped_and_names_the_line_to_repair() -> None:
    closed = list[bool]()

    def opening(name: str, findings: Findings) -> Iterator[Line]:
        findings.closing.callback(closed.append, True)
        yield ok(name, "")

    checks = (
        Check("ZooKeeper", _refusing, gives=Fact.ZOOKEEPER),
        Check("chroot", _never, needs=(Fact.ZOOKEEPER,), gives=Fact.CHROOT),
        Check("cluster", _never, needs=(Fact.CHROOT,)),
        Check("store", opening),
    )
    diagnosis = diagnose(settings(), checks)
    assert [(line.name, line.verdict) for line in diagnosis.lines] == [
        ("ZooKeeper", Verdict.FAILED),
        ("chroot", Verdict.NOT_CHECKED),
        ("cluster", Verdict.NOT_CHECKED),
        ("store", Verdict.OK),
    ]
    assert diagnosis.lines[1].found == "needs ZooKeeper, see above"
    assert diagnosis.exit_code == 6 and closed == [True]


def test_every_need_is_given_by_a_check_before_it() -> None:
    given: set[Fact] = set()
    for check in CHECKS:
        assert set(check.needs) <= given, check.name
        given |= {check.gives} if check.gives else set()
    assert given == set(Fact)


def between(version: str) -> str:
    """A version and its post-releases, which count as the same version."""
    *front, last = version.split(".")
    return f">={version},<{'.'.join(front)}.{int(last) + 1}"


def test_the_packages_and_versions_are_those_of_setup_cfg() -> None:
    law = configparser.ConfigParser()
    law.read(ROOT / "setup.cfg")
    required = {
        one.name: one.specifier
        for one in map(Requirement, law["options"]["install_requires"].split("\n")[1:])
    }
    for package, tried in doctor_machine.PACKAGES.items():
        pinned = [one.version for one in required[package] if one.operator == "=="]
        assert required[package] == SpecifierSet(tried) or (pinned and tried == between(pinned[0]))
    assert [line.verdict for line in lines_of(doctor_machine.packages)] == [Verdict.OK]


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (None, "delta-spark is not installed"),
        ("4.3.1", "4.3.1"),
        ("4.4.1", "4.4.1"),
        ("4.4.0", ""),
        ("4.4.0.post1", ""),
        ("4.4.0+ours", ""),
        ("4.4.0rc1", "4.4.0rc1"),
        ("4.4.1.dev3", "4.4.1.dev3"),
        ("4.4.0-vendor-2", "4.4.0-vendor-2"),
        ("4.40", "4.40"),
    ],
)
def test_a_package_that_is_missing_or_of_another_version_is_named(
    monkeypatch: pytest.MonkeyPatch, version: str | None, words: str
) -> None:
    def installed(name: str) -> str | None:
        return version if name == "delta-spark" else installed_version(name)

    monkeypatch.setattr(doctor_machine, "installed_version", installed)
    (line,) = lines_of(doctor_machine.packages)
    assert (line.exit_code == 2) == bool(words)
    assert words in line.found
    assert not words or line.to_do == "Run `pip install 'delta-spark>=4.4.0,<4.4.1'`"


OUR_VERSION = list(sys.version_info[:2])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ('print("[[3, 2], []]")', "is 3.2, the driver's is"),
        (f"print('[{OUR_VERSION}, [\"numba\"]]')", "lacks numba"),
        ("sys.exit(3)", "does not run"),
        (f'print("[{OUR_VERSION}, []]")', ""),
    ],
    ids=["another version", "a library is missing", "it fails", "it fits"],
)
def test_the_workers_python_must_be_of_our_version_and_have_our_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, words: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nimport sys\n{answer}\n")
    python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    (line,) = lines_of(doctor_machine.workers_python)
    assert words in line.found and "PYSPARK_PYTHON" in line.found
    assert (line.exit_code, "PYSPARK_PYTHON" in line.to_do) == ((2, True) if words else (0, False))


def test_a_workers_python_elsewhere_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/not/here/python3")
    (line,) = lines_of(doctor_machine.workers_python, spark={"spark.master": "spark://h:7077"})
    assert line.verdict is Verdict.OK
    (line,) = lines_of(doctor_machine.workers_python)
    assert line.exit_code == 2


def test_jars_that_are_not_in_the_cache_are_advice_and_are_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (line,) = lines_of(doctor_machine.jars)
    assert line.verdict is Verdict.ADVICE
    assert "python -m etl.testkit" in line.to_do
    assert list(tmp_path.iterdir()) == []
    (line,) = lines_of(doctor_machine.jars, spark={"spark.jars.packages": "io.delta:delta"})
    assert (line.verdict, line.found) == (Verdict.OK, "spark.jars.packages: io.delta:delta")


def test_a_java_of_another_version_is_refused_and_its_place_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    properties = ("java.home = /x", "java.specification.version = 1.8")
    java.write_text("#!/bin/sh\n" + "".join(f"echo '    {one}' >&2\n" for one in properties))
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("etl.testkit.java_and_jars._bundled_java", lambda: None)
    (line,) = lines_of(doctor_machine.java)
    assert line.exit_code == 2
    assert "is Java 8" in line.found


def test_a_transform_that_cannot_be_imported_is_named() -> None:
    (line,) = lines_of(doctor_machine.transform, transform="no_such_module:clean")
    assert line.exit_code == 2
    assert "no_such_module" in line.found
    assert lines_of(doctor_machine.transform, transform="os.path:basename")[0].verdict is Verdict.OK


@pytest.mark.parametrize(
    ("check", "section"),
    [(doctor_machine.report_folder, "report"), (doctor_machine.metrics_folder, "metrics")],
)
def test_a_folder_is_tried_where_it_is_or_will_be_and_not_made(
    check: object, section: str, tmp_path: Path
) -> None:
    def line_of(path: str) -> Line:
        (line,) = lines_of(check, **{section: {"path": str(tmp_path / path)}})
        return line

    assert "will be created in" in line_of("a/b").found
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    line = line_of("file/b")
    if section == "report":
        assert line.exit_code == 2
        return
    assert (line.verdict, line.exit_code) == (Verdict.ADVICE, 0), "a run works without metrics"
    assert "metrics.path" in line.to_do and str(tmp_path / "file" / "b") in line.found
    assert line_of("own.prom").found == str(tmp_path)
    assert lines_of(check) == [], "there are to be none"


# -- servers
# --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[int]:
    """A port that gives one answer to each connection in turn and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1024)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    with contextlib.suppress(OSError):
                        connection.recv(1024)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(5)


_GRANTED = bytes.fromhex("000000250000000000000fa0000000000000000100000010") + b"\0" * 17


def test_a_zookeeper_that_keeps_its_version_to_itself_is_reached_all_the_same() -> None:
    with answering(b"srvr is not executed because it is not in the whitelist.\n", _GRANTED) as port:
        answer = ask_server("127.0.0.1", port, session_timeout_s=10, timeout_s=5)
    assert (answer.version, answer.mode, answer.granted_s) == (None, None, 4.0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "hangs up"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
        (_GRANTED[:20], "hangs up"),
        (b"\xff\xff\xff\xff", "not ZooKeeper's"),
    ],
)
def test_a_port_that_is_not_zookeepers_or_takes_no_session_is_named(
    answer: bytes, words: str
) -> None:
    looked_at = [] if answer else [b""]  # whether it speaks TLS
    with (
        answering(answer, answer, *looked_at) as port,
        pytest.raises(ZooKeeperUnreachable, match=words) as caught,
    ):
        ask_server("127.0.0.1", port, session_timeout_s=10, timeout_s=5)
    assert caught.value.where == {"server": f"127.0.0.1:{port}"}


@pytest.mark.parametrize(
    ("spoken", "version"),
    [
        ({1: (0, 5), 3: (0, 4), 18: (0, 1)}, "0.11"),
        ({1: (0, 17), 3: (0, 12), 18: (0, 4)}, "3.9"),
        ({18: (0, 0)}, "0.10.0"),
    ],
)
def test_a_brokers_release_is_guessed_from_the_requests_it_speaks(
    spoken: dict[int, tuple[int, int]], version: str
) -> None:
    assert release(spoken) == version


# -- ledger against table
# --------------------------------------------------------------------------------------------------


LOG = TopicPartition("clicks", 0)
PLAN = plain_plan(4)
CURRENT = UpToDate(PLAN, {})


@pytest.mark.parametrize(
    ("state", "verdict", "words"),
    [
        (FirstRun(), Verdict.OK, "first run"),
        (Replay(PLAN), Verdict.OK, "plan 4 is stored and not in the table"),
        (Supersede(PLAN, "its range has expired"), Verdict.OK, "its range has expired"),
        (CURRENT, Verdict.OK, "plan 4 is the newest in both"),
        (replace(CURRENT, uncommitted=(LOG,)), Verdict.OK, "1 of its offsets are not committed"),
        (replace(CURRENT, followed={LOG: 9}), Verdict.ADVICE, "moved 1 committed offsets"),
        (
            replace(CURRENT, not_followed={LOG: 9}),
            Verdict.ADVICE,
            "moved 1 committed offsets of topics that are not read now",
        ),
        (RebuildFromTable(PLAN, CURRENT), Verdict.ADVICE, "ZooKeeper does not know it"),
    ],
)
def test_the_state_of_the_pipeline_is_described_in_words(
    state: PipelineState, verdict: Verdict, words: str
) -> None:
    line = describe_state("x", state)
    assert line.verdict is verdict
    assert words in line.found
    assert bool(line.to_do) == (verdict is Verdict.ADVICE)


# -- table
# --------------------------------------------------------------------------------------------------


OF_S3A = "spark.delta.logStore.s3a.impl"
CONDITIONAL = "offset_range_etl.ConditionalLogStore"
LOCAL = "org.apache.spark.sql.delta.storage.LocalLogStore"


@pytest.mark.parametrize(
    ("path", "spark", "verdict", "words"),
    [
        ("/data/t", {}, Verdict.OK, "folder of this machine"),
        ("/data/t", {"spark.master": "spark://h:7077"}, Verdict.ADVICE, "spark://h:7077"),
        ("hdfs://n/t", {"spark.master": "yarn"}, Verdict.OK, "only if it is absent"),
        ("s3a://b/t", {}, Verdict.OK, CONDITIONAL),
        ("s3://b/t", {"spark.delta.logStore.gs.impl": "x"}, Verdict.OK, CONDITIONAL),
        ("s3://b/t", {OF_S3A: "x"}, Verdict.OK, "by x"),
        (
            "s3://b/t",
            {"spark.hadoop.fs.s3a.performance.flags": "create"},
            Verdict.FAILED,
            "could replace one another",
        ),
        (
            "s3a://b/t",
            {OF_S3A: "io.delta.storage.S3DynamoDBLogStore"},
            Verdict.OK,
            "S3DynamoDBLogStore",
        ),
        ("ftp://b/t", {}, Verdict.ADVICE, "not known"),
        ("gs://b/t", {}, Verdict.ADVICE, "gs:// is supported but not tested"),
        ("s3a://b/t", {"spark.delta.logStore.class": LOCAL}, Verdict.FAILED, "loses commits"),
    ],
)
def test_a_store_is_judged_by_its_scheme_and_its_log_store(
    path: str, spark: dict[str, str], verdict: Verdict, words: str
) -> None:
    (line,) = lines_of(doctor.check_store, table={"path": path}, spark=spark)
    assert (line.verdict, line.exit_code) == (verdict, 2 if verdict is Verdict.FAILED else 0)
    assert words in line.found


def test_a_disk_that_is_nearly_full_is_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(total=2**40, used=2**40, free=2**20)
    monkeypatch.setattr("etl.commands.doctor.shutil.disk_usage", lambda path: usage)
    (line,) = lines_of(doctor.check_directory, table={"path": str(tmp_path / "t")})
    assert line.verdict is Verdict.ADVICE
    assert "0.0 GiB" in line.found
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("writer", "transform", "verdict", "message"),
    [
        ("spark", "m:f", Verdict.OK, "table.writer is spark"),
        ("auto", None, Verdict.OK, "table.writer is auto: arrow"),
        ("auto", "m:f", Verdict.OK, "spark. The arrow writer cannot be: the transform"),
        ("arrow", None, Verdict.OK, "is arrow"),
        (
            "arrow",
            "m:f",
            Verdict.FAILED,
            "The arrow writer cannot be: the transform takes a DataFrame",
        ),
    ],
)
def test_the_writer_of_the_files_is_reported_before_a_run(
    writer: str, transform: str | None, verdict: Verdict, message: str
) -> None:
    (line,) = lines_of(
        doctor.check_writer, table={"path": "table", "writer": writer}, transform=transform
    )
    assert line.verdict is verdict and message in line.found


# -- znode ACLs


OPEN, OURS = frozenset({EVERYBODY}), frozenset({"sasl:etl"})
OTHERS = frozenset({"digest:etl:hash-of-a-password"})


@pytest.mark.parametrize(
    ("acl", "znodes", "ours", "message"),
    [
        (
            Acl.CREATOR,
            {"/a": OPEN, "/b": OURS, "/c": OPEN},
            "sasl:etl",
            "2 of 3 znodes (/a, /c) can be changed by everybody",
        ),
        (
            Acl.OPEN,
            {"/a": OPEN, "/b": OTHERS},
            "sasl:etl",
            "1 of 2 znodes (/b) can be changed by digest:etl alone",
        ),
        (Acl.CREATOR, {"/a": OURS, "/b": OTHERS}, "sasl:etl", "some by digest:etl or sasl:etl"),
        (
            Acl.CREATOR,
            {"/a": OTHERS},
            "digest:etl:another-hash",
            "by digest:etl alone, and the login of this conf is digest:etl with another password",
        ),
        (
            Acl.CREATOR,
            {"/a": OURS},
            "sasl:other",
            "by sasl:etl alone, and the login of this conf is sasl:other",
        ),
    ],
    ids=["open", "guarded", "two logins", "another password", "another login"],
)
def test_znodes_that_are_not_as_configured_are_reported_before_a_run_is_denied_and_without_a_hash(
    acl: Acl, znodes: dict[str, frozenset[str]], ours: str, message: str
) -> None:
    line = acl_line("znode ACLs", acl, znodes, ours)
    assert line.verdict is Verdict.ADVICE and message in line.found and "hash" not in line.found
    assert ("everybody" in message) <= ("`etl ledger apply-acl CONF`" in line.to_do)


@pytest.mark.parametrize(
    ("acl", "writers", "ours"),
    [
        (Acl.OPEN, OPEN, "sasl:etl"),
        (Acl.CREATOR, OURS, "sasl:etl"),
        (Acl.CREATOR, OURS | {"x509:CN=client"}, "sasl:etl"),
        (Acl.CREATOR, OTHERS, None),
        (Acl.CREATOR, None, None),
    ],
    ids=["open", "ours", "ours by two ways", "a certificate's user is unknown", "all are hidden"],
)
def test_znodes_as_configured_are_ok(
    acl: Acl, writers: frozenset[str] | None, ours: str | None
) -> None:
    znodes = {"/a": writers, "/b": writers} if writers else {}
    assert acl_line("znode ACLs", acl, znodes, ours).verdict is Verdict.OK
