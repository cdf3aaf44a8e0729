"""The records: clicks in JSON, no two alike, written by librdkafka's producer in a process for each
partition.

    python -m bench.whole.records BOOTSTRAP TOPIC PARTITION RECORDS SIZE COMPRESSION

Those of 1 kB have what the clicks of a shop have besides: a browser's name out of a few, two ids in
hexadecimal digits, and text of words.
"""

from __future__ import annotations

import random
import sys

from bench.whole.workloads import PARTITIONS

_SEED = 20_001
_WORDS, _TEXT_BYTES = 20_000, 1 << 22
_AGENTS = [
    b"Mozilla/5.0 (%s) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/%d.0.0.0 Safari/537.36"
    % (system, version)
    for system in (
        b"Windows NT 10.0; Win64; x64",
        b"X11; Linux x86_64",
        b"Macintosh; Intel Mac OS X 10_15_7",
        b"Linux; Android 10; K",
    )
    for version in range(110, 126)
]


def short(number: int) -> bytes:
    """A click of 100 bytes; no two numbers have the same."""
    mixed = number * 2_654_435_761 % 2**32
    return b'{"user":"%07d","page":"/item/%06d","referrer":"/find?q=%08x","at":%d,"ms":%d}' % (
        mixed % 9_999_991,
        mixed // 7 % 999_983,
        mixed,
        1_700_000_000_000 + number,
        10_000 + mixed % 60_000,
    )


class Clicks:
    """Clicks of one size, by their numbers: the same number always has the same click."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._text = _text() if size > len(short(0)) else b""

    def __getitem__(self, number: int) -> bytes:
        click = short(number)
        if not self._text:
            return click
        mixed = number * 11_400_714_819_323_198_485 % 2**64
        head = b'%s,"agent":"%s","session":"%016x","trace":"%016x%016x","text":"' % (
            click[:-1],
            _AGENTS[mixed % len(_AGENTS)],
            mixed,
            mixed * 40_503 % 2**64,
            (mixed ^ number) * 2_246_822_519 % 2**64,
        )
        left = self._size - len(head) - 2
        begin = (mixed >> 20) % (_TEXT_BYTES - self._size)
        return head + self._text[begin : begin + left] + b'"}'


def _text() -> bytes:
    """Words of which few are frequent, as in any language."""
    chance = random.Random(_SEED)
    words = [
        "".join(
            chance.choices(
                "etaoinshrdlucmfwypvbgk", weights=range(22, 0, -1), k=chance.randint(2, 10)
            )
        )
        for _ in range(_WORDS)
    ]
    text = " ".join(
        words[min(int(chance.paretovariate(0.6)), _WORDS) - 1] for _ in range(_TEXT_BYTES // 3)
    )
    return text.encode()[:_TEXT_BYTES]


def produce(
    bootstrap: str, topic: str, partition: int, records: int, size: int, compression: str
) -> None:
    """As many records into one partition; its numbers are those of no other one."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": compression,
            "linger.ms": 50,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 19,
            "enable.idempotence": True,
            "log_level": 3,
        }
    )
    clicks = Clicks(size)
    for number in range(partition, partition + records * PARTITIONS, PARTITIONS):
        while True:
            try:
                producer.produce(topic, clicks[number], partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


if __name__ == "__main__":
    where, name, at, count, each, codec = sys.argv[1:]
    produce(where, name, int(at), int(count), int(each), codec)
