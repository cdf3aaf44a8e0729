"""CRC-32 (zlib's polynomial) inside a compiled kernel: messages are small, and a call out of Python
for each would cost more than its CRC.

Sixteen bytes a step by sixteen tables ("slicing by 16", M. Kounavis and F. Berry 2005): about 2
GB/s.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from etl.protocol.records.compiled import little_uint64

_POLYNOMIAL = 0xEDB88320


def _tables(count: int) -> NDArray[np.uint32]:
    """What a byte does to the CRC when 0 to count-1 bytes of zeros follow it."""
    tables = np.zeros((count, 256), dtype=np.uint32)
    tables[0] = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        tables[0] = tables[0] >> 1 ^ np.where(tables[0] & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    for zeros in range(1, count):
        tables[zeros] = tables[zeros - 1] >> 8 ^ tables[0][tables[zeros - 1] & 255]
    return tables


_T = _tables(16)
_BYTE = np.uint64(255)


@njit(nogil=True, inline="never")
def crc32(source, at, end):  # type: ignore[no-untyped-def]
    """The CRC-32 of source[at:end]."""
    crc = np.uint32(0xFFFFFFFF)
    while end - at >= 16:
        one, two = little_uint64(source, at) ^ np.uint64(crc), little_uint64(source, at + 8)
        crc = (
            _T[15, one & _BYTE]
            ^ _T[14, one >> np.uint64(8) & _BYTE]
            ^ _T[13, one >> np.uint64(16) & _BYTE]
            ^ _T[12, one >> np.uint64(24) & _BYTE]
            ^ _T[11, one >> np.uint64(32) & _BYTE]
            ^ _T[10, one >> np.uint64(40) & _BYTE]
            ^ _T[9, one >> np.uint64(48) & _BYTE]
            ^ _T[8, one >> np.uint64(56)]
            ^ _T[7, two & _BYTE]
            ^ _T[6, two >> np.uint64(8) & _BYTE]
            ^ _T[5, two >> np.uint64(16) & _BYTE]
            ^ _T[4, two >> np.uint64(24) & _BYTE]
            ^ _T[3, two >> np.uint64(32) & _BYTE]
            ^ _T[2, two >> np.uint64(40) & _BYTE]
            ^ _T[1, two >> np.uint64(48) & _BYTE]
            ^ _T[0, two >> np.uint64(56)]
        )
        at += 16
    if end - at >= 8:
        one = little_uint64(source, at) ^ np.uint64(crc)
        crc = (
            _T[7, one & _BYTE]
            ^ _T[6, one >> np.uint64(8) & _BYTE]
            ^ _T[5, one >> np.uint64(16) & _BYTE]
            ^ _T[4, one >> np.uint64(24) & _BYTE]
            ^ _T[3, one >> np.uint64(32) & _BYTE]
            ^ _T[2, one >> np.uint64(40) & _BYTE]
            ^ _T[1, one >> np.uint64(48) & _BYTE]
            ^ _T[0, one >> np.uint64(56)]
        )
        at += 8
    while at < end:
        crc = crc >> np.uint32(8) ^ _T[0, (crc ^ np.uint32(source[at])) & np.uint32(255)]
        at += 1
    return crc ^ np.uint32(0xFFFFFFFF)
