"""The group's offsets of a pipeline wherever the conf says that they are kept (`offsets.storage`),
in ZooKeeper, in Kafka, or in both.

What they mean is decided in `offsets_storage`. In both they are moved in Kafka first, and in
ZooKeeper where Kafka took them: a crash in between leaves ZooKeeper behind, as it leaves one place
behind the table, and the next run moves it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from etl.decide.offsets import both, in_zookeeper_alone
from etl.errors import MembershipLost, OffsetMoved, SettingsError
from etl.io.brokers.cluster import Cluster
from etl.io.brokers.group_offsets import FencedCommit, KeptOffsets
from etl.io.zookeeper.group_offsets import ConsumerGroup, OwnedOffsets
from etl.io.zookeeper.session import ZooKeeper
from etl.model.partitions import (
    NOTHING_COMMITTED,
    BrokerPartition,
    Committed,
    OffsetsStorage,
    Share,
    Void,
)
from etl.model.plans import Plan
from etl.run.discovery import Discovery
from etl.settings.sections import Settings


class GroupOffsets:
    """Read, and moved from what a plan saw. Raises what ZooKeeper and the brokers raise, and what
    `ConsumerGroup.commit` does.
    """

    def __init__(self, settings: Settings, zookeeper: ZooKeeper, discovery: Discovery) -> None:
        self.storage, self._discovery = settings.offsets.storage, discovery
        self.group = ConsumerGroup(zookeeper, settings.group, physical=settings.source.is_physical)
        self._owned = OwnedOffsets(zookeeper, settings.group, self.group)
        self._kept = KeptOffsets(settings.group, settings.pipeline)
        self._fenced = FencedCommit(self._kept, tries_for_s=settings.source.timeout_s)

    def committed(
        self,
        logs: Iterable[BrokerPartition],
        cluster: Cluster | None = None,
        *,
        behind: Plan | None = None,
    ) -> dict[BrokerPartition, Committed]:
        """The offset of each log that has one, `behind` the newest plan; `cluster`: where it is
        open already.

        Raises SettingsError for brokers that keep none, and as `ConsumerGroup.committed`.
        """
        asked, seen = list(logs), behind.seen if behind else {}
        if self.storage is OffsetsStorage.ZOOKEEPER:
            return self.group.committed(asked, seen)
        if cluster is None:
            with self._discovery.open_cluster() as opened:
                return self.committed(asked, opened, behind=behind)
        self._refuse_too_old(cluster)
        kafka = self._kept.committed(cluster, asked)
        if self.storage is OffsetsStorage.KAFKA:
            return kafka
        zookeeper = self.group.committed(
            asked, {log: found.in_zookeeper for log, found in seen.items()}
        )
        return {
            log: both(zookeeper.get(log, NOTHING_COMMITTED), kafka.get(log, NOTHING_COMMITTED))
            for log in {**zookeeper, **kafka}
        }

    def hand_over(self, plan: Plan, *, unsure: Callable[[], None]) -> Void | None:
        """Move the offsets of a plan of a coordinator's member, all of them or none; see
        `FencedCommit.hand_over`.
        """
        with self._discovery.open_cluster() as cluster:
            return self._fenced.hand_over(cluster, plan, unsure=unsure)

    def commit(
        self,
        plan: Plan,
        logs: Collection[BrokerPartition] | None = None,
        *,
        share: Callable[[], Share | None] = lambda: None,
    ) -> Mapping[BrokerPartition, Committed]:
        """Move the offsets of `logs` (all that change, by default) to the plan's positions, and say
        what they are now.

        `share`: as which member of a group in Kafka; None: of none.
        """
        if plan.offsets_in is OffsetsStorage.ZOOKEEPER:
            return self.group.commit(plan, logs)
        wanted = sorted(plan.offsets_to_move if logs is None else logs)
        if not wanted:
            return {}
        with self._discovery.open_cluster() as cluster:
            moved = self._kept.move(
                cluster,
                {log: plan.seen[log].in_kafka for log in wanted},
                {log: plan.moved(log).in_kafka for log in wanted},
                share(),
            )
        if plan.offsets_in is OffsetsStorage.DUAL:
            there = self.group.committed(moved)
            left = [
                log
                for log in moved
                if there.get(log, NOTHING_COMMITTED).offset != plan.positions[log]
            ]
            self.group.commit(in_zookeeper_alone(plan), left)
        return {log: plan.moved(log) for log in moved}

    def commit_of_member(
        self,
        plan: Plan,
        logs: Collection[BrokerPartition] | None,
        *,
        share: Callable[[], Share | None],
        unbroken: Callable[[Share], Share | None],
        unsure: Callable[[], None],
    ) -> Mapping[BrokerPartition, Committed]:
        """The same of a plan of a member that moves them behind its append, and of those alone that
        are still its own: what was moved.

        In Kafka by the membership that the plan was made with, as its epoch is by now (`unbroken`),
        never by a later one; `logs`, which a later run finds behind the table, as `share`.
        `unsure`: see `FencedCommit.hand_over`.
        """
        wanted = sorted(plan.offsets_to_move if logs is None else logs)
        if not wanted:
            return {}
        if plan.offsets_in is OffsetsStorage.ZOOKEEPER:
            return self._owned.move(plan, wanted)
        with self._discovery.open_cluster() as cluster:
            if logs is None:
                return {
                    log: plan.moved(log)
                    for some in self._kept.in_commits(wanted, plan.word)
                    if self._is_taken(cluster, _as_handed_over(plan, some), unbroken, unsure)
                    for log in some
                }
            now = share()
            ours = [log for log in wanted if now and log in now.logs]
            try:
                moved = self._kept.move(
                    cluster,
                    {log: plan.seen[log] for log in ours},
                    {log: plan.moved(log) for log in ours},
                    now,
                )
            except (MembershipLost, OffsetMoved):  # another member has them by now
                return {}
        return {log: plan.moved(log) for log in moved}

    def _is_taken(
        self,
        cluster: Cluster,
        plan: Plan,
        unbroken: Callable[[Share], Share | None],
        unsure: Callable[[], None],
    ) -> bool:
        """Whether the coordinator takes the plan's offsets. An epoch passes when others come or go;
        what it was given stays.
        """
        while self._fenced.hand_over(cluster, plan, unsure=unsure):
            now = unbroken(plan.share) if plan.share else None
            if plan.share is None or now is None or now.generation == plan.share.generation:
                return False
            plan = replace(plan, share=replace(plan.share, generation=now.generation))
        return True

    def _refuse_too_old(self, cluster: Cluster) -> None:
        if not cluster.first(lambda consumer: consumer.keeps_offsets()):
            what = (
                f"offsets.storage is {self.storage.value}, and these brokers keep no offsets of groups: "
                f"{cluster.first(lambda consumer: consumer.introduction())}"
            )
            raise SettingsError(
                what,
                key="offsets.storage",
                check="zookeeper; Kafka keeps them itself from 0.8.2 on",
            )


def _as_handed_over(plan: Plan, logs: Collection[BrokerPartition]) -> Plan:
    """The plan of a member as one whose offsets of these logs are handed over now."""
    return replace(
        plan,
        share=replace(plan.share, logs=frozenset(logs)) if plan.share else None,
        handed_over=False,
    )
