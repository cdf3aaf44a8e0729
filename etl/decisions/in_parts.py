"""Many things in as few parts as hold them, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def in_parts(wanted: Iterable[T], cost: Callable[[T], int], at_most: int) -> Iterator[list[T]]:
    """Cut what is wanted into parts; `cost` gives the bytes of one, of which a part has `at_most`,
    or it is one alone.
    """
    some: list[T] = []
    size = 0
    for one in wanted:
        taken = cost(one)
        if some and size + taken > at_most:
            yield some
            some, size = [], 0
        some.append(one)
        size += taken
    if some:
        yield some
