"""What numba keeps of this installation's kernels, so that it can travel: each is called once, on a
few bytes of each message format.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from etl.kafka.messages import EntryLayout, FetchedPartition
from etl.model.columns import raw_columns
from etl.model.partitions import BrokerPartition, Isolation
from etl.model.plans import OffsetRange
from etl.reader.cursor import Cursor

_BYTES = 1 << 20
_HEADER_BYTES = 61
"""Of a record batch (format v2)."""
_VALUES = (b"first", b"second")
_OURS = f"{__name__.partition('.')[0]}."
"""Others may have had kernels of their own compiled in this process."""


def compiled_kernels() -> list[Path]:
    """numba's files of all kernels, for this Python and this CPU: compiled now, if they were not.
    None where it keeps none.
    """
    from etl.records.batch_kernel import count_records
    from etl.records.kernel_cache import KERNELS, files_of, frozen

    for magic in (1, 2):
        _decode(BrokerPartition("any", 0), _of_kafka(magic), EntryLayout.LOGICAL, len(_VALUES))
    batch = _of_kafka(2)
    count_records(
        frozen(batch), (0, _HEADER_BYTES, len(batch), len(_VALUES), 0, len(_VALUES) - 1), 0, 1
    )
    messages = b"".join(
        struct.pack(">ibbI", 6 + len(value), 1, 0, zlib.crc32(value)) + value for value in _VALUES
    )
    _decode(BrokerPartition("any", 0, 0), messages, EntryLayout.PHYSICAL, len(messages))
    return files_of(kernel for kernel in KERNELS if kernel.py_func.__module__.startswith(_OURS))


def _of_kafka(magic: int) -> bytes:
    from kafka.record import MemoryRecordsBuilder

    builder = MemoryRecordsBuilder(magic=magic, compression_type=0, batch_size=_BYTES)
    for value in _VALUES:
        builder.append(0, b"key", value)
    builder.close()
    return bytes(builder.buffer())


def _decode(log: BrokerPartition, records: bytes, layout: EntryLayout, until_offset: int) -> None:
    columns = raw_columns(physical=log.is_physical)
    cursor = Cursor(
        OffsetRange(log, 0, until_offset),
        isolation=Isolation.READ_UNCOMMITTED,
        fetch_max_bytes=_BYTES,
        fetch_limit_bytes=_BYTES,
        columns=columns,
    )
    fetched = FetchedPartition(
        log.topic,
        log.partition,
        None,
        until_offset,
        None,
        None,
        (),
        memoryview(bytearray(records)),
        layout=layout,
        broker_id=log.broker_id,
    )
    for _ in cursor.feed(fetched):
        pass
