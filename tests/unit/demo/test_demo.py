"""What the demo writes down and starts, for each family of brokers, without starting it."""

from __future__ import annotations

from pathlib import Path

import pytest

from etl.demo.story import SOURCES, TOPIC, conf_of
from etl.model.partitions import BrokerFamily
from etl.settings.load import load_settings
from etl.testkit.brokers import DEFAULT_VERSION, JAFKA


@pytest.mark.parametrize(
    ("dialect", "partition_by"),
    [(BrokerFamily.KAFKA, ("event_date",)), (BrokerFamily.JAFKA, ("broker_id",))],
)
def test_its_conf_is_one_that_a_run_takes(
    tmp_path: Path, dialect: BrokerFamily, partition_by: tuple[str, ...]
) -> None:
    conf = tmp_path / "clicks.yaml"
    conf.write_text(conf_of(SOURCES[dialect], "127.0.0.1:2181/x", tmp_path))
    found = load_settings(conf)
    assert found.source.broker_type == dialect
    assert found.source.topic_filter.literal_names == (TOPIC,)
    assert found.table.partition_by == partition_by


@pytest.mark.parametrize(
    ("dialect", "brokers"),
    [(BrokerFamily.KAFKA, [DEFAULT_VERSION]), (BrokerFamily.JAFKA, [JAFKA, JAFKA])],
)
def test_its_brokers_are_one_of_kafka_or_two_of_jafka(
    tmp_path: Path, dialect: BrokerFamily, brokers: list[str]
) -> None:
    cluster = SOURCES[dialect].cluster(tmp_path)
    assert [broker.version for broker in cluster.brokers] == brokers
    assert SOURCES[dialect].who.format(version=brokers[0])


def test_every_family_has_its_demo() -> None:
    assert set(SOURCES) == set(BrokerFamily)
