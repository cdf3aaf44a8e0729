"""A broker of Kafka 0.8.2 or 0.9.0 on a real socket.

It answers only what those releases know: on anything else 0.8 closes the connection, and 0.9 leaves
the request unanswered and reads on. A topic that Metadata names is made, as with
`auto.create.topics.enable`. The bytes of these versions are compared with the protocol's tables in
tests/unit/protocol/test_kafka_old_versions.py, and with real brokers in tests/brokers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.fakes.broker import (
    FETCH,
    FIND_COORDINATOR,
    GROUPS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    FakeBroker,
    FakeLog,
    never,
)
from tests.fakes.message_sets import Msg, message_bytes

KNOWN = {
    "0.8": {
        FETCH: (0,),
        LIST_OFFSETS: (0,),
        METADATA: (0,),
        OFFSET_COMMIT: (0, 1),
        OFFSET_FETCH: (0, 1),
        FIND_COORDINATOR: (0,),
    },
    "0.9": {
        FETCH: (0, 1),
        LIST_OFFSETS: (0,),
        METADATA: (0,),
        OFFSET_COMMIT: (0, 1, 2),
        OFFSET_FETCH: (0, 1),
        FIND_COORDINATOR: (0,),
        GROUPS: (0,),
    },
}
_UNKNOWN, _UNKNOWN_TOPIC = -1, 3


@dataclass
class OldLog(FakeLog):
    """Messages of format v0. By default its one segment was written in 1970."""

    hidden: int = 0
    """Messages at the end that are above the high watermark."""

    @property
    def high(self) -> int:
        return self.log_end - self.hidden

    def append(self, *values: bytes) -> None:
        for value in values:
            self.batches.append(message_bytes(Msg(self.log_end, value), magic=0))


class OldBroker(FakeBroker):
    """`with OldBroker("0.9") as broker:` answers at `broker.port`."""

    cuts_first_batch = True

    def __init__(self, release: str, *, hangs_up: bool | None = None) -> None:
        super().__init__()
        self.release = release
        self.hangs_up = hangs_up
        """On an unknown request, instead of what its release does (CDH's 0.9 differs)."""
        self.fails = False
        """Fetches are answered with the error without details."""
        self.world.coordinator = self.broker_id
        self.world.group_state, self.world.group_type = "Dead", ""
        self._committed: dict[bool, dict[tuple[str, str, int], tuple[int, str]]] = {
            True: {},
            False: {},
        }

    @property
    def committed(self) -> dict[tuple[str, str, int, bool], int]:
        """(group, topic, partition, whether in ZooKeeper) -> offset."""
        found = {}
        for in_zookeeper, offsets in self._committed.items():
            for place, (offset, _) in offsets.items():
                found[(*place, in_zookeeper)] = offset
        return found

    def log(self, topic: str, partition: int = 0) -> OldLog:
        found = self.world.logs.setdefault(
            (topic, partition), OldLog(self.broker_id, segments=[(0, 0)])
        )
        assert isinstance(found, OldLog)
        return found

    def _answer(self, key: int, version: int, request: bytes) -> bytes:
        if version in KNOWN[self.release].get(key, ()):
            self.world.committed = self._committed[version == 0]
            return super()._answer(key, version, request)
        hangs_up = self.release == "0.8" if self.hangs_up is None else self.hangs_up
        if hangs_up:
            raise EOFError(f"request {key} v{version} is unknown")
        self.script[key].appendleft(never)
        return b""

    def _metadata(self, request: Any, version: int) -> Any:
        for topic in request.topics or ():
            self.log(topic.name)
        request.topics = request.topics or None
        return super()._metadata(request, version)

    def _read(self, request: Any) -> tuple[Any, bool]:
        for topic in request.topics:
            for each in topic.partitions:
                log = self.world.logs.get((topic.topic, each.partition))
                if log and (self.fails or log.high < each.fetch_offset <= log.log_end):
                    log.refusals.append(_UNKNOWN)
        return super()._read(request)

    def _offset_fetch(self, request: Any, version: int) -> Any:
        response = super()._offset_fetch(request, version)
        for topic in response.topics:
            for each in topic.partitions:
                if version == 0 and each.committed_offset < 0:
                    each.error_code = _UNKNOWN_TOPIC
        return response
