"""Whether the bytes of a small response are what their schema says, looked at before kafka-python
decodes them.

That library takes a null array or text where there always is one, a text that is cut off at the
end, bytes behind the end, and a length without an end, which it sums up to a number of millions of
bits. So the schema (Kafka's own message schemas, as that library carries them) is walked here first
with a `Reader`, which checks each length against what is left. What the fields mean is `kafka`'s.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from etl.protocol.primitives import Reader

Step = Callable[[Reader], None]
"""Reads one field, or several of fixed size. Raises CorruptData."""

_FIXED = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "float64": 8,
    "bitfield": 4,
    "uuid": 16,
}
_INDEXES = {"PartitionIndex", "Index", "Partition"}
_NAMES = {"Name", "Topic"}
"""Never null for us: we ask for topics by name (from Metadata 12 on a broker may answer for an id
that it does not know).
"""
_MAX_PORT = 65535


def refuse_other(message: Any, version: int, response: memoryview, **place: Any) -> None:
    """Raise CorruptData, with the place and the byte, where `response` is not a `message` of that
    version.

    `message` is a response class of kafka-python, `response` the bytes after the length,
    correlation id included.
    """
    reader = Reader(response, **place)
    for step in _steps_of(message, version):
        step(reader)
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes follow the end of the answer")


def refuse_other_data(data: Any, version: int, content: memoryview, **place: Any) -> None:
    """The same of what members of a group tell each other: its own version in front, and what a
    newer version adds behind it, if anything.

    `data` is a class of kafka-python's without a header.
    """
    reader = Reader(content, **place)
    for step in _steps_of_data(data, version):
        step(reader)


@cache
def _steps_of_data(data: Any, version: int) -> tuple[Step, ...]:
    flexible = _holds(data.json["flexibleVersions"], version)
    return (_skipping("the version", 2), *_steps(data.json["fields"], version, flexible))


@cache
def _steps_of(message: Any, version: int) -> tuple[Step, ...]:
    schema = message.json
    flexible = _holds(schema["flexibleVersions"], version)
    header = [_skipping("the correlation id", 4), *([_tags] if flexible else [])]
    return (*header, *_steps(schema["fields"], version, flexible))


def _steps(
    fields: Sequence[Mapping[str, Any]],
    version: int,
    flexible: bool,
    *,
    has_tags: bool | None = None,
) -> list[Step]:
    """The steps through one struct; neighbours of fixed size are one step. `has_tags`: whether
    tagged fields follow, as in every flexible struct, and not behind the items of an array of texts
    or numbers."""
    steps: list[Step] = []
    size, first = 0, ""
    for field in fields:
        if not _holds(field["versions"], version) or _holds(
            field.get("taggedVersions", "none"), version
        ):
            continue
        if field["type"] in _FIXED and field["name"] not in _INDEXES and field["name"] != "Port":
            size, first = size + _FIXED[field["type"]], first or field["name"]
            continue
        if size:
            steps.append(_skipping(first, size))
        size, first = 0, ""
        steps.append(_step(field, version, flexible))
    if size:
        steps.append(_skipping(first, size))
    return [*steps, _tags] if (flexible if has_tags is None else has_tags) else steps


def _step(field: Mapping[str, Any], version: int, flexible: bool) -> Step:
    name, kind = field["name"], field["type"]
    may_be_null = _holds(field.get("nullableVersions", "none"), version) and name not in _NAMES
    if name in _INDEXES or name == "Port":
        return _number(
            name, 0 if name in _INDEXES else -1, _MAX_PORT if name == "Port" else 2**31 - 1
        )
    if "fields" in field and not kind.startswith("[]"):
        return _struct(name, _steps(field["fields"], version, flexible), may_be_null)
    if not kind.startswith("[]"):
        return _text(name, may_be_null, flexible, is_long=kind == "bytes")
    item = {**field, "name": name, "type": kind[2:], "nullableVersions": "none"}
    fields, has_tags = (
        field["fields"] if "fields" in field else [item],
        flexible and "fields" in field,
    )
    steps = _steps(fields, version, flexible, has_tags=has_tags)
    return _array(name, steps, may_be_null, flexible, _layout(fields, version, has_tags))


def _layout(
    fields: Sequence[Mapping[str, Any]], version: int, has_tags: bool
) -> struct.Struct | None:
    """Items of one size each, where none has tagged fields: of each its index and the number of its
    tags. None: they have no one size.
    """
    there = [
        field
        for field in fields
        if _holds(field["versions"], version)
        and not _holds(field.get("taggedVersions", "none"), version)
    ]
    if not all(field["type"] in _FIXED and field["name"] != "Port" for field in there):
        return None
    sizes = ("i" if field["name"] in _INDEXES else f"{_FIXED[field['type']]}x" for field in there)
    return struct.Struct(">" + "".join(sizes) + ("B" if has_tags else ""))


def _skipping(name: str, size: int) -> Step:
    def skip(reader: Reader) -> None:
        reader.span(size, name)

    return skip


def _number(name: str, lowest: int, highest: int) -> Step:
    def check(reader: Reader) -> None:
        number = reader.int32()
        if not lowest <= number <= highest:
            raise reader.corrupt(f"{name} is {number}")

    return check


def _text(name: str, may_be_null: bool, flexible: bool, *, is_long: bool = False) -> Step:
    """A text, or bytes (`is_long`), whose length takes four bytes."""

    def skip(reader: Reader) -> None:
        length = (
            reader.unsigned_varint() - 1
            if flexible
            else reader.int32()
            if is_long
            else reader.int16()
        )
        if length != -1 or not may_be_null:
            reader.span(length, name)

    return skip


def _struct(name: str, inner: Sequence[Step], may_be_null: bool) -> Step:
    """A byte in front says whether it is there (KIP-893), where it may be null."""

    def walk(reader: Reader) -> None:
        there = reader.int8() if may_be_null else 1
        if there not in (1, -1):
            raise reader.corrupt(f"{name} is said to be there by {there}")
        for step in inner if there == 1 else ():
            step(reader)

    return walk


def _are_as_usual(reader: Reader, layout: struct.Struct, count: int) -> bool:
    """Step over items of that layout, all at once; False, and no step, where one has tags or is
    wrong: then each is looked at.
    """
    size, begun = layout.size * count, reader.at
    if size > reader.left:
        return False
    columns = (
        list(zip(*layout.iter_unpack(reader.span(size, "items")), strict=True)) if size else []
    )
    tags = columns[-1] if columns and layout.format.endswith("B") else ()
    if not any(tags) and all(min(column) >= 0 for column in columns):
        return True
    reader.at = begun
    return False


def _array(
    name: str,
    inner: Sequence[Step],
    may_be_null: bool,
    flexible: bool,
    layout: struct.Struct | None,
) -> Step:
    def walk(reader: Reader) -> None:
        count = reader.unsigned_varint() - 1 if flexible else reader.int32()
        if count == -1 and may_be_null:
            return
        # Each item is one byte at least, so a count cannot promise more rounds than there are
        # bytes.
        if not 0 <= count <= reader.left:
            raise reader.corrupt(f"{name} claims {count} items where {reader.left} bytes are left")
        if layout is not None and _are_as_usual(reader, layout, count):
            return
        for _ in range(count):
            for step in inner:
                step(reader)

    return walk


def _tags(reader: Reader) -> None:
    """Tagged fields (KIP-482): none of them is known to a version that is spoken here, and all are
    passed over.
    """
    for _ in range(reader.unsigned_varint()):
        reader.unsigned_varint()
        reader.span(reader.unsigned_varint(), "a tagged field")


def _holds(versions: str, version: int) -> bool:
    """Whether `version` lies in Kafka's way of writing versions: `none`, `3`, `3-5`, `3+`."""
    if versions == "none":
        return False
    first, dash, last = versions.removesuffix("+").partition("-")
    return int(first) <= version and (
        versions.endswith("+") or version <= int(last if dash else first)
    )
