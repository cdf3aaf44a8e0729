"""Rows 16, 17, 24 and 41: what a topic loses, or becomes, between a plan and its fetch, during the
fetch, and between two runs; and a stored plan whose topic is deleted or recreated, where the command
that gives its offsets up, and the run after it, are killed.

The losses table has exactly the offsets that were given up, each once.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import wait_until
from tests.chaos.driver import Driver, kill_before
from tests.chaos.proxy import ProxiedCluster, gated
from tests.chaos.sources import (
    Gone,
    accepted,
    admin_of,
    between,
    check_losses,
    configure,
    delete_records,
    delete_topic,
    finish,
    log_starts,
    make_topic,
    recreate_topic,
    second_life,
)
from tests.chaos.stage import (
    REASON,
    CaseResult,
    Stage,
    decide,
    ended,
    held,
    kept,
    stopped,
    summary_of,
)
from tests.command_result import CommandResult
from tests.system.driving import Pipeline, broken_off_before
from tests.traffic.rows import Row

_GONE = 30
"""Offsets that retention takes from the start of a planned range of 60."""
_ALL_EXPIRE = {"retention.ms": "1000", "segment.bytes": "1048576"}
"""The produced records carry times of years ago."""
_SUPERSEDED = ("plan_superseded", "records_lost")
_RECORDED = ("commit", "tidy")
"""Before these the plan is recorded, and the next run does not report it any more."""


def prepared(
    stage: Stage,
    *,
    loaded: bool = True,
    stored: bool = True,
    in_process: bool = False,
    cluster: EmbeddedCluster | None = None,
    **source: Any,
) -> Pipeline:
    """A pipeline with a plan in its table (`loaded`), and another one that is not fetched."""
    pipeline = stage.pipeline(source=source, cluster=cluster)
    pipeline.produce(240)
    if loaded:
        pipeline.ran()
        pipeline.produce(240)
    if in_process:
        broken_off_before("fetch", pipeline)
    elif stored:
        kill_before(pipeline, "fetch")
    return pipeline


def planned(why: str) -> list[Gone]:
    """What the stored plan was to read, as rows of the losses table."""
    return [(partition, 60, 120, why) for partition in range(4)]


def give_up(pipeline: Pipeline, result: CommandResult, on_data_loss: str, *then: str) -> None:
    """With `fail` the run stopped and changed nothing; follow the advice of its error."""
    if on_data_loss == "fail":
        stopped(result, 5, "are gone", "on_data_loss: skip")
        pipeline.settings["source"]["on_data_loss"] = "skip"
        result = pipeline.run()
    stopped(result, 0, *then)


# -- rows 16 and 24: offsets expire


def expired_before_fetch(
    stage: Stage, *, loaded: bool, on_data_loss: str, in_process: bool = False
) -> CaseResult:
    """The start of a stored plan's range is deleted before the next run fetches it."""
    pipeline = prepared(stage, loaded=loaded, in_process=in_process, on_data_loss=on_data_loss)
    start = 60 if loaded else 0
    before = pipeline.in_topic()
    delete_records(pipeline, {1: start + _GONE})
    after, result = held(pipeline), pipeline.run()
    assert on_data_loss == "skip" or held(pipeline) == after, "it loaded something"
    give_up(pipeline, result, on_data_loss, *_SUPERSEDED)
    pipeline.produce(80)
    pipeline.ran()
    expected = (before | pipeline.in_topic()) - between(before, 1, start, start + _GONE)
    reported = stage.finish(pipeline, after, result, expected=expected)
    check_losses(pipeline, [(1, start, start + _GONE, "expired")])
    return reported


def expired_after_a_skip(stage: Stage, *, by_hand: bool) -> CaseResult:
    """Skipped offsets of a stored plan, then an expired start, then superseded once more."""
    pipeline = prepared(stage, on_data_loss="skip")
    before, gone = pipeline.in_topic(), 60 + _GONE
    skip = f"{pipeline.topic}:1:{gone + 10}-{gone + 20}"
    decide(pipeline, "plans supersede", "2", "--skip", skip)
    delete_records(pipeline, {1: gone})
    if by_hand:
        decide(pipeline, "plans supersede", "2")
    after = held(pipeline)
    pipeline.produce(80)
    then = "plan_resumed" if by_hand else "plan_superseded"
    result = stopped(pipeline.run(), 0, then, "records_lost")
    lost = between(before, 1, 60, gone) | between(before, 1, gone + 10, gone + 20)
    expected = (before | pipeline.in_topic()) - lost
    reported = stage.finish(pipeline, after, result, expected=expected)
    check_losses(pipeline, [(1, 60, gone, "expired"), (1, gone + 10, gone + 20, "skipped")])
    return reported


def all_expired_before_fetch(stage: Stage) -> CaseResult:
    """Retention itself, not an operator, takes every planned record; then others come."""
    pipeline = prepared(stage, on_data_loss="skip")
    loaded = pipeline.in_table()
    configure(pipeline, _ALL_EXPIRE)
    assert wait_until(lambda: set(log_starts(pipeline).values()) == {120}, 60), log_starts(pipeline)
    configure(pipeline, {"retention.ms": "-1"})
    after = held(pipeline)
    result = stopped(pipeline.run(), 0, *_SUPERSEDED)
    pipeline.produce(80)
    pipeline.ran()
    expected = loaded | pipeline.in_topic()
    reported = stage.finish(pipeline, after, result, expected=expected)
    check_losses(pipeline, planned("expired"))
    return reported


def expired_during_fetch(stage: Stage, *, on_data_loss: str) -> CaseResult:
    """Offsets of a range are deleted when its first answers came and more are to be fetched."""
    before: list[Counter[Row]] = []

    def expire(pipeline: Pipeline) -> None:
        before.append(pipeline.in_topic())
        delete_records(pipeline, dict.fromkeys(range(4), 1900))

    pipeline, result = _during_fetch(stage, expire, on_data_loss=on_data_loss)
    after, next_run = then_skipped(pipeline, result, on_data_loss)
    left = {row: count for row, count in before[0].items() if row[1] >= 1900}
    reported = stage.finish(pipeline, after, next_run, expected=Counter(left))
    check_losses(pipeline, [(partition, 0, 1900, "expired") for partition in range(4)])
    return reported


def then_skipped(
    pipeline: Pipeline, result: CommandResult, on_data_loss: str
) -> tuple[str, CommandResult]:
    """After a run that missed offsets amid its fetch: the table's rows, and the next run."""
    if on_data_loss == "fail":
        stopped(result, 5, "ExpiredOffsets", "source.on_data_loss")
        after, next_run = held(pipeline), pipeline.run()
        assert held(pipeline) == after, "it loaded something"
        give_up(pipeline, next_run, on_data_loss, *_SUPERSEDED)
        return after, next_run
    stopped(result, 0, *_SUPERSEDED)
    return held(pipeline), stopped(pipeline.run(), 0, "up_to_date")


def expired_between_runs(stage: Stage, *, on_data_loss: str) -> CaseResult:
    pipeline = prepared(stage, stored=False, on_data_loss=on_data_loss)
    before = pipeline.in_topic()
    delete_records(pipeline, {1: 90, 3: 120})
    after, result = held(pipeline), pipeline.run()
    assert on_data_loss == "skip" or held(pipeline) == after, "it loaded something"
    give_up(pipeline, result, on_data_loss, "records_lost", "ingested")
    expected = before - between(before, 1, 60, 90) - between(before, 3, 60, 120)
    reported = stage.finish(pipeline, after, result, expected=expected)
    check_losses(pipeline, [(1, 60, 90, "expired"), (3, 60, 120, "expired")])
    return reported


def _during_fetch(
    stage: Stage, change: Callable[[Pipeline], None], **source: Any
) -> tuple[Pipeline, CommandResult]:
    """A run whose third fetch is answered only after `change`, with many more to send."""
    cluster = kept("network", lambda folder: ProxiedCluster(folder))
    servers = f"127.0.0.1:{cluster.proxy.port}"
    source = {"bootstrap_servers": servers, "fetch_max_bytes": 4096, **source}
    pipeline = stage.pipeline(cluster=cluster, source=source)
    pipeline.produce(8_000)
    done = threading.Event()
    cluster.proxy.spoil(gated(done), after=2)
    stage.at_end.callback(cluster.proxy.heal)
    with Driver(pipeline) as driver:
        driver.wait_for("the third fetch", lambda: cluster.proxy.spoiled > 0)
        change(pipeline)
        done.set()
        result = driver.wait()
    cluster.proxy.heal()
    return pipeline, result


# -- row 17: another topic of the name, or more partitions


def recreated(
    stage: Stage, *, records: int, stored: bool = False, with_ids: bool = True
) -> CaseResult:
    """The topic is recreated, with fewer or more records than before; old plans must not load any
    of them. Brokers that speak the protocol of 2.7 among themselves give topics no ids: ZooKeeper
    knows when the topic was made.
    """
    old = {"inter.broker.protocol.version": "2.7"}
    cluster = None if with_ids else stage.another_cluster(properties=old)
    pipeline = prepared(stage, stored=stored, cluster=cluster)
    if not stored:
        pipeline.ran()
    rows, after = pipeline.in_table(), held(pipeline)
    recreate_topic(pipeline)
    pipeline.produce(records)
    result = stopped(pipeline.run(), 5, "recreated")
    stopped(pipeline.run(), 5, "recreated")
    assert held(pipeline) == after
    reported = _accepted(pipeline, rows, after, result)
    check_losses(pipeline, planned("topic_recreated") if stored else [])
    return reported


def recreated_during_fetch(stage: Stage) -> CaseResult:
    """The topic is recreated, with more records than before, while a run fetches."""

    def recreate(pipeline: Pipeline) -> None:
        recreate_topic(pipeline)
        pipeline.produce(8_800)

    pipeline, result = _during_fetch(stage, recreate)
    after = f"{held(pipeline)}; the run itself: {summary_of(ended(result, 2, 5, 6))}"
    return _accepted(pipeline, Counter(), after, stopped(pipeline.run(), 5, "recreated"))


def deleted(stage: Stage, *, stored: bool) -> CaseResult:
    pipeline = prepared(stage, stored=stored)
    rows, after = pipeline.in_table(), held(pipeline)
    delete_topic(pipeline)
    ending = (5, "do not know its topic any more") if stored else (2, "The topic is not there")
    result = stopped(pipeline.run(), *ending)
    assert pipeline.in_table() == rows
    make_topic(pipeline)
    stopped(pipeline.run(), 5, "recreated")
    reported = _accepted(pipeline, rows, after, result)
    check_losses(pipeline, planned("topic_recreated") if stored else [])
    return reported


def _accepted(
    pipeline: Pipeline, rows: Counter[Row], after: str, result: CommandResult
) -> CaseResult:
    """The second topic, once accepted, is read completely as the second incarnation."""
    assert (pipeline.in_table() if rows else Counter()) == rows
    accepted(pipeline, pipeline.topic)
    stopped(pipeline.run(), 0, "topic_changes_accepted")
    expected = rows + second_life(pipeline.in_topic(), dict.fromkeys(range(4), 0))
    return finish(pipeline, after, result, expected=expected)


def partitions_added(stage: Stage, *, loaded: bool) -> CaseResult:
    """Between a plan and its fetch the topic grows by two partitions, with records in them."""
    pipeline = prepared(stage, loaded=loaded)
    with admin_of(pipeline) as admin:
        admin.create_partitions({pipeline.topic: 6})
    assert wait_until(lambda: len(log_starts(pipeline)) == 6, 30)
    pipeline.produce(300, partitions=6)
    after = held(pipeline)
    with stage.writing(pipeline) as writer:
        writer.wait_for(20)
        result = stopped(pipeline.run(), 0, "plan_resumed", "ingested")
    return stage.finish(pipeline, after, result)


# -- row 41: offsets of a stored plan are given up


def given_up(
    stage: Stage, *, is_deleted: bool, command: str | None = None, run: str | None = None
) -> CaseResult:
    """The topic is deleted and the plan superseded, and later a topic of that name exists again; or
    the topic is recreated and accepted as another one. The command that gives the offsets up is
    killed before a verb, and so is the run after it.
    """
    pipeline = prepared(stage, stored=False)
    pipeline.cluster.create_topic(f"{pipeline.topic}-kept", 1)
    pipeline.settings["source"] = {"topics": [f"{pipeline.topic}(-kept)?"]}
    kill_before(pipeline, "fetch")
    rows = pipeline.in_table()
    if is_deleted:
        delete_topic(pipeline)
        stopped(pipeline.run(), 5, "do not know its topic any more")
        if command:
            kill_before(pipeline, command, "plans supersede", "2", *REASON)
        decide(pipeline, "plans supersede", "2")
    else:
        recreate_topic(pipeline)
        pipeline.produce(40)
        stopped(pipeline.run(), 5, "recreated")
        if command:
            kill_before(pipeline, command, "topics accept-changes", "-p", pipeline.topic, *REASON)
        if command != "superseded":
            accepted(pipeline, pipeline.topic)
    losses = planned("topic_deleted" if is_deleted else "topic_recreated")
    if run:
        kill_before(pipeline, run, "run", "--fail-on-loss")
    after = held(pipeline)
    result = ended(pipeline.door("run", "--fail-on-loss"), 0 if run in _RECORDED else 3)
    check_losses(pipeline, losses)
    if is_deleted:
        assert pipeline.in_table() == rows
        make_topic(pipeline)
        pipeline.produce(40)
        stopped(pipeline.run(), 5, "recreated")
        accepted(pipeline, pipeline.topic)
    stopped(pipeline.run(), 0)
    expected = rows + second_life(pipeline.in_topic(), dict.fromkeys(range(4), 0))
    reported = finish(pipeline, after, result, expected=expected)
    check_losses(pipeline, losses)
    return reported
