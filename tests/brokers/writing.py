"""Records of foreign producers, and a table compared with what the release's consumer reads."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from deltalake import DeltaTable

from tests.brokers.foreign import KeyValue, Seen
from tests.brokers.stage import PARTITIONS, Stage
from tests.system.driving import Pipeline

FETCH_BYTES = 64 << 10
"""What our runs ask for here, so that one message is larger."""
LARGE = random.Random(1).randbytes(3 * FETCH_BYTES)
ODD: tuple[KeyValue, ...] = (
    (None, b"no key"),
    (b"no value", None),
    (None, None),
    (b"", b""),
    (b"\0", b"\xff" * 3),
    ("\u4e2d".encode(), "\u6587".encode()),
)


def many(count: int, first: int = 0) -> list[KeyValue]:
    """Plain records, each like no other."""
    return [
        (b"key-%d" % n, b'{"event": %d, "text": "%b"}' % (n, b"abc" * (n % 40)))
        for n in range(first, first + count)
    ]


@dataclass
class ForeignPipeline(Pipeline):
    stage: Stage = field(kw_only=True)

    def write_every_kind(self, records_each: int = 40) -> None:
        """A few of every kind, by every producer and codec, over all partitions."""
        for number, (name, write) in enumerate(self.stage.writers.items()):
            self._wrote(write, number % PARTITIONS, [(None, name.encode())])
            self._wrote(write, (number + 1) % PARTITIONS, [*ODD])
            self._wrote(write, number % PARTITIONS, [(b"large", LARGE), *many(3)])
            self._wrote(write, (number + 2) % PARTITIONS, many(records_each, self.produced))

    def write_more(self, records_each: int = 20) -> None:
        """Plain and packed records in all partitions but one."""
        for number, write in enumerate([*self.stage.writers.values()][-3:]):
            self._wrote(write, number, many(records_each, self.produced))

    def _wrote(self, write: Any, partition: int, records: list[KeyValue]) -> None:
        if not self.stage.has_keys:
            records = [(None, value) for _, value in records if value is not None]
        write(self.topic, partition, records)
        self.produced += len(records)

    def in_table_seen(self) -> list[Seen]:
        """Every row of the table, by delta-rs, sorted."""
        table = DeltaTable(str(self.table)).to_pyarrow_table()
        rows = table.select([name for name in table.column_names if name in _COLUMNS]).to_pylist()
        return sorted((_seen(row) for row in rows), key=_place)

    def in_zookeeper(self) -> dict[str, int]:
        """The group's offsets, by the names that logs have there."""
        with self.zookeeper() as client:
            path = f"/consumers/{self.group}/offsets/{self.topic}"
            return {
                name: int(client.get(f"{path}/{name}")[0]) for name in client.get_children(path)
            }

    def is_as_its_own_consumer_reads(self) -> bool:
        """The same messages at the same offsets, each once, all that were written."""
        expected, found = sorted(self.stage.read(self.topic), key=_place), self.in_table_seen()
        assert [_place(one) for one in found] == [_place(one) for one in expected]
        assert found == expected
        assert len(found) == self.produced
        return True


_COLUMNS = {"broker_id", "partition", "offset", "message_index", "key", "value"}


def _seen(row: dict[str, Any]) -> Seen:
    return Seen(
        row.get("broker_id", 0),
        row["partition"],
        row["offset"],
        row.get("message_index", 0),
        row["key"],
        row["value"],
    )


def _place(seen: Seen) -> tuple[int, int, int, int]:
    return seen.broker, seen.partition, seen.offset, seen.index


def sent(pipeline: ForeignPipeline, count: int) -> Counter[bytes | None]:
    """So many records, each like no other, plain, over all partitions; what they hold."""
    records = many(count, pipeline.produced)
    plain = next(iter(pipeline.stage.writers.values()))
    for partition in range(PARTITIONS):
        plain(pipeline.topic, partition, records[partition::PARTITIONS])
    pipeline.produced += count
    return Counter(value for _, value in records)


def in_table(pipeline: ForeignPipeline) -> Counter[bytes | None]:
    return Counter(seen.value for seen in pipeline.in_table_seen())
