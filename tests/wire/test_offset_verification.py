"""Verification of a byte offset of a Jafka partition."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from etl.io.brokers import cluster_requests
from etl.io.brokers.cluster_requests import Cluster, verify_offsets
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.model.partitions import Broker, Leader, LookedAt, TopicPartition, UnverifiedOffset
from tests.fakes.jafka import FETCH, MULTIFETCH, JafkaBroker, entry, wrapped

LOG, OTHER = TopicPartition("clicks", 0, 7), TopicPartition("clicks", 1, 7)
TEXT = b"a text of some length, as payloads are"


@pytest.fixture
def broker() -> Iterator[JafkaBroker]:
    with JafkaBroker(partitions=2).listening() as running:
        yield running


def looked(
    broker: JafkaBroker,
    *offsets: int,
    partition: TopicPartition = LOG,
    walk_from: int = 0,
    until: int | None = None,
    is_kept: bool = False,
) -> list[LookedAt]:
    end = until or broker.logs[partition.topic, partition.partition].end
    with SimpleConsumer("127.0.0.1", broker.port, broker_type="jafka") as consumer:
        found = verify_offsets(
            consumer,
            [UnverifiedOffset(partition, offset, walk_from, end, is_kept) for offset in offsets],
        )
    return sorted((one for _, one in found), key=lambda one: one.offset)


def bytes_requested(broker: JafkaBroker) -> int:
    return sum(int.from_bytes(body[-4:], "big") for kind, body in broker.requests if kind == FETCH)


def test_each_offset_of_a_log_is_verified_for_itself(broker: JafkaBroker) -> None:
    entries = [entry(b""), wrapped(entry(b"x"), entry(TEXT)), entry(TEXT)]
    end = broker.append("clicks", 0, *entries)
    starts = [0, len(entries[0]), len(entries[0]) + len(entries[1]), end]
    for at in range(1, end, 8):
        for one in looked(broker, *range(at, min(at + 8, end))):
            if one.offset in starts:
                assert one == LookedAt(one.offset, True)
                continue
            before = max(start for start in starts if start < one.offset)
            assert one.is_entry is False and one.wrong
            assert one.before == before
            assert one.after == starts[starts.index(before) + 1]


def test_messages_in_a_payload_are_none_of_the_partition(broker: JafkaBroker) -> None:
    copy = entry(b"one") + entry(b"two")
    end = broker.append("clicks", 0, entry(TEXT), entry(copy), entry(TEXT))
    inside = len(entry(TEXT)) + 10 + len(entry(b"one"))
    [one] = looked(broker, inside)
    assert one.is_entry is False
    assert one.before == len(entry(TEXT))
    assert one.after == end - len(entry(TEXT))


def test_a_far_offset_is_verified_by_its_checksum(
    broker: JafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_requests, "WALKED_BYTES_MAX", 5000)
    copy, filler = entry(b"one") + entry(b"two"), entry(b"x" * 6000)
    broker.append("clicks", 0, filler, entry(copy), entry(TEXT))
    inside = len(filler) + 10
    assert looked(broker, inside, len(filler)) == [
        LookedAt(len(filler), True),
        LookedAt(inside, True),
    ]
    [one] = looked(broker, len(filler) + 3)
    assert (one.is_entry, one.before, one.after) == (False, None, None)


def test_the_scan_skips_large_messages(broker: JafkaBroker) -> None:
    broker.max_message_bytes = 10 << 20
    large = entry(b"x" * (5 << 20))
    broker.append("clicks", 0, large, entry(TEXT), entry(TEXT))
    assert looked(broker, len(large) + len(entry(TEXT))) == [
        LookedAt(len(large) + len(entry(TEXT)), True)
    ]
    assert bytes_requested(broker) < 2 << 20


def test_a_message_larger_than_the_first_read_is_read_whole(broker: JafkaBroker) -> None:
    large = entry(b"x" * 20_000)
    broker.append("clicks", 0, entry(TEXT), large, large, entry(TEXT))
    at = len(entry(TEXT)), len(entry(TEXT)) + len(large)
    assert looked(broker, *at, is_kept=True) == [LookedAt(at[0], True), LookedAt(at[1], True)]
    assert len(large) < bytes_requested(broker) < 3 * len(large)


def test_too_few_bytes_are_no_message(broker: JafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_requests, "WALKED_BYTES_MAX", 5000)
    end = broker.append("clicks", 0, entry(b"x" * 6000), entry(b"\0" * 30))
    for one in looked(broker, *range(end - 8, end)):
        assert one.is_entry is False
        assert one.wrong == f"there are {end - one.offset} bytes before {end}, and none is so small"


def test_no_message_reaches_beyond_its_segment(
    broker: JafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_requests, "WALKED_BYTES_MAX", 5000)
    claims_more = (4000).to_bytes(4, "big") + b"\0" * 50
    broker.append("clicks", 0, entry(b"x" * 6000), entry(claims_more))
    broker.logs["clicks", 0].roll()
    segment = broker.append("clicks", 0, entry(b"x" * 4990)) - 5000
    inside = segment - len(claims_more)
    [one] = looked(broker, inside, until=segment)
    assert one.is_entry is False
    assert (
        one.wrong
        == f"it would reach to {inside + 4004}, beyond {segment}, where its segment or the log ends"
    )
    for unseen in (inside, segment - 1, segment - 3):  # the broker named the log's end alone
        [one] = looked(broker, unseen)
        assert one.is_entry is False
        assert (
            one.wrong
            == f"there are {segment - unseen} bytes before its segment ends, and no whole message"
        )


def test_a_message_beyond_the_limit_is_unverified(
    broker: JafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_requests, "WALKED_BYTES_MAX", 5000)
    large = entry(b"x" * 6000)
    broker.append("clicks", 0, entry(TEXT), large, large)
    at = len(entry(TEXT)), len(entry(TEXT)) + len(large)
    assert looked(broker, *at) == [
        LookedAt(at[0], True),
        LookedAt(at[1], None, "it would have 6,010 bytes, and 5,000 are the limit"),
    ]


def test_damage_before_a_position_does_not_make_it_a_bad_one(broker: JafkaBroker) -> None:
    broker.append("clicks", 0, *(entry(TEXT) for _ in range(4)))
    broker.logs["clicks", 0].content[len(entry(TEXT)) + 3] ^= 0xFF  # the second one's length
    assert looked(broker, 3 * len(entry(TEXT))) == [LookedAt(3 * len(entry(TEXT)), True)]


def test_without_bytes_from_the_broker_the_offset_is_unverified(broker: JafkaBroker) -> None:
    broker.flush_every = 100
    broker.append("clicks", 0, entry(TEXT), entry(TEXT))
    assert looked(broker, 5) == [LookedAt(5, None, "the broker returned no bytes from there")]


def test_the_start_of_a_plan_is_not_walked_to(broker: JafkaBroker) -> None:
    broker.append("clicks", 0, *(entry(TEXT) for _ in range(1000)))
    assert looked(broker, 900 * len(entry(TEXT)), is_kept=True) == [
        LookedAt(900 * len(entry(TEXT)), True)
    ]
    assert bytes_requested(broker) == cluster_requests.FIRST_REQUEST_BYTES


def test_partitions_are_verified_by_two_requests(broker: JafkaBroker) -> None:
    size = len(entry(TEXT))
    for number in (0, 1):
        broker.append("clicks", number, *(entry(TEXT) for _ in range(4)))
    doubted = [
        UnverifiedOffset(LOG, 2 * size, 0, 4 * size),
        UnverifiedOffset(OTHER, 2 * size + 1, 0, 4 * size),
    ]
    leader = Leader(Broker(7, "127.0.0.1", broker.port, "jafka"))
    with Cluster([("127.0.0.1", broker.port)], broker_type="jafka") as cluster:
        found = cluster.looked_at(doubted, {LOG: leader, OTHER: leader})
        assert cluster.looked_at((), {}) == {}
    assert [len(body) > 2 for kind, body in broker.requests if kind == MULTIFETCH].count(True) == 2
    assert [found[one][0].is_entry for one in (LOG, OTHER)] == [True, False]


def test_few_of_many_misaligned_offsets_are_reported_in_full(broker: JafkaBroker) -> None:
    broker.counts["clicks"] = 40
    for number in range(40):
        broker.append("clicks", number, *(entry(TEXT) for _ in range(400)))
    size = len(entry(TEXT))
    partitions = [TopicPartition("clicks", number, 7) for number in range(40)]

    def verified(offset: int) -> dict[TopicPartition, LookedAt]:
        doubted = [UnverifiedOffset(one, offset, 0, 400 * size) for one in partitions]
        return dict(verify_offsets(consumer, doubted))

    with SimpleConsumer("127.0.0.1", broker.port, broker_type="jafka") as consumer:
        request_count = len(broker.requests)
        assert {one.is_entry for one in verified(300 * size).values()} == {True}
        assert len(broker.requests) - request_count == 3  # a greeting, a look and a walk
        found = verified(300 * size + 1)
    assert {one.is_entry for one in found.values()} == {False}
    around = (300 * size, 301 * size)
    in_full = [at for at, one in found.items() if (one.before, one.after) == around]
    assert sorted(in_full) == partitions[:16]
