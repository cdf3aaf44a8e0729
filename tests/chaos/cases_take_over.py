"""Row 26: a pipeline takes another one's place in its table, or its table is another one by now,
and the run that does it is killed.
"""

from __future__ import annotations

import shutil
import signal
from functools import partial

import pyarrow
from deltalake import DeltaTable, write_deltalake

from etl.cli import main
from etl.model.columns import arrow_schema
from tests.chaos.driver import Driver
from tests.chaos.sources import stopped
from tests.chaos.stage import Case, CaseResult, Stage, checked, held, summary_of
from tests.system.driving import Pipeline


def _killed_at(pipeline: Pipeline, verb: str) -> None:
    with Driver(pipeline, sends=(signal.SIGKILL, verb)) as driver:
        result = driver.wait()
    assert result.code == -signal.SIGKILL, f"{summary_of(result)}\n{result.err}"


def taken_over(stage: Stage, *, verb: str) -> CaseResult:
    """The group was renamed: the run stops, the operator lets it take the old one's place, and the
    run that does so is killed.
    """
    old = stage.pipeline()
    for _ in range(2):
        old.produce(120)
        old.ran()
    new = old.under("renamed")
    new.produce(80)
    stopped(
        new.run(),
        5,
        "has loaded this topic into this table",
        f"inherit CONF --predecessor {old.group}/clicks",
    )
    assert (
        main(
            [
                "pipelines",
                "inherit",
                str(new.conf),
                "--predecessor",
                f"{old.group}/clicks",
                "--reason",
                "renamed",
                "--yes",
            ]
        )
        == 0
    )
    _killed_at(new, verb)
    after = held(old)
    new.produce(40)
    next_run = new.ran()
    stopped(old.run(), 5)
    assert new.door("verify").code == 0
    return CaseResult(after, summary_of(next_run), checked(old))


def renamed_twice(stage: Stage, *, verb: str) -> CaseResult:
    """The group that took the old one's place is renamed, too: the third one takes over from it,
    and the run that does so is killed.
    """
    old = stage.pipeline()
    old.produce(120)
    old.ran()
    second, third = (old.under(name) for name in ("second", "third"))
    assert (
        main(
            [
                "pipelines",
                "inherit",
                str(second.conf),
                "--predecessor",
                f"{old.group}/clicks",
                "--reason",
                "renamed",
                "--yes",
            ]
        )
        == 0
    )
    second.produce(80)
    second.ran()
    stopped(third.run(), 5, "has loaded this topic into this table")
    assert (
        main(
            [
                "pipelines",
                "inherit",
                str(third.conf),
                "--predecessor",
                f"{second.group}/clicks",
                "--reason",
                "renamed again",
                "--yes",
            ]
        )
        == 0
    )
    third.produce(80)
    _killed_at(third, verb)
    after = held(old)
    third.produce(40)
    next_run = third.ran()
    for one in old, second:
        stopped(one.run(), 5)
    assert [one.door("verify").code for one in (third, second, old)] == [0, 0, 0]
    return CaseResult(after, summary_of(next_run), checked(old))


def old_copy(stage: Stage, *, verb: str) -> CaseResult:
    """An old copy of the table is restored and accepted; the next run is killed; the given-up rows
    stay away, and `verify` knows it.
    """
    pipeline = stage.pipeline()
    copy = pipeline.folder / "copy"
    for run in range(3):
        pipeline.produce(80)
        pipeline.ran()
        if not run:
            shutil.copytree(pipeline.table, copy)
    shutil.rmtree(pipeline.table)
    copy.rename(pipeline.table)
    before, there = pipeline.in_topic(), pipeline.in_table()
    stopped(pipeline.run(), 5, "now the table does not hold it", "table accept-changes")
    version = str(DeltaTable(str(pipeline.table)).version())
    assert (
        main(
            [
                "table",
                "accept-changes",
                str(pipeline.conf),
                version,
                "--reason",
                "all there is",
                "--yes",
            ]
        )
        == 0
    )
    pipeline.produce(80)
    _killed_at(pipeline, verb)
    after, next_run = held(pipeline), pipeline.ran()
    assert pipeline.door("verify").code == 0
    return CaseResult(
        after, summary_of(next_run), checked(pipeline, pipeline.in_topic() - before + there)
    )


def made_by_ddl(stage: Stage) -> CaseResult:
    """Plan 1 is stored, its run is killed, another writer creates the table; once that is accepted
    the table takes the records.
    """
    pipeline = stage.pipeline()
    pipeline.produce(120)
    _killed_at(pipeline, "fetch")
    DeltaTable.create(str(pipeline.table), arrow_schema())
    # and tries it with a row: of an empty table a run knows by itself that it lacks the plan
    write_deltalake(
        str(pipeline.table),
        pyarrow.Table.from_pylist([{"topic": "a try"}], schema=arrow_schema()),
        mode="append",
    )
    DeltaTable(str(pipeline.table)).delete()
    stopped(pipeline.run(), 5, "Plan 1 was made when there was no table", "table accept-changes")
    assert (
        main(
            [
                "table",
                "accept-changes",
                str(pipeline.conf),
                "2",
                "--reason",
                "made by hand",
                "--yes",
            ]
        )
        == 0
    )
    return stage.finish(pipeline, after=held(pipeline), next_run=pipeline.ran())


_RENAMED = "the group is renamed, takes the old one's place: SIGKILL "
_TWICE = "the group is renamed twice, each takes the place of the one before: SIGKILL "
_COPY = "an old copy of the table is put back and accepted: SIGKILL "

CASES: tuple[Case, ...] = (
    Case(
        26,
        "taken over, killed before the append",
        _RENAMED + "before its first commit",
        partial(taken_over, verb="append"),
    ),
    Case(
        26,
        "taken over, killed before the record",
        _RENAMED + "after its first commit",
        partial(taken_over, verb="record"),
    ),
    Case(
        26,
        "taken over, killed before the offsets",
        _RENAMED + "before the offsets are moved",
        partial(taken_over, verb="commit"),
    ),
    Case(
        26,
        "taken over twice, killed before the append",
        _TWICE + "before its first commit",
        partial(renamed_twice, verb="append"),
    ),
    Case(
        26,
        "taken over twice, killed before the record",
        _TWICE + "after its first commit",
        partial(renamed_twice, verb="record"),
    ),
    Case(
        26,
        "old copy, killed before the append",
        _COPY + "before the append",
        partial(old_copy, verb="append"),
    ),
    Case(
        26,
        "old copy, killed before the record",
        _COPY + "after the Delta commit",
        partial(old_copy, verb="record"),
    ),
    Case(
        26,
        "table made by hand",
        "a table is made by DDL after plan 1 was stored, and accepted",
        made_by_ddl,
    ),
)
