"""What operators paused, as bytes: one document for a pipeline."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

from etl.model.snapshot import Pause
from etl.protocol.zookeeper.documents import FORMAT, canonical, log_of, parsed


def render_pauses(pauses: Iterable[Pause]) -> bytes:
    """The znode of a pipeline's pauses."""
    rows = [
        [one.topic, one.log.key if one.log else None, one.reason, one.by, one.since_ms]
        for one in pauses
    ]
    return zlib.compress(canonical({"format": FORMAT, "pauses": rows}), 6)


def parse_pauses(payload: bytes, *, path: str) -> tuple[Pause, ...]:
    """The pauses of a znode. Raises LedgersDisagree where it has none, NeedsDecision where a newer
    version wrote it.
    """
    return parsed(payload, path, lambda found: tuple(_pause(*row) for row in found["pauses"]))


def _pause(topic: Any, key: Any, reason: Any, by: Any, since_ms: Any) -> Pause:
    if not isinstance(topic, str) or not isinstance(since_ms, int):
        raise ValueError(f"{topic!r} since {since_ms!r} is no pause")
    return Pause(topic, None if key is None else log_of(topic, key), str(reason), str(by), since_ms)
