"""How are records printed, one by one?

A line per record, or one JSON document that grows. Control characters are escaped, since records
come from others, and long values are truncated.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etl.commands.peek import Decoder, Ended, Undecoded
from etl.records.decode import DecodedRecord
from etl.report.describe import at, counted
from etl.streams.records import Record as StreamRecord

if TYPE_CHECKING:
    from etl.commands.peek import PeekedLog, TailedGroup
    from etl.errors import EtlError


CUT_AT = 300
"""Characters of a key or value in a line, unless printed in full."""
_NONE = "-"

Shown = DecodedRecord | StreamRecord
"""Common part of both screens."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How keys and values are decoded, and how much of them is printed."""

    key: Decoder
    value: Decoder
    whole: bool = False


class Lines:
    """A line per record: offset, timestamp, key, value, headers, separated by tabs; `-` for a
    missing value.
    """

    def __init__(self, decoding: Decoding, say: Callable[[str], None]) -> None:
        """`say`: prints notes at the beginning and the end."""
        self._decoding, self._say = decoding, say

    def begin(self, peek: PeekedLog) -> None:
        """Before the first record."""
        extent = peek.extent
        self._say(
            f"{peek.log} has offsets {extent.log_start_offset} to {extent.end_offset}; from {peek.from_offset}:"
        )

    def show(self, record: DecodedRecord) -> None:
        """One record."""
        print(*fields_of(record, self._decoding), sep="\t")

    def end(self, peek: PeekedLog, failure: EtlError | None = None) -> None:
        """Finish after the last record."""
        goes_on = "begins there again" if peek.ended is Ended.INSIDE else "goes on"
        why = (
            f"; {peek.ended.value}; --from {peek.position} {goes_on}"
            if peek.ended
            else ", up to what follows"
        )
        self._say(f"{counted(peek.given, 'record')}{why}")


class Document:
    """The same as one JSON document, a record per line."""

    def __init__(self, decoding: Decoding) -> None:
        self._decoding, self._shown = decoding, 0

    def begin(self, peek: PeekedLog) -> None:
        """Before the first record."""
        extent = {"log_start": peek.extent.log_start_offset, "end": peek.extent.end_offset}
        head = json.dumps({**peek.log.place, **extent, "from": peek.from_offset})
        print(f'{head[:-1]}, "records": [')

    def show(self, record: DecodedRecord) -> None:
        """One record."""
        document = document_of(record, self._decoding)
        print(
            "," if self._shown else " ", json.dumps(document, default=str)
        )  # with its line's end, for who follows
        self._shown += 1

    def end(self, peek: PeekedLog, failure: EtlError | None = None) -> None:
        """Finish after the last record; `failure`: what ended it."""
        tail = {
            "shown": peek.given,
            "next": peek.position,
            "ended": peek.ended.value if peek.ended else None,
            **({"error": failure.as_json()} if failure else {}),
        }
        print(f"], {json.dumps(tail)[1:]}")


def fields_of(record: Shown, decoding: Decoding) -> list[str]:
    """Its offset, timestamp, key, value and headers, as a line has them."""
    where = f"{record.offset}" + (
        f".{record.message_index}" if record.broker_id is not None else ""
    )
    when = at(record.timestamp_ms) or (
        _NONE if record.timestamp_ms is None else f"{record.timestamp_ms} ms"
    )
    headers = ", ".join(
        f"{_shown(name)}={_field(value, _text, decoding.whole)}" for name, value in record.headers
    )
    key, value = (
        _field(record.key, decoding.key, decoding.whole),
        _field(record.value, decoding.value, decoding.whole),
    )
    return [where, when, key, value, headers]


def document_of(record: Shown, decoding: Decoding) -> dict[str, Any]:
    """Return the record for a program."""
    is_physical = record.broker_id is not None
    return {
        "offset": record.offset,
        **({"message_index": record.message_index} if is_physical else {}),
        "timestamp": at(record.timestamp_ms),
        "timestamp_ms": record.timestamp_ms,
        "timestamp_type": None
        if record.is_append_time is None
        else "append"
        if record.is_append_time
        else "create",
        "key": _plain(record.key, decoding.key),
        "value": _plain(record.value, decoding.value),
        "headers": [{"key": name, "value": _plain(value, _text)} for name, value in record.headers],
    }


def _field(content: bytes | None, decode: Decoder, whole: bool) -> str:
    if content is None:
        return _NONE
    found = decode(content)
    if isinstance(found, Undecoded):
        found = found.content.decode("utf-8", "backslashreplace")
    text = _shown(
        found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, default=str)
    )
    if len(text) <= CUT_AT or whole:
        return text
    return f"{text[:CUT_AT]}... ({counted(len(content), 'byte')})"


def _text(content: bytes) -> str:
    return content.decode("utf-8", "backslashreplace")


def _plain(content: bytes | None, decode: Decoder) -> Any:
    if content is None:
        return None
    found = decode(content)
    return (
        {"hex": found.content.hex(), "not_decoded": found.why}
        if isinstance(found, Undecoded)
        else found
    )


def _shown(text: str) -> str:
    """The text in one line that changes nothing of a terminal but where it stands."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


class TailLines:
    """A line for each record: topic, partition, and then as `Lines`."""

    def __init__(self, decoding: Decoding, say: Callable[[str], None]) -> None:
        """`say`: prints notes at the beginning and the end."""
        self._decoding, self._say = decoding, say

    def begin(self, tailed: TailedGroup) -> None:
        """Before it joins."""
        self._say(f"as a member of {tailed.group}: {', '.join(tailed.topics)}")

    def show(self, record: StreamRecord) -> None:
        """One record."""
        print(record.topic, record.log.key, *fields_of(record, self._decoding), sep="\t")

    def end(self, tailed: TailedGroup, failure: EtlError | None = None) -> None:
        """Finish after the last record."""
        self._say(
            f"{counted(tailed.given, 'record')}{f'; {tailed.ended.value}' if tailed.ended else ', up to what follows'}"
        )


class TailDocument:
    """The same as one JSON document, a record per line."""

    def __init__(self, decoding: Decoding) -> None:
        self._decoding, self._shown = decoding, 0

    def begin(self, tailed: TailedGroup) -> None:
        """Before it joins."""
        head = json.dumps({"group": tailed.group, "topics": tailed.topics})
        print(f'{head[:-1]}, "records": [')

    def show(self, record: StreamRecord) -> None:
        """One record."""
        document = {**record.log.place, **document_of(record, self._decoding)}
        print(
            "," if self._shown else " ", json.dumps(document, default=str)
        )  # with its line's end, for who follows
        self._shown += 1

    def end(self, tailed: TailedGroup, failure: EtlError | None = None) -> None:
        """Finish after the last record; `failure`: what ended it."""
        tail = {
            "shown": tailed.given,
            "ended": tailed.ended.value if tailed.ended else None,
            **({"error": failure.as_json()} if failure else {}),
        }
        print(f"], {json.dumps(tail)[1:]}")
