"""Rows 26, 27 and 42: a pipeline takes another one's place in its table, alone or while a driver of
the other one sleeps with a stored plan, and commands and runs that do it are killed; and two
pipelines of one group that start on one topic at the same moment.
"""

from __future__ import annotations

import shutil
import signal
from dataclasses import replace

import pyarrow
from deltalake import DeltaTable, write_deltalake

from etl.model.columns import arrow_schema
from etl.testkit.server_process import wait_until
from tests.chaos.cases_kill import held_pipeline
from tests.chaos.driver import Driver, amid_its_files, kill_before, kill_command, owned
from tests.chaos.scenes import prepare
from tests.chaos.stage import (
    REASON,
    CaseResult,
    Stage,
    accept_table,
    case_result,
    checked,
    ended,
    held,
    inherit,
    stopped,
    summary_of,
)
from tests.chaos.ways import short_session, sleeping, wait_for_no_driver
from tests.system.driving import Pipeline

_OUT_OF_SERVICE = (4, 5, 6)
"""Exit codes of a woken driver: another one came first, or its pipeline is out of service."""


# -- row 26: a pipeline inherits another one, or another table is accepted


def inherited(stage: Stage, *, verb: str, names: tuple[str, ...] = ("renamed",)) -> CaseResult:
    """The group was renamed, once or again; the last run that inherits is killed."""
    lives = [stage.pipeline()]
    lives[0].produce(240)
    lives[0].ran()
    heirs = [lives[0].under(name) for name in names]
    for number, heir in enumerate(heirs, start=1):
        before = lives[-1]
        heir.produce(80)
        advice = f"inherit CONF --predecessor {before.group}/clicks" if number == 1 else ""
        stopped(heir.run(), 5, "has loaded this topic into this table", advice)
        inherit(heir, before)
        if number < len(heirs):
            heir.ran()
        lives.append(heir)
    heir, *older = reversed(lives)
    kill_before(heir, verb)
    after = held(lives[0])
    heir.produce(40)
    next_run = heir.ran()
    for one in older:
        stopped(one.run(), 5)
    for one in lives:
        ended(one.door("verify"), 0)
    return case_result(after, next_run, checked(lives[0]))


def old_copy(stage: Stage, *, verb: str) -> CaseResult:
    """An old copy of the table is restored and accepted; the next run is killed."""
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
    accept_table(pipeline)
    pipeline.produce(80)
    after = kill_before(pipeline, verb)
    next_run = pipeline.ran()
    ended(pipeline.door("verify"), 0)
    return case_result(after, next_run, checked(pipeline, pipeline.in_topic() - before + there))


def made_by_ddl(stage: Stage) -> CaseResult:
    """Plan 1 is stored, its run is killed, another writer creates the table."""
    pipeline = stage.pipeline()
    pipeline.produce(120)
    kill_before(pipeline, "fetch")
    DeltaTable.create(str(pipeline.table), arrow_schema())
    # and tries it with a row: of an empty table a run knows by itself that it lacks the plan
    row = pyarrow.Table.from_pylist([{"topic": "a try"}], schema=arrow_schema())
    write_deltalake(str(pipeline.table), row, mode="append")
    DeltaTable(str(pipeline.table)).delete()
    stopped(pipeline.run(), 5, "Plan 1 was made when there was no table", "table accept-changes")
    accept_table(pipeline)
    return stage.finish(pipeline, held(pipeline), pipeline.ran())


# -- row 42: an heir while a driver sleeps


def inherited_under_a_sleeper(
    stage: Stage, *, verb: str, loaded: bool = True, dies_at: str = ""
) -> CaseResult:
    """Paused before a verb until another pipeline has loaded the same offsets."""
    old = stage.pipeline()
    prepare(old, loaded=True)
    if loaded:
        old.ran()
        old.produce(400)
    with sleeping(old, verb) as zombie:
        return _overtaken_by_an_heir(old, zombie, dies_at)


def inherited_while_writing(stage: Stage) -> CaseResult:
    """The same, with half of the files written, and the workers paused, too."""
    old = held_pipeline(stage, loaded=True)
    files = stage.writes.tasks // 2
    with (
        short_session(old),
        amid_its_files(stage, old, files, producing=False) as (zombie, hold),
    ):
        zombie.pause_all()
        hold.release()
        return _overtaken_by_an_heir(old, zombie)


def retired_under_a_sleeper(stage: Stage, *, first_plan: bool, dies_at: str = "") -> CaseResult:
    """Its pipeline is retired, and another one of the group loads the topic."""
    old = stage.pipeline()
    if first_plan:  # the table exists, created by a pipeline with another topic, which is empty
        stranger = old.under("stranger", topic=f"{old.topic}-other", produced=0)
        stranger.settings = {**old.settings, **stranger.settings}
        stranger.traffic.create_topic(
            stage.cluster, stranger.topic, 4, replication_factor=1, config=None
        )
        stranger.ran()
    prepare(old, loaded=not first_plan)
    with sleeping(old, "append") as zombie:
        wait_for_no_driver(old)
        old.settings.pop("zookeeper", None)
        after = held(old)
        words = ("pipelines", "retire", str(old.conf), "--reason", "moved")
        if dies_at:
            kill_command(old, dies_at, *words)
        ended(old.door(*words[:2], after=words[3:], json_too=False), 0)
        heir = old.under("heir")
        heir.group = old.group
        heir.settings = {**old.settings, **heir.settings, "pipeline": "heir"}
        if not first_plan:
            inherit(heir, old)
        return _woken(old, heir, zombie, after)


def _overtaken_by_an_heir(old: Pipeline, zombie: Driver, dies_at: str = "") -> CaseResult:
    """Another pipeline takes the place of one whose driver sleeps."""
    wait_for_no_driver(old)
    old.settings.pop("zookeeper", None)
    heir = old.under("renamed")
    heir.settings = {**old.settings, **heir.settings}
    after = held(old)
    if dies_at:
        words = ("--predecessor", f"{old.group}/clicks", *REASON)
        kill_command(heir, dies_at, "pipelines", "inherit", str(heir.conf), *words)
    inherit(heir, old)
    return _woken(old, heir, zombie, after)


def _woken(old: Pipeline, heir: Pipeline, zombie: Driver, after: str) -> CaseResult:
    """The heir loads, the sleeper wakes up; each record is there once, and proven."""
    heir.ran()
    zombie.wake_all()
    woken = ended(zombie.wait(), *_OUT_OF_SERVICE)
    next_run = heir.ran()
    ended(heir.door("verify"), 0)
    message = f"the heir: {summary_of(next_run)}; the woken one: {summary_of(woken)}"
    return CaseResult(after, message, checked(old))


# -- row 27: two pipelines of one group on one topic


def paused_before_its_plan(stage: Stage) -> CaseResult:
    """One found itself alone and is paused; the other one loads; then the first wakes up."""
    loading, late = _two_pipelines(stage)
    with Driver(late, sends=(signal.SIGSTOP, "store")) as driver:
        driver.wait_until_paused()
        loading.ran()
        after = held(loading)
        driver.wake_all()
        woken = ended(driver.wait(), 4)
    refused = ended(late.run(), 2)
    assert held(late) == "nothing", refused.err
    loading.produce(400)
    message = (
        f"the one that won: {summary_of(loading.ran())}; the woken one: {summary_of(woken)}, "
        f"then exit {refused.code}"
    )
    return CaseResult(after, message, checked(loading))


def killed_behind_its_plan(stage: Stage) -> CaseResult:
    """The one that won is killed with its stored plan; an operator retires it."""
    killed, other = _two_pipelines(stage)
    after = kill_before(killed, "fetch")
    refused = ended(other.run(), 2)
    words = ("clicks", "--reason", "the other one goes on")
    ended(other.door("pipelines", "retire", after=words), 0)
    assert wait_until(lambda: not owned(other), 60), "the session does not end"
    message = (
        f"the other one: exit {refused.code}; when the killed one is retired: "
        f"{summary_of(other.ran())}"
    )
    late = ended(killed.run(), 5)
    assert held(killed) == "nothing", late.err
    return CaseResult(after, f"{message}; the retired one: exit {late.code}", checked(other))


def _two_pipelines(stage: Stage) -> tuple[Pipeline, Pipeline]:
    """Of one group, on one topic with records, each with a table of its own."""
    one = stage.pipeline()
    one.produce(400)
    other = replace(one, folder=one.folder / "other", settings={"pipeline": "other"})
    other.folder.mkdir()
    return one, other
