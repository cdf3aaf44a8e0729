"""How does a report keep the values that its run decided by, and how are they read back?

A report keeps the first and the last snapshot of its run and the settings that decisions use, so
that the decisions can be computed again. Snapshots above `SNAPSHOT_MAX_BYTES` are left out, with a
note in the report. No addresses are written. The reader trusts its input.

Values are written and read by their types:

    a value with fields           {name: value}, without fields at their default
    a mapping by partition        {topic: {key: value}}
      to values with fields       columns: {"logs:": {topic: [key, ...]}, name: [value, ...]};
                                  a column of values with fields is an object of columns, and
                                  "absent:" has the numbers of the rows without one
    a set of partitions           {topic: [key, ...]}
    a broker                      its id
    a plan and its result         as stored, without addresses, broker types and gaps
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from functools import cache, partial, singledispatch
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from etl.errors import EtlError
from etl.ledger.documents import CODEC, without_gaps
from etl.ledger.plan_document import parse_plan, plan_content, plan_of, render_plan
from etl.model.partitions import Broker, TopicPartition, in_order, parse_partition_key
from etl.model.plans import (
    CommitResult,
    Plan,
)
from etl.model.snapshot import CommitMetadata, Snapshot
from etl.report.run_report import Report
from etl.settings.sections import Settings

T = TypeVar("T")
_UNREADABLE = b"no plan"
_LOGS = "logs:"
"""Not a valid topic name."""
_ABSENT = "absent:"
_JSON_TYPES = frozenset((str, int, float, bool, type(None)))


@singledispatch
def write_value(value: Any) -> Any:
    """Return a value as JSON."""
    if dataclasses.is_dataclass(value):
        return _fields(value)
    return value


@write_value.register(Enum)
def _(value: Enum) -> Any:
    return value.value


@write_value.register(tuple)
def _(value: tuple[Any, ...]) -> Any:
    return list(map(write_value, value))


@write_value.register(frozenset)
def _(value: frozenset[Any]) -> Any:
    if not _has_partition(value):
        return sorted(value)
    return _keys_of(in_order(value))


@write_value.register(Mapping)
def _(value: Mapping[Any, Any]) -> Any:
    if not _has_partition(value):
        return {name: write_value(content) for name, content in value.items()}
    partitions = in_order(value)
    values = [value[partition] for partition in partitions]
    kind, *others = set(map(type, values))
    if not others and _is_written_by_fields(kind):
        return {_LOGS: _keys_of(partitions), **dict(_columns(kind, values))}
    written = iter(_column(values))
    by_topic = {}
    for topic, keys in _keys_of(partitions).items():
        by_topic[topic] = {key: next(written) for key in keys}
    return by_topic


def _has_partition(values: Iterable[Any]) -> bool:
    return any(isinstance(value, TopicPartition) for value in values)


@write_value.register(TopicPartition)
def _(value: TopicPartition) -> Any:
    return value.place


@write_value.register(Broker)
def _(value: Broker) -> Any:
    return value.id


@write_value.register(Plan)
def _(value: Plan) -> Any:
    content = plan_content(value)
    content.pop("generations", None)
    without_addresses = [[broker, "", 0] for broker, _, _ in content["leaders"]]
    return {**content, "leaders": without_addresses}


@write_value.register(CommitResult)
def _(value: CommitResult) -> Any:
    return CODEC.write(without_gaps(value))


@write_value.register(CommitMetadata)
def _(value: CommitMetadata) -> Any:
    """Write the document as the plan that it contains; null if it contains none."""
    found = _fields(dataclasses.replace(value, document=None))
    if value.document is not None:
        found["document"] = _plan_in(value.document)
    return found


def _plan_in(document: bytes) -> Any:
    try:
        return write_value(parse_plan(document, path=""))
    except EtlError:
        return None


def _fields(value: Any) -> dict[str, Any]:
    written = {}
    for field in dataclasses.fields(value):
        content = getattr(value, field.name)
        if content != _default(field):
            written[field.name] = write_value(content)
    return written


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is dataclasses.MISSING:
        return field.default
    return field.default_factory()


def _keys_of(partitions: Iterable[TopicPartition]) -> dict[str, list[str]]:
    """Return the keys of partitions by topic; `partitions` are sorted by topic."""
    by_topic = {}
    for topic, of_topic in groupby(partitions, attrgetter("topic")):
        by_topic[topic] = [partition.key for partition in of_topic]
    return by_topic


def _is_written_by_fields(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) and write_value.dispatch(kind) is write_value.dispatch(
        object
    )


def _columns(kind: Any, values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(kind):
        column = list(map(attrgetter(field.name), values))
        if column.count(_default(field)) < len(column):
            yield field.name, _nested_columns(column) or _column(column)


def _nested_columns(values: Sequence[Any]) -> dict[str, Any] | None:
    """Return a column of values with fields as columns of those; None for other columns."""
    present = [value for value in values if value is not None]
    kind, *others = set(map(type, present))
    if others or not _is_written_by_fields(kind):
        return None
    absent = [number for number, value in enumerate(values) if value is None]
    return {_ABSENT: absent, **dict(_columns(kind, present))}


def _column(values: list[Any]) -> list[Any]:
    if _JSON_TYPES.issuperset(map(type, values)):
        return values
    return list(map(write_value, values))


def read_value(kind: type[T], found: Any) -> T:
    """Read a value of this type that `write_value` wrote."""
    return cast(T, _read(kind, found))


def _read(kind: Any, found: Any) -> Any:
    shape = get_origin(kind)
    inside = get_args(kind)
    if shape in (Union, types.UnionType):
        if found is None:
            return None
        [inner] = [member for member in inside if member is not type(None)]
        return _read(inner, found)
    if shape is tuple:
        kinds = inside
        if inside[1:] == (...,):
            kinds = (inside[0],) * len(found)
        return tuple(_read(member, value) for member, value in zip(kinds, found, strict=True))
    if shape is frozenset:
        if found and inside[0] is TopicPartition:
            return frozenset(_logs(found))
        return frozenset(found)
    if shape is not None and issubclass(shape, Mapping):
        return _mapping(inside[0], inside[1], found)
    if kind in _READERS:
        return _READERS[kind](found)
    if dataclasses.is_dataclass(kind):
        return _read_fields(kind, found)
    if issubclass(kind, Enum):
        return kind(found)
    return found


def _read_fields(kind: Any, found: Mapping[str, Any]) -> Any:
    kinds = _types(kind)
    return kind(**{name: _read(kinds[name], value) for name, value in found.items()})


@cache
def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _mapping(key: Any, value: Any, found: Any) -> dict[Any, Any]:
    if key is not TopicPartition:
        return {name: _read(value, content) for name, content in found.items()}
    if _LOGS in found:
        partitions = _logs(found[_LOGS])
        columns = {name: column for name, column in found.items() if name != _LOGS}
        return dict(zip(partitions, _rows(value, columns, len(partitions)), strict=True))
    values: list[Any] = []
    for by_key in found.values():
        for content in by_key.values():
            values.append(_read(value, content))
    return dict(zip(_logs(found), values, strict=True))


def _rows(kind: Any, columns: Mapping[str, Any], count: int) -> list[Any]:
    """Return that many values with the fields that the columns contain."""
    kinds = _types(kind)
    read = {name: _read_column(kinds[name], column, count) for name, column in columns.items()}
    rows = []
    for number in range(count):
        rows.append(kind(**{name: column[number] for name, column in read.items()}))
    return rows


def _read_column(kind: Any, column: Any, count: int) -> list[Any]:
    if not isinstance(column, Mapping):
        return [_read(kind, value) for value in column]
    [inner] = [member for member in get_args(kind) or (kind,) if member is not type(None)]
    columns = dict(column)
    absent = frozenset(columns.pop(_ABSENT))
    present = iter(_rows(inner, columns, count - len(absent)))
    values = []
    for number in range(count):
        values.append(None if number in absent else next(present))
    return values


def _logs(found: Mapping[str, Iterable[str]]) -> list[TopicPartition]:
    partitions = []
    for topic, keys in found.items():
        for key in keys:
            partition = parse_partition_key(topic, key)
            if partition is None:
                raise ValueError("a key is not that of a partition")
            partitions.append(partition)
    return partitions


def _metadata(found: dict[str, Any]) -> CommitMetadata:
    value = CommitMetadata(**{**found, "document": None})
    if "document" not in found:
        return value
    document = _UNREADABLE
    if found["document"]:
        document = render_plan(plan_of(found["document"]))
    return dataclasses.replace(value, document=document)


_READERS: dict[Any, Any] = {
    Broker: lambda found: Broker(found, "", 0),
    TopicPartition: lambda found: TopicPartition(**found),
    Plan: plan_of,
    CommitResult: partial(CODEC.read, CommitResult),
    CommitMetadata: _metadata,
}


_DECIDING: dict[str, Any] = {
    "pipeline": True,
    "limits": True,
    "transform": True,
    "ledger": True,
    "group": {
        "id",
        "offsets_storage",
        "on_offset_changed",
        "mode",
        "on_owned",
        "on_active_members",
        "join",
    },
    "source": {
        "broker_type",
        "assume_cluster_id",
        "topics",
        "exclude_topics",
        "starting_offsets",
        "new_topics_starting_offsets",
        "on_data_loss",
        "on_no_leader",
        "isolation_level",
        "expiry_warning_s",
        "assume_compacted",
    },
    "table": {"partition_by", "on_rows_removed"},
}
_AS_IN_LEDGER = "the newest plan of the ledger"


def write_plan(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON: as it is stored, without addresses of brokers."""
    return write_value(plan)  # type: ignore[no-any-return]


def read_plan(found: dict[str, Any]) -> Plan:
    """Read a plan that `write_plan` wrote. Its id is not checked, so that a test may change it."""
    return read_value(Plan, found)


def write_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as JSON; the table's plan is left out if the ledger has it."""
    newest = snapshot.ledger.newest
    table = snapshot.table
    is_known = False
    if table and table.metadata:
        metadata = replace(table.metadata, results=None)  # decisions do not use range results
        if newest and metadata.document is not None and metadata.plan_id == newest.id:
            is_known = True
            metadata = replace(metadata, document=None)
        snapshot = replace(snapshot, table=replace(table, metadata=metadata))
    found: dict[str, Any] = write_value(snapshot)
    if is_known:
        found["table"]["metadata"]["document"] = _AS_IN_LEDGER
    return found


def read_snapshot(found: dict[str, Any]) -> Snapshot:
    """Read a snapshot that `write_snapshot` wrote."""
    table = found["table"]
    if table and table.get("metadata", {}).get("document") == _AS_IN_LEDGER:
        metadata = {**table["metadata"], "document": found["ledger"]["newest"]}
        found = {**found, "table": {**table, "metadata": metadata}}
    return read_value(Snapshot, found)


def write_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that decisions use, as JSON, with the absolute path of the table."""
    found = settings.model_dump(mode="json", include=_DECIDING)
    return {**found, "table": {**found["table"], "path": settings.table.place}}


def read_settings(found: dict[str, Any]) -> Settings:
    """Read settings that `write_settings` wrote. They have no addresses; decisions are the same."""
    return Settings.model_validate({**found, "zookeeper": {"connect": "left-out:2181"}})


SNAPSHOT_MAX_BYTES = 8 * 2**20
_LOOKS = ("first", "last")


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan that the run executed, or started to."""

    id: str
    uid: str
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class Incident:
    """Settings and snapshots of a report, from which its run's decisions are computed again."""

    settings: Settings
    looks: tuple[Snapshot, ...]
    """The first snapshot, and the last if it differs; without those that the report left out."""
    plans: tuple[Planned, ...]
    """In the order of execution."""
    began_at_ms: int
    error: Mapping[str, Any] | None
    """The run's error."""


def snapshots_as_json(report: Report) -> dict[str, Any] | None:
    """Return the snapshots that a report keeps; `as_text` drops one that is too large.

    None before the first snapshot, and without settings.
    """
    ends = report.looks.ends
    if ends is None or report.settings is None:
        return None
    first, last, count = ends
    document = {
        "looks": count,
        "settings": write_settings(report.settings),
        "first": write_snapshot(first),
    }
    if first is not last:
        document["last"] = write_snapshot(last)
    return document


def as_text(report: Mapping[str, Any], saw: Mapping[str, Any] | None) -> str:
    """Return a report as text: a line for each range and partition, and one for each snapshot."""
    parts = {}
    for name, value in report.items():
        parts[name] = _lines(value, "  ")
    if saw is not None:
        snapshots = {}
        for name, value in saw.items():
            if name in _LOOKS:
                snapshots[name] = _bounded(value)
            else:
                snapshots[name] = _line(value)
        parts["snapshot"] = _object(snapshots, "  ")
    return _object(parts, "")


def _lines(value: Any, pad: str) -> str:
    """Format a value in one line, or in a line per element if elements have elements."""
    if isinstance(value, dict) and any(map(_has_parts, value.values())):
        parts = {}
        for name, part in value.items():
            parts[name] = _lines(part, pad + "  ")
        return _object(parts, pad)
    if not isinstance(value, list) or not _has_parts(value):
        return _encode(value)
    inner = f",\n{pad}  "
    if any(map(_has_parts, value[0].values())):
        lines = inner.join(_lines(element, pad + "  ") for element in value)
    else:
        lines = _rows_as_text(value, inner)
    return f"[\n{pad}  {lines}\n{pad}]"


def _rows_as_text(values: list[Any], between: str) -> str:
    """Write simple values one per line; all at once, since one at a time takes twice as long."""
    text = _divided(values)[1:-1]
    return text.replace(f"}}{_DIVIDER}{{", f"}}{between}{{").replace(_DIVIDER, ", ")


def _has_parts(value: Any) -> bool:
    if isinstance(value, list) and value:
        return isinstance(value[0], dict)
    return isinstance(value, dict)


def _object(parts: Mapping[str, str], pad: str) -> str:
    members = []
    for name, text in parts.items():
        members.append(f"{_encode(name)}: {text}")
    inner = f",\n{pad}  ".join(members)
    return f"{{\n{pad}  {inner}\n{pad}}}"


def _bounded(snapshot: Any) -> str:
    text = _line(snapshot)
    if len(text) <= SNAPSHOT_MAX_BYTES:
        return text
    return _line({"left_out": f"{len(text):,} bytes, more than {SNAPSHOT_MAX_BYTES:,}"})


_encode = json.JSONEncoder().encode
_line = json.JSONEncoder(separators=(",", ":")).encode
_DIVIDER = "\0"
"""Cannot occur in JSON: strings have it escaped."""
_divided = json.JSONEncoder(separators=(_DIVIDER, ": ")).encode


def read_incident(report: Mapping[str, Any]) -> Incident:
    """Return the incident in a report's file.

    Raises KeyError for a report without snapshots: its run ended before the first.
    """
    saw = report["snapshot"]
    looks = []
    for name in _LOOKS:
        if name in saw and "left_out" not in saw[name]:
            looks.append(read_snapshot(saw[name]))
    documents = list(report["previous_plans"])
    if report["plan"]:
        documents.append(report["plan"])
    plans = []
    for document in documents:
        created_at_ms = _ms(document["created_at"])
        plans.append(Planned(document["id"], document["pipeline_id"], created_at_ms))
    return Incident(
        read_settings(saw["settings"]),
        tuple(looks),
        tuple(plans),
        _ms(report["started_at"]),
        report["error"],
    )


def _ms(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000)
