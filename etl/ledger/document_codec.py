"""How is a dataclass written as JSON, and parsed again, by the types of its fields?

    ======================  =====================================================================
    type                    JSON
    ======================  =====================================================================
    str, int, float, bool   the same; None: null
    enum                    its value
    tuple                   [value, ...]
    dataclass               document {field: value, ...}; in a field or a tuple: row [value, ...]
    mapping by name         {name: value, ...}; dataclasses are documents again
    mapping by partition    two members: "logs": {topic: [key, ...], ...}, and field: [value, ...]
    partition in a row      topic and key; if it is optional: key, after a field with the topic
    ======================  =====================================================================

All mappings by partition of a document share "logs". `Differs` lists what fields can have instead.
Types are checked, members that no field has are ignored, and a row may lack its last values if
those fields have defaults.

Values are written and read by column, with one call for all values of a field: a document of
100,000 partitions takes a hundred calls instead of a million.

Lives here: the JSON of types, and of partitions and pairs of integers.
Not here: which fields of stored documents differ (documents.py), plans (plan_document.py).
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from itertools import chain, islice, starmap
from operator import attrgetter
from types import UnionType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from etl.model.partitions import TopicPartition, in_order, parse_partition_key

T = TypeVar("T")
Column = Sequence[Any]
"""The values of one field in several rows or documents, or their JSON."""


class Differs(Enum):
    """How a field differs from the JSON of its type."""

    NOT_STORED = "not stored; in rows, such fields are the last ones"
    LEFT_OUT = (
        "left out if it has its default: of a document, or of all rows, where such fields are last"
    )
    BY_COLUMN = "a tuple of rows as members {name: [value of each row]}, which compress better"
    FLAT = "a tuple of pairs of integers as one list of integers, which is shorter"
    APART = 'a mapping by partition as one member {"logs": ..., "intervals": [value, ...]}'
    ZERO_IF_ABSENT = 'a mapping that lacks some partitions of "logs": they have 0'


class _Field(NamedTuple):
    name: str
    type: Any
    differs: Differs | None
    default: Any

    def is_left_out(self, values: Iterable[Any]) -> bool:
        """Return True if these values are all the default of a field that is then left out."""
        if self.differs is not Differs.LEFT_OUT:
            return False
        return all(value == self.default for value in values)


class _Cell(NamedTuple):
    """One value in the row of a dataclass."""

    name: str
    type: Any
    attribute: str
    field: _Field


class Codec:
    """Writes and reads dataclasses.

    `differing`: by class, the fields that differ. `head`: the first members of each document.
    """

    def __init__(self, differing: Mapping[type, Mapping[str, Differs]], **head: Any) -> None:
        self._differing = differing
        self._head = head
        self._fields: Callable[[Any], list[_Field]] = cache(self._stored_fields)

    def write(self, value: Any) -> dict[str, Any]:
        """Return the document of a dataclass."""
        document = dict(self._head)
        partitions: list[TopicPartition] = []
        for field in self._fields(type(value)):
            name, kind, differs, _ = field
            content = getattr(value, name)
            inside = get_args(kind)
            if field.is_left_out([content]):
                continue
            if differs is Differs.BY_COLUMN:
                document.update(self._columns(inside[0], content))
            elif differs is Differs.APART:
                apart = in_order(content)
                values = self._to_json(inside[1], [content[partition] for partition in apart])
                document[name] = {"logs": render_partitions(apart), "intervals": values}
            elif inside[:1] == (TopicPartition,):
                if "logs" not in document:
                    partitions = in_order(content)
                    document["logs"] = render_partitions(partitions)
                if differs is Differs.ZERO_IF_ABSENT:
                    found = [content.get(partition, 0) for partition in partitions]
                else:
                    found = [content[partition] for partition in partitions]
                document[name] = self._to_json(inside[1], found)
            else:
                [document[name]] = self._to_json(kind, [content])
        return document

    def read(self, kind: type[T], document: Any) -> T:
        """Return the dataclass of a document.

        Raises ValueError, KeyError or TypeError if the document is invalid.
        """
        _require(dict, [document], kind.__name__)
        fields: dict[str, Any] = {}
        partitions: list[TopicPartition] = []
        for name, field_type, differs, _ in self._fields(kind):
            inside = get_args(field_type)
            if differs is Differs.LEFT_OUT and name not in document:
                continue
            if differs is Differs.BY_COLUMN:
                columns = []
                for cell in self._cells(inside[0]):
                    if cell.name in document or cell.field.differs is not Differs.LEFT_OUT:
                        columns.append(document[cell.name])
                _require(list, columns, name)
                fields[name] = tuple(self._rows(inside[0], columns))
            elif differs is Differs.APART:
                apart = document[name]
                apart_partitions = parse_partitions(apart["logs"])
                fields[name] = self._mapping(inside[1], apart_partitions, apart["intervals"], name)
            elif inside[:1] == (TopicPartition,):
                partitions = partitions or parse_partitions(document["logs"])
                by_partition = self._mapping(inside[1], partitions, document[name], name)
                if differs is Differs.ZERO_IF_ABSENT:
                    by_partition = {
                        partition: number
                        for partition, number in by_partition.items()
                        if number != 0
                    }
                fields[name] = by_partition
            else:
                [fields[name]] = self._from_json(field_type, [document[name]], name)
        return kind(**fields)

    def write_row(self, value: Any) -> Any:
        """Return the row of a dataclass."""
        return self._to_json(type(value), [value])[0]

    def read_row(self, kind: type[T], row: Any) -> T:
        """Return the dataclass of a row. Raises ValueError or TypeError if the row is invalid."""
        value: T = self._from_json(kind, [row], kind.__name__)[0]
        return value

    def _stored_fields(self, kind: Any) -> list[_Field]:
        types = get_type_hints(kind)
        differing = self._differing.get(kind, {})
        stored = []
        for field in dataclasses.fields(kind):
            differs = differing.get(field.name)
            if differs is Differs.NOT_STORED:
                continue
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            stored_type = types[field.name]
            if differs is Differs.FLAT:
                stored_type = _FlatPairs
            stored.append(_Field(field.name, stored_type, differs, default))
        return stored

    def _mapping(
        self, kind: Any, partitions: list[TopicPartition], found: Any, name: str
    ) -> dict[TopicPartition, Any]:
        """Return the values of these partitions."""
        _require(list, [found], name)
        return dict(zip(partitions, self._from_json(kind, found, name), strict=True))

    def _cells(self, kind: Any) -> list[_Cell]:
        """Return the values in the rows of a class."""
        cells: list[_Cell] = []
        for field in self._fields(kind):
            if field.type is TopicPartition:
                cells.append(_Cell("topic", str, f"{field.name}.topic", field))
            cells.append(_Cell(field.name, field.type, field.name, field))
        return cells

    def _columns(self, kind: Any, values: Column) -> dict[str, Column]:
        """Return the columns of rows, by name."""
        columns = {}
        for name, cell_type, attribute, field in self._cells(kind):
            column = list(map(attrgetter(attribute), values))
            if not field.is_left_out(column):
                columns[name] = self._to_json(cell_type, column)
        return columns

    def _rows(self, kind: Any, columns: Sequence[Column]) -> list[Any]:
        """Return the dataclass of each row."""
        cells = self._cells(kind)
        if not 0 < len(columns) <= len(cells):
            raise ValueError(f"{kind.__name__} has {len(columns)} values instead of {len(cells)}")
        arguments: list[Column] = []
        for (name, cell_type, _, _), column in zip(cells, columns):
            values = self._from_json(cell_type, column, name)
            if cell_type in (TopicPartition, TopicPartition | None):
                values = list(map(_optional_partition, arguments[-1], values))
            if cell_type is TopicPartition:
                arguments.pop()  # the topic, which the partition has
            arguments.append(values)
        return list(starmap(kind, zip(*arguments, strict=True)))

    def _to_json(self, kind: Any, values: Column) -> Column:
        """Return the JSON of each value."""
        shape = get_origin(kind)
        inside = get_args(kind)
        if _is_plain(kind):
            return values
        if shape is UnionType:
            written = iter(self._to_json(inside[0], _known(values)))
            return [None if value is None else next(written) for value in values]
        if shape is tuple:
            items = self._to_json(inside[0], list(chain.from_iterable(values)))
            return _split(items, values)
        if shape is Mapping:
            return [self._to_members(inside[1], value) for value in values]
        if dataclasses.is_dataclass(kind):
            return list(zip(*self._columns(kind, values).values()))
        if kind is _FlatPairs:
            return list(map(flat, values))
        if kind is TopicPartition:
            return [partition.key for partition in values]
        return [value.value for value in values]  # of an enum

    def _to_members(self, kind: Any, by_name: Mapping[str, Any]) -> dict[str, Any]:
        values: Column = list(by_name.values())
        if dataclasses.is_dataclass(kind):
            return dict(zip(by_name, map(self.write, values)))
        return dict(zip(by_name, self._to_json(kind, values)))

    def _from_json(self, kind: Any, found: Column, name: str) -> Column:
        """Return the value of each JSON. `name`: the field, for errors."""
        shape = get_origin(kind)
        inside = get_args(kind)
        if kind in _SCALARS:
            _require(kind, found, name)
            return found
        if kind is TopicPartition:
            _require(str, found, name)
            return found  # keys
        if shape is UnionType:
            values = iter(self._from_json(inside[0], _known(found), name))
            return [None if one is None else next(values) for one in found]
        if shape is Mapping:
            _require(dict, found, name)
            return [self._from_members(inside[1], members, name) for members in found]
        if isinstance(kind, type) and issubclass(kind, Enum):
            return list(map(kind, found))
        _require(list, found, name)
        if kind is _FlatPairs:
            _require(int, list(chain.from_iterable(found)), name)
            return list(map(pairs, found))
        if inside[1:] == (...,):
            items = self._from_json(inside[0], list(chain.from_iterable(found)), name)
            return _split(items, found)
        if not found:
            return []
        columns = _transposed(found, name)
        if dataclasses.is_dataclass(kind):
            return self._rows(kind, columns)
        parts = []
        for part_type, column in zip(inside, columns, strict=True):
            parts.append(self._from_json(part_type, column, name))
        return list(zip(*parts))

    def _from_members(self, kind: Any, members: Mapping[str, Any], name: str) -> dict[str, Any]:
        is_document = dataclasses.is_dataclass(kind)
        if is_document:
            return {key: self.read(kind, document) for key, document in members.items()}
        return dict(zip(members, self._from_json(kind, list(members.values()), name)))


class _FlatPairs:
    """The type of a field that is `FLAT`."""


_SCALARS = frozenset((str, int, float, bool, str | None, int | None, float | None, bool | None))
"""Types whose values are written as they are."""


@cache
def _is_plain(kind: Any) -> bool:
    """Return True if values are written as they are."""
    if get_origin(kind) is tuple:
        return all(_is_plain(part) for part in get_args(kind) if part is not ...)
    return kind in _SCALARS


def _require(kind: Any, found: Column, name: str) -> None:
    """Raise ValueError unless each value is of this very type: `bool` is no `int`."""
    types = get_args(kind) or (kind,)
    others = set(map(type, found)).difference(types)
    if others:
        wrong = next(value for value in found if type(value) in others)
        expected = " or ".join(one.__name__ for one in types)
        raise ValueError(f"{name} is {reprlib.repr(wrong)}, not {expected}")


def _known(values: Column) -> list[Any]:
    return [value for value in values if value is not None]


def _split(items: Column, parts: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Split items into tuples of the lengths of these parts."""
    remaining = iter(items)
    return [tuple(islice(remaining, len(part))) for part in parts]


def _transposed(rows: Sequence[Sequence[Any]], name: str) -> list[Column]:
    """Return the columns of rows. `zip(*rows)` takes six times as long for 300,000 rows."""
    widths = set(map(len, rows))
    if len(widths) > 1:
        raise ValueError(f"{name} has rows of {len(widths)} lengths")
    width = widths.pop()
    values = list(chain.from_iterable(rows))
    return [values[i::width] for i in range(width)]


def render_partitions(partitions: Iterable[TopicPartition]) -> dict[str, list[str]]:
    """Return partitions that are `in_order` by topic: `{topic: [key, ...]}`."""
    by_topic: dict[str, list[str]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition.key)
    return by_topic


def parse_partitions(found: Mapping[str, list[str]]) -> list[TopicPartition]:
    """Return the partitions that `render_partitions` wrote, in order.

    Raises ValueError for an invalid partition key.
    """
    partitions: list[TopicPartition] = []
    for topic, keys in found.items():
        partitions.extend(_log_of(topic, key) for key in keys)
    return partitions


def _log_of(topic: str, key: str) -> TopicPartition:
    partition = parse_partition_key(topic, key)
    if partition is None:
        raise ValueError(f"{key!r} is no partition key")
    return partition


def _optional_partition(topic: str, key: str | None) -> TopicPartition | None:
    if key is None:
        return None
    return _log_of(topic, key)


def flat(found: Iterable[tuple[int, int]]) -> list[int]:
    """Flatten pairs into one list, which is shorter as JSON."""
    numbers: list[int] = []
    for pair in found:
        numbers.extend(pair)
    return numbers


def pairs(found: list[int]) -> tuple[tuple[int, int], ...]:
    """Return the pairs that `flat` wrote."""
    return tuple(zip(found[::2], found[1::2], strict=True))
