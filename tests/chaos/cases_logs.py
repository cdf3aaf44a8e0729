"""Rows 16 and 17: what a topic loses, or becomes, between a plan and its fetch, during the fetch,
and between two runs.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from etl.cli import main
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import wait_until
from tests.chaos.driver import Driver
from tests.chaos.kept import kept
from tests.chaos.lives import accepted, finish, second_life
from tests.chaos.proxy import ProxiedCluster, gated
from tests.chaos.sources import (
    Gone,
    admin_of,
    between,
    configure,
    delete_records,
    delete_topic,
    let_go,
    log_starts,
    make_topic,
    recreate_topic,
    stopped,
)
from tests.chaos.stage import Case, CaseResult, Stage, held, summary_of
from tests.command_result import CommandResult
from tests.system.driving import Pipeline, broken_off_before
from tests.traffic.rows import Row

_GONE = 30
"""Offsets that retention takes from the start of a planned range of 60."""
_ALL_EXPIRE = {"retention.ms": "1000", "segment.bytes": "1048576"}
"""The produced records carry times of years ago."""


def prepared(
    stage: Stage, *, loaded: bool, cluster: EmbeddedCluster | None = None, **source: Any
) -> Pipeline:
    pipeline = stage.pipeline(source=source, cluster=cluster)
    pipeline.produce(240)
    if loaded:
        pipeline.ran()
        pipeline.produce(240)
    return pipeline


def killed_before_the_fetch(pipeline: Pipeline) -> None:
    """A run whose plan is stored, with nothing of it fetched."""
    with Driver(pipeline, sends=(signal.SIGKILL, "fetch")) as driver:
        assert driver.wait().code == -signal.SIGKILL


def planned_and_lost(why: str) -> list[Gone]:
    """What the stored plan was to read of a topic that is gone, as rows of the losses table."""
    return [(partition, 60, 120, why) for partition in range(4)]


def expired_before_fetch(
    stage: Stage, *, loaded: bool, on_data_loss: str, in_process: bool = False
) -> CaseResult:
    """The start of a stored plan's range is deleted before the next run fetches it."""
    pipeline = prepared(stage, loaded=loaded, on_data_loss=on_data_loss)
    if in_process:
        broken_off_before("fetch", pipeline)
    else:
        killed_before_the_fetch(pipeline)
    start = 60 if loaded else 0
    before = pipeline.in_topic()
    delete_records(pipeline, {1: start + _GONE})
    after, gone = held(pipeline), between(before, 1, start, start + _GONE)
    result = pipeline.run()
    if on_data_loss == "fail":
        stopped(result, 5, "are gone", "on_data_loss: skip")
        assert held(pipeline) == after
        pipeline.settings["source"]["on_data_loss"] = "skip"  # the advice of the error
        stopped(pipeline.run(), 0, "plan_superseded", "records_lost")
    else:
        stopped(result, 0, "plan_superseded", "records_lost")
    pipeline.produce(80)
    pipeline.ran()
    reported = stage.finish(
        pipeline, after=after, next_run=result, expected=(before | pipeline.in_topic()) - gone
    )
    assert let_go(pipeline) == [(1, start, start + _GONE, "expired")], let_go(pipeline)
    return reported


def expired_after_a_skip(stage: Stage, *, by_hand: bool) -> CaseResult:
    """An operator skips offsets of a stored plan; then the start of its range is deleted; then the
    plan is superseded once more.
    """
    pipeline = prepared(stage, loaded=True, on_data_loss="skip")
    killed_before_the_fetch(pipeline)
    before, skip = pipeline.in_topic(), f"{pipeline.topic}:1:{60 + _GONE + 10}-{60 + _GONE + 20}"
    assert (
        main(
            [
                "plans",
                "supersede",
                str(pipeline.conf),
                "2",
                "--reason",
                "why not",
                "--yes",
                "--skip",
                skip,
            ]
        )
        == 0
    )
    delete_records(pipeline, {1: 60 + _GONE})
    if by_hand:
        assert (
            main(["plans", "supersede", str(pipeline.conf), "2", "--reason", "once more", "--yes"])
            == 0
        )
    after, gone = (
        held(pipeline),
        between(before, 1, 60, 60 + _GONE) | between(before, 1, 60 + _GONE + 10, 60 + _GONE + 20),
    )
    pipeline.produce(80)
    result = stopped(
        pipeline.run(), 0, "plan_resumed" if by_hand else "plan_superseded", "records_lost"
    )
    reported = stage.finish(
        pipeline, after=after, next_run=result, expected=(before | pipeline.in_topic()) - gone
    )
    lost = [
        (1, 60, 60 + _GONE, "expired"),
        (1, 60 + _GONE + 10, 60 + _GONE + 20, "skipped"),
    ]
    assert let_go(pipeline) == lost, let_go(pipeline)
    return reported


def all_expired_before_fetch(stage: Stage) -> CaseResult:
    """Retention itself, not an operator, takes every planned record; then others come."""
    pipeline = prepared(stage, loaded=True, on_data_loss="skip")
    loaded = pipeline.in_table()
    killed_before_the_fetch(pipeline)
    configure(pipeline, _ALL_EXPIRE)
    assert wait_until(lambda: set(log_starts(pipeline).values()) == {120}, 60), log_starts(pipeline)
    configure(pipeline, {"retention.ms": "-1"})
    after = held(pipeline)
    result = stopped(pipeline.run(), 0, "plan_superseded", "records_lost")
    pipeline.produce(80)
    pipeline.ran()
    reported = stage.finish(
        pipeline, after=after, next_run=result, expected=loaded | pipeline.in_topic()
    )
    assert let_go(pipeline) == [(partition, 60, 120, "expired") for partition in range(4)], let_go(
        pipeline
    )
    return reported


def expired_during_fetch(stage: Stage, *, on_data_loss: str) -> CaseResult:
    """Offsets of a range are deleted when its first answers came and more are to be fetched."""
    before: list[Counter[Row]] = []

    def expire(pipeline: Pipeline) -> None:
        before.append(pipeline.in_topic())
        delete_records(pipeline, dict.fromkeys(range(4), 1900))

    pipeline, result = during_fetch(stage, expire, on_data_loss=on_data_loss)
    if on_data_loss == "fail":
        stopped(result, 5, "ExpiredOffsets", "source.on_data_loss")
        after, next_run = (
            held(pipeline),
            stopped(pipeline.run(), 5, "are gone", "on_data_loss: skip"),
        )
        assert held(pipeline) == after
        pipeline.settings["source"]["on_data_loss"] = "skip"
        stopped(pipeline.run(), 0, "plan_superseded", "records_lost")
    else:
        stopped(result, 0, "plan_superseded", "records_lost")
        after, next_run = held(pipeline), stopped(pipeline.run(), 0, "up_to_date")
    gone = Counter({row: count for row, count in before[0].items() if row[1] < 1900})
    reported = stage.finish(pipeline, after=after, next_run=next_run, expected=before[0] - gone)
    assert let_go(pipeline) == [(partition, 0, 1900, "expired") for partition in range(4)], let_go(
        pipeline
    )
    return reported


def expired_between_runs(stage: Stage, *, on_data_loss: str) -> CaseResult:
    pipeline = prepared(stage, loaded=True, on_data_loss=on_data_loss)
    before = pipeline.in_topic()
    delete_records(pipeline, {1: 90, 3: 120})
    after, gone = held(pipeline), between(before, 1, 60, 90) + between(before, 3, 60, 120)
    result = pipeline.run()
    if on_data_loss == "fail":
        stopped(result, 5, "are gone", "on_data_loss: skip")
        assert held(pipeline) == after
        pipeline.settings["source"]["on_data_loss"] = "skip"
        pipeline.ran()
    else:
        stopped(result, 0, "records_lost", "ingested")
    reported = stage.finish(pipeline, after=after, next_run=result, expected=before - gone)
    assert let_go(pipeline) == [(1, 60, 90, "expired"), (3, 60, 120, "expired")], let_go(pipeline)
    return reported


def during_fetch(
    stage: Stage, change: Callable[[Pipeline], None], **source: Any
) -> tuple[Pipeline, CommandResult]:
    """A run whose third fetch is answered only after `change`, and that has many more fetches to
    send.
    """
    cluster = kept("network", lambda folder: ProxiedCluster(folder))
    pipeline = stage.pipeline(
        cluster=cluster,
        source={
            "bootstrap_servers": f"127.0.0.1:{cluster.proxy.port}",
            "fetch_max_bytes": 4096,
            **source,
        },
    )
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


def recreated(
    stage: Stage, *, records: int, stored: bool = False, cluster: EmbeddedCluster | None = None
) -> CaseResult:
    """The topic is recreated, with fewer or more records than before; old plans must not load any
    of them.
    """
    pipeline = prepared(stage, loaded=True, cluster=cluster)
    if stored:
        killed_before_the_fetch(pipeline)
    else:
        pipeline.ran()
    rows, after = pipeline.in_table(), held(pipeline)
    recreate_topic(pipeline)
    pipeline.produce(records)
    result = stopped(pipeline.run(), 5, "recreated")
    stopped(pipeline.run(), 5, "recreated")
    assert held(pipeline) == after
    reported = _accepted(pipeline, rows, after, result)
    assert let_go(pipeline) == (planned_and_lost("topic_recreated") if stored else []), let_go(
        pipeline
    )
    return reported


def recreated_without_ids(stage: Stage) -> CaseResult:
    """Brokers that speak the protocol of 2.7 among themselves give topics no ids: ZooKeeper knows
    when the topic was made.
    """
    return recreated(
        stage,
        records=800,
        cluster=stage.another_cluster(properties={"inter.broker.protocol.version": "2.7"}),
    )


def recreated_during_fetch(stage: Stage) -> CaseResult:
    """The topic is recreated, with more records than before, while a run fetches."""

    def recreate(pipeline: Pipeline) -> None:
        recreate_topic(pipeline)
        pipeline.produce(8_800)

    pipeline, result = during_fetch(stage, recreate)
    assert result.code in (2, 5, 6), f"{summary_of(result)}\n{result.err}"
    after = f"{held(pipeline)}; the run itself: {summary_of(result)}"
    return _accepted(pipeline, Counter(), after, stopped(pipeline.run(), 5, "recreated"))


def _accepted(
    pipeline: Pipeline, rows: Counter[Row], after: str, result: CommandResult
) -> CaseResult:
    """The table still has the rows of the first topic; accepted, as the error advises, the second
    one is read completely as its second incarnation.
    """
    assert (pipeline.in_table() if rows else Counter()) == rows
    accepted(pipeline, pipeline.topic)
    stopped(pipeline.run(), 0, "topic_changes_accepted")
    return finish(
        pipeline,
        after=after,
        next_run=result,
        expected=rows + second_life(pipeline.in_topic(), dict.fromkeys(range(4), 0)),
    )


def deleted(stage: Stage, *, stored: bool) -> CaseResult:
    """The topic is deleted and does not come back."""
    pipeline = prepared(stage, loaded=True)
    rows = pipeline.in_table()
    if stored:
        killed_before_the_fetch(pipeline)
    after = held(pipeline)
    delete_topic(pipeline)
    ending = (5, "do not know its topic any more") if stored else (2, "The topic is not there")
    result = stopped(pipeline.run(), *ending)
    assert pipeline.in_table() == rows
    make_topic(pipeline)
    stopped(pipeline.run(), 5, "recreated")
    reported = _accepted(pipeline, rows, after, result)
    assert let_go(pipeline) == (planned_and_lost("topic_recreated") if stored else []), let_go(
        pipeline
    )
    return reported


def partitions_added(stage: Stage, *, loaded: bool) -> CaseResult:
    """Between a plan and its fetch the topic grows by two partitions, with records in them."""
    pipeline = prepared(stage, loaded=loaded)
    killed_before_the_fetch(pipeline)
    with admin_of(pipeline) as admin:
        admin.create_partitions({pipeline.topic: 6})
    assert wait_until(lambda: len(log_starts(pipeline)) == 6, 30)
    pipeline.produce(300, partitions=6)
    after = held(pipeline)
    with stage.writing(pipeline) as writer:
        writer.wait_for(20)
        result = stopped(pipeline.run(), 0, "plan_resumed", "ingested")
    return stage.finish(pipeline, after=after, next_run=result)


CASES: tuple[Case, ...] = (
    Case(
        16,
        "expired-before-the-fetch-fail",
        "the start of a stored plan's range is deleted before the fetch, `fail`; then `skip`",
        partial(expired_before_fetch, loaded=True, on_data_loss="fail"),
    ),
    Case(
        16,
        "expired-before-the-fetch-skip",
        "the start of a stored plan's range is deleted before the fetch, `skip`: 30 offsets let go",
        partial(expired_before_fetch, loaded=True, on_data_loss="skip", in_process=True),
        short=True,
    ),
    Case(
        16,
        "expired-before-the-first-fetch-skip",
        "the same for the very first plan, killed before its fetch",
        partial(expired_before_fetch, loaded=False, on_data_loss="skip"),
    ),
    Case(
        24,
        "expired-after-a-skip",
        "`supersede --skip`, then the start of the range is deleted, and the run supersedes "
        "the plan again",
        partial(expired_after_a_skip, by_hand=False),
    ),
    Case(
        24,
        "expired-after-a-skip-by-hand",
        "the same, and an operator supersedes it again",
        partial(expired_after_a_skip, by_hand=True),
    ),
    Case(
        16,
        "all-expired-before-the-fetch",
        "retention takes all records of a stored plan before the fetch, `skip`",
        all_expired_before_fetch,
    ),
    Case(
        16,
        "expired-during-the-fetch-fail",
        "offsets of every range are deleted while it is fetched, `fail`; then `skip`",
        partial(expired_during_fetch, on_data_loss="fail"),
    ),
    Case(
        16,
        "expired-during-the-fetch-skip",
        "offsets of every range are deleted while it is fetched, `skip`",
        partial(expired_during_fetch, on_data_loss="skip"),
    ),
    Case(
        16,
        "expired-between-runs-fail",
        "offsets expire between two runs, `fail`; then `skip`",
        partial(expired_between_runs, on_data_loss="fail"),
    ),
    Case(
        16,
        "expired-between-runs-skip",
        "offsets expire between two runs, `skip`: 90 offsets are let go",
        partial(expired_between_runs, on_data_loss="skip"),
    ),
    Case(
        17,
        "topic-made-again-lower",
        "the topic made again with fewer records; accepted",
        partial(recreated, records=40),
        short=True,
    ),
    Case(
        17,
        "topic-made-again-higher",
        "the topic made again with more records; accepted",
        partial(recreated, records=800),
    ),
    Case(
        17,
        "topic-made-again-lower-before-the-fetch",
        "the same between a plan and its fetch, with fewer records",
        partial(recreated, records=40, stored=True),
    ),
    Case(
        17,
        "topic-made-again-higher-before-the-fetch",
        "the same between a plan and its fetch, with more records",
        partial(recreated, records=800, stored=True),
    ),
    Case(
        17,
        "topic-made-again-during-the-fetch",
        "the topic made again with more records while it is fetched; accepted",
        recreated_during_fetch,
    ),
    Case(
        17,
        "topic-made-again-without-ids",
        "the topic made again with more records, on brokers that have no topic ids",
        recreated_without_ids,
    ),
    Case(17, "topic-deleted", "the topic deleted between two runs", partial(deleted, stored=False)),
    Case(
        17,
        "topic-deleted-before-the-fetch",
        "the topic deleted between a plan and its fetch",
        partial(deleted, stored=True),
    ),
    Case(
        17,
        "partitions-added-before-the-first-fetch",
        "two partitions added between the first plan and its fetch",
        partial(partitions_added, loaded=False),
    ),
    Case(
        17,
        "partitions-added-before-the-fetch",
        "two partitions added between a later plan and its fetch",
        partial(partitions_added, loaded=True),
    ),
)
