"""Row 34: a run that is a member of its group in ZooKeeper is killed at each step, together with a
consumer that has the other half of the topic.

Both read on while a producer writes. In the end each record is in the table or was read by the
other one, and none is both.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from etl.testkit.server_process import wait_until
from tests.chaos.cases_hand_over import is_hand_over
from tests.chaos.driver import Driver, send
from tests.chaos.holding import Hold
from tests.chaos.others import JOIN, OtherConsumer, shared
from tests.chaos.sources import stored_plans
from tests.chaos.stage import Case, CaseResult, Stage, held, summary_of
from tests.chaos.zookeeper_proxy import MULTI, Lost, proxied
from tests.command_result import CommandResult
from tests.system.driving import Pipeline

_OURS, _THEIRS = (0, 1), (2, 3)
_RECORDS = 400
_SOON_S = 20.0
_DELETE = 2
"""ZooKeeper's number of the request that deletes one node."""

Seen = Callable[[int, bytes], bool]
"""Whether a request of ZooKeeper, by its operation and all of it, is the one at which the run is
killed.
"""


def at_verb(
    stage: Stage, *, verb: str, loaded: bool = False, group: Mapping[str, Any] = JOIN
) -> CaseResult:
    """Killed before a verb, by which it is registered and owns its half."""
    pipeline = stage.pipeline(group=group)
    with OtherConsumer(pipeline) as other:
        let_other_read(pipeline, other, loaded)
        with stage.writing(pipeline):
            with Driver(pipeline, sends=(signal.SIGKILL, verb)) as driver:
                result = driver.wait()
            assert result.code == -signal.SIGKILL, f"{summary_of(result)}\n{result.err}"
            assert other.owned() == [*_OURS, *_THEIRS] and len(other.members()) == 1, (
                other.owned(),
                other.members(),
            )
            after, next_run = gone_on(pipeline, other)
        return left_alone(stage, pipeline, other, after, next_run)


def while_it_registers(stage: Stage) -> CaseResult:
    """Killed when it is registered and owns nothing: the other one, which was alone, has not
    released its partitions yet.
    """
    pipeline = stage.pipeline(group=JOIN)
    with OtherConsumer(pipeline) as other:
        pipeline.produce(_RECORDS)
        other.register()
        other.claim(*_OURS, *_THEIRS)
        with stage.writing(pipeline), Driver(pipeline) as driver:
            driver.wait_for("its registration", lambda: len(other.members()) == 1)
            driver.kill_all()
            assert stored_plans(pipeline) == [], "it settled"
            other.let_go(*_OURS)
            after, next_run = gone_on(pipeline, other)
        return left_alone(stage, pipeline, other, after, next_run)


def at_request(
    stage: Stage,
    *,
    seen: Callable[[], Seen],
    lost: Lost,
    stored: int,
    group: Mapping[str, Any] = JOIN,
) -> CaseResult:
    """Killed when a request is under way to ZooKeeper, which gets it or does not; `stored`: how
    many plans there are then.
    """
    (pipeline, proxy), is_it = proxied(stage, group=group), seen()
    with OtherConsumer(pipeline) as other:
        let_other_read(pipeline, other, loaded=False)
        with stage.writing(pipeline), Driver(pipeline) as driver:

            def is_killed_at(operation: int, frame: bytes) -> bool:
                if not is_it(operation, frame):
                    return False
                send(driver.process.pid, signal.SIGKILL)
                return True

            proxy.lose(lost, is_killed_at)
            result = driver.wait()
            assert result.code == -signal.SIGKILL and proxy.happened.is_set(), (
                f"{summary_of(result)}\n{result.err}"
            )
            assert wait_until(lambda: len(stored_plans(pipeline)) == stored, _SOON_S), stored_plans(
                pipeline
            )
            after, next_run = gone_on(pipeline, other)
        return left_alone(stage, pipeline, other, after, next_run)


def while_fetching(stage: Stage, *, all_at_once: bool) -> CaseResult:
    """Killed when tasks have their first rows, which the group's offsets have passed already."""
    pipeline = stage.pipeline(**stage.writes.held, group=JOIN)
    hold = Hold(pipeline.folder / "marks", 0)
    with OtherConsumer(pipeline) as other:
        let_other_read(pipeline, other, loaded=True)
        with stage.writing(pipeline), Driver(pipeline, hold=hold) as driver:
            driver.wait_for("a task with its first rows", lambda: bool(hold.workers()))
            if all_at_once:
                driver.kill_all()
            else:
                driver.kill()
                driver.wake_all()
            after, next_run = gone_on(pipeline, other)
        return left_alone(stage, pipeline, other, after, next_run)


def let_other_read(pipeline: Pipeline, other: OtherConsumer, loaded: bool) -> None:
    """The other one owns its half and has read some of it; `loaded`: our half has a plan in the
    table already.
    """
    pipeline.produce(_RECORDS)
    other.register()
    other.claim(*_THEIRS)
    other.read(_THEIRS[0], 30)
    if loaded:
        pipeline.ran()
        pipeline.produce(_RECORDS)


def gone_on(pipeline: Pipeline, other: OtherConsumer) -> tuple[str, CommandResult]:
    """The other one reads on, then the next run does at the same time: the table's state before,
    and the run's result.
    """
    after = held(pipeline)
    other.read(_THEIRS[1], 50)
    next_run = pipeline.ran()
    other.read(_THEIRS[0], 20)
    assert other.owned() == [*_THEIRS] and not other.members(), (other.owned(), other.members())
    return after, next_run


def left_alone(
    stage: Stage, pipeline: Pipeline, other: OtherConsumer, after: str, next_run: CommandResult
) -> CaseResult:
    """The other one leaves, and all that is left is ours."""
    other.leave()
    pipeline.produce(_RECORDS)
    return shared(stage, pipeline, other, after=after, next_run=next_run)


def is_of_owners(operation: int, frame: bytes) -> bool:
    """The request that makes owner nodes, or deletes them."""
    return operation == MULTI and b"/owners/" in frame and b"/plans/" not in frame


def is_deregistration(operation: int, frame: bytes) -> bool:
    """The request that deletes a member's node."""
    return operation == _DELETE and b"/ids/" in frame


def after_first(first: Seen, then: Seen) -> Seen:
    """The second of these once the first has come."""
    has_come = threading.Event()

    def is_it(operation: int, frame: bytes) -> bool:
        if has_come.is_set():
            return then(operation, frame)
        if first(operation, frame):
            has_come.set()
        return False

    return is_it


_KILLED = "as a member beside another consumer: SIGKILL "
_WAYS = (
    (Lost.REQUEST, "before the request reached the server"),
    (Lost.ANSWER, "after the server did it, before the answer came"),
)

CASES: tuple[Case, ...] = (
    Case(
        34,
        "member killed: registered",
        _KILLED + "when it is registered and waits for partitions",
        while_it_registers,
    ),
    *(
        Case(
            34,
            f"member killed: {name}, {lost.value}",
            f"{_KILLED}as it {does}, {when}",
            partial(
                at_request,
                seen=seen,
                lost=lost,
                stored=stored + (name == "handing over" and lost is Lost.ANSWER),
            ),
        )
        for name, does, seen, stored in (
            ("claiming", "claims its partitions", lambda: is_of_owners, 0),
            ("handing over", "hands its plan over", lambda: is_hand_over, 0),
            (
                "letting go",
                "lets go of its partitions at the end",
                partial(after_first, is_hand_over, is_of_owners),
                1,
            ),
            (
                "leaving",
                "takes its registration back at the end",
                partial(after_first, is_hand_over, is_deregistration),
                1,
            ),
        )
        for lost, when in _WAYS
    ),
    *(
        Case(
            34,
            f"member killed: {name}{', later' if loaded else ''}",
            _KILLED + (f"{when}, where the table holds a plan already" if loaded else when),
            partial(at_verb, verb=verb, loaded=loaded),
        )
        for verb, name, when in (
            ("store", "settled", "when it owns its share, before the hand-over"),
            ("claiming", "handed over", "behind the hand-over, before the first fetch"),
            ("append", "before it writes", "before a file is written"),
            (
                "record",
                "appended",
                "after the Delta commit, before anything is written to ZooKeeper",
            ),
            ("commit", "recorded", "after the plan's receipts are kept"),
        )
        for loaded in (False, True)
    ),
    Case(
        34,
        "member killed: fetching",
        _KILLED + "for the whole process group, when the first rows are fetched",
        partial(while_fetching, all_at_once=True),
    ),
    Case(
        34,
        "member killed: fetching, the driver alone",
        _KILLED + "for the driver alone, when the first rows are fetched",
        partial(while_fetching, all_at_once=False),
    ),
)
