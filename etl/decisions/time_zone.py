"""The time zone in which Spark computes dates and hours, and where it differs from that of earlier
rows. Pure functions of values.

The order: `spark.sql.session.timeZone` of the conf, then what Spark was configured with
(spark-submit, `spark-defaults.conf`, or the session that was there before), then UTC. The local
time zone of a machine never counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from etl.model.partitions import BrokerPartition
from etl.model.plans import Plan, PlanKind
from etl.model.snapshot import Snapshot

TIME_ZONE = "spark.sql.session.timeZone"
TIME_ZONE_OF_WORKERS = "spark.executorEnv.TZ"
"""The local time zone of Spark's Python workers, where Spark starts them with the session."""
UTC = "UTC"
_OF_UTC = frozenset(
    (
        "UTC",
        "Etc/UTC",
        "Zulu",
        "Etc/Zulu",
        "UCT",
        "Etc/UCT",
        "Universal",
        "Etc/Universal",
        "Z",
        "UT",
        "GMT",
        "Etc/GMT",
    )
)
_Offsets = tuple[BrokerPartition, int, int]
"""[from, until) of one log."""
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?")


class ZoneSource(str, Enum):
    """Where a time zone was configured."""

    CONF = f"{TIME_ZONE} of the conf"
    SPARK = f"{TIME_ZONE} of spark-submit, spark-defaults.conf or the session that was there before"
    DEFAULT = "the default"


@dataclass(frozen=True, slots=True)
class TimeZone:
    """The time zone of a Spark session."""

    name: str
    source: ZoneSource


def time_zone_of(conf: Mapping[str, str], configured: Mapping[str, str]) -> TimeZone:
    """Return the zone of a session with these settings; `configured` are those that Spark has from
    elsewhere.
    """
    if conf.get(TIME_ZONE):
        return TimeZone(conf[TIME_ZONE], ZoneSource.CONF)
    if configured.get(TIME_ZONE):
        return TimeZone(configured[TIME_ZONE], ZoneSource.SPARK)
    return TimeZone(UTC, ZoneSource.DEFAULT)


def is_same_zone(one: str, other: str) -> bool:
    """True if both names stand for one zone; names of UTC and of fixed offsets are compared by
    their meaning.
    """
    return _meaning(one) == _meaning(other)


def _meaning(zone: str) -> str:
    minutes = offset_minutes(zone)
    return zone if minutes is None else str(minutes)


def offset_minutes(zone: str) -> int | None:
    """Minutes east of UTC; None for the name of a region."""
    if zone in _OF_UTC:
        return 0
    found = _OFFSET.fullmatch(zone)
    if found is None:
        return None
    minutes = int(found[2]) * 60 + int(found[3] or 0)
    return minutes if found[1] == "+" else -minutes


def local_zone(zone: str) -> str:
    """Return the zone as the environment variable TZ takes it: POSIX counts an offset the other way
    round.
    """
    minutes = offset_minutes(zone)
    if minutes is None:
        return zone
    if minutes == 0:
        return UTC
    hours, rest = divmod(abs(minutes), 60)
    sign, opposite = ("+", "-") if minutes > 0 else ("-", "+")
    return f"<{sign}{hours:02d}{rest:02d}>{opposite}{hours}:{rest:02d}"


def told_time_zones(plan: Plan, snapshot: Snapshot) -> Iterator[str]:
    """Where this run executes a plan under another zone than the one of the plan, of the plan
    before, or of the live pipeline.
    """
    newest = snapshot.ledger.newest
    if not plan.ranges:
        return
    if _is_other(plan.time_zone, snapshot):
        yield _told(plan, f"it was stored under {plan.time_zone}", snapshot)
    elif newest is not None and newest.id != plan.id and _is_other(newest.time_zone, snapshot):
        yield _told(plan, f"the plan before it was made under {newest.time_zone}", snapshot)
    if plan.kind is PlanKind.BACKFILL and _is_other(snapshot.live_time_zone, snapshot):
        yield _told(
            plan,
            f"the newest plan of the live pipeline was made under {snapshot.live_time_zone}",
            snapshot,
        )


def in_time_zone(plan: Plan, snapshot: Snapshot) -> Plan:
    """The plan as it is executed now: its commit names the zone in which its rows are made. Its id
    stays.
    """
    return replace(plan, time_zone=snapshot.time_zone or plan.time_zone)


def told_replaced_zones(plan: Plan, loaded: Sequence[Plan], snapshot: Snapshot) -> Iterator[str]:
    """The same of a replay, and of the plans whose rows it replaces; one sentence for each zone.

    `loaded` are the plans that are kept, in their order. Where none of them says more, the plan
    before the replay does.
    """
    by_zone = {
        one.time_zone: one
        for one in reversed(_loaded_last(plan, loaded))
        if one.time_zone is not None
    }
    for zone, one in by_zone.items():
        if _is_other(zone, snapshot):
            yield _told(
                plan, f"plan {one.number}, whose rows it replaces, was made under {zone}", snapshot
            )
    if not by_zone:
        yield from told_time_zones(plan, snapshot)


def _loaded_last(plan: Plan, loaded: Sequence[Plan]) -> list[Plan]:
    """The plans that made the rows of these offsets, the newest first: a replay takes the place of
    what was before it.
    """
    left = [(r.log, r.from_offset, r.until_offset) for r in plan.ranges]
    found = list[Plan]()
    for one in reversed(loaded):
        rest = _without(left, one)
        if rest != left:
            found.append(one)
        left = rest
    return found


def _without(left: list[_Offsets], plan: Plan) -> list[_Offsets]:
    """These offsets without those that the plan loaded."""
    for r in plan.ranges:
        rest = list[_Offsets]()
        for log, start, until in left:
            if log != r.log or until <= r.from_offset or r.until_offset <= start:
                rest.append((log, start, until))
                continue
            parts = ((log, start, r.from_offset), (log, r.until_offset, until))
            rest += [part for part in parts if part[1] < part[2]]
        left = rest
    return left


def _is_other(zone: str | None, snapshot: Snapshot) -> bool:
    return (
        zone is not None
        and snapshot.time_zone is not None
        and not is_same_zone(zone, snapshot.time_zone)
    )


def _told(plan: Plan, before: str, snapshot: Snapshot) -> str:
    return (
        f"plan {plan.number} is executed under the time zone {snapshot.time_zone}, and {before}: dates and hours that Spark computes "
        f"from a moment may differ between their rows ({TIME_ZONE})"
    )
