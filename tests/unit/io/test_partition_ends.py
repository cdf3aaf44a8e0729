"""The fingerprint of the bytes before an offset is of what the leader has; otherwise it is an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from etl.errors import BrokerError, BrokerRefusal, Meaning
from etl.io.brokers.partition_ends import read_fingerprints
from etl.kafka.request_values import FetchTarget, ListedOffset
from etl.model.partitions import Broker, Leader, TopicPartition

LOG = TopicPartition("clicks", 0, 1)
LEADER = Leader(Broker(1, "a", 9092, "jafka"), None)
OUT_OF_RANGE = BrokerRefusal(
    1, "OffsetOutOfRange", False, BrokerError, "Check it", Meaning.OUT_OF_RANGE
)
FAILED = BrokerRefusal(-1, "Unknown", False, BrokerError, "Check the broker's log")


class ExpiredLeader:
    """A leader that has none of the requested bytes, and lists this start of the partition."""

    address = "a:9092"

    def __init__(self, start: ListedOffset) -> None:
        self._start = start

    def multifetch(self, targets: Sequence[FetchTarget], *, max_bytes: int) -> Any:
        return SimpleNamespace(
            partitions=[
                SimpleNamespace(
                    topic=target.partition.topic,
                    partition=target.partition.partition,
                    refusal=OUT_OF_RANGE,
                    records=b"",
                )
                for target in targets
            ]
        )

    def list_offsets(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ListedOffset]:
        return dict.fromkeys(times, self._start)

    def request_leaders(self, leaders: Mapping[TopicPartition, Leader], ask: Any) -> list[Any]:
        return [ask(self, leaders.keys())]


def read_of(start: ListedOffset) -> Any:
    leader: Any = ExpiredLeader(start)
    return read_fingerprints(leader, {LOG: (500, 15)}, {LOG: LEADER})


def test_a_partition_that_ends_before_the_bytes_has_none_and_one_that_expired_them_is_left_out() -> (
    None
):
    assert read_of(ListedOffset(LOG, None, 0, None, None))[LOG].size == 15
    assert read_of(ListedOffset(LOG, None, 490, None, None)) == {}


def test_a_refused_start_is_an_error_and_no_other_log() -> None:
    with pytest.raises(BrokerError) as refused:
        read_of(ListedOffset(LOG, FAILED, None, None, None))
    assert refused.value.message == "The broker refused to list offsets: Unknown (code -1)"
    assert refused.value.where == {**LOG.place, "broker": "a:9092"}
