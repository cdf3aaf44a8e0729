"""How does an operator begin, resume, list and abandon backfills?

`etl backfills run` loads offsets that the pipeline never loaded, in bounded plans, after showing them.
`etl backfills list` and `show` report progress without asking brokers.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from etl.commands.replay import parse_bound
from etl.commands.run import reported
from etl.decide.backfill import BackfillRequest
from etl.decide.reservations import reject_table_without_backfill
from etl.decide.tasks import cost_of
from etl.errors import DataLoss, EtlError, LedgersDisagree, NeedsDecision, SettingsError
from etl.io.delta.table import open_table
from etl.io.spark.session import translating_spark_errors
from etl.io.zookeeper.ledger import DriverLock, PlanLedger
from etl.io.zookeeper.ledger_records import ReservationStore
from etl.model.partitions import BrokerPartition, parse_named
from etl.model.plans import Plan
from etl.model.snapshot import Reservation, ReservationState, Table, backfill_pipeline
from etl.report.describe import at, counted, describe_also_loaded
from etl.report.lag import describe_paused_but_loaded
from etl.report.run_report import Report, loaded_before, of_the_whole
from etl.report.run_state import Doing, Stopwatch
from etl.run.backfill import Beginning, abandon, backfill, estimate_backfill, left_of
from etl.run.live import LiveServices
from etl.run.services import ALONE, RunContext, Services
from etl.run.shell import open_services
from etl.settings.load import settings_of_backfill
from etl.settings.sections import Settings


def parse_asked(
    from_: str,
    until: str,
    partitions: tuple[str, ...],
    *,
    only_retained: bool = False,
    only_missing: bool = False,
) -> BackfillRequest:
    """Parse the options. Raises SettingsError."""
    named = tuple(sorted(set(map(parse_named, partitions)), key=str))
    bounds = parse_bound(from_, key="--from"), parse_bound(until, key="--until")
    # so long before now is another moment an hour later: it is the same where it is said in the
    # same words
    words = [
        text.strip() if text.startswith("-") else str(b) if isinstance(b, int) else str(at(b.ms))
        for text, b in zip((from_, until), bounds, strict=True)
    ]
    of = f" of {', '.join(map(str, named))}" if named else ""
    kinds = [
        word
        for word, is_said in (
            ("what is missing", only_missing),
            ("what is retained", only_retained),
        )
        if is_said
    ]
    request_text = f"from {words[0]} until {words[1]}{of}" + (
        f", only {' and '.join(kinds)}" if kinds else ""
    )
    return BackfillRequest(named, *bounds, only_retained, request_text, only_missing)


@dataclass(frozen=True, slots=True)
class BackfillPreview:
    """What a backfill that has not begun would do."""

    beginning: Beginning
    table: str
    plan_bytes: int | None

    @property
    def estimated_bytes(self) -> int:
        """Return the bytes to fetch, by sizes that brokers report."""
        sizes = self.beginning.snapshot.bytes_per_offset
        return round(
            sum(
                (until - start) * cost_of(log, sizes)
                for log, parts in self.beginning.claim.stretches.items()
                for start, until in parts
            )
        )

    @property
    def plans(self) -> int:
        """About so many."""
        return max(1, math.ceil(self.estimated_bytes / self.plan_bytes)) if self.plan_bytes else 1

    @property
    def summary(self) -> str:
        """In one sentence."""
        claim = self.beginning.claim
        if not claim.stretches:
            return f"backfill {claim.name}: nothing is missing, all of it is loaded or claimed"
        unit = next(log.unit for log in claim.stretches)
        return (
            f"backfill {claim.name} loads {counted(claim.offsets, unit)} of {counted(len(claim.stretches), 'partition')} into "
            f"{self.table}, in about {counted(self.plans, 'plan')}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the operator who confirms."""
        read = describe_also_loaded(self.beginning.read_by_others)
        return (
            *read,
            *describe_paused_but_loaded(
                self.beginning.claim.stretches, self.beginning.snapshot.pauses
            ),
        )

    def as_json(self) -> dict[str, Any]:
        """The document of a dry run."""
        claim = self.beginning.claim
        return {
            "message": self.summary,
            "notes": list(self.notes),
            "name": claim.name,
            "request": claim.asked,
            "offsets": claim.offsets,
            "estimated_bytes": self.estimated_bytes,
            "estimated_plans": self.plans,
            "loads": [
                {**log.place, "from": start, "until": until}
                for log, parts in sorted(claim.stretches.items())
                for start, until in parts
            ],
        }


def preview_backfill(
    settings: Settings, name: str, request: BackfillRequest, run_context: RunContext = ALONE
) -> BackfillPreview | None:
    """Return what would be loaded; nothing is stored. None: it has begun already. Raises as
    `etl.run.backfill`.
    """
    own, watch = settings_of_backfill(settings, name), Stopwatch()
    opened = open_services(settings, run_context, phases=watch)
    with run_context.progress(watch.doing), opened as live:
        if live.claims.store.read_one(name):
            return None
        return BackfillPreview(
            estimate_backfill(live, settings, own, request),
            settings.table.path,
            own.limits.max_bytes_per_plan,
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
    """Begin the backfill unless it has begun, load all that is left of it, and report it as a run.
    `request` None: it has begun. `around` may wrap the services of its plans (tests). Raises as
    `etl.run.backfill`.
    """
    own, begun = settings_of_backfill(settings, name), list[Report]()

    def story(services: LiveServices, report: Report) -> None:
        begun.append(report)
        live = LiveServices(settings, services.zookeeper, run_context, report.run_id)
        with _leading_out(name, lambda: services.claim() is not None):
            backfill(around(services), live, own, settings, report, request)

    def progress(doing: Callable[[], Doing]) -> contextlib.AbstractContextManager[None]:
        return run_context.progress(lambda: of_the_whole(doing(), begun[-1]) if begun else doing())

    return reported(own, replace(run_context, progress=progress), story, conf=conf)


def abandon_backfill(
    settings: Settings, name: str, reason: str, run_context: RunContext = ALONE
) -> tuple[Report, str]:
    """Give it up, and what that came to in a sentence. Raises as `etl.run.backfill`."""
    own, sentences = settings_of_backfill(settings, name), list[str]()

    def story(services: LiveServices, report: Report) -> None:
        kept = abandon(services, own, report, reason)
        unit = next((log.unit for log in kept.stretches), "offset")
        sentences.append(
            f"backfill {name} is given up: {counted(kept.offsets, unit)} of it are in the table and stay its own; the rest is free"
        )

    with translating_spark_errors():
        report = reported(own, run_context, story)
    return report, sentences[-1]


@contextlib.contextmanager
def _leading_out(name: str, is_begun: Callable[[], bool]) -> Iterator[None]:
    """Change commands in errors of a backfill's plans to those of the backfill."""
    try:
        yield
    except (NeedsDecision, DataLoss, LedgersDisagree, SettingsError) as error:
        if (not isinstance(error, SettingsError) or _SUPERSEDE in error.action) and is_begun():
            error.action = _check_of(error, name)
        raise


_SUPERSEDE = "plans supersede"


def _check_of(error: EtlError, name: str) -> str:
    give_up = (
        f"Delete the backfill with `etl backfills delete CONF {name} --reason ...`: it keeps what it "
        "loaded"
    )
    if isinstance(error, SettingsError):
        # the first part applies to a backfill, too; the rest names `etl plans supersede`
        first_part = re.split(r"[;.] [Oo]r (?:give|replace)", error.action)[0]
        return f"{first_part}. Or: {give_up}"
    names_pipeline_command = _SUPERSEDE in error.action or "topics accept-changes" in error.action
    if not error.action or names_pipeline_command:
        return give_up  # those commands are for the pipeline, not for its backfill
    if "backfills delete" in error.action or "--only-unloaded" in error.action:
        return error.action
    return f"{error.action}. Or: {give_up}"


PACE_PLANS = 10
"""The pace is that of the last so many plans: a backfill may have stood still before."""


class State(str, Enum):
    """How far a backfill is."""

    AT_WORK = "at work"
    STOPPED = "stopped"
    """Unfinished, and no driver is active: `etl backfills run`."""
    WHOLE = "whole"
    CLOSING = "being given up"
    GIVEN_UP = "given up"


def list_backfills(settings: Settings) -> list[dict[str, Any]]:
    """Return the pipeline's backfills by name, with state, request and progress."""
    with open_services(settings, ALONE) as live:
        return backfills_of_pipeline(live.ledger)


def backfills_of_pipeline(ledger: PlanLedger) -> list[dict[str, Any]]:
    """Return the same from the live pipeline's ledger."""
    reservations = ReservationStore(ledger.zookeeper, ledger.paths.group, ledger.pipeline)
    return [described(ledger, reservations, claim) for claim in reservations.read()]


def unloaded_by_backfill(
    live: PlanLedger,
) -> dict[str, dict[BrokerPartition, tuple[tuple[int, int], ...]]]:
    """Return what each backfill of a pipeline has still to load, by name."""
    reservations = ReservationStore(live.zookeeper, live.paths.group, live.pipeline)
    return {
        claim.name: _left(claim, _stored(reservations.ledger_of(claim.name)))
        for claim in reservations.read()
    }


def reject_unfinished(live: PlanLedger) -> None:
    """Reject inheriting from a pipeline, or retiring it, while one of its backfills may still load.
    Raises NeedsDecision.
    """
    for one in backfills_of_pipeline(live):
        if one["state"] not in (State.WHOLE.value, State.GIVEN_UP.value):
            message = f"Backfill {one['name']} beside that pipeline is {one['state']}, and would load beside nobody"
            action = f"Run with that pipeline's conf `etl backfills run CONF {one['name']}`, or `etl backfills delete`, and then this"
            raise NeedsDecision(message, action=action)


def reject_table_without_backfills(live: PlanLedger, app_id: str, table: Table, path: str) -> None:
    """Reject a table that lacks what a backfill of a pipeline loaded into it, abandoned or not.
    Raises LedgersDisagree. `app_id` is the pipeline's. A run does not check this: it would double
    nothing and misses nothing of its own.
    """
    reservations = ReservationStore(live.zookeeper, live.paths.group, live.pipeline)
    for claim in reservations.read():
        ledger = reservations.ledger_of(
            claim.name
        ).read_ledger()  # before the table, which may have a newer plan by then, and no older one
        found = open_table(path)
        if found:
            in_table = found.transaction_version(backfill_pipeline(app_id, claim.name))
        else:
            in_table = None
        reject_table_without_backfill(claim.name, ledger, table, in_table or 0)


def show_backfill(settings: Settings, name: str) -> dict[str, Any]:
    """Return one backfill with its intervals and plans. Raises SettingsError if there is none of
    that name.
    """
    with open_services(settings, ALONE) as live:
        found = live.claims.store.read_one(name)
        if found is None:
            raise SettingsError(
                "Nobody has begun a backfill of this name",
                key="NAME",
                action="Check with `etl backfills list CONF`",
            )
        ledger = live.claims.store.ledger_of(name)
        plans = [(plan, ledger.read_record_of(plan)) for plan in ledger.read_plans()]
        left = _left(found.claim, [(plan, record is not None) for plan, record in plans])
        return {
            **described(live.ledger, live.claims.store, found.claim),
            "stretches": [
                {
                    **log.place,
                    "from": start,
                    "until": until,
                    "incarnation": found.claim.incarnation_of(log),
                    "left": sum(
                        max(0, min(until, end) - max(start, low)) for low, end in left.get(log, ())
                    ),
                }
                for log, parts in sorted(found.claim.stretches.items())
                for start, until in parts
            ],
            "plans": [
                {
                    "number": plan.number,
                    "id": plan.id,
                    "made_at": at(plan.created_at_ms),
                    "offsets": sum(r.size for r in plan.ranges),
                    "rows": record.rows if record else None,
                    "table_version": record.delta_version if record else None,
                    "reason": plan.reason,
                }
                for plan, record in plans
            ],
        }


def described(
    live: PlanLedger, reservations: ReservationStore, claim: Reservation
) -> dict[str, Any]:
    """One backfill in the document of `etl backfills list`."""
    ledger = reservations.ledger_of(claim.name)
    stored = _stored(ledger)
    driver = DriverLock(live.zookeeper, live.paths.group, ledger.pipeline).driver()
    left = sum(until - start for parts in _left(claim, stored).values() for start, until in parts)
    pace = pace_of(claim, [plan for plan, _ in stored])
    return {
        "name": claim.name,
        "state": _state(claim, left, is_driven=driver is not None).value,
        "request": claim.asked,
        "begun_at": at(claim.made_at_ms),
        "offsets": claim.offsets,
        "loaded": claim.offsets - left,
        "left": left,
        "newest_plan": stored[-1][0].number if stored else None,
        "driver": str(driver) if driver else None,
        "offsets_per_second": pace,
        "seconds_left": left / pace if pace and left else None,
        "reason": claim.reason,
    }


def pace_of(claim: Reservation, plans: Sequence[Plan]) -> float | None:
    """Offsets a second between the last plans; None before there are two."""
    some = plans[-PACE_PLANS:]
    if len(some) < 2 or some[-1].created_at_ms <= some[0].created_at_ms:
        return None
    done = loaded_before(claim, some[-1]) - loaded_before(claim, some[0])
    return done * 1000 / (some[-1].created_at_ms - some[0].created_at_ms) or None


def _stored(ledger: PlanLedger) -> list[tuple[Plan, bool]]:
    return [(plan, ledger.read_record_of(plan) is not None) for plan in ledger.read_plans()]


def _left(
    claim: Reservation, stored: Sequence[tuple[Plan, bool]]
) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
    return {} if claim.state is ReservationState.GIVEN_UP else left_of(claim, stored)


def _state(claim: Reservation, left: int, *, is_driven: bool) -> State:
    if claim.state is ReservationState.GIVEN_UP:
        return State.GIVEN_UP
    if is_driven:
        return State.AT_WORK
    if claim.state is ReservationState.CLOSING:
        return State.CLOSING
    return State.STOPPED if left else State.WHOLE
