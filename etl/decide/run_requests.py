"""What was a run asked to load: a run key, bounds, an interval?

    the ledger's record of the run key                 the run
    ------------------------------------------------   ---------------------------------------------
    none                                               loads up to the bound, in one plan or, with
                                                       caps, several; then the key is done
    a stored plan that is not in the table             executes it, then observes again
    a plan in the table that reaches its bound         loads nothing: already applied
    the same, stopped by a cap                         continues to the recorded ends
    the same, a partition without leader, owned by     reads it up to there once it can
    others or paused
    there was nothing to read                          loads nothing
    any of these, with other bounds                    SettingsError: a key names one request

A run never skips offsets. A start bound says where the first plan of all begins, if it is a time,
and later that nothing before it is unread. An end bound is the first offset at or after it in each
partition; a partition without such a record is read to its end and counted (`Bounds.open_logs`).
`tests.model.run_keys` checks this in all interleavings of two drivers.

The interval of a scheduler's run (Airflow 2.11 and 3.3):

| the run was started | its interval |
| --- | --- |
| by a schedule with data intervals, or `airflow backfill create` over one | the data interval |
| by a plain cron string, a moment in Airflow 3 | an empty data interval |
| by hand, an asset, or the REST API without a logical date | none |
| by `airflow dags trigger` with a logical date | in some versions the last one before now |
| with the params `from` and `until` | those |

So both params count, else a data interval that is not empty, never the logical date.

Completeness of partitions up to a time: a producer may send an old record at any time, so two signs
count: a record of that time or later, or a grace period that has passed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum

from etl.errors import EtlError, SettingsError, family
from etl.model.partitions import BrokerPartition, PartitionOffsets, in_order
from etl.model.plans import NO_BOUNDS, Bound, Bounds, Plan, Request, RunKeyRecord
from etl.model.snapshot import ResolvedRequest, Snapshot

KEYS_KEPT = 1000
"""Run keys of plans that are not kept any more. One that is forgotten loads nothing twice: the
ledger stands at its bound or beyond.
"""


@dataclass(frozen=True, slots=True)
class Asking:
    """What a plan is made for."""

    run_key: str | None = None
    bounds: Bounds = NO_BOUNDS
    stops: Mapping[BrokerPartition, int] | None = None
    """End of each partition to read; others are not read. None: all to their ends."""
    waits: Mapping[BrokerPartition, int | None] = field(default_factory=dict)
    """With a run key: unreadable partitions, and the bound that a later plan reads them to; None:
    unknown.
    """

    def until(self, log: BrokerPartition, position: int, end: int) -> int:
        """Up to where a log is read from this position on."""
        return end if self.stops is None else max(position, min(end, self.stops.get(log, position)))


NOTHING_ASKED = Asking()


def bounds_to_find(request: Request, newest: Plan | None, plan: Plan | None) -> Bounds:
    """Return the bounds to look up: those of the key's plan, or the request's. `-1h` is that of the
    key's first run.
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


def request_of_key(
    resolved: ResolvedRequest | None, last: Plan | None
) -> Plan | RunKeyRecord | None:
    """Return the ledger's record of the key, `last` being the pipeline's newest plan; None without
    a key, and for a new one.
    """
    if resolved is None or resolved.request.run_key is None:
        return None
    if last and last.run_key == resolved.request.run_key:
        return last
    return resolved.plan or resolved.key


def done_before(
    resolved: ResolvedRequest | None, last: Plan | None, snapshot: Snapshot
) -> RunKeyRecord | None:
    """Return the key that is done, `last` being in the table; None if there is something to do or
    wait for. Raises SettingsError for other bounds.
    """
    found = request_of_key(resolved, last)
    if resolved is None or found is None:
        return None
    kept = run_key_to_record(found) if isinstance(found, Plan) else found
    bounds = resolved.request.bounds.said
    if kept.said != bounds:
        message = f"Run key {kept.key} was asked for {kept.said or 'without bounds'}, and now {bounds or 'without any'}"
        raise SettingsError(
            message,
            key="--run-key",
            action="Check which of the two is meant; a key names one thing, another one needs another key",
        )
    is_kept = resolved.key is not None or not isinstance(found, Plan)
    return kept if is_kept or not left_under_key(resolved, last, snapshot) else None


def left_under_key(
    resolved: ResolvedRequest | None, last: Plan | None, snapshot: Snapshot
) -> dict[BrokerPartition, int | None]:
    """Return the partitions of a key's plan that are not loaded up to the bound, `last` being in
    the table, and that bound; None: unknown.
    """
    found = request_of_key(resolved, last)
    if resolved is None or last is None or not isinstance(found, Plan):
        return {}
    ends = {
        log: _end_now(log, end, found, resolved, snapshot) for log, end in found.key_ends.items()
    }
    return {
        log: end
        for log, end in ends.items()
        if end is None or log not in last.positions or last.positions[log] < end
    }


def is_found_out(resolved: ResolvedRequest | None, last: Plan | None) -> bool:
    """True if a finished key has a partition with an unknown bound: it is kept, since later records
    are not the key's.
    """
    found = request_of_key(resolved, last)
    return (
        resolved is not None
        and resolved.key is None
        and isinstance(found, Plan)
        and None in found.key_ends.values()
    )


def _end_now(
    log: BrokerPartition, end: int | None, plan: Plan, resolved: ResolvedRequest, snapshot: Snapshot
) -> int | None:
    """The bound that the key's plan knows of a log, or, where that could not be read, the one that
    is found now; None: still not.
    """
    extent = snapshot.extents.get(log)
    if end is not None or extent is None:
        return end
    until = plan.bounds.until
    return _offset(until, extent, resolved.untils.get(log)) if until else extent.end_offset


def is_reached(plan: Plan, positions: Mapping[BrokerPartition, int]) -> bool:
    """True if these positions are all that this plan's key is to load; unknown for a partition
    without a bound.
    """
    return all(
        end is not None and positions.get(log, -1) >= end for log, end in plan.key_ends.items()
    )


def run_key_to_record(plan: Plan) -> RunKeyRecord:
    """Return what is kept of the key of a plan that has one."""
    return RunKeyRecord(plan.run_key or "", plan.number, plan.bounds.said)


def key_without_plan(resolved: ResolvedRequest | None, last: Plan | None) -> RunKeyRecord | None:
    """Return what is kept of a key with nothing to read; None without a key, and for one that made
    plans.
    """
    if resolved is None or resolved.request.run_key is None or request_of_key(resolved, last):
        return None
    return RunKeyRecord(
        resolved.request.run_key,
        last.number if last else 0,
        resolved.request.bounds.said,
        is_empty=True,
    )


def with_key(keys: tuple[RunKeyRecord, ...], more: RunKeyRecord) -> tuple[RunKeyRecord, ...]:
    """Return the kept keys with one more, which replaces its earlier record; the newest
    `KEYS_KEPT`.
    """
    return (*(one for one in keys if one.key != more.key), more)[-KEYS_KEPT:]


def asking_of(resolved: ResolvedRequest | None, last: Plan | None, snapshot: Snapshot) -> Asking:
    """Return what the next plan is made for; the key is not done."""
    if resolved is None:
        return NOTHING_ASKED
    found, request = request_of_key(resolved, last), resolved.request
    if isinstance(found, Plan):
        ends = {
            log: _end_now(log, end, found, resolved, snapshot)
            for log, end in found.key_ends.items()
        }
        now_known = [
            log for log, end in found.key_ends.items() if end is None and log in snapshot.extents
        ]
        more = _open_logs(found.bounds.until, resolved, now_known)
        stops = {
            log: end for log, end in ends.items() if log in snapshot.extents and end is not None
        }
        return Asking(
            request.run_key,
            replace(found.bounds, open_logs=found.bounds.open_logs + more),
            stops,
            {log: end for log, end in ends.items() if log not in stops},
        )
    until, waits = request.bounds.until, _waited_for(resolved, last, snapshot)
    if until is None:
        return Asking(request.run_key, request.bounds, None, waits)
    stops = {
        log: _offset(until, extent, resolved.untils.get(log))
        for log, extent in snapshot.extents.items()
    }
    return Asking(
        request.run_key,
        replace(request.bounds, open_logs=_open_logs(until, resolved, snapshot.extents)),
        stops,
        waits,
    )


def _open_logs(
    until: Bound | None, resolved: ResolvedRequest, logs: Iterable[BrokerPartition]
) -> int:
    if until and until.at_ms is not None:
        return sum(resolved.untils.get(log) is None for log in logs)
    return 0


def _waited_for(
    resolved: ResolvedRequest, last: Plan | None, snapshot: Snapshot
) -> dict[BrokerPartition, int | None]:
    """The logs that the first plan of a key leaves out; the bound of one that is known, and has an
    owner or is paused, is known, too.
    """
    if resolved.request.run_key is None:
        return {}
    until, known = resolved.request.bounds.until, last.positions if last else {}
    alone = {log: extent for log, extent in snapshot.extents_left_alone.items() if log in known}
    return {
        **dict.fromkeys((*snapshot.leaderless, *snapshot.owners, *snapshot.paused)),
        **{
            log: _offset(until, extent, resolved.untils.get(log)) if until else extent.end_offset
            for log, extent in alone.items()
        },
    }


def loaded_beyond(snapshot: Snapshot) -> dict[BrokerPartition, int]:
    """Return how many offsets of each partition are loaded beyond the bound of a run without a
    plan.
    """
    last, resolved = snapshot.ledger.newest, snapshot.asked
    until = resolved.request.bounds.until if resolved else None
    if last is None or resolved is None or until is None or request_of_key(resolved, last):
        return {}
    stops = asking_of(resolved, last, snapshot).stops or {}
    return {
        log: last.positions[log] - stop
        for log, stop in stops.items()
        if last.positions.get(log, 0) > stop
    }


def up_to_bound(
    lags: Mapping[BrokerPartition, int], plan: Plan, snapshot: Snapshot
) -> dict[BrokerPartition, int]:
    """Return which part of these lags after a run's last plan was requested: with a key all of it
    is in the plan or in its `key_ends`.
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


def request_of_replacement(old: Plan) -> Asking:
    """Return what the replacement of this plan is made for: the original request stays.

    Where the old plan was to end on Jafka a message ended, and still does, though the broker no
    longer names that offset. A partition with an unknown bound waits on.
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
    """Return `Plan.key_ends` of a plan that reads up to `stops`: with a key the partitions that
    caps end before `ends`, that cannot be read, and that it waits for.
    """
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


def _offset(bound: Bound, extent: PartitionOffsets, found: int | None) -> int:
    """Return the offset of a bound; `found` is the first record at or after its time; the end if
    there is none.
    """
    if bound.back is not None:
        return max(extent.log_start_offset, extent.end_offset - bound.back)
    return extent.end_offset if found is None else min(found, extent.end_offset)


_1970 = datetime(1970, 1, 1, tzinfo=UTC)
INTERVALS_MAX = 10_000
"""Most intervals of one check. More means that a period was meant in hours and written in seconds;
each is a request to every leader.
"""


@dataclass(frozen=True, slots=True, order=True)
class TimeInterval:
    """[start, end) in UTC; start lies before end."""

    start: datetime
    end: datetime

    @property
    def run_key(self) -> str:
        """`20260131T050000Z-20260131T060000Z`: the same for a schedule, a retry, a replay by hand
        and a backfill of this interval.
        """
        return f"{_compact(self.start)}-{_compact(self.end)}"

    @property
    def start_ms(self) -> int:
        """Milliseconds since 1970."""
        return milliseconds(self.start)

    @property
    def end_ms(self) -> int:
        """Milliseconds since 1970."""
        return milliseconds(self.end)

    def as_json(self) -> dict[str, str]:
        """In the words of the options of `etl run`."""
        return {
            "from_time": self.start.isoformat(),
            "until_time": self.end.isoformat(),
            "run_key": self.run_key,
        }


def interval_between(start: object, end: object) -> TimeInterval:
    """The interval from one time to another, each ISO 8601 text with a UTC offset, or a datetime
    that has one.

    Raises SettingsError for a time that is none, for no offset, and for an interval that is empty
    or runs backwards.
    """
    found = TimeInterval(moment(start, "from_time"), moment(end, "until_time"))
    if found.start >= found.end:
        how = "is empty" if found.start == found.end else "runs backwards"
        raise SettingsError(
            f"The interval {how}: it ends at {found.end.isoformat()}",
            from_time=found.start.isoformat(),
            action="Check the two times; an interval begins before it ends, and holds its start and not its end",
        )
    return found


def moment(value: object, name: str) -> datetime:
    """Parse a time as UTC; `name` is used in the error. Raises SettingsError."""
    form = "Check its form, which is 2026-01-31T05:00:00+00:00"
    try:
        # also of a datetime: Airflow's are pendulum's, which lose their zone when a time in UTC is
        # reckoned with
        found = datetime.fromisoformat(
            value.isoformat() if isinstance(value, datetime) else str(value).strip()
        )
        in_utc = found.astimezone(UTC) if found.tzinfo is not None else None
    except (
        ValueError,
        OverflowError,
    ) as error:  # OverflowError: the first or last day of the calendar, in UTC
        raise SettingsError(f"{name} is no time: {value}", action=form) from error
    if in_utc is None:
        raise SettingsError(
            f"{name} has no UTC offset: {value}",
            action=f"{form}; the UTC offset is required",
        )
    if in_utc < _1970:
        raise SettingsError(
            f"{name} lies before 1970, where no record's timestamp lies: {value}", action=form
        )
    return in_utc


def divided(whole: TimeInterval, every: timedelta) -> Iterator[TimeInterval]:
    """The whole in intervals of that length, from its start on; the last one ends where the whole
    does.

    Raises SettingsError for a length that is none, or so short that there are more than
    INTERVALS_MAX.
    """
    if every <= timedelta():
        raise SettingsError(
            "An interval lasts no time", action="Pass --every: how long each one is, such as 1h"
        )
    if (whole.end - whole.start) / every > INTERVALS_MAX:
        raise SettingsError(
            f"These are more than {INTERVALS_MAX:,} intervals",
            action="Pass --every, and from when until when is asked for",
        )
    start = whole.start
    while start < whole.end:
        yield TimeInterval(start, min(start + every, whole.end))
        start += every


def intervals_looked_back_at(
    end: datetime, *, behind: timedelta, back: timedelta, every: timedelta
) -> TimeInterval:
    """Return intervals of length `every`, `back` long in all, the last ending at least `behind`
    before `end`. Each begins at a multiple of its length since 1970. Later ones may not have been
    loaded yet.
    """
    last = end - behind
    last -= (last - _1970) % every
    return TimeInterval(last - back, last)


_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def duration(text: str, option: str) -> timedelta:
    """Parse a DURATION: `500ms`, `90s`, `15m`, `1h`, `7d`. Raises SettingsError."""
    found = re.fullmatch(r"([0-9]{1,9})(ms|[smhd])", text.strip(), re.ASCII)
    if not found:
        raise SettingsError(
            f"{option} is no duration: {text}",
            key=option,
            action="Check its form: 90s, 15m, 1h or 7d",
        )
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def point_in_time(text: str, option: str, now_ms: int) -> datetime:
    """Parse a TIME: ISO 8601 with a UTC offset, or `-1h` (before now). Raises SettingsError."""
    if re.fullmatch(r"-[0-9]{1,9}[smhd]", text.strip(), re.ASCII):
        now = _1970 + timedelta(milliseconds=now_ms)
        return now - duration(text.strip()[1:], option)
    return moment(text, option)


def milliseconds(when: datetime) -> int:
    """Return milliseconds since 1970, rounded up: no record of the earlier millisecond is at or
    after the time.
    """
    micros = (when - _1970) // timedelta(microseconds=1)
    return -(-micros // 1000)


def _compact(when: datetime) -> str:
    fraction = f".{when.microsecond:06d}" if when.microsecond else ""
    return f"{when:%Y%m%dT%H%M%S}{fraction}Z"


HOW_TO_SAY = (
    "Check how the run was started: give both params, from and until; or by the REST API a logical date with data_interval_start and "
    "data_interval_end; or leave it to the schedule, and old intervals to `airflow backfill create`"
)
DOCUMENT_FILE = "ETL_DOCUMENT_FILE"
"""Environment variable with a file that a command also writes its document to. spark-submit mixes
standard output with other lines.
"""


def interval_of_run(
    from_time: object,
    until_time: object,
    data_interval: tuple[object, object] = (None, None),
    logical_date: datetime | None = None,
) -> TimeInterval:
    """The interval that a run is for: that of its params, else its data interval. None or an empty
    text is a param that was not given.

    Raises SettingsError where there is none, where only one of the params is given, where the data
    interval is not the logical date's, and as `interval_between`.
    """
    given = [bound for bound in (from_time, until_time) if bound not in (None, "")]
    if len(given) == 1:
        raise SettingsError(f"Of from and until only one is given: {given[0]}", action=HOW_TO_SAY)
    start, end = (from_time, until_time) if given else data_interval
    if start is None or end is None:
        raise SettingsError(
            "The run has no interval: nothing says which stretch of time it is for",
            action=HOW_TO_SAY,
        )
    if not given and start == end:
        raise SettingsError(
            f"The run's data interval is empty: it begins and ends at {start}",
            action=f"Check the schedule: a plain cron string is a moment, CronDataIntervalTimetable has intervals. {HOW_TO_SAY}",
        )
    found = interval_between(start, end)
    if not given and logical_date is not None and logical_date < found.start:
        raise SettingsError(
            f"The run's data interval is not that of its logical date {logical_date.isoformat()}: it is {found.start.isoformat()} to "
            f"{found.end.isoformat()}",
            action=HOW_TO_SAY,
        )
    return found


def run_arguments(conf: str, interval: TimeInterval, *, is_physical: bool) -> list[str]:
    """Return the arguments of `etl run` up to the end of the interval, once. Jafka has no times: up
    to the ends. The start is not passed: a run continues from the ledger, so a failed interval is
    loaded by the next run.
    """
    until = [] if is_physical else ["--until", interval.end.isoformat()]
    return [conf, "--run-key", interval.run_key, *until, "--json"]


def range_arguments(params: Mapping[str, object]) -> list[str]:
    """Return `--partition`, `--from` and `--until` of the params that are set."""
    arguments = []
    partitions = params.get("partitions")
    for partition in partitions if isinstance(partitions, Sequence) else ():
        arguments += ["--partition", str(partition).strip()]
    for name in ("from", "until"):
        value = params.get(name)
        if value is not None and str(value).strip():
            arguments += [f"--{name}", str(value).strip()]
    return arguments


def replay_arguments(conf: str, params: Mapping[str, object]) -> list[str]:
    """Return the arguments of `etl replay`."""
    reason = ["--reason", str(params["reason"])]
    return [conf, *range_arguments(params), *reason, "--yes", "--json"]


def backfill_arguments(conf: str, params: Mapping[str, object]) -> list[str]:
    """Return the arguments of `etl backfills run`. Retries use the same name and continue."""
    only_unloaded = ["--only-unloaded"] if params.get("only_unloaded") else []
    return [conf, str(params["name"]), *range_arguments(params), *only_unloaded, "--json"]


class Verdict(str, Enum):
    """What a scheduler does with a run that ended."""

    DONE = "done"
    RETRY = "retry"
    FAIL = "fail"
    """At once: a retry would end in the same way."""


_RETRIABLE = {kind.exit_code for kind in family(EtlError) if kind.retriable}
_OF_OURS = {kind.exit_code for kind in family(EtlError)}
_NOT_STARTED = (126, 127)
"""A shell's: the command is not there, or may not be executed."""


def verdict_of(exit_code: int | None, document: Mapping[str, object] | None) -> Verdict:
    """Return the verdict by exit code and document; None: unknown, or missing. spark-submit may
    change the exit code, so the document counts first. A killed command leaves none: it is retried,
    which is safe for a run key.
    """
    reported = document.get("exit_code") if document else None
    if exit_code == 0 and reported in (0, None):
        return Verdict.DONE
    if isinstance(reported, int) and reported:
        return Verdict.RETRY if reported in _RETRIABLE else Verdict.FAIL
    is_final = exit_code in _NOT_STARTED or exit_code in _OF_OURS - _RETRIABLE - {
        EtlError.exit_code
    }  # 1 is spark-submit's own, too
    return Verdict.FAIL if is_final and reported is None else Verdict.RETRY


def incomplete_logs(
    first_at: Mapping[BrokerPartition, int | None],
    *,
    until_ms: int,
    now_ms: int,
    grace_s: float,
    unled: Collection[BrokerPartition] = (),
) -> tuple[BrokerPartition, ...]:
    """Return the partitions that are not known to be complete up to `until_ms`.

    `first_at`: the first offset of each partition at or after that time; None if there is none, and
    for partitions without times. Before that time none is complete, since clocks of producers may
    be ahead. `unled`: partitions without a leader for which a run would stop.
    """
    is_past = now_ms >= until_ms + grace_s * 1000
    late = (
        log
        for log, offset in first_at.items()
        if not is_past and (offset is None or now_ms < until_ms)
    )
    return tuple(in_order({*late, *unled}))
