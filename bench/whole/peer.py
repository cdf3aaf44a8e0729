"""confluent-kafka and deltalake: the peer without Spark, in one process. The same eight columns,
one streaming write, one Delta commit.

    python -m bench.whole.peer BOOTSTRAP FOLDER CODEC

librdkafka fetches ahead on threads of its own (no pause when its queues are full), Python takes
messages by 2,000 and makes Arrow columns of them, delta-rs writes them with the codec, and its
level, that files of ours have. Nothing saves offsets.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from deltalake import WriterProperties, write_deltalake

from bench.whole.child import serve
from bench.whole.tables import Clock, written
from bench.whole.workloads import PARTITIONS

_AT_ONCE = 2_000
"""From 500 to 200,000 were tried: from 5,000 on more take more processor time, and so do longer
queues than librdkafka's own.
"""
_TIMEOUT_S = 30.0
_HEADERS = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))
SCHEMA = pyarrow.schema(
    [
        ("key", pyarrow.binary()),
        ("value", pyarrow.binary()),
        ("topic", pyarrow.string()),
        ("partition", pyarrow.int32()),
        ("offset", pyarrow.int64()),
        ("timestamp", pyarrow.timestamp("us", "UTC")),
        ("timestampType", pyarrow.int32()),
        ("headers", _HEADERS),
    ]
)
CONSUMER = {
    "group.id": "peer",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.auto.offset.store": False,
    "fetch.max.bytes": 64 << 20,
    "max.partition.fetch.bytes": 16 << 20,
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 10,
    "receive.message.max.bytes": 128 << 20,
    "enable.partition.eof": False,
}
"""Settings that differ from librdkafka's defaults make it faster here."""
_MADE_OF = {0: -1, 1: 0, 2: 1}
"""librdkafka's words for a timestamp's type -> Kafka's."""


def columns(messages: list[Message]) -> pyarrow.RecordBatch:
    """The messages as rows."""
    times = [message.timestamp() for message in messages]
    return pyarrow.record_batch(
        [
            pyarrow.array([message.key() for message in messages], pyarrow.binary()),
            pyarrow.array([message.value() for message in messages], pyarrow.binary()),
            pyarrow.array([message.topic() for message in messages], pyarrow.string()),
            pyarrow.array([message.partition() for message in messages], pyarrow.int32()),
            pyarrow.array([message.offset() for message in messages], pyarrow.int64()),
            pyarrow.array([time * 1000 for _, time in times], pyarrow.int64()).cast(
                pyarrow.timestamp("us", "UTC")
            ),
            pyarrow.array([_MADE_OF[made] for made, _ in times], pyarrow.int32()),
            pyarrow.array([message.headers() for message in messages], _HEADERS),
        ],
        schema=SCHEMA,
    )


class Peer:
    """Reads a topic from its beginning into a new table, on each request."""

    def __init__(self, bootstrap: str, folder: str, codec: str) -> None:
        self._bootstrap, self._folder, self._numbers = bootstrap, Path(folder), 0
        compression: Any = codec.upper()
        self._properties = WriterProperties(
            compression=compression, compression_level=1 if codec == "zstd" else None
        )

    def do(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """`topic`, and `records` of it."""
        self._numbers += 1
        table = self._folder / f"peer-{self._numbers}"
        try:
            clock = Clock()
            reader = pyarrow.RecordBatchReader.from_batches(
                SCHEMA, self._batches(job["topic"], job["records"])
            )
            write_deltalake(table, reader, mode="append", writer_properties=self._properties)
            seconds, found = clock.seconds, dict(written(table, job["records"]))
            return {
                "seconds": seconds,
                "to_commit": found.pop("committed_at") - clock.began_at,
                **found,
            }
        finally:
            shutil.rmtree(table, ignore_errors=True)

    def _batches(self, topic: str, records: int) -> Iterator[pyarrow.RecordBatch]:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, **CONSUMER})
        try:
            consumer.assign([TopicPartition(topic, at, 0) for at in range(PARTITIONS)])
            left = [records // PARTITIONS] * PARTITIONS
            while any(left):
                messages = consumer.consume(
                    min(_AT_ONCE, sum(left)), _TIMEOUT_S
                )  # it waits for as many
                if not messages:
                    raise ValueError(f"{sum(left)} records did not come in {_TIMEOUT_S:.0f} s")
                yield columns(_wanted(messages, left, records // PARTITIONS))
        finally:
            consumer.close()


def _wanted(messages: list[Message], left: list[int], each: int) -> list[Message]:
    """Those before the end; `left` is counted down."""
    error = next((message.error() for message in messages if message.error()), None)
    if error:
        raise KafkaException(error)
    found = [message for message in messages if (message.offset() or 0) < each]
    for at in range(PARTITIONS):
        left[at] -= sum(message.partition() == at for message in found)
    return found


if __name__ == "__main__":
    serve(Peer(*sys.argv[1:]).do)
