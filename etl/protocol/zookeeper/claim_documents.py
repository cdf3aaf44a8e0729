"""What a backfill claims, as its znode has it."""

from __future__ import annotations

import zlib
from typing import Any

from etl.model.partitions import in_order
from etl.model.snapshot import Reservation, ReservationState
from etl.protocol.zookeeper.documents import canonical, parse_logs, parsed, render_logs

FORMAT = 1


def render_claim(claim: Reservation) -> bytes:
    """The znode of a claim."""
    logs = in_order(claim.stretches)
    document = {
        "format": FORMAT,
        "name": claim.name,
        "logs": render_logs(logs),
        "stretches": [claim.stretches[log] for log in logs],
        "log_epochs": [claim.life_of(log) for log in logs],
        "asked": claim.asked,
        "made_at_ms": claim.made_at_ms,
        "state": claim.state.value,
        "reason": claim.reason,
        **({"table_id": claim.table_id} if claim.table_id else {}),
    }
    return zlib.compress(canonical(document), 6)


def parse_claim(payload: bytes, *, path: str) -> Reservation:
    """The claim of a znode. Raises LedgersDisagree when it is none."""
    return parsed(payload, path, _claim)


def _claim(found: dict[str, Any]) -> Reservation:
    logs = parse_logs(found["logs"])
    stretches = {
        log: tuple((_offset(start), _offset(until)) for start, until in parts)
        for log, parts in zip(logs, found["stretches"], strict=True)
    }
    if any(start >= until for parts in stretches.values() for start, until in parts):
        raise ValueError("a stretch of it is none")
    lives = {
        log: _offset(life) for log, life in zip(logs, found["log_epochs"], strict=True) if life
    }
    return Reservation(
        str(found["name"]),
        stretches,
        lives,
        str(found["asked"]),
        int(found["made_at_ms"]),
        ReservationState(found["state"]),
        None if found["reason"] is None else str(found["reason"]),
        str(found["table_id"]) if found.get("table_id") else None,
    )


def _offset(found: object) -> int:
    if not isinstance(found, int) or found < 0:
        raise ValueError(f"{found!r} is no offset")
    return found
