"""Which pipelines does a group have, and which are retired?

Two pipelines of one group cannot read one topic, because offsets belong to the group: one is
retired, keeps its ledger and table, and loads no more. `etl ledger apply-acl` applies the conf's
ACL to existing znodes.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

from etl.commands.backfill import backfills_of_pipeline, reject_unfinished
from etl.commands.operator_decisions import Ruling
from etl.commands.run import new_run_id
from etl.decide.group_ownership import reject_retiring_unfinished
from etl.decide.reconcile import reject_shared_topics
from etl.errors import Owned, SettingsError
from etl.io.delta.table import open_table
from etl.io.zookeeper.connection import describe_identity
from etl.io.zookeeper.ledger import DriverLock, PlanLedger
from etl.io.zookeeper.ledger_records import read_pauses
from etl.io.zookeeper.permissions import apply_acls, kept_by
from etl.ledger.paths import PipelinePaths
from etl.ledger.registrations import DriverNode
from etl.model.security import Acl
from etl.model.snapshot import Ledger, Retirement
from etl.report.describe import at
from etl.report.lag import described_pause
from etl.run.close_plan import close_stored_plan
from etl.run.live import LiveServices
from etl.run.services import ALONE, now_ms
from etl.run.shell import open_services
from etl.settings.secrets import NAME
from etl.settings.sections import Settings


class State(str, Enum):
    """State of a pipeline."""

    AT_WORK = "at work"
    """A driver holds its lock now."""
    STORED = "a plan is stored"
    """The result of its newest plan is not recorded: the next run executes or records it."""
    UP_TO_DATE = "up to date"
    """Its newest plan is recorded, and no driver is active."""
    RETIRED = "retired"
    TAKEN_OVER = "taken over"
    NO_PLAN = "no plan yet"


def list_pipelines(settings: Settings, *, shows_all: bool = False) -> list[dict[str, Any]]:
    """Return the group's pipelines by name; `shows_all`: of all groups in this ZooKeeper.

    Each with state, newest plan and its age, driver, topics and table (its id; its path if it is
    the conf's). Brokers are not asked.
    """
    with open_services(settings, ALONE) as services:
        here, zookeeper = open_table(settings.table.path), services.zookeeper
        table_id = None if here is None else str(here.metadata().id)
        groups = services.ledger.groups() if shows_all else [settings.group.id]
        ledgers = [
            PlanLedger(zookeeper, group, name)
            for group in groups
            for name in PlanLedger(zookeeper, group, "").pipelines()
        ]
        drivers = {
            ledger.paths: DriverLock(zookeeper, ledger.paths.group, ledger.pipeline).driver()
            for ledger in ledgers
        }
        return [
            _described(ledger, drivers[ledger.paths], settings.table.path, table_id, now_ms())
            for ledger in ledgers
        ]


def retire(settings: Settings, name: str | None, reason: str) -> Ruling:
    """Retire a pipeline of the group.

    A stored plan that is not in the table is closed there first, so that a sleeping driver cannot
    append it. Raises SettingsError if it has no plan or is retired, Owned while it runs,
    NeedsDecision while a backfill may still load or a committed plan is not executed,
    TableUnreachable if a plan cannot be closed.
    """
    chosen = _named(settings, name)
    with open_services(chosen, ALONE) as services:
        _reject_unknown(services)
        with services.driving(new_run_id()):
            before = services.ledger.read_retirement()
            if before:
                raise SettingsError(
                    f"Pipeline {chosen.pipeline} is retired already: {before.reason}",
                    action="Check with `etl pipelines list CONF`",
                )
            reject_unfinished(services.ledger)
            reject_retiring_unfinished(
                chosen.pipeline,
                services.ledger.read_ledger(),
                lambda plan: services.offsets.committed(plan.offsets_to_commit, behind=plan),
            )
            left = sorted(services.ledger.topics())
            closed = close_stored_plan(services, f"pipeline retired: {reason}")
            retirement = Retirement(reason, now_ms())
            services.ledger.retire(retirement)
    sentence = f"pipeline {chosen.pipeline} loads no more, and other pipelines of the group may read {', '.join(left)}: {reason}"
    if closed:
        sentence += f". Its stored plan {closed.number} was closed in the table, so no driver can append it any more"
    return Ruling(
        sentence,
        {
            "message": sentence,
            "pipeline": chosen.pipeline,
            "retired_at": at(retirement.at_ms),
            "reason": reason,
            "topics": left,
            "closed_plan": closed.number if closed else None,
        },
    )


def resume(settings: Settings, name: str | None, reason: str) -> Ruling:
    """Take it into service again. Raises SettingsError where it is not retired, or another pipeline
    reads one of its topics by now.
    """
    chosen = _named(settings, name)
    with open_services(chosen, ALONE) as services:
        _reject_unknown(services)
        with services.driving(new_run_id()):
            before = services.ledger.read_retirement()
            if not before:
                raise SettingsError(
                    f"Pipeline {chosen.pipeline} is not retired",
                    action="Check with `etl pipelines list CONF`",
                )
            if before.taken_over_by:
                message = f"Pipeline {chosen.pipeline} was taken over by {before.taken_over_by}, which went on from its positions"
                action = f"Check that one; to continue with this one instead: `etl pipelines inherit CONF --predecessor {before.taken_over_by} --reason ...`"
                raise SettingsError(message, action=action)
            version, topics = services.ledger.pipelines_version(), sorted(services.ledger.topics())
            reject_shared_topics(topics, services.ledger.other_pipelines(), has_plans=True)
            services.ledger.resume(beside=version or 0)
    sentence = f"pipeline {chosen.pipeline} is in service again and goes on from its own positions: {reason}"
    return Ruling(
        sentence,
        {
            "message": sentence,
            "pipeline": chosen.pipeline,
            "reason": reason,
            "topics": topics,
            "was_retired": before.reason,
        },
    )


def _named(settings: Settings, name: str | None) -> Settings:
    if name and not re.fullmatch(NAME, name):
        raise SettingsError(
            f"{name!r} is no pipeline's name", action="Check with `etl pipelines list CONF`"
        )
    return settings.model_copy(update={"pipeline": name}) if name else settings


def _reject_unknown(services: LiveServices) -> None:
    """Reject an unknown name before creating anything for it. Raises SettingsError."""
    if not services.ledger.plan_numbers():
        there = ", ".join(services.ledger.pipelines()) or "none"
        message = f"The group has no pipeline {services.settings.pipeline} that made a plan; its pipelines: {there}"
        raise SettingsError(message, action="Check the name, and `etl pipelines list CONF`")


def _described(
    ledger: PlanLedger,
    driver: DriverNode | None,
    table_path: str,
    table_id: str | None,
    now: int,
) -> dict[str, Any]:
    found, retirement = ledger.read_ledger(), ledger.read_retirement()
    plan = found.newest
    theirs = found.applied.table_id if found.applied else plan.table_id if plan else None
    return {
        "group": ledger.paths.group,
        "pipeline": ledger.pipeline,
        "state": _state_of(found, retirement, driver).value,
        "newest_plan": plan.number if plan else None,
        "kind": plan.kind.value if plan else None,
        "planned_at": at(plan.created_at_ms) if plan else None,
        "age_s": max(0, now - plan.created_at_ms) / 1000 if plan else None,
        "driver": str(driver) if driver else None,
        "topics": sorted(ledger.topics()),
        "table_id": theirs,
        "table": table_path if theirs and theirs == table_id else None,
        "backfills": [
            {"name": one["name"], "state": one["state"]} for one in backfills_of_pipeline(ledger)
        ],
        "paused": [described_pause(one) for one in read_pauses(ledger)],
        "retired": retirement.reason if retirement else None,
        "retired_at": at(retirement.at_ms) if retirement else None,
    }


def _state_of(ledger: Ledger, retirement: Retirement | None, driver: DriverNode | None) -> State:
    if driver:
        return State.AT_WORK
    if retirement:
        return State.TAKEN_OVER if retirement.taken_over_by else State.RETIRED
    if ledger.newest is None:
        return State.NO_PLAN
    return State.UP_TO_DATE if ledger.applied else State.STORED


def set_acl(settings: Settings) -> Ruling:
    """Have the znodes of the pipeline and of its backfills changed by those alone whom
    `zookeeper.acl` names.

    Raises SettingsError where there is no such pipeline, Owned while a run is at work, of the
    pipeline or of a backfill, PermissionDenied where this login may not: it takes the one that may
    change them now.
    """
    access = settings.zookeeper.access
    with open_services(settings, ALONE) as services:
        if not kept_by(services.zookeeper, settings.group.id, settings.pipeline):
            message = f"The group has no pipeline {settings.pipeline}: what its first run makes, it makes as zookeeper.acl says"
            raise SettingsError(message, action="Check with `etl pipelines list CONF`")
        with services.driving(new_run_id()):
            kept, own = (
                kept_by(services.zookeeper, settings.group.id, settings.pipeline),
                PipelinePaths(settings.group.id, settings.pipeline).driver,
            )
            if at_work := next(
                (path for path in kept if path.endswith("/driver") and path != own), None
            ):
                raise Owned(
                    "A backfill of the pipeline is at work",
                    znode=at_work,
                    action="Run this command again when it has ended",
                )
            changed = apply_acls(services.zookeeper, kept)
    who = "everybody" if access.acl is Acl.OPEN else f"{describe_identity(access)}, alone"
    sentence = f"the {changed:,} znodes of pipeline {settings.pipeline} can be changed by {who}, and read by everybody"
    return Ruling(
        sentence,
        {
            "message": sentence,
            "pipeline": settings.pipeline,
            "acl": access.acl.value,
            "znodes": changed,
        },
    )
