"""Topics of the brokers themselves."""

from __future__ import annotations

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
"""Metadata v0 does not mark them, and old consumers know them by their names."""
