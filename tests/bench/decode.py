"""How fast bytes become Arrow columns: our cursor against kafka-python's parser, on the same bytes in the same run.

    python tests/bench/decode.py

One thread, warmed, best of several runs. "Ours" is CRC, decompression, kernel and Arrow, all columns, as an executor does
it: answers of 4 MiB through a cursor. "kafka-python" is its CRC check (by the same library) and its record objects.
Rates count records and bytes of record batches as they come over the wire; "MB/s values" counts the decompressed
values. Exits with 1 when the two disagree about the number of records.
"""

from __future__ import annotations

import random
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import google_crc32c

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from etl.model.logs import BrokerPartition, Isolation  # noqa: E402
from etl.model.plans import OffsetRange  # noqa: E402
from etl.protocol.messages import FetchedPartition  # noqa: E402
from etl.reader.cursor import Cursor  # noqa: E402

BATCH_BYTES = 16 * 1024
"""The default batch.size of Java producers."""
ANSWER_BYTES = 4 << 20
CASES = ((100, 300_000), (1000, 48_000))
CODECS = {"none": 0, "lz4": 3, "zstd": 4, "snappy": 2, "gzip": 1}
RUNS, ORACLE_SHARE = 5, 12


def values(size: int, count: int) -> list[bytes]:
    """Click events as JSON, padded to `size`: as compressible as such data is."""
    rng = random.Random(size)
    found = []
    for number in range(count):
        text = f'{{"user": {rng.randrange(10**6)}, "page": "/p/{rng.randrange(5000)}", "ms": {rng.randrange(2000)}, "n": {number}, "tag": "'
        found.append((text + "".join(rng.choices("abcdefghij klmnop", k=max(0, size - len(text) - 2))) + '"}')[:size].encode())
    return found


def record_batches(contents: list[bytes], codec: int, count: int) -> list[bytes]:
    """`count` records in record batches of about BATCH_BYTES, as kafka-python's producer builds them."""
    from kafka.record.default_records import DefaultRecordBatchBuilder

    found: list[bytes] = []
    offset = at = 0
    while offset < count:
        builder = DefaultRecordBatchBuilder(
            magic=2, compression_type=0, is_transactional=False, producer_id=-1, producer_epoch=-1, base_sequence=-1,
            batch_size=BATCH_BYTES)
        in_batch = 0
        while in_batch < count - offset and builder.append(in_batch, 1_700_000_000_000 + offset, None, contents[at % len(contents)], []):
            in_batch, at = in_batch + 1, at + 1
        found.append(recompressed(bytes(builder.build()), codec, base_offset=offset))
        offset += in_batch
    return found


def recompressed(batch: bytes, codec: int, *, base_offset: int) -> bytes:
    codecs: dict[int, Callable[[bytes], Any]] = {
        0: bytes, 1: cramjam.gzip.compress, 2: xerial, 3: cramjam.lz4.compress, 4: cramjam.zstd.compress}
    covered = struct.pack(">h", codec) + batch[23:61] + bytes(codecs[codec](batch[61:]))
    behind = batch[12:17] + struct.pack(">I", google_crc32c.value(covered)) + covered
    return struct.pack(">qi", base_offset, len(behind)) + behind


def xerial(plain: bytes) -> bytes:
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for start in range(0, len(plain), 32 * 1024):
        block = bytes(cramjam.snappy.compress_raw(plain[start:start + 32 * 1024]))
        framed += struct.pack(">i", len(block)) + block
    return framed


def answers(batches: list[bytes]) -> list[memoryview]:
    found, now = [], bytearray()
    for batch in batches:
        now += batch
        if len(now) >= ANSWER_BYTES:
            found.append(memoryview(now))
            now = bytearray()
    return found + ([memoryview(now)] if now else [])


def ours(parts: list[memoryview], count: int) -> int:
    cursor = Cursor(
        OffsetRange(BrokerPartition("clicks", 0), 0, count), isolation=Isolation.READ_COMMITTED,
        fetch_max_bytes=ANSWER_BYTES, max_fetch_bytes=ANSWER_BYTES)
    rows = 0
    for part in parts:
        fetched = FetchedPartition(
            topic="clicks", partition=0, refusal=None, high_watermark=count, last_stable_offset=count, log_start_offset=0, aborted=(),
            records=part)
        for arrow_batch in cursor.feed(fetched):
            rows += arrow_batch.num_rows
    return rows if cursor.done else -1


def theirs(batches: list[bytes]) -> int:
    from kafka.record import MemoryRecords

    rows = 0
    for batch in MemoryRecords(b"".join(batches)):
        if not batch.validate_crc():
            return -1
        for record in batch:
            rows += record.offset >= 0
    return rows


def equip_kafka_python() -> None:
    """The fast CRC and the codecs that kafka-python takes from optional packages, so that the comparison is fair."""
    from kafka import codec
    from kafka.record import default_records

    default_records.calc_crc32c = lambda content: google_crc32c.value(bytes(content))
    for name in ("snappy", "lz4", "zstd"):
        setattr(codec, f"has_{name}", lambda: True)
    default_records.lz4_decode = lambda content: bytes(cramjam.lz4.decompress(content))
    default_records.zstd_decode = lambda content: bytes(cramjam.zstd.decompress(content))
    codec.snappy = type("snappy", (), {"decompress": staticmethod(lambda content: bytes(cramjam.snappy.decompress_raw(content)))})


def best_of(runs: int, call: Callable[[], int]) -> tuple[float, int]:
    best, rows = float("inf"), 0
    for _ in range(runs):
        start = time.perf_counter()
        rows = call()
        best = min(best, time.perf_counter() - start)
    return best, rows


def main() -> int:
    equip_kafka_python()
    print(f"{'value':>7} {'codec':>7} | {'ours M rec/s':>13} {'MB/s wire':>10} {'MB/s values':>12} | "
          f"{'kafka-python M rec/s':>21} {'ratio':>6}")
    agreed = True
    for size, count in CASES:
        contents = values(size, count // 10)
        for name, codec in CODECS.items():
            batches = record_batches(contents, codec, count)
            parts = answers(batches)
            ours(parts[:1], 1)
            seconds, rows = best_of(RUNS, lambda: ours(parts, count))
            share = batches[:max(1, len(batches) // ORACLE_SHARE)]
            their_seconds, their_rows = best_of(1, lambda: theirs(share))
            expected = sum(struct.unpack_from(">i", batch, 57)[0] for batch in share)
            same = rows == count and their_rows == expected
            agreed = agreed and same
            wire, rate, their_rate = sum(map(len, batches)), rows / seconds, their_rows / their_seconds
            print(f"{size:>5} B {name:>7} | {rate / 1e6:>13.2f} {wire / seconds / 1e6:>10.0f} {rows * size / seconds / 1e6:>12.0f} | "
                  f"{their_rate / 1e6:>21.3f} {rate / their_rate:>5.0f}x{'' if same else '  DIFFERENT COUNTS'}")
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
