"""What is written, and what stands for a record where topics and tables are compared."""

from __future__ import annotations

import hashlib
from typing import Any

Message = tuple[bytes | None, bytes | None]
"""Key and value."""
Row = tuple[Any, ...]
"""Where a record lies, as `Traffic.place` says it (partition and offset, mostly), then the hash of
its value.
"""


def hash_of(value: bytes | None) -> str:
    """What stands for a value in a row."""
    return "null" if value is None else hashlib.sha256(value).hexdigest()[:16]
