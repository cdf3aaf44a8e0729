"""How are offset ranges fetched?

Lives here: the options of fetches, from the conf, the options of the data source, or those of a
consumer, down to the cursor.
Not here: the ranges, and what was planned of them (query_ranges.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from etl.model.partitions import Isolation
from etl.model.security import OPEN, Security
from etl.records.entries import MAX_UNPACKED_BYTES
from etl.settings.choices import FETCH_MAX_BYTES, MAX_BATCH_BYTES, MAX_RECORD_BYTES, TIMEOUT_S


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How offset ranges are fetched: everything but the ranges, and what was planned of them."""

    isolation: Isolation
    bootstrap: tuple[tuple[str, int], ...] = ()
    """(host, port) of brokers that know the leaders."""
    fetch_max_bytes: int = FETCH_MAX_BYTES
    """Size of one response; two are in memory at a time."""
    partition_max_bytes: int | None = None
    """Size of one partition in a response, at first; None: `fetch_max_bytes`."""
    max_batch_bytes: int = MAX_BATCH_BYTES
    """Limit to which the size of a partition grows for one larger record batch."""
    max_record_bytes: int = MAX_RECORD_BYTES
    """Larger records are rejected."""
    max_unpacked_bytes: int = MAX_UNPACKED_BYTES
    """See `entries.Selection`."""
    timeout_s: float = TIMEOUT_S
    """Of one request."""
    max_wait_ms: int = 500
    """Time that a broker may delay a response with fewer than `min_bytes`."""
    min_bytes: int = 1
    deadline_s: float = 120.0
    """Time that a partition may return nothing before its range fails."""
    retry: int = 8
    """Leader lookups in a row before the error is raised."""
    backoff_s: float = 0.25
    """Pause before the second of these lookups; it doubles, up to 5 s."""
    fails_on_data_loss: bool = True
    """Offsets that are gone, and at the end missing ones that nothing explains, are an error.
    False: read the existing records.
    """
    broker_type: str | None = None
    """Broker type or release of brokers that are looked up (`Broker.broker_type`); None: detected.
    """
    security: Security = OPEN
    """Encryption and authentication of all brokers."""
