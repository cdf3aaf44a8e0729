"""The offset of a time: an answer that no record is that late is accepted only if the end of the
partition confirms it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from etl.errors import SettingsError
from etl.io.brokers.cluster_requests import Cluster
from etl.model.partitions import Isolation, TopicPartition
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FETCH, LIST_OFFSETS, FakeBroker, FakeLog, as_it_is
from tests.fakes.message_sets import Msg, encode_logical

LOG, OTHER = TopicPartition("demo", 0), TopicPartition("demo", 1)
NOON = 1_750_000_000_000
MIB = 1024 * 1024


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.log("demo", 0)
        running.log("demo", 1)
        yield running


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
    broker: FakeBroker,
    cluster: Cluster,
    last_ms: int,
    isolation: Isolation,
    spoken: tuple[int, int],
) -> None:
    broker.versions[LIST_OFFSETS] = spoken
    fill(broker, -1, -1, NOON + 5, last_ms).finds_no_time = True
    with pytest.raises(SettingsError, match="the partition does not confirm it") as raised:
        cluster.offsets_at({LOG: NOON})
    assert (raised.value.exit_code, raised.value.where["partition"]) == (2, 0)
    with pytest.raises(SettingsError, match="the partition does not confirm it"):
        cluster.first_at({LOG: NOON}, isolation=isolation)


def test_an_earlier_last_record_confirms_nothing(broker: FakeBroker, cluster: Cluster) -> None:
    fill(broker, -1, NOON + 5, NOON - 9).finds_no_time = True
    with pytest.raises(SettingsError, match="the partition does not confirm it"):
        cluster.offsets_at({LOG: NOON})
    with pytest.raises(SettingsError, match="the partition does not confirm it"):
        cluster.first_at({LOG: NOON})
    assert cluster.offsets_at({LOG: NOON}, may_be_earlier=True) == {LOG: 0}


def test_a_largest_timestamp_confirms_it(broker: FakeBroker, cluster: Cluster) -> None:
    fill(broker, NOON - 9, -1)
    fill(broker, -1, -1, partition=1)
    assert cluster.offsets_at({LOG: NOON, OTHER: NOON}) == {LOG: 2, OTHER: 2}
    assert requests_of(broker, FETCH) == 0, "no fetch is needed where the broker looks up times"


def test_a_message_without_timestamp_confirms_nothing(broker: FakeBroker, cluster: Cluster) -> None:
    broker.append("demo", 0, encode_logical([Msg(0, b"a")], 0))
    broker.log("demo", 0).finds_no_time = True
    with pytest.raises(SettingsError, match="the partition does not confirm it"):
        cluster.offsets_at({LOG: NOON})


def test_an_earlier_start_leaves_nothing_out(broker: FakeBroker, cluster: Cluster) -> None:
    fill(broker, -1, -1, NOON + 5).finds_no_time = True
    fill(broker, NOON - 5, NOON + 5, partition=1)
    assert cluster.offsets_at({LOG: NOON, OTHER: NOON}, may_be_earlier=True) == {LOG: 0, OTHER: 1}


def test_without_segments_it_starts_at_the_log_start(broker: FakeBroker, cluster: Cluster) -> None:
    broker.versions[LIST_OFFSETS] = (1, 10)
    partition = fill(broker, -1, -1, NOON + 5)
    partition.finds_no_time, partition.log_start = True, 1
    assert cluster.offsets_at({LOG: NOON}, may_be_earlier=True) == {LOG: 1}


def test_an_empty_partition_confirms_it(broker: FakeBroker, cluster: Cluster) -> None:
    partition = fill(broker, NOON - 9, NOON - 1)
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
    broker: FakeBroker, cluster: Cluster, spoken: tuple[int, int], answers: dict[int, int]
) -> None:
    broker.versions[LIST_OFFSETS] = spoken
    partition = fill(broker, NOON - 1)
    partition.finds_no_time = True

    def is_found_then(connection: object, frame: bytes) -> None:
        partition.finds_no_time = False
        connection.sendall(frame)  # type: ignore[attr-defined]

    fill(broker, NOON + 5)
    for key, before in answers.items():
        broker.script[key].extend([as_it_is] * before + [is_found_then])
    assert cluster.offsets_at({LOG: NOON}) == {LOG: 1}


def test_ends_are_read_by_few_requests(broker: FakeBroker, cluster: Cluster) -> None:
    broker.versions[LIST_OFFSETS] = BEFORE_3_0
    for number in range(20):
        fill(broker, NOON - 2, partition=number, size=2 * MIB if number in (3, 4) else 9)
    partitions = [TopicPartition("demo", number) for number in range(20)]
    found = cluster.offsets_at(dict.fromkeys(partitions, NOON))
    assert found == dict.fromkeys(partitions, 1)
    assert 1 <= requests_of(broker, FETCH) <= 3


def test_ends_are_read_again_if_the_broker_throttles(broker: FakeBroker, cluster: Cluster) -> None:
    broker.versions[LIST_OFFSETS] = BEFORE_3_0
    fill(broker, NOON - 2)
    broker.throttle.append(1)
    assert cluster.offsets_at({LOG: NOON}) == {LOG: 1}


def test_old_formats_start_with_a_segment(broker: FakeBroker, cluster: Cluster) -> None:
    fill(broker, *[-1] * 9).segments = [(0, NOON - 9), (4, NOON - 1), (7, NOON + 9)]
    fill(broker, NOON - 5, NOON + 5, partition=1)
    assert cluster.offsets_at({LOG: NOON, OTHER: NOON}, may_be_earlier=True) == {LOG: 4, OTHER: 1}
    assert cluster.offsets_at({LOG: NOON - 10}, may_be_earlier=True) == {LOG: 0}
    for ask in (cluster.offsets_at, cluster.first_at):
        with pytest.raises(SettingsError, match="UNSUPPORTED_FOR_MESSAGE_FORMAT"):
            ask({LOG: NOON, OTHER: NOON})
