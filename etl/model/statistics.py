"""What asking brokers cost: requests by broker, so that sums and differences of them are plain
arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests to one broker. The greeting of each connection is one of them."""

    answers: int = 0
    """How many were answered."""
    seconds: float = 0.0
    """How long somebody waited for them, in sending and in receiving; time in which an answer was
    on its way unattended is not counted.
    """
    sent_bytes: int = 0
    received_bytes: int = 0

    def __add__(self, other: Requests) -> Requests:
        return Requests(
            self.answers + other.answers,
            self.seconds + other.seconds,
            self.sent_bytes + other.sent_bytes,
            self.received_bytes + other.received_bytes,
        )

    def __sub__(self, other: Requests) -> Requests:
        return Requests(
            self.answers - other.answers,
            self.seconds - other.seconds,
            self.sent_bytes - other.sent_bytes,
            self.received_bytes - other.received_bytes,
        )


NO_REQUESTS = Requests()
ByBroker = Mapping[str, Requests]
"""By the address at which a broker was asked, `host:port`."""


def together(several: Iterable[ByBroker]) -> dict[str, Requests]:
    """The sums, by broker."""
    found: dict[str, Requests] = {}
    for one in several:
        for broker, requests in one.items():
            found[broker] = found.get(broker, NO_REQUESTS) + requests
    return found


def since(before: ByBroker, now: ByBroker) -> dict[str, Requests]:
    """What came between two readings of one count; brokers of which nothing did are left out."""
    return {
        broker: more
        for broker, requests in now.items()
        if (more := requests - before.get(broker, NO_REQUESTS)) != NO_REQUESTS
    }
