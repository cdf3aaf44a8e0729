"""The speed of decoding bytes to Arrow columns: our cursor and kafka-python's parser, on the same
bytes in the same run.

    python bench/decode.py [FORMAT ...]

One thread, warmed, best of several runs. "Ours" is CRC, decompression, kernel and Arrow, all
columns, as an executor does it: answers of 4 MiB through a cursor. "kafka-python" is its CRC check
(by the same library if there is a faster one) and its record objects. Rates count records and bytes
as they come over the wire; "MB/s values" counts the decompressed values.

Formats: v2, v1 and v0 (kafka-python's legacy decoder), and 0.7, for which kafka-python has no
decoder: it is compared with the legacy decoder on the same values in format v0. Wrappers have about
16 KiB, as the record batches do.

Exits with 1 if the two disagree about the number of records.
"""

from __future__ import annotations

import random
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cramjam
import google_crc32c

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from etl.kafka.request_values import EntryLayout, FetchedPartition  # noqa: E402
from etl.model.partitions import Isolation, TopicPartition  # noqa: E402
from etl.model.plans import OffsetRange  # noqa: E402
from etl.reader.cursor import Cursor  # noqa: E402
from etl.reader.fetch_options import FetchOptions
from tests.fakes.message_sets import Entry, Msg, entry_bytes, inside, message_bytes  # noqa: E402

BATCH_BYTES = 16 * 1024
"""The default batch.size of Java producers."""
ANSWER_BYTES = 4 << 20
CASES = ((100, 300_000), (1000, 48_000))
CODECS = {"none": 0, "lz4": 3, "zstd": 4, "snappy": 2, "gzip": 1}
FORMATS = {
    "v2": tuple(CODECS),
    "v1": ("none", "lz4", "snappy", "gzip"),
    "v0": ("none", "lz4", "snappy", "gzip"),
    "0.7": ("none", "snappy", "gzip"),
}
RUNS, ORACLE_SHARE = 5, 12
NOW_MS = 1_700_000_000_000


def values(size: int, count: int) -> list[bytes]:
    """Click events as JSON, padded to `size`: as compressible as such data is."""
    rng = random.Random(size)
    found = []
    for number in range(count):
        text = (
            f'{{"user": {rng.randrange(10**6)}, "page": "/p/{rng.randrange(5000)}", "ms": '
            f'{rng.randrange(2000)}, "n": {number}, "tag": "'
        )
        found.append(
            (
                text
                + "".join(rng.choices("abcdefghij klmnop", k=max(0, size - len(text) - 2)))
                + '"}'
            )[:size].encode()
        )
    return found


def record_batches(contents: list[bytes], codec: int, count: int) -> list[bytes]:
    """`count` records in record batches of about BATCH_BYTES, as kafka-python's producer builds
    them.
    """
    from kafka.record.default_records import DefaultRecordBatchBuilder

    found: list[bytes] = []
    offset = at = 0
    while offset < count:
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=False,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=BATCH_BYTES,
        )
        in_batch = 0
        while in_batch < count - offset and builder.append(
            in_batch, NOW_MS + offset, None, contents[at % len(contents)], []
        ):
            in_batch, at = in_batch + 1, at + 1
        found.append(recompressed(bytes(builder.build()), codec, base_offset=offset))
        offset += in_batch
    return found


def recompressed(batch: bytes, codec: int, *, base_offset: int) -> bytes:
    covered = struct.pack(">h", codec) + batch[23:61] + compressed(batch[61:], codec)
    end = batch[12:17] + struct.pack(">I", google_crc32c.value(covered)) + covered
    return struct.pack(">qi", base_offset, len(end)) + end


def compressed(plain: bytes, codec: int) -> bytes:
    codecs: dict[int, Callable[[bytes], Any]] = {
        0: bytes,
        1: cramjam.gzip.compress,
        2: xerial,
        3: cramjam.lz4.compress,
        4: cramjam.zstd.compress,
    }
    return bytes(codecs[codec](plain))


def xerial(plain: bytes) -> bytes:
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for start in range(0, len(plain), 32 * 1024):
        block = bytes(cramjam.snappy.compress_raw(plain[start : start + 32 * 1024]))
        framed += struct.pack(">i", len(block)) + block
    return framed


def message_sets(contents: list[bytes], codec: int, count: int, magic: int) -> list[bytes]:
    """`count` messages of format v0 or v1, one by one, or in wrappers of about BATCH_BYTES."""
    messages = [Msg(i, contents[i % len(contents)], None, NOW_MS + i) for i in range(count)]
    if not codec:
        return [message_bytes(message, magic) for message in messages]
    found = []
    for group in in_groups(messages, len(message_bytes(messages[0], magic))):
        payload = compressed(inside(group, magic, group[0].offset if magic else 0), codec)
        found.append(message_bytes(Msg(group[-1].offset, payload, None, NOW_MS), magic, codec))
    return found


def entries(contents: list[bytes], codec: int, count: int) -> list[bytes]:
    """`count` messages of 0.7, one by one, or in compressed ones of about BATCH_BYTES."""
    plain = [entry_bytes(Entry(contents[i % len(contents)])) for i in range(count)]
    if not codec:
        return plain
    return [
        entry_bytes(Entry(compressed(b"".join(group), codec), attributes=codec))
        for group in in_groups(plain, len(plain[0]))
    ]


def in_groups(items: list[Any], size: int) -> Iterator[list[Any]]:
    together = max(1, BATCH_BYTES // size)
    return (items[start : start + together] for start in range(0, len(items), together))


def answers(batches: list[bytes]) -> list[memoryview]:
    found, now = [], bytearray()
    for batch in batches:
        now += batch
        if len(now) >= ANSWER_BYTES:
            found.append(memoryview(now))
            now = bytearray()
    return found + ([memoryview(now)] if now else [])


def ours(parts: list[memoryview], until: int, *, is_physical: bool) -> int:
    partition = TopicPartition("clicks", 0, 0 if is_physical else None)
    cursor = Cursor(
        OffsetRange(partition, 0, until),
        FetchOptions(
            isolation=Isolation.READ_COMMITTED,
            fetch_max_bytes=ANSWER_BYTES,
            max_batch_bytes=ANSWER_BYTES,
        ),
    )
    rows = 0
    for part in parts:
        fetched = FetchedPartition(
            topic="clicks",
            partition=0,
            refusal=None,
            high_watermark=until,
            last_stable_offset=until,
            log_start_offset=0,
            aborted=(),
            records=part,
            layout=EntryLayout.PHYSICAL if is_physical else EntryLayout.LOGICAL,
            broker_id=partition.broker_id,
        )
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
    """The fast CRC and the codecs that kafka-python takes from optional packages, so that the
    comparison is fair.
    """
    from kafka import codec
    from kafka.record import default_records, legacy_records

    default_records.calc_crc32c = lambda content: google_crc32c.value(bytes(content))
    for name in ("snappy", "lz4", "zstd"):
        setattr(codec, f"has_{name}", lambda: True)
    for module in (default_records, legacy_records):
        module.lz4_decode = lambda content: bytes(cramjam.lz4.decompress(content))
    legacy_records.lz4_decode_old_kafka = legacy_records.lz4_decode
    default_records.zstd_decode = lambda content: bytes(cramjam.zstd.decompress(content))
    codec.snappy = type(
        "snappy",
        (),
        {"decompress": staticmethod(lambda content: bytes(cramjam.snappy.decompress_raw(content)))},
    )


def best_of(runs: int, call: Callable[[], int]) -> tuple[float, int]:
    best, rows = float("inf"), 0
    for _ in range(runs):
        start = time.perf_counter()
        rows = call()
        best = min(best, time.perf_counter() - start)
    return best, rows


def built(form: str, contents: list[bytes], codec: int, count: int) -> list[bytes]:
    if form == "v2":
        return record_batches(contents, codec, count)
    if form == "0.7":
        return entries(contents, codec, count)
    return message_sets(contents, codec, count, int(form[1:]))


def main() -> int:
    equip_kafka_python()
    print(
        f"{'format':>6} {'value':>7} {'codec':>7} | {'ours M rec/s':>13} {'MB/s wire':>10} "
        f"{'MB/s values':>12} | "
        f"{'kafka-python M rec/s':>21} {'ratio':>6}"
    )
    agreed = True
    for form in sys.argv[1:] or FORMATS:
        for size, count in CASES:
            contents = values(size, count // 10)
            for name in FORMATS[form]:
                agreed = measured(form, size, count, contents, name) and agreed
    return 0 if agreed else 1


def measured(form: str, size: int, count: int, contents: list[bytes], codec: str) -> bool:
    """Print one line; whether both found every record."""
    batches, is_physical = built(form, contents, CODECS[codec], count), form == "0.7"
    parts, wire = answers(batches), sum(map(len, batches))
    until = wire if is_physical else count
    ours(parts[:1], 1 if not is_physical else len(batches[0]), is_physical=is_physical)
    seconds, rows = best_of(RUNS, lambda: ours(parts, until, is_physical=is_physical))
    few = count // ORACLE_SHARE
    share = built("v0" if is_physical else form, contents, CODECS[codec], few)
    their_seconds, their_rows = best_of(2, lambda: theirs(share))
    same = rows == count and their_rows == few
    rate, their_rate = rows / seconds, their_rows / their_seconds
    print(
        f"{form:>6} {size:>5} B {codec:>7} | {rate / 1e6:>13.2f} "
        f"{wire / seconds / 1e6:>10.0f} {rows * size / seconds / 1e6:>12.0f} | "
        f"{their_rate / 1e6:>21.3f} "
        f"{rate / their_rate:>5.0f}x{'' if same else '  DIFFERENT COUNTS'}",
        flush=True,
    )
    return same


if __name__ == "__main__":
    sys.exit(main())
