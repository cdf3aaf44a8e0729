"""Two pipelines of one group that start on one topic at the same moment. One has it, and an
operator may take it out of service.

Row 27, as `cases_recount`.
"""

from __future__ import annotations

import signal
from dataclasses import replace

from etl.testkit.server_process import wait_until
from tests.chaos.driver import Driver
from tests.chaos.stage import Case, CaseResult, Stage, checked, held, summary_of
from tests.command_result import CommandResult
from tests.system.driving import Pipeline


def paused_before_its_plan(stage: Stage) -> CaseResult:
    """One has looked and found itself alone, and is paused; the other one loads; then the first
    wakes up.
    """
    loading, late = two_pipelines(stage)
    with Driver(late, sends=(signal.SIGSTOP, "store")) as driver:
        driver.wait_until_paused()
        first = loading.ran()
        after = held(loading)
        driver.wake_all()
        woken = driver.wait()
    assert woken.code == 4, f"{summary_of(woken)}\n{woken.err}"
    refused = late.run()
    assert refused.code == 2 and held(late) == "nothing", refused.err
    loading.produce(400)
    message = (
        f"the one that won: {summary_of(loading.ran())}; the woken one: {summary_of(woken)}, "
        f"then exit {refused.code}"
    )
    assert first.code == 0
    return CaseResult(after, message, checked(loading))


def killed_behind_its_plan(stage: Stage) -> CaseResult:
    """The one that won is killed when its plan is stored, and never comes back; the operator
    retires it and the other one loads.
    """
    killed, other = two_pipelines(stage)
    with Driver(killed, sends=(signal.SIGKILL, "fetch")) as driver:
        assert driver.wait().code == -signal.SIGKILL
    after = held(killed)
    refused = other.run()
    assert refused.code == 2, f"{summary_of(refused)}\n{refused.err}"
    assert retire(other, "clicks").code == 0
    wait_for_no_owner(other)
    message = (
        f"the other one: exit {refused.code}; when the killed one is retired: "
        f"{summary_of(other.ran())}"
    )
    late = killed.run()
    assert late.code == 5 and held(killed) == "nothing", f"{summary_of(late)}\n{late.err}"
    return CaseResult(after, f"{message}; the retired one: exit {late.code}", checked(other))


def two_pipelines(stage: Stage) -> tuple[Pipeline, Pipeline]:
    """Of one group, on one topic with records, each with a table of its own."""
    one = stage.pipeline()
    one.produce(400)
    other = replace(one, folder=one.folder / "other", settings={"pipeline": "other"})
    other.folder.mkdir()
    return one, other


def wait_for_no_owner(pipeline: Pipeline) -> None:
    """Until ZooKeeper has forgotten what the killed one had claimed."""
    with pipeline.zookeeper() as client:
        path = f"/consumers/{pipeline.group}/owners/{pipeline.topic}"
        assert wait_until(lambda: not client.exists(path) or not client.get_children(path), 60), (
            "the session does not end"
        )


def retire(pipeline: Pipeline, name: str) -> CommandResult:
    """What an operator does."""
    return pipeline.door("pipelines", "retire", after=(name, "--reason", "the other one goes on"))


CASES: tuple[Case, ...] = (
    Case(
        27,
        "two pipelines on one topic, one paused before its plan",
        "two pipelines of a group start on one topic: SIGSTOP before the plan of one is "
        "stored, the other one runs, SIGCONT",
        paused_before_its_plan,
    ),
    Case(
        27,
        "two pipelines on one topic, the winner killed for good",
        "two pipelines of a group start on one topic: SIGKILL when the plan of one is "
        "stored; it is retired, and the other one runs",
        killed_behind_its_plan,
    ),
)
