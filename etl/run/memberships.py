"""What a run joins under `ownership.mode: join`, made from its conf: old consumers in ZooKeeper, or
Kafka's own group.
"""

from __future__ import annotations

from etl.decide.group_assignment import Strategy, Timing
from etl.decide.group_commits import moves_behind_append
from etl.decide.reconcile import refuse_missing_topics
from etl.errors import SettingsError
from etl.io.brokers.cluster import chosen_topics, names_of_topics
from etl.io.brokers.group_member import CoordinatedMember
from etl.io.brokers.member_state import MemberTerms
from etl.io.zookeeper.group_member import MemberOptions, ZooKeeperMember
from etl.io.zookeeper.registry import read_topics
from etl.io.zookeeper.session import ZooKeeper
from etl.kafka.messages import SpokenMembership
from etl.model.partitions import INTERNAL_TOPICS, GroupProtocol, Membership
from etl.run.discovery import Discovery, said_generation
from etl.settings.sections import OwnershipSettings, Settings

_OLD_SESSION_S = 30.0
"""The longest session that brokers before 0.10.1 take unless they are told otherwise
(group.max.session.timeout.ms).
"""


def zookeeper_member(settings: Settings, zookeeper: ZooKeeper, run_id: str) -> ZooKeeperMember:
    """A run as one of the consumers that are registered in ZooKeeper."""
    ownership, source = settings.ownership, settings.source
    hidden = INTERNAL_TOPICS.difference(source.topics.literal_names)
    topics = frozenset(
        topic
        for topic in read_topics(zookeeper)
        if source.topics.admits(topic) and topic not in hidden
    )
    options = MemberOptions(
        source.dialect,
        topics,
        Strategy(ownership.strategy[0].value),
        ownership.threads,
        ownership.member_id,
        Timing(ownership.join_timeout_s, ownership.backoff_s),
    )
    return ZooKeeperMember(zookeeper, settings.group, settings.pipeline, run_id, options)


def coordinated_member(settings: Settings, discovery: Discovery) -> CoordinatedMember:
    """A run as a member of Kafka's own group. Raises SettingsError where the brokers have none
    such, TopicMissing without a topic.
    """
    ownership, source = settings.ownership, settings.source
    with discovery.open_cluster() as cluster:
        spoken = cluster.first(lambda consumer: consumer.membership())
        if refusal := unspoken(settings, spoken):
            raise refusal
        topics = chosen_topics(discovery.describe(cluster, ()), source.topics).topics
        if not topics:
            refuse_missing_topics(settings, (), lambda: names_of_topics(cluster))
    terms = MemberTerms(
        settings.group,
        tuple(sorted(topics)),
        tuple(one.value for one in ownership.strategy),
        ownership.member_id,
        session_of(ownership, spoken),
        ownership.rebalance_timeout_s,
        ownership.join_timeout_s,
        answers_in_s=source.timeout_s,
        holds_shares=holds_shares(settings),
    )
    return CoordinatedMember(
        discovery.bootstrap(),
        terms,
        protocol=ownership.protocol,
        generation=said_generation(source),
        security=source.way_in,
    )


def holds_shares(settings: Settings) -> bool:
    """Whether a run keeps what the group wants back until its rows are in the table and its offsets
    moved (KIP-848): a classic group would stand still for as long.
    """
    return moves_behind_append(settings) and settings.ownership.protocol is GroupProtocol.CONSUMER


def session_of(ownership: OwnershipSettings, spoken: SpokenMembership) -> float:
    """What the conf says, and where it says nothing no more than the broker takes by default."""
    is_meant = ownership.is_said("session_timeout_s") or spoken.has_rebalance_timeout
    return ownership.session_timeout_s if is_meant else _OLD_SESSION_S


def unspoken(settings: Settings, spoken: SpokenMembership) -> SettingsError | None:
    """What of a membership with a coordinator the brokers are too old for, with their release;
    None: nothing, or it is none such.
    """
    if settings.membership is not Membership.COORDINATOR:
        return None
    ownership = settings.ownership
    is_of = (
        f"the brokers are Kafka {spoken.release}"
        if spoken.release
        else "these brokers keep no groups"
    )
    if not spoken.is_classic:
        check = "membership: zookeeper, where the group's consumers are registered"
        return SettingsError(
            f"membership: coordinator takes brokers of 0.9 or later, and {is_of}",
            key="ownership.membership",
            check=check,
        )
    if ownership.protocol is GroupProtocol.CONSUMER and not spoken.is_consumer:
        check = "protocol: classic; or the brokers' version and their group.version"
        return SettingsError(
            f"protocol: consumer takes brokers of 4.0 or later, and {is_of}",
            key="ownership.protocol",
            check=check,
        )
    if ownership.member_id is not None and not spoken.is_static:
        what = f"member_id names a static member, which takes brokers of 2.3 or later, and {is_of}"
        return SettingsError(
            what, key="ownership.member_id", check="leave it out: each run is another member then"
        )
    return None
