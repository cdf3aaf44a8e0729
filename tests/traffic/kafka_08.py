"""Kafka 0.8: message format v0, leaders in ZooKeeper."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence

from kafka.record import MemoryRecords

from etl.testkit.brokers import session
from etl.testkit.cluster import EmbeddedCluster
from tests.fakes.batches import Codec
from tests.fakes.message_sets import Msg, Wrapper, encode_logical
from tests.fakes.oracle import codecs
from tests.traffic.old import OldLog, OldTraffic, asking, string
from tests.traffic.rows import Message, Row, hash_of

_PRODUCE_V0 = struct.pack(">hhi", 0, 0, 1)
_ONE = struct.pack(">i", 1)
_BY_THE_LEADER, _WITHIN_MS = 1, 10_000


class Kafka08Traffic(OldTraffic):
    """Messages are plain, in gzip, or in snappy; files are read by kafka-python."""

    place = ("partition", "offset")
    conf: Mapping[str, object] = {"source": {"assume_cluster_id": "kafka-0-8"}}

    def logs(self, cluster: EmbeddedCluster, topic: str) -> list[OldLog]:
        brokers, path = (
            {broker.broker_id: broker for broker in cluster.brokers},
            f"/brokers/topics/{topic}/partitions",
        )
        with session(cluster.zookeeper_connect) as client:
            partitions = sorted(map(int, client.get_children(path)))
            leaders = {
                partition: json.loads(client.get(f"{path}/{partition}/state")[0])["leader"]
                for partition in partitions
            }
        return [OldLog(brokers[leader], topic, partition) for partition, leader in leaders.items()]

    def encode(self, messages: Sequence[Message], number: int) -> bytes:
        """The leader gives the offsets."""
        plain = [Msg(at, value, key) for at, (key, value) in enumerate(messages)]
        codec = (Codec.NONE, Codec.GZIP, Codec.SNAPPY)[number % 3]
        return encode_logical([Wrapper(plain, codec)] if codec else plain, magic=0)

    def append(self, partition: OldLog, content: bytes) -> None:
        acks = struct.pack(">hi", _BY_THE_LEADER, _WITHIN_MS)
        where = _ONE + string(partition.topic) + _ONE + struct.pack(">i", partition.partition)
        with asking(partition.broker) as ask:
            answer = ask(
                _PRODUCE_V0
                + string("traffic")
                + acks
                + where
                + struct.pack(">i", len(content))
                + content
            )()
        refused = int.from_bytes(
            answer[-10:-8], "big", signed=True
        )  # after it, at the end, the offset
        if refused:
            raise ConnectionError(
                f"{partition.broker.bootstrap} does not take messages for "
                f"{partition.topic}-{partition.partition}: error {refused}"
            )

    def rows(self, log: OldLog) -> Iterator[Row]:
        with codecs():
            for _, content in log.files(".log"):
                records = MemoryRecords(content)
                assert records.valid_bytes() == len(content), "the last message is cut off"
                for batch in records:
                    assert batch.validate_crc()
                    for record in batch:
                        yield log.partition, record.offset, hash_of(record.value)
