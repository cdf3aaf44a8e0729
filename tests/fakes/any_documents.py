"""Any value of a class of stored documents, made by the types of its fields.

A seed makes the same value in each version of Python, so that tests/golden/ledger/documents.json
has only seeds and documents. `python -m tests.fakes.any_documents KIND ...` renders the documents of
these classes anew: only after an intended change of their bytes.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from random import Random
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from etl.ledger.document_codec import Differs
from etl.ledger.documents import DIFFERING, Pauses, render
from etl.model.partitions import TopicPartition
from etl.model.plans import CommitResult, RangeResult
from etl.model.snapshot import (
    Acknowledgement,
    Backfill,
    Interval,
    LoadedIntervals,
    NamedTable,
    Pause,
    Retirement,
)

T = TypeVar("T")
KINDS: tuple[type[Any], ...] = (
    Acknowledgement,
    CommitResult,
    LoadedIntervals,
    NamedTable,
    Pauses,
    Backfill,
    Retirement,
)
GOLDEN = Path(__file__).parents[1] / "golden" / "ledger" / "documents.json"
SEEDS = range(12)
TEXTS = ("clicks", "a b", "zürich", "\U0001f600", 'quote " and \\', "line\nend", "0", "null")
NUMBERS = (0, 1, 2, 9, 10, 255, 1_700_000_000_000, 2**53 + 1, 2**62)
TOPICS = ("a", "a.b", "clicks", "clicks-2", "Z_9")


LATER = {CommitResult: "written", RangeResult: "records", Interval: "left_out"}
"""Fields that were added after the golden documents, and are left out if they have the default."""


def any_document(kind: type[T], seed: object, *, is_latest: bool = False) -> T:
    """A value of this class; `LATER` fields are not default only in the latest form."""
    value: T = _Values(Random(str(seed)), is_latest=is_latest).dataclass(kind)
    return value


def text_of(payload: bytes) -> str:
    if payload.startswith(b"{"):
        return payload.decode()
    return zlib.decompress(payload).decode()


class _Values:
    def __init__(self, random: Random, *, is_latest: bool) -> None:
        self._random = random
        self._is_latest = is_latest

    def _below(self, end: int) -> int:
        # `Random.random` is the one method that Python promises never to change.
        return int(self._random.random() * end)

    def _choice(self, values: Sequence[T]) -> T:
        return values[self._below(len(values))]

    def _partition(self) -> TopicPartition:
        broker_id = self._choice((None, None, 0, 12))
        return TopicPartition(self._choice(TOPICS), self._below(12), broker_id)

    def dataclass(self, kind: Any) -> Any:
        types = get_type_hints(kind)
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(kind):
            differs = DIFFERING.get(kind, {}).get(field.name)
            if LATER.get(kind) == field.name and not self._is_latest:
                continue
            if differs is Differs.ZERO_IF_ABSENT:
                known = [partition for partition in next(_mappings(fields)) if self._below(2)]
                fields[field.name] = {partition: 1 + self._below(9) for partition in known}
            elif differs is not Differs.NOT_STORED:
                fields[field.name] = self._value(types[field.name])
        if kind is Pause and fields["partition"]:
            fields["topic"] = fields["partition"].topic
        return kind(**fields)

    def _value(self, kind: Any) -> Any:
        shape = get_origin(kind)
        inside = get_args(kind)
        if shape is UnionType:
            return self._value(inside[0]) if self._below(3) else None
        if inside[1:] == (...,):
            return tuple(self._value(inside[0]) for _ in range(self._below(4)))
        if shape is tuple:
            start = self._choice(NUMBERS)
            return start, start + 1 + self._choice(NUMBERS)
        if shape is Mapping and inside[0] is TopicPartition:
            partitions = [self._partition() for _ in range(self._below(5))]
            return {partition: self._value(inside[1]) for partition in partitions}
        if shape is Mapping:
            names = [text for text in TEXTS if not self._below(20)]
            return {name: self._value(inside[1]) for name in names}
        if dataclasses.is_dataclass(kind):
            return self.dataclass(kind)
        if issubclass(kind, Enum):
            return self._choice(list(kind))
        if kind is TopicPartition:
            return self._partition()
        if kind is bool:
            return bool(self._below(2))
        if kind is int:
            return self._choice(NUMBERS)
        return self._choice(TEXTS)


def _mappings(fields: Mapping[str, Any]) -> Any:
    return (value for value in fields.values() if isinstance(value, Mapping))


def main(names: Sequence[str]) -> None:
    golden = json.loads(GOLDEN.read_text())
    for kind in KINDS:
        if kind.__name__ in names:
            golden[kind.__name__] = [text_of(render(any_document(kind, seed))) for seed in SEEDS]
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
