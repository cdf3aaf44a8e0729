"""How brokers of each generation are found ready, and made to have a topic."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from etl.embedded.server import HOST, answers, wait_until
from etl.embedded.wire import create_jafka_topic, metadata
from etl.errors import SettingsError, Unreachable

_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where one broker is: its id, its port on this machine, and the ZooKeeper with the cluster's
    path, empty where it has none.
    """

    broker_id: int
    port: int
    zookeeper: str

    @property
    def address(self) -> str:
        """`127.0.0.1:port`."""
        return f"{HOST}:{self.port}"


@dataclass(frozen=True, slots=True)
class NewTopic:
    """What is asked for."""

    name: str
    partitions: int = 1
    replication_factor: int = 1
    config: Mapping[str, str] | None = None


class Administration(Protocol):
    """What is asked of the brokers of one generation."""

    def is_ready(self, broker: Place) -> bool:
        """Whether clients are told of this broker: a port that answers is not yet a cluster."""

    def create_topic(self, brokers: Sequence[Place], topic: NewTopic) -> None:
        """Create it, and return when every partition can be written and read."""


class ByAdminClient:
    """Kafka from 0.10.1 on: a request to the brokers, by kafka-python. Raises its errors."""

    def is_ready(self, broker: Place) -> bool:
        """Whether the broker tells of itself and of a controller."""
        try:
            told = metadata(broker.port, version=1)
        except OSError:
            return False
        return broker.broker_id in told.brokers and told.controller in told.brokers

    def create_topic(self, brokers: Sequence[Place], topic: NewTopic) -> None:
        """See Administration."""
        from kafka.admin import KafkaAdminClient

        wanted = {
            "num_partitions": topic.partitions,
            "replication_factor": topic.replication_factor,
            "configs": dict(topic.config or {}),
        }
        with KafkaAdminClient(
            bootstrap_servers=",".join(broker.address for broker in brokers)
        ) as admin:
            admin.create_topics({topic.name: wanted}, wait_for_metadata=True)


class ByZooKeeper:
    """Kafka before 0.10.1: its own tool writes the topic's assignment into ZooKeeper, and the
    controller does the rest.
    """

    def is_ready(self, broker: Place) -> bool:
        """Whether it is registered and one of the registered brokers is the controller."""
        if not answers(broker.port):
            return False
        with session(broker.zookeeper) as client:
            ids = client.get_children("/brokers/ids") if client.exists("/brokers/ids") else []
            return (
                str(broker.broker_id) in ids
                and str(_json(client, "/controller").get("brokerid")) in ids
            )

    def create_topic(self, brokers: Sequence[Place], topic: NewTopic) -> None:
        """See Administration. Raises Unreachable when some partition has no leader after a minute."""
        ids = [broker.broker_id for broker in brokers]
        replicas = {
            str(p): [ids[(p + n) % len(ids)] for n in range(topic.replication_factor)]
            for p in range(topic.partitions)
        }
        config = {"version": 1, "config": dict(topic.config or {})}
        path = f"/brokers/topics/{topic.name}"
        with session(brokers[0].zookeeper) as client:
            client.create(
                f"/config/topics/{topic.name}", json.dumps(config).encode(), makepath=True
            )
            client.create(
                path, json.dumps({"version": 1, "partitions": replicas}).encode(), makepath=True
            )

            def is_led() -> bool:
                states = [
                    _json(client, f"{path}/partitions/{partition}/state") for partition in replicas
                ]
                return all(state.get("leader", -1) >= 0 for state in states) and all(
                    _tells_of(one, topic) for one in brokers
                )

            if not wait_until(is_led, _WITHIN_S):
                raise Unreachable(
                    "a new topic has no leaders", check="the brokers' log files", topic=topic.name
                )


class ByCreateRequest:
    """Jafka: each broker is asked for partitions of its own."""

    def is_ready(self, broker: Place) -> bool:
        """Whether it is registered with this port."""
        if not answers(broker.port):
            return False
        with session(broker.zookeeper) as client:
            path = f"/brokers/ids/{broker.broker_id}"
            return (
                client.exists(path) is not None
                and f":{broker.port}" in client.get(path)[0].decode()
            )

    def create_topic(self, brokers: Sequence[Place], topic: NewTopic) -> None:
        """See Administration: `partitions` on each broker. Raises SettingsError for what Jafka does
        not have.
        """
        if topic.replication_factor != 1 or topic.config:
            raise SettingsError(
                "Jafka has no replicas and no settings of a topic",
                check="what is asked for",
                topic=topic.name,
            )
        for broker in brokers:
            create_jafka_topic(broker.port, topic.name, topic.partitions)
        with session(brokers[0].zookeeper) as client:
            paths = [f"/brokers/topics/{topic.name}/{broker.broker_id}" for broker in brokers]
            if not wait_until(lambda: all(client.exists(path) for path in paths), _WITHIN_S):
                raise Unreachable(
                    "a new topic is not registered",
                    check="the brokers' log files",
                    topic=topic.name,
                )


def end_older_session(broker: Place) -> None:
    """End the session of a killed broker: its znodes stay until then, and a broker that finds its
    own id taken gives up.

    Whoever registered this broker's port is dead, for it is about to listen there: what the end of
    its session would remove is removed now.
    """
    with session(broker.zookeeper) as client:
        path = f"/brokers/ids/{broker.broker_id}"
        if not client.exists(path):
            return
        text, stat = client.get(path)
        if not re.search(rf"\b{broker.port}\b", text.decode()):
            return
        topics = client.get_children("/brokers/topics") if client.exists("/brokers/topics") else []
        for znode in (
            path,
            "/controller",
            *(f"/brokers/topics/{topic}/{broker.broker_id}" for topic in topics),
        ):
            found = client.exists(znode)
            if found is not None and found.ephemeralOwner == stat.ephemeralOwner:
                client.delete(znode)


def make_chroot(connect: str, *, within_s: float = _WITHIN_S) -> None:
    """Make the path of a ZooKeeper connection string, which only Kafka's own brokers do. Raises as
    `session` does.
    """
    hosts, slash, path = connect.partition("/")
    with session(hosts, within_s=within_s) as client:
        client.ensure_path(slash + path)


@contextlib.contextmanager
def session(connect: str, *, within_s: float = _WITHIN_S) -> Iterator[Any]:
    """A session of kazoo's. Raises Unreachable when ZooKeeper does not answer in time."""
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError

    client = KazooClient(hosts=connect)
    try:
        client.start(timeout=within_s)
        yield client
    except KazooTimeoutError as error:
        raise Unreachable(
            "ZooKeeper does not answer", check="that it is running", zookeeper=connect
        ) from error
    finally:
        client.stop()
        client.close()


def _json(client: Any, path: str) -> dict[str, Any]:
    """A znode's document, empty while there is none."""
    found: dict[str, Any] = json.loads(client.get(path)[0]) if client.exists(path) else {}
    return found


def _tells_of(broker: Place, topic: NewTopic) -> bool:
    """Whether the broker itself names a leader of every partition."""
    leaders = metadata(broker.port, version=0).leaders.get(topic.name, {})
    return len(leaders) == topic.partitions and min(leaders.values()) >= 0
