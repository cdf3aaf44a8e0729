"""Row 35: partitions paused and resumed around kills, lost answers, lost ledgers, retention."""

from __future__ import annotations

import signal

from tests.chaos.cases_zookeeper import apart
from tests.chaos.driver import Driver, kill_before
from tests.chaos.others import JOIN, OtherConsumer, without
from tests.chaos.scenes import prepare, shared
from tests.chaos.sources import between, delete_records, let_go
from tests.chaos.stage import (
    CaseResult,
    Stage,
    ended,
    held,
    offsets_are_at_the_rows_ends,
    stopped,
    succeeded,
    summary_of,
)
from tests.chaos.ways import REQUESTS, overtaken, short_session
from tests.chaos.zookeeper_proxy import Lost, proxied
from tests.command_result import CommandResult, run_etl
from tests.system.driving import Pipeline

_PARTITION = 1
_PAUSED_AT = 100
"""Where each partition is after the first plan."""


def killed_then_paused(stage: Stage, *, verb: str, then: str) -> CaseResult:
    """Killed before a verb, and paused: the stored plan is executed completely."""
    pipeline = stage.pipeline()
    prepare(pipeline, loaded=True)
    with stage.writing(pipeline) as writer:
        writer.wait_for(20)
        after = kill_before(pipeline, verb)
        pause(pipeline)
        writer.wait_for(20)
        next_run = succeeded(pipeline.run(), then, "paused")
    return rested(stage, pipeline, after, next_run)


def paused_then_killed(stage: Stage, *, verb: str, then: str) -> CaseResult:
    """A run that leaves a paused log is killed; it is resumed before the next one."""
    pipeline = stage.pipeline()
    prepare(pipeline, loaded=True)
    pause(pipeline)
    with stage.writing(pipeline):
        after = kill_before(pipeline, verb)
        resume(pipeline)
        next_run = succeeded(pipeline.run(), then)
    return stage.finish(pipeline, after, next_run)


def paused_under_a_sleeper(stage: Stage, *, verb: str) -> CaseResult:
    """The driver sleeps past its session, its partition is paused, a second driver runs."""
    pipeline = stage.pipeline()
    prepare(pipeline, loaded=True)
    with (
        stage.writing(pipeline),
        short_session(pipeline),
        Driver(pipeline, sends=(signal.SIGSTOP, verb)) as zombie,
    ):
        zombie.wait_until_paused()
        pipeline.settings["ledger"] = {"lock_timeout_s": 60}
        pause(pipeline)
        after, message = overtaken(zombie, pipeline)
    return rested(stage, pipeline, after, message)


def answer_lost(stage: Stage, *, command: str, lost: str) -> CaseResult:
    """The connection breaks as a pause or its end is written; the command is repeated."""
    pipeline, proxy = proxied(stage)
    prepare(pipeline, loaded=True)
    if command == "resume":
        pause(pipeline)
    proxy.lose(Lost(lost), REQUESTS["pause"]())
    result = ended(_of_one_log(pipeline, command), 0, 4, 6)
    assert proxy.happened.is_set(), "that request was not made"
    ended(_of_one_log(pipeline, command), 0)
    after, next_run = held(pipeline), pipeline.ran()
    assert ("paused" in next_run.outcomes) == (command == "pause"), next_run.outcomes
    if command == "pause":
        resume(pipeline)
    pipeline.ran()
    message = f"`etl offsets {command}`: exit {result.code}; the next run: {summary_of(next_run)}"
    reported = stage.finish(pipeline, after, message)
    offsets_are_at_the_rows_ends(pipeline, pipeline.committed())
    return reported


def ledger_lost(stage: Stage) -> CaseResult:
    """The ledger is lost and restored from the table; the pause is not, which is reported."""
    case = apart(stage)
    pause(case.pipeline)
    case.pipeline.ran()
    case.restore(None)
    after = held(case.pipeline)
    next_run = stopped(case.pipeline.run(), 0, "pause")
    assert "paused" not in next_run.outcomes, next_run.outcomes
    return case.finish(after, next_run)


def expired_meanwhile(stage: Stage) -> CaseResult:
    """Retention deletes records of a paused partition: reported after the resume."""
    pipeline = stage.pipeline(source={"on_data_loss": "skip"})
    prepare(pipeline, loaded=True)
    pause(pipeline)
    gone = _PAUSED_AT + 30
    expected = pipeline.in_topic() - between(pipeline.in_topic(), _PARTITION, _PAUSED_AT, gone)
    delete_records(pipeline, {_PARTITION: gone})
    resting = pipeline.ran()
    assert "records_lost" not in resting.outcomes, resting.outcomes
    after = held(pipeline)
    resume(pipeline)
    next_run = succeeded(pipeline.run(), "records_lost")
    reported = stage.finish(pipeline, after, next_run, expected=expected)
    losses = [one[:3] for one in let_go(pipeline)]
    assert losses == [(_PARTITION, _PAUSED_AT, gone)], losses
    return reported


def paused_by_a_member(stage: Stage, *, verb: str | None = None) -> CaseResult:
    """A member that owns a paused log keeps its offset; another consumer reads on."""
    pipeline = stage.pipeline(group=JOIN)
    prepare(pipeline, loaded=True)
    pause(pipeline)
    if verb:
        kill_before(pipeline, verb)
    with OtherConsumer(pipeline) as other:
        next_run = succeeded(pipeline.run(), "paused")
        assert pipeline.committed()[_PARTITION] == _PAUSED_AT, next_run.out
        after = held(pipeline)
        other.register()
        other.claim(_PARTITION)
        other.read(_PARTITION, 40)
        other.leave()
        resume(pipeline)
        return shared(stage, pipeline, other.rows, after, next_run)


def pause(pipeline: Pipeline) -> None:
    ended(_of_one_log(pipeline, "pause"), 0)


def resume(pipeline: Pipeline) -> None:
    ended(_of_one_log(pipeline, "resume"), 0)


def _of_one_log(pipeline: Pipeline, command: str) -> CommandResult:
    partition = f"{pipeline.topic}:{_PARTITION}"
    words = ("-p", partition, "--reason", "a test", "--json")
    return run_etl("topics", command, str(pipeline.conf), *words)


def rested(
    stage: Stage, pipeline: Pipeline, after: str, next_run: CommandResult | str
) -> CaseResult:
    """All but the paused log is there; once that is resumed it is there, too."""
    pipeline.ran()
    topic, table = pipeline.in_topic(), pipeline.in_table()
    expected, found = without(topic, {_PARTITION}), without(table, {_PARTITION})
    assert found == expected, (expected - found, found - expected)
    there, whole = ((rows - without(rows, {_PARTITION})).total() for rows in (table, topic))
    assert 0 < there < whole, "it does not rest"
    resume(pipeline)
    return stage.finish(pipeline, after, next_run)
