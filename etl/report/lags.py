"""How far a table is behind its logs: records, bytes and time of each partition, and how long until
retention takes what is not read.

The lag itself is `decide.lag`'s, as everywhere. What nobody tells stays None, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from etl.decide.lag import Headroom, Reached, headroom, lag_of, oldest_unread, position_of
from etl.decide.set_offsets import paused_logs
from etl.errors import NeedsDecision
from etl.model.partitions import BrokerPartition, OldestRecord, in_order
from etl.model.snapshot import Pause, Snapshot
from etl.report.pauses import told_pause, told_paused
from etl.report.sentences import logs_of, told_extent, told_open, told_unknown
from etl.report.words import at, of_known
from etl.settings.sections import Settings

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
    """One partition. None: not known, and `unknown` says why; but where nothing lags there is no
    oldest record, and no headroom to tell.
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
            "paused": told_pause(self.paused),
        }


@dataclass(frozen=True, slots=True)
class Lags:
    """All partitions, as of one moment."""

    at_ms: int
    logs: tuple[LogLag, ...]
    open_transactions: tuple[str, ...] = ()
    """Which logs an open transaction holds back, a sentence for each topic: what lies behind it
    cannot be read, and does not lag.
    """
    paused: tuple[str, ...] = ()
    """What is paused, a sentence for what each command paused."""
    refusal: NeedsDecision | None = None
    """What a run would stop at: where the ledgers disagree nothing lags that is known, where logs
    are others, not those.
    """

    @property
    def totals(self) -> dict[str, Any]:
        """Of what is known: sums, the longest time behind and the least headroom; None where
        nothing is known.
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
        """What is not known of which logs: a sentence for each reason and topic."""
        return tuple(
            sentence
            for name, words in _WORDS.items()
            for sentence in told_unknown(
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
    """Of each log that lags, its oldest offset that is not in the table."""
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
    """The lag behind what was observed, where the pipeline is `so_far` (None: nobody knows how
    far).

    `told`: the oldest unread records of logs that were asked for them; `refusal`: see `Lags`.
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
        tuple(told_open(snapshot)),
        tuple(told_paused(snapshot, now_ms=now_ms)),
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
    extent = told_extent(snapshot, log)
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
