"""Row 42: a driver sleeps past its session with a stored plan, its pipeline is inherited or
retired, and then it wakes up.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from functools import partial

from etl.cli import main
from tests.chaos.cases_kill import held_pipeline
from tests.chaos.cases_zombie import prepare, short_session, wait_for_no_driver
from tests.chaos.driver import Driver
from tests.chaos.holding import Hold
from tests.chaos.stage import Case, CaseResult, Stage, checked, held, summary_of
from tests.system.driving import Pipeline

_STOPPED = (4, 5, 6)
"""Exit codes of a woken driver: another one came first, or its pipeline is out of service."""

RETIREMENT = "etl.io.zookeeper.ledger:PlanLedger.retire"
CLOSING_STORED = "after:etl.io.zookeeper.ledger:PlanLedger.supersede_plan"
CLOSING_COMMITTED = "after:etl.run.void_plan_number:append"
TAKE_OVER_STORED = "etl.commands.operator_session:store_decided"


def _renamed_pipeline(old: Pipeline) -> Pipeline:
    heir = old.under("renamed")
    heir.settings = {**old.settings, **heir.settings}
    return heir


@contextlib.contextmanager
def _sleeping(pipeline: Pipeline, verb: str) -> Iterator[Driver]:
    """A driver that has stopped before `verb` and whose session has expired."""
    with short_session(pipeline), Driver(pipeline, sends=(signal.SIGSTOP, verb)) as zombie:
        zombie.wait_until_paused()
        wait_for_no_driver(pipeline)
        pipeline.settings.pop("zookeeper", None)
        yield zombie


def _take_over(heir: Pipeline, old: Pipeline) -> list[str]:
    return [
        "pipelines",
        "inherit",
        str(heir.conf),
        "--predecessor",
        f"{old.group}/clicks",
        "--reason",
        "renamed",
        "--yes",
    ]


def _killed_command(pipeline: Pipeline, place: str, words: list[str]) -> None:
    child = pipeline.start("tests.chaos.dying_command", place, *words)
    _, err = child.communicate(timeout=180)
    assert child.returncode == -signal.SIGKILL, f"exit {child.returncode}\n{err}"


def _finished(old: Pipeline, heir: Pipeline, zombie: Driver, dies_at: str = "") -> CaseResult:
    """The heir takes over and loads, the sleeper wakes up; the table has each record once, and both
    can prove it.
    """
    after = held(old)
    if dies_at:
        _killed_command(heir, dies_at, _take_over(heir, old))
    assert main(_take_over(heir, old)) == 0
    heir.ran()
    zombie.wake_all()
    woken = zombie.wait()
    assert woken.code in _STOPPED, f"the woken driver: {summary_of(woken)}\n{woken.err}"
    next_run = heir.ran()
    assert heir.door("verify").code == 0
    return CaseResult(
        after,
        f"the heir: {summary_of(next_run)}; the woken one: {summary_of(woken)}",
        checked(old),
    )


def taken_over(stage: Stage, *, verb: str, loaded: bool = True, dies_at: str = "") -> CaseResult:
    """Paused before a verb until its session is gone and another pipeline has taken its place and
    loaded the same offsets.
    """
    old = stage.pipeline()
    old.produce(400)
    old.ran()
    if loaded:
        old.produce(400)
        old.ran()
    old.produce(400)
    with _sleeping(old, verb) as zombie:
        return _finished(old, _renamed_pipeline(old), zombie, dies_at)


def taken_over_while_writing(stage: Stage) -> CaseResult:
    """The same, with half of the files written, and the workers paused, too."""
    old, files = held_pipeline(stage, loaded=True), stage.writes.tasks // 2
    hold = Hold(old.folder / "marks", files)
    with short_session(old), Driver(old, hold=hold) as zombie:
        zombie.wait_for("rows in every task", lambda: len(hold.workers()) == stage.writes.tasks)
        zombie.pause_all()
        hold.release()
        wait_for_no_driver(old)
        old.settings.pop("zookeeper", None)
        return _finished(old, _renamed_pipeline(old), zombie)


def retired(stage: Stage, *, first_plan: bool, dies_at: str = "") -> CaseResult:
    """Its pipeline is retired, and another one of the group loads the topic: in the place of the
    first, or where that loaded nothing.
    """
    old = stage.pipeline()
    if first_plan:  # the table exists, created by a pipeline with another topic, which is empty
        stranger = old.under("stranger", topic=f"{old.topic}-other", produced=0)
        stranger.settings = {**old.settings, **stranger.settings}
        stranger.traffic.create_topic(
            stage.cluster, stranger.topic, 4, replication_factor=1, config=None
        )
        stranger.ran()
    prepare(old, loaded=not first_plan)
    with _sleeping(old, "append") as zombie:
        after = held(old)
        words = ["pipelines", "retire", str(old.conf), "--reason", "moved"]
        if dies_at:
            _killed_command(old, dies_at, words)
        assert main(words) == 0
        heir = old.under("heir")
        heir.group = old.group
        heir.settings = {**old.settings, **heir.settings, "pipeline": "heir"}
        if not first_plan:
            assert main(_take_over(heir, old)) == 0
        heir.ran()
        zombie.wake_all()
        woken = zombie.wait()
    assert woken.code in _STOPPED, f"the woken driver: {summary_of(woken)}\n{woken.err}"
    next_run = heir.ran()
    assert heir.door("verify").code == 0
    message = f"the heir: {summary_of(next_run)}; the woken one: {summary_of(woken)}"
    return CaseResult(after, message, checked(old))


_OVER = (
    "the driver is paused past its session, another pipeline takes its place and loads the same "
    "offsets, the first goes on: "
)
_RETIRED = (
    "the driver is paused before the append past its session, its pipeline is retired, another "
    "one of the group loads the topic: "
)

CASES: tuple[Case, ...] = (
    Case(
        42,
        "sleeper taken over before it claims",
        _OVER + "after the plan is stored",
        partial(taken_over, verb="claiming"),
    ),
    Case(
        42,
        "sleeper taken over before the fetch",
        _OVER + "before the fetch",
        partial(taken_over, verb="fetch", loaded=False),
    ),
    Case(
        42,
        "sleeper taken over before the append",
        _OVER + "before the append",
        partial(taken_over, verb="append"),
    ),
    Case(
        42,
        "sleeper taken over with half its files",
        _OVER + "with half of its files written",
        taken_over_while_writing,
    ),
    Case(
        42,
        "sleeper taken over, take-over killed behind the closing plan",
        _OVER + "the take-over is killed when the closing plan is stored",
        partial(taken_over, verb="append", dies_at=CLOSING_STORED),
    ),
    Case(
        42,
        "sleeper taken over, take-over killed behind the closing commit",
        _OVER + "the take-over is killed when the closing plan is committed",
        partial(taken_over, verb="append", dies_at=CLOSING_COMMITTED),
    ),
    Case(
        42,
        "sleeper taken over, take-over killed before the retirement",
        _OVER + "the take-over is killed before the old pipeline is retired",
        partial(taken_over, verb="append", dies_at=RETIREMENT),
    ),
    Case(
        42,
        "sleeper taken over, take-over killed before its plan",
        _OVER + "the take-over is killed before its plan is stored",
        partial(taken_over, verb="append", dies_at=TAKE_OVER_STORED),
    ),
    Case(42, "sleeper retired", _RETIRED + "in its place", partial(retired, first_plan=False)),
    Case(
        42,
        "sleeper retired with its first plan",
        _RETIRED + "the first one has loaded nothing",
        partial(retired, first_plan=True),
    ),
    Case(
        42,
        "sleeper retired, retirement killed",
        _RETIRED + "the retirement is killed when the closing plan is committed",
        partial(retired, first_plan=False, dies_at=CLOSING_COMMITTED),
    ),
)
