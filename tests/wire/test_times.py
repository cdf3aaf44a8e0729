"""The offset of a time, for which an answer that no record is that late is accepted only if the end of
the partition confirms it. And the time of the oldest unread record of many partitions: few requests,
bounded bytes, and a reason if it is unknown.
"""

from __future__ import annotations

from typing import Any

import pytest

from etl.errors import SettingsError
from etl.io.brokers import exchange, times
from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.times import FIRST_BYTES, read_oldest
from etl.kafka import kafka_broker_type
from etl.model.partitions import Isolation, Leader, OldestRecord, TopicPartition
from tests.fakes.batches import Batch, Codec, Rec, control, encode
from tests.fakes.broker import FETCH, LIST_OFFSETS, FakeBroker, FakeLog, World, as_it_is
from tests.fakes.message_sets import Msg, encode_logical
from tests.fakes.old_broker import OldBroker

LOG, OTHER = TopicPartition("demo", 0), TopicPartition("demo", 1)
NOON = 1_750_000_000_000
MIB = 1024 * 1024


@pytest.fixture
def two_logs(broker: FakeBroker) -> FakeBroker:
    broker.log("demo", 0)
    broker.log("demo", 1)
    return broker


def fill(broker: FakeBroker, *times: int, partition: int = 0, size: int = 1) -> FakeLog:
    found = broker.log("demo", partition)
    for when in times:
        records = [Rec(0, b"x" * size)]
        one = Batch(found.log_end, records, base_timestamp=when, max_timestamp=when)
        broker.append("demo", partition, encode(one))
    return found


def requests_of(broker: FakeBroker, key: int) -> int:
    return [each for each, _ in broker.requests].count(key)


BEFORE_3_0 = (0, 6)
"""The versions of ListOffsets that know no largest timestamp."""


@pytest.mark.parametrize("last_ms", [NOON, NOON + 5, -1], ids=["as late", "later", "no timestamp"])
@pytest.mark.parametrize("isolation", Isolation)
@pytest.mark.parametrize("spoken", [(0, 9), BEFORE_3_0], ids=["3.9", "2.8"])
def test_no_record_is_not_believed_where_the_last_one_may_be_late(
    two_logs: FakeBroker,
    cluster: Cluster,
    last_ms: int,
    isolation: Isolation,
    spoken: tuple[int, int],
) -> None:
    two_logs.versions[LIST_OFFSETS] = spoken
    fill(two_logs, -1, -1, NOON + 5, last_ms).finds_no_time = True
    with pytest.raises(SettingsError, match="the partition does not confirm it") as raised:
        cluster.offsets_at({LOG: NOON})
    assert (raised.value.exit_code, raised.value.where["partition"]) == (2, 0)
    with pytest.raises(SettingsError, match="the partition does not confirm it"):
        cluster.first_at({LOG: NOON}, isolation=isolation)


def test_an_earlier_last_record_confirms_nothing(two_logs: FakeBroker, cluster: Cluster) -> None:
    fill(two_logs, -1, NOON + 5, NOON - 9).finds_no_time = True
    with pytest.raises(SettingsError, match="the partition does not confirm it"):
        cluster.offsets_at({LOG: NOON})
    with pytest.raises(SettingsError, match="the partition does not confirm it"):
        cluster.first_at({LOG: NOON})
    assert cluster.offsets_at({LOG: NOON}, may_be_earlier=True) == {LOG: 0}


def test_a_largest_timestamp_confirms_it(two_logs: FakeBroker, cluster: Cluster) -> None:
    fill(two_logs, NOON - 9, -1)
    fill(two_logs, -1, -1, partition=1)
    assert cluster.offsets_at({LOG: NOON, OTHER: NOON}) == {LOG: 2, OTHER: 2}
    assert requests_of(two_logs, FETCH) == 0, "no fetch is needed where the broker looks up times"


def test_a_message_without_timestamp_confirms_nothing(
    two_logs: FakeBroker, cluster: Cluster
) -> None:
    two_logs.append("demo", 0, encode_logical([Msg(0, b"a")], 0))
    two_logs.log("demo", 0).finds_no_time = True
    with pytest.raises(SettingsError, match="the partition does not confirm it"):
        cluster.offsets_at({LOG: NOON})


def test_an_earlier_start_leaves_nothing_out(two_logs: FakeBroker, cluster: Cluster) -> None:
    fill(two_logs, -1, -1, NOON + 5).finds_no_time = True
    fill(two_logs, NOON - 5, NOON + 5, partition=1)
    assert cluster.offsets_at({LOG: NOON, OTHER: NOON}, may_be_earlier=True) == {LOG: 0, OTHER: 1}


def test_without_segments_it_starts_at_the_log_start(
    two_logs: FakeBroker, cluster: Cluster
) -> None:
    two_logs.versions[LIST_OFFSETS] = (1, 10)
    partition = fill(two_logs, -1, -1, NOON + 5)
    partition.finds_no_time, partition.log_start = True, 1
    assert cluster.offsets_at({LOG: NOON}, may_be_earlier=True) == {LOG: 1}


def test_an_empty_partition_confirms_it(two_logs: FakeBroker, cluster: Cluster) -> None:
    partition = fill(two_logs, NOON - 9, NOON - 1)
    assert cluster.offsets_at({LOG: NOON, OTHER: NOON}) == {LOG: 2, OTHER: 0}
    assert cluster.first_at({LOG: NOON, OTHER: NOON}) == {LOG: None, OTHER: None}
    partition.batches.clear()
    partition.log_start = 2
    assert cluster.offsets_at({LOG: NOON}) == {LOG: 2}


@pytest.mark.parametrize(
    ("spoken", "answers"),
    [(BEFORE_3_0, {FETCH: 0}), ((0, 9), {LIST_OFFSETS: 2})],
    ids=["after the request for the end", "after the largest time"],
)
def test_a_record_that_arrives_during_the_requests_is_found(
    two_logs: FakeBroker, cluster: Cluster, spoken: tuple[int, int], answers: dict[int, int]
) -> None:
    two_logs.versions[LIST_OFFSETS] = spoken
    partition = fill(two_logs, NOON - 1)
    partition.finds_no_time = True

    def is_found_then(connection: object, frame: bytes) -> None:
        partition.finds_no_time = False
        connection.sendall(frame)  # type: ignore[attr-defined]

    fill(two_logs, NOON + 5)
    for key, before in answers.items():
        two_logs.script[key].extend([as_it_is] * before + [is_found_then])
    assert cluster.offsets_at({LOG: NOON}) == {LOG: 1}


def test_ends_are_read_by_few_requests(two_logs: FakeBroker, cluster: Cluster) -> None:
    two_logs.versions[LIST_OFFSETS] = BEFORE_3_0
    for number in range(20):
        fill(two_logs, NOON - 2, partition=number, size=2 * MIB if number in (3, 4) else 9)
    partitions = [TopicPartition("demo", number) for number in range(20)]
    found = cluster.offsets_at(dict.fromkeys(partitions, NOON))
    assert found == dict.fromkeys(partitions, 1)
    assert 1 <= requests_of(two_logs, FETCH) <= 3


def test_ends_are_read_again_if_the_broker_throttles(
    two_logs: FakeBroker, cluster: Cluster
) -> None:
    two_logs.versions[LIST_OFFSETS] = BEFORE_3_0
    fill(two_logs, NOON - 2)
    two_logs.throttle.append(1)
    assert cluster.offsets_at({LOG: NOON}) == {LOG: 1}


def test_old_formats_start_with_a_segment(two_logs: FakeBroker, cluster: Cluster) -> None:
    fill(two_logs, *[-1] * 9).segments = [(0, NOON - 9), (4, NOON - 1), (7, NOON + 9)]
    fill(two_logs, NOON - 5, NOON + 5, partition=1)
    assert cluster.offsets_at({LOG: NOON, OTHER: NOON}, may_be_earlier=True) == {LOG: 4, OTHER: 1}
    assert cluster.offsets_at({LOG: NOON - 10}, may_be_earlier=True) == {LOG: 0}
    for ask in (cluster.offsets_at, cluster.first_at):
        with pytest.raises(SettingsError, match="UNSUPPORTED_FOR_MESSAGE_FORMAT"):
            ask({LOG: NOON, OTHER: NOON})


# The oldest unread record


AT = 1_700_000_000_000
LOGS = [TopicPartition("demo", number) for number in range(8)]
COMMITTED = Isolation.READ_COMMITTED
LARGE = b"x" * (FIRST_BYTES + 1)


def batch(base_offset: int, *, value: bytes = b"", records: int = 10) -> bytes:
    """The timestamp of its record is `AT` plus its offset, in seconds."""
    found = [
        Rec(delta, value if delta == 0 else b"", timestamp_delta=1000 * delta)
        for delta in range(records)
    ]
    return encode(Batch(base_offset, found, base_timestamp=AT + 1000 * base_offset))


def oldest_of(
    broker: FakeBroker | OldBroker,
    unread: dict[TopicPartition, tuple[int, int]],
    isolation: Isolation = COMMITTED,
) -> dict[TopicPartition, OldestRecord]:
    with Cluster([("127.0.0.1", broker.port)], timeout_s=5) as cluster:
        leaders = cluster.describe({partition.topic for partition in unread}).leaders
        return read_oldest(cluster, unread, leaders, isolation=isolation)


@pytest.mark.parametrize("offset", [0, 9, 10, 13])
def test_the_time_is_that_of_the_record_in_a_batch(broker: FakeBroker, offset: int) -> None:
    broker.append("demo", 0, batch(0), batch(10))
    assert oldest_of(broker, {LOGS[0]: (offset, 20)}) == {LOGS[0]: OldestRecord(AT + 1000 * offset)}


def test_an_append_time_is_that_of_the_whole_batch(broker: FakeBroker) -> None:
    times: dict[str, Any] = {"base_timestamp": AT, "max_timestamp": AT + 7, "append_time": True}
    broker.append("demo", 0, encode(Batch(0, [Rec(0), Rec(1)], codec=Codec.GZIP, **times)))
    assert oldest_of(broker, {LOGS[0]: (1, 2)}) == {LOGS[0]: OldestRecord(AT + 7)}


def test_all_logs_of_a_broker_are_in_one_request() -> None:
    world = World()
    with FakeBroker(world, broker_id=1) as first, FakeBroker(world, broker_id=2) as second:
        for partition in LOGS:
            leader = (first, second)[partition.partition % 2]
            leader.log(partition.topic, partition.partition)
            leader.append(partition.topic, partition.partition, batch(0))
        assert oldest_of(first, {partition: (partition.partition, 10) for partition in LOGS}) == {
            partition: OldestRecord(AT + 1000 * partition.partition) for partition in LOGS
        }
        assert (requests_of(first, FETCH), requests_of(second, FETCH)) == (1, 1)


def test_large_batches_are_requested_together(broker: FakeBroker) -> None:
    for partition in LOGS:
        broker.append("demo", partition.partition, batch(0, value=LARGE))
    assert oldest_of(broker, {partition: (0, 10) for partition in LOGS}) == dict.fromkeys(
        LOGS, OldestRecord(AT)
    )
    assert requests_of(broker, FETCH) == 2


def test_the_bytes_of_a_broker_are_bounded(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "SEARCHED_BYTES_MAX", 2 * len(LARGE))
    monkeypatch.setattr(times, "_ANSWER_BYTES_MAX", 2 * FIRST_BYTES)
    for partition in LOGS:
        broker.append("demo", partition.partition, batch(0, value=LARGE))
    found = oldest_of(broker, {partition: (0, 10) for partition in LOGS})
    assert found.keys() == set(LOGS) and requests_of(broker, FETCH) <= 3
    unknown = [one for one in found.values() if one.timestamp_ms is None]
    assert 0 < len(unknown) < len(LOGS) and all(one.why for one in unknown)


def test_an_aborted_record_is_not_the_oldest(broker: FakeBroker) -> None:
    aborted = encode(
        Batch(0, [Rec(0), Rec(1)], producer_id=7, transactional=True, base_timestamp=AT)
    )
    broker.append("demo", 0, aborted, encode(control(2, 7, kind=0)), batch(3))
    broker.log("demo", 0).aborted = [(7, 0)]
    assert oldest_of(broker, {LOGS[0]: (0, 13)}) == {LOGS[0]: OldestRecord(AT + 3000)}
    assert oldest_of(broker, {LOGS[0]: (0, 13)}, Isolation.READ_UNCOMMITTED) == {
        LOGS[0]: OldestRecord(AT)
    }


def test_a_record_after_many_aborted_ones_is_found(broker: FakeBroker) -> None:
    for offset in range(4):
        broker.append(
            "demo", 0, encode(Batch(offset, [Rec(0, LARGE)], producer_id=7, transactional=True))
        )
    broker.append("demo", 0, encode(control(4, 7, kind=0)), batch(5))
    broker.log("demo", 0).aborted = [(7, 0)]
    assert oldest_of(broker, {LOGS[0]: (0, 15)}) == {LOGS[0]: OldestRecord(AT + 5000)}


def test_a_marker_is_no_record_and_a_later_one_not_unread(broker: FakeBroker) -> None:
    broker.append("demo", 0, encode(control(0, 7, kind=1)))
    for _ in range(2):
        [one] = oldest_of(broker, {LOGS[0]: (0, 1)}).values()
        assert one.timestamp_ms is None and one.why and "hold no record" in one.why
        broker.append("demo", 0, batch(1))


def test_a_refused_partition_hides_no_other(broker: FakeBroker) -> None:
    for partition in LOGS[:2]:
        broker.append("demo", partition.partition, batch(0))
    broker.log("demo", 0).refusals.append(6)
    found = oldest_of(broker, {partition: (0, 10) for partition in LOGS[:2]})
    assert found[LOGS[1]] == OldestRecord(AT)
    assert found[LOGS[0]].timestamp_ms is None and "NOT_LEADER" in (found[LOGS[0]].why or "")


def test_a_damaged_record_is_reported_and_hides_no_other_one(broker: FakeBroker) -> None:
    damaged = bytearray(batch(0))
    damaged[-1] ^= 0xFF
    broker.append("demo", 0, bytes(damaged))
    broker.append("demo", 1, batch(0))
    found = oldest_of(broker, {partition: (0, 10) for partition in LOGS[:2]})
    assert found[LOGS[1]] == OldestRecord(AT)
    assert (found[LOGS[0]].why or "").startswith("its record cannot be read: ")


def test_a_log_without_a_response_is_requested_a_few_times_only(broker: FakeBroker) -> None:
    broker.append("demo", 0, batch(0))
    broker.log("demo", 0).withheld = 100
    assert oldest_of(broker, {LOGS[0]: (0, 10)}) == {
        LOGS[0]: OldestRecord(why="the broker returned no record of it")
    }
    assert requests_of(broker, FETCH) <= 4


def test_an_absent_broker_hides_only_its_own_logs() -> None:
    world = World()
    with FakeBroker(world, broker_id=1) as there:
        with FakeBroker(world, broker_id=2) as gone:
            gone.log("demo", 1)
            gone.append("demo", 1, batch(0))
        there.append("demo", 0, batch(0))
        found = oldest_of(there, {partition: (0, 10) for partition in LOGS[:2]})
    assert found[LOGS[0]] == OldestRecord(AT)
    assert found[LOGS[1]].timestamp_ms is None and found[LOGS[1]].why


def test_a_log_without_a_leader_is_not_requested(broker: FakeBroker) -> None:
    with Cluster([("127.0.0.1", broker.port)], timeout_s=5) as cluster:
        leaders: dict[TopicPartition, Leader] = {}
        assert read_oldest(cluster, {LOGS[0]: (0, 10)}, leaders, isolation=COMMITTED) == {}
    assert requests_of(broker, FETCH) == 0


@pytest.mark.parametrize("release", ["0.8", "0.9"])
def test_old_messages_have_no_time(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_unanswering", set())
    monkeypatch.setattr(kafka_broker_type, "HANDSHAKE_PATIENCE_S", 0.05)
    with OldBroker(release) as broker:
        broker.log("demo", 0).append(b"one", LARGE)
        found = oldest_of(broker, {LOGS[0]: (0, 2)})
    assert found == {LOGS[0]: OldestRecord(why="its message format has no timestamps")}
