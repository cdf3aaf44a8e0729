"""How are numbers, short strings and lengths of the protocol read and written?

Big-endian, over a `memoryview`. Each length is checked against the remaining bytes before it is
used: a reader raises `CorruptData` with its place (topic, partition, broker), never IndexError,
struct.error or MemoryError.

Lives here: `Reader` and `Writer`. Not here: arrays and structs of requests
(kafka_python_messages.py, many_partition_messages.py, fetch_messages.py).
"""

from __future__ import annotations

import struct
from typing import Any, Self

from etl.errors import CorruptData

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class Reader:
    """Sequential reader of the bytes of one response.

    `place` holds the keywords of raised errors. A codec adds topic and partition to it once it has
    read them.
    """

    __slots__ = ("_view", "_end", "at", "place")

    def __init__(self, view: memoryview, **place: Any) -> None:
        self._view = view
        self._end = len(view)
        self.at = 0
        self.place = place

    @property
    def left(self) -> int:
        """Return the number of unread bytes."""
        return self._end - self.at

    def int8(self) -> int:
        return self._number(_INT8)

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def unsigned_varint(self) -> int:
        """Read seven bits a byte, low bits first, from at most five bytes (KIP-482)."""
        if self.at < self._end:
            byte = self._view[self.at]
            if byte < 0x80:
                # Nearly every length: metadata has four per partition.
                self.at += 1
                return byte
        number = 0
        for shift in range(0, 35, 7):
            byte = self.int8()
            number |= (byte & 0x7F) << shift
            if byte >= 0:
                return number
        raise self.corrupt("a length has no end")

    def span(self, length: int, field: str) -> memoryview:
        """Return the next `length` bytes without a copy."""
        if length < 0:
            raise self.corrupt(f"{field} has the impossible length {length}")
        start = self.at
        until = start + length
        if until > self._end:
            raise self.corrupt(f"{field} claims {length} bytes where {self.left} are left")
        self.at = until
        return self._view[start:until]

    def skip_tags(self) -> None:
        """Skip the tagged fields of a struct (KIP-482): no supported version needs one."""
        for _ in range(self.unsigned_varint()):
            self.unsigned_varint()
            self.span(self.unsigned_varint(), "a tagged field")

    def string16(self, message: str) -> str:
        """Read an int16 byte length, then UTF-8. Null raises CorruptData."""
        return self.decoded(self.span(self.int16(), message), message)

    def compact_string(self, field: str) -> str:
        """Read the length of a flexible version, then UTF-8. Null raises CorruptData."""
        return self.decoded(self.span(self.unsigned_varint() - 1, field), field)

    def decoded(self, span: memoryview, field: str) -> str:
        """Decode a span as UTF-8."""
        try:
            return str(span, "utf-8")
        except UnicodeDecodeError:
            raise self.corrupt(f"{field} is not UTF-8: {bytes(span[:40])!r}") from None

    def count(self, field: str, *, item_bytes: int) -> int:
        """Read the int32 length of an array, with at least `item_bytes` per item.

        Returns 0 for null (-1).
        """
        count = self.int32()
        if count < -1:
            raise self.corrupt(f"{field} has the impossible count {count}")
        if count * item_bytes > self.left:
            raise self.corrupt(f"{field} claims {count} items where {self.left} bytes are left")
        return max(count, 0)

    def corrupt(self, message: str) -> CorruptData:
        """Return the error for the caller to raise, with the place in the bytes."""
        return CorruptData(
            f"{message[:1].upper()}{message[1:]}",
            action=(
                "Check the broker's log, and that nothing between here and the broker alters bytes"
            ),
            at_byte=self.at,
            **self.place,
        )

    def _number(self, layout: struct.Struct) -> int:
        if layout.size > self.left:
            raise self.corrupt(
                f"the bytes end inside a number: {layout.size} wanted, {self.left} left"
            )
        number: int = layout.unpack_from(self._view, self.at)[0]
        self.at += layout.size
        return number


def unsigned_varint(number: int) -> bytes:
    """Encode seven bits a byte, low bits first (KIP-482)."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def compact_length(length: int) -> bytes:
    """Encode the length of a text or array in a flexible version, which is one more (KIP-482)."""
    if length < 0x7F:
        return bytes((length + 1,))
    return unsigned_varint(length + 1)


class Writer:
    """Sequential writer of the bytes of a request."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = bytearray()

    def int8(self, number: int) -> Self:
        self._bytes += _INT8.pack(number)
        return self

    def int16(self, number: int) -> Self:
        self._bytes += _INT16.pack(number)
        return self

    def int32(self, number: int) -> Self:
        self._bytes += _INT32.pack(number)
        return self

    def int64(self, number: int) -> Self:
        self._bytes += _INT64.pack(number)
        return self

    def string16(self, text: str) -> Self:
        """Write an int16 byte length, then UTF-8. Raises ValueError above 32767 bytes."""
        encoded = text.encode("utf-8")
        if len(encoded) > 0x7FFF:
            raise ValueError(
                f"A string of {len(encoded)} bytes does not fit an int16 length: {text[:40]}..."
            )
        self._bytes += _INT16.pack(len(encoded)) + encoded
        return self

    def unsigned_varint(self, number: int) -> Self:
        """Write seven bits a byte, low bits first (KIP-482)."""
        self._bytes += unsigned_varint(number)
        return self

    def raw(self, content: bytes) -> Self:
        """Write bytes unchanged."""
        self._bytes += content
        return self

    def framed(self) -> bytes:
        """Return the bytes with their int32 length in front."""
        return _INT32.pack(len(self._bytes)) + bytes(self._bytes)
