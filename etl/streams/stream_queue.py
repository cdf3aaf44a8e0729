"""What waits for one stream: answers of its logs, as columns, in the order in which they came. Under its connector's lock."""

from __future__ import annotations

from collections import deque

from etl.model.logs import BrokerPartition
from etl.streams.records import Answer


class StreamQueue:
    """The queue of one stream, which asks for no more while it holds so many records or bytes."""

    def __init__(self, most_records: int, most_bytes: int) -> None:
        self._most_records, self._most_bytes = most_records, most_bytes
        self._answers: deque[Answer] = deque()
        self.logs: set[BrokerPartition] = set()
        """Which are the stream's."""

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
        """At the end. One that only says how far there is nothing takes the place of one before it that says so."""
        if not arrived.count and arrived.failure is None and self._answers:
            last = self._answers[-1]
            if last.log == arrived.log and not last.count and last.failure is None:
                self._answers.pop()
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
