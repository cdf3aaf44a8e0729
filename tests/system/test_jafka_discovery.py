"""Two real brokers of Jafka in ZooKeeper: one topic on both, one broker that dies or freezes and
returns, a recreated topic, and the wrong broker type in the conf.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from etl.commands.lag import lag
from etl.commands.operator_decisions import supersede
from etl.commands.plans import preview
from etl.decide.next_step import steps_ahead
from etl.demo.story import click_messages
from etl.errors import (
    BrokerError,
    MisalignedOffset,
    RanOutBeforeUntil,
    SettingsError,
    TopicMissing,
)
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.io.zookeeper.broker_registrations import read_creation_ids
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.partitions import BrokerPartition, Isolation
from etl.reader.fetch import read_ranges
from etl.reader.fetch_options import FetchOptions
from etl.reader.source import OffsetRanges, RangesReader
from etl.records.decode import Messages
from etl.run.open_services import open_services
from etl.run.service_interfaces import ALONE
from etl.settings.load import load_settings
from etl.settings.sections import Settings
from etl.testkit.brokers import JAFKA
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import wait_until
from tests.builders import plain_settings, with_facts
from tests.command_result import run_etl

GONE_WITHIN_S = 20.0
"""A broker's session ends 6 s after its last word."""


@pytest.fixture(scope="module")
def jafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """Small segments, so that there is something to cut at."""
    folder = tmp_path_factory.mktemp("jafka")
    with EmbeddedCluster(
        2, version=JAFKA, chroot="/old", folder=folder, properties={"log.file.size": "4096"}
    ) as running:
        yield running


@pytest.fixture
def topic(jafka: EmbeddedCluster) -> str:
    """One topic per test, with two partitions on each broker and 500 events in total."""
    name = f"topic-{uuid.uuid4().hex}"
    jafka.create_topic(name, 2)
    produce(jafka, name, 500)
    return name


@pytest.fixture
def zookeeper(jafka: EmbeddedCluster) -> Iterator[ZooKeeper]:
    with ZooKeeper(jafka.zookeeper_connect) as session:
        yield session


def produce(jafka: EmbeddedCluster, topic: str, count: int) -> None:
    for number, messages in click_messages(0, count, partitions=4, messages_per_set=10):
        with SimpleConsumer(
            "127.0.0.1", jafka.brokers[number % 2].port, generation="jafka"
        ) as broker:
            broker.produce(topic, number // 2, messages)


def settings_of(jafka: EmbeddedCluster, topic: str, folder: Path, **source: Any) -> Settings:
    return plain_settings(
        zookeeper={"connect": jafka.zookeeper_connect},
        table={"path": str(folder / "table")},
        group=f"group-{topic}",
        source={"assume_cluster_id": "old", "broker_type": "jafka", "topics": [topic], **source},
        report={"path": str(folder / "reports")},
    )


def test_a_plan_reads_both_brokers_from_themselves_and_is_cut_at_segments(
    jafka: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    settings = settings_of(jafka, topic, tmp_path)
    seen = preview(
        settings.model_copy(
            update={"limits": settings.limits.model_copy(update={"target_task_bytes": 1000})}
        )
    )
    assert {r.log for r in seen.ranges} == {
        BrokerPartition(topic, number, broker) for broker in (0, 1) for number in (0, 1)
    }
    assert {(r.log.broker_id, r.leader.broker.port) for r in seen.ranges if r.leader} == {
        (broker.broker_id, broker.port) for broker in jafka.brokers
    }
    cuts = [(r.log, offset) for r in seen.ranges for offset in (r.from_offset, r.until_offset)]
    assert len(seen.ranges) > 4
    assert all(offset in (seen.snapshot.readable[log].boundaries or ()) for log, offset in cuts)


def test_a_first_conf_follows_the_registrations_of_the_brokers_and_the_doctor_passes(
    jafka: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    conf, table = tmp_path / "conf" / "old.yaml", str(tmp_path / "table")
    request = (
        "init",
        "--zookeeper",
        jafka.zookeeper_connect,
        "--topic",
        topic,
        "--table",
        table,
        "--output",
        str(conf),
        "--json",
    )
    written = run_etl(*request)
    assert written.code == 0, written.err
    found = load_settings(conf)
    assert (found.source.is_physical, found.source.assume_cluster_id, found.source.topics) == (
        True,
        "old",
        (topic,),
    )
    checked = run_etl("doctor", str(conf), "--json")
    assert checked.code == 0, checked.err


def test_the_lag_of_a_table_on_both_brokers_is_in_bytes_and_no_time_or_limit_is_estimated(
    jafka: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    settings = settings_of(jafka, topic, tmp_path)
    second = lag(settings)
    assert (
        second.totals["lag"] == second.totals["estimated_bytes"] == preview(settings).lag > 0
        and len(second.logs) == 4
    )
    assert {
        second.totals[name]
        for name in ("records_at_most", "behind_s", "headroom_s", "headroom_bytes")
    } == {None}
    assert all(one.unknown.keys() == {"behind_s", "headroom_s"} for one in second.logs)


def test_the_rows_of_a_query_without_a_pipeline_are_those_that_were_sent(
    jafka: EmbeddedCluster, topic: str
) -> None:
    options = {
        "broker_type": "jafka",
        "zookeeper": jafka.zookeeper_connect,
        "subscribe": topic,
        "target_task_bytes": "1000",
    }
    reader = OffsetRanges(options).reader(None)
    assert isinstance(reader, RangesReader)
    rows = [
        row
        for partition in reader.partitions()
        for arrow_batch in reader.read(partition)
        for row in arrow_batch.to_pylist()
    ]
    assert len(rows) == 500
    assert len({row["value"] for row in rows}) == 500
    assert {row["broker_id"] for row in rows} == {0, 1}


@pytest.mark.parametrize("frozen", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_broker_that_dies_or_freezes_is_absent_after_its_session_and_read_again_later(
    jafka: EmbeddedCluster, topic: str, zookeeper: ZooKeeper, tmp_path: Path, frozen: bool
) -> None:
    settings, second, away = (
        settings_of(jafka, topic, tmp_path),
        jafka.brokers[1],
        BrokerPartition(topic, 0, 1),
    )
    zookeeper.create(
        f"/consumers/{settings.group.id}/offsets/{topic}/1-0", b"0"
    )  # the group has read there before
    pid = second.pid
    assert pid is not None
    if frozen:
        os.kill(pid, signal.SIGSTOP)
    else:
        second.kill()
    try:
        seen = preview(settings_of(jafka, topic, tmp_path, request_timeout_s=1))
    finally:
        if frozen:
            os.kill(pid, signal.SIGCONT)
        else:
            second.start()
    assert {r.log.broker_id for r in seen.ranges} == {0}
    assert away in seen.snapshot.leaderless and {
        log.broker_id for log in seen.snapshot.leaderless
    } == {1}
    assert "its broker is unavailable" in seen.leaderless[0]
    assert wait_until(
        lambda: zookeeper.read(f"/brokers/topics/{topic}/1") is not None, GONE_WITHIN_S
    )
    assert {r.log.broker_id for r in preview(settings).ranges} == {0, 1}


def test_a_topic_deleted_on_both_brokers_and_recreated_is_another_one(
    jafka: EmbeddedCluster, topic: str, zookeeper: ZooKeeper
) -> None:
    before = read_creation_ids(zookeeper, [topic])
    for broker in jafka.brokers:
        with SimpleConsumer("127.0.0.1", broker.port, generation="jafka") as request:
            assert request.delete_topic(topic) == 2
    assert wait_until(lambda: zookeeper.children(f"/brokers/topics/{topic}") is None, GONE_WITHIN_S)
    jafka.create_topic(topic, 1)
    after = read_creation_ids(zookeeper, [topic])
    assert (list(before), list(after), before == after) == ([topic], [topic], False)


def test_a_topic_without_a_broker_is_missing_and_a_wrong_broker_type_is_reported(
    jafka: EmbeddedCluster, tmp_path: Path
) -> None:
    with pytest.raises(TopicMissing, match="not there"):
        preview(settings_of(jafka, "no-such-topic", tmp_path))
    with pytest.raises(SettingsError, match="is of Jafka or Kafka 0.7") as caught:
        preview(
            plain_settings(
                zookeeper={"connect": jafka.zookeeper_connect}, table={"path": str(tmp_path / "t")}
            )
        )
    assert "source.broker_type: jafka" in caught.value.action


def test_an_offset_inside_a_message_is_reported_before_it_is_stored_and_repaired_after(
    jafka: EmbeddedCluster, topic: str, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    settings, log = settings_of(jafka, topic, tmp_path), BrokerPartition(topic, 0, 1)
    znode = f"/consumers/group-{topic}/offsets/{topic}/1-0"
    with SimpleConsumer("127.0.0.1", jafka.brokers[1].port, generation="jafka") as broker:
        second, third, fourth = [
            message.next_offset for message in list(Messages(broker.fetch(topic, 0, 0)))[:3]
        ]
    zookeeper.create(znode, str(second + 7).encode())
    with pytest.raises(
        MisalignedOffset, match=f"it is inside the one from {second} to {third}"
    ) as refused:
        preview(settings)
    assert refused.value.where == {
        "topic": topic,
        "partition": 0,
        "broker_id": 1,
        "offset": second + 7,
    }
    with open_services(settings, ALONE) as world, world.driving("test"):
        blind = with_facts(world.observe(), looked_at={})
        [step] = steps_ahead(blind, settings, now_ms=world.now_ms(), uid=world.new_uid())
        assert step.plan
        world.ledger.store_plan(step.plan)
    zookeeper.replace(znode, str(third).encode(), version=0)
    with pytest.raises(MisalignedOffset, match="Plan 1 is stored") as refused:
        preview(settings)
    assert f"it is {third} now" in refused.value.action
    supersede(settings, 1, "put right", ())
    assert min(r.from_offset for r in preview(settings).ranges if r.log == log) == third
    conf = tmp_path / "conf.yaml"
    conf.write_text(
        yaml.safe_dump(settings.model_dump(mode="json", exclude_unset=True, by_alias=True))
    )
    left_out = run_etl(
        "plans",
        "supersede",
        str(conf),
        "1",
        "--skip",
        f"{topic}:1-0:{third}-{fourth}",
        "--reason",
        "damaged",
        "--yes",
    )
    assert left_out.code == 0, left_out.err
    assert min(r.from_offset for r in preview(settings).ranges if r.log == log) == fourth


def test_a_topic_deleted_during_the_read_of_its_log_is_reported_without_waiting(
    jafka: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    ranges = [
        r for r in preview(settings_of(jafka, topic, tmp_path)).ranges if r.log.broker_id == 1
    ]
    with SimpleConsumer("127.0.0.1", jafka.brokers[1].port, generation="jafka") as broker:
        broker.delete_topic(topic)
    with pytest.raises((RanOutBeforeUntil, BrokerError)) as refused:
        list(
            read_ranges(
                ranges,
                FetchOptions(isolation=Isolation.READ_UNCOMMITTED, deadline_s=300, retry=2),
                on_receipt=lambda index, receipt: None,
            )
        )
    assert (type(refused.value), refused.value.message) == (
        RanOutBeforeUntil,
        f"The partition ends at 0, the range at {ranges[0].until_offset}",
    )
