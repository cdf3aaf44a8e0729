"""Which partition is fetched next, and whose records are returned?

    fetched     assigned partitions, not paused, with no records left
    returned    records of the first partition in the queue, then of the next, up to the maximum
    requeued    partitions without records left, and those whose records cannot be read
    kept        records of a paused partition, one response at most
    dropped     records of a partition after a seek or when it is no longer assigned

A record that cannot be read raises in the turn that reaches it before any other was returned, and
again until the program seeks past it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from operator import length_hint
from typing import Generic, TypeVar

from etl.errors import EtlError, NotAssigned
from etl.model.partitions import BrokerPartition

Record = TypeVar("Record")


class _Chunk(Generic[Record]):
    """The records of one answer, of which the next one is known: so it is known when none is left."""

    def __init__(self, records: Iterator[Record]) -> None:
        self._records = records
        self._next: list[Record] = []
        self.failure: EtlError | None = None
        """Why the next one cannot be had."""
        self._has_looked = False

    @property
    def is_empty(self) -> bool:
        if not self._has_looked and length_hint(self._records) > 0:
            return False  # and none is made before somebody wants it
        self._ensure_next()
        return not self._next and self.failure is None

    def take(self, most: int) -> list[Record]:
        """The next records, fewer where no more are there or one cannot be read."""
        found: list[Record] = []
        self._ensure_next()
        while self._next and len(found) < most:
            found += self._next
            self._look()
        return found

    def _ensure_next(self) -> None:
        if not self._has_looked:
            self._look()

    def _look(self) -> None:
        self._has_looked = True
        try:
            self._next = [record for record in [next(self._records, None)] if record is not None]
        except EtlError as failure:
            self._next, self.failure = [], failure


class Rotation(Generic[Record]):
    """The partitions of one consumer in order, with the rest of each one's last response. For one
    thread.
    """

    def __init__(self) -> None:
        self._queue: list[BrokerPartition] = []
        self._left: dict[BrokerPartition, _Chunk[Record]] = {}
        self._paused: set[BrokerPartition] = set()

    @property
    def assigned(self) -> tuple[BrokerPartition, ...]:
        """In the order of their turns."""
        return tuple(self._queue)

    @property
    def paused(self) -> frozenset[BrokerPartition]:
        """Return the paused partitions: not fetched, nothing returned."""
        return frozenset(self._paused)

    def assign(self, logs: Iterable[BrokerPartition]) -> None:
        """Set the partitions. One that stays keeps its turn, its records and its pause; a new one
        comes last, not paused.
        """
        wanted = dict.fromkeys(logs)
        self._queue = [log for log in self._queue if log in wanted]
        self._queue += [log for log in wanted if log not in set(self._queue)]
        self._paused &= wanted.keys()
        self._left = {log: chunk for log, chunk in self._left.items() if log in wanted}

    def pause(self, logs: Collection[BrokerPartition]) -> None:
        """Leave them alone until they are resumed. Raises NotAssigned, and then pauses none."""
        self._reject_foreign(logs)
        self._paused |= set(logs)

    def resume(self, logs: Collection[BrokerPartition]) -> None:
        """Fetch them again, and return their records. Raises NotAssigned, and then resumes none."""
        self._reject_foreign(logs)
        self._paused -= set(logs)

    def to_ask(self) -> tuple[BrokerPartition, ...]:
        """Return which partitions to fetch next, in order."""
        return tuple(
            log for log in self._queue if log not in self._paused and log not in self._left
        )

    def feed(self, log: BrokerPartition, records: Iterator[Record]) -> None:
        """Add a response; dropped if the partition is no longer assigned. Raises ValueError if
        records of an earlier one are left: it should not have been fetched.
        """
        if log in self._left:
            raise ValueError(f"{log} has records that are not handed out yet")
        if log in self._queue:
            chunk = _Chunk(records)
            if not chunk.is_empty:
                self._left[log] = chunk

    def drop(self, log: BrokerPartition) -> None:
        """Drop a partition's records, since its position changed. Raises NotAssigned."""
        self._reject_foreign((log,))
        self._left.pop(log, None)

    @property
    def has_some(self) -> bool:
        """True if there are records to return, or an error to raise."""
        return any(log not in self._paused for log in self._left)

    def take(self, most: int) -> dict[BrokerPartition, list[Record]]:
        """Up to so many records, by log, each in its order; none where nothing is left.

        Raises what the records of a log raise, where it is that one's turn and nothing else was
        handed out yet.
        """
        found: dict[BrokerPartition, list[Record]] = {}
        room = most
        for log in [one for one in self._queue if one in self._left and one not in self._paused]:
            chunk = self._left[log]
            if room <= 0:
                break
            if some := chunk.take(room):
                found[log] = some
                room -= len(some)
            elif chunk.failure is not None and not found:
                self._to_the_end(log)
                raise chunk.failure.with_traceback(
                    None
                )  # said again and again, it would keep the frames of each time
            if chunk.is_empty:
                del self._left[log]
                self._to_the_end(log)
        return found

    def _to_the_end(self, log: BrokerPartition) -> None:
        self._queue.remove(log)
        self._queue.append(log)

    def _reject_foreign(self, logs: Iterable[BrokerPartition]) -> None:
        for log in logs:
            if log not in self._queue:
                raise NotAssigned(
                    "The partition is not assigned to this consumer",
                    **log.place,
                    action="Call assign(), and what it was given",
                )
