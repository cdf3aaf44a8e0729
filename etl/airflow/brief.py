"""What Airflow keeps of a command's document: little, for it goes into its database and its pages.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RANGES_KEPT = 100
TEXT_KEPT = 2000


def brief_of(document: Mapping[str, Any] | None) -> dict[str, Any]:
    """The document's plain values, its outcomes, and the newest plan's number with its first
    ranges; nothing where there is no document.
    """
    told = document or {}
    brief: dict[str, Any] = {
        name: _short(value)
        for name, value in told.items()
        if isinstance(value, (str, int, float, bool))
    }
    if isinstance(told.get("outcomes"), list):
        brief["outcomes"] = [
            _short(one.get("says")) if isinstance(one, dict) else _short(one)
            for one in told["outcomes"]
        ]
    plan = told.get("plan")
    if isinstance(plan, dict):
        ranges = plan.get("ranges") or []
        brief["plan"] = {
            "number": plan.get("number"),
            "ranges_in_all": len(ranges),
            "ranges": ranges[:RANGES_KEPT],
        }
    return brief


def told_of(error: Mapping[str, Any] | None) -> str:
    """The sentences of a document that tells an error, as the command prints them."""
    if not error or not error.get("what"):
        return "the command left no document that says why: its log is above"
    where = error.get("where") or {}
    places = ", ".join(f"{name} {value}" for name, value in where.items())
    check = f". Check: {error['check']}" if error.get("check") else ""
    return f"{error.get('error')}: {error['what']}{f' ({places})' if places else ''}{check}"


def _short(value: Any) -> Any:
    return f"{value[:TEXT_KEPT]}..." if isinstance(value, str) and len(value) > TEXT_KEPT else value
