"""What a consumer stands on: brokers, by their addresses or by what ZooKeeper has of them; its
group's offsets; its membership.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from etl.io.brokers.cluster import Cluster
from etl.io.clusters import registered_cluster
from etl.io.zookeeper.session import ZooKeeper
from etl.model.partitions import BrokerFamily, Membership, OffsetsStorage
from etl.streams.conf import Conf
from etl.streams.groups import Group, Subscription
from etl.streams.kept import Kept, KeptInKafka, KeptInZooKeeper
from etl.streams.members import GroupMember, MemberInZooKeeper, MemberWithCoordinator, Told

OpenMember = Callable[[Subscription, Told], GroupMember]
"""A new membership, of whoever is told what becomes of its share."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What a consumer stands on."""

    cluster: Cluster
    kept: Kept | None = None
    """The group's offsets, where there is a group."""
    group: Group | None = None
    open_member: OpenMember | None = None
    """A membership of it."""


def open_cluster(conf: Conf, until: ExitStack) -> Opened:
    """The cluster, and the group where there is one; both end with `until`. Raises SettingsError,
    and what ZooKeeper and its registrations do."""
    group = conf.checked()
    zookeeper = (
        until.enter_context(ZooKeeper(conf.zookeeper, access=conf.access))
        if conf.zookeeper
        else None
    )
    if conf.bootstrap is not None:
        cluster = Cluster(
            conf.addresses,
            timeout_s=conf.timeout_s,
            generation=conf.generation,
            security=conf.way_in,
        )
    elif zookeeper is not None:
        cluster = registered_cluster(
            zookeeper,
            physical=conf.is_physical,
            timeout_s=conf.timeout_s,
            generation=conf.generation,
            security=conf.way_in,
        )
    until.enter_context(cluster)
    if group is None:
        return Opened(cluster)
    if conf.storage is OffsetsStorage.KAFKA or zookeeper is None:
        kept: Kept = KeptInKafka(cluster, group.name)
    else:
        kept = KeptInZooKeeper(zookeeper, group.name, physical=conf.is_physical)

    def open_member(wanted: Subscription, told: Told) -> GroupMember:
        if group.membership is Membership.ZOOKEEPER:
            return MemberInZooKeeper(
                conf.zookeeper or "", conf.access, group, BrokerFamily(conf.dialect), wanted, told
            )
        return MemberWithCoordinator(
            cluster, group, wanted, told, timeout_s=conf.timeout_s, generation=conf.generation
        )

    return Opened(cluster, kept, group, open_member)
