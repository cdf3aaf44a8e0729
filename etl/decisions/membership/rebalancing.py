"""What a member of a group in ZooKeeper does next, in pure functions of values: each takes where
the member stands and gives where it stands then, and what it does. Who does it is
`edges.zookeeper.membership`.

    stands       what happened                                     stands then   does
    unjoined     it is to join                                     joining       register
    joining      it registered                                     joining       look at the group
    joining      it looked                                         joining       claim its share, all or nothing
    joining      somebody else owns a log of it                    joining       wait until nobody does, a backoff at most; then look
    joining      the same, and the time to join is over            unjoined      leave
    joining      it claimed                                        stable        rest; where it was called since the look, look
    stable       it was called                                     stable        look at the group
    stable       it looked, the group is the same, its logs its    stable        rest
    stable       it looked, and anything else is the case          letting go    let go of everything
    letting go   it let go                                         joining       look at the group
    stable       logs of others have had no owner for a while      stable        nudge
    any          its session ended                                 unjoined      nothing: all that was its is gone

"Called" is one bit, whatever happened and however often: a member, a broker or a topic came, went
or changed. A hundred events before the next look are one look. Whoever looks has the bit cleared
and its watches set before it reads.

Old consumers let go at every event, also where the group is the same afterwards; we do not, as the
share would be the same. They try `tries` times with a backoff between, and then own nothing until
the next event: whoever is in their way longer than that must call them again once it has let go, or
their logs have no reader. That is a nudge (`edges.zookeeper.members`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from etl.model.partitions import BrokerFamily, BrokerPartition

OTHERS_BACKOFF_S: Mapping[BrokerFamily, float] = {BrokerFamily.KAFKA: 2.0, BrokerFamily.JAFKA: 10.0}
"""Between two tries of an old consumer, by default. In 0.8 that is as long as ZooKeeper's followers
may lag by its settings, 2 s.
"""


class Phase(Enum):
    """Where a member stands."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    STABLE = "stable"
    LETTING_GO = "letting go"


class Do(Enum):
    """What it does next."""

    REGISTER = "register"
    LOOK = "look"
    CLAIM = "claim"
    WAIT = "wait"
    REST = "rest"
    LET_GO = "let go"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a member stands."""

    phase: Phase = Phase.UNJOINED
    group: object = None
    """All that its share follows from, as it saw it last; anything that can be compared."""
    nudges: int = 0
    """How often it called the others since it saw the group change."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a member waits for others."""

    join_timeout_s: float = 60.0
    """For a settled share. Longer than the tries of the others with their backoffs, or it gives up
    while they still try.
    """
    backoff_s: float = 2.0
    """Before it looks again; that somebody let go ends it early."""
    others_backoff_s: float = 2.0
    """Theirs: whoever owns nothing for longer than that may have given up."""


Step = tuple[Standing, Do]


def to_join(standing: Standing) -> Step:
    """Begin."""
    return replace(standing, phase=Phase.JOINING, group=None), Do.REGISTER


def registered(standing: Standing) -> Step:
    """Its own node is there."""
    return standing, Do.LOOK


def looked(standing: Standing, group: object, *, owns_its_share: bool) -> Step:
    """`group`: what the share follows from, as it is now; `owns_its_share`: whether the logs of the
    last share are still its.
    """
    if standing.phase is Phase.STABLE:
        if group == standing.group and owns_its_share:
            return standing, Do.REST
        return replace(standing, phase=Phase.LETTING_GO), Do.LET_GO
    if group != standing.group:
        standing = replace(standing, group=group, nudges=0)
    return standing, Do.CLAIM


def claimed(standing: Standing, *, is_called: bool) -> Step:
    """All of its share is its."""
    return replace(standing, phase=Phase.STABLE), Do.LOOK if is_called else Do.REST


def refused(standing: Standing, timing: Timing, *, elapsed_s: float) -> Step:
    """Somebody else owns a log of its share; `elapsed_s` since it began to rebalance."""
    if elapsed_s >= timing.join_timeout_s:
        return replace(standing, phase=Phase.UNJOINED), Do.LEAVE
    return standing, Do.WAIT


def waited(standing: Standing) -> Step:
    """The backoff is over, or something happened before."""
    return standing, Do.LOOK


def let_go(standing: Standing) -> Step:
    """It owns nothing any more."""
    return replace(standing, phase=Phase.JOINING), Do.LOOK


def ended(standing: Standing) -> Standing:
    """Its session has ended, or it left."""
    return replace(standing, phase=Phase.UNJOINED)


def backoff_s(timing: Timing, *, elapsed_s: float) -> float:
    """How long to wait at most before the next look."""
    return max(0.0, min(timing.backoff_s, timing.join_timeout_s - elapsed_s))


def nudge_after_s(standing: Standing, timing: Timing) -> float | None:
    """How long after it settled, or after the last nudge, a member looks whether logs of others
    have no owner.

    None: not any more. Half a backoff of theirs longer than they sleep at most, then twice as long
    each time; as often as fits into the time that the others may take. One that owns nothing after
    that does not want to.
    """
    first = 1.5 * timing.others_backoff_s
    spent = first * (2**standing.nudges - 1)
    return (
        first * 2**standing.nudges
        if standing.nudges == 0 or spent < timing.join_timeout_s
        else None
    )


def nudged(standing: Standing) -> Standing:
    """It called the others."""
    return replace(standing, nudges=standing.nudges + 1)


def ownerless(
    of_others: Collection[BrokerPartition], owned: Collection[BrokerPartition]
) -> frozenset[BrokerPartition]:
    """The logs that the group gives to others and that none of them has: they are between two
    tries, or have given up.
    """
    return frozenset(of_others).difference(owned)
