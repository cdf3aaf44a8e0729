"""The embedded servers start, stop, restart with their data, and leave no files or processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from kazoo.client import KazooClient

from etl.errors import SettingsError, Unreachable
from etl.testkit.brokers import Kafka
from etl.testkit.cluster import EmbeddedCluster, ZooKeeper
from etl.testkit.server_process import answers, wait_until
from etl.testkit.spark_launch import StandaloneSpark
from tests.processes import is_running, that_mention

GONE_WITHIN_S = 20.0


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeper]:
    with ZooKeeper() as running:
        yield running


@pytest.mark.long
def test_zookeeper_keeps_its_port_and_data_over_restart_and_kill() -> None:
    with ZooKeeper() as zookeeper:
        before = zookeeper.connect
        client = KazooClient(hosts=zookeeper.connect)
        client.start()
        client.create("/kept", b"7")
        zookeeper.restart()
        assert client.retry(client.get, "/kept")[0] == b"7"
        zookeeper.kill()
        assert not answers(zookeeper.port)
        zookeeper.start()
        assert client.retry(client.get, "/kept")[0] == b"7"
        client.stop()
        client.close()
        assert zookeeper.connect == before


@pytest.mark.long
def test_a_broker_keeps_its_records_over_restart_and_kill(zookeeper: ZooKeeper) -> None:
    with Kafka(zookeeper=zookeeper.connect, chroot="/kept") as broker:
        with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics(
                {"kept": {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True
            )
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
        producer.send("kept", b"first").get(30)
        producer.close()
        broker.restart()
        broker.kill()
        broker.start()
        consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap)
        consumer.assign([TopicPartition("kept", 0)])
        consumer.seek_to_beginning()
        assert next(iter(consumer)).value == b"first"
        consumer.close()


@pytest.mark.long
def test_a_cluster_leaves_no_process_and_no_folder() -> None:
    with EmbeddedCluster() as cluster:
        pids = [cluster.zookeeper.pid, cluster.brokers[0].pid]
        mentioned = that_mention(str(cluster.folder))
        assert set(pids) <= set(mentioned)
    assert not that_mention(str(cluster.folder))
    assert not cluster.folder.exists()


@pytest.mark.long
def test_two_brokers_are_one_number_more() -> None:
    with EmbeddedCluster(brokers=2) as cluster:
        cluster.create_topic(
            "shared", partitions=4, replication_factor=2, config={"retention.ms": "-1"}
        )
        with KafkaAdminClient(bootstrap_servers=cluster.bootstrap) as admin:

            def is_led_by_both() -> bool:
                [described] = admin.describe_topics(["shared"])
                return {partition["leader_id"] for partition in described["partitions"]} == {0, 1}

            assert wait_until(is_led_by_both, within_s=30), (
                "each broker learns of a new topic in its own time"
            )


PROGRAM = """
import sys, time
from etl.testkit.cluster import ZooKeeper
with ZooKeeper(sys.argv[1]) as zookeeper:
    print(zookeeper.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_with_the_program_that_started_it(
    tmp_path: Path, how: signal.Signals
) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert program.stdout is not None
    server = int(program.stdout.readline())
    assert is_running(server)
    program.send_signal(how)
    program.wait(GONE_WITHIN_S)
    program.stdout.close()
    assert wait_until(lambda: not is_running(server), GONE_WITHIN_S)
    assert wait_until(lambda: not that_mention(str(tmp_path)), GONE_WITHIN_S)


def test_ctrl_c_on_the_terminal_does_not_reach_a_server(zookeeper: ZooKeeper) -> None:
    assert zookeeper.pid is not None
    assert os.getpgid(zookeeper.pid) != os.getpgid(0)
    assert os.getsid(zookeeper.pid) != os.getsid(0)


def test_a_broken_start_names_the_log_file_shows_its_end_and_keeps_it(zookeeper: ZooKeeper) -> None:
    broken = Kafka(
        zookeeper=zookeeper.connect, chroot="/broken", properties={"log.retention.ms": "soon"}
    )
    with pytest.raises(Unreachable) as failure, broken:
        pytest.fail("a broker started with a setting that is no number")
    assert failure.value.where["log"] == broken.log
    assert "exit code 1" in failure.value.message
    assert "log.retention.ms" in failure.value.action
    assert "log.retention.ms" in broken.log.read_text()
    assert broken.pid is None
    shutil.rmtree(broken.folder)


def test_a_broker_without_zookeeper_reports_it() -> None:
    with ZooKeeper() as zookeeper:
        gone = zookeeper.connect
    broker = Kafka(zookeeper=gone)
    broker.start_within_s = 1.0
    with pytest.raises(Unreachable, match="ZooKeeper does not answer"):
        broker.start()
    assert broker.pid is None
    assert not broker.folder.exists()


def test_a_version_that_cannot_be_embedded_is_refused_with_those_that_can(
    zookeeper: ZooKeeper,
) -> None:
    with pytest.raises(SettingsError, match="3.9.1"):
        Kafka(zookeeper=zookeeper.connect, version="0.0.1").start()


@pytest.mark.long
def test_a_standalone_spark_has_its_workers_and_leaves_no_process(tmp_path: Path) -> None:
    with StandaloneSpark(tmp_path) as spark:
        assert spark.master_url.startswith("spark://127.0.0.1:")
        assert that_mention(spark.master_url)
    assert not that_mention(spark.master_url)
