"""Registrations of real consumers in a real ZooKeeper are ours, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from etl.ledger.registrations import (
    FilteredTopics,
    FixedTopics,
    Registration,
    parse_registration,
    render_registration,
)
from etl.ledger.topic_filters import FilterKind, TopicFilter, cleaned
from etl.model.partitions import BrokerFamily
from etl.testkit.brokers import JAFKA
from etl.testkit.cluster import ZooKeeper
from tests.brokers.foreign import Process
from tests.groups.oracles import SOURCES

_KINDS = ("static", FilterKind.WHITE_LIST, FilterKind.BLACK_LIST)


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeper]:
    with ZooKeeper() as server:
        yield server


@pytest.mark.parametrize("version", ["0.8.2.2", "0.9.0.1", "0.10.2.2", "1.1.1"])
def test_a_consumer_of_kafka_registers_as_we_do(
    version: str, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    with Process("ScalaAssignors", version, tmp_path, sources=SOURCES) as scala:
        for number, kind in enumerate(_KINDS):
            if kind == "static":
                text = "clicks"
            elif version == "1.1.1":
                text = " a.*, [b] "
            else:
                text = r" a.*, \d/[b] "
            group, word = f"g{number}-{version}", f"x{text.encode().hex()}"
            (answer,) = scala.ask(
                "register", zookeeper.connect, group, getattr(kind, "value", kind), word, 3
            )
            payload = bytes.fromhex(answer[0][1:])
            reads: FixedTopics | FilteredTopics = FixedTopics({text: 3})
            if kind != "static":
                reads = FilteredTopics(TopicFilter(FilterKind(kind), cleaned(text)), 3)
            registration = Registration(BrokerFamily.KAFKA, reads)
            assert (
                render_registration(registration, now_ms=int(json.loads(payload)["timestamp"]))
                == payload
            )
            assert parse_registration(payload, path="/p") == registration


def test_a_consumer_of_1_1_escapes_its_filter_twice_and_a_reader_gets_another_filter(
    zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    with Process("ScalaAssignors", "1.1.1", tmp_path, sources=SOURCES) as scala:
        (answer,) = scala.ask(
            "register", zookeeper.connect, "twice", "white_list", "x" + rb"t\d".hex(), 1
        )
    found = parse_registration(bytes.fromhex(answer[0][1:]), path="/p")
    assert found.reads == FilteredTopics(TopicFilter(FilterKind.WHITE_LIST, r"t\\d"), 1)
    assert found.threads(["t1"]) == {}


def test_a_consumer_of_jafka_registers_as_we_do(tmp_path: Path) -> None:
    with Process("JafkaAssignor", JAFKA, tmp_path, sources=SOURCES) as jafka:
        (answer,) = jafka.ask("register", "clicks", 3, "orders", 1)
    payload = bytes.fromhex(answer[0][1:])
    registration = Registration(BrokerFamily.JAFKA, FixedTopics({"clicks": 3, "orders": 1}))
    assert render_registration(registration, now_ms=0) == payload
    assert parse_registration(payload, path="/p") == registration
