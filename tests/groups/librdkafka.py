"""Consumers of librdkafka, each in a thread: it reads, commits and reports its records."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tests.brokers.foreign import Seen

_POLL_S = 0.1
_AT_ONCE = 100


class _Member(threading.Thread):
    """One consumer; what it could not commit before a revocation it has not read."""

    def __init__(self, settings: Mapping[str, Any], topic: str) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(dict(settings))
        self._consumer.subscribe([topic], on_revoke=self._revoked)
        self._uncommitted: list[Message] = []
        self.read: list[Seen] = []
        self.owned = 0
        self.closing = threading.Event()
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.closing.is_set():
                found = self._consumer.consume(_AT_ONCE, _POLL_S)
                # A revocation during the call may leave messages of its partitions in the batch.
                owned = {(one.topic, one.partition) for one in self._consumer.assignment()}
                for one in found:
                    if one.error() is None and (one.topic(), one.partition()) in owned:
                        self._uncommitted.append(one)
                self._commit()
                self.owned = len(self._consumer.assignment())
        except BaseException as failed:  # raised in the thread that stops it
            self.failed = failed
        finally:
            self._consumer.close()

    def _commit(self) -> None:
        if not self._uncommitted:
            return
        ends: dict[tuple[str, int], int] = {}
        for one in self._uncommitted:
            ends[one.topic() or "", one.partition() or 0] = (one.offset() or 0) + 1
        try:
            reported = self._consumer.commit(
                offsets=[TopicPartition(*partition, end) for partition, end in ends.items()],
                asynchronous=False,
            )
        except KafkaException:
            return  # the group divides its logs anew; what stays ours is with the next time
        taken = {(one.topic, one.partition) for one in reported or () if one.error is None}
        done = [one for one in self._uncommitted if (one.topic(), one.partition()) in taken]
        self.read += [
            Seen(0, one.partition() or 0, one.offset() or 0, 0, one.key(), one.value())
            for one in done
        ]
        self._uncommitted = [one for one in self._uncommitted if one not in done]

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit()
        gone = {(partition.topic, partition.partition) for partition in partitions}
        self._uncommitted = [
            one for one in self._uncommitted if (one.topic(), one.partition()) not in gone
        ]


@dataclass
class LibrdkafkaConsumers:
    bootstrap: str
    group: str
    topic: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    _inside: dict[str, _Member] = field(default_factory=dict)

    def enter(self, name: str) -> None:
        """See Others. It has no share yet when this returns."""
        member = _Member(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **self.settings,
            },
            self.topic,
        )
        self._inside[name] = member
        member.start()

    def exit(self, name: str) -> list[Seen]:
        member = self._inside.pop(name)
        member.closing.set()
        member.join()
        if member.failed is not None:
            raise member.failed
        return member.read

    def count(self, name: str) -> int:
        return len(self._inside[name].read)

    def owned(self) -> dict[str, int]:
        return {name: member.owned for name, member in self._inside.items() if member.owned}
