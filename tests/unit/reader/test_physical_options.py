"""The data source's options for byte offsets: names of partitions, options without meaning, and the
addresses of brokers.
"""

from __future__ import annotations

import json

import pytest

from etl.errors import SettingsError, TopicMissing
from etl.model.partitions import Isolation, PartitionOffsets, TopicPartition
from etl.model.plans import OffsetRange
from etl.reader.options import PHYSICAL_REFUSED, parse_options, parse_ranges
from etl.reader.query_ranges import ranges_of, reject_missing_partitions

LEAST = {"broker_type": "jafka", "zookeeper": "a:2181,b:2181/old", "subscribe": "clicks"}
LOGS = [TopicPartition("clicks", number, broker) for broker in (1, 10) for number in range(2)]


def test_brokers_are_found_where_they_are_registered() -> None:
    reading = parse_options(LEAST)
    assert (reading.physical, reading.zookeeper) == (True, "a:2181,b:2181/old")
    assert (reading.fetch.bootstrap, reading.fetch.isolation) == ((), Isolation.READ_UNCOMMITTED)
    of_kafka = parse_options({**LEAST, "broker_type": "kafka"})
    assert (of_kafka.physical, of_kafka.zookeeper) == (False, "a:2181,b:2181/old")
    assert of_kafka.fetch.isolation is Isolation.READ_COMMITTED
    assert {"broker_id", "message_index"} <= set(reading.columns)
    some = parse_options({**LEAST, "columns": "message_index,value"}).columns
    assert some == ("value", "message_index")


def test_a_log_is_named_with_its_broker() -> None:
    found = parse_options(
        {
            **{k: LEAST[k] for k in ("broker_type", "zookeeper")},
            "assign": '{"clicks": ["1-0", "10-1"]}',
        }
    )
    assert found.selection.partitions == (LOGS[0], LOGS[3])
    text = '[{"topic": "clicks", "broker": 10, "partition": 1, "from": 36, "until": 972}]'
    assert parse_ranges(text, physical=True) == (OffsetRange(LOGS[3], 36, 972),)


def test_bounds_are_given_for_each_log() -> None:
    result = {"clicks": {"1-0": 36, "1-1": -2, "10-0": -2, "10-1": 5}}
    reading = parse_options(
        {**LEAST, "startingOffsets": json.dumps(result), "endingOffsets": "latest"}
    )
    extents = {partition: PartitionOffsets(0, 100, boundaries=(0, 50, 100)) for partition in LOGS}
    assert {
        r.partition: (r.from_offset, r.until_offset) for r in ranges_of(reading, extents, {}, {})
    } == {LOGS[0]: (36, 100), LOGS[1]: (0, 100), LOGS[2]: (0, 100), LOGS[3]: (5, 100)}


@pytest.mark.parametrize(
    "options, named",
    [
        ({"assign": '{"clicks": [0]}'}, "write 1-0"),
        ({"assign": '{"clicks": ["1-01"]}'}, "1-01"),
        ({"subscribe": "t", "startingOffsets": '{"t": {"0": 5}}'}, "write 1-0"),
        (
            {"ranges": '[{"topic": "t", "partition": 0, "from": 0, "until": 5}]'},
            "no broker is named",
        ),
        ({"subscribe": "t", "kafka.bootstrap.servers": "h:1"}, "kafka.bootstrap.servers"),
        ({"subscribe": "t", "zookeeper": "h"}, "connection string"),
        ({"subscribe": "t", "zookeeper": "h:1//x"}, "connection string"),
        ({"subscribe": "t", "broker_type": "pulsar"}, "'pulsar' is no value of broker_type"),
        ({"subscribe": "t", "columns": "nothing"}, "nothing"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(options: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        parse_options({"broker_type": "jafka", "zookeeper": "a:1", **options})


@pytest.mark.parametrize("name", PHYSICAL_REFUSED)
def test_options_without_a_meaning_there_are_rejected_with_the_reason(name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_options({**LEAST, name: "1"})
    assert PHYSICAL_REFUSED[name] in caught.value.message


def test_a_broker_is_named_only_where_logs_have_one() -> None:
    def ranges_on(*brokers: int) -> str:
        one = {"topic": "t", "partition": 0, "from": 0, "until": 5}
        return json.dumps([{**one, "broker": broker} for broker in brokers])

    with pytest.raises(SettingsError, match="a broker is named"):
        parse_ranges(ranges_on(1))
    with pytest.raises(SettingsError, match="overlap"):
        parse_ranges(ranges_on(1, 1), physical=True)
    assert len(parse_ranges(ranges_on(1, 2), physical=True)) == 2


def test_either_bootstrap_or_zookeeper_locates_the_brokers() -> None:
    with pytest.raises(SettingsError, match="both say"):
        parse_options({"kafka.bootstrap.servers": "h:1", "zookeeper": "h:1", "subscribe": "t"})
    with pytest.raises(SettingsError, match="No broker is named") as caught:
        parse_options({"subscribe": "t"})
    assert "zookeeper" in caught.value.action


def test_a_partition_missing_on_its_broker_is_reported_with_the_existing_ones() -> None:
    with pytest.raises(TopicMissing, match="2 partitions on broker 10"):
        reject_missing_partitions([TopicPartition("clicks", 2, 10)], LOGS)
    with pytest.raises(TopicMissing, match="not there on broker 3"):
        reject_missing_partitions([TopicPartition("clicks", 0, 3)], LOGS)
