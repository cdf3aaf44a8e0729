"""Our frozen values as JSON, and read back by their types: a field that a value gets later needs no
word here.

    a value with fields       {name: value}, without those that are at their default
    a mapping by log          {topic: {key: value}}, with the keys of logs that ZooKeeper has
      to values with fields   a column for each field: {"logs:": {topic: [key, ...]}, name: [value, ...]}, without columns at their default
    a set of logs             {topic: [key, ...]}
    a broker                  its id: where it listens decides nothing, and who reads a report need not know it
    a plan, what came of it   as it is stored, without the brokers' addresses and generations, and the gaps, which decide nothing either

The reader trusts what it reads: a document that none of our writers wrote raises whatever comes of
that.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache, singledispatch
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from etl.errors import EtlError
from etl.ledger.documents import applied_content, applied_of
from etl.ledger.plan_document import parse_plan, plan_content, plan_of, render_plan
from etl.model.partitions import Broker, BrokerPartition, in_order, parse_partition_key
from etl.model.plans import CommitResult, Plan
from etl.model.snapshot import CommitMetadata

T = TypeVar("T")
_UNREADABLE = b"no plan"
_LOGS = "logs:"
"""No topic has such a name."""
_AS_THEY_ARE = frozenset((str, int, float, bool, type(None)))


@singledispatch
def write_value(value: Any) -> Any:
    """A value as JSON."""
    return _fields(value) if dataclasses.is_dataclass(value) else value


@write_value.register(Enum)
def _(value: Enum) -> Any:
    return value.value


@write_value.register(tuple)
def _(value: tuple[Any, ...]) -> Any:
    return [write_value(one) for one in value]


@write_value.register(frozenset)
def _(value: frozenset[Any]) -> Any:
    if not any(isinstance(one, BrokerPartition) for one in value):
        return sorted(value)
    return _keys_of(in_order(value))


@write_value.register(Mapping)
def _(value: Mapping[Any, Any]) -> Any:
    if not any(isinstance(key, BrokerPartition) for key in value):
        return {key: write_value(one) for key, one in value.items()}
    logs = in_order(value)
    values = [value[log] for log in logs]
    kind, *others = set(map(type, values))
    if not others and _is_written_by_fields(kind):
        return {_LOGS: _keys_of(logs), **dict(_columns(kind, values))}
    written = iter(_column(values))
    return {topic: dict(zip(keys, written, strict=False)) for topic, keys in _keys_of(logs).items()}


@write_value.register(BrokerPartition)
def _(value: BrokerPartition) -> Any:
    return value.place


@write_value.register(Broker)
def _(value: Broker) -> Any:
    return value.id


@write_value.register(Plan)
def _(value: Plan) -> Any:
    content = plan_content(value)
    content.pop("generations", None)
    return {**content, "leaders": [[broker, "", 0] for broker, _, _ in content["leaders"]]}


@write_value.register(CommitResult)
def _(value: CommitResult) -> Any:
    return applied_content(value)


@write_value.register(CommitMetadata)
def _(value: CommitMetadata) -> Any:
    """Its document as the plan that it is; null where it is none."""
    found = _fields(dataclasses.replace(value, document=None))
    return found if value.document is None else {**found, "document": _plan_in(value.document)}


def _plan_in(document: bytes) -> Any:
    try:
        return write_value(parse_plan(document, path=""))
    except EtlError:
        return None


def _fields(value: Any) -> dict[str, Any]:
    found = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
    return {field.name: write_value(one) for field, one in found if one != _default(field)}


def _default(field: dataclasses.Field[Any]) -> Any:
    return (
        field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    )


def _keys_of(logs: Iterable[BrokerPartition]) -> dict[str, list[str]]:
    return {topic: [log.key for log in some] for topic, some in groupby(logs, attrgetter("topic"))}


def _is_written_by_fields(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) and write_value.dispatch(kind) is write_value.dispatch(
        object
    )


def _columns(kind: Any, values: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    for field in dataclasses.fields(kind):
        column = list(map(attrgetter(field.name), values))
        if column.count(_default(field)) < len(column):
            yield field.name, _column(column)


def _column(values: list[Any]) -> list[Any]:
    return values if _AS_THEY_ARE.issuperset(map(type, values)) else list(map(write_value, values))


def read_value(kind: type[T], found: Any) -> T:
    """The value of this type that `write_value` wrote."""
    return cast(T, _read(kind, found))


def _read(kind: Any, found: Any) -> Any:
    shape, inside = get_origin(kind), get_args(kind)
    if shape in (Union, types.UnionType):
        return (
            None
            if found is None
            else _read(next(one for one in inside if one is not type(None)), found)
        )
    if shape is tuple:
        each = (inside[0],) * len(found) if inside[1:] == (...,) else inside
        return tuple(_read(one, value) for one, value in zip(each, found, strict=True))
    if shape is frozenset:
        return frozenset(_logs(found) if found and inside[0] is BrokerPartition else found)
    if shape is not None and issubclass(shape, Mapping):
        return _mapping(inside[0], inside[1], found)
    if kind in _READERS:
        return _READERS[kind](found)
    if dataclasses.is_dataclass(kind):
        return _made(kind, found)
    return kind(found) if issubclass(kind, Enum) else found


def _made(kind: Any, found: Mapping[str, Any]) -> Any:
    return kind(**{name: _read(_types(kind)[name], value) for name, value in found.items()})


@cache
def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _mapping(key: Any, value: Any, found: Any) -> dict[Any, Any]:
    if key is not BrokerPartition:
        return {name: _read(value, one) for name, one in found.items()}
    if _LOGS in found:
        return dict(zip(_logs(found[_LOGS]), _rows(value, found), strict=True))
    values = (one for keys in found.values() for one in keys.values())
    return {log: _read(value, one) for log, one in zip(_logs(found), values, strict=True)}


def _rows(kind: Any, found: Mapping[str, Any]) -> Iterator[Any]:
    """The values of which the columns have the fields."""
    columns = {name: column for name, column in found.items() if name != _LOGS}
    for number in range(sum(map(len, found[_LOGS].values()))):
        yield _made(kind, {name: column[number] for name, column in columns.items()})


def _logs(found: Mapping[str, Iterable[str]]) -> list[BrokerPartition]:
    logs = [parse_partition_key(topic, key) for topic, keys in found.items() for key in keys]
    if None in logs:
        raise ValueError("there is a key of no log")
    return cast(list[BrokerPartition], logs)


def _metadata(found: dict[str, Any]) -> CommitMetadata:
    value = CommitMetadata(**{**found, "document": None})
    if "document" not in found:
        return value
    plan = found["document"]
    return dataclasses.replace(value, document=render_plan(plan_of(plan)) if plan else _UNREADABLE)


_READERS: dict[Any, Any] = {
    Broker: lambda found: Broker(found, "", 0),
    BrokerPartition: lambda found: BrokerPartition(**found),
    Plan: plan_of,
    CommitResult: applied_of,
    CommitMetadata: _metadata,
}
