"""What does `etl doctor` check on brokers, the consumer group and ZooKeeper?

Lives here: checks of ZooKeeper (servers, request limit, chroot, permissions, ACLs), of the brokers
(cluster, each broker, topics), of the group (drivers, consumers, owners, other pipelines), and of
the mirror group.
Not here: the list of checks and their order (etl/commands/doctor.py).

The mirror group's offsets are not read: looking up its coordinator may create a topic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from etl.commands.doctor_machine import Fact, Findings, Line, Verdict, advice, failed, ok
from etl.decide.member_offsets import is_member
from etl.decide.partition_owners import (
    foreign_consumers,
    foreign_owners,
    members_as_owners,
    owned_policy,
)
from etl.decide.plan import stops_without_leader
from etl.decide.reconcile import (
    reject_missing_topics,
    reject_null_partition_value,
    reject_retired,
    reject_shared_topics,
)
from etl.decide.set_offsets import pauses_of_partitions
from etl.errors import (
    BrokerUnreachable,
    EtlError,
    LedgersDisagree,
    Owned,
    PermissionDenied,
    SettingsError,
)
from etl.io.brokers.cluster_requests import Cluster, chosen_topics
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.io.zookeeper.broker_registrations import read_partition_states, read_replicas
from etl.io.zookeeper.group_offsets import ConsumerGroup
from etl.io.zookeeper.ledger import DriverLock, PlanLedger
from etl.io.zookeeper.login_and_acl import describe_identity, id_of
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
from etl.io.zookeeper.pipelines import pipelines_beside
from etl.io.zookeeper.session_requests import NODE_MAX_BYTES, ZooKeeper
from etl.ledger import znode_paths
from etl.ledger.znode_paths import PipelinePaths
from etl.model.partitions import Broker, KafkaGroup, Membership, TopicPartition, uncounted
from etl.model.plans import Plan
from etl.model.security import EVERYBODY, Acl
from etl.model.snapshot import Ledger
from etl.report.describe import counted
from etl.run.discovery import Discovery, configured_family
from etl.run.member_of_run import unspoken
from etl.settings.choices import OnActiveMembers, OnOwned, OwnershipMode, split_address

_CONNECT_TIMEOUT_S = 5.0
_METADATA_WAIT_S = 5.0
"""A broker that has just started knows no topic yet."""
_MAX_CONCURRENT_BROKERS = 16
_NAMES_SHOWN = 3
"""Number of names in a line."""
_REQUEST_BYTES = NODE_MAX_BYTES + 20_000
"""The largest request of a run, with its paths."""
_TOPICS_TRIED = 20
"""Number of topics with tested znodes; topics of a group rarely have different ACLs."""
_CHILDREN = "children"
"""A run creates and deletes children of the znode."""
_WRITE = "write"
"""A run changes the znode's data."""
_APPLY_ACL = "`etl ledger apply-acl CONF`"
_JAFKA_OFFSETS = (
    "offsets are byte positions: a run reads a partition up to the flushed offset, and splits it "
    "where segments begin; these brokers report no timestamps and no retention (data that expires "
    "soon is known only by the moves of the log start), and have no groups, transactions or "
    "compaction"
)
"""Offsets and limits of Jafka and Kafka 0.7."""


# -- ZooKeeper


def servers(name: str, findings: Findings) -> Iterator[Line]:
    """Check each server of `zookeeper.connect` alone, and open the session of all later checks."""
    zookeeper = findings.settings.zookeeper
    addresses = zookeeper.connect.partition("/")[0].split(",")
    hosts = [split_address(address.strip()) for address in addresses]

    def connect(address: tuple[str, int]) -> ServerAnswer | EtlError:
        try:
            return ask_server(
                *address,
                session_timeout_s=zookeeper.session_timeout_s,
                timeout_s=zookeeper.session_timeout_s,
                access=zookeeper.access,
            )
        except EtlError as error:
            return error

    with ThreadPoolExecutor(len(hosts)) as pool:
        answers = list(pool.map(connect, hosts))
    errors = [answer for answer in answers if isinstance(answer, EtlError)]
    if len(errors) == len(answers):
        raise errors[0]
    session = ZooKeeper(
        zookeeper.connect,
        session_timeout_s=zookeeper.session_timeout_s,
        connect_timeout_s=zookeeper.session_timeout_s,
        access=zookeeper.access,
    )
    findings.zookeeper = findings.closing.enter_context(session)
    for answer in answers:
        yield _server_line(name, answer, zookeeper.session_timeout_s)


def _server_line(name: str, answer: ServerAnswer | EtlError, requested_s: float) -> Line:
    if isinstance(answer, EtlError):
        found = failed(name, answer).found
        return advice(name, found, f"{answer.action}. Other servers accept the session")
    if answer.version:
        version = f"ZooKeeper {answer.version}, {answer.mode}"
    else:
        version = "unknown version (it does not answer srvr)"
    found = f"{answer.address}: {version}, session timeout {answer.granted_s:g} s"
    if answer.granted_s == requested_s:
        return ok(name, found)
    if answer.granted_s > requested_s:
        limit = "minSessionTimeout"
    else:
        limit = "maxSessionTimeout"
    return advice(
        name,
        f"{found}, requested: {requested_s:g} s",
        f"Change zookeeper.session_timeout_s, or {limit} of the server",
    )


def request_limit(name: str, findings: Findings) -> Iterator[Line]:
    """Check with a read request that ZooKeeper accepts the largest request of a run.

    A write above the limit would look like a lost connection.
    """
    if not takes_request(findings.zookeeper, _REQUEST_BYTES):
        raise SettingsError(
            f"ZooKeeper closes the connection at a request of {_REQUEST_BYTES:,} bytes",
            connect=findings.zookeeper.hosts,
            action="Set jute.maxbuffer of every server to 1048575, its default, or more",
        )
    yield ok(name, f"requests of {_REQUEST_BYTES:,} bytes pass, and no run sends larger ones")


def chroot(name: str, findings: Findings) -> Iterator[Line]:
    """Check that brokers are registered under the chroot, unless the conf names the brokers."""
    zookeeper = findings.zookeeper
    source = findings.settings.source
    chroot_path = zookeeper.chroot or "/"
    if source.bootstrap_servers:
        yield ok(
            name,
            f"{chroot_path} holds the ledger only: "
            "the brokers are those of source.bootstrap_servers",
        )
        return
    brokers = Discovery(findings.settings, zookeeper).registered()
    registered = len(zookeeper.children(znode_paths.BROKER_IDS) or brokers)
    if len(brokers) < registered:
        listener = f"{source.way_in.protocol.value} listener"
        if source.way_in.listener:
            listener = f"{listener} with the name {source.way_in.listener}"
        yield advice(
            name,
            f"{registered - len(brokers)} of {registered} brokers registered under {chroot_path} "
            f"have no {listener}",
            "Check `listeners` of these brokers: partitions that they lead cannot be read",
        )
    yield ok(name, f"{chroot_path}; registered brokers: {len(brokers)}")


def permissions(name: str, findings: Findings) -> Iterator[Line]:
    """Check permissions for each znode that a run reads, writes, creates or deletes.

    Of a missing znode the nearest existing parent is checked.
    """
    tried = set[tuple[str, str]]()
    denials = []
    with findings.zookeeper.at_root() as root:
        for path, access in _accessed_znodes(findings, root):
            existing = nearest(root, path)
            if existing == path:
                tried.add((path, access))
            else:
                tried.add((existing, _CHILDREN))
        for path, access in sorted(tried):
            denial = _denied(root, path, access)
            if denial:
                denials.append(denial)
    if denials:
        identity = describe_identity(findings.settings.zookeeper.access)
        raise PermissionDenied(
            f"ZooKeeper does not let this login {'; '.join(denials)}",
            key="zookeeper.auth",
            connect=findings.zookeeper.hosts,
            action="Check the ACLs of these znodes (getAcl), and allow it (setAcl) for the login "
            f"of this conf: {identity}",
        )
    shown = first_names(sorted({path for path, _ in tried}))
    yield ok(name, f"this login may read, write, create and delete as a run does (tried: {shown})")


def _denied(root: ZooKeeper, path: str, access: str) -> str | None:
    """Return the denied operation on the znode; None if all that a run needs is allowed."""
    if not may_read(root, path):
        return f"read {path}"
    if access == _WRITE:
        if may_write(root, path):
            return None
        return f"write {path}"
    operation = refused_below(root, path)
    if operation is None:
        return None
    return f"{operation} znodes below {path}"


def _accessed_znodes(findings: Findings, root: ZooKeeper) -> Iterator[tuple[str, str]]:
    """Yield the full path of each znode that a run uses, and how: _CHILDREN or _WRITE."""
    settings = findings.settings
    prefix = findings.zookeeper.chroot
    group_paths = znode_paths.GroupPaths(settings.group.id)
    pipeline_paths = PipelinePaths(settings.group.id, settings.pipeline)
    parents = [
        pipeline_paths.plans,
        pipeline_paths.applied_plans,
        pipeline_paths.root,
        group_paths.offsets,
    ]
    written = [pipeline_paths.root, pipeline_paths.loaded]
    for topic in _topics_below(findings, root, group_paths.offsets):
        offsets_path = group_paths.offsets_of(topic)
        parents.append(offsets_path)
        for key in children_shown(root, prefix + offsets_path)[:1]:
            written.append(f"{offsets_path}/{key}")
    if settings.group.mode is OwnershipMode.JOIN:
        parents.append(group_paths.consumer_ids)
    if settings.group.mode is not OwnershipMode.OBSERVE:
        parents.append(group_paths.owners)
        for topic in _topics_below(findings, root, group_paths.owners):
            parents.append(group_paths.owners_of(topic))
    for path in parents:
        yield prefix + path, _CHILDREN
    for path in written:
        yield prefix + path, _WRITE


def _topics_below(findings: Findings, root: ZooKeeper, path: str) -> list[str]:
    """Return the first topics below the znode that the conf selects."""
    topic_filter = findings.settings.source.topic_filter
    selected = []
    for topic in children_shown(root, findings.zookeeper.chroot + path):
        if topic_filter.admits(topic):
            selected.append(topic)
    return selected[:_TOPICS_TRIED]


def acls(name: str, findings: Findings) -> Iterator[Line]:
    """Compare the ACLs of the pipeline's znodes with `zookeeper.acl`.

    Yields no line if the pipeline has no znodes yet.
    """
    settings = findings.settings
    znodes = kept_by(findings.zookeeper, settings.group.id, settings.pipeline)
    if znodes:
        writers = writers_of(findings.zookeeper, znodes)
        yield acl_line(name, settings.zookeeper.acl, writers, id_of(settings.zookeeper.access))


def acl_line(
    name: str, acl: Acl, writers: Mapping[str, frozenset[str]], identity: str | None
) -> Line:
    """Describe which logins may change these znodes. No I/O.

    writers    the ids that may change each znode
    identity   the id of this login in ACLs; None if it is unknown
    """
    writable_by_all = []
    guarded = []
    for path, ids in writers.items():
        if EVERYBODY in ids:
            writable_by_all.append(path)
        else:
            guarded.append(path)
    identities = {frozenset(writers[path]) for path in guarded}
    owners = sorted(identities, key=sorted)
    logins = " or ".join(_logins(ids) for ids in owners)

    if acl is Acl.OPEN and guarded:
        return advice(
            name,
            f"{_znodes(guarded, writers)} can be changed by {logins} alone, "
            "and zookeeper.acl is open",
            f"Run {_APPLY_ACL} with that login to open them. Or set zookeeper.acl: creator, which "
            "guards new znodes, too",
        )
    if acl is Acl.CREATOR and writable_by_all:
        return advice(
            name,
            f"{_znodes(writable_by_all, writers)} can be changed by everybody, "
            "and zookeeper.acl is creator",
            f"Run {_APPLY_ACL} to guard them: they were created before zookeeper.acl was creator",
        )
    if acl is Acl.CREATOR and len(owners) > 1:
        return advice(
            name,
            f"not all {len(writers):,} znodes can be changed by the same login: some by {logins}",
            f"Run {_APPLY_ACL} with zookeeper.acl: open and a login that may change all of them. "
            "Then run it again with zookeeper.acl: creator and the final zookeeper.auth",
        )
    if acl is Acl.CREATOR and owners and identity is not None and identity not in owners[0]:
        login = _without_hash(identity)
        if login in logins.split(", "):
            login = f"{login} with another password"
        return advice(
            name,
            f"{len(writers):,} znodes can be changed by {logins} alone, "
            f"and the login of this conf is {login}",
            "Check zookeeper.auth. To change the login, set zookeeper.acl: open and run "
            f"{_APPLY_ACL} with a login that the ACLs name, then set zookeeper.acl: creator and "
            "run it with the login of this conf",
        )
    return ok(name, f"{len(writers):,} znodes, changed by {logins or EVERYBODY}, read by everybody")


def _znodes(shown: Collection[str], znodes: Collection[str]) -> str:
    names = ", ".join(sorted(shown)[:_NAMES_SHOWN])
    if len(shown) > _NAMES_SHOWN:
        names = f"{names}, ..."
    return f"{len(shown):,} of {len(znodes):,} znodes ({names})"


def _logins(ids: Collection[str]) -> str:
    return ", ".join(sorted(map(_without_hash, ids))) or "no login"


def _without_hash(acl_id: str) -> str:
    """Return an id of an ACL without the password hash of the scheme digest."""
    if acl_id.startswith("digest:"):
        return ":".join(acl_id.split(":")[:2])
    return acl_id


# -- brokers and topics


def cluster(name: str, findings: Findings) -> Iterator[Line]:
    """Check that a broker answers, and name the cluster."""
    discovery = Discovery(findings.settings, findings.zookeeper)
    newest = _newest_plan(findings)
    topics_to_find = set(findings.settings.source.topic_filter.literal_names)
    if newest:
        topics_to_find.update(newest.known_topics)
    with discovery.open_cluster(
        _partitions_with_offsets(findings), connect_timeout_s=_CONNECT_TIMEOUT_S
    ) as client:
        metadata = client.describe_when_known(None, wait_s=_METADATA_WAIT_S)
        findings.metadata = discovery.with_known(client, metadata, topics_to_find)
    identity = discovery.identity_of(findings.metadata, newest)
    if identity.id:
        description = f"{identity.name} (name in the conf), id {identity.id}"
    else:
        description = f"id {identity.name}"
    brokers = len(findings.metadata.brokers)
    yield ok(name, f"{description}; brokers: {brokers}, topics: {len(findings.metadata.topics)}")


def _newest_plan(findings: Findings) -> Plan | None:
    """Return the newest plan; None if there is none, or its ledger is damaged (checked later)."""
    ledger = PlanLedger(findings.zookeeper, findings.settings.group.id, findings.settings.pipeline)
    with contextlib.suppress(LedgersDisagree):
        return ledger.read_ledger().newest
    return None


def _partitions_with_offsets(findings: Findings) -> set[TopicPartition]:
    """Return the Jafka partitions with committed offsets; empty for Kafka.

    They are the only source for partitions of an unavailable broker.
    """
    source = findings.settings.source
    if not source.is_physical:
        return set()
    return _consumer_group(findings).partitions_with_offsets(source.topic_filter.admits)


def each_broker(name: str, findings: Findings) -> Iterator[Line]:
    """Check each broker at the address that executors use.

    Includes brokers that are registered in ZooKeeper and missing in the metadata.
    """
    source = findings.settings.source
    brokers = {
        **Discovery(findings.settings, findings.zookeeper).registered(),
        **findings.metadata.brokers,
    }
    partitions_led = dict[int, int]()
    for leader in findings.metadata.leaders.values():
        partitions_led[leader.broker.id] = partitions_led.get(leader.broker.id, 0) + 1

    def connect(broker: Broker) -> str | EtlError:
        try:
            with SimpleConsumer(
                broker.host,
                broker.port,
                connect_timeout_s=_CONNECT_TIMEOUT_S,
                request_timeout_s=source.request_timeout_s,
                broker_type=broker.broker_type or configured_family(source),
                security=source.way_in,
            ) as consumer:
                introduction = consumer.introduction()
                consumer.reject_other_release(source.isolation_level)
                return introduction
        except EtlError as error:
            return error

    with ThreadPoolExecutor(_MAX_CONCURRENT_BROKERS) as pool:
        answers = pool.map(connect, brokers.values())
        for broker, answer in zip(brokers.values(), answers, strict=True):
            if isinstance(answer, BrokerUnreachable):
                findings.silent_brokers.add(broker.id)
            leads = partitions_led.get(broker.id, 0)
            yield _broker_line(f"{name} {broker.id}", broker, answer, leads)


def _broker_line(name: str, broker: Broker, answer: str | EtlError, partitions_led: int) -> Line:
    if isinstance(answer, BrokerUnreachable):
        action = (
            f"{answer.action}. The driver and every executor connect to this address; "
            f"partitions led: {partitions_led}"
        )
        return failed(name, BrokerUnreachable(answer.message, action=action, **answer.where))
    if isinstance(answer, EtlError):
        return failed(name, answer)
    return ok(name, f"{broker.host}:{broker.port}: {answer}, partitions led: {partitions_led}")


def topics(name: str, findings: Findings) -> Iterator[Line]:
    """Check that the conf's topics exist, have leaders, and have a known cleanup policy."""
    settings = findings.settings
    existing = tuple(findings.metadata.topics)
    metadata = chosen_topics(findings.metadata, settings.source.topic_filter)
    findings.metadata = metadata
    reject_missing_topics(settings, metadata.topics, lambda: existing)
    reject_null_partition_value(settings, metadata.topics)

    missing = uncounted(metadata.leaderless, metadata.leaders)
    if missing:
        yield advice(
            name,
            "brokers answer and count fewer partitions than before, without "
            f"{first_names(list(map(str, sorted(missing))))}",
            "Check whether these brokers lost log directories. "
            "A run leaves the partitions for a later run",
        )
    pauses = Discovery(settings, findings.zookeeper).pauses()
    paused = pauses_of_partitions(metadata.leaderless, pauses).keys()
    leaderless = sorted(metadata.leaderless - missing - paused)
    if leaderless:
        yield _leaderless_line(name, leaderless, findings)
    if settings.source.is_physical:
        yield ok(name, _JAFKA_OFFSETS)
    else:
        yield from _unknown_cleanup(name, findings)
    partitions = sum(len(topic.partitions) for topic in metadata.topics.values())
    yield ok(name, f"{first_names(sorted(metadata.topics))}; partitions: {partitions}")


def _unknown_cleanup(name: str, findings: Findings) -> Iterator[Line]:
    """Report topics with an unknown cleanup policy: missing offsets are lost, or compacted away."""
    source = findings.settings.source
    addresses = []
    for broker in findings.metadata.brokers.values():
        if broker.id not in findings.silent_brokers:
            addresses.append((broker.host, broker.port))
    if not addresses:
        return
    names = findings.metadata.topics
    with _connect(addresses, findings) as brokers:
        retention = brokers.retention(names)
        has_configs = brokers.first(lambda consumer: consumer.has_describe_configs())
    compacted = Discovery(findings.settings, findings.zookeeper).compacted(
        names.keys() - retention.keys()
    )
    unknown = []
    for topic in sorted(names.keys() - retention.keys() - compacted):
        if not source.is_assumed_compacted(topic):
            unknown.append(topic)
    if not unknown:
        return
    if has_configs:
        action = (
            "Grant the ACL DescribeConfigs on them: if one of them is compacted, a run takes "
            "records that compaction removed for lost"
        )
    else:
        action = (
            "No action is needed if the brokers' log.cleanup.policy is delete, the default: "
            "brokers before 0.11 do not report it. "
            "Name compacted topics in source.assume_compacted: otherwise a run takes records "
            "that compaction removed for lost"
        )
    yield advice(
        name,
        f"the brokers do not report cleanup.policy of {len(unknown)} topics: "
        f"{first_names(unknown)}",
        action,
    )


def _leaderless_line(name: str, leaderless: list[TopicPartition], findings: Findings) -> Line:
    source = findings.settings.source
    if source.is_physical:
        broker_ids = {
            partition.broker_id for partition in leaderless if partition.broker_id is not None
        }
        return advice(
            name,
            f"{counted(len(leaderless), 'partition')} of unavailable brokers "
            f"({', '.join(map(str, sorted(broker_ids)))}): "
            f"{first_names(list(map(str, leaderless)))}",
            "Check these brokers. A run leaves the partitions for a later run",
        )
    replicas = _describe_replicas(leaderless, findings)
    described = [f"{partition}{replicas[partition]}" for partition in leaderless]
    named = first_names(described)
    message = f"{counted(len(leaderless), 'partition')} without a leader: {named}"
    action = "Check the brokers that host their replicas"
    if not stops_without_leader(leaderless[0], findings.settings):
        return advice(name, message, f"{action}. A run leaves them out (source.on_no_leader: skip)")
    action = f"{action}, or set source.on_no_leader: skip"
    return failed(name, BrokerUnreachable(message, action=action))


def _describe_replicas(
    leaderless: list[TopicPartition], findings: Findings
) -> dict[TopicPartition, str]:
    """Describe where ZooKeeper has the replicas of the first partitions; empty for the others."""
    described = dict.fromkeys(leaderless, "")
    if findings.settings.source.bootstrap_servers:
        return described
    shown = leaderless[:_NAMES_SHOWN]
    replicas = read_replicas(findings.zookeeper, shown)
    states = read_partition_states(findings.zookeeper, shown)
    for partition in shown:
        if partition not in replicas:
            continue
        in_sync = ""
        if partition in states:
            in_sync = f", last in sync: {_ids(states[partition].in_sync)}"
        described[partition] = f" (replicas on brokers {_ids(replicas[partition])}{in_sync})"
    return described


def _ids(brokers: tuple[int, ...]) -> str:
    return " ".join(map(str, brokers)) or "none"


# -- the group


def group(name: str, findings: Findings) -> Iterator[Line]:
    """Check for another driver, other consumers and owners, and other pipelines of a topic."""
    settings = findings.settings
    names = set(findings.metadata.topics)
    driver = DriverLock(findings.zookeeper, settings.group.id, settings.pipeline).driver()
    if driver:
        yield ok(name, f"a run of this pipeline is active: {driver}")
    else:
        yield from _other_consumers(name, findings, names)
    foreign = _consumer_group(findings).offsets_of_the_other_family(sorted(names))
    if foreign:
        yield advice(
            name,
            f"{len(foreign)} of the group's offsets are of the other broker type, "
            f"the first of {foreign[0]}: runs leave them alone",
            "No action is needed if the group read these topics from such brokers before. "
            "Otherwise check source.broker_type",
        )
    ledger = PlanLedger(findings.zookeeper, settings.group.id, settings.pipeline)
    yield from _other_pipelines(name, ledger, names)


def _other_consumers(name: str, findings: Findings, topics: set[str]) -> Iterator[Line]:
    """Report live consumers of the group and owners of its partitions, and what a run does then."""
    settings = findings.settings
    zookeeper_group = _consumer_group(findings)
    kafka_group, protocol_error = _kafka_group(findings)
    if kafka_group.unknown:
        yield advice(
            name,
            f"it is unknown whether Kafka's group {settings.group.id} has live consumers: "
            f"{kafka_group.unknown}",
            "Check that no consumer uses this group id. "
            "ACLs: Describe for the group, from Kafka 0.11 on",
        )
    in_zookeeper = foreign_consumers(zookeeper_group.live_consumers(), settings)
    in_kafka = tuple(sorted(kafka_group.members))
    if settings.group.membership is Membership.COORDINATOR:
        same_protocol, other_protocol = in_kafka, in_zookeeper
    else:
        same_protocol, other_protocol = in_zookeeper, in_kafka
    if protocol_error:
        yield failed(name, protocol_error)
        return
    if is_member(settings) and not other_protocol:
        partners = "no other consumer: none is alive"
        if same_protocol:
            partners = f"live consumers: {first_names(same_protocol)}"
        yield ok(name, f"{settings.group.id}: a run shares the partitions with {partners}")
        return

    partitions = []
    for topic in findings.metadata.topics.values():
        partitions += [partition.partition for partition in topic.partitions]
    live = (*in_zookeeper, *in_kafka)
    owners = foreign_owners(
        {**members_as_owners(kafka_group, partitions), **zookeeper_group.owners(topics)}, settings
    )
    if live:
        yield _live_consumers_line(name, live, settings.group.on_active_members)
    if owners:
        yield _owners_line(name, owners, owned_policy(settings.group))
    if not live and not owners:
        yield ok(name, f"{settings.group.id}: no live consumer, no owner, no driver")


_STOP_THEM = "Check that they are stopped; a crashed one leaves after its session timeout"


def _live_consumers_line(name: str, live: tuple[str, ...], policy: OnActiveMembers) -> Line:
    message = f"{counted(len(live), 'live consumer')} registered in the group: {first_names(live)}"
    if policy is OnActiveMembers.SKIP:
        action = "No action is needed: a run loads the partitions that none of them owns"
        return advice(name, message, action)
    return failed(name, Owned(message, action=_STOP_THEM))


def _owners_line(name: str, owners: Mapping[TopicPartition, str], policy: OnOwned) -> Line:
    partition, owner = min(owners.items())
    message = f"{counted(len(owners), 'partition')} owned by others, {partition} by {owner}"
    if policy is OnOwned.FAIL:
        return failed(name, Owned(message, action=_STOP_THEM))
    action = "No action is needed: a run leaves these partitions to their owners"
    if policy is OnOwned.WAIT:
        action = "No action is needed: a run waits for these partitions"
    return advice(name, message, action)


def _kafka_group(findings: Findings) -> tuple[KafkaGroup, SettingsError | None]:
    """Return Kafka's group of this id, and the error if a run needs a membership it lacks."""
    settings = findings.settings
    brokers = findings.metadata.brokers.values()
    addresses = [(broker.host, broker.port) for broker in brokers]
    error = None
    with _connect(addresses, findings) as client:
        if settings.group.membership is Membership.COORDINATOR:
            error = unspoken(settings, client.first(lambda consumer: consumer.membership()))
        return client.members_of(settings.group.id, brokers), error


def _other_pipelines(name: str, ledger: PlanLedger, names: set[str]) -> Iterator[Line]:
    """Fail if the pipeline is retired, or another pipeline of the group has one of the topics."""
    try:
        reject_retired(Ledger(retired=ledger.read_retirement()))
        others = pipelines_beside(ledger).topics_of_others(ledger.pipeline)
        reject_shared_topics(names, others, has_plans=bool(ledger.plan_numbers()))
    except EtlError as error:
        yield failed(name, error)


def mirror_group(name: str, findings: Findings) -> Iterator[Line]:
    """Check that brokers store group offsets, and that the mirror group has no consumer.

    Yields no line without a mirror group.
    """
    mirror = findings.settings.group.mirror_group
    if mirror is None:
        return
    if Fact.CLUSTER not in findings.established:
        yield Line(name, Verdict.NOT_CHECKED, f"needs {Fact.CLUSTER.value}, see above")
        return
    brokers = findings.metadata.brokers.values()
    addresses = [(broker.host, broker.port) for broker in brokers]
    with _connect(addresses, findings) as client:
        stores_offsets = client.first(lambda consumer: consumer.keeps_offsets())
        members = client.members_of(mirror, brokers)
    if not stores_offsets:
        error = SettingsError(
            "These brokers store no offsets of groups: that came with Kafka 0.8.2",
            key="group.mirror_group",
            action="Leave the key out; runs work without it",
        )
        yield failed(name, error)
    elif members.members:
        consumers = ", ".join(sorted(members.members)[:_NAMES_SHOWN])
        yield advice(
            name,
            f"{counted(len(members.members), 'live consumer')} in group {mirror}: {consumers}",
            "Set group.mirror_group to a group id that no consumer uses. "
            "Until then runs leave this group's offsets alone and report it",
        )
    elif members.unknown:
        yield advice(
            name,
            f"it is unknown whether group {mirror} has live consumers: {members.unknown}",
            "Check that no consumer uses this group id. ACLs: Read and Describe for the group",
        )
    else:
        yield ok(
            name,
            f"{mirror}: no consumer uses this group id; "
            "each run commits its loaded-until offsets to it",
        )


# -- connections and words


def _connect(addresses: list[tuple[str, int]], findings: Findings) -> Cluster:
    """Return a client of the brokers at these addresses."""
    source = findings.settings.source
    return Cluster(
        addresses,
        connect_timeout_s=_CONNECT_TIMEOUT_S,
        timeout_s=source.request_timeout_s,
        broker_type=configured_family(source),
        security=source.way_in,
    )


def _consumer_group(findings: Findings) -> ConsumerGroup:
    """Return the group's znodes."""
    return ConsumerGroup(
        findings.zookeeper,
        findings.settings.group.id,
        physical=findings.settings.source.is_physical,
    )


def first_names(names: tuple[str, ...] | list[str]) -> str:
    """Return the first of the names, and how many more there are."""
    shown = ", ".join(names[:_NAMES_SHOWN])
    if len(names) > _NAMES_SHOWN:
        return f"{shown} and {len(names) - _NAMES_SHOWN} more"
    return shown
