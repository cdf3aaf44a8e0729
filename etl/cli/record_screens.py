"""How are records printed?

A line per record, or one JSON document that grows. Control characters are escaped, since records
come from others, and long values are truncated.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etl.cli.common_options import document_head, printable
from etl.commands.peek import Decoder, Ended, Undecoded
from etl.records.decode import DecodedRecord
from etl.report.describe import counted, format_time
from etl.streams.records import Record as StreamRecord

if TYPE_CHECKING:
    from etl.commands.peek import PeekedPartition, TailedGroup
    from etl.errors import EtlError


CUT_AT = 300
"""Characters of a key or value in a line, unless printed in full."""
_NONE = "-"

Shown = DecodedRecord | StreamRecord
"""A record of a partition, or one of a group."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How keys and values are decoded, and whether long ones are printed in full."""

    key: Decoder
    value: Decoder
    whole: bool = False


class Lines:
    """A line per record: offset, timestamp, key, value, headers, separated by tabs; `-` for a
    missing value.
    """

    def __init__(self, decoding: Decoding, note: Callable[[str], None]) -> None:
        """`note` prints a line for people before and after the records."""
        self._decoding = decoding
        self._note = note

    def begin(self, peek: PeekedPartition) -> None:
        """Print a note before the first record."""
        offsets = peek.extent
        self._note(
            f"{peek.partition} has offsets {offsets.log_start_offset} to {offsets.end_offset}; "
            f"from {peek.from_offset}:"
        )

    def show(self, record: DecodedRecord) -> None:
        """Print one record."""
        print(*fields_of(record, self._decoding), sep="\t")

    def end(self, peek: PeekedPartition, failure: EtlError | None = None) -> None:
        """Print a note after the last record."""
        note = counted(peek.given, "record")
        if peek.ended is Ended.INSIDE:
            note += f"; {peek.ended.value}; --from {peek.position} begins there again"
        elif peek.ended:
            note += f"; {peek.ended.value}; --from {peek.position} continues"
        else:
            note += ", until the error below"
        self._note(note)


class Document:
    """One JSON document with a record per line."""

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding
        self._shown = 0

    def begin(self, peek: PeekedPartition) -> None:
        """Print the beginning of the document."""
        offsets = {"log_start": peek.extent.log_start_offset, "end": peek.extent.end_offset}
        head = json.dumps(
            {**document_head(), **peek.partition.place, **offsets, "from": peek.from_offset}
        )
        print(f'{head[:-1]}, "records": [')

    def show(self, record: DecodedRecord) -> None:
        """Print one record."""
        _print_element(document_of(record, self._decoding), is_first=self._shown == 0)
        self._shown += 1

    def end(self, peek: PeekedPartition, failure: EtlError | None = None) -> None:
        """Print the end of the document, with the error that ended it."""
        tail = {"shown": peek.given, "next": peek.position}
        _print_tail(tail, peek.ended, failure)


class TailLines:
    """A line per record of a group: topic, partition, and then as `Lines`."""

    def __init__(self, decoding: Decoding, note: Callable[[str], None]) -> None:
        """`note` prints a line for people before and after the records."""
        self._decoding = decoding
        self._note = note

    def begin(self, tailed: TailedGroup) -> None:
        """Print a note before joining."""
        self._note(f"as a member of {tailed.group}: {', '.join(tailed.topics)}")

    def show(self, record: StreamRecord) -> None:
        """Print one record."""
        print(
            record.topic, record.topic_partition.key, *fields_of(record, self._decoding), sep="\t"
        )

    def end(self, tailed: TailedGroup, failure: EtlError | None = None) -> None:
        """Print a note after the last record."""
        note = counted(tailed.given, "record")
        if tailed.ended is None:
            note += ", until the error below"
        else:
            note += f"; {tailed.ended.value}"
        if tailed.ended is Ended.INSIDE:
            note += "; the group does not continue behind a message that was printed in part"
        self._note(note)


class TailDocument:
    """One JSON document of a group's records, a record per line."""

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding
        self._shown = 0

    def begin(self, tailed: TailedGroup) -> None:
        """Print the beginning of the document."""
        head = json.dumps({**document_head(), "group": tailed.group, "topics": tailed.topics})
        print(f'{head[:-1]}, "records": [')

    def show(self, record: StreamRecord) -> None:
        """Print one record."""
        document = {**record.topic_partition.place, **document_of(record, self._decoding)}
        _print_element(document, is_first=self._shown == 0)
        self._shown += 1

    def end(self, tailed: TailedGroup, failure: EtlError | None = None) -> None:
        """Print the end of the document, with the error that ended it."""
        _print_tail({"shown": tailed.given}, tailed.ended, failure)


def _print_element(document: dict[str, Any], *, is_first: bool) -> None:
    # with its line end, so that a follower has the whole record
    separator = " " if is_first else ","
    print(separator, json.dumps(document, default=str))


def _print_tail(tail: dict[str, Any], ended: Ended | None, failure: EtlError | None) -> None:
    tail["ended"] = ended.value if ended else None
    if failure:
        tail["error"] = failure.as_json()
    print(f"], {json.dumps(tail)[1:]}")


def fields_of(record: Shown, decoding: Decoding) -> list[str]:
    """Return offset, timestamp, key, value and headers as text."""
    offset = f"{record.offset}"
    if record.broker_id is not None:
        offset += f".{record.message_index}"
    timestamp = format_time(record.timestamp_ms)
    if not timestamp:
        # outside the years that ISO 8601 has
        is_missing = record.timestamp_ms is None
        timestamp = _NONE if is_missing else f"{record.timestamp_ms} ms"
    headers = []
    for name, content in record.headers:
        headers.append(f"{printable(name)}={_field(content, _text, decoding.whole)}")
    key = _field(record.key, decoding.key, decoding.whole)
    value = _field(record.value, decoding.value, decoding.whole)
    return [offset, timestamp, key, value, ", ".join(headers)]


def document_of(record: Shown, decoding: Decoding) -> dict[str, Any]:
    """Return the record as a JSON object."""
    document: dict[str, Any] = {"offset": record.offset}
    if record.broker_id is not None:
        document["message_index"] = record.message_index
    timestamp_type = None
    if record.is_append_time is not None:
        timestamp_type = "append" if record.is_append_time else "create"
    document["timestamp"] = format_time(record.timestamp_ms)
    document["timestamp_ms"] = record.timestamp_ms
    document["timestamp_type"] = timestamp_type
    document["key"] = _json_value(record.key, decoding.key)
    document["value"] = _json_value(record.value, decoding.value)
    document["headers"] = [
        {"key": name, "value": _json_value(content, _text)} for name, content in record.headers
    ]
    return document


def _field(content: bytes | None, decode: Decoder, whole: bool) -> str:
    if content is None:
        return _NONE
    found = decode(content)
    if isinstance(found, Undecoded):
        found = _text(found.content)
    if not isinstance(found, str):
        found = json.dumps(found, ensure_ascii=False, default=str)
    text = printable(found)
    if len(text) <= CUT_AT or whole:
        return text
    return f"{text[:CUT_AT]}... ({counted(len(content), 'byte')})"


def _text(content: bytes) -> str:
    return content.decode("utf-8", "backslashreplace")


def _json_value(content: bytes | None, decode: Decoder) -> Any:
    if content is None:
        return None
    found = decode(content)
    if isinstance(found, Undecoded):
        return {"hex": found.content.hex(), "not_decoded": found.why}
    return found
