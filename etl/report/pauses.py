"""What is said of paused logs: since when and why, by whom, how much waits in them, and how long
retention leaves it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from etl.decide.lag import Headroom, headroom
from etl.decide.set_offsets import leave_paused, paused_logs
from etl.model.partitions import BrokerPartition, OldestRecord
from etl.model.plans import Plan
from etl.model.snapshot import Pause, Snapshot
from etl.report.progress import time_in_words
from etl.report.sentences import named_keys
from etl.report.words import at, of_known

PAUSES_LOST = "if logs were paused, they are not any more: what ZooKeeper lost of that, `etl offsets pause` says again"
_TIMELESS = OldestRecord(why="messages of these brokers have no time")
_SILENT = OldestRecord(why="its broker was not asked")


@dataclass(frozen=True, slots=True)
class Resting:
    """What one command paused of a topic, as its logs were seen."""

    pauses: tuple[Pause, ...]
    """Of one topic, reason and moment."""
    logs: tuple[BrokerPartition, ...]
    """Those that are there."""
    unread: int | None
    """Offsets (bytes, if physical) that wait in those of which it is known; None: of none."""
    headroom_s: float | None
    """How long until the first of them may expire; None: nothing waits, or nobody knows."""
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
    """What an operator said, for programs; a topic that is paused as a whole has no partition."""
    log = pause.log
    place = log.place if log else {"topic": pause.topic, "partition": None}
    return {**place, **(told_pause(pause) or {})}


def told_pause(pause: Pause | None) -> dict[str, Any] | None:
    """Why a log is paused, in a document of logs; None where it is not."""
    return (
        {"reason": pause.reason, "by": pause.by, "since_at": at(pause.since_ms)} if pause else None
    )


def resting(snapshot: Snapshot, *, now_ms: int) -> tuple[Resting, ...]:
    """What is paused, one value for what a command paused of a topic, with the logs as they were
    seen.
    """
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


def told_paused(snapshot: Snapshot, *, now_ms: int) -> Iterator[str]:
    """The same as sentences."""
    return (one.says for one in resting(snapshot, now_ms=now_ms))


def told_loaded_all_the_same(
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


def told_executed_whole(plan: Plan, pauses: Iterable[Pause]) -> str:
    """The end of a sentence on a stored plan that reads logs which were paused since; empty where
    it reads none.
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
    """How much waits in it, and its headroom where something does; None where nobody leads it, so
    that nobody tells.
    """
    extent, newest = snapshot.extents.get(log), snapshot.ledger.newest
    if extent is None:
        return None
    start = max(extent.log_start_offset, newest.positions.get(log, 0) if newest else 0)
    if start >= extent.end_offset:
        return 0, None
    oldest = snapshot.oldest_of_paused.get(log, _TIMELESS if log.is_physical else _SILENT)
    return extent.end_offset - start, headroom(log, start, oldest, snapshot, now_ms=now_ms)
