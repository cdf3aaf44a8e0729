"""What does a request of a run mean: a run key, bounds, an interval of time?

Lives here: what remains to load under a run key, offsets of bounds, parsing of times and durations,
the interval of a scheduler's run, arguments of its commands, and how it treats their results.
Not here: `--until` and `--run-key`, with the rejection of an end in the future
(etl/settings/until_and_run_key.py); looking up times (etl/io/brokers/times.py); making plans
(etl/decide/plan.py).

    the ledger's record of the run key                 the run
    ------------------------------------------------   ---------------------------------------------
    none                                               loads up to the bound, in one plan or, with
                                                       caps, several; then the key is done
    a stored plan that is not in the table             executes it, then observes again
    a plan in the table that reaches its bound         loads nothing: already applied
    the same, stopped by a cap                         continues to the recorded ends
    the same, a partition without leader, owned by     reads it up to its recorded end as soon as it
    others or paused                                   is readable
    the same, an open transaction where the bound may  reads it up to the bound as soon as that is
    be                                                 known
    of a run without new records                       loads nothing
    any of these, with other bounds                    SettingsError: a key names one request

A run never skips offsets. A start bound by time is the start of the pipeline's first plan; later it
requires that nothing before it is unread. An end bound is the first offset at or after it in each
partition; a partition without such a record is read to its end and counted
(`Bounds.open_partitions`).

The interval of a scheduler's run (Airflow 2.11 and 3.3):

| the run was started | its interval |
| --- | --- |
| by a schedule with data intervals, or `airflow backfill create` over one | the data interval |
| by a plain cron string, a moment in Airflow 3 | an empty data interval |
| by hand, an asset, or the REST API without a logical date | none |
| by `airflow dags trigger` with a logical date | in some versions the last one before now |
| with the params `from` and `until` | those |

So both params count, else a data interval that is not empty, never the logical date.

A producer may send an old record at any time, so a partition counts as complete up to a time after
a record of that time or later, or after a grace period.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum

from etl.errors import EtlError, SettingsError, family
from etl.model.partitions import PartitionOffsets, TopicPartition, in_order
from etl.model.plans import NO_BOUNDS, Bound, Bounds, Plan, Request, RunKeyRecord
from etl.model.snapshot import ResolvedRequest, Snapshot

KEYS_KEPT = 1000
"""Kept run keys of pruned plans.

A forgotten key loads nothing twice: the ledger is at its bound or beyond.
"""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Request of a plan: run key, bounds, and the offsets that they mean."""

    run_key: str | None = None
    bounds: Bounds = NO_BOUNDS
    stops: Mapping[TopicPartition, int] | None = None
    """End of each partition to read; others are not read. None: all to their ends."""
    waits: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    """With a run key: partitions that are not readable up to their bounds, and the bounds for later
    plans (None: unknown).
    """

    def until(self, partition: TopicPartition, position: int, end: int) -> int:
        """Return the offset up to which a partition is read from `position` on."""
        if self.stops is None:
            return end
        return max(position, min(end, self.stops.get(partition, position)))


NO_REQUEST = PlanRequest()


def bounds_to_find(request: Request, newest: Plan | None, plan: Plan | None) -> Bounds:
    """Return the bounds to look up: those of the key's plan, or the request's.

    `-1h` is relative to the key's first run.
    """
    if request.run_key:
        for stored in (newest, plan):
            if stored and stored.request.run_key == request.run_key:
                return stored.request.bounds
    return request.bounds


def request_of_key(
    resolved: ResolvedRequest | None, last: Plan | None
) -> Plan | RunKeyRecord | None:
    """Return the ledger's record of the key; None without a key, and for a new one.

    `last`: the pipeline's newest plan.
    """
    if resolved is None or resolved.request.run_key is None:
        return None
    if last and last.request.run_key == resolved.request.run_key:
        return last
    return resolved.plan or resolved.key


def finished_key(
    resolved: ResolvedRequest | None, last: Plan | None, snapshot: Snapshot
) -> RunKeyRecord | None:
    """Return the key that is done; None if there are offsets to load or to wait for.

    `last` is in the table. Raises SettingsError for other bounds.
    """
    found = request_of_key(resolved, last)
    if resolved is None or found is None:
        return None
    is_recorded = resolved.key is not None
    if isinstance(found, Plan):
        record = run_key_to_record(found)
    else:
        record = found
        is_recorded = True
    bounds = resolved.request.bounds.said
    if record.said != bounds:
        message = (
            f"Run key {record.key} was first used {record.said or 'without bounds'}, "
            f"and now {bounds or 'without bounds'}"
        )
        action = "Check which of the two is meant. A key names one request: use another key"
        raise SettingsError(message, key="--run-key", action=action)
    if not is_recorded and left_under_key(resolved, last, snapshot):
        return None
    return record


def left_under_key(
    resolved: ResolvedRequest | None, last: Plan | None, snapshot: Snapshot
) -> dict[TopicPartition, int | None]:
    """Return the partitions of a key's plan that are not loaded up to their bound, and the bound.

    `last` is in the table. A bound is None if it is unknown.
    """
    found = request_of_key(resolved, last)
    if resolved is None or last is None or not isinstance(found, Plan):
        return {}
    left = {}
    for partition, end in _key_ends_now(found, resolved, snapshot).items():
        if end is None or partition not in last.loaded_until or last.loaded_until[partition] < end:
            left[partition] = end
    return left


def is_bound_now_known(resolved: ResolvedRequest | None, last: Plan | None) -> bool:
    """True if a finished key had a partition with an unknown bound.

    Its record is stored, as later records do not belong to the key.
    """
    found = request_of_key(resolved, last)
    return (
        resolved is not None
        and resolved.key is None
        and isinstance(found, Plan)
        and None in found.request.unfinished.values()
    )


def _key_ends_now(
    plan: Plan, resolved: ResolvedRequest, snapshot: Snapshot
) -> dict[TopicPartition, int | None]:
    """Return the bounds of the key's plan, with bounds that were unknown and are known now."""
    ends = dict(plan.request.unfinished)
    for partition, end in plan.request.unfinished.items():
        if end is None and partition in snapshot.readable:
            ends[partition] = _known_bound_of(
                partition, plan.request.bounds.until, snapshot.readable[partition], resolved
            )
    return ends


def is_reached(plan: Plan, positions: Mapping[TopicPartition, int]) -> bool:
    """True if these loaded-until offsets are at all bounds of the plan's key.

    False if a bound is unknown.
    """
    for partition, end in plan.request.unfinished.items():
        if end is None or positions.get(partition, -1) < end:
            return False
    return True


def run_key_to_record(plan: Plan) -> RunKeyRecord:
    """Return the record of the key of a plan that has one."""
    return RunKeyRecord(plan.request.run_key or "", plan.number, plan.request.bounds.said)


def key_without_plan(resolved: ResolvedRequest | None, last: Plan | None) -> RunKeyRecord | None:
    """Return the record of a key with nothing to read; None without a key, and if it made plans."""
    if resolved is None or resolved.request.run_key is None or request_of_key(resolved, last):
        return None
    number = 0
    if last:
        number = last.number
    request = resolved.request
    return RunKeyRecord(resolved.request.run_key, number, request.bounds.said, is_empty=True)


def with_key(keys: tuple[RunKeyRecord, ...], more: RunKeyRecord) -> tuple[RunKeyRecord, ...]:
    """Return the newest `KEYS_KEPT` keys with one more, which replaces its earlier record."""
    others = [record for record in keys if record.key != more.key]
    return (*others, more)[-KEYS_KEPT:]


def plan_request(
    resolved: ResolvedRequest | None, last: Plan | None, snapshot: Snapshot
) -> PlanRequest:
    """Return the request of the next plan; the key is not done."""
    if resolved is None:
        return NO_REQUEST
    found = request_of_key(resolved, last)
    if isinstance(found, Plan):
        return _continued_request(found, resolved, snapshot)
    bounds = resolved.request.bounds
    waits = _waited_for(resolved, last, snapshot)
    if bounds.until is None:
        return PlanRequest(resolved.request.run_key, bounds, None, waits)
    stops = {}
    for partition, offsets in snapshot.readable.items():
        stops[partition] = _bound_of(partition, bounds.until, offsets, resolved)
    open_partitions = _count_open(bounds.until, resolved, snapshot.readable)
    bounds = replace(bounds, open_partitions=open_partitions)
    return PlanRequest(resolved.request.run_key, bounds, stops, waits)


def _continued_request(plan: Plan, resolved: ResolvedRequest, snapshot: Snapshot) -> PlanRequest:
    """Return the request of the next plan of a key that has a plan."""
    stops: dict[TopicPartition, int] = {}
    waits: dict[TopicPartition, int | None] = {}
    now_known = {}
    for partition, end in _key_ends_now(plan, resolved, snapshot).items():
        if end is None or partition not in snapshot.readable:
            waits[partition] = end
            continue
        stops[partition] = end
        if plan.request.unfinished[partition] is None:
            now_known[partition] = snapshot.readable[partition]
    open_partitions = plan.request.bounds.open_partitions + _count_open(
        plan.request.bounds.until, resolved, now_known
    )
    bounds = replace(plan.request.bounds, open_partitions=open_partitions)
    return PlanRequest(resolved.request.run_key, bounds, stops, waits)


def _count_open(
    until: Bound | None,
    resolved: ResolvedRequest,
    partitions: Mapping[TopicPartition, PartitionOffsets],
) -> int:
    """Return the number of partitions without a record at or after the time of the bound."""
    if until is None or until.at_ms is None:
        return 0
    count = 0
    for partition, offsets in partitions.items():
        is_found = resolved.untils.get(partition) is not None
        if not is_found and not offsets.held_back:
            count += 1
    return count


def _waited_for(
    resolved: ResolvedRequest, last: Plan | None, snapshot: Snapshot
) -> dict[TopicPartition, int | None]:
    """Return the partitions that the first plan of a key does not read to their bounds, and these.

    The bound of an owned or paused partition is known if the pipeline has begun it.
    """
    if resolved.request.run_key is None:
        return {}
    waits: dict[TopicPartition, int | None] = dict.fromkeys(
        (*snapshot.leaderless, *snapshot.owners, *snapshot.paused)
    )
    begun: Mapping[TopicPartition, int] = {}
    if last:
        begun = last.loaded_until
    for partition, offsets in snapshot.left_out.items():
        if partition in begun:
            waits[partition] = _known_bound_of(
                partition, resolved.request.bounds.until, offsets, resolved
            )
    for partition, offsets in snapshot.readable.items():
        end = _known_bound_of(partition, resolved.request.bounds.until, offsets, resolved)
        if end is None:
            waits[partition] = None
    return waits


def loaded_beyond(snapshot: Snapshot) -> dict[TopicPartition, int]:
    """Return the number of offsets that are loaded beyond the bound of a run without a plan."""
    last = snapshot.ledger.newest
    resolved = snapshot.request
    if last is None or resolved is None or resolved.request.bounds.until is None:
        return {}
    if request_of_key(resolved, last):
        return {}
    beyond = {}
    stops = plan_request(resolved, last, snapshot).stops or {}
    for partition, stop in stops.items():
        if last.loaded_until.get(partition, 0) > stop:
            beyond[partition] = last.loaded_until[partition] - stop
    return beyond


def up_to_bound(
    lags: Mapping[TopicPartition, int], plan: Plan, snapshot: Snapshot
) -> dict[TopicPartition, int]:
    """Return the requested part of these lags after a run's last plan.

    With a key all of it is in the plan or in its `key_ends`.
    """
    if plan.request.run_key:
        return {}
    asking = plan_request(snapshot.request, None, snapshot)
    requested = {}
    for partition, lag in lags.items():
        loaded_until = plan.loaded_until[partition]
        end = asking.until(partition, loaded_until, loaded_until + lag)
        if end > loaded_until:
            requested[partition] = end - loaded_until
    return requested


def request_of_replacement(old: Plan) -> PlanRequest:
    """Return the request of the plan that replaces this one: the same.

    On Jafka the end of the old plan is still the end of a message, though the broker does not
    return that offset any more. A partition with an unknown bound still waits for it.
    """
    if not (old.request.run_key or old.request.bounds.until):
        return NO_REQUEST
    stops = dict(old.loaded_until)
    waits: dict[TopicPartition, int | None] = {}
    for partition, end in old.request.unfinished.items():
        if end is None:
            waits[partition] = None
        else:
            stops[partition] = end
    return PlanRequest(old.request.run_key, old.request.bounds, stops, waits)


def left_of_key(
    asking: PlanRequest,
    ends: Mapping[TopicPartition, int],
    stops: Mapping[TopicPartition, int],
    positions: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int | None]:
    """Return `PlannedRequest.unfinished` of a plan that reads up to `stops`.

    With a key these are the partitions that caps end before `ends`, unreadable ones, and those that
    the request waits for.
    """
    if asking.run_key is None:
        return {}
    key_ends: dict[TopicPartition, int | None] = {}
    for partition, waited_end in asking.waits.items():
        if partition not in ends or waited_end is None:
            key_ends[partition] = waited_end
    for partition, stop in (asking.stops or {}).items():
        if partition not in ends and positions.get(partition, stop) < stop:
            key_ends[partition] = stop
    for partition, end in ends.items():
        has_unknown_bound = partition in key_ends and key_ends[partition] is None
        if stops[partition] < end and not has_unknown_bound:
            key_ends[partition] = end
    return key_ends


def _known_bound_of(
    partition: TopicPartition,
    until: Bound | None,
    offsets: PartitionOffsets,
    resolved: ResolvedRequest,
) -> int | None:
    """Return `_bound_of`; None if it is unknown.

    Brokers search times among readable records. If they find none, and an open transaction hides
    the records at the end of the log, the bound may be among these.
    """
    is_by_time = until is not None and until.at_ms is not None
    if is_by_time and offsets.held_back and resolved.untils.get(partition) is None:
        return None
    return _bound_of(partition, until, offsets, resolved)


def _bound_of(
    partition: TopicPartition,
    until: Bound | None,
    offsets: PartitionOffsets,
    resolved: ResolvedRequest,
) -> int:
    """Return the offset of the end bound in a partition; its end without a bound.

    By time: the first record at or after it, or the end if there is none.
    """
    if until is None:
        return offsets.end_offset
    if until.back is not None:
        return max(offsets.log_start_offset, offsets.end_offset - until.back)
    found = resolved.untils.get(partition)
    if found is None:
        return offsets.end_offset
    return min(found, offsets.end_offset)


_1970 = datetime(1970, 1, 1, tzinfo=UTC)
INTERVALS_MAX = 10_000
"""Most intervals of one check: each is a request to every leader.

More are a sign of a length in seconds that was meant in hours.
"""


@dataclass(frozen=True, slots=True, order=True)
class TimeInterval:
    """Interval [start, end) in UTC; start is before end."""

    start: datetime
    end: datetime

    @property
    def run_key(self) -> str:
        """Return `20260131T050000Z-20260131T060000Z`.

        It is the same for a schedule, a retry, a replay by hand and a backfill of this interval.
        """
        return f"{_compact(self.start)}-{_compact(self.end)}"

    @property
    def start_ms(self) -> int:
        """Return the start in milliseconds since 1970."""
        return milliseconds(self.start)

    @property
    def end_ms(self) -> int:
        """Return the end in milliseconds since 1970."""
        return milliseconds(self.end)

    def as_json(self) -> dict[str, str]:
        """Return the interval with keys like the options of `etl run`."""
        return {
            "from_time": self.start.isoformat(),
            "until_time": self.end.isoformat(),
            "run_key": self.run_key,
        }


def interval_between(start: object, end: object) -> TimeInterval:
    """Return the interval of two times: ISO 8601 text, or datetime, with a UTC offset.

    Raises SettingsError for an invalid time, a missing offset, and for an interval that is empty or
    runs backwards.
    """
    interval = TimeInterval(moment(start, "--from"), moment(end, "--until"))
    if interval.start >= interval.end:
        problem = "runs backwards"
        if interval.start == interval.end:
            problem = "is empty"
        raise SettingsError(
            f"The interval {problem}: it ends at {interval.end.isoformat()}",
            from_time=interval.start.isoformat(),
            action=(
                "Check --from and --until, in a DAG the params from and until. The start is "
                "included, the end is not, and the start is before the end"
            ),
        )
    return interval


def moment(value: object, name: str) -> datetime:
    """Parse a time as UTC; `name` is used in the error. Raises SettingsError."""
    form = "Check its form, which is 2026-01-31T05:00:00+00:00"
    text = str(value).strip()
    if isinstance(value, datetime):
        # Airflow's datetimes are pendulum's, which lose their time zone in arithmetic with UTC.
        text = value.isoformat()
    in_utc = None
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            in_utc = found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        # OverflowError: the first or last day of the calendar in UTC.
        raise SettingsError(f"{name} is not a time: {value}", action=form) from error
    if in_utc is None:
        raise SettingsError(
            f"{name} has no UTC offset: {value}", action=f"{form}. The UTC offset is required"
        )
    if in_utc < _1970:
        message = f"{name} is before 1970, and timestamps of records are not: {value}"
        raise SettingsError(message, action=form)
    return in_utc


def split_into_intervals(whole: TimeInterval, every: timedelta) -> Iterator[TimeInterval]:
    """Yield intervals of that length from the start on; the last one ends at the end of the whole.

    Raises SettingsError for a length that is not positive, or so short that there are more than
    INTERVALS_MAX.
    """
    if every <= timedelta():
        raise SettingsError(
            "The length of an interval is not positive",
            action="Pass the length of an interval as --every, such as 1h",
        )
    if (whole.end - whole.start) / every > INTERVALS_MAX:
        raise SettingsError(
            f"These are more than {INTERVALS_MAX:,} intervals",
            action="Pass a longer --every, or a shorter time from --from to --until",
        )
    start = whole.start
    while whole.end - start > every:
        yield TimeInterval(start, start + every)
        start += every
    if start < whole.end:
        yield TimeInterval(start, whole.end)


def checked_period(
    end: datetime, *, behind: timedelta, back: timedelta, every: timedelta
) -> TimeInterval:
    """Return the whole of intervals of length `every`, `back` long in all.

    It ends at least `behind` before `end`, as later intervals may not have been loaded yet. Each
    interval begins at a multiple of its length since 1970.
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
            f"{option} is not a duration: {text}",
            key=option,
            action="Check its form: 90s, 15m, 1h or 7d",
        )
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def point_in_time(text: str, option: str, now_ms: int) -> datetime:
    """Parse a TIME: ISO 8601 with a UTC offset, or `-1h` (before now). Raises SettingsError."""
    if re.fullmatch(r"-[0-9]{1,9}[smhd]", text.strip(), re.ASCII):
        now = _1970 + timedelta(milliseconds=now_ms)
        try:
            return now - duration(text.strip()[1:], option)
        except OverflowError:
            raise SettingsError(
                f"{option} {text} is before the year 1",
                key=option,
                action="Pass a shorter duration",
            ) from None
    return moment(text, option)


def milliseconds(when: datetime) -> int:
    """Return milliseconds since 1970, rounded up.

    A record of the earlier millisecond is before the time.
    """
    micros = (when - _1970) // timedelta(microseconds=1)
    return -(-micros // 1000)


def _compact(when: datetime) -> str:
    fraction = ""
    if when.microsecond:
        fraction = f".{when.microsecond:06d}"
    return f"{when:%Y%m%dT%H%M%S}{fraction}Z"


_HOW_TO_SET_INTERVAL = (
    "Check how the run was started. Pass both params, from and until, or by the REST API a logical "
    "date with data_interval_start and data_interval_end. Or leave it to the schedule, and old "
    "intervals to `airflow backfill create`"
)
DOCUMENT_FILE = "ETL_DOCUMENT_FILE"
"""Environment variable with a file that a command writes its document to, also without `--json`.

spark-submit mixes standard output with other lines.
"""


def interval_of_run(
    from_time: object,
    until_time: object,
    data_interval: tuple[object, object] = (None, None),
    logical_date: datetime | None = None,
) -> TimeInterval:
    """Return the interval of a scheduler's run: that of its params, else its data interval.

    None or an empty text is a param that was not passed. Raises SettingsError if there is no
    interval, if only one of the params is passed, if the data interval is not that of the logical
    date, and as `interval_between`.
    """
    passed = [bound for bound in (from_time, until_time) if bound not in (None, "")]
    if len(passed) == 1:
        message = f"Of from and until only one is given: {passed[0]}"
        raise SettingsError(message, action=_HOW_TO_SET_INTERVAL)
    if passed:
        return interval_between(from_time, until_time)
    start, end = data_interval
    if start is None or end is None:
        raise SettingsError(
            "The run has no interval: neither params nor a data interval",
            action=_HOW_TO_SET_INTERVAL,
        )
    if start == end:
        action = (
            "Check the schedule: a plain cron string is a moment, CronDataIntervalTimetable has "
            f"intervals. {_HOW_TO_SET_INTERVAL}"
        )
        raise SettingsError(
            f"The run's data interval is empty: it begins and ends at {start}", action=action
        )
    interval = interval_between(start, end)
    if logical_date is not None and logical_date < interval.start:
        message = (
            "The run's data interval is not that of its logical date "
            f"{logical_date.isoformat()}: it is {interval.start.isoformat()} to "
            f"{interval.end.isoformat()}"
        )
        raise SettingsError(message, action=_HOW_TO_SET_INTERVAL)
    return interval


def run_arguments(conf: str, interval: TimeInterval, *, finds_times: bool) -> list[str]:
    """Return the arguments of `etl run` up to the end of the interval, once.

    Up to the ends of the partitions if the brokers find no times. The start is not passed: a run
    continues from the ledger, so a failed interval is loaded by the next run.
    """
    until = []
    if finds_times:
        until = ["--until", interval.end.isoformat()]
    return [conf, "--run-key", interval.run_key, *until]


def range_arguments(params: Mapping[str, object]) -> list[str]:
    """Return `--partition`, `--from` and `--until` of the params that are set."""
    arguments = []
    partitions = params.get("partitions")
    if isinstance(partitions, Sequence):
        for partition in partitions:
            arguments += ["--partition", str(partition).strip()]
    for name in ("from", "until"):
        value = params.get(name)
        if value is not None and str(value).strip():
            arguments += [f"--{name}", str(value).strip()]
    return arguments


def replay_arguments(conf: str, params: Mapping[str, object]) -> list[str]:
    """Return the arguments of `etl replay`."""
    reason = ["--reason", str(params["reason"])]
    return [conf, *range_arguments(params), *reason, _confirmation(params)]


def _confirmation(params: Mapping[str, object]) -> str:
    return "--dry-run" if params.get("dry_run") else "--yes"


def backfill_arguments(conf: str, params: Mapping[str, object]) -> list[str]:
    """Return the arguments of `etl backfills run`. Retries use the same name and continue."""
    arguments = [conf, str(params["name"]), *range_arguments(params)]
    if params.get("only_unloaded"):
        arguments.append("--only-unloaded")
    return [*arguments, _confirmation(params)]


class Verdict(str, Enum):
    """Decision of a scheduler after a run ended."""

    DONE = "done"
    RETRY = "retry"
    FAIL = "fail"
    """At once: a retry would have the same result."""


_RETRIABLE = {kind.exit_code for kind in family(EtlError) if kind.retriable}
_EXIT_CODES = {kind.exit_code for kind in family(EtlError)}
_NOT_STARTED = (126, 127)
"""Exit codes of a shell: the command is missing, or may not be executed."""
_FINAL = _EXIT_CODES - _RETRIABLE - {EtlError.exit_code}
"""Exit codes without a retry; not 1, which spark-submit uses, too."""


def verdict_of(exit_code: int | None, document: Mapping[str, object] | None) -> Verdict:
    """Return the verdict by exit code and document; None: unknown, or missing.

    spark-submit may change the exit code, so the document counts first. A killed command leaves no
    document: it is retried, which is safe with a run key.
    """
    reported = None
    if document:
        reported = document.get("exit_code")
    if exit_code == 0 and reported in (0, None):
        return Verdict.DONE
    if isinstance(reported, int) and reported:
        is_final = reported not in _RETRIABLE
    else:
        is_final = reported is None and (exit_code in _NOT_STARTED or exit_code in _FINAL)
    if is_final:
        return Verdict.FAIL
    return Verdict.RETRY


def incomplete_partitions(
    first_at: Mapping[TopicPartition, int | None],
    *,
    until_ms: int,
    now_ms: int,
    grace_s: float,
    unled: Collection[TopicPartition] = (),
) -> tuple[TopicPartition, ...]:
    """Return the partitions that are not known to be complete up to `until_ms`.

    `first_at`: the first offset of each partition at or after that time; None if there is none, and
    for partitions without timestamps. Before that time none is complete, since clocks of producers
    may be ahead. `unled`: partitions without a leader for which a run would stop.
    """
    incomplete = set(unled)
    is_grace_over = now_ms >= until_ms + grace_s * 1000
    for partition, offset in first_at.items():
        if not is_grace_over and (offset is None or now_ms < until_ms):
            incomplete.add(partition)
    return tuple(in_order(incomplete))
