"""Compressed records as the classes of Kafka 3.9.1 read them."""

from __future__ import annotations

import gzip
import io
import zlib

import numpy as np
import pyarrow as pa
import pytest

from etl.errors import CorruptData
from etl.records import codecs
from tests.fakes.batches import Batch, Codec, Rec, compress, encode, record_bytes
from tests.fakes.logs import rows_between

RECORDS = [Rec(delta, b"value-%d" % delta) for delta in range(4)]
PLAIN = b"".join(map(record_bytes, RECORDS))
CUT = len(PLAIN) // 2 + 1
"""Inside a record."""
GZIP, SNAPPY, LZ4, ZSTD = Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD
HEADER = compress(b"", SNAPPY)
SKIPPABLE = bytes.fromhex("502a4d18 05000000") + b"abcde"


def one(codec: Codec, plain: bytes = PLAIN) -> bytes:
    return compress(plain, codec)


def two(codec: Codec) -> bytes:
    return one(codec, PLAIN[:CUT]) + one(codec, PLAIN[CUT:])


def named(name: str) -> bytes:
    kept = io.BytesIO()
    with gzip.GzipFile(filename=name, fileobj=kept, mode="wb", mtime=5) as file:
        file.write(PLAIN)
    return kept.getvalue()


def values(codec: Codec, payload: bytes) -> list[bytes]:
    return [
        row["value"]
        for row in rows_between(encode(Batch(0, RECORDS, codec=codec, payload=payload)), 0, 4)
    ]


@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        *(
            (GZIP, one(GZIP) + trailing)
            for trailing in (
                b"\0",
                bytes(8),
                bytes(100),
                b"garbage, and more garbage",
                b"\x1f\x8b",
                bytes(20) + one(GZIP),
            )
        ),
        (GZIP, two(GZIP)),
        (GZIP, two(GZIP) + bytes(20)),
        (GZIP, one(GZIP, b"") + one(GZIP)),
        (GZIP, one(GZIP) + one(GZIP, b"")),
        (GZIP, named("records")),
        (GZIP, named("records") + bytes(4)),
        (GZIP, b"".join(one(GZIP, PLAIN[n : n + 1]) for n in range(len(PLAIN))) + b"\0"),
        (SNAPPY, two(SNAPPY)),
        (SNAPPY, one(SNAPPY, b"") + one(SNAPPY)),
        (SNAPPY, one(SNAPPY) + one(SNAPPY, b"")),
        (SNAPPY, two(SNAPPY) + b"\0"),
        (SNAPPY, one(SNAPPY) + b"abc"),
        (SNAPPY, one(SNAPPY)[:8] + bytes(8) + one(SNAPPY)[16:]),
        (SNAPPY, HEADER + b"".join(one(SNAPPY, PLAIN[n : n + 3]) for n in range(0, len(PLAIN), 3))),
        (SNAPPY, bytes(pa.compress(PLAIN, "snappy", asbytes=True))),
        *(
            (LZ4, one(LZ4) + trailing)
            for trailing in (
                b"\0",
                bytes(8),
                bytes(100),
                b"garbage",
                one(LZ4)[:6],
                SKIPPABLE,
                one(LZ4, b""),
            )
        ),
        (ZSTD, two(ZSTD)),
        (ZSTD, SKIPPABLE + two(ZSTD) + SKIPPABLE),
        (ZSTD, one(ZSTD, PLAIN[:CUT]) + SKIPPABLE + one(ZSTD, PLAIN[CUT:])),
    ],
)
def test_trailing_bytes_are_read_as_by_java(codec: Codec, payload: bytes) -> None:
    assert values(codec, payload) == [record.value for record in RECORDS]


@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        (GZIP, one(GZIP)[:-3]),
        (GZIP, one(GZIP, PLAIN[:CUT]) + one(GZIP, PLAIN[CUT:])[:-3]),
        (GZIP, one(GZIP, PLAIN[:CUT]) + bytes(9) + one(GZIP)),
        (GZIP, one(GZIP)[:-1] + b"\x01"),
        (GZIP, one(GZIP)[:-1] + b"\x01" + bytes(9)),
        (GZIP, zlib.compress(PLAIN)),
        (GZIP, b""),
        (GZIP, bytes(30)),
        (GZIP, b"\x1f\x8b\x08\x08\0\0\0\0\0\0no end"),
        (GZIP, one(GZIP)[:20] + b"\xff" * 40),
        (GZIP, one(GZIP) + one(GZIP, PLAIN[:9])),
        (SNAPPY, one(SNAPPY) + bytes(4)),
        (SNAPPY, one(SNAPPY) + b"\xff" * 4),
        (SNAPPY, two(SNAPPY)[:-2]),
        (SNAPPY, HEADER),
        (SNAPPY, b""),
        (LZ4, two(LZ4)[:-6]),
        (LZ4, one(LZ4)[:7]),
        (LZ4, one(LZ4)[:-4]),
        (LZ4, SKIPPABLE),
        (LZ4, b"\x04\x22\x4d\x18\x60\x40\x82" + b"\xff" * 9),
        *((ZSTD, one(ZSTD) + trailing) for trailing in (b"\0", bytes(4), bytes(100), b"garbage")),
        (ZSTD, two(ZSTD)[:-3]),
        (ZSTD, SKIPPABLE),
    ],
)
def test_what_java_does_not_read_is_corrupt(codec: Codec, payload: bytes) -> None:
    with pytest.raises(CorruptData) as caught:
        values(codec, payload)
    assert caught.value.where == {"topic": "clicks", "partition": 3, "offset": 0}


@pytest.mark.parametrize(
    "payload", [one(GZIP) + b"\0", two(GZIP) + b"\0", two(SNAPPY), one(LZ4) + b"\0"]
)
def test_what_comes_out_of_padded_streams_has_a_bound_too(payload: bytes) -> None:
    if payload.startswith(b"\x1f\x8b"):
        codec = GZIP
    elif payload.startswith(HEADER[:8]):
        codec = SNAPPY
    else:
        codec = LZ4
    content, exact = np.frombuffer(payload, dtype=np.uint8), np.empty(len(PLAIN), dtype=np.uint8)
    assert codecs.decompress(codec, content, exact) == len(PLAIN)
    with pytest.raises(codecs.DoesNotFit):
        codecs.decompress(codec, content, exact[:-1])
