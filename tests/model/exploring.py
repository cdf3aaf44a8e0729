"""Explores every reachable state of a model, and reports the path to a broken law."""

from __future__ import annotations

import contextlib
import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

S = TypeVar("S")


def explored(
    start: S,
    steps: Callable[[S], Iterable[tuple[str, S]]],
    broken_law: Callable[[S], str | None],
) -> tuple[int, str | None]:
    """How many states there are, and the shortest way to one that breaks a law, a line each step;
    None where every law holds.

    `steps` gives (what happens, the state after it) for all that can happen next, `broken_law`
    which law a state breaks.
    """
    before: dict[S, tuple[str, S] | None] = {start: None}
    queue = deque([start])
    with _without_collector():
        while queue:
            state = queue.popleft()
            law = broken_law(state)
            if law:
                return len(before), "\n".join([law, *_way_to(state, before)])
            for what, after in steps(state):
                if after not in before:
                    before[after] = what, state
                    queue.append(after)
    return len(before), None


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """States are tuples, all are kept and none leads back to itself: to look for some that do costs
    a quarter of the time.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _way_to(state: S, before: Mapping[S, tuple[str, S] | None]) -> list[str]:
    way: list[str] = []
    while origin := before[state]:
        what, state = origin
        way.append(what)
    return way[::-1]
