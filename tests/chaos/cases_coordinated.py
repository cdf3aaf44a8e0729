"""Rows 38 and 39: a run that is a member of its group in Kafka. Its plan is stored, one commit
fenced by its membership moves the offsets, and the plan is marked as handed over; or it commits
after its append. Kills, pauses and lost answers at each step are in `ways`; here its commit is
refused.
"""

from __future__ import annotations

import contextlib
import signal

from tests.chaos.driver import Driver, EachTime, run_disturbed, was_killed
from tests.chaos.proxy import OFFSET_COMMIT, cut
from tests.chaos.scenes import RECORDS, SITUATIONS, BesideMember
from tests.chaos.stage import CaseResult, Stage, both, decide, ended, held, stopped, succeeded
from tests.chaos.ways import is_mark, lose_at_death, signals, staged_at_brokers
from tests.chaos.zookeeper_proxy import Lost, proxied
from tests.system.other_members import another_member

_LONGER_THAN_THE_MEMBERSHIP_S = 25
"""The ZooKeeper session of a driver that sleeps past its session of 6 s as a member."""


def void(stage: Stage, *, loaded: bool, after_append: bool = False) -> CaseResult:
    """A consumer joins before the commit, which is rejected; the next run continues."""
    verb, then = ("commit", "owner_changed") if after_append else ("hand_over", "rebalanced")
    settings = SITUATIONS["coordinated, after append" if after_append else "coordinated"].settings
    there = BesideMember(stage, stage.pipeline(**settings))
    with contextlib.ExitStack() as coming, there.going_on(loaded):

        def comes(world: object) -> None:
            there.others.append(coming.enter_context(another_member(there.pipeline)))
            there.others[-1].owns(1)

        result = ended(run_disturbed(there.pipeline, verb, comes), 0)
        times = result.outcomes.count(then)
        assert times == 1 or (after_append and times), result.outcomes
        coming.close()
        after, next_run = there.next_run()
    return there.finish(after, both(result, next_run))


def void_each_time(stage: Stage) -> CaseResult:
    """At each offset commit of the run the group changes: it gives up, the next run goes on."""
    there = BesideMember(stage, stage.pipeline(**SITUATIONS["coordinated"].settings))
    there.pipeline.produce(RECORDS)
    with contextlib.ExitStack() as coming:

        def comes(world: object) -> None:
            coming.close()
            there.others.append(coming.enter_context(another_member(there.pipeline)))
            there.others[-1].owns_some()

        result = run_disturbed(there.pipeline, "hand_over", comes, how=EachTime)
        stopped(result, 4, "The group rejected 4 offset commits")
        after = held(there.pipeline)
        there.pipeline.produce(RECORDS)
        next_run = there.pipeline.ran()
    return there.finish(after, both(result, next_run))


def killed_as_it_is_void(stage: Stage, *, lost: str) -> CaseResult:
    """The commit is rejected, and the run is killed as it stores that."""
    pipeline, proxy = proxied(stage, **SITUATIONS["coordinated"].settings)
    pipeline.settings["zookeeper"]["session_timeout_s"] = _LONGER_THAN_THE_MEMBERSHIP_S
    there = BesideMember(stage, pipeline)
    with contextlib.ExitStack() as coming, there.going_on(loaded=True):
        with Driver(pipeline, sends=(signal.SIGSTOP, "hand_over")) as driver:
            driver.wait_until_paused()
            there.others.append(coming.enter_context(another_member(pipeline)))
            there.others[-1].owns(2)
            lose_at_death(proxy, driver, Lost(lost), is_mark)
            driver.wake_all()
            was_killed(driver.wait())
            assert proxy.happened.is_set(), "that request was not made"
        coming.close()
        after, next_run = there.next_run()
    succeeded(next_run, "plan_superseded")
    return there.finish(after, next_run)


def nobody_can_tell(stage: Stage, *, commit_succeeded: bool) -> CaseResult:
    """Killed around the commit, then others read all of it: an operator decides."""
    there, proxy = staged_at_brokers(stage, "coordinated")
    pipeline = there.pipeline
    assert isinstance(there, BesideMember)
    pipeline.produce(RECORDS)
    dies = None if commit_succeeded else (signal.SIGKILL, "hand_over")
    with Driver(pipeline, sends=dies) as driver:
        if commit_succeeded:
            kill = signals(driver, signal.SIGKILL, cut(0.0))
            proxy.spoil(kill, api=OFFSET_COMMIT, times=1)
        was_killed(driver.wait())
    pipeline.produce(RECORDS)
    with another_member(pipeline) as other:
        other.has_read(RECORDS if commit_succeeded else 2 * RECORDS)
    there.others.append(other)
    after = held(pipeline)
    request = stopped(pipeline.run(), 5, "etl plans supersede")
    said = ["--assume-offsets-committed"] if commit_succeeded else []
    decide(pipeline, "plans supersede", "1", *said)
    pipeline.produce(RECORDS)
    return there.finish(after, both(request, pipeline.ran()))
