"""How far the reading of a plan is, how fast it goes and when it may end. Values and arithmetic;
what tells of it is `edges.progress_port`.

Receipts are right and come when a task has ended; what tasks tell while they read may be late or
lost. Of a task whose receipts are all here they count, of every other one the last that it told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from etl.model.plans import OffsetRange, RangeResult

_WINDOW_S = 30.0
"""The pace is that of the last seconds: tasks wait for a broker, and begin cold."""
_LEAST_S = 2.0
"""Before that a pace says nothing."""


@dataclass(frozen=True, slots=True)
class Told:
    """What one attempt of a task has read by now."""

    attempt: int
    offsets: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ReadSoFar:
    """How far all tasks together are."""

    ranges: int
    ranges_in_all: int
    offsets: int
    offsets_in_all: int
    records: int
    bytes: int


class Reckoning:
    """The tasks of one reading (indices of `ranges`), and what is known of each. A task's number is
    its first index.
    """

    def __init__(self, ranges: Sequence[OffsetRange], tasks: Sequence[Sequence[int]]) -> None:
        self._ranges = len(ranges)
        self._left = {task[0]: tuple(task) for task in tasks}
        self.planned = {task[0]: sum(ranges[i].size for i in task) for task in tasks}
        """Offsets by task."""
        self._ended = Told(0, 0, 0, 0)

    def reached(self, receipts: Mapping[int, RangeResult], told: Mapping[int, Told]) -> ReadSoFar:
        """Where the tasks are by these receipts (by range) and by what they told (by task)."""
        for number in [
            number for number, task in self._left.items() if all(i in receipts for i in task)
        ]:
            came = [receipts[i] for i in self._left.pop(number)]
            self._ended = _and(
                self._ended,
                Told(
                    0,
                    self.planned[number],
                    sum(r.rows or 0 for r in came),
                    sum(r.fetched_bytes or 0 for r in came),
                ),
            )
        so_far = self._ended
        for number in self._left.keys() & told.keys():
            so_far = _and(so_far, told[number])
        return ReadSoFar(
            min(len(receipts), self._ranges),
            self._ranges,
            so_far.offsets,
            sum(self.planned.values()),
            so_far.records,
            so_far.bytes,
        )


def _and(a: Told, b: Told) -> Told:
    return Told(0, a.offsets + b.offsets, a.records + b.records, a.bytes + b.bytes)


class Pace:
    """How fast the reading goes of late."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, ReadSoFar]] = deque()

    def see(self, now: float, reached: ReadSoFar) -> None:
        """Where the tasks are at that moment, in seconds of a clock that only goes forward."""
        if self._seen and reached.offsets < self._seen[-1][1].offsets:
            self._seen.clear()  # a task began anew
        self._seen.append((now, reached))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _WINDOW_S:
            self._seen.popleft()

    @property
    def records_per_second(self) -> float | None:
        """None while it is not known."""
        first, last, passed = self._window()
        return (last.records - first.records) / passed if passed else None

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this pace; None while that is not known."""
        first, last, passed = self._window()
        done = last.offsets - first.offsets if passed else 0
        return (last.offsets_in_all - last.offsets) * passed / done if done else None

    def _window(self) -> tuple[ReadSoFar, ReadSoFar, float]:
        """The ends of what was seen of late, and the seconds between; none where that is too short
        to tell.
        """
        (began, first), (now, last) = (
            (self._seen[0], self._seen[-1]) if self._seen else ((0.0, _NOTHING), (0.0, _NOTHING))
        )
        return first, last, now - began if now - began >= _LEAST_S else 0.0


def told_in_words(reached: ReadSoFar, pace: Pace | None = None) -> str:
    """How far, and where that is of interest still how fast and for how long: one line."""
    done = 100 * reached.offsets // max(reached.offsets_in_all, 1)
    words = [f"{done}%", f"{reached.records:,} records", size_in_words(reached.bytes)]
    if pace is not None and pace.records_per_second is not None:
        words.append(f"{pace.records_per_second:,.0f} records/s")
    if pace is not None and pace.seconds_left is not None:
        words.append(f"about {time_in_words(pace.seconds_left)} left")
    return ", ".join(words)


def size_in_words(size: float) -> str:
    """Bytes for a person."""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def time_in_words(seconds: float) -> str:
    """A duration for a person: 45 s, 2:05 min, 3:20 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60}:{whole % 60:02} min"
        if whole < 3600
        else f"{whole // 3600}:{whole % 3600 // 60:02} h"
    )


_NOTHING = ReadSoFar(0, 0, 0, 0, 0, 0)
