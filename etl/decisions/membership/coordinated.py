"""What a member does about an answer of its group's coordinator, and when it beats: values in,
values out; every moment is given.

| answer, to whatever was asked | what the member does | id kept | its share |
| --- | --- | --- | --- |
| none refused | goes on | | |
| the group divides its logs anew (27) | joins again at once | yes | is over, as was asked for |
| an older generation (22) | joins again at once: the coordinator knows the member, and would wait for it | yes | lost |
| fenced epoch (110) | joins again at once | yes | lost |
| unknown member (25) | joins as a new one | no | lost |
| an id is required (79) | joins again with the id that came with it | the new one | |
| another epoch (113) | asks at once what its epoch is | yes | stands, under another epoch |
| not the coordinator (16), none yet (15), it loads (14) | looks it up again after a pause | yes | stands as long as its session |
| whatever else may pass | asks again after a pause | yes | stands as long as its session |
| fenced by another static member (82), and everything else | gives up | | lost |

A member that leaves takes every answer for the end.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, TypeVar

from etl.errors import Meaning, Refusal

KEEPS_LOGS = frozenset({"cooperative-sticky"})
"""Strategies whose members keep what they own while the group divides its logs anew, and let go of
what moves (KIP-429).
"""
Log = TypeVar("Log", bound=Hashable)


class Next(Enum):
    """What a member does next."""

    GO_ON = "go on"
    JOIN_AGAIN = "join again at once"
    ASK_AT_ONCE = "ask at once what changed"
    LOOK_UP = "look the coordinator up again, after a pause"
    ASK_AGAIN = "ask again, after a pause"
    GIVE_UP = "be no member any more"


@dataclass(frozen=True, slots=True)
class Answered:
    """What an answer means to a member."""

    next: Next
    keeps_id: bool = True
    is_lost: bool = False
    """Whether the membership ended, or its share, without anybody's having asked for it in time."""


_MEANS: Mapping[Meaning, Answered] = {
    Meaning.REBALANCING: Answered(Next.JOIN_AGAIN),
    Meaning.OLD_GENERATION: Answered(Next.JOIN_AGAIN, is_lost=True),
    Meaning.FENCED_EPOCH: Answered(Next.JOIN_AGAIN, is_lost=True),
    Meaning.UNKNOWN_MEMBER: Answered(Next.JOIN_AGAIN, keeps_id=False, is_lost=True),
    Meaning.ID_REQUIRED: Answered(Next.JOIN_AGAIN),
    Meaning.STALE_EPOCH: Answered(Next.ASK_AT_ONCE),
    Meaning.NOT_COORDINATOR: Answered(Next.LOOK_UP),
    Meaning.NO_COORDINATOR_YET: Answered(Next.LOOK_UP),
    Meaning.FENCED: Answered(Next.GIVE_UP, is_lost=True),
}


def answered(refusal: Refusal | None) -> Answered:
    """What a coordinator's answer means; see the table of the module."""
    if refusal is None:
        return Answered(Next.GO_ON)
    unlisted = (
        Answered(Next.ASK_AGAIN) if refusal.is_retriable else Answered(Next.GIVE_UP, is_lost=True)
    )
    return _MEANS.get(refusal.meaning, unlisted)


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """When the next heartbeat is due, and whether the session may still be alive. Moments are
    seconds of one clock that never goes back.
    """

    interval_s: float
    session_s: float
    backoff_s: float
    """What is waited after one that failed."""
    begun: float
    """When the member joined, or began to."""
    sent: float = float("-inf")
    received: float = float("-inf")
    """When the last answer came that knew the member."""
    has_failed: bool = False

    def at_send(self, now: float) -> Heartbeats:
        """One is sent."""
        return replace(self, sent=now, has_failed=False)

    def at_answer(self, now: float) -> Heartbeats:
        """The coordinator knew the member."""
        return replace(self, received=now)

    def at_failure(self) -> Heartbeats:
        """The last one came to nothing."""
        return replace(self, has_failed=True)

    def at_join(self, now: float) -> Heartbeats:
        """The member joined: time counts from here."""
        return replace(self, begun=now, has_failed=False)

    def wait_s(self, now: float) -> float:
        """Until the next one is due: `max(0, delay - (now - max(last sent, last joined)))`."""
        delay = self.backoff_s if self.has_failed else self.interval_s
        return max(0.0, delay - (now - max(self.sent, self.begun)))

    def age_s(self, now: float) -> float:
        """Since the coordinator last showed that it knows the member."""
        return now - max(self.received, self.begun)

    def is_over(self, now: float) -> bool:
        """Whether the coordinator may have taken the member for gone: nothing was heard for a whole
        session.
        """
        return self.age_s(now) > self.session_s


_LONGEST_INTERVAL_S = 3.0


def interval_of(session_s: float) -> float:
    """Seconds between heartbeats: a third of the session, so that one may be lost, and no more than
    three, for 27 is told by none else.
    """
    return min(_LONGEST_INTERVAL_S, session_s / 3)


@dataclass(frozen=True, slots=True)
class Reconciled(Generic[Log]):
    """What a member of a protocol in which logs move one by one has, and what is next to say of it."""

    owned: frozenset[Log]
    held: frozenset[Log]
    """To be let go, and not yet: nobody else gets them before."""

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing that was asked for and not yet done."""
        return not self.held


def reconciled(owned: frozenset[Log], target: frozenset[Log], *, holds: bool) -> Reconciled[Log]:
    """What to own, where `target` is assigned: what is assigned no more is let go first, or held;
    what is new is taken only behind that.
    """
    revoked = owned - target
    if revoked and holds:
        return Reconciled(owned, revoked)
    return Reconciled(target, frozenset())
