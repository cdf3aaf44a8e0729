"""How brokers of each generation are found ready, and made to have a topic."""

from __future__ import annotations

import contextlib
import io
import json
import re
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from etl.embedded.server import HOST, answers, wait_until
from etl.errors import SettingsError, Unreachable

_WITHIN_S = 60.0
_PRODUCE, _CREATE = 0, 5
"""Requests of Jafka's; a create request of as many partitions as the broker gives by itself does nothing."""
_METADATA = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Where one broker is: its id, its port on this machine, and the ZooKeeper with the cluster's path, empty where it has none."""

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
        from kafka.admin import KafkaAdminClient
        from kafka.errors import KafkaError

        if not answers(broker.port):
            return False
        try:
            with KafkaAdminClient(bootstrap_servers=broker.address) as admin:
                cluster = admin.describe_cluster()
        except (KafkaError, OSError):
            return False
        brokers = {one["broker_id"] for one in cluster["brokers"]}
        return broker.broker_id in brokers and cluster["controller_id"] in brokers

    def create_topic(self, brokers: Sequence[Place], topic: NewTopic) -> None:
        """See Administration."""
        from kafka.admin import KafkaAdminClient

        wanted = {"num_partitions": topic.partitions, "replication_factor": topic.replication_factor, "configs": dict(topic.config or {})}
        with KafkaAdminClient(bootstrap_servers=",".join(broker.address for broker in brokers)) as admin:
            admin.create_topics({topic.name: wanted}, wait_for_metadata=True)


class ByZooKeeper:
    """Kafka before 0.10.1: its own tool writes the topic's assignment into ZooKeeper, and the controller does the rest."""

    def is_ready(self, broker: Place) -> bool:
        """Whether it is registered and one of the registered brokers is the controller."""
        if not answers(broker.port):
            return False
        with session(broker.zookeeper) as client:
            ids = client.get_children("/brokers/ids") if client.exists("/brokers/ids") else []
            return str(broker.broker_id) in ids and str(_json(client, "/controller").get("brokerid")) in ids

    def create_topic(self, brokers: Sequence[Place], topic: NewTopic) -> None:
        """See Administration. Raises Unreachable when some partition has no leader after a minute."""
        ids = [broker.broker_id for broker in brokers]
        replicas = {str(p): [ids[(p + n) % len(ids)] for n in range(topic.replication_factor)] for p in range(topic.partitions)}
        config = {"version": 1, "config": dict(topic.config or {})}
        path = f"/brokers/topics/{topic.name}"
        with session(brokers[0].zookeeper) as client:
            client.create(f"/config/topics/{topic.name}", json.dumps(config).encode(), makepath=True)
            client.create(path, json.dumps({"version": 1, "partitions": replicas}).encode(), makepath=True)

            def is_led() -> bool:
                states = [_json(client, f"{path}/partitions/{partition}/state") for partition in replicas]
                return all(state.get("leader", -1) >= 0 for state in states) and all(_tells_of(one, topic) for one in brokers)

            if not wait_until(is_led, _WITHIN_S):
                raise Unreachable("a new topic has no leaders", check="the brokers' log files", topic=topic.name)


class ByCreateRequest:
    """Jafka: each broker is asked for partitions of its own."""

    def is_ready(self, broker: Place) -> bool:
        """Whether it is registered with this port."""
        if not answers(broker.port):
            return False
        with session(broker.zookeeper) as client:
            path = f"/brokers/ids/{broker.broker_id}"
            return client.exists(path) is not None and f":{broker.port}" in client.get(path)[0].decode()

    def create_topic(self, brokers: Sequence[Place], topic: NewTopic) -> None:
        """See Administration: `partitions` on each broker. Raises SettingsError for what Jafka does not have."""
        if topic.replication_factor != 1 or topic.config:
            raise SettingsError("Jafka has no replicas and no settings of a topic", check="what is asked for", topic=topic.name)
        name = struct.pack(">h", len(topic.name)) + topic.name.encode()
        create = struct.pack(">h", _CREATE) + name + struct.pack(">iB", topic.partitions, 1)
        produce = struct.pack(">h", _PRODUCE) + name + struct.pack(">ii", 0, 0)  # no message: the logs are made all the same
        for broker in brokers:
            _asked(broker, create)
            _told(broker, produce)
        with session(brokers[0].zookeeper) as client:
            paths = [f"/brokers/topics/{topic.name}/{broker.broker_id}" for broker in brokers]
            if not wait_until(lambda: all(client.exists(path) for path in paths), _WITHIN_S):
                raise Unreachable("a new topic is not registered", check="the brokers' log files", topic=topic.name)


def end_older_session(broker: Place) -> None:
    """End the session of a killed broker: its znodes stay until then, and a broker that finds its own id taken gives up.

    Whoever registered this broker's port is dead, for it is about to listen there: what the end of its session would
    remove is removed now.
    """
    with session(broker.zookeeper) as client:
        path = f"/brokers/ids/{broker.broker_id}"
        if not client.exists(path):
            return
        text, stat = client.get(path)
        if not re.search(rf"\b{broker.port}\b", text.decode()):
            return
        topics = client.get_children("/brokers/topics") if client.exists("/brokers/topics") else []
        for znode in (path, "/controller", *(f"/brokers/topics/{topic}/{broker.broker_id}" for topic in topics)):
            found = client.exists(znode)
            if found is not None and found.ephemeralOwner == stat.ephemeralOwner:
                client.delete(znode)


def make_chroot(connect: str) -> None:
    """Make the path of a ZooKeeper connection string, which only Kafka's own brokers do. Raises as `session` does."""
    hosts, slash, path = connect.partition("/")
    with session(hosts) as client:
        client.ensure_path(slash + path)


@contextlib.contextmanager
def session(connect: str) -> Iterator[Any]:
    """A session of kazoo's. Raises Unreachable when ZooKeeper does not answer."""
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError

    client = KazooClient(hosts=connect)
    try:
        client.start(timeout=_WITHIN_S)
        yield client
    except KazooTimeoutError as error:
        raise Unreachable("ZooKeeper does not answer", check="that it is running", zookeeper=connect) from error
    finally:
        client.stop()
        client.close()


def _json(client: Any, path: str) -> dict[str, Any]:
    """A znode's document, empty while there is none."""
    found: dict[str, Any] = json.loads(client.get(path)[0]) if client.exists(path) else {}
    return found


def _tells_of(broker: Place, topic: NewTopic) -> bool:
    """Whether the broker itself names a leader of every partition. It is asked for all topics: by name, Metadata v0 may create one."""
    answer = io.BytesIO(_asked(broker, struct.pack(">hhihi", _METADATA, 0, 0, 0, 0)))

    def integers(count: int) -> tuple[int, ...]:
        return struct.unpack(f">{count}i", answer.read(4 * count))

    def short() -> int:
        return int.from_bytes(answer.read(2), signed=True)

    _correlation, brokers = integers(2)
    for _ in range(brokers):
        integers(1)
        answer.read(short() + 4)
    for _ in range(*integers(1)):
        short()
        name = answer.read(short()).decode()
        leaders = []
        for _ in range(*integers(1)):
            short()
            leaders.append(integers(2)[1])
            for _replicas_then_in_sync in range(2):
                integers(*integers(1))
        if name == topic.name:
            return len(leaders) == topic.partitions and min(leaders) >= 0
    return False


def _asked(broker: Place, request: bytes) -> bytes:
    """One request and the body of its answer."""
    with _told_on(broker, request) as connection, connection.makefile("rb") as answer:
        [size] = struct.unpack(">i", answer.read(4))
        return answer.read(size)


def _told(broker: Place, request: bytes) -> None:
    """One request that has no answer: the broker hangs up when it has read it."""
    with _told_on(broker, request) as connection:
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)


def _told_on(broker: Place, request: bytes) -> socket.socket:
    connection = socket.create_connection((HOST, broker.port), timeout=_WITHIN_S)
    connection.sendall(struct.pack(">i", len(request)) + request)
    return connection
