"""Where the streams of one connector are: what came waits in their queues, and two threads meet
here, the one that fetches and each stream's own.

    fetched    up to the end of the last answer in a queue
    handed     behind the last record that a stream handed out: what the program commits
    done       behind the one before: what is committed by itself, for of the last one nobody knows whether the program is done with it
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any

from etl.model.partitions import BrokerPartition
from etl.reader.cursor import RangeProgress
from etl.streams.positions import Positions
from etl.streams.records import Answer, records_of
from etl.streams.stream_queue import StreamQueue


class StreamPositions(Positions):
    """See `Positions`, which is the fetching thread's; what has to do with a stream may be called
    by that stream's.
    """

    def __init__(
        self,
        *given: Any,
        queue_of: Callable[[BrokerPartition], StreamQueue],
        changed: threading.Condition,
    ) -> None:
        """queue_of: which stream a log that comes belongs to; changed: held while anything here is
        looked at or changed.
        """
        super().__init__(*given)
        self._queue_of, self._changed = queue_of, changed
        self._queues: dict[BrokerPartition, StreamQueue] = {}
        self._broken: set[BrokerPartition] = set()
        """Logs of which nothing follows."""
        self._done: dict[BrokerPartition, int] = {}

    def assign(self, logs: Iterable[BrokerPartition]) -> None:
        """These and no others: what came of others is dropped, wherever it is."""
        with self._changed:
            wanted = list(logs)
            super().assign(wanted)
            for log in self._queues.keys() - set(wanted):
                self._queues.pop(log).drop(log)
                self._done.pop(log, None)
                self._broken.discard(log)
            for log in wanted:
                if log not in self._queues:
                    self._queues[log] = self._queue_of(log)
                    self._queues[log].logs.add(log)

    def seek(self, log: BrokerPartition, offset: int) -> None:
        """Begin there; see `Positions.seek`."""
        with self._changed:
            super().seek(log, offset)
            self._done[log] = offset

    def stop(self, logs: Collection[BrokerPartition]) -> None:
        """See `Positions.stop`: what waits of them is dropped, or streams would go on while what
        they handed out is committed.
        """
        with self._changed:
            for log in self._queues.keys() & set(logs):
                self._queues[log].drop(log)

    def to_ask(self) -> list[RangeProgress]:
        """Those whose streams have room."""
        with self._changed:
            return [
                self._walks[log]
                for log in self.rotation.assigned
                if log in self._walks and log not in self._broken and self._queues[log].has_room
            ]

    def done(self) -> dict[BrokerPartition, int]:
        """See the module."""
        with self._changed:
            return dict(self._done)

    def handed(self) -> dict[BrokerPartition, int]:
        """See the module."""
        with self._changed:
            return dict(self.known)

    def note_handed(self, log: BrokerPartition, offset: int) -> None:
        """A record was handed out that ends there; under `changed`, as all that is the streams'."""
        if log in self.known:
            self.known[log] = offset

    def note_done(self, log: BrokerPartition, offset: int) -> None:
        """Whatever was handed out up to there, the program has come back for more."""
        if log in self._done:
            self._done[log] = max(self._done[log], offset)

    def _keep(self, arrived: Answer) -> None:
        with self._changed:
            if arrived.failure is not None:
                self._broken.add(arrived.log)
            self._queues[arrived.log].put(arrived)
            self._changed.notify_all()

    def _pass(self, log: BrokerPartition, offset: int) -> None:
        with self._changed:
            if self._queues[log].holds(log):
                self._queues[log].put(records_of(log, (), offset))
            else:
                self.known[log] = self._done[log] = offset
