"""The limit: the rate of bytes through the sockets without any decoding. Our own Fetch requests, a
thread and a connection for each partition.

    python -m bench.whole.drain BOOTSTRAP

Of each answer only the headers of its record batches are read, for the offset of the next request;
all other bytes are dropped.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.whole.child import serve
from bench.whole.tables import Clock
from bench.whole.workloads import PARTITIONS
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka.request_values import FetchTarget
from etl.model.partitions import TopicPartition
from etl.settings.choices import FETCH_MAX_BYTES, split_address

_HEAD = struct.Struct(">qi")
_LAST_OFFSET_AT = 23
"""Where a record batch has its last offset delta, an int32."""


def next_offset(records: memoryview, offset: int) -> int:
    """The offset after the last whole batch."""
    at = 0
    while at + _HEAD.size <= len(records):
        base, size = _HEAD.unpack_from(records, at)
        if at + _HEAD.size + size > len(records):
            break
        offset = base + struct.unpack_from(">i", records, at + _LAST_OFFSET_AT)[0] + 1
        at += _HEAD.size + size
    return offset


def drained(bootstrap: str, topic: str, partition: int, until: int) -> int:
    """The bytes of a partition's records from its beginning on."""
    host, port = split_address(bootstrap)
    topic_partition, offset, size = TopicPartition(topic, partition), 0, 0
    with SimpleConsumer(host, port) as broker:
        while offset < until:
            fetched = broker.multifetch(
                [FetchTarget(topic_partition, offset, FETCH_MAX_BYTES)], max_bytes=FETCH_MAX_BYTES
            ).partitions[0]
            size += len(fetched.records)
            offset = next_offset(fetched.records, offset)
    return size


def do(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """`bootstrap`, `topic`, and `records` of it."""
    clock, each = Clock(), job["records"] // PARTITIONS
    with ThreadPoolExecutor(PARTITIONS) as pool:
        found = [
            pool.submit(drained, job["bootstrap"], job["topic"], at, each)
            for at in range(PARTITIONS)
        ]
        size = sum(one.result() for one in found)
    return {"seconds": clock.seconds, "bytes": size}


if __name__ == "__main__":
    serve(lambda job: do({"bootstrap": sys.argv[1], **job}))
