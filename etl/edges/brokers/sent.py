"""A request on its way: what is known of it until its answer has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from etl.kafka.protocol import Request

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Sent(Generic[Answer]):
    """A request that waits for its answer, and its number."""

    request: Request[Answer]
    number: int
    rest: memoryview
    """What of its bytes is sent when answers have come."""
    is_answering: Callable[[float], bool]


def end_of(frames: memoryview, requests: int) -> int:
    """Where so many requests end, each of which has its size in front."""
    at = 0
    for _ in range(requests):
        if at < len(frames):
            at += 4 + int.from_bytes(frames[at : at + 4], "big")
    return at


def fresh(size: int) -> memoryview:
    """Room of its own for an answer."""
    return memoryview(bytearray(size))
