"""Row 31: a replay is killed at each point, and twenty times in a row, while a producer keeps
writing.

The pipeline has loaded its topic, and its conf gets a transform that marks each row. So each row
shows if it is the old one or the new one, and the check is sharper than that of other cases:
outside of the interval no row is marked, and inside all are or none is, wherever it was killed; in
the end all are.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from tests.chaos.driver import Driver, killed_before
from tests.chaos.stage import CaseResult, Stage, ended, held, summary_of
from tests.system.driving import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MARK = 7
"""A `timestampType` that no record has."""
FROM, UNTIL, PARTITIONS = 20, 80, 4
LOADED = 240
"""Records of each of the two plans: batches of 20, as many in each partition."""
KILLS = 20
_DOOR = ("replay", "--from", str(FROM), "--until", str(UNTIL), "--reason", "a test", "--yes")


def marked(rows: DataFrame) -> DataFrame:
    """A transform that changes nothing but a mark on each row."""
    from pyspark.sql import functions

    return rows.withColumn("timestampType", functions.lit(MARK))


def at_verb(stage: Stage, *, verb: str, is_done: bool) -> CaseResult:
    """Killed before a verb; `is_done`: the next run replaces the rows by the stored plan."""
    pipeline = _loaded(stage)
    with stage.writing(pipeline) as writer:
        writer.wait_for(20)
        with killed_before(pipeline, verb, *_door(pipeline)):
            after = held(pipeline)
            _are_all_or_none(pipeline)
            next_run = pipeline.ran()
    assert _are_all_or_none(pipeline) is is_done, f"killed before {verb}"
    return stage.finish(pipeline, after, next_run)


def many_times(stage: Stage) -> CaseResult:
    """Killed with its JVM and workers at twenty moments spread over its way."""
    pipeline = _loaded(stage)
    with Driver(pipeline, door=_door(pipeline)) as driver:
        began = time.monotonic()
        ended(driver.wait(), 0)
        whole_s = time.monotonic() - began
    found = Counter[str]()
    for kill in range(KILLS):
        moment_s = whole_s * (kill + 0.5) / KILLS
        while not _is_killed(pipeline, moment_s):
            found["ended before"] += 1
            moment_s *= 0.9
        found["killed"] += 1
    after = held(pipeline)
    with Driver(pipeline, door=_door(pipeline)) as driver:
        last = ended(driver.wait(), 0)
    assert _are_all_or_none(pipeline) is True
    ended(pipeline.door("verify"), 0)
    reported = (
        f"{', '.join(f'{count} {how}' for how, count in sorted(found.items()))}; the last: "
        f"{summary_of(last)}"
    )
    return stage.finish(pipeline, after, reported)


def _is_killed(pipeline: Pipeline, moment_s: float) -> bool:
    """True if a replay was still running then, and was killed; the table is checked in either case."""
    with Driver(pipeline, door=_door(pipeline)) as driver:
        time.sleep(moment_s)  # the moment of a kill is the case itself; nothing waits for anything
        is_at_work = driver.process.poll() is None
        if is_at_work:
            driver.kill_all()
    _are_all_or_none(pipeline)
    return is_at_work


def _loaded(stage: Stage) -> Pipeline:
    """Loaded by two plans, which the interval crosses; from now on rows are marked."""
    pipeline = stage.pipeline(PARTITIONS)
    for _ in range(2):
        pipeline.produce(LOADED)
        pipeline.ran()
    pipeline.settings["transform"] = f"{__name__}:marked"
    return pipeline


def _door(pipeline: Pipeline) -> tuple[str, ...]:
    return (_DOOR[0], "--partition", pipeline.topic, *_DOOR[1:])


def _are_all_or_none(pipeline: Pipeline) -> bool:
    """True if the interval's rows are the new ones. Raises AssertionError if only some are."""
    rows = (
        DeltaTable(str(pipeline.table))
        .to_pyarrow_table(columns=["partition", "offset", "timestampType"])
        .to_pylist()
    )
    first = [
        row for row in rows if row["offset"] < 2 * LOADED // PARTITIONS
    ]  # rows that were loaded before rows were marked
    places = Counter((row["partition"], row["offset"]) for row in first)
    assert len(places) == 2 * LOADED and max(places.values()) == 1, (
        f"{len(places)} places, {places.most_common(1)}"
    )
    new = {(row["partition"], row["offset"]) for row in first if row["timestampType"] == MARK}
    interval = {
        (partition, offset) for partition in range(PARTITIONS) for offset in range(FROM, UNTIL)
    }
    assert new in (set(), interval), (
        f"{len(new)} rows are new, {len(new - interval)} of them outside of the interval"
    )
    return bool(new)
