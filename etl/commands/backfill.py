"""How does an operator start, resume, list and delete backfills?

A backfill loads offsets that the pipeline never loaded, in bounded plans, after showing them.

Lives here: the commands `etl backfills run`, `list`, `show` and `delete`. Listing sends no request
to brokers.
Not here: the plans of a backfill (etl/decide/backfill.py), and their execution
(etl/run/backfill.py).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from etl.commands.operator_decisions import DecisionResult
from etl.commands.replay import parse_bound, step_after_stored_plan
from etl.commands.run import reported
from etl.decide.backfill import (
    BackfillRequest,
    Intervals,
    count_offsets,
    reject_other_request,
    unloaded_of,
)
from etl.decide.loaded_intervals import fold_all
from etl.decide.next_step import repaired
from etl.decide.offsets import starts_of
from etl.decide.replay import Bound
from etl.decide.tasks import cost_of
from etl.errors import SettingsError
from etl.io.zookeeper.ledger import DriverLock, PlanLedger
from etl.io.zookeeper.ledger_side_documents import BackfillStore, read_plans_with_results
from etl.ledger.owner_nodes import DriverNode
from etl.model.partitions import parse_named
from etl.model.plans import CommitResult, Plan
from etl.model.snapshot import Backfill, LoadedIntervals, RebuildFromTable
from etl.report.describe import counted, describe_also_loaded, format_time
from etl.report.lag import describe_paused_but_loaded
from etl.report.run_progress import Doing, Stopwatch
from etl.report.run_report import Report, progress_of_backfill
from etl.run.backfill import (
    Beginning,
    BegunBackfill,
    backfill,
    begin,
    describe_nothing_missing,
    loaded_in_table,
    no_such_backfill,
)
from etl.run.live_services import LiveServices
from etl.run.open_services import open_services
from etl.run.replay import repaired_state
from etl.run.run_context import ALONE, RunContext
from etl.run.service_interfaces import Services
from etl.settings.load import reject_name_of_backfill, settings_of_backfill
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
    # the ledger stores this text, and a second command compares it: it must not change
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
    def backfill(self) -> Backfill:
        """Return its request."""
        return self.beginning.backfill

    @property
    def estimated_bytes(self) -> int:
        """Return the number of bytes to fetch, by the record sizes that brokers report."""
        sizes = self.beginning.snapshot.bytes_per_offset
        costs = []
        for partition, intervals in self.backfill.intervals.items():
            for start, until in intervals:
                costs.append((until - start) * cost_of(partition, sizes))
        return round(sum(costs))

    @property
    def plans(self) -> int:
        """Return the approximate number of plans: by the limits of a plan, and by the intervals, of
        which a plan reads one in each partition.
        """
        plans = self._plans_within_limits(self.backfill.offsets, self.estimated_bytes)
        sizes = self.beginning.snapshot.bytes_per_offset
        for partition, intervals in self.backfill.intervals.items():
            of_partition = 0
            for start, until in intervals:
                offsets = until - start
                of_partition += self._plans_within_limits(
                    offsets, offsets * cost_of(partition, sizes)
                )
            plans = max(plans, of_partition)
        return plans

    def _plans_within_limits(self, offsets: int, size: float) -> int:
        plans = 1
        if self.plan_bytes:
            plans = max(plans, math.ceil(size / self.plan_bytes))
        if self.plan_records:
            plans = max(plans, math.ceil(offsets / self.plan_records))
        return plans

    @property
    def summary(self) -> str:
        """Summarize the backfill in one sentence."""
        requested = self.backfill
        if not requested.intervals:
            return describe_nothing_missing(requested.name)
        unit = next(partition.unit for partition in requested.intervals)
        partitions = counted(len(requested.intervals), "partition")
        return (
            f"Backfill {requested.name} loads {counted(requested.offsets, unit)} of {partitions} "
            f"into {self.table}, in about {counted(self.plans, 'plan')}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the operator who confirms."""
        return (
            *describe_also_loaded(self.beginning.read_by_others),
            *describe_paused_but_loaded(
                self.backfill.intervals, self.beginning.snapshot.ledger.pauses
            ),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the document of a dry run."""
        requested = self.backfill
        loads = []
        for partition, intervals in sorted(requested.intervals.items()):
            for start, until in intervals:
                loads.append({**partition.place, "from": start, "until": until})
        return {
            "message": self.summary,
            "notes": list(self.notes),
            "name": requested.name,
            "request": requested.request,
            "offsets": requested.offsets,
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
    opened = open_services(own, run_context, phases=watch)
    with run_context.progress(watch.doing), opened as services:
        started = services.backfills.read(name)
        if started:
            reject_other_request(started, request.asked)
            return None
        beginning = _beginning(services, own, name, request)
        limits = own.limits
        return BackfillPreview(
            beginning, settings.table.path, limits.max_bytes_per_plan, limits.max_records_per_plan
        )


def _beginning(
    services: Services, settings: Settings, name: str, request: BackfillRequest
) -> Beginning:
    """Return what the backfill would begin with, after a stored plan of a run."""
    observed = services.observe(request.offsets_of)
    step, stored = step_after_stored_plan(observed, settings)
    state, _ = repaired_state(step)
    if isinstance(step.state, RebuildFromTable):
        raise SettingsError(
            "ZooKeeper does not know the pipeline's newest plan, which the table holds",
            action="Run `etl run CONF`, which restores it; then run this command again",
        )
    snapshot = repaired(step.snapshot, step.repair).with_all_partitions()
    loaded = loaded_in_table(services, observed)
    positions = None
    if stored:
        # A run may replace the stored plan by another one, but not from another start.
        positions = starts_of(stored)
    # the snapshot of today's pauses
    pauses = observed.ledger.pauses
    snapshot = replace(snapshot, ledger=replace(snapshot.ledger, pauses=pauses))
    return begin(services, name, request, state, snapshot, loaded, positions)


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
    begun = BegunBackfill()

    def load(services: LiveServices, report: Report) -> None:
        reports.append(report)
        has_begun = False

        @contextlib.contextmanager
        def turn() -> Iterator[None]:
            nonlocal has_begun
            with services.driving(report.run_id, backfill=name, has_begun=has_begun):
                has_begun = True
                yield

        backfill(around(services), own, report, name, request, turn, begun)

    def progress(doing: Callable[[], Doing]) -> contextlib.AbstractContextManager[None]:
        def of_the_backfill() -> Doing:
            if reports:
                return progress_of_backfill(doing(), reports[-1])
            return doing()

        return run_context.progress(of_the_backfill)

    return reported(own, replace(run_context, progress=progress), load, conf=conf, takes_turns=True)


def delete_backfill(settings: Settings, name: str, reason: str) -> DecisionResult:
    """Delete the backfill's request; what it loaded stays in the table, and its name is free.

    A driver that loads it ends after its present plan. Raises SettingsError if there is none.
    """
    with open_services(settings, ALONE) as services:
        found = _show(services, name)
        services.backfills.delete(name)
    sentence = (
        f"Backfill {name} is deleted: {reason}. {found['loaded']:,} of its {found['offsets']:,} "
        "offsets are in the table and stay there; its name is free"
    )
    document = {"message": sentence, "reason": reason, "backfill": found}
    return DecisionResult(sentence, document)


# -- listing


_PACE_PLANS = 10
"""The pace is measured over the last plans: the backfill may have been stopped before them."""


class State(str, Enum):
    """The state of a backfill in `etl backfills list`."""

    RUNNING = "running"
    STOPPED = "stopped"
    """Unfinished, and no driver is active: `etl backfills run` resumes it."""
    COMPLETE = "complete"


def list_backfills(settings: Settings) -> list[dict[str, Any]]:
    """Return the pipeline's backfills by name, with state, request and progress."""
    with open_services(settings, ALONE) as services:
        return backfills_of_pipeline(services.ledger)


def backfills_of_pipeline(ledger: PlanLedger) -> list[dict[str, Any]]:
    """Return the pipeline's backfills by its ledger, like `list_backfills`."""
    requested = BackfillStore(ledger).read_all()
    if not requested:
        return []
    seen = _Seen.of(ledger)
    return [_backfill_json(one, seen) for one in requested]


def show_backfill(settings: Settings, name: str) -> dict[str, Any]:
    """Return one backfill with its intervals and plans.

    Raises SettingsError if there is no backfill of that name.
    """
    reject_name_of_backfill(name)
    with open_services(settings, ALONE) as services:
        return _show(services, name)


def _show(services: LiveServices, name: str) -> dict[str, Any]:
    found = services.backfills.read(name)
    if found is None:
        raise no_such_backfill()
    seen = _Seen.of(services.ledger)
    unloaded = unloaded_of(found, seen.loaded)
    plans = []
    for plan, record in seen.plans_of(name):
        plans.append(_plan_json(plan, record))
    return {
        **_backfill_json(found, seen),
        "intervals": _intervals_json(found, unloaded),
        "plans": plans,
    }


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the ledger and the driver lock show of a pipeline's backfills."""

    plans: Sequence[tuple[Plan, CommitResult | None]]
    """The stored plans, ascending, each with its recorded result."""
    loaded: LoadedIntervals
    drivers: Sequence[DriverNode]

    @classmethod
    def of(cls, ledger: PlanLedger) -> _Seen:
        """Read them."""
        drivers = DriverLock(ledger.zookeeper, ledger.paths.group, ledger.pipeline).drivers()
        plans = read_plans_with_results(ledger)
        recorded = [(plan, record) for plan, record in plans if record]
        transaction_version = None
        accepted = ledger.read_acknowledgement()
        if accepted and all(plan.number <= accepted.number for plan, _ in recorded):
            # An older copy of the table, or none, may have been accepted after the newest plan.
            transaction_version = accepted.transaction_version
        loaded = fold_all(ledger.read_loaded_intervals(), recorded, transaction_version)
        return cls(plans, loaded, drivers)

    def plans_of(self, name: str) -> list[tuple[Plan, CommitResult | None]]:
        """Return the kept plans of a backfill."""
        return [(plan, record) for plan, record in self.plans if plan.backfill == name]

    def driver_of(self, name: str) -> DriverNode | None:
        """Return the driver that loads a backfill, or waits for its turn."""
        for driver in self.drivers:
            if driver.backfill == name:
                return driver
        return None


def _intervals_json(requested: Backfill, left: Intervals) -> list[dict[str, Any]]:
    """Return the requested intervals with the number of offsets that are left of each."""
    intervals = []
    for partition, of_partition in sorted(requested.intervals.items()):
        for start, until in of_partition:
            offsets_left = 0
            for left_start, left_until in left.get(partition, ()):
                offsets_left += max(0, min(until, left_until) - max(start, left_start))
            intervals.append(
                {
                    **partition.place,
                    "from": start,
                    "until": until,
                    "incarnation": requested.incarnation_of(partition),
                    "left": offsets_left,
                }
            )
    return intervals


def _plan_json(plan: Plan, record: CommitResult | None) -> dict[str, Any]:
    records = None
    rows = None
    table_version = None
    if record:
        records = record.records_read
        rows = record.rows
        table_version = record.delta_version
    return {
        "number": plan.number,
        "id": plan.id,
        "made_at": format_time(plan.origin.created_at_ms),
        "offsets": sum(r.size for r in plan.ranges),
        "records": records,
        "rows": rows,
        "table_version": table_version,
        "reason": plan.origin.reason,
    }


def _backfill_json(requested: Backfill, seen: _Seen) -> dict[str, Any]:
    """Return one backfill in the document of `etl backfills list`."""
    driver = seen.driver_of(requested.name)
    driver_text = None
    if driver:
        driver_text = str(driver)
    left = count_offsets(unloaded_of(requested, seen.loaded))
    lost = count_offsets(requested.lost)
    plans = [plan for plan, record in seen.plans_of(requested.name) if record]
    pace = pace_of(plans)
    seconds_left = None
    if pace and left:
        seconds_left = left / pace
    newest_plan = None
    if plans:
        newest_plan = plans[-1].number
    state = State.COMPLETE
    if driver:
        state = State.RUNNING
    elif left:
        state = State.STOPPED
    return {
        "name": requested.name,
        "state": state.value,
        "request": requested.request,
        "begun_at": format_time(requested.created_at_ms),
        "offsets": requested.offsets,
        "loaded": requested.offsets - left - lost,
        "lost": lost,
        "left": left,
        "newest_plan": newest_plan,
        "driver": driver_text,
        "offsets_per_second": pace,
        "seconds_left": seconds_left,
    }


def pace_of(plans: Sequence[Plan]) -> float | None:
    """Return the offsets per second between the last plans; None if fewer than two have a time."""
    last = plans[-_PACE_PLANS:]
    if len(last) < 2:
        return None
    elapsed_ms = last[-1].origin.created_at_ms - last[0].origin.created_at_ms
    if elapsed_ms <= 0:
        return None
    offsets = 0
    for plan in last[:-1]:
        offsets += sum(r.size for r in plan.ranges)
    return offsets * 1000 / elapsed_ms or None
