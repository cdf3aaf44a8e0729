"""Jafka: a log is (broker, partition), an offset a byte position."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence

from etl.testkit.brokers import session
from etl.testkit.cluster import EmbeddedCluster
from tests.fakes.message_sets import Entry, encode_physical
from tests.traffic.old import OldLog, OldTraffic, asking, string
from tests.traffic.rows import Message, Row, hash_of

_PRODUCE, _OFFSETS = 0, 4
_LATEST = -1
_HEAD = struct.Struct(">ibbI")
"""Size of what follows it, magic, attributes, CRC-32 of the payload."""
_GZIP = 1


class JafkaTraffic(OldTraffic):
    """Messages are plain, in gzip, or in gzip in gzip; they have no keys."""

    place = ("broker_id", "partition", "offset", "message_index")
    conf: Mapping[str, object] = {"source": {"assume_cluster_id": "jafka", "broker_type": "jafka"}}

    def create_topic(
        self,
        cluster: EmbeddedCluster,
        name: str,
        partitions: int,
        *,
        replication_factor: int,
        config: Mapping[str, str] | None,
    ) -> None:
        each, left = divmod(partitions, len(cluster.brokers))
        assert not left, "every broker has as many logs as the others"
        super().create_topic(
            cluster, name, each, replication_factor=replication_factor, config=config
        )

    def logs(self, cluster: EmbeddedCluster, topic: str) -> list[OldLog]:
        with session(cluster.zookeeper_connect) as client:
            counts = {
                broker: int(client.get(f"/brokers/topics/{topic}/{broker.broker_id}")[0])
                for broker in cluster.brokers
            }
        return [
            OldLog(broker, topic, partition)
            for broker, count in counts.items()
            for partition in range(count)
        ]

    def encode(self, messages: Sequence[Message], number: int) -> bytes:
        entries = [Entry(value or b"") for _, value in messages]
        for _ in range(number % 3):
            entries = [Entry(inside=entries)]
        return encode_physical(entries)

    def append(self, partition: OldLog, content: bytes) -> None:
        """A produce has no answer; the answer to the next request shows that it is done."""
        where = string(partition.topic) + struct.pack(">i", partition.partition)
        with asking(partition.broker) as ask:
            ask(struct.pack(">h", _PRODUCE) + where + struct.pack(">i", len(content)) + content)
            ask(struct.pack(">h", _OFFSETS) + where + struct.pack(">qi", _LATEST, 1))()

    def rows(self, log: OldLog) -> Iterator[Row]:
        for start, content in log.files(".jafka"):
            for at, entry in _entries(content):
                for index, payload in enumerate(_payloads(entry)):
                    yield log.broker.broker_id, log.partition, start + at, index, hash_of(payload)


def _entries(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Each entry of a message set and where it begins."""
    at = 0
    while at < len(content):
        size = 4 + int.from_bytes(content[at : at + 4], "big")
        yield at, content[at : at + size]
        at += size
    assert at == len(content), "the last entry is cut off"


def _payloads(entry: bytes) -> Iterator[bytes]:
    """The messages of an entry, and of nested entries."""
    _, magic, attributes, crc = _HEAD.unpack_from(entry)
    payload = entry[_HEAD.size :]
    assert magic == 1 and zlib.crc32(payload) == crc, entry
    if attributes & 3 == _GZIP:
        for _, inner in _entries(gzip.decompress(payload)):
            yield from _payloads(inner)
    else:
        yield payload
