"""In which time zone does Spark compute dates, and which plans had another one?

`spark.sql.session.timeZone` of the conf, then Spark's own configuration, then UTC. The machine's
time zone never counts. A plan stores its zone, so that a run, a replay or a backfill under another
one is described in its report.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from etl.model.partitions import TopicPartition
from etl.model.plans import Plan
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
_Offsets = tuple[TopicPartition, int, int]
"""Partition and its offsets [from, until)."""
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
    """Return the zone of a session with these settings. `configured`: Spark's own configuration."""
    if conf.get(TIME_ZONE):
        return TimeZone(conf[TIME_ZONE], ZoneSource.CONF)
    if configured.get(TIME_ZONE):
        return TimeZone(configured[TIME_ZONE], ZoneSource.SPARK)
    return TimeZone(UTC, ZoneSource.DEFAULT)


def is_same_zone(one: str, other: str) -> bool:
    """Return True if both names mean one zone; UTC and fixed offsets have several names."""
    return _meaning(one) == _meaning(other)


def _meaning(zone: str) -> str:
    minutes = offset_minutes(zone)
    if minutes is None:
        return zone
    return str(minutes)


def offset_minutes(zone: str) -> int | None:
    """Return the minutes east of UTC; None for the name of a region."""
    if zone in _OF_UTC:
        return 0
    found = _OFFSET.fullmatch(zone)
    if found is None:
        return None
    minutes = int(found[2]) * 60 + int(found[3] or 0)
    if found[1] == "+":
        return minutes
    return -minutes


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
    sign, opposite = "-", "+"
    if minutes > 0:
        sign, opposite = "+", "-"
    return f"<{sign}{hours:02d}{rest:02d}>{opposite}{hours}:{rest:02d}"


def describe_time_zones(plan: Plan, snapshot: Snapshot) -> Iterator[str]:
    """Describe that a plan is executed under another time zone than that of the plan, or the last
    plan.
    """
    newest = snapshot.ledger.newest
    if not plan.ranges:
        return
    if _is_other(plan.origin.time_zone, snapshot):
        yield _describe_change(plan, f"it was stored under {plan.origin.time_zone}", snapshot)
    elif (
        newest is not None and newest.id != plan.id and _is_other(newest.origin.time_zone, snapshot)
    ):
        yield _describe_change(
            plan, f"the plan before it was made under {newest.origin.time_zone}", snapshot
        )


def in_time_zone(plan: Plan, snapshot: Snapshot) -> Plan:
    """Return the plan with the time zone of this run, which its commit names. Its id stays."""
    time_zone = snapshot.time_zone or plan.origin.time_zone
    return replace(plan, origin=replace(plan.origin, time_zone=time_zone))


def describe_replaced_time_zones(
    plan: Plan, loaded: Sequence[Plan], snapshot: Snapshot
) -> Iterator[str]:
    """Describe that a replay runs under another time zone than the plans whose rows it replaces.

    One sentence per zone. `loaded`: the stored plans in their order. If none of them has a time
    zone, the plan before the replay counts.
    """
    by_zone: dict[str, Plan] = {}
    for source in reversed(_loaded_last(plan, loaded)):
        if source.origin.time_zone is not None:
            by_zone[source.origin.time_zone] = source
    for zone, source in by_zone.items():
        if _is_other(zone, snapshot):
            before = f"plan {source.number}, whose rows it replaces, was made under {zone}"
            yield _describe_change(plan, before, snapshot)
    if not by_zone:
        yield from describe_time_zones(plan, snapshot)


def _loaded_last(plan: Plan, loaded: Sequence[Plan]) -> list[Plan]:
    """Return the plans that made the present rows of these offsets, newest first.

    A replay replaces the rows of earlier plans.
    """
    left = [(span.partition, span.from_offset, span.until_offset) for span in plan.ranges]
    found: list[Plan] = []
    for earlier in reversed(loaded):
        rest = _without(left, earlier)
        if rest != left:
            found.append(earlier)
        left = rest
    return found


def _without(left: list[_Offsets], plan: Plan) -> list[_Offsets]:
    """Return these offsets without those that the plan loaded."""
    for loaded in plan.ranges:
        rest: list[_Offsets] = []
        for partition, start, until in left:
            is_apart = until <= loaded.from_offset or loaded.until_offset <= start
            if partition != loaded.partition or is_apart:
                rest.append((partition, start, until))
                continue
            if start < loaded.from_offset:
                rest.append((partition, start, loaded.from_offset))
            if loaded.until_offset < until:
                rest.append((partition, loaded.until_offset, until))
        left = rest
    return left


def _is_other(zone: str | None, snapshot: Snapshot) -> bool:
    if zone is None or snapshot.time_zone is None:
        return False
    return not is_same_zone(zone, snapshot.time_zone)


def _describe_change(plan: Plan, before: str, snapshot: Snapshot) -> str:
    return (
        f"plan {plan.number} is executed under the time zone {snapshot.time_zone}, and {before}: "
        "dates and hours that Spark computes from a moment may differ between their rows "
        f"({TIME_ZONE})"
    )
