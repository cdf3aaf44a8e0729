"""Membership of a group: what one of several consumers owns once a rebalance has settled, and what
the rebalances cost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from etl.model.logs import BrokerPartition


class Membership(str, Enum):
    """Who says which member of a group owns which log."""

    ZOOKEEPER = "zookeeper"
    """The members themselves, by owner nodes: Kafka 0.8's consumers, and Jafka's."""
    COORDINATOR = "coordinator"
    """A broker: Kafka's consumers from 0.9 on."""


BY_COORDINATOR = "consumer"
"""The strategy of a share that the coordinator divided, as it likes: of the consumer protocol."""


class GroupProtocol(str, Enum):
    """By which requests a member speaks with its coordinator."""

    CLASSIC = "classic"
    """0.9 to 4.x: the members divide the logs, all of them at once."""
    CONSUMER = "consumer"
    """4.0 on (KIP-848): the coordinator divides them, one by one."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one member of a group owns after a rebalance has settled."""

    member_id: str
    """In ZooKeeper the name of the node below `ids`; of a coordinator the member id."""
    membership: Membership
    strategy: str
    """How the group divides its logs: `range`, `roundrobin`, `cooperative-sticky`, ..."""
    generation: int | None
    """Of a coordinator's classic group its generation, of its consumer protocol the member's epoch;
    None in ZooKeeper, which has none.
    """
    logs: frozenset[BrokerPartition]
    """May be empty: the group has more members than logs."""
    instance_id: str | None = None
    """The name of a static member, where it is one."""


@dataclass(frozen=True, slots=True)
class RebalanceStatistics:
    """What membership cost a run."""

    rebalances: int = 0
    """How often a share was taken, the first time included."""
    seconds: float = 0.0
    """How long all of that took, from the wish to the settled share."""
    tries: int = 0
    """How often others were in the way on the way there."""
    lost: int = 0
    """How often the membership ended without our wish: an expired session, a member that nobody
    knew any more.
    """
    heartbeat_age_s: float | None = None
    """How long ago the group's side last answered that we are a member; None where nothing beats.
    """

    def beside(self, earlier: RebalanceStatistics | None) -> RebalanceStatistics:
        """The same, with what an earlier membership of the run cost, where there was one: in a
        session that was lost.
        """
        if earlier is None:
            return self
        return replace(
            self,
            rebalances=self.rebalances + earlier.rebalances,
            seconds=self.seconds + earlier.seconds,
            tries=self.tries + earlier.tries,
            lost=self.lost + earlier.lost,
        )


@dataclass(frozen=True, slots=True)
class Void:
    """A hand-over that was refused: nothing was moved, and nothing will be fetched. In ZooKeeper
    nothing was stored either.
    """

    why: str
