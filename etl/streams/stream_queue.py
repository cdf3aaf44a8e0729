"""What waits for one stream: answers of its logs, as columns, in the order in which they came.
Under its connector's lock.
"""

from __future__ import annotations

from collections import deque

from etl.model.partitions import BrokerPartition
from etl.streams.records import Answer, Record


class StreamQueue:
    """The queue of one stream, which asks for no more while it holds so many records or bytes."""

    def __init__(self, most_records: int, most_bytes: int) -> None:
        self._most_records, self._most_bytes = most_records, most_bytes
        self._answers: deque[Answer] = deque()
        self.logs: set[BrokerPartition] = set()
        """Which are the stream's."""
        self.handed: Record | None = None
        """What its thread may still be at, of a log that is the stream's."""

    @property
    def head(self) -> Answer | None:
        """The answer that the stream is in."""
        return self._answers[0] if self._answers else None

    @property
    def count(self) -> int:
        """Records, those of the answer that the stream is in all counted."""
        return sum(answer.count for answer in self._answers)

    @property
    def size(self) -> int:
        """Their bytes."""
        return sum(answer.size for answer in self._answers)

    @property
    def has_room(self) -> bool:
        """Whether more is to be asked for."""
        return self.count < self._most_records and self.size < self._most_bytes

    def holds(self, log: BrokerPartition) -> bool:
        """Whether something of the log is in it."""
        return any(answer.log == log for answer in self._answers)

    def put(self, arrived: Answer) -> None:
        """At the end. One that only says how far there is nothing takes the place of the log's one
        that says so, wherever that is: they come for as long as nobody reads the stream."""
        if not arrived.count and arrived.failure is None:
            self._answers = deque(
                one
                for one in self._answers
                if one.log != arrived.log or one.count or one.failure is not None
            )
        self._answers.append(arrived)

    def end(self, over: Answer) -> None:
        """The stream is through with it."""
        if self.head is over:
            self._answers.popleft()

    def put_off(self, broken: Answer) -> None:
        """Nothing can be had of it, which is said; the others first, and then it is said again."""
        if self.head is broken:
            self._answers.rotate(-1)

    def drop(self, log: BrokerPartition) -> None:
        """The log is not the stream's any more."""
        self.logs.discard(log)
        self._answers = deque(answer for answer in self._answers if answer.log != log)
        if self.handed is not None and self.handed.log == log:
            self.handed = None
