"""How much is asked for at once, and for how long is waited, where nobody says otherwise: of a
pipeline and of the data source.
"""

from __future__ import annotations

MIB = 1 << 20
FETCH_MAX_BYTES = 16 * MIB
"""Asked for in one Fetch."""
FETCH_LIMIT_BYTES = 256 * MIB
"""What a Fetch may grow to for one large record batch."""
MAX_RECORD_BYTES = 32 * MIB
"""A JVM with the default memory takes a record of 64 MiB and dies of one of 120 MiB."""
TARGET_TASK_BYTES = 256 * MIB
BACKFILL_PLAN_BYTES = 4096 * MIB
"""What one plan of a backfill takes on."""
TIMEOUT_S = 30.0
"""Deadline of one request to a broker."""

FETCH_MAX_BYTES_MOST = 2**30
FETCH_LIMIT_BYTES_MOST = 2**31 - MIB
"""A fetch says its size as an int32, and an answer is a little longer than that."""
MAX_RECORD_BYTES_MOST = 2**30
"""Offsets into the buffers of a column are int32."""
