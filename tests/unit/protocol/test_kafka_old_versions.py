"""Requests and responses of brokers before 0.11, byte for byte."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from etl.errors import BrokerRefusal, CorruptData, Meaning, SettingsError
from etl.kafka import fetch_messages, versions
from etl.kafka.broker_types import BROKER_TYPES, release_name
from etl.kafka.fetch_messages import limit_targets, parse_fetch
from etl.kafka.kafka_broker_type import Kafka, KafkaProtocol
from etl.kafka.request_values import EARLIEST, LATEST, Fetch, FetchTarget, OffsetsCommit
from etl.model.partitions import Broker, Isolation, TopicPartition

DEMO, OTHER = TopicPartition("demo", 0), TopicPartition("demo", 1)


def spoken_to_as(release: str) -> KafkaProtocol:
    return KafkaProtocol.of_release(release, "t", "b:9092")


def hexed(text: str) -> bytes:
    return bytes.fromhex(text)


def answer(text: str) -> memoryview:
    """The bytes after the size, with the number of the request in front."""
    return memoryview(hexed("00000001" + text))


# Fetch


HELLO = "0000000000000064 00000013 87a77ab2 00 00 ffffffff 00000005 68656c6c6f"


def test_an_empty_log_proves_it_in_any_place_if_the_whole_response_has_no_limit() -> None:
    body = memoryview(
        hexed(
            f"00000001 000464656d6f 00000002 00000000 0000 0000000000000065 0000001f {HELLO}"
            "00000001 0000 0000000000000000 00000000"
        )
    )
    wanted = [FetchTarget(DEMO, 100, 100), FetchTarget(OTHER, 0, 100)]
    assert [each.proves_empty for each in parse_fetch(0, body, wanted).partitions] == [True, True]
    assert [
        each.proves_empty for each in parse_fetch(0, body, limit_targets(wanted, 150)).partitions
    ] == [True, False]


def test_without_a_total_limit_the_first_log_is_requested_whole_and_others_if_they_fit() -> None:
    partitions = [
        TopicPartition(topic, number) for topic, number in (("a", 0), ("b", 0), ("a", 1), ("c", 0))
    ]
    wanted = [
        FetchTarget(partition, 0, size)
        for partition, size in zip(partitions, (700, 300, 600, 300), strict=True)
    ]
    assert [
        (each.partition.topic, each.partition.partition, each.max_bytes)
        for each in limit_targets(wanted, 1000)
    ] == [("a", 0, 700), ("a", 1, 0), ("b", 0, 300), ("c", 0, 0)]
    assert [each.max_bytes for each in limit_targets(wanted[:1], 10)] == [700]


# ListOffsets


@pytest.mark.parametrize("release", ["0.8", "0.9", "0.10.0"])
def test_brokers_before_0_10_1_find_no_time(release: str) -> None:
    text = "before 0.10.1 cannot find the record of a time"
    with pytest.raises(SettingsError, match=text) as raised:
        spoken_to_as(release).list_offsets(
            {DEMO: EARLIEST, OTHER: 1_700_000_000_000}, Isolation.READ_UNCOMMITTED, {}
        )
    assert "--run-key without --until" in raised.value.action
    assert "latest" not in raised.value.action, "it would skip the records since that time"


def test_a_later_broker_names_one_offset_for_a_time_or_none() -> None:
    request = spoken_to_as("0.10.1").offsets_before(DEMO, 1_700_000_000_000, 3)
    reported = "00000001 000464656d6f 00000001 00000000 0000 0000018bcfe56800"
    assert request.read(answer(reported + "0000000000000028")).answer == (40,)
    assert request.read(answer(reported + "ffffffffffffffff")).answer == ()


def test_a_response_about_two_logs_to_a_request_for_one_is_corrupt_data() -> None:
    request = spoken_to_as("0.8").offsets_before(DEMO, LATEST, 1)
    with pytest.raises(CorruptData, match="2 partitions"):
        request.read(
            answer("00000001 000464656d6f 00000002 00000000 0000 00000000 00000001 0000 00000000")
        )


# Metadata


@pytest.mark.parametrize(
    ("release", "version", "all_topics"),
    [
        ("0.8", 0, "00000000"),
        ("0.9", 0, "00000000"),
        ("0.10.0", 1, "ffffffff"),
        ("0.10.1", 2, "ffffffff"),
        ("0.10.2", 2, "ffffffff"),
    ],
)
@pytest.mark.parametrize("topics", [None, [], ["demo"]])
def test_no_topic_is_named_to_a_broker_that_might_make_it(
    release: str, version: int, all_topics: str, topics: list[str] | None
) -> None:
    assert spoken_to_as(release).metadata(topics).frame(1) == hexed(
        f"0000000f 0003 000{version} 00000001 000174 {all_topics}"
    )


BROKERS = "00000001 00000007 000162 00002384"
TOPICS = (
    "00000002 0000 000464656d6f 00000002 0000 00000000 00000007 00000001 00000007 00000001 00000007"
    "0005 00000001 ffffffff 00000000 00000000"
    "0000 00125f5f636f6e73756d65725f6f666673657473 00000000"
)


def test_metadata_v0_has_leaders_and_neither_ids_nor_epochs() -> None:
    reported = spoken_to_as("0.8").metadata(None).read(answer(BROKERS + TOPICS)).answer
    assert reported.cluster_id is None
    assert reported.brokers == {7: Broker(7, "b", 9092)}
    assert reported.topic_ids == {}
    assert {partition: leader.epoch for partition, leader in reported.leaders.items()} == {
        DEMO: None
    }
    assert reported.leaderless == {OTHER}
    assert {name: topic.is_internal for name, topic in reported.topics.items()} == {
        "demo": False,
        "__consumer_offsets": True,
    }


@pytest.mark.parametrize(
    ("requests", "found"),
    [([], {}), (["demo"], {"demo": None}), (["demo", "gone"], {"demo": None, "gone": "unknown"})],
)
def test_requested_topics_are_returned(requests: list[str], found: Any) -> None:
    reported = spoken_to_as("0.8").metadata(requests).read(answer(BROKERS + TOPICS)).answer
    assert {name: topic.refusal and "unknown" for name, topic in reported.topics.items()} == found
    assert all(
        topic.refusal is None or topic.refusal.meaning is Meaning.UNKNOWN_TOPIC
        for topic in reported.topics.values()
    )


# A group's offsets

LOG = "00000001 000464656d6f 00000001 00000000"
COMMITS = {
    (True, "0.8"): f"0000002a 0008 0000 00000001 000174 000167 {LOG} 0000000000000005 0000",
    (False, "0.8"): (
        f"00000038 0008 0001 00000001 000174 000167 ffffffff 0000 {LOG} 0000000000000005"
        "ffffffffffffffff 0000"
    ),
    (False, "0.9"): (
        "00000038 0008 0002 00000001 000174 000167 ffffffff 0000 ffffffffffffffff"
        f"{LOG} 0000000000000005 0000"
    ),
}


@pytest.mark.parametrize(("in_zookeeper", "release"), COMMITS)
def test_offset_commit_is_encoded_byte_for_byte(in_zookeeper: bool, release: str) -> None:
    request = spoken_to_as(release).groups.commit_offsets(
        OffsetsCommit("g", {DEMO: 5}), in_zookeeper=in_zookeeper
    )
    assert request.frame(1) == hexed(COMMITS[in_zookeeper, release])
    assert request.read(answer("00000001 000464656d6f 00000001 00000000 0000")).answer == {
        DEMO: None
    }


@pytest.mark.parametrize(
    ("release", "in_zookeeper"), [("4.0", True), ("0.8.1", False), ("0.8.0", True)]
)
def test_a_broker_may_keep_no_offsets(release: str, in_zookeeper: bool) -> None:
    with pytest.raises(SettingsError, match="no version of OFFSET_COMMIT"):
        spoken_to_as(release).groups.commit_offsets(
            OffsetsCommit("g", {DEMO: 5}), in_zookeeper=in_zookeeper
        )


# Records from us, for tests and demos


@pytest.mark.parametrize(
    ("release", "magic"),
    [("0.8", 0), ("0.9", 0), ("0.10.0", 1), ("0.10.2", 1), ("0.11", 2), ("4.1", 2)],
)
def test_records_have_the_newest_format_of_the_broker(release: str, magic: int) -> None:
    records = [(None, b"hello")]
    request = spoken_to_as(release).append(DEMO, records, timestamp_ms=5, timeout_ms=100)
    encoded = fetch_messages.encode_records(records, timestamp_ms=5, magic=magic)
    assert encoded in request.frame(1) and encoded[16] == magic


# As which release a broker is treated


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("0.8", "kafka-0.8"),
        ("0.8.0", "kafka-0.8.0"),
        ("0.8.2.2", "kafka-0.8.2"),
        ("0.9", "kafka-0.9"),
        ("0.9.0.1", "kafka-0.9"),
        ("0.10", "kafka-0.10.0"),
        ("0.10.2.2", "kafka-0.10.2"),
        ("0.11.0.3", "kafka-0.11"),
        ("1.1.1", "kafka-1.1"),
        ("3.9.1", "kafka-3.9"),
        ("4", "kafka-4.0"),
        ("4.1.0", "kafka-4.1"),
    ],
)
def test_a_version_of_a_broker_is_of_a_release(version: str, name: str) -> None:
    assert release_name(version) == name
    assert any(name in broker_type.names for broker_type in BROKER_TYPES)


@pytest.mark.parametrize("version", ["0.7", "0.12", "5.0", "10", "", "new", "0.9.x", "0.9."])
def test_an_unknown_version_is_rejected(version: str) -> None:
    with pytest.raises(
        SettingsError, match="The API versions of brokers of version .* are unknown"
    ):
        release_name(version)


@pytest.mark.parametrize("name", sorted({*Kafka.names} - {"kafka"}))
def test_every_release_answers_the_requests_of_a_run(name: str) -> None:
    reported = spoken_to_as(name.removeprefix("kafka-"))
    reported.metadata(["demo"])
    reported.list_offsets({DEMO: LATEST}, Isolation.READ_COMMITTED, {})
    targets = (FetchTarget(DEMO, 0, 1),)
    reported.fetch(Fetch(targets, Isolation.READ_COMMITTED, 1, 1, 1)).frame(1)
    assert reported.broker_type == name


@pytest.mark.parametrize(
    ("release", "question"),
    [
        ("0.8", lambda reported: reported.log_sizes([DEMO])),
        ("0.10.2", lambda reported: reported.retention(["demo"])),
        ("2.7", lambda reported: reported.open_transactions([DEMO])),
        ("0.8.1", lambda reported: reported.groups.coordinator("g")),
    ],
)
def test_what_a_broker_is_too_old_for_is_refused_by_name(release: str, question: Any) -> None:
    with pytest.raises(SettingsError, match="supports no version of .*it supports none"):
        question(spoken_to_as(release))


def test_a_configured_release_fits_brokers_that_have_its_requests() -> None:
    of_0_8 = KafkaProtocol.of_release("0.8", "me", "b:1")
    assert not any(of_0_8.release_mismatch(f"kafka-{text}") for text in ("0.8", "0.8.0", "0.8.2"))
    newest = KafkaProtocol(versions.releases()["4.1"], "me", "b:1")
    assert newest.release_mismatch("kafka-0.9") and not newest.release_mismatch("kafka-4.0")


@pytest.mark.parametrize("text", ["0.8", "0.9", "0.10.0", "0.10.2"])
def test_a_release_has_transactions_or_none(text: str) -> None:
    told_itself = KafkaProtocol(versions.releases()["1.1"], "me", "b:1")
    refused = told_itself.release_mismatch(f"kafka-{text}", Isolation.READ_COMMITTED)
    assert refused and refused.where == {"key": "source.broker_version", "broker": "b:1"}
    assert refused.exit_code == 2 and not refused.retriable
    assert "aborted or are still open" in refused.message and "like Kafka 1.1:" in refused.message
    assert "'1.1' fits" in refused.action and "isolation_level: read_uncommitted" in refused.action
    assert told_itself.release_mismatch(f"kafka-{text}") is None
    assert (
        KafkaProtocol(versions.releases()["0.10.2"], "me", "b:1").release_mismatch(
            f"kafka-{text}", Isolation.READ_COMMITTED
        )
        is None
    )
    assert told_itself.release_mismatch("kafka-0.11", Isolation.READ_COMMITTED) is None


def test_topics_that_a_broker_makes_when_they_are_named_are_not_named() -> None:
    reported = spoken_to_as("1.1")
    every, named = reported.metadata(None).frame(1), reported.metadata(["demo"]).frame(1)
    assert every != named
    for made in ("__consumer_offsets", "__transaction_state"):
        assert reported.metadata(["demo", made]).frame(1) == every


def test_an_append_without_an_offset_and_without_an_error_is_reported_as_rejected() -> None:
    answer = SimpleNamespace(
        responses=[
            SimpleNamespace(
                name="demo",
                partition_responses=[SimpleNamespace(index=0, error_code=0, base_offset=-1)],
            )
        ]
    )
    refused = fetch_messages.parse_produce(answer)[DEMO]
    assert isinstance(refused, BrokerRefusal)
    error = refused.error("append", topic="demo")
    assert "nothing was appended" in error.message and "NONE" not in error.message
    assert "no error" not in error.action
