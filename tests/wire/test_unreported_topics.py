"""Topics that brokers do not report, or keep from us, while a cluster restarts or permissions change."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from etl.commands import doctor_services
from etl.commands.doctor_machine import Findings
from etl.errors import BrokerUnreachable, PermissionDenied, SettingsError
from etl.io.brokers.cluster_requests import Cluster, chosen_topics
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.partitions import TopicPartition
from etl.model.snapshot import Pause
from etl.run.discovery import Discovery, describe_registered_topics, with_denied_topics
from etl.settings.source import TopicFilter
from tests.builders import kafka_named, plain_plan, plain_settings
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import METADATA, FakeBroker, as_it_is

LOGS = (TopicPartition("early", 0), TopicPartition("late", 0))


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """It knows the topic `early`, and no others yet."""
    with FakeBroker() as running:
        running.append("early", 0, encode(Batch(0, [Rec(0)])))
        yield running


@pytest.mark.parametrize("requested", [["early", "late"], ["late"], None])
@pytest.mark.parametrize("answers_before", [1, 2, 3, 4])
def test_a_registered_topic_is_waited_for(
    broker: FakeBroker, cluster: Cluster, requested: list[str] | None, answers_before: int
) -> None:
    def answers_and_gets_the_topic(connection: socket.socket, frame: bytes) -> None:
        connection.sendall(frame)
        broker.append("late", 0, encode(Batch(0, [Rec(0)])))

    acts = [as_it_is] * (answers_before - 1) + [answers_and_gets_the_topic]
    broker.script[METADATA].extend(acts)
    registered = requested or ["early", "late"]
    reported = describe_registered_topics(
        cluster, requested, lambda reported: registered, wait_s=30
    )
    assert {partition.topic for partition in reported.leaders} == set(registered)


def test_a_topic_that_the_brokers_never_report_is_a_transient_error(cluster: Cluster) -> None:
    text = "do not report a topic and 1 more that is registered in ZooKeeper.*late"
    registered = ["early", "late", "later"]
    with pytest.raises(BrokerUnreachable, match=text):
        describe_registered_topics(cluster, None, lambda reported: registered, wait_s=0.3)


def test_an_unregistered_topic_is_missing_at_once(broker: FakeBroker, cluster: Cluster) -> None:
    reported = describe_registered_topics(
        cluster, ["early", "misspelt"], lambda reported: ["early"], wait_s=float("inf")
    )
    assert {partition.topic for partition in reported.leaders} == {"early"}
    assert [each for each, _ in broker.requests].count(METADATA) == 1


def test_a_topic_without_permission_is_refused(broker: FakeBroker, cluster: Cluster) -> None:
    broker.append("late", 0, encode(Batch(0, [Rec(0)])))
    broker.world.kept_from_us.add("late")
    every = TopicFilter(topics=("[a-z]+",))
    reported = cluster.describe(None)
    assert chosen_topics(reported, every).topics.keys() == {"early"}
    denied = with_denied_topics(cluster, reported, ["early", "late", "deleted"])
    text = r"let us read the topic \(topic late.*Describe and Read\. If the topic was deleted"
    with pytest.raises(PermissionDenied, match=text):
        chosen_topics(denied, every)


def test_a_request_creates_no_deleted_topic(broker: FakeBroker, cluster: Cluster) -> None:
    reported = cluster.describe(None)
    assert with_denied_topics(cluster, reported, ["early", "deleted"]) == reported
    request_count = len(broker.requests)
    assert with_denied_topics(cluster, reported, ["early"]) == reported
    assert len(broker.requests) == request_count


def test_a_leader_without_our_listener_is_named(broker: FakeBroker, cluster: Cluster) -> None:
    broker.world.refused_leaders["early", 0] = 72
    with pytest.raises(SettingsError, match="that leads the partition has no listener") as error:
        chosen_topics(cluster.describe(None), TopicFilter(topics=("early",)))
    assert error.value.where["key"] == "source.listener"
    assert (error.value.where["topic"], error.value.where["partition"]) == ("early", 0)
    broker.world.refused_leaders["early", 0] = 5
    assert chosen_topics(cluster.describe(None), TopicFilter(topics=("early",))).leaderless


@pytest.mark.parametrize(
    ("allow", "paused", "met"),
    [
        (["[a-z]+"], "late", {"early"}),
        (["[a-z]+"], "other", {"early", "late"}),
        (["early", "late"], "late", {"early", "late"}),
    ],
)
def test_the_doctor_describes_the_topics_of_a_run(
    broker: FakeBroker,
    monkeypatch: pytest.MonkeyPatch,
    allow: list[str],
    paused: str,
    met: set[str],
) -> None:
    broker.world.kept_from_us.add("late")
    settings = plain_settings(
        source={
            "assume_cluster_id": "of-the-test",
            "bootstrap_servers": [f"{broker.host}:{broker.port}"],
            "topics": allow,
        }
    )
    zookeeper = cast(ZooKeeper, SimpleNamespace(read=lambda path: None))
    monkeypatch.setattr(Discovery, "pauses", lambda self: (Pause(paused, None, "", "us@here", 0),))
    monkeypatch.setattr(
        doctor_services,
        "_newest_plan",
        lambda findings: plain_plan(
            cluster=kafka_named("of-the-test"), loaded_until=dict.fromkeys(LOGS, 1)
        ),
    )
    with contextlib.ExitStack() as closing:
        findings = Findings(settings, closing, _zookeeper=zookeeper)
        list(doctor_services.cluster("cluster", findings))
        with Discovery(settings, zookeeper).open_cluster() as cluster:
            described = Discovery(settings, zookeeper).describe(cluster, (), {"early", "late"})
        assert findings.metadata.topics.keys() == described.topics.keys() == met
