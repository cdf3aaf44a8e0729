"""Row 35: logs are paused and resumed around kills, lost answers, a lost ledger and retention; a
pause costs no record and doubles none.
"""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

from tests.chaos.cases_zombie import overtaken, prepare, short_session
from tests.chaos.cases_zookeeper import finish_apart, through_proxy
from tests.chaos.driver import Driver
from tests.chaos.others import JOIN, OtherConsumer, shared, without
from tests.chaos.sources import between, delete_records, let_go, stopped
from tests.chaos.stage import Case, CaseResult, Stage, held, summary_of
from tests.chaos.zookeeper_proxy import CREATE, CREATE2, MULTI, SET_DATA, Lost
from tests.command_result import CommandResult, run_etl
from tests.system.driving import Pipeline

_PARTITION = 1
_PAUSED_AT = 100
"""Where each partition is after the first plan."""
_WRITES = (CREATE, CREATE2, SET_DATA, MULTI)


def killed_then_paused(stage: Stage, *, verb: str, then: str, **settings: Any) -> CaseResult:
    """Killed before a verb, and paused: the stored plan is executed completely, and after it the
    partition rests until it is resumed.
    """
    pipeline = stage.pipeline(**settings)
    prepare(pipeline, loaded=True)
    with stage.writing(pipeline) as writer:
        writer.wait_for(20)
        _kill(pipeline, verb)
        after = held(pipeline)
        assert pause_or_resume(pipeline, "pause").code == 0
        writer.wait_for(20)
        next_run = pipeline.ran()
    assert then in next_run.outcomes and "paused" in next_run.outcomes, next_run.outcomes
    return rested(stage, pipeline, after, next_run)


def paused_then_killed(stage: Stage, *, verb: str, then: str, **settings: Any) -> CaseResult:
    """A run that leaves a paused log is killed; it is resumed before the next one, which finishes
    the plan as it is stored.
    """
    pipeline = stage.pipeline(**settings)
    prepare(pipeline, loaded=True)
    assert pause_or_resume(pipeline, "pause").code == 0
    with stage.writing(pipeline):
        _kill(pipeline, verb)
        after = held(pipeline)
        assert pause_or_resume(pipeline, "resume").code == 0
        next_run = pipeline.ran()
    assert then in next_run.outcomes, next_run.outcomes
    return stage.finish(pipeline, after=after, next_run=next_run)


def paused_under_a_sleeper(stage: Stage, *, verb: str) -> CaseResult:
    """The driver sleeps past its session, a partition that its plan reads or would read is paused,
    a second driver runs, the first continues.
    """
    pipeline = stage.pipeline()
    prepare(pipeline, loaded=True)
    with (
        stage.writing(pipeline),
        short_session(pipeline),
        Driver(pipeline, sends=(signal.SIGSTOP, verb)) as zombie,
    ):
        zombie.wait_until_paused()
        pipeline.settings["ledger"] = {"lock_timeout_s": 60}
        assert pause_or_resume(pipeline, "pause").code == 0
        after, second, woken = overtaken(zombie, pipeline)
    assert woken.code in (0, 4, 6), f"{summary_of(woken)}\n{woken.err}"
    return rested(
        stage,
        pipeline,
        after,
        f"the second driver: {summary_of(second)}; the woken one: {summary_of(woken)}",
    )


def answer_lost(stage: Stage, *, word: str, lost: Lost) -> CaseResult:
    """The connection breaks as the pause, or its end, is written; the repeated command has the same
    result.
    """
    case, proxy = through_proxy(stage)
    pipeline = case.loaded().pipeline
    if word == "resume":
        assert pause_or_resume(pipeline, "pause").code == 0
    proxy.lose(lost, lambda operation, frame: operation in _WRITES and b"/paused" in frame)
    result = pause_or_resume(pipeline, word)
    assert proxy.happened.is_set() and result.code in (0, 4, 6), (
        f"{summary_of(result)}\n{result.err}"
    )
    assert pause_or_resume(pipeline, word).code == 0
    after = held(pipeline)
    next_run = pipeline.ran()
    assert ("paused" in next_run.outcomes) == (word == "pause"), next_run.outcomes
    if word == "pause":
        assert pause_or_resume(pipeline, "resume").code == 0
    pipeline.ran()
    return finish_apart(
        stage,
        case,
        after,
        f"`etl offsets {word}`: exit {result.code}; the next run: {summary_of(next_run)}",
    )


def ledger_lost(stage: Stage) -> CaseResult:
    """All of ZooKeeper's content is lost while a partition is paused: the ledger is restored from
    the table, the pause is not, and that is reported.
    """
    case, _ = through_proxy(stage)
    pipeline = case.loaded().pipeline
    assert pause_or_resume(pipeline, "pause").code == 0
    pipeline.ran()
    case.restore(None)
    after = held(pipeline)
    next_run = stopped(pipeline.run(), 0, "pause")
    assert "paused" not in next_run.outcomes, next_run.outcomes
    return finish_apart(stage, case, after, next_run)


def expired_meanwhile(stage: Stage) -> CaseResult:
    """Retention deletes records of a paused partition: no run stops for it, and the one after the
    resume skips and reports them.
    """
    pipeline = stage.pipeline(source={"on_data_loss": "skip"})
    prepare(pipeline, loaded=True)
    assert pause_or_resume(pipeline, "pause").code == 0
    gone = _PAUSED_AT + 30
    expected = pipeline.in_topic() - between(pipeline.in_topic(), _PARTITION, _PAUSED_AT, gone)
    delete_records(pipeline, {_PARTITION: gone})
    rested_run = pipeline.ran()
    after = held(pipeline)
    assert (
        "records_lost" not in rested_run.outcomes and pause_or_resume(pipeline, "resume").code == 0
    ), rested_run.outcomes
    next_run = pipeline.ran()
    assert "records_lost" in next_run.outcomes, next_run.outcomes
    reported = stage.finish(pipeline, after=after, next_run=next_run, expected=expected)
    assert [one[:3] for one in let_go(pipeline)] == [(_PARTITION, _PAUSED_AT, gone)], let_go(
        pipeline
    )
    return reported


def paused_by_a_member(stage: Stage, *, verb: str | None) -> CaseResult:
    """A member that owns a paused log leaves its offset where it is; another consumer that has the
    log meanwhile reads on.
    """
    pipeline = stage.pipeline(group=JOIN)
    prepare(pipeline, loaded=True)
    assert pause_or_resume(pipeline, "pause").code == 0
    if verb:
        _kill(pipeline, verb)
    with OtherConsumer(pipeline) as other:
        next_run = pipeline.ran()
        assert "paused" in next_run.outcomes and pipeline.committed()[_PARTITION] == _PAUSED_AT, (
            next_run.out
        )
        after = held(pipeline)
        other.register()
        other.claim(_PARTITION)
        other.read(_PARTITION, 40)
        other.leave()
        assert pause_or_resume(pipeline, "resume").code == 0
        return shared(stage, pipeline, other, after=after, next_run=next_run)


def pause_or_resume(pipeline: Pipeline, word: str) -> CommandResult:
    """`etl topics pause` or `resume`, of one log."""
    return run_etl(
        "topics",
        word,
        str(pipeline.conf),
        "-p",
        f"{pipeline.topic}:{_PARTITION}",
        "--reason",
        "a test",
        "--json",
    )


def rested(
    stage: Stage, pipeline: Pipeline, after: str, next_run: CommandResult | str
) -> CaseResult:
    """All but the paused log is there; once that is resumed it is there, too."""
    pipeline.ran()
    expected, found = (
        without(rows, {_PARTITION}) for rows in (pipeline.in_topic(), pipeline.in_table())
    )
    assert found == expected, (expected - found, found - expected)
    whole = between(pipeline.in_topic(), _PARTITION, 0, 1 << 60)
    assert (
        0 < sum(between(pipeline.in_table(), _PARTITION, 0, 1 << 60).values()) < sum(whole.values())
    ), "it does not rest"
    assert pause_or_resume(pipeline, "resume").code == 0
    return stage.finish(pipeline, after=after, next_run=next_run)


def _kill(pipeline: Pipeline, verb: str) -> None:
    with Driver(pipeline, sends=(signal.SIGKILL, verb)) as driver:
        result = driver.wait()
    assert result.code == -signal.SIGKILL, f"{summary_of(result)}\n{result.err}"


_THEN = "a log is paused "
_PAUSED = "where a log is paused: SIGKILL "

CASES: tuple[Case, ...] = (
    *(
        Case(
            35,
            f"paused behind a kill before {verb}",
            f"SIGKILL {when}, and {_THEN}until the run after the next",
            partial(killed_then_paused, verb=verb, then=then),
        )
        for verb, when, then in (
            ("store", "before the plan is stored", "ingested"),
            ("fetch", "after the plan is stored", "plan_resumed"),
            ("record", "after the Delta commit", "plan_completed"),
            ("commit", "before an offset is moved", "plan_completed"),
        )
    ),
    *(
        Case(
            35,
            f"killed with a paused log before {verb}",
            f"{_PAUSED}{when}, and it is resumed before the next run",
            partial(paused_then_killed, verb=verb, then=then),
        )
        for verb, when, then in (
            ("fetch", "after the plan is stored", "plan_resumed"),
            ("record", "after the Delta commit", "plan_completed"),
            ("commit", "before an offset is moved", "plan_completed"),
        )
    ),
    *(
        Case(
            35,
            f"paused under a driver that sleeps before {verb}",
            f"the driver is paused past its session {when}, {_THEN}by an operator, a second "
            f"driver runs, the first goes on",
            partial(paused_under_a_sleeper, verb=verb),
        )
        for verb, when in (("store", "before it stores its plan"), ("append", "before it writes"))
    ),
    *(
        Case(
            35,
            f"answer lost: {word}, {lost.value}",
            f"connection cut as `etl offsets {word}` is written, {when}",
            partial(answer_lost, word=word, lost=lost),
        )
        for word in ("pause", "resume")
        for lost, when in (
            (Lost.REQUEST, "before it reached the server"),
            (Lost.ANSWER, "after the server did it"),
        )
    ),
    Case(
        35,
        "ledger lost with a pause",
        "everything in ZooKeeper deleted while a log is paused",
        ledger_lost,
    ),
    Case(
        35,
        "expired while paused",
        "retention takes 30 offsets of a paused log, on_data_loss: skip; 30 offsets are let go",
        expired_meanwhile,
    ),
    Case(
        35,
        "paused by a member",
        "as a member, a log of ours is paused; another consumer reads 40 records of it and goes",
        partial(paused_by_a_member, verb=None),
    ),
    Case(
        35,
        "paused by a member that was killed",
        "the same behind a SIGKILL after the hand-over",
        partial(paused_by_a_member, verb="fetch"),
    ),
)
