"""The written records, and their representation in comparisons of topics and tables."""

from __future__ import annotations

import hashlib
from typing import Any

Message = tuple[bytes | None, bytes | None]
Row = tuple[Any, ...]
"""The place of a record (`Traffic.place`), then the hash of its value."""


def hash_of(value: bytes | None) -> str:
    """The representation of a value in a row."""
    return "null" if value is None else hashlib.sha256(value).hexdigest()[:16]
