"""Row 38: a run that is a member of its group in Kafka. Its plan is stored, one commit fenced by
its membership moves the offsets, and the plan is marked as handed over; it is killed at each step,
and the commit is refused, or its answer lost.

Another member, a consumer that is not ours, reads what it owns all the while, and what it has
committed is its: the check takes that from the topic's records. Each record is in the table or was
read by the other one, and none is both.
"""

from __future__ import annotations

import contextlib
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from tests.chaos.cases_brokers import wait_for_all
from tests.chaos.cases_member import after_first
from tests.chaos.cases_zombie import overtaken, short_session
from tests.chaos.cases_zookeeper import creates, run_disturbed
from tests.chaos.coordinators import both, coordinator_of, signals, two_coordinators, was_killed
from tests.chaos.driver import Driver, send
from tests.chaos.kept import kept
from tests.chaos.proxy import (
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    SYNC_GROUP,
    ProxiedCluster,
    cut,
)
from tests.chaos.sources import stopped
from tests.chaos.stage import Case, CaseResult, Stage, held, summary_of
from tests.chaos.zookeeper_proxy import MULTI, SET_DATA, Lost, proxied
from tests.command_result import CommandResult
from tests.system.driving import Pipeline
from tests.system.other_members import OtherMember, another_member
from tests.traffic.rows import Row

_MEMBER: Mapping[str, Any] = {
    "mode": "join",
    "offsets_storage": "kafka",
    "join": {"session_timeout_s": 6},
}
COORDINATED: Mapping[str, Any] = {"group": _MEMBER}
_RECORDS = 400


def at_verb(
    stage: Stage, *, verb: str, then: str, loaded: bool, settings: Mapping[str, Any] = COORDINATED
) -> CaseResult:
    """Killed before a verb, by which it is a member and owns its half."""
    pipeline = stage.pipeline(**settings)
    with other_member_reading(stage, pipeline, loaded) as theirs:
        with Driver(pipeline, sends=(signal.SIGKILL, verb)) as driver:
            was_killed(driver.wait())
        after, next_run = held(pipeline), pipeline.ran()
    assert then in next_run.outcomes, next_run.outcomes
    return shared(stage, pipeline, theirs, after, next_run)


def at_answer(stage: Stage, *, api: int, settings: Mapping[str, Any] = COORDINATED) -> CaseResult:
    """Killed after the coordinator has executed the request, before its answer."""
    pipeline, cluster = by_proxy(stage, settings)
    with other_member_reading(stage, pipeline, loaded=False) as theirs:
        with Driver(pipeline) as driver:
            cluster.proxy.spoil(signals(driver, signal.SIGKILL, cut(0.0)), api=api, times=1)
            was_killed(driver.wait())
        after, next_run = held(pipeline), pipeline.ran()
    return shared(stage, pipeline, theirs, after, next_run)


def at_the_mark(stage: Stage, *, lost: Lost) -> CaseResult:
    """Killed when the offsets have moved and the plan is about to be marked: ZooKeeper gets that,
    or does not.
    """
    pipeline, proxy = proxied(stage, **COORDINATED)
    is_mark = after_first(
        creates(b"/plans/"),
        lambda operation, frame: operation in (SET_DATA, MULTI) and b"/plans/" in frame,
    )
    with other_member_reading(stage, pipeline, loaded=False) as theirs:
        with Driver(pipeline) as driver:

            def is_killed_at(operation: int, frame: bytes) -> bool:
                if is_mark(operation, frame):
                    send(driver.process.pid, signal.SIGKILL)
                    return True
                return False

            proxy.lose(lost, is_killed_at)
            was_killed(driver.wait())
            assert proxy.happened.is_set()
        after, next_run = held(pipeline), pipeline.ran()
    assert "plan_resumed" in next_run.outcomes, next_run.outcomes
    return shared(stage, pipeline, theirs, after, next_run)


def void(stage: Stage, *, loaded: bool) -> CaseResult:
    """Between plan and commit one more consumer joins: the commit is refused, nothing was fetched,
    and another plan takes the place.
    """
    pipeline = stage.pipeline(**COORDINATED)
    with contextlib.ExitStack() as coming, other_member_reading(stage, pipeline, loaded) as theirs:

        def comes(world: object) -> None:
            theirs.append(coming.enter_context(another_member(pipeline)))
            theirs[-1].owns(1)

        result = run_disturbed(pipeline, "hand_over", comes)
        assert result.code == 0 and result.outcomes.count("rebalanced") == 1, (
            f"{summary_of(result)}\n{result.err}"
        )
        coming.close()
        after, next_run = held(pipeline), pipeline.ran()
    return shared(stage, pipeline, theirs, after, both(result, next_run))


def answer_lost(
    stage: Stage, *, times: int | None, settings: Mapping[str, Any] = COORDINATED
) -> CaseResult:
    """Of the commit that is the hand-over, so many times; None: all of them, as long as the run
    lasts.
    """
    pipeline, cluster = by_proxy(stage, settings)
    with other_member_reading(stage, pipeline, loaded=True) as theirs:
        cluster.proxy.spoil(cut(0.0), api=OFFSET_COMMIT, times=times)
        # by then its share is its own: what the other one has read before may be all there was
        result = run_disturbed(pipeline, "observe", lambda world: pipeline.produce(_RECORDS))
        assert cluster.proxy.spoiled and result.code in ((0,) if times else (0, 6)), (
            f"{summary_of(result)}\n{result.err}"
        )
        cluster.proxy.heal()
        after, next_run = held(pipeline), pipeline.ran()
    return shared(stage, pipeline, theirs, after, both(result, next_run))


def asleep(
    stage: Stage, *, verb: str, loaded: bool, settings: Mapping[str, Any] = COORDINATED
) -> CaseResult:
    """Paused past both its sessions, a second driver does the work, the first continues."""
    pipeline = stage.pipeline(**settings)
    with other_member_reading(stage, pipeline, loaded) as theirs:
        with short_session(pipeline), Driver(pipeline, sends=(signal.SIGSTOP, verb)) as zombie:
            zombie.wait_until_paused()
            after, second, woken = overtaken(zombie, pipeline)
        assert woken.code in (0, 4, 6), f"the woken driver: {summary_of(woken)}\n{woken.err}"
    return shared(
        stage,
        pipeline,
        theirs,
        after,
        f"the second driver: {summary_of(second)}; the woken one: {summary_of(woken)}",
    )


def nobody_can_tell(stage: Stage, *, commit_succeeded: bool) -> CaseResult:
    """Killed around the commit, and before the next run others have read all of it and beyond: an
    operator decides.
    """
    pipeline, cluster = by_proxy(stage)
    pipeline.produce(_RECORDS)
    with Driver(
        pipeline, sends=None if commit_succeeded else (signal.SIGKILL, "hand_over")
    ) as driver:
        if commit_succeeded:
            cluster.proxy.spoil(
                signals(driver, signal.SIGKILL, cut(0.0)), api=OFFSET_COMMIT, times=1
            )
        was_killed(driver.wait())
    pipeline.produce(_RECORDS)
    with another_member(pipeline) as other:
        other.has_read(_RECORDS if commit_succeeded else 2 * _RECORDS)
    after = held(pipeline)
    request = stopped(pipeline.run(), 5, "etl plans supersede")
    reported = ["--assume-offsets-committed"] if commit_succeeded else []
    result = pipeline.door(
        "plans", "supersede", after=["1", *reported, "--reason", "seen", "--yes"]
    )
    assert result.code == 0, result.err
    pipeline.produce(_RECORDS)
    return shared(stage, pipeline, [other], after, both(request, pipeline.ran()))


def coordinator_moved(
    stage: Stage, *, verb: str = "hand_over", settings: Mapping[str, Any] = COORDINATED
) -> CaseResult:
    """The broker that keeps the group is killed before the commit; another one takes its place,
    with the group's members.
    """
    cluster = kept("two-coordinators", two_coordinators)
    pipeline = stage.pipeline(cluster=cluster, replication_factor=2, **settings)
    pipeline.produce(_RECORDS)
    pipeline.ran()
    pipeline.produce(_RECORDS)
    wait_for_all(pipeline, 2)
    broker = coordinator_of(pipeline)
    result = run_disturbed(pipeline, verb, lambda world: broker.kill())
    after = held(pipeline)
    broker.start()
    wait_for_all(pipeline, 2)
    assert result.code in (0, 6), f"{summary_of(result)}\n{result.err}"
    return shared(stage, pipeline, [], after, both(result, pipeline.ran()))


@contextlib.contextmanager
def other_member_reading(
    stage: Stage, pipeline: Pipeline, loaded: bool
) -> Iterator[list[OtherMember]]:
    """A consumer that has read when our run comes, while a producer writes; `loaded`: our table has
    a plan by then.

    It reads nothing while it owns all: whatever a run of ours gets as its share, there is something
    to read in it.
    """
    pipeline.produce(_RECORDS)
    if loaded:
        pipeline.ran()
    with another_member(pipeline) as other:
        other.owns(4)
        with stage.writing(pipeline) as writer:
            other.has_read(1)
            other.rests_while_it_owns(4)
            writer.wait_for(40)
            yield [other]


def by_proxy(
    stage: Stage, settings: Mapping[str, Any] = COORDINATED
) -> tuple[Pipeline, ProxiedCluster]:
    """A pipeline that reaches its brokers by a proxy."""
    cluster = kept("network", lambda folder: ProxiedCluster(folder))
    stage.at_end.callback(cluster.proxy.heal)
    return stage.pipeline(
        cluster=cluster, source={"bootstrap_servers": f"127.0.0.1:{cluster.proxy.port}"}, **settings
    ), cluster


def shared(
    stage: Stage,
    pipeline: Pipeline,
    others: list[OtherMember],
    after: str,
    next_run: CommandResult | str,
) -> CaseResult:
    """The check of a topic that all members read, after they have left. With `after_append` others
    may have read our records, too.
    """
    pipeline.produce(_RECORDS)
    last = pipeline.ran()
    proof = pipeline.door("verify")
    assert proof.code == 0, f"{summary_of(last)}\n{proof.err}{proof.out}"
    theirs = sum((other.read for other in others), Counter[Row]())
    assert max(theirs.values(), default=1) == 1, "they read a record twice"
    if pipeline.settings["group"]["join"].get("commit_when") == "after_append":
        theirs -= pipeline.in_table()
    return stage.finish(
        pipeline, after=after, next_run=next_run, expected=pipeline.in_topic() - theirs
    )


_KILLED, _AS = "as a member in Kafka, beside a consumer: SIGKILL ", "as a member in Kafka, "
_LATER = ", where the table holds a plan already"

CASES: tuple[Case, ...] = (
    *(
        Case(
            38,
            f"coordinated member killed: {name}{', later' if loaded else ''}",
            f"{_KILLED}{when}{_LATER if loaded else ''}",
            partial(at_verb, verb=verb, then=then, loaded=loaded),
        )
        for verb, name, when, then in (
            ("store", "settled", "when it owns its share, before the plan is stored", "ingested"),
            (
                "hand_over",
                "stored",
                "when the plan is stored, before the commit",
                "plan_superseded",
            ),
            (
                "claiming",
                "handed over",
                "behind commit and mark, before the first fetch",
                "plan_resumed",
            ),
            ("append", "before it writes", "before a file is written", "plan_resumed"),
            (
                "record",
                "appended",
                "after the Delta commit, before anything is written to ZooKeeper",
                "plan_completed",
            ),
            ("commit", "recorded", "after the plan's receipts are kept", "ingested"),
        )
        for loaded in (False, True)
    ),
    *(
        Case(
            38,
            f"coordinated member killed: {name}",
            f"{_KILLED}after the coordinator {did}, before the answer came",
            partial(at_answer, api=api),
        )
        for api, name, did in (
            (JOIN_GROUP, "joining", "let it in"),
            (SYNC_GROUP, "sharing", "gave it its share"),
            (OFFSET_COMMIT, "handing over", "took its commit"),
            (LEAVE_GROUP, "leaving", "let it go"),
        )
    ),
    *(
        Case(
            38,
            f"coordinated member killed: marking, {lost.value}",
            f"{_KILLED}as its plan is marked, {when}",
            partial(at_the_mark, lost=lost),
        )
        for lost, when in (
            (Lost.REQUEST, "before that reached ZooKeeper"),
            (Lost.ANSWER, "after ZooKeeper did it"),
        )
    ),
    *(
        Case(
            38,
            f"coordinated: void{', later' if loaded else ''}",
            f"{_AS}between plan and commit another consumer joins{_LATER if loaded else ''}",
            partial(void, loaded=loaded),
        )
        for loaded in (False, True)
    ),
    Case(
        38,
        "coordinated: answer of the commit lost",
        f"{_AS}the answer of the commit that is the hand-over is lost",
        partial(answer_lost, times=1),
    ),
    Case(
        38,
        "coordinated: each answer of the commit lost",
        f"{_AS}each answer of that commit is lost",
        partial(answer_lost, times=None),
    ),
    *(
        Case(
            38,
            f"coordinated: asleep {name}",
            f"{_AS}the driver is paused past its sessions {when}, a second one does the "
            f"work, the first goes on",
            partial(asleep, verb=verb, loaded=loaded),
        )
        for verb, loaded, name, when in (
            ("store", False, "before its plan", "before it stores its plan"),
            ("hand_over", False, "before its commit", "between plan and commit"),
            ("hand_over", True, "before a later commit", "between a later plan and its commit"),
            ("claiming", True, "behind its commit", "behind commit and mark"),
            ("record", False, "behind its append", "after the Delta commit"),
        )
    ),
    Case(
        38,
        "coordinated: nobody can tell, it was handed over",
        f"{_AS}SIGKILL between commit and mark; another consumer reads all there is; a "
        f"person says that it was handed over",
        partial(nobody_can_tell, commit_succeeded=True),
    ),
    Case(
        38,
        "coordinated: nobody can tell, it was not",
        f"{_AS}SIGKILL between plan and commit; another consumer reads all there is; a "
        f"person says that it was not handed over",
        partial(nobody_can_tell, commit_succeeded=False),
    ),
    Case(
        38,
        "coordinated: coordinator moved",
        f"{_AS}the broker that keeps the group is killed between plan and commit",
        coordinator_moved,
    ),
)
