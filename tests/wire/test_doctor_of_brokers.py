"""The doctor's lines about topics, on brokers that report little."""

from __future__ import annotations

import contextlib
from typing import cast

import pytest

from etl.commands import doctor_services
from etl.commands.doctor_machine import Findings, Verdict
from etl.io.brokers.cluster_requests import Cluster
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.kafka import kafka_broker_type
from etl.kafka.request_values import ClusterMetadata, PartitionMetadata, TopicMetadata
from etl.model.partitions import Broker, BrokerPartition, Leader
from tests.builders import plain_settings
from tests.fakes.broker import FakeBroker
from tests.fakes.old_broker import OldBroker


class _Empty:
    """A ZooKeeper without any znode."""

    def read(self, path: str) -> None:
        """There is none at any path."""


NOTHING_KEPT = cast(ZooKeeper, _Empty())


@pytest.mark.parametrize(
    ("configs", "value", "verdicts"),
    [
        ({}, [], [Verdict.ADVICE, Verdict.OK]),
        ({}, ["cli.*"], [Verdict.OK]),
        ({"clicks": {"cleanup.policy": "delete"}}, [], [Verdict.OK]),
    ],
)
def test_topics_without_a_reported_cleanup_policy_are_named(
    configs: dict[str, dict[str, str]], value: list[str], verdicts: list[Verdict]
) -> None:
    with FakeBroker() as broker, contextlib.ExitStack() as closing:
        broker.log("clicks")
        broker.world.configs = configs
        findings = Findings(
            plain_settings(
                source={
                    "assume_compacted": value,
                    "bootstrap_servers": f"{broker.host}:{broker.port}",
                }
            ),
            closing,
        )
        findings.zookeeper = NOTHING_KEPT
        with Cluster([(broker.host, broker.port)]) as cluster:
            findings.metadata = cluster.describe(None)
        lines = list(doctor_services.topics("topics", findings))
    assert [line.verdict for line in lines] == verdicts
    if Verdict.ADVICE in verdicts:
        assert "clicks" in lines[0].found and "DescribeConfigs" in lines[0].to_do


def test_of_topics_on_brokers_of_byte_positions_it_reports_unknown_facts_and_absent_brokers() -> (
    None
):
    here, away = BrokerPartition("clicks", 0, 1), BrokerPartition("clicks", 0, 2)
    logs = (
        PartitionMetadata(here, None, Leader(Broker(1, "h", 1, "jafka"))),
        PartitionMetadata(away, None, None),
    )
    with contextlib.ExitStack() as closing:
        findings = Findings(
            plain_settings(source={"assume_cluster_id": "old", "broker_type": "jafka"}), closing
        )
        findings.zookeeper = NOTHING_KEPT
        findings.metadata = ClusterMetadata(
            None,
            {1: Broker(1, "h", 1)},
            {"clicks": TopicMetadata("clicks", None, None, False, logs)},
        )
        gone, known, there = doctor_services.topics("topics", findings)
    assert (gone.verdict, known.verdict, there.verdict) == (Verdict.ADVICE, Verdict.OK, Verdict.OK)
    assert "1 partitions are on unavailable brokers (2): clicks 2-0" in gone.found
    assert "timestamps" in known.found and "segments" in known.found
    assert there.found == "clicks; partitions: 2"


@pytest.mark.parametrize("release", ["0.8", "0.9"])
def test_brokers_that_cannot_report_cleanup_policies_need_no_acl(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_broker_type, "HANDSHAKE_PATIENCE_S", 0.05)
    with OldBroker(release).listening() as broker, contextlib.ExitStack() as closing:
        broker.log("clicks")
        findings = Findings(
            plain_settings(
                source={"assume_cluster_id": "old", "bootstrap_servers": f"127.0.0.1:{broker.port}"}
            ),
            closing,
        )
        findings.zookeeper = NOTHING_KEPT
        with Cluster([("127.0.0.1", broker.port)]) as cluster:
            findings.metadata = cluster.describe(None)
        untold, _ = doctor_services.topics("topics", findings)
    assert untold.verdict is Verdict.ADVICE and "ACL" not in untold.to_do
    assert "Name compacted topics in source.assume_compacted" in untold.to_do
