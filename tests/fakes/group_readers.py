"""Programs that read as members of a group, each in a thread, for fakes and real servers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable

from etl import Consumer, RebalanceListener, Record
from etl.model.partitions import TopicPartition
from etl.testkit.server_process import wait_until

WITHIN_S = 60


class GroupReader(RebalanceListener):
    """Polls until it is ended; commits when a partition is taken, and at its end."""

    def __init__(self, consumer: Consumer, topics: Iterable[str]) -> None:
        self.consumer = consumer
        self.read: list[tuple[TopicPartition, int]] = []
        """Log and offset of each record, in the order in which they came."""
        self.values: list[bytes | None] = []
        self.owned: frozenset[TopicPartition] = frozenset()
        """The configured value."""
        self.lost_logs: list[TopicPartition] = []
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        consumer.subscribe(list(topics), listener=self)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """The next owner begins after the read records."""
        assert self.owned.issuperset(partitions), "only assigned partitions are revoked"
        self.consumer.commit()
        self.owned -= set(partitions)

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        assert self.owned.isdisjoint(partitions)
        self.owned |= set(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self.owned -= set(partitions)
        self.lost_logs += partitions

    def owns(self, count: int) -> bool:
        return (
            wait_until(lambda: self._error is not None or len(self.owned) == count, WITHIN_S)
            and self._error is None
        )

    @property
    def is_over(self) -> bool:
        return self._is_over.is_set()

    def end(self) -> None:
        """It closes its consumer; raises what it ended with."""
        self._is_over.set()
        self._thread.join(WITHIN_S)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                for partition, records in self.consumer.poll(0.05, 3).items():
                    assert partition in self.owned, "it owns what it is given"
                    self.read += [(partition, record.offset) for record in records]
                    self.values += [record.value for record in records]
            self.consumer.close()
        except BaseException as error:
            self._error = error


class Interrupted:
    """A decoder that Ctrl-C meets once, at one record."""

    def __init__(self, at: bytes) -> None:
        self._at: bytes | None = at

    def __call__(self, content: bytes) -> bytes:
        if content == self._at:
            self._at = None
            raise KeyboardInterrupt
        return content


def polled(consumer: Consumer, count: int, *, most: int = 500) -> list[Record]:
    """So many records, however many polls that takes; fewer if they do not come in time."""
    found: list[Record] = []
    deadline = time.monotonic() + 20
    while len(found) < count and time.monotonic() < deadline:
        found += [record for some in consumer.poll(0.05, most).values() for record in some]
    return found


def all_read_once(
    readers: Collection[GroupReader], expected: Callable[[], Counter[TopicPartition]]
) -> None:
    """Wait until together they have read so many of each log, each once and in order."""

    def counted() -> Counter[TopicPartition]:
        return Counter(partition for reader in readers for partition, _ in reader.read)

    deadline = time.monotonic() + WITHIN_S
    while counted() < expected() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert counted() == expected()
    everything = [one for reader in readers for one in reader.read]
    assert len(set(everything)) == len(everything), "none is read by two, or twice"
    for reader in readers:
        for partition in {partition for partition, _ in reader.read}:
            offsets = [offset for its, offset in reader.read if its == partition]
            assert offsets == sorted(offsets), "each log in its order"
