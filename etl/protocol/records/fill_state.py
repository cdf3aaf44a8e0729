"""How far the buffers of one Arrow batch are filled, and how filling them ended: the numbers that
kernels and `arrow` share.
"""

from __future__ import annotations

MOST_ROWS = (1 << 18) + (1 << 16)
"""Rows of one Arrow batch: the topic is repeated with each."""
MOST_BYTES = 32 << 20
"""Bytes of keys, values and headers in one Arrow batch, its last record not counted."""
MOST_HEADERS = 1 << 20
"""Headers in one Arrow batch, those of its last record not counted."""
# What the buffers hold, kept from one call to the next.
BATCH, ROWS, KEY_BYTES, VALUE_BYTES, HEADERS, HEADER_KEY_BYTES, HEADER_VALUE_BYTES = range(7)
NO_KEY, NO_VALUE, NO_TIMESTAMP, NO_HEADERS, NO_HEADER_VALUE, NON_ASCII = range(7, 13)
# Where it goes on inside a row of the table: records done, place of the next one, the lowest offset
# it may have, its number in its wrapper. And which record was refused.
RECORD, AT, LOWEST, OFFSET, INDEX = range(13, 18)
NO_TIMESTAMP_TYPE = 18
STATE_WIDTH = 19
# How a call ended. What is between them says what is wrong with the bytes, and is the kernel's own.
FILLED, MORE_HEADERS, TOO_LARGE, TOO_MANY_HEADERS, FULL = 0, 1, 6, 7, 8

MAX_MS = (2**63 - 1) // 1000
NO_MS = -1
