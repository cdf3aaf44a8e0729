"""How is each compression type decompressed?

Lives here: gzip, snappy, lz4 and zstd into a buffer of limited size.
Not here: the limits and their errors (arrow_buffers.py).

Input that Kafka's Java clients read is read. The compiled codecs reject some of it; only then are
the rules of the Java clients applied (measured with the classes of Kafka 3.9.1 on Java 17):

- gzip: several members; bytes after a complete member that begin no other one are ignored (zero
  padding).
- lz4: Java reads the first frame only. Here further complete frames are read, other bytes are
  ignored. Until 0.10 Kafka computed the header checksum over the magic number too, and message
  format v0 kept that (KIP-57): `with_lz4_checksum`.
- zstd: several frames and skippable frames; nothing else may follow.
- snappy: blocks with lengths after a header (xerial). Another stream with its own header may
  follow; fewer than four trailing bytes are ignored. Without the header: one raw block, as
  written by some other clients.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import cramjam
import numpy as np

from etl.records.kernel_cache import Bytes

GZIP = 1
SNAPPY = 2
LZ4 = 3
ZSTD = 4
NAMES = {GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
_COMPILED = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_XERIAL_BEGINS = int.from_bytes(_XERIAL[:4], "big")
"""First bytes of an xerial header as a block length; no block has this length."""
_LENGTH_BYTES = 4

_GZIP_MAGIC = b"\x1f\x8b\x08"
_GZIP_FIXED_BYTES = 10
_GZIP_TRAILER_BYTES = 8
_FIRST_PIECE_BYTES = 4096
_GZIP_HEADER_CRC = 0x02
_GZIP_EXTRA = 0x04
_GZIP_NAME = 0x08
_GZIP_COMMENT = 0x10

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_BLOCK_CHECKSUM = 0x10
_LZ4_CONTENT_SIZE = 0x08
_LZ4_CONTENT_CHECKSUM = 0x04
_LZ4_DICTIONARY = 0x01
_LZ4_STORED = 1 << 31


class DoesNotFit(ValueError):
    """The output exceeds its buffer."""


def decompress(codec: int, content: Bytes, target: Bytes) -> int:
    """Decompress `content` into `target`; return the number of bytes. `codec` is a key of NAMES.

    Raises DoesNotFit, and ValueError for bytes that are not of this codec.
    """
    try:
        if codec == SNAPPY:
            return _unsnap(content, target)
        return int(_COMPILED[codec].decompress_into(content, target))
    except (cramjam.DecompressionError, ValueError) as error:
        # All codecs have one of these texts if the output does not fit. With another text the
        # error is ValueError, like invalid bytes.
        if "whole buffer" in str(error) or "smaller than required" in str(error):
            raise DoesNotFit(str(error)) from error
        if codec == GZIP:
            return _gunzip(content, target)
        if codec == LZ4 and (end := _end_of_lz4_frame(content)) is not None:
            return decompress(codec, content[:end], target)
        raise ValueError(str(error)) from error


def _unsnap(content: Bytes, target: Bytes) -> int:
    unsnap: Callable[[Any, Any], int] = cramjam.snappy.decompress_raw_into
    if content[: len(_XERIAL)].tobytes() != _XERIAL:
        return unsnap(content, target)

    at = _XERIAL_HEADER_BYTES
    size = 0
    while content.size - at >= _LENGTH_BYTES:
        length = int.from_bytes(content[at : at + _LENGTH_BYTES].tobytes(), "big")
        if length == _XERIAL_BEGINS:
            at += _XERIAL_HEADER_BYTES
            continue
        block = content[at + _LENGTH_BYTES : at + _LENGTH_BYTES + length]
        if block.size < length:
            raise ValueError(f"a block of {length} bytes is truncated")
        size += unsnap(block, target[size:])
        at += _LENGTH_BYTES + length
    return size


def _gunzip(content: Bytes, target: Bytes) -> int:
    """Decompress complete members until no other one begins (RFC 1952)."""
    plain = content.tobytes()
    at = 0
    size = 0
    while (begins := _skip_gzip_header(plain, at)) is not None:
        ends, count = _inflate(memoryview(plain), begins, target[size:])
        crc = zlib.crc32(target[size : size + count].data)
        length = count % 2**32
        trailer = crc.to_bytes(4, "little") + length.to_bytes(4, "little")
        if plain[ends : ends + _GZIP_TRAILER_BYTES] != trailer:
            raise ValueError("a member is damaged")
        at = ends + _GZIP_TRAILER_BYTES
        size += count
    if not at:
        raise ValueError("invalid gzip header")
    return size


def _inflate(plain: memoryview, at: int, target: Bytes) -> tuple[int, int]:
    """Inflate one member into `target`; return its end and the output size.

    The input is passed in pieces, because zlib copies unused input: with many small members that
    would be the whole rest each time.
    """
    member = zlib.decompressobj(-zlib.MAX_WBITS)
    size = 0
    piece_bytes = _FIRST_PIECE_BYTES
    while not member.eof:
        piece = plain[at : at + piece_bytes]
        if not piece:
            raise ValueError("a member is truncated")
        try:
            inflated = member.decompress(piece, target.size - size + 1)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if len(inflated) > target.size - size:
            raise DoesNotFit("a member does not fit")
        target[size : size + len(inflated)] = np.frombuffer(inflated, dtype=np.uint8)
        at += len(piece)
        size += len(inflated)
        piece_bytes *= 2
    return at - len(member.unused_data), size


def _skip_gzip_header(plain: bytes, at: int) -> int | None:
    """Return the start of the deflated bytes of the member at `at`; None without a valid header."""
    fixed = plain[at : at + _GZIP_FIXED_BYTES]
    if len(fixed) < _GZIP_FIXED_BYTES or not fixed.startswith(_GZIP_MAGIC):
        return None
    flags = fixed[3]
    at += _GZIP_FIXED_BYTES
    if flags & _GZIP_EXTRA:
        at += 2 + int.from_bytes(plain[at : at + 2], "little")
    for flag in (_GZIP_NAME, _GZIP_COMMENT):
        if flags & flag:
            at = plain.find(b"\0", at) + 1
            if not at:
                return None
    if flags & _GZIP_HEADER_CRC:
        at += 2
    return at if at <= len(plain) else None


def _end_of_lz4_frame(content: Bytes) -> int | None:
    """Return the end of a complete frame that other bytes follow; None without such a frame."""
    if content.size < 7 or content[:4].tobytes() != _LZ4_MAGIC:
        return None
    flags = int(content[4])
    at = _lz4_checksum_at(flags) + 1
    while at + _LENGTH_BYTES <= content.size:
        length = int.from_bytes(content[at : at + _LENGTH_BYTES].tobytes(), "little")
        at += _LENGTH_BYTES
        if not length:
            if flags & _LZ4_CONTENT_CHECKSUM:
                at += 4
            return at if at < content.size else None
        at += length % _LZ4_STORED
        if flags & _LZ4_BLOCK_CHECKSUM:
            at += 4
    return None


def _lz4_checksum_at(flags: int) -> int:
    """Return the place of the header checksum in a frame with these flags."""
    at = 6
    if flags & _LZ4_CONTENT_SIZE:
        at += 8
    if flags & _LZ4_DICTIONARY:
        at += 4
    return at


def with_lz4_checksum(content: Bytes) -> Bytes:
    """Return a copy of the frame with the correct header checksum; other bytes unchanged.

    lz4 in format v0 has a checksum over the wrong bytes (KIP-57), which compiled codecs reject.
    """
    if content.size < 7 or content[:4].tobytes() != _LZ4_MAGIC:
        return content
    at = _lz4_checksum_at(int(content[4]))
    if at >= content.size:
        return content
    corrected = content.copy()
    corrected[at] = _short_xxh32(content[4:at].tobytes()) >> 8 & 0xFF
    return corrected


def _short_xxh32(content: bytes) -> int:
    """Return xxHash32, seed 0, of fewer than 16 bytes (steps 4 to 6 of the specification)."""
    primes = (2654435761, 2246822519, 3266489917, 668265263, 374761393)
    hashed = primes[4] + len(content)
    whole = len(content) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(content[at : at + 4], "little")
        hashed = _rotated(hashed + word * primes[2], 17) * primes[3]
    for byte in content[whole:]:
        hashed = _rotated(hashed + byte * primes[4], 11) * primes[0]
    hashed %= 2**32
    hashed = (hashed ^ hashed >> 15) * primes[1] % 2**32
    hashed = (hashed ^ hashed >> 13) * primes[2] % 2**32
    return hashed ^ hashed >> 16


def _rotated(number: int, bits: int) -> int:
    number %= 2**32
    return (number << bits | number >> 32 - bits) % 2**32
