"""Row 14: another client moves the group's committed offsets, between two runs and during one.

A commit of an older consumer, and an operator by hand, do the same: they overwrite the znode with
any content.
"""

from __future__ import annotations

from functools import partial

from tests.chaos.driver import Driver
from tests.chaos.holding import TRANSFORM, Hold
from tests.chaos.sources import between, let_go, set_offset, stopped
from tests.chaos.stage import Case, CaseResult, Stage, held
from tests.command_result import CommandResult
from tests.system.driving import Pipeline

_OURS, _LARGER, _SMALLER = 60, 80, 20
_PARTITION = 1


def moved_between(
    stage: Stage, *, to: int | None, on_offset_changed: str, follows: bool = False
) -> CaseResult:
    """After two runs that left every offset at 60, one of them is moved, while there is more to
    read.
    """
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
    """While the rows of a run are written, one offset is moved; the run reports it, and the next
    one decides by policy.
    """
    pipeline = stage.pipeline(
        group={"on_offset_changed": on_offset_changed},
        transform=TRANSFORM,
        limits={"max_records_per_plan": 4 * _OURS},
    )
    if loaded:
        pipeline.produce(80)
        pipeline.ran()
        pipeline.produce(400)
        pipeline.settings["limits"] = {"max_records_per_plan": 4 * (_OURS - 20)}
    else:
        pipeline.produce(480)
    hold = Hold(pipeline.folder / "marks", 0)
    with Driver(pipeline, hold=hold) as driver:
        driver.wait_for("a task with its first rows", lambda: bool(hold.workers()))
        set_offset(pipeline, _PARTITION, to)
        hold.release()
        stopped(
            driver.wait(),
            5,
            "Another client moved the committed offset during the run",
            "the rows are in the table",
        )
    pipeline.settings.pop("limits")
    after = held(pipeline)
    return _decided(stage, pipeline, pipeline.run(), after, follows)


def _decided(
    stage: Stage, pipeline: Pipeline, result: CommandResult, after: str, follows: bool
) -> CaseResult:
    if follows:
        stopped(result, 0, "offset_changed", "ingested")
        expected = pipeline.in_topic() - between(pipeline.in_topic(), _PARTITION, _OURS, _LARGER)
        reported = stage.finish(pipeline, after=after, next_run=result, expected=expected)
        assert let_go(pipeline) == [(_PARTITION, _OURS, _LARGER, "offset_changed")], let_go(
            pipeline
        )
        return reported
    stopped(result, 5, "Another client", f"Set it back to {_OURS}")
    set_offset(pipeline, _PARTITION, _OURS)  # the advice of the error
    pipeline.ran()
    return stage.finish(pipeline, after=after, next_run=result)


_STOPS = "the next run stops, and the offset is set back by hand"

CASES: tuple[Case, ...] = (
    Case(
        14,
        "offset-moved-on-and-refused",
        f"an offset moved to a larger value between two runs, on_offset_changed: fail; {_STOPS}",
        partial(moved_between, to=_LARGER, on_offset_changed="fail"),
    ),
    Case(
        14,
        "offset-moved-on-and-followed",
        "an offset moved to a larger value between two runs, on_offset_changed: follow; 20 "
        "offsets are let go",
        partial(moved_between, to=_LARGER, on_offset_changed="follow", follows=True),
        short=True,
    ),
    Case(
        14,
        "offset-moved-back-and-refused",
        f"an offset moved to a smaller value between two runs, on_offset_changed: fail; {_STOPS}",
        partial(moved_between, to=_SMALLER, on_offset_changed="fail"),
    ),
    Case(
        14,
        "offset-moved-back-is-never-followed",
        f"the same with on_offset_changed: follow; {_STOPS}",
        partial(moved_between, to=_SMALLER, on_offset_changed="follow"),
    ),
    Case(
        14,
        "offset-deleted",
        f"the znode of an offset deleted between two runs, on_offset_changed: follow; {_STOPS}",
        partial(moved_between, to=None, on_offset_changed="follow"),
    ),
    Case(
        14,
        "old-consumer-commits-ahead-during-a-run",
        f"an old consumer commits a larger offset as files are written, `fail`; {_STOPS}",
        partial(moved_during, to=_LARGER, on_offset_changed="fail"),
    ),
    Case(
        14,
        "old-consumer-commits-ahead-and-is-followed",
        "the same with on_offset_changed: follow; 20 offsets are let go",
        partial(moved_during, to=_LARGER, on_offset_changed="follow", follows=True, loaded=True),
    ),
    Case(
        14,
        "old-consumer-commits-behind-during-a-run",
        f"an old consumer commits a smaller offset while files are written; {_STOPS}",
        partial(moved_during, to=_SMALLER, on_offset_changed="follow"),
    ),
    Case(
        14,
        "old-consumer-commits-behind-during-a-later-run",
        "the same where the table holds a plan already",
        partial(moved_during, to=_SMALLER, on_offset_changed="fail", loaded=True),
    ),
)
