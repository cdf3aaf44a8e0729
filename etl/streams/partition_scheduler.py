"""Which partition is fetched next, and which records are returned?

    fetched     assigned partitions, not paused, with no records left
    returned    records of the first partition in the queue, then of the next, up to the maximum
    requeued    partitions without records left, and those with records that cannot be read
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
from etl.model.partitions import TopicPartition

Record = TypeVar("Record")


class _Chunk(Generic[Record]):
    """The records of one response, read one ahead, so that the end is known in advance."""

    def __init__(self, records: Iterator[Record]) -> None:
        self._records = records
        self._next: list[Record] = []
        self.failure: EtlError | None = None
        """The error of the next record; None if it can be read."""
        self._is_started = False

    @property
    def is_empty(self) -> bool:
        # With a length hint no record is decoded before it is needed.
        if not self._is_started and length_hint(self._records) > 0:
            return False
        self._start()
        return not self._next and self.failure is None

    def take(self, max_records: int) -> list[Record]:
        """Return the next records; fewer at the end or before one that cannot be read."""
        found: list[Record] = []
        self._start()
        while self._next and len(found) < max_records:
            found += self._next
            self._read_next()
        return found

    def _start(self) -> None:
        if not self._is_started:
            self._read_next()

    def _read_next(self) -> None:
        self._is_started = True
        try:
            record = next(self._records, None)
        except EtlError as failure:
            self._next = []
            self.failure = failure
        else:
            self._next = [] if record is None else [record]


class PartitionScheduler(Generic[Record]):
    """The partitions of one consumer in order, with the rest of each one's last response.

    For one thread.
    """

    def __init__(self) -> None:
        self._queue: list[TopicPartition] = []
        self._chunks: dict[TopicPartition, _Chunk[Record]] = {}
        self._paused: set[TopicPartition] = set()

    @property
    def assigned(self) -> tuple[TopicPartition, ...]:
        """The assigned partitions, in the order of their turns."""
        return tuple(self._queue)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions: not fetched, nothing returned."""
        return frozenset(self._paused)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Set the partitions.

        One that stays keeps its turn, its records and its pause; a new one comes last, not paused.
        """
        wanted = dict.fromkeys(partitions)
        self._queue = [partition for partition in self._queue if partition in wanted]
        queued = set(self._queue)
        self._queue += [partition for partition in wanted if partition not in queued]
        self._paused &= wanted.keys()
        self._chunks = {
            partition: chunk for partition, chunk in self._chunks.items() if partition in wanted
        }

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Pause partitions until they are resumed. Raises NotAssigned, and then pauses none."""
        self._reject_unassigned(partitions)
        self._paused |= set(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch them again, and return their records. Raises NotAssigned, and then resumes none."""
        self._reject_unassigned(partitions)
        self._paused -= set(partitions)

    def to_fetch(self) -> tuple[TopicPartition, ...]:
        """Return which partitions to fetch next, in order."""
        wanted = []
        for partition in self._queue:
            if partition not in self._paused and partition not in self._chunks:
                wanted.append(partition)
        return tuple(wanted)

    def add(self, partition: TopicPartition, records: Iterator[Record]) -> None:
        """Add a response; it is dropped if the partition is no longer assigned.

        Raises ValueError if records of an earlier response are left: the partition should not have
        been fetched.
        """
        if partition in self._chunks:
            raise ValueError(f"{partition} has records that were not returned yet")
        if partition in self._queue:
            chunk = _Chunk(records)
            if not chunk.is_empty:
                self._chunks[partition] = chunk

    def drop(self, partition: TopicPartition) -> None:
        """Drop a partition's records, since its position changed. Raises NotAssigned."""
        self._reject_unassigned((partition,))
        self._chunks.pop(partition, None)

    @property
    def has_records(self) -> bool:
        """True if there are records to return, or an error to raise."""
        return any(partition not in self._paused for partition in self._chunks)

    def take(self, max_records: int) -> dict[TopicPartition, list[Record]]:
        """Return up to so many records by partition, each in its order; empty if none are left.

        Raises the error of a record if its partition is next and no other record was returned.
        """
        found: dict[TopicPartition, list[Record]] = {}
        room = max_records
        ready = [
            partition
            for partition in self._queue
            if partition in self._chunks and partition not in self._paused
        ]
        for partition in ready:
            chunk = self._chunks[partition]
            if room <= 0:
                break
            records = chunk.take(room)
            if records:
                found[partition] = records
                room -= len(records)
            elif chunk.failure is not None and not found:
                self._requeue(partition)
                # Without the traceback, which would grow each time that the error is raised.
                raise chunk.failure.with_traceback(None)
            if chunk.is_empty:
                del self._chunks[partition]
                self._requeue(partition)
        return found

    def _requeue(self, partition: TopicPartition) -> None:
        self._queue.remove(partition)
        self._queue.append(partition)

    def _reject_unassigned(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            if partition not in self._queue:
                raise NotAssigned(
                    "The partition is not assigned to this consumer",
                    **partition.place,
                    action="Pass the partition to assign() first",
                )
