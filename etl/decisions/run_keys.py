"""What a run reads that was asked for by a key or up to a bound, and whether it was done before.
Pure functions of values.

    what the ledger knows of the key                   what a run under it does
    ------------------------------------------------   ------------------------------------------------------------------
    nothing                                            one plan, or several under caps, up to the bound; then the key is done
    a plan that is stored and not in the table         as any run: that one is executed first, then it looks again
    a plan in the table that reaches its bound         nothing: already applied
    the same, which a cap kept from its bound          goes on to where that plan says, wherever the bound would lie now
    the same, which a log without a leader or with     reads it up to there once it can; until then it is not complete
    another owner, or a paused one, kept from it
    that there was nothing to read                     nothing
    any of these, asked for with other bounds          SettingsError: a key names one thing

A run never passes over offsets. So a bound at the start says where the first plan of all begins, if
it is a time, and later that nothing before it is unread. A bound at the end is the first offset at
or after it in each log, be what lies behind that older or not; a log without a record as late is
read to its end, and the plan counts it (`Bounds.open_logs`).

`tests.model.run_keys` is this in every interleaving of two drivers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from etl.errors import NeedsDecision, SettingsError
from etl.model.partitions import BrokerPartition, PartitionOffsets
from etl.model.plans import NO_BOUNDS, Bound, Bounds, KeptKey, Plan, Request
from etl.model.snapshot import Asked, Snapshot

KEYS_KEPT = 1000
"""Run keys of plans that are not kept any more. One that is forgotten loads nothing twice: the
ledger stands at its bound or beyond.
"""


@dataclass(frozen=True, slots=True)
class Asking:
    """What a plan is made under."""

    run_key: str | None = None
    bounds: Bounds = NO_BOUNDS
    stops: Mapping[BrokerPartition, int] | None = None
    """Where each log is read up to at most; one that is not named is not read. None: all of them to
    their ends.
    """
    waits: Mapping[BrokerPartition, int | None] = field(default_factory=dict)
    """Under a key: logs that cannot be read, and up to where a later plan of it reads them; None:
    nobody knows yet.
    """

    def until(self, log: BrokerPartition, position: int, end: int) -> int:
        """Up to where a log is read from this position on."""
        return end if self.stops is None else max(position, min(end, self.stops.get(log, position)))


NOTHING_ASKED = Asking()


def bounds_to_find(request: Request, newest: Plan | None, plan: Plan | None) -> Bounds:
    """The bounds to look for in the logs: those that the key's plan was made under, or the
    request's. `-1h` is that of the first run.
    """
    of_key = next(
        (
            one
            for one in (newest, plan)
            if one and request.run_key and one.run_key == request.run_key
        ),
        None,
    )
    return of_key.bounds if of_key else request.bounds


def made_under(asked: Asked | None, last: Plan | None) -> Plan | KeptKey | None:
    """What the ledger has of the key, `last` being the pipeline's newest plan in force; None
    without a key, and of one that is new.
    """
    if asked is None or asked.request.run_key is None:
        return None
    return last if last and last.run_key == asked.request.run_key else asked.plan or asked.key


def done_before(asked: Asked | None, last: Plan | None, snapshot: Snapshot) -> KeptKey | None:
    """The key whose run is done, `last` being in the table; None where there is something to do, or
    a log is waited for.

    Raises SettingsError for other bounds.
    """
    found = made_under(asked, last)
    if asked is None or found is None:
        return None
    kept = kept_key(found) if isinstance(found, Plan) else found
    said = asked.request.bounds.said
    if kept.said != said:
        what = f"run key {kept.key} was asked for {kept.said or 'without bounds'}, and now {said or 'without any'}"
        raise SettingsError(
            what,
            key="--run-key",
            check="which of the two is meant; a key names one thing, another one needs another key",
        )
    is_kept = asked.key is not None or not isinstance(found, Plan)
    return kept if is_kept or not left_under_key(asked, last, snapshot) else None


def left_under_key(
    asked: Asked | None, last: Plan | None, snapshot: Snapshot
) -> dict[BrokerPartition, int | None]:
    """Of a key with a plan the logs that are not loaded up to its bound, `last` being in the table,
    and that bound; None: unknown.
    """
    found = made_under(asked, last)
    if asked is None or last is None or not isinstance(found, Plan):
        return {}
    ends = {log: _end_now(log, end, found, asked, snapshot) for log, end in found.key_ends.items()}
    return {
        log: end
        for log, end in ends.items()
        if end is None or log not in last.positions or last.positions[log] < end
    }


def is_found_out(asked: Asked | None, last: Plan | None) -> bool:
    """Whether a key that is done had a log of which nobody knew the bound: then it is kept, for
    what comes there later is not the key's.
    """
    found = made_under(asked, last)
    return (
        asked is not None
        and asked.key is None
        and isinstance(found, Plan)
        and None in found.key_ends.values()
    )


def _end_now(
    log: BrokerPartition, end: int | None, plan: Plan, asked: Asked, snapshot: Snapshot
) -> int | None:
    """The bound that the key's plan knows of a log, or, where that could not be read, the one that
    is found now; None: still not.
    """
    extent = snapshot.extents.get(log)
    if end is not None or extent is None:
        return end
    until = plan.bounds.until
    return _offset(until, extent, asked.untils.get(log)) if until else extent.end_offset


def is_reached(plan: Plan, positions: Mapping[BrokerPartition, int]) -> bool:
    """Whether what is loaded up to these positions is all that this plan's key is to load. Of a log
    without a bound nobody can tell.
    """
    return all(
        end is not None and positions.get(log, -1) >= end for log, end in plan.key_ends.items()
    )


def kept_key(plan: Plan) -> KeptKey:
    """What is kept of the key of a plan that has one."""
    return KeptKey(plan.run_key or "", plan.number, plan.bounds.said)


def key_without_plan(asked: Asked | None, last: Plan | None) -> KeptKey | None:
    """What is kept of a key under which there was nothing to read; None without a key, and of one
    that made plans.
    """
    if asked is None or asked.request.run_key is None or made_under(asked, last):
        return None
    return KeptKey(
        asked.request.run_key, last.number if last else 0, asked.request.bounds.said, is_empty=True
    )


def with_key(keys: tuple[KeptKey, ...], more: KeptKey) -> tuple[KeptKey, ...]:
    """The kept keys and one more, which takes the place of what was known of it; the newest
    `KEYS_KEPT`.
    """
    return (*(one for one in keys if one.key != more.key), more)[-KEYS_KEPT:]


def asking_of(asked: Asked | None, last: Plan | None, snapshot: Snapshot) -> Asking:
    """What the next plan is made under; the key is not done."""
    if asked is None:
        return NOTHING_ASKED
    found, request = made_under(asked, last), asked.request
    if isinstance(found, Plan):
        ends = {
            log: _end_now(log, end, found, asked, snapshot) for log, end in found.key_ends.items()
        }
        now_known = [
            log for log, end in found.key_ends.items() if end is None and log in snapshot.extents
        ]
        more = _open_logs(found.bounds.until, asked, now_known)
        stops = {
            log: end for log, end in ends.items() if log in snapshot.extents and end is not None
        }
        return Asking(
            request.run_key,
            replace(found.bounds, open_logs=found.bounds.open_logs + more),
            stops,
            {log: end for log, end in ends.items() if log not in stops},
        )
    until, waits = request.bounds.until, _waited_for(asked, last, snapshot)
    if until is None:
        return Asking(request.run_key, request.bounds, None, waits)
    stops = {
        log: _offset(until, extent, asked.untils.get(log))
        for log, extent in snapshot.extents.items()
    }
    return Asking(
        request.run_key,
        replace(request.bounds, open_logs=_open_logs(until, asked, snapshot.extents)),
        stops,
        waits,
    )


def _open_logs(until: Bound | None, asked: Asked, logs: Iterable[BrokerPartition]) -> int:
    return (
        sum(asked.untils.get(log) is None for log in logs)
        if until and until.at_ms is not None
        else 0
    )


def _waited_for(
    asked: Asked, last: Plan | None, snapshot: Snapshot
) -> dict[BrokerPartition, int | None]:
    """The logs that the first plan of a key leaves out; the bound of one that is known, and has an
    owner or is paused, is known, too.
    """
    if asked.request.run_key is None:
        return {}
    until, known = asked.request.bounds.until, last.positions if last else {}
    alone = {log: extent for log, extent in snapshot.extents_left_alone.items() if log in known}
    return {
        **dict.fromkeys((*snapshot.leaderless, *snapshot.owners, *snapshot.paused)),
        **{
            log: _offset(until, extent, asked.untils.get(log)) if until else extent.end_offset
            for log, extent in alone.items()
        },
    }


def loaded_beyond(snapshot: Snapshot) -> dict[BrokerPartition, int]:
    """How many offsets of each log are loaded behind the bound of a run that has made no plan yet."""
    last, asked = snapshot.ledger.newest, snapshot.asked
    until = asked.request.bounds.until if asked else None
    if last is None or asked is None or until is None or made_under(asked, last):
        return {}
    stops = asking_of(asked, last, snapshot).stops or {}
    return {
        log: last.positions[log] - stop
        for log, stop in stops.items()
        if last.positions.get(log, 0) > stop
    }


def up_to_bound(
    lags: Mapping[BrokerPartition, int], plan: Plan, snapshot: Snapshot
) -> dict[BrokerPartition, int]:
    """What of these lags behind a run's last plan the run was asked for: under a key all of that is
    in the plan, or in its `key_ends`.
    """
    if plan.run_key:
        return {}
    asking = asking_of(snapshot.asked, None, snapshot)
    ends = {
        log: asking.until(log, plan.positions[log], plan.positions[log] + lag)
        for log, lag in lags.items()
    }
    return {
        log: end - plan.positions[log] for log, end in ends.items() if end > plan.positions[log]
    }


def asking_again(old: Plan) -> Asking:
    """What the plan is made under that takes the place of this one: what was asked for once stays.

    Where the old plan was to end in a physical log a message ended then, and so it does in the same
    log now, though its broker does not name that any more. A log of which nobody knew the bound
    waits on: whoever replaces the plan need not have been asked for the key.
    """
    if not (old.run_key or old.bounds.until):
        return NOTHING_ASKED
    stops = {**old.positions, **{log: end for log, end in old.key_ends.items() if end is not None}}
    return Asking(
        old.run_key,
        old.bounds,
        stops,
        {log: None for log, end in old.key_ends.items() if end is None},
    )


def left_of_key(
    asking: Asking,
    ends: Mapping[BrokerPartition, int],
    stops: Mapping[BrokerPartition, int],
    positions: Mapping[BrokerPartition, int],
) -> dict[BrokerPartition, int | None]:
    """What `Plan.key_ends` keeps of a plan that reads up to `stops`: under a key the logs that caps
    end before their `ends`, those that it was to read and cannot, and those that it waits for."""
    if asking.run_key is None:
        return {}
    capped = {log: end for log, end in ends.items() if stops[log] < end}
    away = {
        log: end
        for log, end in (asking.stops or {}).items()
        if log not in ends and positions.get(log, end) < end
    }
    waits = {log: end for log, end in asking.waits.items() if log not in ends or end is None}
    return {**waits, **away, **capped}


def refuse_start_by_offsets(asked: Asked | None, last: Plan | None) -> None:
    """Refuse a first run that is to begin so many offsets before the end: a start is a time, or a
    policy. Raises SettingsError.
    """
    start = asked.request.bounds.start if asked else None
    if last is None and start is not None and start.back is not None:
        what = f"{start.said} is no start of a pipeline that has made no plan yet: it only says that nothing before it is unread"
        check = "a time, e.g. --from-time -1h or 2026-01-31T00:00:00Z; or leave --from-time out, and source.start says where it begins"
        raise SettingsError(what, key="--from-time", check=check)


def refuse_unread_before(
    asked: Asked | None, known: Mapping[BrokerPartition, int], snapshot: Snapshot
) -> None:
    """Refuse a run that is to begin at a bound before which this pipeline has not read all. Raises
    NeedsDecision.
    """
    start = asked.request.bounds.start if asked else None
    is_begun = isinstance(
        made_under(asked, snapshot.ledger.newest), Plan
    )  # it was asked when the key's first plan was made
    if asked is None or start is None or (start.at_ms is None and start.back is None) or is_begun:
        return
    begins = {
        log: _offset(start, extent, asked.starts.get(log))
        for log, extent in snapshot.extents.items()
    }
    unread = {
        log: begins[log] - known[log]
        for log in sorted(begins.keys() & known.keys())
        if known[log] < begins[log]
    }
    if unread:
        log = min(unread)
        more = f" (and {len(unread) - 1:,} more partitions)" if len(unread) > 1 else ""
        what = f"{sum(unread.values()):,} offsets before {start.said} are not loaded yet, and a run passes over none{more}"
        check = (
            f"what was to load them, from offset {known[log]} to {begins[log]} here: an earlier interval that failed or did not run yet. "
            "Without --from-time a run goes on from where the pipeline is, and loads them, too"
        )
        raise NeedsDecision(what, **log.place, offset=known[log], check=check)


def _offset(bound: Bound, extent: PartitionOffsets, found: int | None) -> int:
    """Where a bound lies in a log whose first record as late is at `found`; at the end where there
    is none.
    """
    if bound.back is not None:
        return max(extent.log_start_offset, extent.end_offset - bound.back)
    return extent.end_offset if found is None else min(found, extent.end_offset)
