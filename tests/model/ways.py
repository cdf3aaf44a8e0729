"""The way to a state of a model, for whoever reads that a law was broken there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

S = TypeVar("S")


def way_to(state: S, before: Mapping[S, tuple[str, S] | None]) -> list[str]:
    """What happened from the first state to this one; `before` has for each state what led to it, and from where."""
    way: list[str] = []
    while origin := before[state]:
        what, state = origin
        way.append(what)
    return way[::-1]
