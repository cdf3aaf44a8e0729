"""Row 41: a stored plan whose topic is deleted or recreated; the command that gives its offsets up,
and the run after it, are killed.

The losses table must have exactly the offsets of the plan, each once, and the table every other
record once.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial

from tests.chaos.cases_logs import killed_before_the_fetch, planned_and_lost, prepared
from tests.chaos.driver import Driver
from tests.chaos.lives import accepted, finish, second_life
from tests.chaos.sources import delete_topic, let_go, make_topic, recreate_topic, stopped
from tests.chaos.stage import Case, CaseResult, Stage, held, summary_of
from tests.command_result import CommandResult
from tests.system.driving import Pipeline
from tests.traffic.rows import Row

_REASON = ("--reason", "it is gone", "--yes")
_COMMANDS = {
    "driving": "before its lock",
    "observe": "before it looks",
    "supersede": "before it stores",
    "superseded": "once it has stored",
}
_RUNS = {
    "observe": "before it looks",
    "claiming": "before it claims",
    "fetch": "before the fetch",
    "append": "before the append",
    "record": "before the record",
    "half_record": "between the losses and the record",
    "commit": "before the offsets",
    "tidy": "before it tidies",
}
_RECORDED = ("commit", "tidy")
"""Before these the plan is recorded, and the next run does not report it any more."""


def with_another_topic(stage: Stage) -> Pipeline:
    """A pipeline whose stored plan reads offsets 60 to 119 of each partition, and whose conf admits
    one more topic.
    """
    pipeline = prepared(stage, loaded=True)
    pipeline.cluster.create_topic(f"{pipeline.topic}-kept", 1)
    pipeline.settings["source"] = {"topics": [f"{pipeline.topic}(-kept)?"]}
    killed_before_the_fetch(pipeline)
    return pipeline


def killed(pipeline: Pipeline, verb: str, *door: str) -> CommandResult:
    with Driver(pipeline, sends=(signal.SIGKILL, verb), door=door) as driver:
        result = driver.wait()
    assert result.code == -signal.SIGKILL, f"{summary_of(result)}\n{result.err}"
    return result


def deleted(stage: Stage, *, command: str | None = None, run: str | None = None) -> CaseResult:
    """The topic is deleted and the plan superseded; later a topic of that name exists again, which
    is loaded as another one.
    """
    pipeline = with_another_topic(stage)
    rows = pipeline.in_table()
    delete_topic(pipeline)
    stopped(pipeline.run(), 5, "do not know its topic any more")
    if command:
        killed(pipeline, command, "plans supersede", "2", *_REASON)
    result = pipeline.door("plans", "supersede", after=("2", *_REASON))
    assert result.code == 0, result.err
    after, result = _strict(pipeline, run, "topic_deleted")
    assert pipeline.in_table() == rows
    make_topic(pipeline)
    pipeline.produce(40)
    stopped(pipeline.run(), 5, "recreated")
    accepted(pipeline, pipeline.topic)
    return _finished(pipeline, rows, after, result, "topic_deleted")


def recreated(stage: Stage, *, command: str | None = None, run: str | None = None) -> CaseResult:
    """The topic is recreated, and accepted as another one."""
    pipeline = with_another_topic(stage)
    rows = pipeline.in_table()
    recreate_topic(pipeline)
    pipeline.produce(40)
    stopped(pipeline.run(), 5, "recreated")
    if command:
        killed(pipeline, command, "topics accept-changes", "-p", pipeline.topic, *_REASON)
    if command != "superseded":
        accepted(pipeline, pipeline.topic)
    return _finished(pipeline, rows, *_strict(pipeline, run, "topic_recreated"), "topic_recreated")


def _strict(pipeline: Pipeline, verb: str | None, why: str) -> tuple[str, CommandResult]:
    """Kill the run that gives the offsets up before that verb, then finish it.

    Returns the table's state in between, and the result of the second run.
    """
    if verb:
        killed(pipeline, verb, "run", "--fail-on-loss")
    after = held(pipeline)
    result = pipeline.door("run", "--fail-on-loss")
    assert result.code == (0 if verb in _RECORDED else 3), f"{summary_of(result)}\n{result.err}"
    assert let_go(pipeline) == planned_and_lost(why), let_go(pipeline)
    return after, result


def _finished(
    pipeline: Pipeline, rows: Counter[Row], after: str, result: CommandResult, why: str
) -> CaseResult:
    """`rows`: the rows that were loaded of the topic before. The present topic is read completely,
    as its second incarnation.
    """
    stopped(pipeline.run(), 0)
    reported = finish(
        pipeline,
        after=after,
        next_run=result,
        expected=rows + second_life(pipeline.in_topic(), dict.fromkeys(range(4), 0)),
    )
    assert let_go(pipeline) == planned_and_lost(why), let_go(pipeline)
    return reported


_WAYS = {
    "deleted": ("the topic of a stored plan deleted, `supersede`: ", "supersede", deleted),
    "recreated": (
        "the topic of a stored plan recreated, `accept-changes`: ",
        "accept-changes",
        recreated,
    ),
}


def _cases() -> Iterator[Case]:
    for name, (what, command, play) in _WAYS.items():
        yield Case(41, f"given up, {name}", f"{what}no kill", play)
        for verb, moment in _COMMANDS.items():
            killed_so = f"{what}`{command}` SIGKILLed {moment}"
            yield Case(
                41,
                f"given up, {name}, command killed: {verb}",
                killed_so,
                partial(play, command=verb),
            )
        for verb, moment in _RUNS.items():
            yield Case(
                41,
                f"given up, {name}, run killed: {verb}",
                f"{what}the run SIGKILLed {moment}",
                partial(play, run=verb),
            )
        yield Case(
            41,
            f"given up, {name}, both killed",
            f"{what}`{command}` SIGKILLed once it has stored, the run before the record",
            partial(play, command="superseded", run="record"),
        )


CASES: tuple[Case, ...] = tuple(_cases())
