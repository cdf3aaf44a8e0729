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

from etl.decide.recreated_or_truncated import cluster_identity
from etl.decide.table_changes import app_id_of
from etl.errors import BrokerUnreachable, Meaning
from etl.io.brokers.cluster_requests import Cluster, unknown_topics
from etl.io.brokers.partition_ends import pause
from etl.io.brokers.times import read_oldest
from etl.io.clusters import CONNECT_WITHIN_S, registered_brokers, registered_cluster
from etl.io.zookeeper.broker_registrations import (
    are_registered,
    read_cluster_id,
    read_compacted,
    read_creation_ids,
    read_topics,
)
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.ledger_side_documents import read_pauses
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.kafka.broker_types import release_name
from etl.kafka.request_values import ClusterMetadata, TopicMetadata
from etl.model.partitions import Broker, ClusterIdentity, OldestRecord, TopicPartition
from etl.model.plans import Plan
from etl.model.snapshot import Pause, Snapshot
from etl.settings.choices import split_address
from etl.settings.sections import Settings
from etl.settings.source import SourceSettings


def describe_registered_topics(
    cluster: Cluster,
    wanted: Collection[str] | None,
    registered: Callable[[ClusterMetadata], Collection[str]],
    *,
    wait_s: float,
) -> ClusterMetadata:
    """Return metadata with every topic that is registered in ZooKeeper. The request is repeated for
    up to `wait_s`.

    wanted       topics to request; None: all
    registered   returns the names of topics in ZooKeeper that are read and not being deleted; empty
                 if it is not the ZooKeeper of the cluster that answered

    A topic that an ACL hides is left out, as brokers do. Raises BrokerUnreachable for a topic that
    stays unknown.
    """
    deadline = time.monotonic() + wait_s
    attempt = 0
    while True:
        wait_left_s = max(0.0, deadline - time.monotonic())
        metadata = cluster.describe_when_known(wanted, wait_s=wait_left_s)
        missing = _missing_topics(cluster, metadata, registered(metadata))
        if not missing:
            return metadata
        left = deadline - time.monotonic()
        if left <= 0:
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise BrokerUnreachable(
                f"Brokers do not report a topic{more} that is registered in ZooKeeper",
                topic=missing[0],
                action="Check that the brokers and their controller are running, then run again",
            )
        pause(attempt, left)
        attempt += 1


def _missing_topics(
    cluster: Cluster, metadata: ClusterMetadata, registered: Collection[str]
) -> list[str]:
    """Return registered topics that the metadata lacks, except those that an ACL hides."""
    missing = sorted(unknown_topics(metadata, registered))
    if not missing:
        return []
    denied = _denied_topics(cluster, missing)
    return [name for name in missing if name not in denied]


def with_denied_topics(
    cluster: Cluster, metadata: ClusterMetadata, names: Collection[str]
) -> ClusterMetadata:
    """Add those of `names` to the metadata that it lacks because an ACL hides them.

    A request for all topics leaves them out. Used for topics that were read before: without an
    error their records would stay unread.
    """
    missing = sorted(frozenset(names) - metadata.topics.keys())
    if not missing:
        return metadata
    return replace(metadata, topics={**metadata.topics, **_denied_topics(cluster, missing)})


def _denied_topics(cluster: Cluster, names: Collection[str]) -> dict[str, TopicMetadata]:
    denied = {}
    for name, topic in cluster.describe(names).topics.items():
        if topic.refusal and topic.refusal.meaning is Meaning.NOT_ALLOWED:
            denied[name] = topic
    return denied


def configured_family(source: SourceSettings) -> str | None:
    """Return the broker family of `source.broker_version`; None if the key is not set."""
    if source.broker_version is None:
        return None
    return release_name(source.broker_version)


class Discovery:
    """Finds brokers, topics and leaders of a conf. Raises errors of ZooKeeper and of the
    brokers.
    """

    def __init__(self, settings: Settings, zookeeper: ZooKeeper) -> None:
        self._settings, self._source, self._zookeeper = settings, settings.source, zookeeper

    def registered(self) -> Mapping[int, Broker]:
        """Return the brokers in ZooKeeper by id; none if the conf has
        `source.bootstrap_servers`.
        """
        if self._source.bootstrap_servers is not None:
            return {}
        brokers = registered_brokers(
            self._zookeeper, physical=self._source.is_physical, security=self._source.way_in
        )
        return {broker.id: broker for broker in brokers}

    def bootstrap(self) -> list[tuple[str, int]]:
        """Return the addresses of the conf's brokers, else of those in ZooKeeper."""
        if self._source.bootstrap_servers is not None:
            return [split_address(address) for address in self._source.bootstrap_servers]
        return [(broker.host, broker.port) for broker in self.registered().values()]

    def open_cluster(
        self, known: Iterable[TopicPartition] = (), *, connect_timeout_s: float = CONNECT_WITHIN_S
    ) -> Cluster:
        """Open the cluster; the caller closes it. `known`: earlier partitions, so that those of an
        unavailable broker are reported without leader.
        """
        timeout_s = self._source.request_timeout_s
        family = configured_family(self._source)
        if self._source.bootstrap_servers is not None:
            return Cluster(
                self.bootstrap(),
                connect_timeout_s=connect_timeout_s,
                timeout_s=timeout_s,
                broker_type=family,
                security=self._source.way_in,
            )
        return registered_cluster(
            self._zookeeper,
            physical=self._source.is_physical,
            timeout_s=timeout_s,
            broker_type=family,
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
        metadata = describe_registered_topics(
            cluster,
            self._requested_topics(left),
            lambda metadata: self._registered_topics(metadata, left),
            wait_s=self._source.wait_for_leader_s,
        )
        return self.with_known(cluster, metadata, known)

    def with_known(
        self, cluster: Cluster, metadata: ClusterMetadata, known: Collection[str]
    ) -> ClusterMetadata:
        """Add topics of `known` that the conf selects and an ACL hides.

        A topic that is paused as a whole is not added, since it must not stop the run; one that the
        conf names literally is, paused or not.
        """
        missing = set()
        for topic in known:
            if topic not in metadata.topics and self._source.topic_filter.admits(topic):
                missing.add(topic)
        if not missing or self._source.is_physical:
            return metadata
        paused = {pause.topic for pause in self.pauses() if pause.partition is None}
        left_out = paused - set(self._source.topic_filter.literal_names)
        return with_denied_topics(cluster, metadata, missing - left_out)

    def known_topics(self) -> frozenset[str]:
        """Return the topics that the pipeline has read."""
        return PlanLedger(
            self._zookeeper, self._settings.group.id, self._settings.pipeline
        ).topics()

    def compacted(self, topics: Collection[str]) -> frozenset[str]:
        """Return the topics that are compacted by their settings in ZooKeeper, if the brokers are
        registered there.
        """
        if self._source.bootstrap_servers is not None or self._source.is_physical:
            return frozenset()
        return read_compacted(self._zookeeper, topics)

    def creation_ids(self, metadata: ClusterMetadata) -> dict[str, str]:
        """Return ids of the topics' znodes; empty if the conf's ZooKeeper is not the brokers'."""
        if not self.keeps_topics_of(metadata):
            return {}
        return read_creation_ids(self._zookeeper, metadata.topics)

    def creations_of(self, topics: Collection[str]) -> dict[str, str]:
        """Return ids of the znodes of topics by name, in a ZooKeeper known to be the brokers'."""
        return read_creation_ids(self._zookeeper, topics)

    def keeps_topics_of(self, metadata: ClusterMetadata) -> bool:
        """Return True if the conf's ZooKeeper is that of the brokers: by cluster id, before 0.10.1
        by their addresses.
        """
        if self._source.bootstrap_servers is None:
            return True
        if metadata.cluster_id is None:
            brokers = metadata.brokers.values()
            return are_registered(self._zookeeper, brokers, self._source.way_in)
        return metadata.cluster_id == read_cluster_id(self._zookeeper)

    def oldest_unread(
        self, snapshot: Snapshot, unread: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, OldestRecord]:
        """Return the oldest unread record of each partition that has one with a timestamp.

        `unread`: the first unread offset of partitions. Raises as `open_cluster`.
        """
        intervals = {}
        for partition, first in unread.items():
            if not partition.is_physical:
                intervals[partition] = (first, snapshot.readable[partition].end_offset)
        if not intervals:
            return {}
        isolation = self._source.isolation_level
        with self.open_cluster() as cluster:
            return read_oldest(cluster, intervals, snapshot.leaders, isolation=isolation)

    def pauses(self) -> tuple[Pause, ...]:
        """Return the pauses of the pipeline."""
        return read_pauses(
            PlanLedger(self._zookeeper, self._settings.group.id, self._settings.pipeline)
        )

    def identity_of(self, metadata: ClusterMetadata, newest: Plan | None) -> ClusterIdentity:
        """Return name and id of the cluster by the ledger's newest plan.

        Raises as `cluster_identity`, and NotOurTable or TableUnreachable if the table is read.
        """
        reported = metadata.cluster_id
        # With bootstrap servers, ZooKeeper may have the id of another cluster.
        has_brokers = self._source.bootstrap_servers is None and not self._source.is_physical
        if not reported and has_brokers:
            reported = read_cluster_id(self._zookeeper)
        assumed = self._settings.source.assume_cluster_id
        family = self._settings.source.broker_type
        return cluster_identity(newest, reported, assumed, self._is_in_table, family)

    def _is_in_table(self, cluster: str) -> bool:
        from etl.io.delta.loaded_plans import holds_commits

        return holds_commits(
            self._settings.table.path,
            app_id_of(cluster, self._settings.group.id, self._settings.pipeline),
        )

    def _requested_topics(self, left: Collection[str]) -> tuple[str, ...] | None:
        """Return the topics to request: by name if the conf has literal names only, else all
        (None).
        """
        names = self._source.topic_filter.literal_names
        if len(names) < len(self._source.topics):
            return None
        return (*names, *left)

    def _registered_topics(self, metadata: ClusterMetadata, left: Collection[str]) -> list[str]:
        """Return topics in ZooKeeper that are read or left to read, and are not being deleted;
        empty if it is another cluster's. Brokers before 0.10.1 have no id to compare: if the conf
        names the brokers, ZooKeeper counts as another's.
        """
        if metadata.cluster_id is None:
            is_same_cluster = self._source.bootstrap_servers is None
        else:
            is_same_cluster = metadata.cluster_id == read_cluster_id(self._zookeeper)
        if not is_same_cluster:
            return []
        topics = []
        for topic in read_topics(self._zookeeper):
            if self._source.topic_filter.admits(topic) or topic in left:
                topics.append(topic)
        return topics
