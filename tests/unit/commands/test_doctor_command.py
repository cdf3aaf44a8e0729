"""The lines and the exit code of `etl doctor`, and its checks of the state, the store and the writer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etl.commands import doctor
from etl.commands.doctor import CHECKS, Diagnosis, describe_state, diagnose
from etl.commands.doctor_machine import Check, Fact, Findings, Line, Verdict, advice, failed, ok
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
from etl.model.partitions import TopicPartition
from etl.model.snapshot import (
    FirstRun,
    PipelineState,
    RebuildFromTable,
    Resume,
    Supersede,
    UpToDate,
)
from etl.settings.sections import Settings
from tests.builders import plain_plan, plain_settings


def settings(**sections: object) -> Settings:
    return plain_settings(**{"group": "g", "table": {"path": "table"}, **sections})


def lines_of(look: Any, **sections: object) -> list[Line]:
    """The lines of one check that needs no other."""
    with contextlib.ExitStack() as closing:
        findings = Findings(settings(**sections), closing)
        return list(Check("x", look).lines(findings))


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


LOG = TopicPartition("clicks", 0)
PLAN = plain_plan(4)
CURRENT = UpToDate(PLAN, {})


MOVED = "moved 1 committed offsets"
NOT_READ = f"{MOVED} of topics that are not read now"


@pytest.mark.parametrize(
    ("state", "verdict", "words"),
    [
        (FirstRun(), Verdict.OK, "first run"),
        (Resume(PLAN), Verdict.OK, "plan 4 is stored and not in the table"),
        (Supersede(PLAN, "its range has expired"), Verdict.OK, "its range has expired"),
        (CURRENT, Verdict.OK, "plan 4 is the newest in both"),
        (replace(CURRENT, uncommitted=(LOG,)), Verdict.OK, "1 of its offsets are not committed"),
        (replace(CURRENT, followed={LOG: 9}), Verdict.ADVICE, MOVED),
        (replace(CURRENT, not_followed={LOG: 9}), Verdict.ADVICE, NOT_READ),
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


OF_S3A = "spark.delta.logStore.s3a.impl"
CONDITIONAL = "offset_range_etl.ConditionalLogStore"
LOCAL = {"spark.delta.logStore.class": "org.apache.spark.sql.delta.storage.LocalLogStore"}
DYNAMO = {OF_S3A: "io.delta.storage.S3DynamoDBLogStore"}
REPLACING = {"spark.hadoop.fs.s3a.performance.flags": "create"}


@pytest.mark.parametrize(
    ("path", "spark", "verdict", "words"),
    [
        ("/data/t", {}, Verdict.OK, "folder of this machine"),
        ("/data/t", {"spark.master": "spark://h:7077"}, Verdict.ADVICE, "spark://h:7077"),
        ("hdfs://n/t", {"spark.master": "yarn"}, Verdict.OK, "only if it is absent"),
        ("s3a://b/t", {}, Verdict.OK, CONDITIONAL),
        ("s3://b/t", {"spark.delta.logStore.gs.impl": "x"}, Verdict.OK, CONDITIONAL),
        ("s3://b/t", {OF_S3A: "x"}, Verdict.OK, "by x"),
        ("s3://b/t", REPLACING, Verdict.FAILED, "could replace one another"),
        ("s3a://b/t", DYNAMO, Verdict.OK, "S3DynamoDBLogStore"),
        ("ftp://b/t", {}, Verdict.ADVICE, "not known"),
        ("gs://b/t", {}, Verdict.ADVICE, "gs:// is supported but not tested"),
        ("s3a://b/t", LOCAL, Verdict.FAILED, "loses commits"),
    ],
)
def test_a_store_is_judged_by_its_scheme_and_its_log_store(
    path: str, spark: dict[str, str], verdict: Verdict, words: str
) -> None:
    (line,) = lines_of(doctor.check_store, table={"path": path}, spark=spark)
    assert (line.verdict, line.exit_code) == (verdict, 2 if verdict is Verdict.FAILED else 0)
    assert words in line.found


@pytest.mark.parametrize(
    ("free", "found", "verdict"),
    [(2**29, "0.5 GiB free", Verdict.ADVICE), (2**25, "0.0 GiB free", Verdict.FAILED)],
)
def test_a_disk_that_is_nearly_full_is_advice_and_a_full_one_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, found: str, verdict: Verdict
) -> None:
    usage = SimpleNamespace(total=2**40, used=2**40, free=free)
    monkeypatch.setattr("etl.commands.doctor.shutil.disk_usage", lambda path: usage)
    (line,) = lines_of(doctor.check_directory, table={"path": str(tmp_path / "t")})
    assert (line.verdict, line.exit_code) == (verdict, 7 if verdict is Verdict.FAILED else 0)
    assert found in line.found
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("writer", "transform", "verdict", "message"),
    [
        ("spark", "m:f", Verdict.OK, "table.writer is spark"),
        ("auto", None, Verdict.OK, "table.writer is auto: arrow"),
        ("auto", "m:f", Verdict.OK, "spark. The arrow writer cannot be: the transform"),
        ("arrow", None, Verdict.OK, "is arrow"),
        ("arrow", "m:f", Verdict.FAILED, "cannot be: the transform takes a DataFrame"),
    ],
)
def test_the_writer_of_the_files_is_reported_before_a_run(
    writer: str, transform: str | None, verdict: Verdict, message: str
) -> None:
    table = {"path": "table", "writer": writer}
    (line,) = lines_of(doctor.check_writer, table=table, transform=transform)
    assert line.verdict is verdict and message in line.found
