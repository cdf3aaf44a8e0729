"""What the brokers tell of topics, once they tell of all that are registered.

When a whole cluster comes up again, a broker may answer Metadata before it was told of every topic:
it then says that there is none of that name, or leaves it out of the list. Where the cluster is
registered in ZooKeeper, `/brokers/topics` says which topics there are. A cluster without ZooKeeper
(KRaft) lets no broker answer before it knows them all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace

from etl.errors import BrokerUnreachable, Meaning
from etl.io.brokers.cluster import Cluster, unknown_topics
from etl.io.brokers.offsets import pause
from etl.kafka.messages import ClusterMetadata, TopicMetadata


def describe_all_told(
    cluster: Cluster,
    asked: Collection[str] | None,
    registered: Callable[[ClusterMetadata], Collection[str]],
    *,
    wait_s: float,
) -> ClusterMetadata:
    """One Metadata answer in which no topic is unknown that is registered; asked for again for up
    to `wait_s` until it is so.

    asked        topics to ask for; None: all registered   the names in ZooKeeper of those that are
    to be read and not about to be deleted, where the cluster of the answer keeps its
                 topics there

    A topic that we may not describe is left out, as brokers do. Raises BrokerUnreachable (it may
    pass) for one that stays unknown.
    """
    deadline, attempt = time.monotonic() + wait_s, 0
    while True:
        told = cluster.describe_once_told(asked, wait_s=max(0.0, deadline - time.monotonic()))
        untold = _untold(cluster, told, registered(told))
        if not untold:
            return told
        left = deadline - time.monotonic()
        if left <= 0:
            more = f" and {len(untold) - 1:,} more" if untold[1:] else ""
            raise BrokerUnreachable(
                f"the brokers do not tell of a topic{more} that is registered in ZooKeeper",
                topic=untold[0],
                check="that the brokers and their controller are up, then run again",
            )
        pause(attempt, left)
        attempt += 1


def _untold(cluster: Cluster, told: ClusterMetadata, registered: Collection[str]) -> list[str]:
    """Registered topics of which the answer knows nothing, and which are not only kept from us."""
    missing = sorted(unknown_topics(told, registered))
    if not missing:
        return []
    kept = _kept_from_us(cluster, missing)
    return [name for name in missing if name not in kept]


def with_kept_from_us(
    cluster: Cluster, told: ClusterMetadata, names: Collection[str]
) -> ClusterMetadata:
    """The answer, with those of the names that it lacks because we may not describe them: a list of
    all topics leaves such out, and `chosen_topics` says what it is. For topics that were read
    before: their records would wait, and nobody would know."""
    missing = sorted(frozenset(names) - told.topics.keys())
    return (
        replace(told, topics={**told.topics, **_kept_from_us(cluster, missing)})
        if missing
        else told
    )


def _kept_from_us(cluster: Cluster, names: Collection[str]) -> dict[str, TopicMetadata]:
    by_name = cluster.describe(names).topics
    return {
        name: topic
        for name, topic in by_name.items()
        if topic.refusal and topic.refusal.meaning is Meaning.NOT_ALLOWED
    }
