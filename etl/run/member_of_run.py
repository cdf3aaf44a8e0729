"""How does a run become a member of its group, in ZooKeeper or in Kafka?

Lives here: the membership of the conf, and what of it the brokers do not support.
Not here: the membership itself (etl/io/zookeeper/group_member.py, etl/io/brokers/group_member.py),
what a run does with it (etl/run/group_member.py).
"""

from __future__ import annotations

from etl.decide.group_assignment import Strategy, Timing
from etl.decide.member_offsets import holds_assignment
from etl.decide.reconcile import reject_missing_topics
from etl.errors import SettingsError
from etl.io.brokers.cluster_requests import chosen_topics, names_of_topics
from etl.io.brokers.group_member import CoordinatedMember
from etl.io.brokers.member_state import MemberTerms
from etl.io.zookeeper.broker_registrations import read_topics
from etl.io.zookeeper.group_member import MemberOptions, ZooKeeperMember
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.kafka.request_values import SupportedMembership
from etl.model.partitions import INTERNAL_TOPICS, GroupProtocol, Membership
from etl.run.discovery import Discovery, configured_family
from etl.settings.sections import GroupSettings, Settings

_OLD_SESSION_S = 30.0
"""Longest session timeout of brokers before 0.10.1 by default (group.max.session.timeout.ms)."""


def zookeeper_member(settings: Settings, zookeeper: ZooKeeper, run_id: str) -> ZooKeeperMember:
    """Return a run as a consumer that is registered in ZooKeeper."""
    group, source = settings.group, settings.source
    hidden = INTERNAL_TOPICS.difference(source.topic_filter.literal_names)
    topics = set()
    for topic in read_topics(zookeeper):
        if source.topic_filter.admits(topic) and topic not in hidden:
            topics.add(topic)
    options = MemberOptions(
        source.broker_type,
        frozenset(topics),
        Strategy(group.join.assignment_strategy[0].value),
        group.join.num_streams,
        group.join.instance_id,
        Timing(group.join.join_timeout_s),
    )
    return ZooKeeperMember(zookeeper, settings.group.id, settings.pipeline, run_id, options)


def coordinated_member(settings: Settings, discovery: Discovery) -> CoordinatedMember:
    """Return a run as a member of a Kafka group. Raises SettingsError if the brokers do not support
    it, TopicMissing without a topic.
    """
    group, source = settings.group, settings.source
    with discovery.open_cluster() as cluster:
        spoken = cluster.first(lambda consumer: consumer.membership())
        unsupported = unspoken(settings, spoken)
        if unsupported:
            raise unsupported
        topics = chosen_topics(discovery.describe(cluster, ()), source.topic_filter).topics
        if not topics:
            reject_missing_topics(settings, (), lambda: names_of_topics(cluster))
    terms = MemberTerms(
        settings.group.id,
        tuple(sorted(topics)),
        tuple(one.value for one in group.join.assignment_strategy),
        group.join.instance_id,
        session_of(group, spoken),
        group.join.rebalance_timeout_s,
        group.join.join_timeout_s,
        answers_in_s=source.request_timeout_s,
        holds_assignment=holds_assignment(settings),
    )
    return CoordinatedMember(
        discovery.bootstrap(),
        terms,
        protocol=group.join.protocol,
        broker_type=configured_family(source),
        security=source.way_in,
    )


def session_of(group: GroupSettings, spoken: SupportedMembership) -> float:
    """Return the session timeout of the conf, else one that the broker accepts by default."""
    if group.join.differs_from_default("session_timeout_s") or spoken.has_rebalance_timeout:
        return group.join.session_timeout_s
    return _OLD_SESSION_S


def unspoken(settings: Settings, spoken: SupportedMembership) -> SettingsError | None:
    """Return which part of the membership is unsupported by the brokers' release; None if all is
    supported.
    """
    if settings.group.membership is not Membership.COORDINATOR:
        return None
    group = settings.group
    brokers = "these brokers have no groups"
    if spoken.release:
        brokers = f"the brokers are Kafka {spoken.release}"
    if not spoken.is_classic:
        return SettingsError(
            f"Joining a group in Kafka needs brokers of 0.9 or later; {brokers}",
            key="group.offsets_storage",
            action="Set group.offsets_storage: zookeeper to join the consumers that are registered "
            "there",
        )
    if group.join.protocol is GroupProtocol.CONSUMER and not spoken.is_consumer:
        return SettingsError(
            f"group.join.protocol: consumer needs brokers of 4.0 or later; {brokers}",
            key="group.join.protocol",
            action="Set group.join.protocol: classic, or check the brokers' version and their "
            "group.version",
        )
    if group.join.instance_id is not None and not spoken.is_static:
        return SettingsError(
            "group.join.instance_id names a static member, which needs brokers of 2.3 or later; "
            f"{brokers}",
            key="group.join.instance_id",
            action="Remove the key: each run is a new member then",
        )
    return None
