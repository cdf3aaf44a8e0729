"""What do checks find at brokers, the group and ZooKeeper?

Brokers and topics; drivers, consumers and owners of the group, and pipelines that share a topic;
the mirror group, whose offsets are not read because looking up a coordinator may create a topic;
ZooKeeper's servers, request size, chroot and permissions; ACLs against the conf.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from etl.commands.doctor_machine import Fact, Findings, Line, Verdict, advice, failed, ok
from etl.decide.group_commits import is_member
from etl.decide.group_ownership import (
    foreign_consumers,
    foreign_owners,
    members_as_owners,
    on_owned,
)
from etl.decide.reconcile import (
    reject_missing_topics,
    reject_null_partition_value,
    reject_retired,
    reject_shared_topics,
)
from etl.decide.set_offsets import paused_logs
from etl.errors import (
    BrokerUnreachable,
    EtlError,
    LedgersDisagree,
    Owned,
    PermissionDenied,
    SettingsError,
)
from etl.io.brokers.client import SimpleConsumer
from etl.io.brokers.cluster import Cluster, chosen_topics
from etl.io.zookeeper.connection import describe_identity, id_of
from etl.io.zookeeper.group_offsets import ConsumerGroup
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.permissions import (
    ServerAnswer,
    ask_server,
    children_shown,
    kept_by,
    may_read,
    may_write,
    nearest,
    refused_below,
    takes_request,
    writers_of,
)
from etl.io.zookeeper.registry import read_partition_states, read_replicas
from etl.io.zookeeper.session import NODE_MAX_BYTES, ZooKeeper
from etl.ledger import paths, registrations
from etl.ledger.paths import PipelinePaths
from etl.model.partitions import Broker, BrokerPartition, KafkaGroup, Membership, uncounted
from etl.model.plans import Plan
from etl.model.security import EVERYBODY, Acl
from etl.model.snapshot import Ledger
from etl.run.discovery import Discovery, configured_family
from etl.run.live import unspoken
from etl.settings.choices import OnActiveMembers, OnNoLeader, OnOwned, OwnershipMode, split_address

_CONNECT_WITHIN_S = 5.0
_MOST_AT_A_TIME = 16
_TOLD_WITHIN_S = 5.0
"""A broker that has just started knows no topic yet."""
_NAMED = 3
"""Number of things named in a line."""
_PHYSICAL = (
    "offsets are byte positions: logs are read up to what is flushed, and cut where segments begin; such brokers tell neither timestamps "
    "nor retention (what expires soon is known by how log starts move), and have no groups, transactions and compaction"
)
"""What is known of topics of Jafka and Kafka 0.7, and what is not."""


def cluster(name: str, findings: Findings) -> Iterator[Line]:
    """Check whether any broker answers, and the cluster's name."""
    discovery, source = Discovery(findings.settings, findings.zookeeper), findings.settings.source
    newest = _newest(findings)
    with discovery.open_cluster(
        _known_logs(findings), connect_timeout_s=_CONNECT_WITHIN_S
    ) as opened:
        metadata = opened.describe_when_known(None, wait_s=_TOLD_WITHIN_S)
        findings.metadata = discovery.with_known(
            opened,
            metadata,
            {*source.topic_filter.literal_names, *(newest.topics if newest else ())},
        )
    called = discovery.name_of(findings.metadata, newest)
    if called.cluster_id:
        description = f"{called.name} by the conf, id {called.cluster_id}"
    else:
        description = f"id {called.name}"
    yield ok(
        name,
        f"{description}; brokers: {len(findings.metadata.brokers)}, topics: {len(findings.metadata.topics)}",
    )


def _newest(findings: Findings) -> Plan | None:
    """Return the newest plan, for the cluster's name. Errors of the ledger are another check's."""
    with contextlib.suppress(LedgersDisagree):
        return (
            PlanLedger(findings.zookeeper, findings.settings.group.id, findings.settings.pipeline)
            .read_ledger()
            .newest
        )
    return None


def _known_logs(findings: Findings) -> set[BrokerPartition]:
    """Return Jafka partitions with committed offsets; nothing else knows those of an unavailable
    broker.
    """
    source = findings.settings.source
    if source.is_physical:
        return consumers_of(findings).logs_with_offsets(source.topic_filter.admits)
    return set()


def consumers_of(findings: Findings) -> ConsumerGroup:
    """The group's nodes in ZooKeeper."""
    return ConsumerGroup(
        findings.zookeeper,
        findings.settings.group.id,
        physical=findings.settings.source.is_physical,
    )


def each_broker(name: str, findings: Findings) -> Iterator[Line]:
    """Check each broker at the address that executors use, also one that is registered and that the
    others miss.
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
                timeout_s=source.request_timeout_s,
                generation=broker.generation or configured_family(source),
                security=source.way_in,
            ) as consumer:
                introduction = consumer.introduction()
                consumer.reject_other_release(source.isolation_level)
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
        action = f"{answer.action}; partitions led: {leads}; from here and from every executor it is asked by this address"
        return failed(name, BrokerUnreachable(answer.message, action=action, **answer.where))
    if isinstance(answer, EtlError):
        return failed(name, answer)
    return ok(name, f"{broker.host}:{broker.port}: {answer}, partitions led: {leads}")


def topics(name: str, findings: Findings) -> Iterator[Line]:
    """The topics that the conf names: there, readable, led, and whether we may see how they are
    cleaned up.
    """
    settings = findings.settings
    there = tuple(findings.metadata.topics)
    metadata = findings.metadata = chosen_topics(findings.metadata, settings.source.topic_filter)
    reject_missing_topics(settings, metadata.topics, lambda: there)
    reject_null_partition_value(settings, metadata.topics)
    missing = uncounted(metadata.leaderless, metadata.leaders)
    if missing:
        message = f"their brokers are there and count fewer partitions now: {some(list(map(str, sorted(missing))))}"
        yield advice(
            name,
            message,
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
    """Report topics whose configuration is hidden from us: the meaning of their missing offsets is
    unknown.
    """
    addresses = [
        (broker.host, broker.port)
        for broker in findings.metadata.brokers.values()
        if broker.id not in findings.silent_brokers
    ]
    if not addresses:
        return
    source, names = findings.settings.source, findings.metadata.topics
    with ask_brokers(addresses, findings) as cluster:
        retention, tells = (
            cluster.retention(names),
            cluster.first(lambda consumer: consumer.has_describe_configs()),
        )
    compacted = Discovery(findings.settings, findings.zookeeper).compacted(
        names.keys() - retention.keys()
    )
    unknown = sorted(
        topic
        for topic in names
        if topic not in retention
        and topic not in compacted
        and not source.is_assumed_compacted(topic)
    )
    if unknown:
        message = (
            f"the brokers do not tell how {len(unknown)} topics are cleaned up: {some(unknown)}"
        )
        if tells:
            action = "the ACL DescribeConfigs on them"
        else:
            action = (
                "nothing, where the brokers' log.cleanup.policy is delete, as it is by default: before 0.11 they tell nobody; those that are "
                "compacted are named in source.assume_compacted"
            )
        yield advice(
            name,
            message,
            f"{action}: where one is compacted, a run takes what compaction removed for lost",
        )


def _leaderless(name: str, leaderless: list[BrokerPartition], findings: Findings) -> Line:
    source = findings.settings.source
    if source.is_physical:
        brokers = ", ".join(
            map(str, sorted({log.broker_id for log in leaderless if log.broker_id is not None}))
        )
        message = f"{len(leaderless)} partitions are of brokers that are away ({brokers}): {some(list(map(str, leaderless)))}"
        return advice(name, message, "these brokers; a run leaves the partitions for a later one")
    message = f"{len(leaderless)} partitions have no leader: {some([f'{log}{held}' for log, held in _held(leaderless, findings).items()])}"
    action = "Check the brokers that host their replicas"
    if source.on_no_leader is OnNoLeader.SKIP:
        return advice(name, message, f"{action}. A run leaves them out (source.on_no_leader: skip)")
    return failed(
        name, BrokerUnreachable(message, action=f"{action}, or set source.on_no_leader: skip")
    )


def _held(leaderless: list[BrokerPartition], findings: Findings) -> dict[BrokerPartition, str]:
    """Report which brokers hold these partitions, by ZooKeeper."""
    if findings.settings.source.bootstrap_servers:
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
    """Return a cluster of these addresses, with the client id of `doctor`."""
    source = findings.settings.source
    return Cluster(
        addresses,
        connect_timeout_s=_CONNECT_WITHIN_S,
        timeout_s=source.request_timeout_s,
        generation=configured_family(source),
        security=source.way_in,
    )


def some(names: tuple[str, ...] | list[str]) -> str:
    """The first of many names, and how many more there are."""
    return ", ".join(names[:_NAMED]) + (
        f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    )


def group(name: str, findings: Findings) -> Iterator[Line]:
    """Check for other drivers of this pipeline, other consumers of the group, pipelines that share
    a topic.
    """
    settings, names = findings.settings, set(findings.metadata.topics)
    paths = PipelinePaths(settings.group.id, settings.pipeline)
    found = findings.zookeeper.read(paths.driver)
    driver = registrations.parse_driver(found[0]) if found else None
    if found:
        yield ok(
            name,
            f"a run of this pipeline is at work: {driver or 'by a driver that does not say who it is'}",
        )
    else:
        yield from _others(name, findings, names)
    left = consumers_of(findings).offsets_of_the_other_family(sorted(names))
    if left:
        message = f"{len(left)} of the group's offsets are of the other family of brokers, the first of {left[0]}: they are left alone"
        yield advice(
            name,
            message,
            "nothing, where the group read these topics from such brokers before; else source.broker_type",
        )
    yield from _other_pipelines(
        name, PlanLedger(findings.zookeeper, settings.group.id, settings.pipeline), names
    )


def _other_pipelines(name: str, ledger: PlanLedger, names: set[str]) -> Iterator[Line]:
    """Return what `refusals.reject_retired_or_shared` would reject."""
    try:
        reject_retired(Ledger(retired=ledger.read_retirement()))
        reject_shared_topics(names, ledger.other_pipelines(), has_plans=bool(ledger.plan_numbers()))
    except EtlError as refusal:
        yield failed(name, refusal)


def _others(name: str, findings: Findings, names: set[str]) -> Iterator[Line]:
    settings = findings.settings
    members, (in_kafka, refusal) = consumers_of(findings), _in_kafka(findings)
    if in_kafka.unknown:
        message = f"Whether consumers of Kafka's own group {settings.group.id} are alive is not known: {in_kafka.unknown}"
        yield advice(
            name,
            message,
            "that nobody consumes under this name; ACLs: Describe for the group, from Kafka 0.11 on",
        )
    logs = [p.log for topic in findings.metadata.topics.values() for p in topic.partitions]
    others = foreign_consumers(members.live_consumers(), settings)
    is_coordinated = settings.group.membership is Membership.COORDINATOR
    with_us, elsewhere = (
        (tuple(sorted(in_kafka.members)), others)
        if is_coordinated
        else (others, tuple(in_kafka.members))
    )
    if refusal:
        yield failed(name, refusal)
    if is_member(settings) and not elsewhere:
        yield ok(
            name,
            f"{settings.group.id}: a run shares with {f'live consumers: {some(with_us)}' if with_us else 'nobody: none is alive'}",
        )
        return
    live = (*others, *sorted(in_kafka.members))
    owners = foreign_owners(
        {**members_as_owners(in_kafka, logs), **members.owners(names)}, settings
    )
    action = "Check that they are stopped; a crashed one leaves after its session timeout"
    if live:
        message = f"{len(live)} live consumers are registered in the group: {some(live)}"
        allowed = settings.group.on_active_members is OnActiveMembers.SKIP
        yield (
            advice(name, message, "nothing: a run takes what none of them owns")
            if allowed
            else failed(name, Owned(message, action=action))
        )
    if owners:
        log, owner = min(owners.items())
        message = f"{len(owners)} partitions are owned, {log} by {owner}"
        policy = on_owned(settings.group)
        stops = policy is OnOwned.FAIL
        word = f"nothing: a run {'waits for them' if policy is OnOwned.WAIT else 'leaves these to them'}"
        yield failed(name, Owned(message, action=action)) if stops else advice(name, message, word)
    if not live and not owners:
        yield ok(name, f"{settings.group.id}: no live consumer, no owner, no driver")


def _in_kafka(findings: Findings) -> tuple[KafkaGroup, SettingsError | None]:
    """Report members of Kafka's group, and why no run can be one if it should."""
    settings, brokers, refusal = findings.settings, findings.metadata.brokers.values(), None
    with ask_brokers([(broker.host, broker.port) for broker in brokers], findings) as answer:
        if settings.group.membership is Membership.COORDINATOR:
            refusal = unspoken(settings, answer.first(lambda consumer: consumer.membership()))
        return answer.members_of(settings.group.id, brokers), refusal


def mirror_group(name: str, findings: Findings) -> Iterator[Line]:
    """Check whether brokers keep group offsets, and whether the mirror group is consumed. No line
    without one.
    """
    wanted = findings.settings.group.mirror_group
    if wanted is None:
        return
    if Fact.CLUSTER not in findings.established:
        yield Line(name, Verdict.NOT_CHECKED, f"first {Fact.CLUSTER.value}, see above")
        return
    brokers = findings.metadata.brokers.values()
    with ask_brokers([(broker.host, broker.port) for broker in brokers], findings) as answer:
        keeps, members = (
            answer.first(lambda consumer: consumer.keeps_offsets()),
            answer.members_of(wanted, brokers),
        )
    if not keeps:
        message = "These brokers keep no offsets of groups: that came with Kafka 0.8.2"
        yield failed(
            name,
            SettingsError(
                message, key="group.mirror_group", action="Leave the key out; runs work without it"
            ),
        )
    elif members.members:
        message = f"{len(members.members)} live consumers are in group {wanted}: {', '.join(sorted(members.members)[:3])}"
        yield advice(
            name,
            message,
            "group.mirror_group: a name that nobody consumes under; runs leave this group's offsets alone and say so",
        )
    elif members.unknown:
        message = f"Whether consumers of group {wanted} are alive is not known: {members.unknown}"
        yield advice(
            name,
            message,
            "that nobody consumes under this name; ACLs: Read and Describe for the group",
        )
    else:
        yield ok(
            name,
            f"{wanted}: nobody consumes under this name; positions are written there after each run",
        )


_REQUEST_BYTES = NODE_MAX_BYTES + 20_000
"""The largest request of a run, with its paths."""
_TOPICS_TRIED = 20
"""Number of topics whose znodes are tested; topics of a group rarely have different ACLs."""

_PLACES_SHOWN = 3
_CHILDREN, _WRITE = "children", "write"
"""What a run does to a znode: create and delete children, or change its data."""


def servers(name: str, findings: Findings) -> Iterator[Line]:
    """Each server of `zookeeper.connect` by itself, and then the session that all other questions
    go through.
    """
    zookeeper = findings.settings.zookeeper
    hosts = [
        split_address(address.strip()) for address in zookeeper.connect.partition("/")[0].split(",")
    ]

    def ask(address: tuple[str, int]) -> ServerAnswer | EtlError:
        try:
            return ask_server(
                *address,
                session_timeout_s=zookeeper.session_timeout_s,
                timeout_s=zookeeper.session_timeout_s,
                access=zookeeper.access,
            )
        except EtlError as shut:
            return shut

    with ThreadPoolExecutor(len(hosts)) as pool:
        answers = list(pool.map(ask, hosts))
    shut = [answer for answer in answers if isinstance(answer, EtlError)]
    if len(shut) == len(answers):
        raise shut[0]
    timeouts = {
        "session_timeout_s": zookeeper.session_timeout_s,
        "connect_timeout_s": zookeeper.session_timeout_s,
    }
    findings.zookeeper = findings.closing.enter_context(
        ZooKeeper(zookeeper.connect, **timeouts, access=zookeeper.access)
    )
    for answer in answers:
        yield _server(name, answer, zookeeper.session_timeout_s)


def _server(name: str, answer: ServerAnswer | EtlError, asked_s: float) -> Line:
    if isinstance(answer, EtlError):
        return advice(
            name, str(failed(name, answer).found), f"{answer.action}; other servers let us in"
        )
    if answer.version:
        version = f"ZooKeeper {answer.version}, {answer.mode}"
    else:
        version = "version not known (it does not answer srvr)"
    found = f"{answer.address}: {version}, session timeout {answer.granted_s:g} s"
    if answer.granted_s == asked_s:
        return ok(name, found)
    limit = "minSessionTimeout" if answer.granted_s > asked_s else "maxSessionTimeout"
    return advice(
        name,
        f"{found}, where {asked_s:g} s were asked for",
        f"zookeeper.session_timeout_s, or {limit} of the server",
    )


def request_limit(name: str, findings: Findings) -> Iterator[Line]:
    """Check the server's request limit: a rejected request looks like a lost connection, so one
    that only reads is tried.
    """
    if takes_request(findings.zookeeper, _REQUEST_BYTES):
        yield ok(name, f"requests of {_REQUEST_BYTES:,} bytes pass, and no run sends larger ones")
        return
    message = f"ZooKeeper closes the connection at a request of {_REQUEST_BYTES:,} bytes"
    action = "Check jute.maxbuffer of every server: 1048575, its default, or more"
    raise SettingsError(message, connect=findings.zookeeper.hosts, action=action)


def chroot(name: str, findings: Findings) -> Iterator[Line]:
    """Check that the chroot holds a cluster; it need not if the conf names the brokers."""
    zookeeper, given = findings.zookeeper, findings.settings.source.bootstrap_servers
    place = zookeeper.chroot or "/"
    if given:
        yield ok(
            name,
            f"{place} holds the ledger only: the brokers are those of source.bootstrap_servers",
        )
        return
    brokers = Discovery(findings.settings, zookeeper).registered()
    registered = len(zookeeper.children(paths.BROKER_IDS) or brokers)
    if len(brokers) < registered:
        wanted = findings.settings.source.way_in
        listener = f"listener of {wanted.protocol.value}" + (
            f" by the name {wanted.listener}" if wanted.listener else ""
        )
        found = f"{registered - len(brokers)} of {registered} brokers registered under {place} have no {listener}"
        yield advice(name, found, "their `listeners`: partitions that they lead cannot be read")
    yield ok(name, f"{place}; registered brokers: {len(brokers)}")


def permissions(name: str, findings: Findings) -> Iterator[Line]:
    """Check permissions for each znode that a run reads, writes, creates or deletes, or for its
    parent.
    """
    with findings.zookeeper.at_root() as whole:
        tried = {
            (there := nearest(whole, path), wants if there == path else _CHILDREN)
            for path, wants in _wanted(findings, whole)
        }
        refused = [
            denied for path, wants in sorted(tried) if (denied := _denied(whole, path, wants))
        ]
    if refused:
        action = f"Check getAcl of these znodes; setAcl must let us do it: we are {describe_identity(findings.settings.zookeeper.access)}"
        raise PermissionDenied(
            f"ZooKeeper does not let us {'; '.join(refused)}",
            connect=findings.zookeeper.hosts,
            action=action,
        )
    places = sorted({path for path, _ in tried})
    shown = ", ".join(places[:_PLACES_SHOWN]) + (", ..." if len(places) > _PLACES_SHOWN else "")
    yield ok(name, f"we may read, write, create and delete as a run does (tried at {shown})")


def _denied(whole: ZooKeeper, path: str, wants: str) -> str | None:
    if not may_read(whole, path):
        return f"read {path}"
    if wants == _WRITE:
        return None if may_write(whole, path) else f"write {path}"
    denied = refused_below(whole, path)
    return f"{denied} znodes below {path}" if denied else None


def _wanted(findings: Findings, whole: ZooKeeper) -> Iterator[tuple[str, str]]:
    """Full paths, and what a run does there."""
    settings, root = findings.settings, findings.zookeeper.chroot
    group, pipeline = (
        paths.GroupPaths(settings.group.id),
        paths.PipelinePaths(settings.group.id, settings.pipeline),
    )
    below = [pipeline.plans, pipeline.applied_plans, pipeline.root, group.offsets]
    written = [pipeline.root, pipeline.coverage]
    for topic in _ours(findings, whole, group.offsets):
        below.append(group.offsets_of(topic))
        written += [
            f"{group.offsets_of(topic)}/{key}"
            for key in children_shown(whole, root + group.offsets_of(topic))[:1]
        ]
    if settings.group.mode is OwnershipMode.JOIN:
        below.append(group.consumer_ids)
    if settings.group.mode is not OwnershipMode.OBSERVE:
        below += [
            group.owners,
            *(group.owners_of(topic) for topic in _ours(findings, whole, group.owners)),
        ]
    yield from ((root + path, _CHILDREN) for path in below)
    yield from ((root + path, _WRITE) for path in written)


def _ours(findings: Findings, whole: ZooKeeper, path: str) -> list[str]:
    there = children_shown(whole, findings.zookeeper.chroot + path)
    return [topic for topic in there if findings.settings.source.topic_filter.admits(topic)][
        :_TOPICS_TRIED
    ]


_SHOWN = 3
_COMMAND = "`etl ledger apply-acl CONF`"


def acls(name: str, findings: Findings) -> Iterator[Line]:
    """One line for znodes that are not as they would be made now; one where all are. None where the
    pipeline has none yet.
    """
    settings, zookeeper = findings.settings, findings.zookeeper
    paths = kept_by(zookeeper, settings.group.id, settings.pipeline)
    if paths:
        yield told(
            name,
            settings.zookeeper.acl,
            writers_of(zookeeper, paths),
            id_of(settings.zookeeper.access),
        )


def told(name: str, acl: Acl, writers: Mapping[str, frozenset[str]], ours: str | None) -> Line:
    """Describe these znodes and who may change them; `ours`: our identity in ACLs, if known. No
    I/O.
    """
    opened = [path for path, who in writers.items() if EVERYBODY in who]
    guarded = [path for path, who in writers.items() if EVERYBODY not in who]
    owners = sorted({frozenset(writers[path]) for path in guarded}, key=sorted)
    whom = " or ".join(", ".join(sorted(map(_shown, who))) or "nobody" for who in owners)
    if acl is Acl.OPEN and guarded:
        to_do = f"{_COMMAND} by that login opens them; or zookeeper.acl: creator, by which new ones are guarded, too"
        return advice(
            name,
            f"{_places(guarded, writers)} can be changed by {whom} alone, and zookeeper.acl is open",
            to_do,
        )
    if acl is Acl.CREATOR and opened:
        to_do = f"{_COMMAND}: they are from before zookeeper.acl was creator"
        return advice(
            name,
            f"{_places(opened, writers)} can be changed by everybody, and zookeeper.acl is creator",
            to_do,
        )
    if acl is Acl.CREATOR and len(owners) > 1:
        to_do = f"{_COMMAND} by a login that may change all of them, with zookeeper.acl: open; then the same as zookeeper.auth is to be"
        return advice(
            name,
            f"not all {len(writers):,} znodes can be changed by the same login: some by {whom}",
            to_do,
        )
    if acl is Acl.CREATOR and owners and ours is not None and ours not in owners[0]:
        if _shown(ours) in whom.split(", "):
            us = f"{_shown(ours)} with another password"
        else:
            us = f"not by us, {_shown(ours)}"
        to_do = f"zookeeper.auth; or zookeeper.acl: open and {_COMMAND} by whom they name, then acl: creator and the same by us"
        return advice(name, f"{len(writers):,} znodes can be changed by {whom} alone, {us}", to_do)
    return ok(name, f"{len(writers):,} znodes, changed by {whom or EVERYBODY}, read by everybody")


def _places(some: Collection[str], of: Collection[str]) -> str:
    shown = ", ".join(sorted(some)[:_SHOWN]) + (", ..." if len(some) > _SHOWN else "")
    return f"{len(some):,} of {len(of):,} znodes ({shown})"


def _shown(who: str) -> str:
    """Without what scheme digest makes of a password."""
    return ":".join(who.split(":")[:2]) if who.startswith("digest:") else who
