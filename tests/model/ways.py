"""The way to a state of a model, for whoever reads that a law was broken there."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping
from typing import TypeVar

S = TypeVar("S")


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """States are tuples, all are kept and none leads back to itself: to look for some that do costs a quarter of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def way_to(state: S, before: Mapping[S, tuple[str, S] | None]) -> list[str]:
    """What happened from the first state to this one; `before` has for each state what led to it, and from where."""
    way: list[str] = []
    while origin := before[state]:
        what, state = origin
        way.append(what)
    return way[::-1]
