"""Row 32: a backfill is killed at each point, and ten times in a row, while the live pipeline runs
and a producer keeps writing.

The live pipeline began at the log ends. So only the backfill loads the offsets below its start, and
in the end each record of the topic is in the table once.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import time
from collections import Counter

from tests.chaos.driver import Driver, kill_before
from tests.chaos.stage import CaseResult, Stage, commits, ended, held, summary_of
from tests.system.driving import Pipeline

PARTITIONS, RECORDS, PLANS = 4, 400, 10
KILLS = 10
_MANY_RECORDS, _PLANS_BEYOND_THE_KILLS = 3200, 80
"""So many plans that they last longer than the kills."""
NAME = "old"
_MANY = 20
"""From this number of equal outcomes in a row on they are not listed one by one."""


def door_of(records: int) -> tuple[str, ...]:
    """The words of the command, for so many records in all partitions together."""
    return "backfills run", NAME, "--from", "0", "--until", str(records // PARTITIONS), "--yes"


def at_verb(stage: Stage, *, verb: str) -> CaseResult:
    """Killed before a verb of its plan; the pipeline runs, and the same command ends it."""
    pipeline = begun_late(stage.pipeline(PARTITIONS), RECORDS)
    with stage.writing(pipeline) as writer:
        writer.wait_for(20)
        after = kill_before(pipeline, verb, *door_of(RECORDS))
        next_run = pipeline.ran()
        ended(pipeline.door("verify"), 0)
    with Driver(pipeline, door=door_of(RECORDS)) as driver:
        last = ended(driver.wait(), 0)
    ended(pipeline.door("verify"), 0)
    del pipeline.settings["limits"]  # they were there to make the backfill one of many plans
    return stage.finish(
        pipeline, after, f"{summary_of(next_run)}; the backfill: {summary_of(last)}"
    )


def many_times(stage: Stage) -> CaseResult:
    """Killed with its JVM and workers at ten random moments; no range is fetched twice else."""
    pipeline = begun_late(stage.pipeline(PARTITIONS), _MANY_RECORDS, plans=_PLANS_BEYOND_THE_KILLS)
    found, last = killed_at_random(
        pipeline, _MANY_RECORDS, KILLS, least_s=0.0, most_s=2.0, each_loads_some=True
    )
    assert found["killed"] == KILLS, f"it was whole before the last kill: {found}"
    ended(pipeline.door("verify"), 0)
    reported = (
        f"{', '.join(f'{count} {how}' for how, count in sorted(found.items()))}; the last: {last}"
    )
    return stage.finish(pipeline, after=held(pipeline), next_run=reported)


def begun_late(
    pipeline: Pipeline, records: int, *, plans: int = PLANS, is_there: bool = False
) -> Pipeline:
    """A pipeline that began after these records, which are left for this number of plans."""
    pipeline.settings["source"] = {
        **pipeline.settings.get("source", {}),
        "starting_offsets": "latest",
    }
    pipeline.settings["limits"] = {"max_records_per_plan": records // plans}
    if not is_there:
        pipeline.produce(records, partitions=PARTITIONS)
    pipeline.ran()
    return pipeline


def killed_at_random(
    pipeline: Pipeline,
    records: int,
    kills: int,
    *,
    least_s: float = 2.0,
    most_s: float = 20.0,
    each_loads_some: bool = False,
) -> tuple[Counter[str], str]:
    """Describe the kills and the last run. Raises AssertionError if a range was fetched again
    without a kill.

    `each_loads_some`: the moments are counted from a run's first commit on, and the last run loads
    the rest at once. So kills hit the work and the case ends, at any speed of the machine.
    """
    chance, found, begun = random.Random(11), Counter[str](), list[list[int]]()
    door = (*door_of(records), "--log-format", "json")
    for _ in range(kills):
        with Driver(pipeline, door=door) as driver:
            if each_loads_some:
                there = commits(pipeline)
                driver.wait_for("its first plan", lambda: commits(pipeline) > there)
            time.sleep(
                chance.uniform(least_s, most_s)
            )  # the moment of a kill is the case itself; nothing waits for anything
            is_killed = driver.process.poll() is None
            result = driver.killed() if is_killed else driver.wait()
        begun.append(plans_begun(result.err))
        found["killed" if is_killed else "ended before"] += 1
    if each_loads_some:
        del pipeline.settings["limits"]
    with Driver(pipeline, door=door) as driver:
        last = ended(driver.wait(), 0)
    begun.append(plans_begun(last.err))
    for number, some in enumerate(begun):
        later = {plan for others in begun[number + 1 :] for plan in others}
        assert not later & set(some[:-1]), (
            f"a plan that was in the table was fetched again: {begun}"
        )
    found["plans"] = len({plan for some in begun for plan in some})
    found["fetches"] = sum(map(len, begun))
    return found, _without_repeats(summary_of(last))


def _without_repeats(outcomes: str) -> str:
    """The same with an outcome that comes many times in a row named once."""
    runs = ((one, sum(1 for _ in same)) for one, same in itertools.groupby(outcomes.split(", ")))
    return ", ".join(
        f"{one} ({times} times)" if times > _MANY else ", ".join([one] * times)
        for one, times in runs
    )


def plans_begun(lines: str) -> list[int]:
    """The plans that a run began to fetch, in order, by its log, which a kill may have cut."""
    found = []
    for line in lines.splitlines():
        with contextlib.suppress(ValueError):
            reported = json.loads(line)
            if reported.get("message") == "fetch begins":
                found.append(reported["plan"])
    return found
