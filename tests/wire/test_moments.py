"""The offset of a time: a leader's answer that there is none is accepted if the end of the log
confirms it.
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
    topic_partition = broker.log("demo", partition)
    for when in times:
        broker.append(
            "demo",
            partition,
            encode(
                Batch(
                    topic_partition.log_end,
                    [Rec(0, b"x" * size)],
                    base_timestamp=when,
                    max_timestamp=when,
                )
            ),
        )
    return topic_partition


def requests_of(broker: FakeBroker, key: int) -> int:
    return [each for each, _ in broker.requests].count(key)


BEFORE_3_0 = (0, 6)
"""The versions of ListOffsets that know no largest timestamp."""


@pytest.mark.parametrize("last_ms", [NOON, NOON + 5, -1], ids=["as late", "later", "no timestamp"])
@pytest.mark.parametrize("isolation", Isolation)
@pytest.mark.parametrize("spoken", [(0, 9), BEFORE_3_0], ids=["3.9", "2.8"])
def test_a_word_that_nothing_is_that_late_is_not_believed_where_the_last_record_may_be(
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


def test_a_word_is_not_believed_where_a_record_is_as_late_though_the_last_one_is_earlier(
    broker: FakeBroker, cluster: Cluster
) -> None:
    fill(broker, -1, NOON + 5, NOON - 9).finds_no_time = True
    with pytest.raises(SettingsError, match="the partition does not confirm it"):
        cluster.offsets_at({LOG: NOON})
    with pytest.raises(SettingsError, match="the partition does not confirm it"):
        cluster.first_at({LOG: NOON})
    assert cluster.offsets_at({LOG: NOON}, may_be_earlier=True) == {LOG: 0}


def test_a_word_is_believed_where_no_record_is_that_late_though_the_last_one_has_no_timestamp(
    broker: FakeBroker, cluster: Cluster
) -> None:
    fill(broker, NOON - 9, -1)
    fill(broker, -1, -1, partition=1)
    assert cluster.offsets_at({LOG: NOON, OTHER: NOON}) == {LOG: 2, OTHER: 2}
    assert requests_of(broker, FETCH) == 0, "no fetch is needed where the broker looks up times"


def test_a_last_message_of_a_format_without_timestamps_bears_nothing_out(
    broker: FakeBroker, cluster: Cluster
) -> None:
    broker.append("demo", 0, encode_logical([Msg(0, b"a")], 0))
    broker.log("demo", 0).finds_no_time = True
    with pytest.raises(SettingsError, match="the partition does not confirm it"):
        cluster.offsets_at({LOG: NOON})


def test_a_start_that_may_be_earlier_passes_nothing_over_where_the_word_is_not_believed(
    broker: FakeBroker, cluster: Cluster
) -> None:
    fill(broker, -1, -1, NOON + 5).finds_no_time = True
    fill(broker, NOON - 5, NOON + 5, partition=1)
    assert cluster.offsets_at({LOG: NOON, OTHER: NOON}, may_be_earlier=True) == {LOG: 0, OTHER: 1}


def test_a_start_that_may_be_earlier_is_the_log_start_if_brokers_do_not_report_segments(
    broker: FakeBroker, cluster: Cluster
) -> None:
    broker.versions[LIST_OFFSETS] = (1, 10)
    partition = fill(broker, -1, -1, NOON + 5)
    partition.finds_no_time, partition.log_start = True, 1
    assert cluster.offsets_at({LOG: NOON}, may_be_earlier=True) == {LOG: 1}


def test_a_word_is_believed_where_the_last_record_is_earlier_or_none_is_left(
    broker: FakeBroker, cluster: Cluster
) -> None:
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


def test_a_record_after_an_open_transaction_makes_no_answer_doubtful(
    broker: FakeBroker, cluster: Cluster
) -> None:
    fill(broker, NOON - 1, NOON + 5).last_stable = 1
    assert cluster.first_at({LOG: NOON}) == {LOG: None}


def test_the_ends_of_many_logs_are_read_in_one_request_and_large_ones_alone(
    broker: FakeBroker, cluster: Cluster
) -> None:
    broker.versions[LIST_OFFSETS] = BEFORE_3_0
    partitions = {TopicPartition("demo", number): NOON for number in range(20)}
    for partition in partitions:
        fill(
            broker,
            NOON - 2,
            partition=partition.partition,
            size=2 * MIB if partition.partition in (3, 4) else 9,
        )
    assert cluster.offsets_at(partitions) == dict.fromkeys(partitions, 1)
    assert 1 <= requests_of(broker, FETCH) <= 3


def test_ends_are_read_again_if_the_broker_throttles(broker: FakeBroker, cluster: Cluster) -> None:
    broker.versions[LIST_OFFSETS] = BEFORE_3_0
    fill(broker, NOON - 2)
    broker.throttle.append(1)
    assert cluster.offsets_at({LOG: NOON}) == {LOG: 1}


def test_a_log_of_a_format_that_cannot_be_searched_starts_with_the_last_segment_written_by_then(
    broker: FakeBroker, cluster: Cluster
) -> None:
    fill(broker, *[-1] * 9).segments = [(0, NOON - 9), (4, NOON - 1), (7, NOON + 9)]
    fill(broker, NOON - 5, NOON + 5, partition=1)
    assert cluster.offsets_at({LOG: NOON, OTHER: NOON}, may_be_earlier=True) == {LOG: 4, OTHER: 1}
    assert cluster.offsets_at({LOG: NOON - 10}, may_be_earlier=True) == {LOG: 0}
    for ask in (cluster.offsets_at, cluster.first_at):
        with pytest.raises(SettingsError, match="UNSUPPORTED_FOR_MESSAGE_FORMAT"):
            ask({LOG: NOON, OTHER: NOON})
