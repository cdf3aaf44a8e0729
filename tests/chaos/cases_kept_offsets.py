"""Rows 14, 36 and 37: other clients move, delete or forget committed offsets, in ZooKeeper, in Kafka
or in both places, between two runs and during one; and a run that sleeps between its look and its
commit.

A coordinator has no compare-and-set, and a commit's answer may be lost; no row hangs on that, so
the table is whole whatever is done, and in the end each offset is where the table's rows end.
"""

from __future__ import annotations

import contextlib
import signal
import threading

from etl.testkit.server_process import wait_until
from tests.chaos.driver import Driver, kill_before, run_disturbed
from tests.chaos.holding import TRANSFORM, Hold
from tests.chaos.proxy import OFFSET_FETCH, passed
from tests.chaos.scenes import prepare
from tests.chaos.sources import between, check_losses, set_offset
from tests.chaos.stage import CaseResult, Stage, both, decide, ended, held, stopped
from tests.chaos.ways import overtaken, short_session, signals, staged, staged_at_brokers
from tests.command_result import CommandResult
from tests.system.driving import Pipeline
from tests.system.live_consumers import committed_by_another, consuming, forget_group, offsets_of

_OURS, _LARGER = 60, 80
_PARTITION = 1
_DOWN_S = 1.5
_SOON_S = 60.0


# -- row 14: offsets in ZooKeeper; a commit of an older consumer, and an operator by hand, overwrite
# the znode with any content


def moved_between(
    stage: Stage, *, to: int | None, on_offset_changed: str, follows: bool = False
) -> CaseResult:
    """After two runs, with more to read, one of the offsets is moved."""
    pipeline = stage.pipeline(group={"on_offset_changed": on_offset_changed})
    for records in (80, 160):
        pipeline.produce(records)
        pipeline.ran()
    pipeline.produce(240)
    set_offset(pipeline, _PARTITION, to)
    after = held(pipeline)
    return _decided(stage, pipeline, pipeline.run(), after, follows)


def moved_during(
    stage: Stage, *, to: int, on_offset_changed: str, follows: bool = False, loaded: bool = False
) -> CaseResult:
    """One offset is moved while rows are written; the next run decides by policy."""
    before = 20 if loaded else 0
    pipeline = stage.pipeline(
        group={"on_offset_changed": on_offset_changed},
        transform=TRANSFORM,
        limits={"max_records_per_plan": 4 * _OURS},
    )
    if loaded:
        pipeline.produce(4 * before)
        pipeline.ran()
        pipeline.settings["limits"] = {"max_records_per_plan": 4 * (_OURS - before)}
    pipeline.produce(480 - 4 * before)
    hold = Hold(pipeline.folder / "marks", 0)
    with Driver(pipeline, hold=hold) as driver:
        driver.wait_for("a task with its first rows", lambda: bool(hold.workers()))
        set_offset(pipeline, _PARTITION, to)
        hold.release()
        moved = "Another client moved the committed offset during the run"
        stopped(driver.wait(), 5, moved, "the rows are in the table")
    pipeline.settings.pop("limits")
    after = held(pipeline)
    return _decided(stage, pipeline, pipeline.run(), after, follows)


def _decided(
    stage: Stage, pipeline: Pipeline, result: CommandResult, after: str, follows: bool
) -> CaseResult:
    if follows:
        stopped(result, 0, "offset_changed", "ingested")
        expected = pipeline.in_topic() - between(pipeline.in_topic(), _PARTITION, _OURS, _LARGER)
        reported = stage.finish(pipeline, after, result, expected=expected)
        check_losses(pipeline, [(_PARTITION, _OURS, _LARGER, "offset_changed")])
        return reported
    stopped(result, 5, "Another client", f"Set it back to {_OURS}")
    set_offset(pipeline, _PARTITION, _OURS)  # the advice of the error
    pipeline.ran()
    return stage.finish(pipeline, after, result)


# -- rows 36 and 37: offsets in Kafka, and in both places


def asleep_between_look_and_commit(stage: Stage, *, scene: str) -> CaseResult:
    """Paused between reading the offsets and its commit: a second driver commits higher ones."""
    there, proxy = staged_at_brokers(stage, scene)
    pipeline = there.pipeline
    with (
        there.going_on(loaded=True),
        short_session(pipeline),
        Driver(pipeline, sends=(signal.SIGSTOP, "commit")) as zombie,
    ):
        zombie.wait_until_paused()
        proxy.spoil(signals(zombie, signal.SIGSTOP, passed), api=OFFSET_FETCH, times=1)
        zombie.wake_all()
        assert wait_until(lambda: proxy.spoiled == 1 and zombie.is_paused(), _SOON_S), (
            "it does not look"
        )
        after, message = overtaken(zombie, pipeline)
    return there.finish(after, message)


def coordinator_restarted(stage: Stage, *, scene: str) -> CaseResult:
    """The only broker goes away when the run begins to commit, and comes back."""
    cluster = stage.another_cluster()
    there = staged(stage, scene, cluster=cluster)
    prepare(there.pipeline, loaded=True)
    [broker] = cluster.brokers

    def down_for_a_while(world: object) -> None:
        broker.kill()
        back = threading.Timer(_DOWN_S, broker.start)
        back.start()
        stage.at_end.callback(back.join)

    result = ended(run_disturbed(there.pipeline, "commit", down_for_a_while), 0, 6)
    after = held(there.pipeline)
    assert wait_until(broker.is_ready, _SOON_S)
    return there.finish(after, both(result, there.pipeline.ran()))


def another_committed(
    stage: Stage, *, scene: str, by: int | None, during: bool = False
) -> CaseResult:
    """Another client commits another offset, or sets one place back: the run stops."""
    there = staged(stage, scene)
    pipeline = there.pipeline
    prepare(pipeline, loaded=True)
    ours = offsets_of(pipeline, pipeline.group)[_PARTITION][0]

    def commit(world: object) -> None:
        if by is None:
            set_offset(pipeline, _PARTITION, 7)
        else:
            committed_by_another(pipeline, {_PARTITION: ours + by})

    if during:
        result = run_disturbed(pipeline, "commit", commit)
    else:
        commit(None)
        result = pipeline.run()
    stopped(result, 5, "Another client")
    after = held(pipeline)
    decide(pipeline, "ledger restore")
    return there.finish(after, both(result, pipeline.ran()))


def forgotten(stage: Stage, *, scene: str, verb: str | None = None) -> CaseResult:
    """The group is forgotten as it is without members for long, where a run was killed or not."""
    there = staged(stage, scene)
    prepare(there.pipeline, loaded=True)
    if verb:
        kill_before(there.pipeline, verb)
    forget_group(there.pipeline)
    return there.finish(*there.next_run())


def somebody_joined(stage: Stage, *, scene: str) -> CaseResult:
    """A consumer joins Kafka's group while a run writes: it alone may commit until it left."""
    there = staged(stage, scene)
    pipeline = there.pipeline
    prepare(pipeline, loaded=True)
    with contextlib.ExitStack() as consumers:
        joined = consuming(pipeline, pipeline.group, partitions=4)
        result = run_disturbed(pipeline, "commit", lambda world: consumers.enter_context(joined))
        stopped(result, 4, "has live members in Kafka")
        after = held(pipeline)
    return there.finish(after, both(result, pipeline.ran()))
