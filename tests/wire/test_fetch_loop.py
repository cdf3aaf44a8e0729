"""The fetch loop of one task against fake brokers: each row once, or a named error."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from etl.errors import (
    BrokerError,
    BrokerUnreachable,
    CorruptData,
    DataLoss,
    EtlError,
    MissingOffsets,
    NeedsDecision,
    NotYetReadable,
    PartitionTruncated,
    RanOutBeforeUntil,
    TopicMissing,
)
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.kafka import versions
from etl.kafka.request_values import FetchTarget
from etl.model.partitions import Broker, Cleanup, Leader, TopicPartition, parse_intervals
from etl.model.plans import OffsetRange, RangeResult
from etl.reader.fetch import read_ranges
from etl.testkit.server_process import wait_until
from tests.builders import split_fetch_options
from tests.fakes.batches import Batch, Codec, Rec, answer, encode
from tests.fakes.broker import (
    FETCH,
    METADATA,
    FakeBroker,
    World,
    cut_to,
    hang_up,
    late,
    never,
    reset_after,
    stalls_after,
)
from tests.fakes.logs import cursor_of
from tests.fakes.message_sets import Msg, Wrapper, message_bytes, wrapper_bytes


@dataclass
class Task:
    """One call of `read_ranges` and what came of it; patience is set for tests."""

    broker: FakeBroker
    ranges: Sequence[OffsetRange]
    settings: dict[str, Any] = field(default_factory=dict)
    results: dict[int, RangeResult] = field(default_factory=dict)

    def batches(self) -> Iterator[pa.RecordBatch]:
        options, others = split_fetch_options(
            {
                "on_result": self.results.__setitem__,
                "columns": ("topic", "partition", "offset"),
                "bootstrap": ((self.broker.host, self.broker.port),),
                "backoff_s": 0.001,
                "retry": 3,
                "max_wait_ms": 20,
                "timeout_s": 5,
                **self.settings,
            }
        )
        return read_ranges(self.ranges, options, **others)

    def rows(self) -> list[tuple[int, int]]:
        return [
            (row["partition"], row["offset"])
            for arrow_batch in self.batches()
            for row in arrow_batch.to_pylist()
        ]


def fill(
    broker: FakeBroker, partition: int, *, batches: int, records: int = 10, size: int = 10
) -> None:
    start = broker.log("demo", partition).log_end
    content = [Rec(delta, b"x" * size) for delta in range(records)]
    for number in range(batches):
        broker.append("demo", partition, encode(Batch(start + number * records, content)))


def wanted(
    partition: int, from_offset: int, until_offset: int, leader: Leader | None = None
) -> OffsetRange:
    return OffsetRange(TopicPartition("demo", partition), from_offset, until_offset, leader)


def offsets(partition: int, from_offset: int, until_offset: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(from_offset, until_offset)]


def leader(broker: FakeBroker) -> Leader:
    return Leader(Broker(broker.broker_id, broker.host, broker.port), 0)


# Records


def test_a_range_with_a_named_leader_is_read_without_metadata(broker: FakeBroker) -> None:
    fill(broker, 0, batches=1)
    assert Task(broker, [wanted(0, 0, 10, leader(broker))], {"bootstrap": []}).rows() == offsets(
        0, 0, 10
    )
    assert METADATA not in {key for key, _ in broker.requests}


def test_an_empty_range_gets_its_result_without_a_connection(broker: FakeBroker) -> None:
    task = Task(broker, [wanted(0, 5, 5)])
    assert (task.rows(), task.results, broker.connections) == ([], {0: task.results[0]}, 0)
    assert task.results[0].rows == 0


def test_two_ranges_of_one_log_are_never_in_one_request(broker: FakeBroker) -> None:
    fill(broker, 0, batches=4)
    task = Task(broker, [wanted(0, 0, 20), wanted(0, 20, 40)])
    assert sorted(task.rows()) == offsets(0, 0, 40)
    assert all(names == [("demo", 0)] for names in broker.fetched)
    assert [task.results[index].rows for index in range(2)] == [20, 20]


def test_no_log_starves_next_to_one_that_could_fill_every_response(broker: FakeBroker) -> None:
    fill(broker, 0, batches=200, size=100)
    for partition in (1, 2):
        fill(broker, partition, batches=3, size=100)
    last_of: dict[int, int] = {}
    ranges = [wanted(0, 0, 2000), wanted(1, 0, 30), wanted(2, 0, 30)]
    for number, (partition, _) in enumerate(Task(broker, ranges, {"fetch_max_bytes": 1500}).rows()):
        last_of[partition] = number
    assert max(last_of[1], last_of[2]) < 200 < last_of[0]


def test_missing_offsets_are_named_together_after_the_read(broker: FakeBroker) -> None:
    for partition in (0, 1):
        for start in (0, 20, 30, 50):
            broker.append("demo", partition, encode(Batch(start, [Rec(at) for at in range(10)])))
    ranges = [wanted(0, 0, 60), wanted(1, 0, 45), wanted(1, 45, 60)]
    task = Task(broker, ranges, {"cleanups": {"demo": Cleanup(False)}})
    text = "40 offsets are missing.*does not include compact"
    with pytest.raises(MissingOffsets, match=text) as raised:
        task.rows()
    missing = raised.value.where["missing"]
    assert missing == "demo:0:10-20 demo:0:40-50 demo:1:10-20 demo:1:40-45 demo:1:45-50"
    assert parse_intervals(missing)[0] == (TopicPartition("demo", 0), 10, 20)
    assert raised.value.exit_code == 5


@pytest.mark.parametrize(
    "settings", [{"cleanups": {"demo": Cleanup(True)}}, {"fails_on_data_loss": False}]
)
def test_missing_offsets_may_be_compacted_or_allowed(
    broker: FakeBroker, settings: dict[str, Any]
) -> None:
    for start in (0, 20):
        broker.append("demo", 0, encode(Batch(start, [Rec(delta) for delta in range(10)])))
    task = Task(broker, [wanted(0, 0, 30)], settings)
    assert task.rows() == offsets(0, 0, 10) + offsets(0, 20, 30)
    assert task.results[0].missing_offsets == 10


def test_a_log_full_of_holes_is_reported_as_possibly_compacted(broker: FakeBroker) -> None:
    broker.append("demo", 0, *(encode(Batch(2 * number, [Rec(0)])) for number in range(200)))
    with pytest.raises(
        DataLoss, match="199 places, as compaction leaves them.*DescribeConfigs.*assume_compacted"
    ) as raised:
        Task(broker, [wanted(0, 0, 399)]).rows()
    assert not isinstance(raised.value, MissingOffsets)


@pytest.mark.parametrize(
    ("cleanup", "check"),
    [
        (Cleanup(False, is_tiered=True), "remote.fetch.max.wait.ms"),
        (Cleanup(), "DescribeConfigs"),
        (Cleanup(False), "assume_compacted"),
    ],
)
def test_records_that_a_broker_withholds_are_left_to_a_later_run(
    broker: FakeBroker, cleanup: Cleanup, check: str
) -> None:
    fill(broker, 0, batches=1)
    broker.log("demo", 0).withheld = 10_000
    task = Task(broker, [wanted(0, 0, 10)], {"deadline_s": 0.05, "cleanups": {"demo": cleanup}})
    with pytest.raises(NotYetReadable, match=check) as raised:
        task.rows()
    assert raised.value.exit_code == 6
    assert raised.value.where == {"topic": "demo", "partition": 0, "offset": 0}


# The order of things


def test_the_next_fetch_is_sent_before_the_rows_of_this_one_are_taken(broker: FakeBroker) -> None:
    fill(broker, 0, batches=10, size=100)
    rows = Task(broker, [wanted(0, 0, 100)], {"fetch_max_bytes": 1500}).batches()
    next(rows)
    assert wait_until(lambda: len(broker.fetched) == 2, 10)
    rows.close()  # type: ignore[attr-defined]


def test_closing_the_iterator_hangs_up_and_gives_no_result(broker: FakeBroker) -> None:
    fill(broker, 0, batches=10, size=100)
    task = Task(broker, [wanted(0, 0, 100)], {"fetch_max_bytes": 1500})
    rows = task.batches()
    next(rows)
    assert task.results == {}
    rows.close()  # type: ignore[attr-defined]
    assert wait_until(lambda: broker.open_connections() == 0, 10)


# Leaders that move, connections that break


@pytest.mark.parametrize("code", [1, 6, 3, 5, 9, 56, 74, 75, 78, -1])
def test_a_transient_refusal_repeats_the_position(broker: FakeBroker, code: int) -> None:
    fill(broker, 0, batches=5)
    broker.log("demo", 0).refusals.append(code)
    assert Task(broker, [wanted(0, 0, 50)]).rows() == offsets(0, 0, 50)


def test_a_log_that_moved_to_another_broker_is_read_on_from_there() -> None:
    world = World()
    with FakeBroker(world, broker_id=1) as first, FakeBroker(world, broker_id=2) as second:
        fill(first, 0, batches=10, size=100)
        fill(first, 1, batches=10, size=100)
        task = Task(first, [wanted(0, 0, 100), wanted(1, 0, 100)], {"fetch_max_bytes": 1500})
        rows = task.batches()
        seen = [next(rows)]
        world.logs["demo", 0].leader_id = 2
        seen += rows
        found = sorted(
            (row["partition"], row["offset"]) for each in seen for row in each.to_pylist()
        )
        assert found == offsets(0, 0, 100) + offsets(1, 0, 100)
        assert [("demo", 0)] in second.fetched


def test_a_leader_of_the_plan_that_is_gone_is_looked_up(broker: FakeBroker) -> None:
    fill(broker, 0, batches=1)
    with socket.create_server(("127.0.0.1", 0)) as unknown:
        gone = Leader(Broker(9, *unknown.getsockname()))
    assert Task(broker, [wanted(0, 0, 10, gone)]).rows() == offsets(0, 0, 10)


def test_a_leader_epoch_of_the_plan_that_is_over_is_looked_up(broker: FakeBroker) -> None:
    fill(broker, 0, batches=1)
    broker.log("demo", 0).leader_epoch = 3
    assert Task(broker, [wanted(0, 0, 10, leader(broker))]).rows() == offsets(0, 0, 10)
    assert len(broker.fetched) == 2


@pytest.mark.parametrize("act", [reset_after(100), reset_after(2)])
def test_a_reset_neither_loses_nor_doubles_rows(broker: FakeBroker, act: Any) -> None:
    fill(broker, 0, batches=20, size=100)
    broker.script[FETCH].extend([lambda connection, frame: connection.sendall(frame), act])
    assert Task(broker, [wanted(0, 0, 200)], {"fetch_max_bytes": 1500}).rows() == offsets(0, 0, 200)


@pytest.mark.parametrize(
    ("happens", "kind", "text"),
    [
        (lambda broker: broker.script[FETCH].extend([hang_up] * 20), BrokerUnreachable, "broke"),
        (lambda broker: setattr(broker.log("demo"), "leader_id", -1), BrokerError, "has no leader"),
        (lambda broker: broker.world.logs.clear(), TopicMissing, None),
        (lambda broker: broker.throttle.extend([1] * 9999), BrokerUnreachable, "no records"),
        (lambda broker: broker.script[FETCH].append(cut_to(60)), CorruptData, None),
        (lambda broker: broker.log("demo").batches.clear(), RanOutBeforeUntil, None),
    ],
    ids=["hangs up", "no leader", "deleted", "throttled", "truncated", "beyond the end"],
)
def test_what_stays_wrong_is_named(
    broker: FakeBroker,
    happens: Callable[[FakeBroker], None],
    kind: type[EtlError],
    text: str | None,
) -> None:
    fill(broker, 0, batches=1)
    happens(broker)
    with pytest.raises(kind, match=text):
        Task(broker, [wanted(0, 5, 10)], {"deadline_s": 0.3}).rows()


def test_a_lasting_refusal_is_an_error_after_a_few_attempts(broker: FakeBroker) -> None:
    fill(broker, 0, batches=1)
    broker.log("demo", 0).refusals.extend([6] * 20)
    with pytest.raises(BrokerError, match="NOT_LEADER_OR_FOLLOWER") as raised:
        Task(broker, [wanted(0, 3, 10)]).rows()
    assert raised.value.where["partition"] == 0
    assert raised.value.where["offset"] == 3
    assert len(broker.fetched) == 4


def test_attempts_are_counted_anew_after_every_record_batch(broker: FakeBroker) -> None:
    fill(broker, 0, batches=8, size=100)
    broker.log("demo", 0).refusals.extend([0, 6, 6, 0, 6, 6, 0, 6, 6])
    assert Task(broker, [wanted(0, 0, 80)], {"fetch_max_bytes": 1200}).rows() == offsets(0, 0, 80)


def test_a_silent_broker_is_given_up_at_the_deadline(broker: FakeBroker) -> None:
    fill(broker, 0, batches=1)
    broker.script[FETCH].extend([never] * 40)
    settings = {"retry": 30, "timeout_s": 0.1, "max_wait_ms": 1, "deadline_s": 0.3}
    with pytest.raises(BrokerUnreachable, match="deadline passed"):
        Task(broker, [wanted(0, 0, 10)], settings).rows()
    assert len(broker.script[FETCH]) > 30, "attempts are left"


@pytest.mark.parametrize("newest", [13, 11, 4])
def test_batches_of_a_response_that_the_deadline_cut_are_kept_and_the_next_asks_for_half(
    newest: int,
) -> None:
    with FakeBroker(versions={FETCH: (0, newest)}) as broker:
        fill(broker, 0, batches=8, size=5000)
        fill(broker, 1, batches=1, size=5000)
        broker.script[FETCH].extend([stalls_after(220_000), stalls_after(20_000)])
        settings = {"timeout_s": 0.3, "fetch_max_bytes": 4 << 20}
        rows = Task(broker, [wanted(0, 0, 80), wanted(1, 0, 10)], settings).rows()
    assert sorted(rows) == offsets(0, 0, 80) + offsets(1, 0, 10)
    # The first response had four batches, the second one none.
    assert broker.wanted == [(0, 2 << 20), (0, 1 << 20), (40, 512 << 10)]


def test_a_truncated_message_that_is_larger_than_the_line_carries_ends_the_task() -> None:
    # Before 0.10.1 brokers cut a message at the requested size, so that the request grows again.
    with FakeBroker(versions={FETCH: (0, 2)}) as broker:
        broker.cuts_first_batch = True
        broker.append("demo", 0, message_bytes(Msg(0, b"x" * 100_000), 0))
        broker.script[FETCH].extend([stalls_after(90_000)] * 12)
        settings = {"timeout_s": 0.4, "retry": 1, "fetch_max_bytes": 128 << 10}
        with pytest.raises(BrokerUnreachable, match="of .* bytes arrived"):
            Task(broker, [wanted(0, 0, 1)], settings).rows()
    sizes = [size >> 10 for _, size in broker.wanted]
    assert sizes == [128, 64, 128, 97]


def test_a_log_that_waits_behind_slow_records_of_others_is_not_silent(broker: FakeBroker) -> None:
    for partition in range(4):
        fill(broker, partition, batches=1, size=200)
    broker.script[FETCH].extend([late(0.15)] * 4)
    ranges = [wanted(partition, 0, 10) for partition in range(4)]
    rows = Task(broker, ranges, {"fetch_max_bytes": 1024, "deadline_s": 0.2}).rows()
    assert len(rows) == 40


@pytest.mark.parametrize(
    ("newest", "size"), [*((newest, 1 << 16) for newest in range(14)), (2, 100), (13, 100)]
)
def test_all_formats_are_read_in_one_go(broker: FakeBroker, newest: int, size: int) -> None:
    broker.versions[FETCH] = (0, newest)
    of_0 = [Msg(offset, b"v") for offset in range(10)]
    of_1 = [Msg(offset, b"v", timestamp=5) for offset in range(10, 20)]
    broker.append(
        "demo",
        0,
        *(message_bytes(each, 0) for each in of_0[:5]),
        wrapper_bytes(Wrapper(of_0[5:]), 0),
    )
    broker.append(
        "demo",
        0,
        *(message_bytes(each, 1) for each in of_1[:5]),
        wrapper_bytes(Wrapper(of_1[5:], Codec.LZ4), 1),
    )
    broker.append("demo", 0, encode(Batch(20, [Rec(delta, b"v") for delta in range(10)])))
    task = Task(broker, [wanted(0, 3, 27)], {"fetch_max_bytes": size})
    assert task.rows() == offsets(0, 3, 27)
    assert (task.results[0].rows, task.results[0].missing_offsets) == (24, 0)


@pytest.mark.parametrize("newest", [13, 12, 11])
def test_an_unchanged_topic_is_read_by_id_or_name(broker: FakeBroker, newest: int) -> None:
    fill(broker, 0, batches=3)
    broker.versions[FETCH] = (0, newest)
    broker.world.topic_ids = {"demo": UUID(int=1)} if newest >= 12 else {}
    task = Task(broker, [wanted(0, 0, 30)], {"topic_ids": {"demo": str(UUID(int=1))}})
    assert task.rows() == offsets(0, 0, 30)
    assert {version for key, version in broker.requests if key == FETCH} == {newest}


@pytest.mark.parametrize("planned", ["zxid-1f", None])
def test_a_placeholder_id_is_not_sent(broker: FakeBroker, planned: str | None) -> None:
    fill(broker, 0, batches=3)
    with SimpleConsumer(broker.host, broker.port, request_timeout_s=5) as consumer:
        consumer.multifetch([FetchTarget(TopicPartition("demo", 0), 0, 100, topic_id=planned)])
    assert broker.requests[-1] == (FETCH, 12)


def test_a_broker_that_does_not_know_the_id_yet_is_retried(broker: FakeBroker) -> None:
    fill(broker, 0, batches=3)
    broker.world.topic_ids["demo"] = UUID(int=1)
    broker.log("demo", 0).refusals.extend([100, 100])
    task = Task(broker, [wanted(0, 0, 30)], {"topic_ids": {"demo": str(UUID(int=1))}})
    assert task.rows() == offsets(0, 0, 30)


@pytest.mark.parametrize("is_before", [True, False], ids=["before the read", "during the read"])
def test_no_record_of_a_recreated_topic_is_read(broker: FakeBroker, is_before: bool) -> None:
    fill(broker, 0, batches=3)
    planned, present = UUID(int=1), UUID(int=2)
    broker.world.topic_ids["demo"] = present if is_before else planned
    settings = {"topic_ids": {"demo": str(planned)}, "fetch_max_bytes": 100}
    rows = Task(broker, [wanted(0, 0, 30)], settings).batches()
    if not is_before:
        next(rows)
        broker.world.topic_ids["demo"] = present
    with pytest.raises(NeedsDecision, match=f"deleted and recreated.*{present}"):
        list(rows)
    assert not is_before or broker.fetched == [[(None, 0)]]


@pytest.mark.parametrize("is_truncated", [True, False])
def test_only_a_truncation_stops_the_task(broker: FakeBroker, is_truncated: bool) -> None:
    fill(broker, 0, batches=3)
    settings = {"leader_epochs": {TopicPartition("demo", 0): 0}, "fetch_max_bytes": 100}
    rows = Task(broker, [wanted(0, 0, 30, leader(broker))], settings).batches()
    first = next(rows)
    if is_truncated:
        broker.log("demo").batches[1:] = []
    broker.log("demo").elect(1)
    if not is_truncated:
        assert first.num_rows + sum(each.num_rows for each in rows) == 30
        return
    fill(broker, 0, batches=3)
    with pytest.raises(PartitionTruncated, match="truncated at offset 10, and records up to 30"):
        list(rows)


# Logs that give nothing, and other named ends


def test_a_log_that_is_throttled_for_a_while_is_read_all_the_same(broker: FakeBroker) -> None:
    fill(broker, 0, batches=3)
    broker.throttle.extend([5, 5, 5, 5, 5])
    task = Task(broker, [wanted(0, 0, 30)])
    assert task.rows() == offsets(0, 0, 30)
    assert task.results[0].gaps == ()


@pytest.mark.parametrize("waits_for", ["records", "the end of a transaction"])
def test_a_range_beyond_the_readable_end_is_waited_for(broker: FakeBroker, waits_for: str) -> None:
    fill(broker, 0, batches=1)
    if waits_for != "records":
        broker.log("demo", 0).last_stable = 10
        fill(broker, 0, batches=1)
    rows = Task(broker, [wanted(0, 0, 20)]).batches()
    seen = [next(rows)]
    if waits_for == "records":
        fill(broker, 0, batches=1)
    broker.log("demo", 0).last_stable = None
    assert sum(each.num_rows for each in [*seen, *rows]) == 20


def test_a_log_that_never_grows_up_to_the_range_ran_out(broker: FakeBroker) -> None:
    fill(broker, 0, batches=3)
    broker.log("demo", 0).high_watermark = 10
    with pytest.raises(RanOutBeforeUntil) as raised:
        Task(broker, [wanted(0, 0, 20)], {"deadline_s": 0.05}).rows()
    assert raised.value.where["topic"] == "demo"
    assert raised.value.where["partition"] == 0
    assert raised.value.where["offset"] == 10


@pytest.mark.parametrize("from_offset", [0, 15])
def test_a_lasting_transaction_is_left_to_a_retry(broker: FakeBroker, from_offset: int) -> None:
    fill(broker, 0, batches=3)
    broker.log("demo", 0).last_stable = 10
    with pytest.raises(NotYetReadable, match="a transaction is open") as raised:
        Task(broker, [wanted(0, from_offset, 20)], {"deadline_s": 0.05}).rows()
    assert raised.value.retriable and raised.value.where["offset"] == max(10, from_offset)


def test_offsets_below_the_log_start_are_data_loss_with_both_numbers(broker: FakeBroker) -> None:
    fill(broker, 0, batches=3)
    broker.log("demo", 0).log_start = 10
    with pytest.raises(DataLoss) as raised:
        Task(broker, [wanted(0, 5, 20)]).rows()
    assert (raised.value.where["offset"], raised.value.where["log_start_offset"]) == (5, 10)


@pytest.mark.parametrize(
    ("log_start", "end", "read"),
    [(10, 30, (10, 20)), (25, 30, (20, 20)), (0, 12, (5, 12)), (0, 3, (5, 5))],
)
def test_with_skipped_losses_the_rest_of_the_range_is_read(
    broker: FakeBroker, log_start: int, end: int, read: tuple[int, int]
) -> None:
    broker.append("demo", 0, encode(Batch(0, [Rec(delta) for delta in range(end)])))
    broker.log("demo", 0).log_start = log_start
    task = Task(broker, [wanted(0, 5, 20)], {"fails_on_data_loss": False, "deadline_s": 0.05})
    assert task.rows() == offsets(0, *read)
    assert task.results[0].rows == read[1] - read[0]


@pytest.mark.parametrize(
    "code", sorted({*versions.CODES, 999} - {versions.NONE, versions.OFFSET_OUT_OF_RANGE})
)
def test_every_reader_of_an_error_code_raises_the_same_error(broker: FakeBroker, code: int) -> None:
    fill(broker, 0, batches=1)
    broker.log("demo", 0).refusals.extend([code] * 2)
    reported = (versions.error_of(code) or versions.CODES[versions.NONE]).error("fetch")
    with (
        pytest.raises(EtlError) as of_a_fetch,
        SimpleConsumer(broker.host, broker.port, request_timeout_s=5) as consumer,
    ):
        consumer.fetch("demo", 0, 0)
    with pytest.raises(EtlError) as of_a_cursor:
        cursor_of(0, 10).feed(answer(b"", error_code=code))
    with pytest.raises(EtlError) as of_a_task:
        Task(broker, [wanted(0, 0, 10)], {"retry": 0}).rows()
    assert {type(raised.value) for raised in (of_a_fetch, of_a_cursor, of_a_task)} == {
        type(reported)
    }
    assert of_a_task.value.message == of_a_cursor.value.message == reported.message
