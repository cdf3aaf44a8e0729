"""kafka-python's record parser and builder as the oracle of our decoder.

Its optional codec packages are played by pyarrow, which our decoder does not decompress with.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import kafka.codec
import kafka.record.default_records as default_records
import kafka.record.legacy_records as legacy_records
import pyarrow as pa
from kafka.record import MemoryRecords

from tests.fakes.batches import Codec, compress
from tests.fakes.message_sets import with_wrong_checksum


def rows_of(records: bytes) -> list[dict[str, Any]]:
    """Every record of every data batch, with valid CRC, as a row of the raw table."""
    rows = []
    with codecs():
        for batch in MemoryRecords(records):
            assert batch.validate_crc()
            if isinstance(batch, legacy_records.LegacyRecordBatch):
                rows += [_row(record) for record in batch if record.validate_crc()]
            else:
                rows += [_row(record) for record in batch if not batch.is_control_batch]
    return rows


def _row(record: Any) -> dict[str, Any]:
    return {
        "key": record.key,
        "value": record.value,
        "offset": record.offset,
        "timestamp": _microseconds(record.timestamp),
        "timestampType": record.timestamp_type,
        "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
    }


def _microseconds(ms: int | None) -> int | None:
    """None where there is none, or none that a column of microseconds holds."""
    return None if ms in (None, -1) or abs(ms) > (2**63 - 1) // 1000 else ms * 1000


def _unsnap(block: bytes) -> bytes:
    size = shift = 0
    for byte in block:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size:
        return bytes(pa.decompress(block, decompressed_size=size, codec="snappy", asbytes=True))
    return b""


def _stream(name: str, content: bytes) -> bytes:
    return bytes(pa.CompressedInputStream(pa.BufferReader(content), name).read())


@contextmanager
def codecs() -> Iterator[None]:
    """While this is entered kafka-python knows every codec."""
    yes = mock.Mock(return_value=True)
    snappy = types.SimpleNamespace(
        compress=lambda plain: pa.compress(plain, "snappy", asbytes=True), decompress=_unsnap
    )
    played: dict[str, Any] = {
        "lz4_encode": lambda plain: compress(bytes(plain), Codec.LZ4),
        "lz4_decode": lambda packed: _stream("lz4", packed),
        "zstd_encode": lambda plain: compress(bytes(plain), Codec.ZSTD),
        "zstd_decode": lambda packed: _stream("zstd", packed),
    }
    old = {name: play for name, play in played.items() if name.startswith("lz4")}
    old |= {
        "lz4_encode_old_kafka": lambda plain: with_wrong_checksum(old["lz4_encode"](plain)),
        "lz4_decode_old_kafka": lambda packed: old["lz4_decode"](with_wrong_checksum(packed)),
    }
    with (
        mock.patch.multiple(default_records, **played),
        mock.patch.multiple(legacy_records, **old),
        mock.patch.object(kafka.codec, "snappy", snappy),
        mock.patch.multiple(kafka.codec, has_snappy=yes, has_lz4=yes, has_zstd=yes),
    ):
        yield
