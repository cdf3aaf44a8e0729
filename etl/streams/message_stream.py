"""One stream of a connector: records of its partitions, one by one, for one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from etl.errors import ConsumerInUse, EtlError
from etl.streams.records import Answer, Record
from etl.streams.stream_queue import StreamQueue

if TYPE_CHECKING:
    from etl.streams.pump import Pump


class NothingCame(Exception):
    """A stream waited as long as it was told to. It is no error: the stream may be asked again."""


class MessageStream(Iterator[Record]):
    """Made by a `Connector`. `next` waits for a record; it ends with the connector's `shutdown`.

    timeout_s   how long `next` waits before it raises NothingCame, behind which it may be called
    again; None: without end

    Records of one partition come in their order. What cannot be had (a decoder that fails, a
    damaged record batch, an offset that retention took) is raised with topic, partition and offset:
    `next` goes on behind a record that no decoder reads; behind anything else nobody can, so the
    other partitions' records come first and then it is raised again. What the connector cannot
    reach is raised once where nothing else is there, and it goes on. One thread at a time: a second
    one gets ConsumerInUse.
    """

    def __init__(
        self,
        topic: str | None,
        number: int,
        queue: StreamQueue,
        changed: threading.Condition,
        timeout_s: float | None,
    ) -> None:
        self.topic, self.number = topic, number
        """The topic, where it was made for one; its place among those made with it."""
        self.timeout_s = timeout_s
        self.queue, self._changed = queue, changed
        self._pump: Pump | None = None
        self._told: EtlError | None = None
        self._in_use = threading.Lock()

    def start(self, pump: Pump) -> None:
        """From now on this fetches for it."""
        self._pump = pump

    def __next__(self) -> Record:
        if not self._in_use.acquire(blocking=False):
            raise ConsumerInUse(
                "another thread waits for this stream's next record",
                check="that each thread has a stream of its own",
            )
        try:
            return self._next()
        finally:
            self._in_use.release()

    def _next(self) -> Record:
        pump = self._pump
        if pump is None:
            raise StopIteration
        deadline = None if self.timeout_s is None else time.monotonic() + self.timeout_s
        with self._changed:
            if self.queue.handed is not None:
                pump.positions.note_done(self.queue.handed.log, self.queue.handed.next_offset)
                self.queue.handed = None
        while True:
            answer = self._head(pump, deadline)
            try:
                record = next(answer)
            except StopIteration:
                self._end(pump, answer)
                continue
            except EtlError:
                with self._changed:
                    if self.queue.head is not answer:
                        continue
                    if answer.is_over and answer.failure is not None:
                        self.queue.put_off(answer)
                raise
            with self._changed:
                if self.queue.head is not answer:
                    continue  # taken from us in between
                self.queue.handed = record
                pump.positions.note_handed(record.log, record.next_offset)
            return record

    def _head(self, pump: Pump, deadline: float | None) -> Answer:
        """The answer that is next, once there is one. Raises StopIteration, NothingCame, and what
        keeps the connector from fetching.
        """
        with self._changed:
            while not pump.is_ended and self.queue.head is None:
                if pump.trouble is not None and pump.trouble is not self._told:
                    self._told = pump.trouble
                    raise pump.trouble.with_traceback(None)
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise NothingCame(f"nothing came within {self.timeout_s:g} s")
                self._changed.wait(left_s)
            if pump.failure is not None:
                raise pump.failure.with_traceback(None)
            if pump.is_ended or self.queue.head is None:
                raise StopIteration
            return self.queue.head

    def _end(self, pump: Pump, answer: Answer) -> None:
        with self._changed:
            if self.queue.head is answer:
                self.queue.end(answer)
                pump.positions.note_handed(answer.log, answer.end)
                pump.positions.note_done(answer.log, answer.end)
