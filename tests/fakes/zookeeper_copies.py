"""Copies of the fake ZooKeeper's persistent znodes, as a backup has them."""

from __future__ import annotations

import copy
from typing import Any

from tests.fakes.outside import Outside

Znodes = dict[str, Any]
PIPELINES_ZNODES = (
    "uid",
    "plans",
    "plan_versions",
    "removals",
    "acknowledged",
    "kept_keys",
    "applied",
    "offsets",
    "pauses",
    "fence",
)
BACKFILLS_ZNODES = (
    "uid",
    "plans",
    "plan_versions",
    "removals",
    "kept_keys",
    "applied",
    "offsets",
    "claim",
    "claim_version",
)


def znodes_of(outside: Outside) -> Znodes:
    """A copy of ZooKeeper's persistent znodes."""
    found = {name: copy.copy(getattr(outside, name)) for name in PIPELINES_ZNODES}
    found["backfills"] = {
        backfill: {name: copy.copy(getattr(one, name)) for name in BACKFILLS_ZNODES}
        for backfill, one in outside.backfills.items()
    }
    return found


def restore_znodes(outside: Outside, found: Znodes) -> None:
    """Put the copy in ZooKeeper's place."""
    for name in PIPELINES_ZNODES:
        setattr(outside, name, copy.copy(found[name]))
    outside.backfills.clear()
    for backfill, znodes in found["backfills"].items():
        there = outside.backfill(backfill)
        for name in BACKFILLS_ZNODES:
            setattr(there, name, copy.copy(znodes[name]))
