"""Copies of the fake ZooKeeper's persistent znodes, as a backup has them."""

from __future__ import annotations

import copy
from typing import Any

from tests.fakes.outside import Outside

Znodes = dict[str, Any]
ZNODES = (
    "uid",
    "plans",
    "plan_versions",
    "removals",
    "acknowledged",
    "kept_keys",
    "applied",
    "offsets",
    "pauses",
    "backfills",
)


def znodes_of(outside: Outside) -> Znodes:
    """A copy of ZooKeeper's persistent znodes."""
    return {name: copy.copy(getattr(outside, name)) for name in ZNODES}


def restore_znodes(outside: Outside, found: Znodes) -> None:
    """Put the copy in ZooKeeper's place."""
    for name in ZNODES:
        setattr(outside, name, copy.copy(found[name]))
