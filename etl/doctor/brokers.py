"""The brokers and their topics, as they are at this moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from etl.decide.reconcile import refuse_missing_topics, refuse_topic_that_reads_as_null
from etl.decide.set_offsets import paused_logs
from etl.doctor.check import Findings, Line, advice, failed, ok
from etl.errors import BrokerUnreachable, EtlError, LedgersDisagree
from etl.io.brokers.client import SimpleConsumer
from etl.io.brokers.cluster import Cluster, chosen_topics
from etl.io.zookeeper.group_offsets import ConsumerGroup
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.registry import read_partition_states, read_replicas
from etl.model.partitions import Broker, BrokerPartition, uncounted
from etl.model.plans import Plan
from etl.run.discovery import Discovery, said_generation
from etl.settings.choices import OnNoLeader

_CONNECT_WITHIN_S = 5.0
_MOST_AT_A_TIME = 16
_TOLD_WITHIN_S = 5.0
"""A broker that has just started knows no topic yet."""
_NAMED = 3
"""Of many things the first few are named."""
_PHYSICAL = (
    "offsets are byte positions: logs are read up to what is flushed, and cut where segments begin; such brokers tell neither timestamps "
    "nor retention (what expires soon is known by how log starts move), and have no groups, transactions and compaction"
)
"""What is known of topics of Jafka and Kafka 0.7, and what is not."""


def cluster(name: str, findings: Findings) -> Iterator[Line]:
    """Whether any broker answers, and what the cluster is called."""
    discovery, source = Discovery(findings.settings, findings.zookeeper), findings.settings.source
    newest = _newest(findings)
    with discovery.open_cluster(
        _known_logs(findings), connect_timeout_s=_CONNECT_WITHIN_S
    ) as asked:
        told = asked.describe_once_told(None, wait_s=_TOLD_WITHIN_S)
        findings.metadata = discovery.with_known(
            asked, told, {*source.topics.literal_names, *(newest.topics if newest else ())}
        )
    called = discovery.name_of(findings.metadata, newest)
    said = (
        f"{called.name} by the conf, id {called.cluster_id}"
        if called.cluster_id
        else f"id {called.name}"
    )
    yield ok(
        name,
        f"{said}; brokers: {len(findings.metadata.brokers)}, topics: {len(findings.metadata.topics)}",
    )


def _newest(findings: Findings) -> Plan | None:
    """The newest plan, by which the cluster is called. What ails the ledger is said of the ledger."""
    with contextlib.suppress(LedgersDisagree):
        return (
            PlanLedger(findings.zookeeper, findings.settings.group, findings.settings.pipeline)
            .read_ledger()
            .newest
        )
    return None


def _known_logs(findings: Findings) -> set[BrokerPartition]:
    """Physical logs that the group has committed offsets of: of a broker that is away nobody else
    tells.
    """
    source = findings.settings.source
    return (
        consumers_of(findings).logs_with_offsets(source.topics.admits)
        if source.is_physical
        else set()
    )


def consumers_of(findings: Findings) -> ConsumerGroup:
    """The group's nodes in ZooKeeper."""
    return ConsumerGroup(
        findings.zookeeper, findings.settings.group, physical=findings.settings.source.is_physical
    )


def each_broker(name: str, findings: Findings) -> Iterator[Line]:
    """Every broker at the address by which executors would look for it; also one that is registered
    and that the others miss.
    """
    brokers = {
        **Discovery(findings.settings, findings.zookeeper).registered(),
        **findings.metadata.brokers,
    }
    leading, source = dict[int, int](), findings.settings.source
    for leader in findings.metadata.leaders.values():
        leading[leader.broker.id] = leading.get(leader.broker.id, 0) + 1

    def ask(broker: Broker) -> str | EtlError:
        try:
            with SimpleConsumer(
                broker.host,
                broker.port,
                connect_timeout_s=_CONNECT_WITHIN_S,
                timeout_s=source.timeout_s,
                generation=broker.generation or said_generation(source),
                security=source.way_in,
            ) as asked:
                introduction = asked.introduction()
                asked.refuse_other_release(source.isolation)
                return introduction
        except EtlError as error:
            return error

    with ThreadPoolExecutor(_MOST_AT_A_TIME) as pool:
        for broker, answer in zip(brokers.values(), pool.map(ask, brokers.values()), strict=True):
            if isinstance(answer, BrokerUnreachable):
                findings.silent_brokers.add(broker.id)
            yield _broker(f"{name} {broker.id}", broker, answer, leading.get(broker.id, 0))


def _broker(name: str, broker: Broker, answer: str | EtlError, leads: int) -> Line:
    if isinstance(answer, BrokerUnreachable):
        check = f"{answer.check}; partitions led: {leads}; from here and from every executor it is asked by this address"
        return failed(name, BrokerUnreachable(answer.what, check=check, **answer.where))
    if isinstance(answer, EtlError):
        return failed(name, answer)
    return ok(name, f"{broker.host}:{broker.port}: {answer}, partitions led: {leads}")


def topics(name: str, findings: Findings) -> Iterator[Line]:
    """The topics that the conf names: there, readable, led, and whether we may see how they are
    cleaned up.
    """
    settings = findings.settings
    there = tuple(findings.metadata.topics)
    metadata = findings.metadata = chosen_topics(findings.metadata, settings.source.topics)
    refuse_missing_topics(settings, metadata.topics, lambda: there)
    refuse_topic_that_reads_as_null(settings, metadata.topics)
    missing = uncounted(metadata.leaderless, metadata.leaders)
    if missing:
        what = f"their brokers are there and count fewer partitions now: {some(list(map(str, sorted(missing))))}"
        yield advice(
            name,
            what,
            "whether these brokers lost directories of their logs; a run leaves the partitions for a later one",
        )
    pauses = Discovery(settings, findings.zookeeper).pauses()
    leaderless = sorted(
        metadata.leaderless - missing - paused_logs(metadata.leaderless, pauses).keys()
    )
    if leaderless:
        yield _leaderless(name, leaderless, findings)
    if settings.source.is_physical:
        yield ok(name, _PHYSICAL)
    else:
        yield from _untold(name, findings)
    yield ok(
        name,
        f"{some(sorted(metadata.topics))}; partitions: {sum(len(t.partitions) for t in metadata.topics.values())}",
    )


def _untold(name: str, findings: Findings) -> Iterator[Line]:
    """Topics whose configuration we may not see: a run cannot know what offsets mean that are
    missing from them.
    """
    asked = [
        (broker.host, broker.port)
        for broker in findings.metadata.brokers.values()
        if broker.id not in findings.silent_brokers
    ]
    if not asked:
        return
    source, names = findings.settings.source, findings.metadata.topics
    with ask_brokers(asked, findings) as cluster:
        told, tells = (
            cluster.retention(names),
            cluster.first(lambda consumer: consumer.tells_cleanup()),
        )
    compacted = Discovery(findings.settings, findings.zookeeper).compacted(
        names.keys() - told.keys()
    )
    untold = sorted(
        topic
        for topic in names
        if topic not in told and topic not in compacted and not source.says_compacted(topic)
    )
    if untold:
        what = f"the brokers do not tell how {len(untold)} topics are cleaned up: {some(untold)}"
        check = (
            "the ACL DescribeConfigs on them"
            if tells
            else (
                "nothing, where the brokers' log.cleanup.policy is delete, as it is by default: before 0.11 they tell nobody; those that are "
                "compacted are named in source.compacted_topics"
            )
        )
        yield advice(
            name,
            what,
            f"{check}: where one is compacted, a run takes what compaction removed for lost",
        )


def _leaderless(name: str, leaderless: list[BrokerPartition], findings: Findings) -> Line:
    source = findings.settings.source
    if source.is_physical:
        brokers = ", ".join(
            map(str, sorted({log.broker_id for log in leaderless if log.broker_id is not None}))
        )
        what = f"{len(leaderless)} partitions are of brokers that are away ({brokers}): {some(list(map(str, leaderless)))}"
        return advice(name, what, "these brokers; a run leaves the partitions for a later one")
    what = f"{len(leaderless)} partitions have no leader: {some([f'{log}{held}' for log, held in _held(leaderless, findings).items()])}"
    check = "the brokers that hold them"
    if source.on_no_leader is OnNoLeader.SKIP:
        return advice(name, what, f"{check}; a run leaves them out (source.on_no_leader: skip)")
    return failed(name, BrokerUnreachable(what, check=f"{check}, or source.on_no_leader: skip"))


def _held(leaderless: list[BrokerPartition], findings: Findings) -> dict[BrokerPartition, str]:
    """What ZooKeeper, where the cluster is registered there, says of who holds these logs."""
    if findings.settings.source.bootstrap:
        return dict.fromkeys(leaderless, "")
    named = leaderless[:_NAMED]
    replicas, states = (
        read_replicas(findings.zookeeper, named),
        read_partition_states(findings.zookeeper, named),
    )
    held = dict.fromkeys(leaderless, "")
    for log in named:
        if log in replicas:
            in_sync = f", in sync were {_ids(states[log].in_sync)}" if log in states else ""
            held[log] = f" (on brokers {_ids(replicas[log])}{in_sync})"
    return held


def _ids(brokers: tuple[int, ...]) -> str:
    return " ".join(map(str, brokers)) or "none"


def ask_brokers(addresses: list[tuple[str, int]], findings: Findings) -> Cluster:
    """A cluster of these addresses, as `doctor` asks it."""
    source = findings.settings.source
    return Cluster(
        addresses,
        connect_timeout_s=_CONNECT_WITHIN_S,
        timeout_s=source.timeout_s,
        generation=said_generation(source),
        security=source.way_in,
    )


def some(names: tuple[str, ...] | list[str]) -> str:
    """The first of many names, and how many more there are."""
    return ", ".join(names[:_NAMED]) + (
        f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    )
