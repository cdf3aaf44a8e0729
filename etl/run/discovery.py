"""How are the brokers, topics and leaders of a conf found?

| cluster | brokers | topics and leaders |
| --- | --- | --- |
| Kafka, `source.bootstrap_servers` is set | that key | the brokers (Metadata) |
| Kafka 0.8 to 3.x | ZooKeeper | the brokers, once they know all topics of ZooKeeper |
| Jafka, Kafka 0.7 | ZooKeeper | ZooKeeper: the brokers know only their own partitions |

With bootstrap, ZooKeeper holds only the ledger. All callers use `open_cluster` and `describe`, and
get a `ClusterMetadata` without its source.

While a cluster starts, a broker may answer Metadata before it knows each topic, and leave topics
out. `/brokers/topics` in ZooKeeper says which exist. In KRaft a broker answers once it knows them
all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from etl.decide.partition_identity import ClusterName, cluster_name
from etl.decide.table_changes import app_id_of
from etl.errors import BrokerUnreachable, Meaning
from etl.io.brokers.cluster import Cluster, unknown_topics
from etl.io.brokers.offsets import pause
from etl.io.clusters import CONNECT_WITHIN_S, registered_brokers, registered_cluster
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.ledger_records import read_pauses
from etl.io.zookeeper.registry import (
    are_registered,
    read_cluster_id,
    read_compacted,
    read_creation_ids,
    read_topics,
)
from etl.io.zookeeper.session import ZooKeeper
from etl.kafka.families import of_broker_version
from etl.kafka.messages import ClusterMetadata, TopicMetadata
from etl.model.partitions import Broker, BrokerPartition
from etl.model.plans import Plan
from etl.model.snapshot import Pause
from etl.settings.choices import split_address
from etl.settings.sections import Settings
from etl.settings.source import SourceSettings


def describe_registered_topics(
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
        told = cluster.describe_when_known(asked, wait_s=max(0.0, deadline - time.monotonic()))
        untold = _untold(cluster, told, registered(told))
        if not untold:
            return told
        left = deadline - time.monotonic()
        if left <= 0:
            more = f" and {len(untold) - 1:,} more" if untold[1:] else ""
            raise BrokerUnreachable(
                f"the brokers do not tell of a topic{more} that is registered in ZooKeeper",
                topic=untold[0],
                action="that the brokers and their controller are up, then run again",
            )
        pause(attempt, left)
        attempt += 1


def _untold(cluster: Cluster, told: ClusterMetadata, registered: Collection[str]) -> list[str]:
    """Return registered topics that the answer lacks, except those that we may not describe."""
    missing = sorted(unknown_topics(told, registered))
    if not missing:
        return []
    kept = _denied_topics(cluster, missing)
    return [name for name in missing if name not in kept]


def with_denied_topics(
    cluster: Cluster, told: ClusterMetadata, names: Collection[str]
) -> ClusterMetadata:
    """Return the answer with those of the names that it lacks because we may not describe them.

    A list of all topics leaves them out. For topics that were read before: their records would wait
    unnoticed.
    """
    missing = sorted(frozenset(names) - told.topics.keys())
    return (
        replace(told, topics={**told.topics, **_denied_topics(cluster, missing)})
        if missing
        else told
    )


def _denied_topics(cluster: Cluster, names: Collection[str]) -> dict[str, TopicMetadata]:
    by_name = cluster.describe(names).topics
    return {
        name: topic
        for name, topic in by_name.items()
        if topic.refusal and topic.refusal.meaning is Meaning.NOT_ALLOWED
    }


def configured_family(source: SourceSettings) -> str | None:
    """Return how all brokers are addressed, if the conf says so."""
    return None if source.broker_version is None else of_broker_version(source.broker_version)


class Discovery:
    """The cluster that a conf names. Raises what `registry`, `registry` and the brokers
    raise.
    """

    def __init__(self, settings: Settings, zookeeper: ZooKeeper) -> None:
        self._settings, self._source, self._zookeeper = settings, settings.source, zookeeper

    def registered(self) -> Mapping[int, Broker]:
        """The brokers that are registered in ZooKeeper, by id; none where the conf gives them and
        ZooKeeper is that of the ledger alone.
        """
        if self._source.bootstrap_servers is not None:
            return {}
        return {
            broker.id: broker
            for broker in registered_brokers(
                self._zookeeper, physical=self._source.is_physical, security=self._source.way_in
            )
        }

    def bootstrap(self) -> list[tuple[str, int]]:
        """The brokers to begin with: those that the conf names, else those in ZooKeeper."""
        if self._source.bootstrap_servers is not None:
            return [split_address(address) for address in self._source.bootstrap_servers]
        return [(broker.host, broker.port) for broker in self.registered().values()]

    def open_cluster(
        self, known: Iterable[BrokerPartition] = (), *, connect_timeout_s: float = CONNECT_WITHIN_S
    ) -> Cluster:
        """Open the cluster; the caller closes it. `known`: earlier partitions, so that those of an
        unavailable broker are reported without leader.
        """
        timeout_s, said = self._source.request_timeout_s, configured_family(self._source)
        if self._source.bootstrap_servers is not None:
            return Cluster(
                self.bootstrap(),
                connect_timeout_s=connect_timeout_s,
                timeout_s=timeout_s,
                generation=said,
                security=self._source.way_in,
            )
        return registered_cluster(
            self._zookeeper,
            physical=self._source.is_physical,
            timeout_s=timeout_s,
            generation=said,
            known=known,
            connect_timeout_s=connect_timeout_s,
            security=self._source.way_in,
        )

    def describe(
        self, cluster: Cluster, left: Collection[str], known: Collection[str] = ()
    ) -> ClusterMetadata:
        """Return the conf's topics and those that are `left` to read; other topics may be included.
        `known`: topics that this pipeline has read, included if brokers only hide them from us.
        """
        if self._source.is_physical:
            return cluster.describe(self._requested_topics(left))
        told = describe_registered_topics(
            cluster,
            self._requested_topics(left),
            lambda told: self._registered_topics(told, left),
            wait_s=self._source.wait_for_leader_s,
        )
        return self.with_known(cluster, told, known)

    def with_known(
        self, cluster: Cluster, told: ClusterMetadata, known: Collection[str]
    ) -> ClusterMetadata:
        """The answer, with those of the conf's among these topics that it lacks because the brokers
        keep them from us.

        One that is paused whole keeps no run from the others; one that the conf names must be
        there, paused or not.
        """
        untold = {
            topic for topic in known if self._source.topic_filter.admits(topic)
        } - told.topics.keys()
        if not untold or self._source.is_physical:
            return told
        left_alone = {one.topic for one in self.pauses() if one.log is None} - {
            *self._source.topic_filter.literal_names
        }
        return with_denied_topics(cluster, told, untold - left_alone)

    def known_topics(self) -> frozenset[str]:
        """Those that the conf's pipeline has read."""
        return PlanLedger(
            self._zookeeper, self._settings.group.id, self._settings.pipeline
        ).topics()

    def compacted(self, topics: Collection[str]) -> frozenset[str]:
        """Return the topics that are compacted by their settings in ZooKeeper, if the brokers are
        registered there.
        """
        return (
            frozenset()
            if self._source.bootstrap_servers is not None or self._source.is_physical
            else read_compacted(self._zookeeper, topics)
        )

    def creation_ids(self, told: ClusterMetadata) -> dict[str, str]:
        """Return ids of the topics' znodes; empty if the conf's ZooKeeper is not the brokers'."""
        return read_creation_ids(self._zookeeper, told.topics) if self.keeps_topics_of(told) else {}

    def creations_of(self, topics: Collection[str]) -> dict[str, str]:
        """Return ids of the znodes of topics by name, in a ZooKeeper known to be the brokers'."""
        return read_creation_ids(self._zookeeper, topics)

    def keeps_topics_of(self, told: ClusterMetadata) -> bool:
        """True if the conf's ZooKeeper is that of the brokers: by cluster id, before 0.10.1 by
        their addresses.
        """
        if self._source.bootstrap_servers is None:
            return True
        if told.cluster_id is None:
            return are_registered(self._zookeeper, told.brokers.values(), self._source.way_in)
        return told.cluster_id == read_cluster_id(self._zookeeper)

    def pauses(self) -> tuple[Pause, ...]:
        """Return what is paused in the conf's pipeline."""
        return read_pauses(
            PlanLedger(self._zookeeper, self._settings.group.id, self._settings.pipeline)
        )

    def name_of(self, metadata: ClusterMetadata, newest: Plan | None) -> ClusterName:
        """Return the cluster's name by the ledger's newest plan; raises as `cluster_name`, and
        NotOurTable or TableUnreachable if the table is read.
        """
        holds_brokers = (
            self._source.bootstrap_servers is None and not self._source.is_physical
        )  # else the id there would be another cluster's
        told = metadata.cluster_id or (read_cluster_id(self._zookeeper) if holds_brokers else None)
        return cluster_name(
            newest, told, self._settings.source.assume_cluster_id, self._is_in_table
        )

    def _is_in_table(self, cluster: str) -> bool:
        from etl.io.delta.table_state import holds_commits

        return holds_commits(
            self._settings.table.path,
            app_id_of(cluster, self._settings.group.id, self._settings.pipeline),
        )

    def _requested_topics(self, left: Collection[str]) -> tuple[str, ...] | None:
        """By name where the conf names all of them in plain letters, else all topics: one request
        either way.
        """
        names = self._source.topic_filter.literal_names
        if len(names) < len(self._source.topics):
            return None
        return (*names, *left)

    def _registered_topics(self, told: ClusterMetadata, left: Collection[str]) -> list[str]:
        """Return topics in ZooKeeper that are read or left to read, and are not being deleted;
        empty if it is another cluster's. Brokers before 0.10.1 have no id to compare: if the conf
        names the brokers, ZooKeeper counts as another's.
        """
        is_ours = (
            self._source.bootstrap_servers is None
            if told.cluster_id is None
            else told.cluster_id == read_cluster_id(self._zookeeper)
        )
        if not is_ours:
            return []
        return [
            topic
            for topic in read_topics(self._zookeeper)
            if self._source.topic_filter.admits(topic) or topic in left
        ]
