"""The pipelines of one group: which there are, and which of them an operator takes out of service.

Two pipelines of one group may not read one topic, for the offsets are the group's. Where two do, one of them is retired: it keeps its
ledger and its table and loads no more.
"""

from __future__ import annotations

import re
from typing import Any

from etl.commands.operator import Ruling
from etl.commands.run import new_run_id
from etl.decisions.refusals import refuse_shared_topics
from etl.edges.zookeeper.ledger import PlanLedger
from etl.errors import SettingsError
from etl.model.ledger import Retirement
from etl.report.words import at
from etl.run.context import ALONE, now_ms
from etl.run.live_world import LiveWorld
from etl.run.wiring import open_world
from etl.settings.sections import NAME, Settings


def list_pipelines(settings: Settings) -> list[dict[str, Any]]:
    """The group's pipelines by name, with the newest plan's number, the topics it knows, and why one is retired."""
    with open_world(settings, ALONE) as world:
        return [_described(world.ledger.beside(name)) for name in world.ledger.pipelines()]


def retire(settings: Settings, name: str | None, reason: str) -> Ruling:
    """Take a pipeline of the group out of service. Raises SettingsError where it made no plan or is retired, Owned while it runs."""
    chosen = _named(settings, name)
    with open_world(chosen, ALONE) as world:
        _refuse_unknown(world)
        with world.driving(new_run_id()):
            before = world.ledger.read_retirement()
            if before:
                raise SettingsError(f"pipeline {chosen.pipeline} is retired already: {before.reason}", check="`etl pipelines list CONF`")
            retirement = Retirement(reason, now_ms())
            world.ledger.retire(retirement)
            left = sorted(world.ledger.topics())
    says = f"pipeline {chosen.pipeline} loads no more, and other pipelines of the group may read {', '.join(left)}: {reason}"
    return Ruling(says, {"says": says, "pipeline": chosen.pipeline, "retired_at": at(retirement.at_ms), "reason": reason, "topics": left})


def resume(settings: Settings, name: str | None, reason: str) -> Ruling:
    """Take it into service again. Raises SettingsError where it is not retired, or another pipeline reads one of its topics by now."""
    chosen = _named(settings, name)
    with open_world(chosen, ALONE) as world:
        _refuse_unknown(world)
        with world.driving(new_run_id()):
            before = world.ledger.read_retirement()
            if not before:
                raise SettingsError(f"pipeline {chosen.pipeline} is not retired", check="`etl pipelines list CONF`")
            if before.taken_over_by:
                what = f"pipeline {chosen.pipeline} was taken over by {before.taken_over_by}, which went on from its positions"
                check = f"that one; to go on with this one instead: `etl plans take-over CONF --from {before.taken_over_by} --reason ...`"
                raise SettingsError(what, check=check)
            version, topics = world.ledger.pipelines_version(), sorted(world.ledger.topics())
            refuse_shared_topics(topics, world.ledger.other_pipelines(), has_plans=True)
            world.ledger.resume(beside=version or 0)
    says = f"pipeline {chosen.pipeline} is in service again and goes on from its own positions: {reason}"
    return Ruling(says, {"says": says, "pipeline": chosen.pipeline, "reason": reason, "topics": topics, "was_retired": before.reason})


def _named(settings: Settings, name: str | None) -> Settings:
    if name and not re.fullmatch(NAME, name):
        raise SettingsError(f"{name!r} is no pipeline's name", check="`etl pipelines list CONF`")
    return settings.model_copy(update={"pipeline": name}) if name else settings


def _refuse_unknown(world: LiveWorld) -> None:
    """Refuse a name that no pipeline has, before anything is made for it. Raises SettingsError."""
    if not world.ledger.plan_numbers():
        there = ", ".join(world.ledger.pipelines()) or "none"
        what = f"the group has no pipeline {world.settings.pipeline} that made a plan; its pipelines: {there}"
        raise SettingsError(what, check="the name, and `etl pipelines list CONF`")


def _described(ledger: PlanLedger) -> dict[str, Any]:
    retirement = ledger.read_retirement()
    return {
        "pipeline": ledger.pipeline, "newest_plan": max(ledger.plan_numbers(), default=None), "topics": sorted(ledger.topics()),
        "retired": retirement.reason if retirement else None, "retired_at": at(retirement.at_ms) if retirement else None}
