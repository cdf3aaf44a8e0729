"""`open_peek` on fake brokers: its start, its records, and each end."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from etl.commands import peek as peeking
from etl.commands.peek import Ended, PeekedPartition, PeekRequest, open_peek
from etl.errors import (
    BrokerError,
    BrokerUnreachable,
    EtlError,
    ExpiredOffsets,
    MessageTooLarge,
    MisalignedOffset,
    RanOutBeforeUntil,
    SettingsError,
    TopicMissing,
)
from etl.io.brokers.cluster_requests import Cluster
from etl.settings.choices import StartAt
from etl.settings.sections import Settings
from etl.settings.source import Timestamp
from tests.builders import plain_settings
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FETCH, FakeBroker, never, stalls_after
from tests.fakes.jafka import JafkaBroker, entry, registry_of, wrapped
from tests.fakes.message_sets import Msg, message_bytes

HOUR = 1_700_000_000_000


def at(text: str) -> Timestamp:
    return Timestamp.model_validate({"timestamp": text})


@pytest.fixture
def kafka() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        for start in range(0, 50, 10):
            records = [Rec(delta, b"%d" % (start + delta), b"k") for delta in range(10)]
            at = HOUR + start
            broker.append(
                "clicks", 0, encode(Batch(start, records, base_timestamp=at, max_timestamp=at))
            )
        yield broker


@pytest.fixture
def jafka(monkeypatch: pytest.MonkeyPatch) -> Iterator[JafkaBroker]:
    """As broker 3, with ZooKeeper's word for it."""
    with JafkaBroker(partitions=2).listening() as broker:

        @contextlib.contextmanager
        def open_cluster(settings: Settings) -> Iterator[Cluster]:
            with Cluster(
                [(broker.host, broker.port)],
                timeout_s=settings.source.request_timeout_s,
                registry=registry_of(broker, 3),
                broker_type="jafka",
            ) as cluster:
                yield cluster

        monkeypatch.setattr(peeking, "open_cluster", open_cluster)
        yield broker


def settings_of(broker: FakeBroker | JafkaBroker, **source: Any) -> Settings:
    if isinstance(broker, JafkaBroker):
        found: dict[str, Any] = {"assume_cluster_id": "old", "broker_type": "jafka"}
    else:
        found = {"bootstrap_servers": f"127.0.0.1:{broker.port}"}
    return plain_settings(source={**found, "wait_for_leader_s": 0, **source})


def peeked(
    broker: FakeBroker | JafkaBroker,
    partition: str = "0",
    *,
    topic: str = "clicks",
    source: Any = None,
    timeout_s: float = 0.3,
    **wanted: Any,
) -> tuple[list[tuple[int, bytes | None]], PeekedPartition]:
    request = PeekRequest(f"{topic}:{partition}", timeout_s=timeout_s, **wanted)
    with open_peek(settings_of(broker, **(source or {})), request) as log:
        return [(record.offset, record.value) for record in log.records()], log


def numbers(first: int, until: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in range(first, until)]


# Where it starts, and where it ends


@pytest.mark.parametrize(
    "start, first",
    [
        (0, 0),
        (17, 17),
        (50, 50),
        (StartAt.LATEST, 50),
        (at("2023-11-14T22:13:20.015+00:00"), 20),
        (at("2033-11-14T22:13:20+00:00"), 50),
    ],
)
def test_it_starts_at_an_offset_or_a_time(kafka: FakeBroker, start: Any, first: int) -> None:
    records, partition = peeked(kafka, start=start)
    assert records == numbers(first, 50)
    assert partition.ended == Ended.END
    assert partition.from_offset == first


@pytest.mark.parametrize("follows", [False, True])
def test_it_ends_at_the_count_inside_a_response(kafka: FakeBroker, follows: bool) -> None:
    records, partition = peeked(kafka, start=8, most=5, follows=follows, timeout_s=5)
    assert records == numbers(8, 13)
    assert partition.ended is Ended.COUNT
    assert partition.position == 13


def test_records_that_come_while_it_reads_are_beyond_its_end(kafka: FakeBroker) -> None:
    with open_peek(settings_of(kafka), PeekRequest("clicks:0", start=45)) as log:
        kafka.append("clicks", 0, encode(Batch(50, [Rec(0, b"late")])))
        assert [record.offset for record in log.records()] == [45, 46, 47, 48, 49]
        assert log.ended is Ended.END


def test_following_it_ends_when_nothing_came_in_time(kafka: FakeBroker) -> None:
    request = PeekRequest("clicks:0", start=StartAt.LATEST, follows=True, timeout_s=0.5)
    new = encode(Batch(50, [Rec(0, b"late"), Rec(1, b"later")]))
    with open_peek(settings_of(kafka), request) as log:
        threading.Timer(0.1, lambda: kafka.append("clicks", 0, new)).start()
        assert [record.value for record in log.records()] == [b"late", b"later"]
    assert (log.ended, log.position) == (Ended.TIME_OUT, 52)


def test_the_time_that_is_waited_counts_from_the_last_record(kafka: FakeBroker) -> None:
    with open_peek(
        settings_of(kafka), PeekRequest("clicks:0", start=49, follows=True, timeout_s=0.4)
    ) as log:
        records = log.records()
        next(records)
        time.sleep(0.5)  # a person who reads: that is no waiting of ours
        threading.Timer(
            0.1, lambda: kafka.append("clicks", 0, encode(Batch(50, [Rec(0, b"late")])))
        ).start()
        assert [record.value for record in records] == [b"late"]


def test_an_end_that_holds_no_records_any_more_ends_by_the_time(kafka: FakeBroker) -> None:
    kafka.log("clicks").high_watermark = 60
    assert peeked(kafka, start=45)[1].ended is Ended.TIME_OUT


def test_under_read_committed_it_ends_at_the_last_stable_offset(kafka: FakeBroker) -> None:
    kafka.log("clicks").last_stable = 20
    assert peeked(kafka)[0] == numbers(0, 20)
    assert peeked(kafka, source={"isolation_level": "read_uncommitted"})[0] == numbers(0, 50)


# Jafka


def test_a_partition_of_a_jafka_is_read_by_byte_positions(jafka: JafkaBroker) -> None:
    jafka.append("clicks", 1, entry(b"hello"), wrapped(entry(b"a"), entry(b"b")), entry(b"world!"))
    records, partition = peeked(jafka, "3-1")
    after = 15 + len(wrapped(entry(b"a"), entry(b"b")))
    assert records == [(0, b"hello"), (15, b"a"), (15, b"b"), (after, b"world!")]
    assert (partition.ended, partition.position) == (Ended.END, after + 16)


def test_a_count_inside_a_compressed_message_is_reported(jafka: JafkaBroker) -> None:
    compressed = wrapped(entry(b"a"), entry(b"b"))
    jafka.append("clicks", 0, entry(b"hello"), compressed)
    ends = [peeked(jafka, "3-0", most=most)[1] for most in (1, 2, 3)]
    assert [end.ended for end in ends] == [Ended.COUNT, Ended.INSIDE, Ended.COUNT]
    assert [end.position for end in ends] == [15, 15, 15 + len(compressed)]


def test_a_jafka_is_followed_through_its_segments(jafka: JafkaBroker) -> None:
    jafka.append("clicks", 0, entry(b"one"))
    jafka.logs["clicks", 0].roll()
    with open_peek(settings_of(jafka), PeekRequest("clicks:3-0", follows=True, timeout_s=1)) as log:
        threading.Timer(0.3, lambda: jafka.append("clicks", 0, entry(b"two"))).start()
        assert [record.value for record in log.records()] == [b"one", b"two"]
    assert len(jafka.requests) < 30, "an empty answer is followed by a pause"


def test_a_position_inside_a_message_is_an_error_with_that_position(jafka: JafkaBroker) -> None:
    jafka.append("clicks", 0, entry(b"hello" * 20), entry(b"world"))
    for inside in (1, 3, 8, 50):
        with pytest.raises(
            MisalignedOffset, match=f"offset {inside}.*(Pass --from|Check that a message begins)"
        ):
            peeked(jafka, "3-0", start=inside)


# Large records, little memory


def test_a_larger_record_is_read_by_a_larger_fetch(jafka: JafkaBroker) -> None:
    jafka.append("clicks", 0, entry(b"small"), entry(b"x" * 300_000), *[entry(b"y" * 9_000)] * 5)
    records, _ = peeked(jafka, "3-0", source={"fetch_max_bytes": 10_000})
    assert [len(value or b"") for _, value in records] == [5, 300_000, *[9_000] * 5]
    sizes = [int.from_bytes(body[-4:], "big") for kind, body in jafka.requests if kind == FETCH]
    assert max(sizes) == 300_010 and sizes[-1] == 10_000


def test_a_record_that_no_fetch_may_hold_names_the_setting(jafka: JafkaBroker) -> None:
    jafka.append("clicks", 0, entry(b"x" * 300_000))
    with pytest.raises(MessageTooLarge, match="it takes 300,010.*source.max_batch_bytes"):
        peeked(jafka, "3-0", source={"fetch_max_bytes": 10_000, "max_batch_bytes": 100_000})


def test_a_record_that_the_log_holds_only_the_begin_of_is_damage(jafka: JafkaBroker) -> None:
    jafka.append("clicks", 0, entry(b"hello"))
    jafka.logs["clicks", 0].content += entry(b"x" * 1000)[:500]
    jafka.flush()
    with pytest.raises(MisalignedOffset, match="claims 1,010 bytes, and 500 are there.*offset 15"):
        peeked(jafka, "3-0")


# Bad input


@pytest.mark.parametrize(
    "wanted, kind, match",
    [
        ({"topic": "nosuch"}, TopicMissing, "no such topic"),
        ({"partition": "7"}, SettingsError, "has no partition 7.*its partitions: 0"),
        (
            {"partition": "3-0"},
            SettingsError,
            "'clicks:3-0' names no partition of this cluster.*a number alone",
        ),
        ({"partition": "x"}, SettingsError, "clicks:x is a topic"),
        ({"partition": "-1"}, SettingsError, "'clicks:-1' names no log"),
        ({"partition": "99999999999"}, SettingsError, "names no log"),
        ({"start": 51}, SettingsError, "Offset 51 is not in the log, which has 0 to 50.*--from"),
    ],
)
def test_a_missing_partition_is_reported_with_the_existing_ones(
    kafka: FakeBroker, wanted: dict[str, Any], kind: type[EtlError], match: str
) -> None:
    with pytest.raises(kind, match=match):
        peeked(kafka, **wanted)


def test_a_partition_of_a_jafka_needs_its_broker(jafka: JafkaBroker) -> None:
    jafka.append("clicks", 0, entry(b"hello"))
    text = "Pass BROKER-PARTITION, e.g. 0-3, for source.broker_type jafka"
    with pytest.raises(SettingsError, match=text):
        peeked(jafka, "0")
    text = "no partition 4-0.*: 3-0, 3-1; partitions of an unreachable broker are unknown"
    with pytest.raises(SettingsError, match=text):
        peeked(jafka, "4-0")


# Trouble


def test_a_broker_that_stops_answering_is_given_up_at_the_deadline(kafka: FakeBroker) -> None:
    kafka.script[FETCH].extend([never] * 10)
    began = time.monotonic()
    with pytest.raises(BrokerUnreachable, match="deadline") as raised:
        peeked(kafka, source={"request_timeout_s": 0.4}, timeout_s=10)
    assert time.monotonic() - began < 4 and raised.value.exit_code == 6


@pytest.mark.parametrize("follows", [False, True])
def test_batches_of_a_response_that_the_deadline_cut_are_printed_and_the_next_asks_for_half(
    kafka: FakeBroker, follows: bool
) -> None:
    first_batch_ends = 4 + 70 + len(kafka.log("clicks").batches[0])
    cuts = [stalls_after(first_batch_ends + 10), stalls_after(90), stalls_after(20)]
    kafka.script[FETCH].extend(cuts)
    source = {"request_timeout_s": 0.3}
    # Less than a response may take: bytes that arrive are no lack of records.
    timeout_s = 10 if follows else 0.1
    records, _ = peeked(kafka, source=source, follows=follows, most=50, timeout_s=timeout_s)
    assert records == numbers(0, 50)
    full = 256 << 10
    assert kafka.wanted[:4] == [(0, full), (10, full // 2), (10, full // 4), (10, full // 4)]


@pytest.mark.parametrize("follows", [False, True])
def test_a_line_that_is_too_slow_for_the_least_fetch_is_an_error_with_its_bytes_and_keys(
    kafka: FakeBroker, follows: bool
) -> None:
    kafka.script[FETCH].extend([stalls_after(90)] * 10)
    with pytest.raises(BrokerUnreachable, match="of .* bytes arrived in") as raised:
        peeked(kafka, source={"request_timeout_s": 0.3}, follows=follows, timeout_s=10)
    assert "source.fetch_max_bytes" in raised.value.action
    assert "source.request_timeout_s" in raised.value.action
    assert [size >> 10 for _, size in kafka.wanted][:3] == [256, 128, 64]


def test_a_truncated_message_that_is_larger_than_the_line_carries_is_an_error() -> None:
    # Before 0.10.1 brokers cut a message at the requested size, so that the request grows again.
    with FakeBroker(versions={FETCH: (0, 2)}) as broker:
        broker.cuts_first_batch = True
        broker.append("clicks", 0, message_bytes(Msg(0, b"x" * 100_000), 0))
        broker.script[FETCH].extend([stalls_after(90_000)] * 12)
        with pytest.raises(BrokerUnreachable, match="of .* bytes arrived"):
            peeked(broker, source={"request_timeout_s": 0.4}, timeout_s=60)
    sizes = [size >> 10 for _, size in broker.wanted]
    assert sizes == [256, 128, 64, 128, 97, 97]


def test_a_line_that_cuts_every_least_fetch_after_complete_batches_is_no_error(
    kafka: FakeBroker,
) -> None:
    first_batch_ends = 4 + 70 + len(kafka.log("clicks").batches[0])
    kafka.script[FETCH].extend([stalls_after(first_batch_ends + 10)] * 6)
    records, _ = peeked(kafka, source={"request_timeout_s": 0.4}, timeout_s=30)
    assert records == numbers(0, 50)


def test_a_leader_that_moved_is_found_again(kafka: FakeBroker) -> None:
    kafka.log("clicks").refusals.extend([6, 5, 6])
    assert peeked(kafka, timeout_s=5)[0] == numbers(0, 50)


def test_a_permanent_rejection_is_raised_at_once(kafka: FakeBroker) -> None:
    kafka.log("clicks").refusals.extend([6] * 100)
    with pytest.raises(BrokerError, match="NOT_LEADER"):
        peeked(kafka, source={"request_timeout_s": 0.3}, timeout_s=10)
    kafka.log("clicks").refusals.clear()
    kafka.log("clicks").refusals.append(29)
    with pytest.raises(EtlError, match="TOPIC_AUTHORIZATION_FAILED"):
        peeked(kafka)
    assert not kafka.log("clicks").refusals


def test_a_broker_that_refuses_to_report_the_start_is_shown_with_its_code(
    kafka: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = kafka._listed

    def refused(*request: Any) -> Any:
        answer = listed(*request)
        answer.error_code = 29
        return answer

    with open_peek(settings_of(kafka), PeekRequest("clicks:0")) as log:
        kafka.log("clicks").refusals.append(1)
        monkeypatch.setattr(kafka, "_listed", refused)
        with pytest.raises(EtlError, match="report the start and end.*TOPIC_AUTHORIZATION_FAILED"):
            list(log.records())


def test_a_start_or_end_that_moves_past_it_is_reported(kafka: FakeBroker) -> None:
    def while_it_reads(change: Callable[[], None]) -> None:
        request = PeekRequest("clicks:0", start=5, follows=True, timeout_s=5)
        with open_peek(settings_of(kafka, fetch_max_bytes=1024), request) as peek:
            records = peek.records()
            next(records)
            change()
            list(itertools.islice(records, 100))

    log = kafka.log("clicks")
    for number in range(50, 3000, 50):
        records = [Rec(delta, b"x" * 10) for delta in range(50)]
        kafka.append("clicks", 0, encode(Batch(number, records)))
    with pytest.raises(ExpiredOffsets, match="deleted by retention.*log_start_offset 2000"):
        while_it_reads(lambda: setattr(log, "log_start", 2000))
    log.log_start = 0
    with pytest.raises(RanOutBeforeUntil, match="The partition ends at 10 now,"):
        while_it_reads(lambda: log.batches.__delitem__(slice(1, None)))
