"""The doctor's lines about topics and releases, on brokers that report little or something else."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from etl.commands import doctor_services
from etl.commands.doctor_machine import Findings, Verdict
from etl.io.brokers import exchange
from etl.io.brokers.cluster_requests import Cluster
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.kafka import kafka_broker_type, versions
from etl.kafka.request_values import ClusterMetadata, PartitionMetadata, TopicMetadata
from etl.model.partitions import Broker, Isolation, Leader, TopicPartition
from tests.builders import plain_settings
from tests.fakes.broker import FakeBroker
from tests.fakes.old_broker import OldBroker

COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED


def findings_of(brokers: FakeBroker | OldBroker | ClusterMetadata, **source: Any) -> Findings:
    """What the doctor knows after a look at the brokers and at an empty ZooKeeper."""
    if isinstance(brokers, ClusterMetadata):
        metadata = brokers
    else:
        source["bootstrap_servers"] = f"127.0.0.1:{brokers.port}"
        version = source.get("broker_version")
        broker_type = f"kafka-{version}" if version else None
        with Cluster([("127.0.0.1", brokers.port)], broker_type=broker_type) as cluster:
            metadata = cluster.describe(None)
    findings = Findings(plain_settings(source=source), contextlib.ExitStack())
    findings.zookeeper = cast(ZooKeeper, SimpleNamespace(read=lambda path: None))
    findings.metadata = metadata
    return findings


@pytest.mark.parametrize(
    ("configs", "value", "verdicts"),
    [
        ({}, [], [Verdict.ADVICE, Verdict.OK]),
        ({}, ["cli.*"], [Verdict.OK]),
        ({"clicks": {"cleanup.policy": "delete"}}, [], [Verdict.OK]),
    ],
)
def test_topics_without_a_reported_cleanup_policy_are_named(
    broker: FakeBroker,
    configs: dict[str, dict[str, str]],
    value: list[str],
    verdicts: list[Verdict],
) -> None:
    broker.log("clicks")
    broker.world.configs = configs
    lines = list(doctor_services.topics("topics", findings_of(broker, assume_compacted=value)))
    assert [line.verdict for line in lines] == verdicts
    if Verdict.ADVICE in verdicts:
        assert "clicks" in lines[0].found and "DescribeConfigs" in lines[0].to_do


def test_absent_jafka_brokers_are_reported() -> None:
    here, away = TopicPartition("clicks", 0, 1), TopicPartition("clicks", 0, 2)
    partitions = (
        PartitionMetadata(here, None, Leader(Broker(1, "h", 1, "jafka"))),
        PartitionMetadata(away, None, None),
    )
    clicks = TopicMetadata("clicks", None, None, False, partitions)
    metadata = ClusterMetadata(None, {1: Broker(1, "h", 1)}, {"clicks": clicks})
    findings = findings_of(metadata, assume_cluster_id="old", broker_type="jafka")
    gone, known, there = doctor_services.topics("topics", findings)
    assert (gone.verdict, known.verdict, there.verdict) == (Verdict.ADVICE, Verdict.OK, Verdict.OK)
    assert "1 partition of unavailable brokers (2): clicks 2-0" in gone.found
    assert "timestamps" in known.found and "segments" in known.found
    assert there.found == "clicks; partitions: 2"


@pytest.mark.parametrize("release", ["0.8", "0.9"])
def test_old_brokers_need_no_acl(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_broker_type, "HANDSHAKE_PATIENCE_S", 0.05)
    with OldBroker(release) as broker:
        broker.log("clicks")
        findings = findings_of(broker, assume_cluster_id="old")
        untold, _ = doctor_services.topics("topics", findings)
    assert untold.verdict is Verdict.ADVICE and "ACL" not in untold.to_do
    assert "Name compacted topics in source.assume_compacted" in untold.to_do


@pytest.mark.parametrize(
    ("release", "text", "isolation", "verdict"),
    [
        ("1.1", "0.10.2", COMMITTED, Verdict.FAILED),
        ("1.1", "0.10.2", UNCOMMITTED, Verdict.OK),
        ("4.1", "1.0", COMMITTED, Verdict.FAILED),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_the_doctor_probes_each_broker_for_the_confs_release(
    broker: FakeBroker,
    monkeypatch: pytest.MonkeyPatch,
    release: str,
    text: str,
    isolation: Isolation,
    verdict: Verdict,
) -> None:
    monkeypatch.setattr(exchange, "_unanswering", set())
    broker.versions = dict(versions.releases()[release])
    broker.log("demo")
    findings = findings_of(broker, broker_version=text, isolation_level=isolation.value)
    (line,) = doctor_services.each_broker("broker", findings)
    assert line.verdict is verdict
    if verdict is Verdict.FAILED:
        assert f"answers like Kafka {release}" in line.found
        assert "source.broker_version" in str(line)
