"""What a run saw, kept in its report: whoever has the report can decide again what the run decided,
in a test and without its world.

Kept are the first look and the last one, as they were before any decision, and the settings that
decide. What lies between them is left out: a run looks again behind each plan, and where retention
or another driver overtook it, a few times at most. A look that takes more than `LOOK_MAX_BYTES` is
left out, which the report then says; those of some ten thousand partitions fit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from etl.model.snapshot import Snapshot
from etl.report.plan_json import read_settings, read_snapshot, write_settings, write_snapshot
from etl.settings.sections import Settings

LOOK_MAX_BYTES = 8 * 2**20
_LOOKS = ("first", "last")


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan that the run executed, or began to."""

    id: str
    uid: str
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class Incident:
    """What a report tells of a run, to be decided again."""

    settings: Settings
    looks: tuple[Snapshot, ...]
    """The first and the last, where there was more than one and both are in the report."""
    plans: tuple[Planned, ...]
    """In the order in which the run executed them."""
    began_at_ms: int
    error: Mapping[str, Any] | None
    """What ended the run."""


def saw_as_json(first: Snapshot, last: Snapshot, looks: int, settings: Settings) -> dict[str, Any]:
    """What a report keeps of what its run saw; `as_text` leaves out a look that is too large."""
    seen = {"first": first} if first is last else {"first": first, "last": last}
    return {
        "looks": looks,
        "settings": write_settings(settings),
        **{name: write_snapshot(one) for name, one in seen.items()},
    }


def as_text(report: Mapping[str, Any], saw: Mapping[str, Any] | None) -> str:
    """A report as its file has it: for people, a line for each range and each log, and what the run
    saw in a line for each look.
    """
    parts = {name: _lines(value, "  ") for name, value in report.items()}
    if saw is not None:
        parts["saw"] = _object(
            {
                name: _bounded(value) if name in _LOOKS else _line(value)
                for name, value in saw.items()
            },
            "  ",
        )
    return _object(parts, "")


def _lines(value: Any, pad: str) -> str:
    """A value in a line, or in a line for each of its parts where they have parts of their own."""
    if isinstance(value, dict) and any(map(_has_parts, value.values())):
        return _object({name: _lines(part, pad + "  ") for name, part in value.items()}, pad)
    if not isinstance(value, list) or not _has_parts(value):
        return _told(value)
    inner, has_parts = f",\n{pad}  ", any(map(_has_parts, value[0].values()))
    lines = (
        inner.join(_lines(one, pad + "  ") for one in value) if has_parts else _rows(value, inner)
    )
    return f"[\n{pad}  {lines}\n{pad}]"


def _rows(values: list[Any], between: str) -> str:
    """Many values without parts, each in a line; told all at once, for one at a time takes twice as
    long.
    """
    text = _divided(values)[1:-1]
    return text.replace(f"}}{_DIVIDER}{{", f"}}{between}{{").replace(_DIVIDER, ", ")


def _has_parts(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], dict)
    )


def _object(parts: Mapping[str, str], pad: str) -> str:
    inner = f",\n{pad}  "
    return f"{{\n{pad}  {inner.join(f'{_told(name)}: {text}' for name, text in parts.items())}\n{pad}}}"


def _bounded(look: Any) -> str:
    text = _line(look)
    return (
        text
        if len(text) <= LOOK_MAX_BYTES
        else _line({"left_out": f"it would take {len(text):,} bytes of {LOOK_MAX_BYTES:,}"})
    )


_told = json.JSONEncoder().encode
_line = json.JSONEncoder(separators=(",", ":")).encode
_DIVIDER = "\0"
"""In JSON it stands nowhere, strings have it escaped."""
_divided = json.JSONEncoder(separators=(_DIVIDER, ": ")).encode


def read_incident(report: Mapping[str, Any]) -> Incident:
    """The incident that a report's file tells of. Raises KeyError for one without looks: its run
    ended before it had seen anything.
    """
    saw = report["saw"]
    looks = tuple(
        read_snapshot(saw[name]) for name in _LOOKS if name in saw and "left_out" not in saw[name]
    )
    plans = [*report["earlier_plans"], *([report["plan"]] if report["plan"] else [])]
    return Incident(
        read_settings(saw["settings"]),
        looks,
        tuple(Planned(plan["id"], plan["uid"], _ms(plan["created_at"])) for plan in plans),
        _ms(report["started_at"]),
        report["error"],
    )


def _ms(told: str) -> int:
    return round(datetime.fromisoformat(told).timestamp() * 1000)
