"""How are the lag of a table and its paused partitions described?

Records, bytes and time behind per partition, and the time left before retention deletes unread
records. An unknown value is None, with the reason. The lag itself is computed in etl/decide/lag.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from etl.decide.lag import Headroom, Reached, headroom, lag_of, oldest_unread, position_of
from etl.decide.set_offsets import leave_paused, paused_logs
from etl.errors import NeedsDecision
from etl.model.partitions import BrokerPartition, OldestRecord, in_order
from etl.model.plans import Plan
from etl.model.snapshot import Pause, Snapshot
from etl.report.describe import (
    at,
    describe_open,
    describe_partition_offsets,
    describe_unknown,
    logs_of,
    named_keys,
    of_known,
)
from etl.report.run_state import time_in_words
from etl.settings.sections import Settings

PAUSES_LOST = "if logs were paused, they are not any more: what ZooKeeper lost of that, `etl topics pause` says again"
_WITHOUT_TIME = OldestRecord(why="messages of these brokers have no time")
_SILENT = OldestRecord(why="its broker was not asked")


@dataclass(frozen=True, slots=True)
class Resting:
    """What one command paused of a topic, with its partitions."""

    pauses: tuple[Pause, ...]
    """Of one topic, reason and time."""
    logs: tuple[BrokerPartition, ...]
    """Those that are there."""
    unread: int | None
    """Offsets (bytes, if physical) that wait in those of which it is known; None: of none."""
    headroom_s: float | None
    """Time until the first of them may expire; None: nothing waits, or unknown."""
    why_unknown: str = "nobody tells"

    @property
    def says(self) -> str:
        """A sentence."""
        first = self.pauses[0]
        where = named_keys(self.logs or tuple(one.log for one in self.pauses if one.log))
        said = f"{f'{first.topic} {where}'.strip()}: paused since {at(first.since_ms)} by {first.by}: {first.reason}"
        if not self.logs:
            return f"{said}; brokers tell of no such log: it is gone, or their ACLs keep it from us"
        if self.unread is None:
            return f"{said}; how much waits there is not known"
        if not self.unread:
            return f"{said}; nothing waits there"
        waits = f"{self.unread:,} {self.logs[0].unit}s wait"
        if self.headroom_s is None:
            return f"{said}; {waits}, and when they may expire is not known: {self.why_unknown}"
        soon = (
            "may expire from now on"
            if not self.headroom_s
            else f"may expire in {time_in_words(self.headroom_s)}"
        )
        return f"{said}; {waits}, and the oldest {soon}"

    def as_json(self) -> dict[str, Any]:
        """For programs; `partitions` are those that are there, and of a topic that is paused as a
        whole all of them.
        """
        first = self.pauses[0]
        return {
            "topic": first.topic,
            "whole_topic": any(one.log is None for one in self.pauses),
            "partitions": [log.key for log in self.logs],
            "reason": first.reason,
            "by": first.by,
            "since_at": at(first.since_ms),
            "unread": self.unread,
            "headroom_s": self.headroom_s,
        }


def described_pause(pause: Pause) -> dict[str, Any]:
    """Return an operator's pause, for programs; a topic paused as a whole has no partition."""
    log = pause.log
    place = log.place if log else {"topic": pause.topic, "partition": None}
    return {**place, **(describe_pause(pause) or {})}


def describe_pause(pause: Pause | None) -> dict[str, Any] | None:
    """Why a log is paused, in a document of logs; None where it is not."""
    return (
        {"reason": pause.reason, "by": pause.by, "since_at": at(pause.since_ms)} if pause else None
    )


def resting(snapshot: Snapshot, *, now_ms: int) -> tuple[Resting, ...]:
    """Return what is paused, a value for each command and topic, with the observed partitions."""
    paused = leave_paused(snapshot).paused
    whole = replace(snapshot, extents={**snapshot.extents_of_paused, **snapshot.extents})
    together: dict[tuple[str, str, str, int], tuple[list[Pause], list[BrokerPartition]]] = {}
    for one in snapshot.pauses:
        together.setdefault(_said(one), ([], []))[0].append(one)
    for log, pause in sorted(paused.items()):
        together[_said(pause)][1].append(log)
    return tuple(
        _resting(tuple(pauses), tuple(logs), whole, now_ms) for pauses, logs in together.values()
    )


def describe_paused(snapshot: Snapshot, *, now_ms: int) -> Iterator[str]:
    """Describe the same: a sentence each."""
    return (one.says for one in resting(snapshot, now_ms=now_ms))


def describe_paused_but_loaded(
    logs: Iterable[BrokerPartition], pauses: Iterable[Pause]
) -> tuple[str, ...]:
    """A sentence for each paused log that a replay or a backfill names: who names offsets means
    them, and the log rests on.
    """
    return tuple(
        f"{log} is paused since {at(why.since_ms)} by {why.by}: {why.reason}; what is named of it is loaded all the same, and it "
        "stays paused"
        for log, why in sorted(paused_logs(logs, pauses).items())
    )


def describe_paused_but_executed(plan: Plan, pauses: Iterable[Pause]) -> str:
    """Describe that a stored plan reads partitions which were paused since, as the end of a
    sentence; empty if it reads none.
    """
    paused = sorted(paused_logs({r.log for r in plan.ranges}, pauses))
    if not paused:
        return ""
    more = f" and {len(paused) - 1:,} more" if paused[1:] else ""
    return f"; {paused[0]}{more} in it paused since then, and a stored plan is executed whole"


def _said(pause: Pause) -> tuple[str, str, str, int]:
    return pause.topic, pause.reason, pause.by, pause.since_ms


def _resting(
    pauses: tuple[Pause, ...], logs: tuple[BrokerPartition, ...], snapshot: Snapshot, now_ms: int
) -> Resting:
    found = [told for log in logs if (told := _of_log(log, snapshot, now_ms))]
    rooms = [room for _, room in found if room]
    unread, left = (
        of_known(sum, (waits for waits, _ in found)),
        of_known(min, (room.seconds for room in rooms)),
    )
    return Resting(
        pauses, logs, unread, left, next((room.why for room in rooms if room.why), "nobody tells")
    )


def _of_log(
    log: BrokerPartition, snapshot: Snapshot, now_ms: int
) -> tuple[int, Headroom | None] | None:
    """Return how much waits in a partition, and its time left; None without a leader."""
    extent, newest = snapshot.extents.get(log), snapshot.ledger.newest
    if extent is None:
        return None
    start = max(extent.log_start_offset, newest.positions.get(log, 0) if newest else 0)
    if start >= extent.end_offset:
        return 0, None
    oldest = snapshot.oldest_of_paused.get(log, _WITHOUT_TIME if log.is_physical else _SILENT)
    return extent.end_offset - start, headroom(log, start, oldest, snapshot, now_ms=now_ms)


_WORDS = {
    "lag": "the lag",
    "estimated_bytes": "the size",
    "behind_s": "the time behind",
    "headroom_s": "when records may expire",
}
_NOT_ASKED, _TIMELESS = (
    OldestRecord(why="its broker was not asked"),
    OldestRecord(why="messages of these brokers have no time"),
)


@dataclass(frozen=True, slots=True)
class LogLag:
    """Lag of one partition. None: unknown, with the reason in `unknown`; without lag there is no
    oldest record and no time left.
    """

    log: BrokerPartition
    extent: Mapping[str, int | None]
    position: int | None
    lag: int | None
    """Offsets, and so records at most; bytes, if physical."""
    estimated_bytes: int | None = None
    oldest_ms: int | None = None
    """The time of the oldest unread record, in milliseconds since 1970."""
    behind_s: float | None = None
    headroom: Headroom = field(default_factory=Headroom)
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Why something is not known, by the name that it has in the document."""
    paused: Pause | None = None

    def as_json(self) -> dict[str, Any]:
        """The partition in the document of `etl lag`."""
        return {
            **self.log.place,
            **self.extent,
            "position": self.position,
            "lag": self.lag,
            "records_at_most": None if self.log.is_physical else self.lag,
            "estimated_bytes": self.estimated_bytes,
            "oldest_unread_at": at(self.oldest_ms),
            "behind_s": self.behind_s,
            "headroom_s": self.headroom.seconds,
            "headroom_rests_on": self.headroom.rests_on,
            "headroom_bytes": self.headroom.bytes,
            "unknown": dict(self.unknown),
            "paused": describe_pause(self.paused),
        }


@dataclass(frozen=True, slots=True)
class Lags:
    """All partitions, as of one moment."""

    at_ms: int
    logs: tuple[LogLag, ...]
    open_transactions: tuple[str, ...] = ()
    """Open transactions, a sentence per topic: records behind them are unreadable and do not lag.
    """
    paused: tuple[str, ...] = ()
    """Paused partitions, a sentence per command."""
    refusal: NeedsDecision | None = None
    """The error of a run: if ledgers disagree no lag is known, changed partitions have none."""

    @property
    def totals(self) -> dict[str, Any]:
        """Return sums, the longest time behind and the least time left of what is known; None if
        nothing is.
        """
        known = [one for one in self.logs if one.lag is not None]
        is_physical = any(one.log.is_physical for one in self.logs)
        return {
            "partitions": len(self.logs),
            "partitions_unknown": len(self.logs) - len(known),
            "lag": of_known(sum, (one.lag for one in known)),
            "records_at_most": None if is_physical else of_known(sum, (one.lag for one in known)),
            "estimated_bytes": of_known(sum, (one.estimated_bytes for one in known)),
            "behind_s": of_known(max, (one.behind_s for one in known)),
            "headroom_s": of_known(min, (one.headroom.seconds for one in known)),
            "headroom_bytes": of_known(min, (one.headroom.bytes for one in known)),
        }

    @property
    def unknown(self) -> tuple[str, ...]:
        """Describe what is unknown: a sentence per reason and topic."""
        return tuple(
            sentence
            for name, words in _WORDS.items()
            for sentence in describe_unknown(
                words, {one.log: one.unknown[name] for one in self.logs if name in one.unknown}
            )
        )

    def as_json(self) -> dict[str, Any]:
        """The document of `etl lag`."""
        return {
            "at": at(self.at_ms),
            "totals": self.totals,
            "open_transactions": list(self.open_transactions),
            "paused": list(self.paused),
            "partitions": [one.as_json() for one in self.logs],
        }


def unread_from(
    snapshot: Snapshot, so_far: Reached | None, settings: Settings
) -> dict[BrokerPartition, int]:
    """Return the first unread offset of each partition that lags."""
    if so_far is None:
        return {}
    lagging = [log for log in snapshot.extents if lag_of(log, snapshot, so_far, settings)]
    return {
        log: oldest
        for log in lagging
        if (oldest := oldest_unread(log, snapshot, so_far, settings)) is not None
    }


def lags_at(
    snapshot: Snapshot,
    so_far: Reached | None,
    settings: Settings,
    told: Mapping[BrokerPartition, OldestRecord],
    *,
    now_ms: int,
    refusal: NeedsDecision | None = None,
) -> Lags:
    """Return the lag of a snapshot; `so_far`: the pipeline's positions (None: unknown). `told`: the
    oldest unread records; `refusal`: see `Lags`.
    """
    logs, timeless = (
        in_order(logs_of(snapshot)),
        {log: _TIMELESS for log in logs_of(snapshot) if log.is_physical},
    )
    paused = paused_logs(logs, snapshot.pauses)
    rows = tuple(
        replace(
            _row(
                log,
                snapshot,
                settings,
                so_far,
                told.get(log, timeless.get(log, _NOT_ASKED)),
                now_ms,
            ),
            paused=paused.get(log),
        )
        for log in logs
    )
    return Lags(
        now_ms,
        rows,
        tuple(describe_open(snapshot)),
        tuple(describe_paused(snapshot, now_ms=now_ms)),
        refusal,
    )


def _row(
    log: BrokerPartition,
    snapshot: Snapshot,
    settings: Settings,
    so_far: Reached | None,
    oldest: OldestRecord,
    now_ms: int,
) -> LogLag:
    extent = describe_partition_offsets(snapshot, log)
    if so_far is None:
        return LogLag(
            log,
            extent,
            None,
            None,
            unknown={"lag": "the ledgers disagree, so nobody knows what the table holds"},
        )
    position = position_of(log, snapshot, so_far, settings)
    behind, begins = (
        lag_of(log, snapshot, so_far, settings),
        oldest_unread(log, snapshot, so_far, settings),
    )
    if behind is None or begins is None:
        return LogLag(
            log, extent, position, None, unknown={"lag": _why_unknown(log, snapshot, so_far)}
        )
    if not behind:
        return LogLag(log, extent, position, 0, 0, behind_s=0.0)
    unknown = dict[str, str]()
    size = _size(log, behind, snapshot, unknown)
    room = headroom(log, begins, oldest, snapshot, now_ms=now_ms)
    if room.why:
        unknown["headroom_s"] = room.why
    if oldest.timestamp_ms is None:
        unknown["behind_s"] = oldest.why or "nobody tells"
        return LogLag(log, extent, position, behind, size, headroom=room, unknown=unknown)
    behind_s = max(0, now_ms - oldest.timestamp_ms) / 1000
    return LogLag(log, extent, position, behind, size, oldest.timestamp_ms, behind_s, room, unknown)


def _size(
    log: BrokerPartition, behind: int, snapshot: Snapshot, unknown: dict[str, str]
) -> int | None:
    """About how many bytes lag, by what an offset of the log takes on average; None, and the reason
    in `unknown`.
    """
    cost, settings = snapshot.bytes_per_offset.get(log), snapshot.retention.get(log.topic)
    if cost is None:
        unknown["estimated_bytes"] = "the brokers do not tell the size of the log"
    elif settings is not None and settings.is_tiered:
        unknown["estimated_bytes"] = (
            "the brokers tell the size of what they hold themselves, and part of the log is in remote storage"
        )
    else:
        return round(behind * cost)
    return None


def _why_unknown(log: BrokerPartition, snapshot: Snapshot, so_far: Reached) -> str:
    if log not in snapshot.extents:
        return f"it {log.unled}"
    if log in so_far.others:
        return "it is no longer the log whose offsets are known"
    return "nobody can say yet where it starts"
