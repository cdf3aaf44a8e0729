"""How does an operator start, resume, list and delete backfills?

A backfill loads offsets that the pipeline never loaded, in bounded plans, after showing them.

Lives here: the commands `etl backfills run`, `list`, `show` and `delete`, and the checks that other
commands make of a pipeline's backfills. Listing sends no request to brokers.
Not here: the plans of a backfill (etl/decide/backfill.py), and their execution
(etl/run/backfill.py).
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from etl.commands.replay import parse_bound
from etl.commands.run import reported
from etl.decide.backfill import BackfillRequest
from etl.decide.reconcile import LOAD_GIVEN_UP
from etl.decide.replay import Bound
from etl.decide.reservations import reject_table_without_backfill
from etl.decide.tasks import cost_of
from etl.errors import DataLoss, EtlError, LedgersDisagree, NeedsDecision, SettingsError
from etl.io.delta.table_shape import open_table
from etl.io.spark.session import translating_spark_errors
from etl.io.zookeeper.ledger import DriverLock, PlanLedger
from etl.io.zookeeper.ledger_side_documents import ReservationStore
from etl.model.partitions import BrokerPartition, parse_named
from etl.model.plans import CommitResult, Plan
from etl.model.snapshot import Reservation, ReservationState, Table, backfill_pipeline
from etl.reader.options import SEE_SUPERSEDE
from etl.report.describe import counted, describe_also_loaded, format_time
from etl.report.lag import describe_paused_but_loaded
from etl.report.run_progress import Doing, Stopwatch
from etl.report.run_report import Report, loaded_before, progress_of_backfill
from etl.run.backfill import (
    Beginning,
    abandon,
    backfill,
    estimate_backfill,
    left_of,
    reject_other_request,
)
from etl.run.live_services import LiveServices
from etl.run.open_services import open_services
from etl.run.service_interfaces import ALONE, RunContext, Services
from etl.settings.load import settings_of_backfill
from etl.settings.sections import Settings


def parse_backfill_request(
    from_: str,
    until: str,
    partitions: tuple[str, ...],
    *,
    only_retained: bool = False,
    only_missing: bool = False,
) -> BackfillRequest:
    """Parse the options of `etl backfills run`. Raises SettingsError."""
    selected = tuple(sorted(set(map(parse_named, partitions)), key=str))
    start = parse_bound(from_, key="--from")
    end = parse_bound(until, key="--until")
    # the reservation stores this text, and a second command compares it: it must not change
    text = f"from {_bound_text(from_, start)} until {_bound_text(until, end)}"
    if selected:
        text = f"{text} of {', '.join(map(str, selected))}"
    kinds = []
    if only_missing:
        kinds.append("what is missing")
    if only_retained:
        kinds.append("what is retained")
    if kinds:
        text = f"{text}, only {' and '.join(kinds)}"
    return BackfillRequest(selected, start, end, only_retained, text, only_missing)


def _bound_text(text: str, bound: Bound) -> str:
    """Return a bound as requests store it: equal for bounds with the same meaning.

    A duration before now (`-1h`) stays as written: as a time it would change with each command.
    """
    if text.startswith("-"):
        return text.strip()
    if isinstance(bound, int):
        return str(bound)
    return str(format_time(bound.ms))


@dataclass(frozen=True, slots=True)
class BackfillPreview:
    """What a backfill would do that was not started yet."""

    beginning: Beginning
    table: str
    plan_bytes: int | None
    plan_records: int | None = None
    """The limit of offsets per plan; None: there is none."""

    @property
    def estimated_bytes(self) -> int:
        """Return the number of bytes to fetch, by the record sizes that brokers report."""
        sizes = self.beginning.snapshot.bytes_per_offset
        costs = []
        for log, intervals in self.beginning.claim.stretches.items():
            for start, until in intervals:
                costs.append((until - start) * cost_of(log, sizes))
        return round(sum(costs))

    @property
    def plans(self) -> int:
        """Return the approximate number of plans."""
        plans = 1
        if self.plan_bytes:
            plans = max(plans, math.ceil(self.estimated_bytes / self.plan_bytes))
        if self.plan_records:
            plans = max(plans, math.ceil(self.beginning.claim.offsets / self.plan_records))
        return plans

    @property
    def summary(self) -> str:
        """Summarize the backfill in one sentence."""
        claim = self.beginning.claim
        if not claim.stretches:
            return f"Backfill {claim.name}: nothing is missing, all of it is loaded or reserved"
        unit = next(log.unit for log in claim.stretches)
        partitions = counted(len(claim.stretches), "partition")
        return (
            f"Backfill {claim.name} loads {counted(claim.offsets, unit)} of {partitions} into "
            f"{self.table}, in about {counted(self.plans, 'plan')}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the operator who confirms."""
        stretches = self.beginning.claim.stretches
        return (
            *describe_also_loaded(self.beginning.read_by_others),
            *describe_paused_but_loaded(stretches, self.beginning.snapshot.pauses),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the document of a dry run."""
        claim = self.beginning.claim
        loads = []
        for log, intervals in sorted(claim.stretches.items()):
            for start, until in intervals:
                loads.append({**log.place, "from": start, "until": until})
        return {
            "message": self.summary,
            "notes": list(self.notes),
            "name": claim.name,
            "request": claim.asked,
            "offsets": claim.offsets,
            "estimated_bytes": self.estimated_bytes,
            "estimated_plans": self.plans,
            "loads": loads,
        }


def preview_backfill(
    settings: Settings, name: str, request: BackfillRequest, run_context: RunContext = ALONE
) -> BackfillPreview | None:
    """Return what the backfill would load; nothing is stored. None: it was started already.

    Raises the errors of `etl.run.backfill`, as the command that loads does.
    """
    own = settings_of_backfill(settings, name)
    watch = Stopwatch()
    opened = open_services(settings, run_context, phases=watch)
    with run_context.progress(watch.doing), opened as live:
        started = live.claims.store.read_one(name)
        if started:
            reject_other_request(started.claim, request)
            return None
        beginning = estimate_backfill(live, settings, own, request)
        limits = own.limits
        return BackfillPreview(
            beginning, settings.table.path, limits.max_bytes_per_plan, limits.max_records_per_plan
        )


def run_backfill(
    settings: Settings,
    name: str,
    request: BackfillRequest | None,
    run_context: RunContext = ALONE,
    *,
    conf: str | None = None,
    around: Callable[[Services], Services] = lambda services: services,
) -> Report:
    """Start or resume the backfill, load all that is left of it, and report it as a run.

    request   None: it was started already
    around    wraps the services of its plans (tests)

    Raises the errors of `etl.run.backfill`.
    """
    own = settings_of_backfill(settings, name)
    reports = list[Report]()

    def load(services: LiveServices, report: Report) -> None:
        reports.append(report)
        live = LiveServices(settings, services.zookeeper, run_context, report.run_id)
        with _suggest_backfill_commands(name, lambda: services.claim() is not None):
            backfill(around(services), live, own, settings, report, request)

    def progress(doing: Callable[[], Doing]) -> contextlib.AbstractContextManager[None]:
        def of_the_backfill() -> Doing:
            if reports:
                return progress_of_backfill(doing(), reports[-1])
            return doing()

        return run_context.progress(of_the_backfill)

    return reported(own, replace(run_context, progress=progress), load, conf=conf)


def delete_backfill(
    settings: Settings, name: str, reason: str, run_context: RunContext = ALONE
) -> tuple[Report, str]:
    """Delete the backfill; return the report and a sentence on what stays in the table.

    Raises the errors of `etl.run.backfill`.
    """
    own = settings_of_backfill(settings, name)
    sentences = list[str]()

    def delete(services: LiveServices, report: Report) -> None:
        kept = abandon(services, own, report, reason)
        unit = next((log.unit for log in kept.stretches), "offset")
        sentences.append(
            f"Backfill {name} is given up: {counted(kept.offsets, unit)} of it are in the table "
            "and stay reserved; the rest is released"
        )

    with translating_spark_errors():
        report = reported(own, run_context, delete)
    return report, sentences[-1]


_SUPERSEDE = "plans supersede"


@contextlib.contextmanager
def _suggest_backfill_commands(name: str, is_started: Callable[[], bool]) -> Iterator[None]:
    """Context manager: the actions of errors name commands of the backfill, not of the pipeline."""
    try:
        yield
    except (NeedsDecision, DataLoss, LedgersDisagree, SettingsError) as error:
        if (not isinstance(error, SettingsError) or _SUPERSEDE in error.action) and is_started():
            error.action = _action_for_backfill(error, name)
        raise


def _action_for_backfill(error: EtlError, name: str) -> str:
    """Return the action of an error with `etl backfills delete` for commands of the pipeline."""
    command = f"`etl backfills delete CONF {name} --reason ...`: it keeps what it loaded"
    if isinstance(error, SettingsError):
        # the first part applies to a backfill, too; the rest names `etl plans supersede`
        first_part = re.split(r"[;.] [Oo]r (?:give|replace)", error.action)[0]
        return f"{first_part}. Or delete the backfill with {command}"
    action = error.action.removesuffix(f". {SEE_SUPERSEDE}").removesuffix(f". {LOAD_GIVEN_UP}")
    names_pipeline_command = _SUPERSEDE in action or "topics accept-changes" in action
    if not action or names_pipeline_command:
        # those commands are for the pipeline, not for its backfill
        return f"Delete the backfill with {command}"
    if "backfills delete" in action or "--only-unloaded" in action:
        return action
    return f"{action}. Or delete the backfill with {command}"


# -- listing


_PACE_PLANS = 10
"""The pace is measured over the last plans: the backfill may have been stopped before them."""


class State(str, Enum):
    """The state of a backfill in `etl backfills list`."""

    AT_WORK = "at work"
    STOPPED = "stopped"
    """Unfinished, and no driver is active: `etl backfills run` resumes it."""
    WHOLE = "whole"
    CLOSING = "being given up"
    GIVEN_UP = "given up"


def list_backfills(settings: Settings) -> list[dict[str, Any]]:
    """Return the pipeline's backfills by name, with state, request and progress."""
    with open_services(settings, ALONE) as live:
        return backfills_of_pipeline(live.ledger)


def backfills_of_pipeline(ledger: PlanLedger) -> list[dict[str, Any]]:
    """Return the pipeline's backfills by its ledger, like `list_backfills`."""
    reservations = ReservationStore(ledger.zookeeper, ledger.paths.group, ledger.pipeline)
    return [_backfill_json(ledger, reservations, claim) for claim in reservations.read()]


def show_backfill(settings: Settings, name: str) -> dict[str, Any]:
    """Return one backfill with its intervals and plans.

    Raises SettingsError if there is no backfill of that name.
    """
    with open_services(settings, ALONE) as live:
        reservations = live.claims.store
        found = reservations.read_one(name)
        if found is None:
            raise SettingsError(
                "There is no backfill of this name",
                key="NAME",
                action="Check with `etl backfills list CONF`",
            )
        ledger = reservations.ledger_of(name)
        plans = []
        stored = []
        for plan in ledger.read_plans():
            record = ledger.read_record_of(plan)
            stored.append((plan, record is not None))
            plans.append(_plan_json(plan, record))
        return {
            **_backfill_json(live.ledger, reservations, found.claim),
            "stretches": _intervals_json(found.claim, _left(found.claim, stored)),
            "plans": plans,
        }


def _intervals_json(
    claim: Reservation, left: Mapping[BrokerPartition, Sequence[tuple[int, int]]]
) -> list[dict[str, Any]]:
    """Return the reserved intervals with the number of offsets that are left of each."""
    intervals = []
    for log, of_log in sorted(claim.stretches.items()):
        for start, until in of_log:
            offsets_left = 0
            for left_start, left_until in left.get(log, ()):
                offsets_left += max(0, min(until, left_until) - max(start, left_start))
            intervals.append(
                {
                    **log.place,
                    "from": start,
                    "until": until,
                    "incarnation": claim.incarnation_of(log),
                    "left": offsets_left,
                }
            )
    return intervals


def _plan_json(plan: Plan, record: CommitResult | None) -> dict[str, Any]:
    rows = None
    table_version = None
    if record:
        rows = record.rows
        table_version = record.delta_version
    return {
        "number": plan.number,
        "id": plan.id,
        "made_at": format_time(plan.origin.created_at_ms),
        "offsets": sum(r.size for r in plan.ranges),
        "rows": rows,
        "table_version": table_version,
        "reason": plan.origin.reason,
    }


def _backfill_json(
    pipeline_ledger: PlanLedger, reservations: ReservationStore, claim: Reservation
) -> dict[str, Any]:
    """Return one backfill in the document of `etl backfills list`."""
    ledger = reservations.ledger_of(claim.name)
    stored = _stored_plans(ledger)
    lock = DriverLock(pipeline_ledger.zookeeper, pipeline_ledger.paths.group, ledger.pipeline)
    driver = lock.driver()
    left = 0
    for intervals in _left(claim, stored).values():
        left += sum(until - start for start, until in intervals)
    plans = [plan for plan, _ in stored]
    pace = pace_of(claim, plans)
    seconds_left = None
    if pace and left:
        seconds_left = left / pace
    newest_plan = None
    if stored:
        newest_plan = stored[-1][0].number
    return {
        "name": claim.name,
        "state": _state(claim, left, is_driven=driver is not None).value,
        "request": claim.asked,
        "begun_at": format_time(claim.made_at_ms),
        "offsets": claim.offsets,
        "loaded": claim.offsets - left,
        "left": left,
        "newest_plan": newest_plan,
        "driver": str(driver) if driver else None,
        "offsets_per_second": pace,
        "seconds_left": seconds_left,
        "reason": claim.reason,
    }


def pace_of(claim: Reservation, plans: Sequence[Plan]) -> float | None:
    """Return the offsets per second between the last plans; None if fewer than two have a time."""
    last = plans[-_PACE_PLANS:]
    if len(last) < 2:
        return None
    elapsed_ms = last[-1].origin.created_at_ms - last[0].origin.created_at_ms
    if elapsed_ms <= 0:
        return None
    offsets = loaded_before(claim, last[-1]) - loaded_before(claim, last[0])
    return offsets * 1000 / elapsed_ms or None


def _stored_plans(ledger: PlanLedger) -> list[tuple[Plan, bool]]:
    """Return the plans, and whether each has a recorded result."""
    return [(plan, ledger.read_record_of(plan) is not None) for plan in ledger.read_plans()]


def _left(
    claim: Reservation, stored: Sequence[tuple[Plan, bool]]
) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
    """Return the offsets still to load per partition; empty for a deleted backfill."""
    if claim.state is ReservationState.GIVEN_UP:
        return {}
    return left_of(claim, stored)


def _state(claim: Reservation, left: int, *, is_driven: bool) -> State:
    if claim.state is ReservationState.GIVEN_UP:
        return State.GIVEN_UP
    if is_driven:
        return State.AT_WORK
    if claim.state is ReservationState.CLOSING:
        return State.CLOSING
    if left:
        return State.STOPPED
    return State.WHOLE


# -- checks for other commands


def unloaded_by_backfill(
    ledger: PlanLedger,
) -> dict[str, dict[BrokerPartition, tuple[tuple[int, int], ...]]]:
    """Return what each backfill of a pipeline still has to load, by name."""
    reservations = ReservationStore(ledger.zookeeper, ledger.paths.group, ledger.pipeline)
    unloaded = {}
    for claim in reservations.read():
        stored = _stored_plans(reservations.ledger_of(claim.name))
        unloaded[claim.name] = _left(claim, stored)
    return unloaded


def reject_unfinished(ledger: PlanLedger) -> None:
    """Raise NeedsDecision if a backfill of the pipeline may still load.

    The pipeline is then neither retired nor inherited from.
    """
    for backfill_json in backfills_of_pipeline(ledger):
        state = backfill_json["state"]
        if state not in (State.WHOLE.value, State.GIVEN_UP.value):
            name = backfill_json["name"]
            raise NeedsDecision(
                f"Backfill {name} of that pipeline is {state}, and may still load rows after the "
                "pipeline is retired",
                action=f"With that pipeline's conf, run `etl backfills run CONF {name}` or "
                f"`etl backfills delete CONF {name} --reason ...`. Then run this command again",
            )


def reject_table_without_backfills(
    ledger: PlanLedger, app_id: str, table: Table, path: str
) -> None:
    """Raise LedgersDisagree if the table lacks what a backfill loaded into it, deleted or not.

    A run does not check this: it duplicates nothing, and misses nothing of its own.

    app_id   that of the pipeline
    """
    reservations = ReservationStore(ledger.zookeeper, ledger.paths.group, ledger.pipeline)
    for claim in reservations.read():
        # before the table: that may then have a newer plan, but no older one
        backfill_ledger = reservations.ledger_of(claim.name).read_ledger()
        opened = open_table(path)
        in_table = None
        if opened:
            in_table = opened.transaction_version(backfill_pipeline(app_id, claim.name))
        reject_table_without_backfill(claim.name, backfill_ledger, table, in_table or 0)
