"""A driver's requests to several brokers at once, by `Cluster`."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from etl.decide.partition_owners import members_as_owners
from etl.errors import (
    BrokerError,
    BrokerUnreachable,
    PermissionDenied,
    SettingsError,
    TopicMissing,
)
from etl.io.brokers import partition_ends
from etl.io.brokers.cluster_requests import Cluster, unknown_topics
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.io.process import open_files
from etl.kafka.request_values import ListedOffset
from etl.kafka.versions import error_of
from etl.model.partitions import (
    Broker,
    EpochEnd,
    Isolation,
    KafkaGroup,
    OpenTransaction,
    PartitionOffsets,
    Retention,
    TopicPartition,
)
from etl.testkit.server_process import wait_until
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import (
    CONFIGS,
    CONSUMER_GROUPS,
    FIND_COORDINATOR,
    GROUPS,
    LEADER_EPOCHS,
    LIST_OFFSETS,
    LOG_DIRS,
    METADATA,
    PRODUCERS,
    TRANSACTION_LIST,
    TRANSACTIONS,
    FakeBroker,
    World,
    as_it_is,
    never,
)

Brokers = tuple[FakeBroker, FakeBroker]
COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED
LOGS = [TopicPartition("demo", number) for number in range(4)]


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    """Two brokers; each leads two of the four logs of `demo`, and log n holds 10 n records."""
    world = World()
    with FakeBroker(world, broker_id=1) as first, FakeBroker(world, broker_id=2) as second:
        for partition in LOGS:
            leader = (first, second)[partition.partition % 2]
            leader.log(partition.topic, partition.partition)
            for number in range(partition.partition):
                leader.append(
                    partition.topic,
                    partition.partition,
                    encode(Batch(10 * number, [Rec(delta) for delta in range(10)])),
                )
        yield first, second


@pytest.fixture
def cluster(brokers: Brokers) -> Iterator[Cluster]:
    with Cluster([(brokers[0].host, brokers[0].port)], timeout_s=5) as connected:
        yield connected


def requests_of(brokers: Brokers, key: int) -> list[int]:
    return [[each for each, _ in broker.requests].count(key) for broker in brokers]


@pytest.mark.parametrize(("isolation", "requests"), [(UNCOMMITTED, [2, 2]), (COMMITTED, [3, 3])])
def test_extents_take_few_requests_of_each_broker(
    brokers: Brokers, cluster: Cluster, isolation: Isolation, requests: list[int]
) -> None:
    found = cluster.extents(LOGS, isolation=isolation)
    assert dict(found.extents) == {
        partition: PartitionOffsets(0, 10 * partition.partition) for partition in LOGS
    }
    assert {partition: leader.broker.id for partition, leader in found.leaders.items()} == {
        partition: 1 + partition.partition % 2 for partition in LOGS
    }
    assert requests_of(brokers, METADATA) == [1, 0]
    assert requests_of(brokers, LIST_OFFSETS) == requests


@pytest.mark.parametrize("topics", [["demo"], None])
@pytest.mark.parametrize("answers_before", [1, 2, 3])
def test_a_starting_broker_is_queried_again(topics: list[str] | None, answers_before: int) -> None:
    with FakeBroker() as broker, Cluster([(broker.host, broker.port)], timeout_s=5) as cluster:

        def answers_and_gets_the_topic(connection: socket.socket, frame: bytes) -> None:
            connection.sendall(frame)
            broker.append("demo", 0, encode(Batch(0, [Rec(0)])))

        broker.script[METADATA].extend(
            [lambda connection, frame: connection.sendall(frame)] * (answers_before - 1)
            + [answers_and_gets_the_topic]
        )
        assert cluster.describe_when_known(topics, wait_s=30).leaders.keys() == {
            TopicPartition("demo", 0)
        }


def test_an_unknown_topic_is_reported_at_once(brokers: Brokers, cluster: Cluster) -> None:
    reported = cluster.describe_when_known(["domo"], wait_s=float("inf"))
    assert unknown_topics(reported, ["domo"]) == {"domo"}
    assert requests_of(brokers, METADATA) == [2, 0]


def test_a_cluster_may_have_no_topics(brokers: Brokers, cluster: Cluster) -> None:
    brokers[0].world.logs.clear()
    assert unknown_topics(cluster.describe_when_known(["demo"], wait_s=0.2), ["demo"]) == {"demo"}
    assert cluster.describe_when_known(None, wait_s=0).topics == {}


def test_read_committed_ends_at_the_last_stable_offset(brokers: Brokers, cluster: Cluster) -> None:
    brokers[1].log("demo", 1).last_stable = 4
    committed = cluster.extents(LOGS[1:2], isolation=COMMITTED).extents[LOGS[1]]
    uncommitted = cluster.extents(LOGS[1:2], isolation=UNCOMMITTED).extents[LOGS[1]]
    assert committed == PartitionOffsets(0, 4, high_watermark=10)
    assert uncommitted == PartitionOffsets(0, 10)


def test_open_transactions_have_their_start(brokers: Brokers, cluster: Cluster) -> None:
    assert cluster.open_transactions(cluster.extents(LOGS, isolation=COMMITTED)) == {}
    assert requests_of(brokers, PRODUCERS) == [0, 0]
    brokers[1].log("demo", 3).last_stable, brokers[1].log("demo", 3).open = 12, (7, 12)
    brokers[0].world.transactions = {7: ("orders-7", 1_700_000_000_000), 8: ("another", 0)}
    found = cluster.extents(LOGS, isolation=COMMITTED)
    assert cluster.open_transactions(found) == {
        LOGS[3]: OpenTransaction(7, 12, "orders-7", 1_700_000_000_000)
    }
    assert requests_of(brokers, PRODUCERS) == [0, 1]
    assert requests_of(brokers, TRANSACTION_LIST) == [1, 1]
    assert requests_of(brokers, TRANSACTIONS) == [1, 1]


def test_transactions_may_be_unknown_to_brokers(brokers: Brokers, cluster: Cluster) -> None:
    brokers[1].log("demo", 3).last_stable, brokers[1].log("demo", 3).open = 12, (7, 12)
    for broker in brokers:
        del broker.versions[TRANSACTION_LIST]
    found = cluster.extents(LOGS, isolation=COMMITTED)
    assert cluster.open_transactions(found) == {LOGS[3]: OpenTransaction(7, 12)}
    del brokers[1].versions[PRODUCERS]
    brokers[1].hang_up_on_everybody()
    assert cluster.open_transactions(found) == {}


def test_a_partition_without_a_leader_is_reported(brokers: Brokers, cluster: Cluster) -> None:
    brokers[0].world.logs["demo", 2].leader_id = -1
    found = cluster.extents(LOGS, isolation=COMMITTED, wait_for_leader_s=0)
    assert found.leaderless == frozenset({LOGS[2]})
    assert set(found.extents) == {LOGS[0], LOGS[1], LOGS[3]}
    assert type(found.leaderless) is frozenset, "a report writes no other set"


def test_a_moved_leader_is_looked_up_again(brokers: Brokers, cluster: Cluster) -> None:
    before = cluster.describe(["demo"])
    brokers[0].world.logs["demo", 2].leader_id = 2
    found = cluster.extents(LOGS, isolation=COMMITTED, metadata=before)
    assert found.extents[LOGS[2]] == PartitionOffsets(0, 20)
    assert found.leaders[LOGS[2]].broker.id == 2


@pytest.mark.parametrize("in_order", [iter, reversed])
def test_the_first_refused_partition_is_reported_whatever_the_order_of_the_response(
    brokers: Brokers, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, in_order: Any
) -> None:
    list_offsets_at = SimpleConsumer.list_offsets_at
    refusals = {LOGS[0]: error_of(29), LOGS[2]: error_of(17)}

    def refuse(consumer: SimpleConsumer, *question: Any) -> dict[TopicPartition, ListedOffset]:
        response = list_offsets_at(consumer, *question)
        return {
            partition: response[partition]._replace(refusal=refusals.get(partition))
            for partition in in_order(list(response))
        }

    monkeypatch.setattr(SimpleConsumer, "list_offsets_at", refuse)
    with pytest.raises(PermissionDenied, match="partition 0"):
        cluster.extents(LOGS, isolation=UNCOMMITTED)


def test_a_missing_topic_is_not_one_without_leaders(cluster: Cluster) -> None:
    with pytest.raises(TopicMissing):
        cluster.extents([TopicPartition("gone", 0)], isolation=COMMITTED, wait_for_leader_s=0)


def test_a_time_may_be_after_an_open_transaction(brokers: Brokers, cluster: Cluster) -> None:
    brokers[1].append("demo", 3, encode(Batch(30, [Rec(0)], max_timestamp=1_800_000_000_000)))
    brokers[1].log("demo", 3).last_stable = 12
    assert cluster.offsets_at({LOGS[3]: 1_750_000_000_000}) == {LOGS[3]: 30}
    assert cluster.offsets_at({LOGS[3]: 1_850_000_000_000}) == {LOGS[3]: 31}
    assert cluster.first_at({LOGS[3]: 1_750_000_000_000}) == {LOGS[3]: None}


def test_bytes_per_offset_need_a_record(brokers: Brokers, cluster: Cluster) -> None:
    size = len(brokers[1].log("demo", 1).batches[0])
    assert cluster.bytes_per_offset(cluster.extents(LOGS, isolation=COMMITTED)) == {
        partition: size / 10 for partition in LOGS[1:]
    }
    assert requests_of(brokers, LOG_DIRS) == [1, 1]


def test_a_broker_without_sizes_is_left_out(brokers: Brokers, cluster: Cluster) -> None:
    del brokers[1].versions[LOG_DIRS]
    assert set(cluster.bytes_per_offset(cluster.extents(LOGS, isolation=COMMITTED))) == {LOGS[2]}


def test_a_silent_bootstrap_address_is_followed_by_the_next(brokers: Brokers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent: tuple[str, int] = listener.getsockname()
    with Cluster([silent, (brokers[1].host, brokers[1].port)]) as patient:
        assert list(patient.describe().topics) == ["demo"]
    with Cluster([silent]) as alone:
        with pytest.raises(BrokerUnreachable, match="No broker answers:") as raised:
            alone.describe()
    assert raised.value.where["brokers"] == f"{silent[0]}:{silent[1]}"


def test_names_of_brokers_that_do_not_resolve_are_reported_with_the_listeners() -> None:
    registered = ["INSIDE (PLAINTEXT)", "OUTSIDE (SSL)"]
    with Cluster([("no-such-host.invalid", 9092)], listeners=lambda: registered) as cluster:
        with pytest.raises(BrokerUnreachable, match="No broker's name is known here") as raised:
            cluster.describe()
    assert "source.listener" in raised.value.action
    assert raised.value.action.endswith("INSIDE (PLAINTEXT), OUTSIDE (SSL)")


def test_few_connections_are_enough(brokers: Brokers, cluster: Cluster) -> None:
    found = cluster.extents(LOGS, isolation=COMMITTED)
    assert [broker.open_connections() for broker in brokers] == [1, 1]
    cluster.close()
    with Cluster([(brokers[0].host, brokers[0].port)], timeout_s=5, keeps=1) as few:
        assert few.extents(LOGS, isolation=COMMITTED).extents == found.extents
        assert wait_until(lambda: sum(broker.open_connections() for broker in brokers) == 1, 10)


def test_connections_leave_half_of_the_files_that_a_process_may_open() -> None:
    most = partition_ends.max_kept_connections() + partition_ends.MAX_PARALLEL_BROKERS
    assert most <= max(open_files() // 2, partition_ends.MAX_PARALLEL_BROKERS)


def test_brokers_share_a_deadline(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_ends, "MAX_PARALLEL_BROKERS", 1)
    for broker in brokers:
        broker.script[LIST_OFFSETS].extend([never] * 9)
    with (
        Cluster([(brokers[0].host, brokers[0].port)], timeout_s=0.4) as cluster,
        pytest.raises(BrokerUnreachable),
    ):
        cluster.extents(LOGS, isolation=UNCOMMITTED, wait_for_leader_s=0)
    assert [count > 0 for count in requests_of(brokers, LIST_OFFSETS)].count(True) == 1


def test_a_cluster_of_no_addresses_is_a_settings_error() -> None:
    with pytest.raises(SettingsError, match="There is no broker to connect to"):
        Cluster([])


@pytest.mark.parametrize(
    ("configs", "reported"),
    [
        (
            {"cleanup.policy": "delete", "retention.ms": "5000", "retention.bytes": "-1"},
            Retention(5000, None),
        ),
        (
            {"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "7"},
            Retention(None, 7, is_compacted=True),
        ),
        (
            {"cleanup.policy": "compact", "retention.ms": "5000", "retention.bytes": "7"},
            Retention(is_compacted=True),
        ),
        ({"cleanup.policy": "delete", "remote.storage.enable": "true"}, Retention(is_tiered=True)),
    ],
)
def test_retention_takes_one_request(
    brokers: Brokers, cluster: Cluster, configs: dict[str, str], reported: Retention
) -> None:
    brokers[0].world.configs["demo"] = configs
    assert cluster.retention({"demo", "unknown"}) == {"demo": reported}
    assert requests_of(brokers, CONFIGS) == [1, 0]


def test_brokers_without_configs_report_no_retention(brokers: Brokers, cluster: Cluster) -> None:
    del brokers[0].versions[CONFIGS]
    assert cluster.retention({"demo"}) == {}
    assert cluster.retention(()) == {}


def test_retained_offsets_take_one_request_of_a_broker(brokers: Brokers, cluster: Cluster) -> None:
    found = cluster.extents(LOGS, isolation=COMMITTED)
    before = requests_of(brokers, LIST_OFFSETS)
    late = cluster.retained_from(
        found, {partition: 2**50 for partition in LOGS[2:]}, isolation=COMMITTED
    )
    assert late == {LOGS[2]: 20, LOGS[3]: 30}
    assert cluster.retained_from(found, {LOGS[3]: 0}, isolation=COMMITTED) == {LOGS[3]: 0}
    assert requests_of(brokers, LIST_OFFSETS) == [before[0] + 1, before[1] + 2]
    assert cluster.retained_from(found, {}, isolation=COMMITTED) == {}


def test_epoch_ends_take_one_request_of_a_leader(brokers: Brokers, cluster: Cluster) -> None:
    for partition in LOGS:
        brokers[0].world.logs["demo", partition.partition].elect(4)
        fill = brokers[partition.partition % 2]
        fill.append("demo", partition.partition, encode(Batch(10 * partition.partition, [Rec(0)])))
    found = cluster.epoch_ends(dict.fromkeys(LOGS, 0), leaders=cluster.describe(["demo"]).leaders)
    assert found == {partition: EpochEnd(0, 0, 10 * partition.partition) for partition in LOGS}
    assert requests_of(brokers, LEADER_EPOCHS) == [1, 1]
    assert cluster.epoch_ends({LOGS[3]: 4}) == {LOGS[3]: EpochEnd(4, 4, 31)}


def test_unknown_epochs_are_left_out(brokers: Brokers, cluster: Cluster) -> None:
    assert cluster.epoch_ends({LOGS[0]: 9, LOGS[1]: 0}) == {LOGS[1]: EpochEnd(0, 0, 10)}
    del brokers[1].versions[LEADER_EPOCHS]
    with Cluster([(brokers[0].host, brokers[0].port)], timeout_s=5) as of_old_brokers:
        assert of_old_brokers.epoch_ends({LOGS[1]: 0}) == {}


def test_a_former_leader_reports_no_epoch_end(brokers: Brokers, cluster: Cluster) -> None:
    before = cluster.describe(["demo"]).leaders
    brokers[0].world.logs["demo", 2].elect(1)
    brokers[0].world.logs["demo", 2].leader_id = 2
    assert cluster.epoch_ends({LOGS[2]: 0}, leaders=before) == {LOGS[2]: EpochEnd(0, 0, 20)}


def test_an_epoch_end_needs_a_leader(brokers: Brokers, cluster: Cluster) -> None:
    brokers[0].world.logs["demo", 2].leader_id = -1
    with pytest.raises(BrokerError, match="The partition has no leader"):
        cluster.epoch_ends({LOGS[2]: 0}, wait_for_leader_s=0)


def test_a_leader_reports_its_epoch_with_the_end(brokers: Brokers, cluster: Cluster) -> None:
    brokers[0].world.logs["demo", 2].elect(6)
    assert cluster.extents(LOGS[2:3], isolation=COMMITTED).epochs == {LOGS[2]: 6}


# Members of a Kafka group


def assignment(*partitions: int) -> bytes:
    """Of `demo`, as a leader of the group writes it (ConsumerProtocolAssignment)."""
    numbers = b"".join(number.to_bytes(4, "big") for number in partitions)
    return (
        bytes.fromhex("0003 00000001 0004 64656d6f")
        + len(partitions).to_bytes(4, "big")
        + numbers
        + bytes.fromhex("ffffffff")
    )


def members_of(brokers: Brokers, cluster: Cluster) -> KafkaGroup:
    return cluster.members_of("g", [Broker(one.broker_id, one.host, one.port) for one in brokers])


def test_members_have_their_assignments(brokers: Brokers, cluster: Cluster) -> None:
    world = brokers[0].world
    world.coordinator, world.members = 2, {"c-1": assignment(0, 3), "c-2": assignment(), "c-3": b""}
    found = members_of(brokers, cluster)
    assert found == KafkaGroup(
        {
            "c-1 at 10.0.0.7": frozenset({LOGS[0], LOGS[3]}),
            "c-2 at 10.0.0.7": frozenset(),
            "c-3 at 10.0.0.7": None,
        }
    )
    assert requests_of(brokers, GROUPS) == [1, 1]
    assert requests_of(brokers, FIND_COORDINATOR) == [0, 0], "a lookup would create a topic"
    assert members_as_owners(found, LOGS[:2]) == dict.fromkeys(LOGS[:2], "c-3 at 10.0.0.7"), (
        "a member with an unknown assignment may own every partition"
    )


@pytest.mark.parametrize(
    ("state", "kind"), [("PreparingRebalance", "consumer"), ("Stable", "connect")]
)
def test_assignments_of_a_group_are_unknown_during_a_rebalance_or_for_another_protocol(
    brokers: Brokers, cluster: Cluster, state: str, kind: str
) -> None:
    world = brokers[0].world
    world.coordinator, world.members = 1, {"c-1": b"whatever it is"}
    world.group_state, world.group_type = state, kind
    assert members_of(brokers, cluster) == KafkaGroup({"c-1 at 10.0.0.7": None})


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("Stable", frozenset({LOGS[0], LOGS[3]})),
        ("Reconciling", frozenset({LOGS[0], LOGS[3]})),
        ("Assigning", None),
    ],
)
def test_members_of_the_consumer_protocol_have_present_and_target_assignments(
    state: str, expected: frozenset[TopicPartition] | None
) -> None:
    with (
        FakeBroker(versions={CONSUMER_GROUPS: (0, 1)}) as broker,
        Cluster([(broker.host, broker.port)], timeout_s=5) as cluster,
    ):
        broker.world.coordinator, broker.world.group_state = 1, state
        one = [Broker(broker.broker_id, broker.host, broker.port)]
        for code in (69, 35):
            broker.world.no_consumer_group = code
            assert cluster.members_of("g", one) == KafkaGroup(), (
                "no group of either protocol, or none can be"
            )
        broker.world.no_consumer_group = 30
        assert cluster.members_of("g", one) == KafkaGroup(unknown="GROUP_AUTHORIZATION_FAILED")
        broker.world.consumer_members = {"c-1": ([("demo", 0)], [("demo", 0), ("demo", 3)])}
        assert cluster.members_of("g", one) == KafkaGroup({"c-1 at 10.0.0.7": expected})


def test_a_group_without_permission_is_unknown(brokers: Brokers, cluster: Cluster) -> None:
    assert members_of(brokers, cluster) == KafkaGroup(), "it never existed"
    brokers[0].world.coordinator, brokers[0].world.group_error = 1, 30
    assert members_of(brokers, cluster) == KafkaGroup(unknown="GROUP_AUTHORIZATION_FAILED")


@pytest.mark.parametrize(
    "content", [b"\0", assignment(0)[:-6], bytes.fromhex("0000 7fffffff"), assignment(2**32 - 1)]
)
def test_an_invalid_assignment_is_unknown(
    brokers: Brokers, cluster: Cluster, content: bytes
) -> None:
    brokers[0].world.coordinator, brokers[0].world.members = 1, {"c-1": content}
    found = members_of(brokers, cluster)
    assert not found.members and found.unknown


def test_brokers_without_a_common_version_report_no_group_and_stop_nothing() -> None:
    with (
        FakeBroker(versions={GROUPS: (5, 6)}) as broker,
        Cluster([(broker.host, broker.port)], timeout_s=5) as cluster,
    ):
        found = cluster.members_of("g", [Broker(broker.broker_id, broker.host, broker.port)])
    assert found.unknown and "DESCRIBE_GROUPS" in found.unknown


def test_a_slow_broker_does_not_delay_requests_to_others() -> None:
    """Each broker waits until all 24 have a request."""
    many = 24
    all_asked = threading.Barrier(many)

    def held_until_all_are_requested(connection: socket.socket, response: bytes) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            all_asked.wait(timeout=20)
            as_it_is(connection, response)

    with contextlib.ExitStack() as closing:
        world = World()
        brokers = [
            closing.enter_context(FakeBroker(world, broker_id=number)) for number in range(many)
        ]
        for number, broker in enumerate(brokers):
            broker.log("demo", number)
            broker.script[LIST_OFFSETS].append(held_until_all_are_requested)
        cluster = closing.enter_context(Cluster([(brokers[0].host, brokers[0].port)], timeout_s=30))
        found = cluster.extents(
            [TopicPartition("demo", number) for number in range(many)],
            isolation=Isolation.READ_COMMITTED,
        )
    assert len(found.extents) == many and not all_asked.broken
