"""More of rows 33 and 38: rejected offset commits with a plan of another kind in place, with a run
that dies of it, and every time.

In ZooKeeper a rejected commit leaves nothing; in Kafka it leaves a plan with that state, and a run
may die before that is stored.
"""

from __future__ import annotations

import contextlib
import signal
from functools import partial

from tests.chaos.cases_coordinated import COORDINATED, asleep, other_member_reading, shared
from tests.chaos.cases_hand_over import EachTime, another_commits, is_hand_over, joining
from tests.chaos.cases_zombie import prepare
from tests.chaos.cases_zookeeper import run_disturbed
from tests.chaos.coordinators import both, was_killed
from tests.chaos.driver import Driver, send
from tests.chaos.others import JOIN, OtherConsumer
from tests.chaos.others import shared as shared_in_zookeeper
from tests.chaos.sources import stopped, stored_plans
from tests.chaos.stage import Case, CaseResult, Stage, held, summary_of
from tests.chaos.zookeeper_proxy import MULTI, SET_DATA, Lost, proxied
from tests.system.other_members import OtherMember, another_member

_PARTITION, _THEIRS = 1, 20
_LONGER_THAN_THE_MEMBERSHIP_S = 25
"""The ZooKeeper session of a driver that sleeps past its session of 6 s as a member."""


# -- row 33
# --------------------------------------------------------------------------------------------------------------


def a_rival(stage: Stage, *, loaded: bool) -> CaseResult:
    """One that claims as we do, so that its owner node is like ours, and has handed over; then it
    lets go.
    """
    pipeline = joining(stage, loaded=loaded)
    with OtherConsumer(pipeline) as other:

        def comes(world: object) -> None:
            other.claim_as_we_do(_PARTITION)
            other.read(_PARTITION, _THEIRS)
            other.let_go_behind_us(_PARTITION)

        with stage.writing(pipeline):
            result = run_disturbed(pipeline, "store", comes)
            after = held(pipeline)
            stopped(result, 0, "was moved since it was read")
            assert result.outcomes.count("rebalanced") == 1 and "ingested" in result.outcomes, (
                result.outcomes
            )
            next_run = pipeline.ran()
        return shared_in_zookeeper(
            stage, pipeline, other, after=after, next_run=both(result, next_run)
        )


def in_the_place_of(stage: Stage, *, loaded: bool) -> CaseResult:
    """A run that was no member stored a plan and died; the plan of a member that takes its place is
    void, and another one takes it.
    """
    pipeline = stage.pipeline()
    prepare(pipeline, loaded)
    with Driver(pipeline, sends=(signal.SIGKILL, "claiming")) as driver:
        was_killed(driver.wait())
    pipeline.settings["group"] = dict(JOIN)
    with OtherConsumer(pipeline) as other:
        with stage.writing(pipeline):
            result = run_disturbed(
                pipeline, "supersede", lambda world: another_commits(pipeline, other)
            )
            after = held(pipeline)
            stopped(result, 0, "was moved since it was read")
            assert (
                result.outcomes.count("rebalanced") == 1 and "plan_superseded" in result.outcomes
            ), result.outcomes
            next_run = pipeline.ran()
        return shared_in_zookeeper(
            stage, pipeline, other, after=after, next_run=both(result, next_run)
        )


def refused_and_lost(stage: Stage, *, is_killed: bool) -> CaseResult:
    """The offset commit reaches ZooKeeper after another one's, and the run never learns that it was
    rejected, or is dead by then.
    """
    pipeline, proxy = proxied(stage, group=JOIN)
    prepare(pipeline, loaded=True)
    with OtherConsumer(pipeline) as other, stage.writing(pipeline), Driver(pipeline) as driver:

        def comes_before(operation: int, frame: bytes) -> bool:
            if not is_hand_over(operation, frame):
                return False
            other.read(_PARTITION, _THEIRS)
            if is_killed:
                send(driver.process.pid, signal.SIGKILL)
            return True

        proxy.lose(Lost.ANSWER, comes_before)
        result = driver.wait()
        assert proxy.happened.is_set() and result.code in (
            (-signal.SIGKILL,) if is_killed else (0, 6)
        ), f"{summary_of(result)}\n{result.err}"
        assert not is_killed or stored_plans(pipeline) == [1], "it was not refused"
        after, next_run = held(pipeline), pipeline.ran()
    return shared_in_zookeeper(
        stage,
        pipeline,
        other,
        after=after,
        next_run=next_run if is_killed else both(result, next_run),
    )


# -- row 38
# --------------------------------------------------------------------------------------------------------------


def void_each_time(stage: Stage) -> CaseResult:
    """At each offset commit of the run one consumer leaves and another one joins: it gives up, and
    the next run reads the rest.
    """
    pipeline = stage.pipeline(**COORDINATED)
    pipeline.produce(400)
    others: list[OtherMember] = []
    with contextlib.ExitStack() as there:

        def comes(world: object) -> None:
            there.close()
            others.append(there.enter_context(another_member(pipeline)))
            others[-1].owns_some()

        result = run_disturbed(pipeline, "hand_over", comes, how=EachTime)
        stopped(result, 4, "The group rejected 4 offset commits")
        after = held(pipeline)
        pipeline.produce(400)
        next_run = pipeline.ran()
    return shared(stage, pipeline, others, after, both(result, next_run))


def killed_as_it_is_void(stage: Stage, *, lost: Lost) -> CaseResult:
    """The commit came too late, and the run is killed when it writes that down: ZooKeeper gets
    that, or does not.
    """
    pipeline, proxy = proxied(stage, **COORDINATED)
    pipeline.settings["zookeeper"]["session_timeout_s"] = _LONGER_THAN_THE_MEMBERSHIP_S
    with (
        contextlib.ExitStack() as coming,
        other_member_reading(stage, pipeline, loaded=True) as theirs,
    ):
        with Driver(pipeline, sends=(signal.SIGSTOP, "hand_over")) as driver:
            driver.wait_until_paused()
            theirs.append(coming.enter_context(another_member(pipeline)))
            theirs[-1].owns(2)

            def is_killed_at(operation: int, frame: bytes) -> bool:
                if operation not in (SET_DATA, MULTI) or b"/plans/" not in frame:
                    return False
                send(driver.process.pid, signal.SIGKILL)
                return True

            proxy.lose(lost, is_killed_at)
            driver.wake_all()
            was_killed(driver.wait())
            assert proxy.happened.is_set()
        coming.close()
        after, next_run = held(pipeline), pipeline.ran()
    assert "plan_superseded" in next_run.outcomes, next_run.outcomes
    return shared(stage, pipeline, theirs, after, next_run)


_VOID, _LATER = (
    "as a member, at the moment of the hand-over: ",
    "the same where the table holds a plan already",
)
_AS = "as a member in Kafka, "
_STATIC = {
    **COORDINATED,
    "group": {
        **COORDINATED["group"],
        "join": {**COORDINATED["group"]["join"], "instance_id": "loader-1"},
    },
}

CASES: tuple[Case, ...] = (
    Case(
        33,
        "void: a rival",
        _VOID
        + "a consumer that claims as we do owns one partition, reads 20 records of it and lets go",
        partial(a_rival, loaded=False),
    ),
    Case(33, "void: a rival, later", _LATER, partial(a_rival, loaded=True)),
    Case(
        33,
        "void: in another plan's place",
        _VOID
        + "another consumer commits 20 records, and the plan was to take the place of one that "
        "no member had stored",
        partial(in_the_place_of, loaded=False),
    ),
    Case(33, "void: in another plan's place, later", _LATER, partial(in_the_place_of, loaded=True)),
    Case(
        33,
        "void: its answer lost",
        _VOID
        + "another consumer commits 20 records, and the connection is cut before the refusal came",
        partial(refused_and_lost, is_killed=False),
    ),
    Case(
        33,
        "void: killed",
        _VOID + "another consumer commits 20 records, and SIGKILL before the refusal came",
        partial(refused_and_lost, is_killed=True),
    ),
    Case(
        38,
        "coordinated: void each time",
        f"{_AS}at each commit of a hand-over another consumer has just joined",
        void_each_time,
    ),
    *(
        Case(
            38,
            f"coordinated: void, killed as it is marked, {lost.value}",
            f"{_AS}the commit comes too late, and SIGKILL as that is written down, {when}",
            partial(killed_as_it_is_void, lost=lost),
        )
        for lost, when in (
            (Lost.REQUEST, "before that reached ZooKeeper"),
            (Lost.ANSWER, "after ZooKeeper did it"),
        )
    ),
    Case(
        38,
        "coordinated: asleep before its commit, static",
        f"{_AS}with a name of its own (static), the driver is paused past its sessions "
        f"between plan and commit, a second one does the "
        "work, the first goes on",
        partial(asleep, verb="hand_over", loaded=True, settings=_STATIC),
    ),
)
