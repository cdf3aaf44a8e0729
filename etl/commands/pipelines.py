"""Which pipelines does a group have, and which are retired?

Two pipelines of one group cannot read one topic, because offsets belong to the group. So one of
them is retired: it keeps its ledger and table, and loads no more.

Lives here: `etl pipelines list`, `retire` and `resume`, and `etl ledger apply-acl`, which applies
the ACL of the conf to existing znodes.
Not here: inheriting a pipeline (inherit_pipeline.py).
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Any

from etl.commands.backfill import backfills_of_pipeline
from etl.commands.operator_decisions import DecisionResult
from etl.commands.run import new_run_id
from etl.decide.partition_owners import reject_retiring_unfinished
from etl.decide.reconcile import reject_shared_topics
from etl.errors import SettingsError
from etl.io.delta.table_shape import open_table
from etl.io.zookeeper.ledger import DriverLock, PlanLedger
from etl.io.zookeeper.ledger_side_documents import read_pauses
from etl.io.zookeeper.login_and_acl import describe_identity
from etl.io.zookeeper.permissions import apply_acls, kept_by
from etl.io.zookeeper.pipelines import (
    GroupPipelines,
    groups_with_pipelines,
    pipelines_beside,
)
from etl.ledger.owner_nodes import DriverNode
from etl.ledger.znode_paths import PipelinePaths
from etl.model.security import Acl
from etl.model.snapshot import Ledger, Retirement
from etl.report.describe import format_time
from etl.report.lag import pause_as_json
from etl.run.live_services import LiveServices
from etl.run.open_services import open_services
from etl.run.run_context import ALONE
from etl.run.service_interfaces import now_ms
from etl.run.void_plan_number import close_stored_plan
from etl.settings.secrets import NAME
from etl.settings.sections import Settings


class State(str, Enum):
    """State of a pipeline."""

    RUNNING = "running"
    """A driver holds its lock."""
    STORED = "a plan is stored"
    """The result of its newest plan is not recorded: the next run executes, records or replaces it.
    """
    UP_TO_DATE = "up to date"
    """Its newest plan is recorded, and no driver is active."""
    RETIRED = "retired"
    TAKEN_OVER = "taken over"
    NO_PLAN = "no plan yet"


def list_pipelines(settings: Settings, *, shows_all: bool = False) -> list[dict[str, Any]]:
    """Return the pipelines of the group, by name; `shows_all`: of all groups in this ZooKeeper.

    Each has state, newest plan and its age, driver, topics and table: its id, and the path if it is
    the table of the conf. Sends no request to brokers.
    """
    with open_services(settings, ALONE) as services:
        zookeeper = services.zookeeper
        table = open_table(settings.table.path)
        table_id = None if table is None else str(table.metadata().id)
        groups = groups_with_pipelines(zookeeper) if shows_all else [settings.group.id]
        ledgers = []
        for group in groups:
            pipelines_of_group = GroupPipelines(zookeeper, group)
            for name in pipelines_of_group.names():
                ledgers.append(pipelines_of_group.ledger_of(name))
        # All drivers are read first, so that the states are of about the same moment.
        drivers = {}
        for ledger in ledgers:
            lock = DriverLock(zookeeper, ledger.paths.group, ledger.pipeline)
            drivers[ledger.paths] = lock.driver()
        path = settings.table.path
        pipelines = []
        for ledger in ledgers:
            driver = drivers[ledger.paths]
            pipelines.append(_describe_pipeline(ledger, driver, path, table_id, now_ms()))
        return pipelines


def retire(settings: Settings, name: str | None, reason: str) -> DecisionResult:
    """Retire a pipeline of the group.

    A stored plan that is not in the table is closed there first, so that a sleeping driver cannot
    append it. Raises SettingsError if it has no plan or is retired, Owned while it runs,
    NeedsDecision while a committed plan is not executed,
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
            reject_retiring_unfinished(
                chosen.pipeline,
                services.ledger.read_ledger(),
                lambda plan: services.offsets.committed(plan.offsets_to_commit, after=plan),
            )
            left = sorted(services.ledger.topics())
            closed = close_stored_plan(services, f"pipeline retired: {reason}")
            retirement = Retirement(reason, now_ms())
            pipelines_beside(services.ledger).retire(chosen.pipeline, retirement)
    sentence = (
        f"pipeline {chosen.pipeline} loads no more, and other pipelines of the group may read "
        f"{', '.join(left)}: {reason}"
    )
    if closed:
        sentence += (
            f". Its stored plan {closed.number} was closed in the table, so no driver can append "
            "it any more"
        )
    document = {
        "message": sentence,
        "pipeline": chosen.pipeline,
        "retired_at": format_time(retirement.at_ms),
        "reason": reason,
        "topics": left,
        "closed_plan": closed.number if closed else None,
    }
    return DecisionResult(sentence, document)


def resume(settings: Settings, name: str | None, reason: str) -> DecisionResult:
    """End the retirement of a pipeline.

    Raises SettingsError if it is not retired, was inherited, or another pipeline reads one of its
    topics.
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
                successor = before.taken_over_by
                raise SettingsError(
                    f"Pipeline {chosen.pipeline} was inherited by {successor}, "
                    "which continued from its loaded-until offsets",
                    action=f"Check that pipeline. To continue with this one instead, run "
                    f"`etl pipelines inherit CONF --predecessor {successor} --reason ...`",
                )
            pipelines = pipelines_beside(services.ledger)
            version = pipelines.version()
            topics = sorted(services.ledger.topics())
            others = pipelines.topics_of_others(chosen.pipeline)
            reject_shared_topics(topics, others, has_plans=True)
            pipelines.resume(chosen.pipeline, version=version or 0)
    sentence = (
        f"pipeline {chosen.pipeline} is in service again and continues from its own loaded-until "
        f"offsets: {reason}"
    )
    document = {
        "message": sentence,
        "pipeline": chosen.pipeline,
        "reason": reason,
        "topics": topics,
        "was_retired": before.reason,
    }
    return DecisionResult(sentence, document)


def _named(settings: Settings, name: str | None) -> Settings:
    """Return the settings of the pipeline of that name; of the conf's pipeline without a name."""
    if not name:
        return settings
    if not re.fullmatch(NAME, name):
        raise SettingsError(
            f"{name!r} is no name of a pipeline", action="Check with `etl pipelines list CONF`"
        )
    return settings.model_copy(update={"pipeline": name})


def _reject_unknown(services: LiveServices) -> None:
    """Reject an unknown name before creating anything for it. Raises SettingsError."""
    if services.ledger.plan_numbers():
        return
    name = services.settings.pipeline
    names = pipelines_beside(services.ledger).names()
    others = [other for other in names if other != name]
    raise SettingsError(
        f"Pipeline {name} of this group has made no plan; other pipelines of the group: "
        f"{', '.join(others) or 'none'}",
        action="Check the name, and `etl pipelines list CONF`",
    )


def _describe_pipeline(
    ledger: PlanLedger,
    driver: DriverNode | None,
    table_path: str,
    table_id: str | None,
    now: int,
) -> dict[str, Any]:
    found = ledger.read_ledger()
    retirement = ledger.read_retirement()
    plan = found.newest
    own_table_id = None
    if found.applied:
        own_table_id = found.applied.table_id
    elif plan:
        own_table_id = plan.table.id
    is_table_of_conf = own_table_id is not None and own_table_id == table_id
    backfills = []
    for backfill in backfills_of_pipeline(ledger):
        backfills.append({"name": backfill["name"], "state": backfill["state"]})
    return {
        "group": ledger.paths.group,
        "pipeline": ledger.pipeline,
        "state": _state_of(found, retirement, driver).value,
        "newest_plan": plan.number if plan else None,
        "kind": plan.kind.value if plan else None,
        "planned_at": format_time(plan.origin.created_at_ms) if plan else None,
        "age_s": max(0, now - plan.origin.created_at_ms) / 1000 if plan else None,
        "driver": str(driver) if driver else None,
        "topics": sorted(ledger.topics()),
        "table_id": own_table_id,
        "table": table_path if is_table_of_conf else None,
        "backfills": backfills,
        "paused": [pause_as_json(pause) for pause in read_pauses(ledger)],
        "retired": retirement.reason if retirement else None,
        "retired_at": format_time(retirement.at_ms) if retirement else None,
    }


def _state_of(ledger: Ledger, retirement: Retirement | None, driver: DriverNode | None) -> State:
    if driver:
        return State.RUNNING
    if retirement:
        return State.TAKEN_OVER if retirement.taken_over_by else State.RETIRED
    if ledger.newest is None:
        return State.NO_PLAN
    return State.UP_TO_DATE if ledger.applied else State.STORED


def set_acl(settings: Settings, *, dry_run: bool = False) -> DecisionResult:
    """Apply the ACL of the conf to all znodes of the pipeline.

    Raises SettingsError if there is no such pipeline, Owned while a run of the pipeline is active,
    and PermissionDenied if the present ACL does not permit this login.
    """
    access = settings.zookeeper.access
    with open_services(settings, ALONE) as services:
        if not kept_by(services.zookeeper, settings.group.id, settings.pipeline):
            raise SettingsError(
                f"The group has no pipeline {settings.pipeline}. Its first run creates its znodes "
                "with zookeeper.acl",
                action="Check with `etl pipelines list CONF`",
            )
        lock: AbstractContextManager[object] = nullcontext()
        if not dry_run:
            lock = services.driving(new_run_id())
        with lock:
            paths = kept_by(services.zookeeper, settings.group.id, settings.pipeline)
            drivers = PipelinePaths(settings.group.id, settings.pipeline).drivers
            kept = [path for path in paths if not path.startswith(drivers)]
            changed = apply_acls(services.zookeeper, kept, dry_run=dry_run)
    writers = "everybody"
    if access.acl is not Acl.OPEN:
        writers = f"{describe_identity(access)}, alone"
    sentence = (
        f"the {changed:,} znodes of pipeline {settings.pipeline} can be changed by {writers}, "
        "and read by everybody"
    )
    document = {
        "message": sentence,
        "pipeline": settings.pipeline,
        "acl": access.acl.value,
        "znodes": changed,
    }
    return DecisionResult(sentence, document)
