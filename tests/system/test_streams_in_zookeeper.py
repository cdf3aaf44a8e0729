"""Consumers and streams as members of a group in a real ZooKeeper, with fake brokers: nothing is
read by two and nothing is lost, each stream owns as its thread, new topics join, and a former
member commits nothing. With other consumers: tests/brokers.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from etl import Consumer, ConsumerConfig, ConsumerConnector, Group, RebalanceListener, Record
from etl.errors import MembershipLost, OffsetMoved
from etl.io.zookeeper.group_offsets import ConsumerGroup
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger.znode_paths import GroupPaths
from etl.model.partitions import TopicPartition
from etl.testkit.server_process import wait_until
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FakeBroker
from tests.fakes.group_readers import GroupReader, all_read_once
from tests.system.driving import lose_session

PARTITIONS = 4
LOGS = [TopicPartition("clicks", number) for number in range(PARTITIONS)]
PATHS = GroupPaths("g")


class Stage:
    """Brokers that have topics, and a ZooKeeper in which these are registered."""

    def __init__(self, broker: FakeBroker, zookeeper: ZooKeeper, connect: str) -> None:
        self.broker, self.zookeeper, self.connect = broker, zookeeper, connect

    def add(self, topic: str, partitions: int = 1) -> None:
        for number in range(partitions):
            self.broker.log(topic, number)
        registered = json.dumps(
            {"version": 1, "partitions": {str(number): [1] for number in range(partitions)}}
        ).encode()
        self.zookeeper.client.create(f"/brokers/topics/{topic}", registered, makepath=True)

    def write(self, topic: str, count: int = 5) -> None:
        for (name, number), log in self.broker.world.logs.items():
            if name == topic:
                start = log.log_end
                records = [Rec(delta, b"%d" % (start + delta)) for delta in range(count)]
                self.broker.append(topic, number, encode(Batch(start, records)))

    @property
    def options(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": f"127.0.0.1:{self.broker.port}",
            "zookeeper": self.connect,
            "group": Group("g", join_timeout_s=20),
            "auto_offset_reset": "earliest",
            "fetch_max_wait_ms": 20,
            "request_timeout_s": 5,
        }

    def connector(self) -> ConsumerConnector:
        return ConsumerConnector(ConsumerConfig(**self.options))

    def consumer(self) -> Consumer:
        return Consumer(**self.options)

    def committed(self) -> dict[int, int | None]:
        found = ConsumerGroup(self.zookeeper, "g").committed(LOGS)
        return {partition.partition: one.offset for partition, one in found.items()}

    def owners(self, topic: str = "clicks") -> dict[int, str]:
        self.zookeeper.sync("/")
        found = ConsumerGroup(self.zookeeper, "g").owners([topic])
        return {partition.partition: owner for partition, owner in found.items()}


@pytest.fixture
def stage(zookeeper: ZooKeeper, connect: str) -> Iterator[Stage]:
    with FakeBroker() as broker:
        here = Stage(broker, zookeeper, connect)
        here.add("clicks", PARTITIONS)
        yield here


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[ZooKeeper]:
    """The sessions that consumers open: the second one of each is its member's."""
    opened: list[ZooKeeper] = []

    class Noted(ZooKeeper):
        def __enter__(self) -> ZooKeeper:
            opened.append(self)
            return super().__enter__()

    monkeypatch.setattr("etl.streams.group_member.ZooKeeper", Noted)
    return opened


def polled(consumer: Consumer, count: int, *, most: int = 500) -> list[Record]:
    """So many records, however many polls that takes."""
    found: list[Record] = []
    deadline = time.monotonic() + 20
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} came"
        found += [record for some in consumer.poll(0.05, most).values() for record in some]
    return found


def test_nothing_is_read_by_two_and_nothing_is_lost_while_members_come_and_go(stage: Stage) -> None:
    readers: list[GroupReader] = []
    with ExitStack() as ending:
        for count in (4, 2):
            stage.write("clicks")
            reader = GroupReader(stage.consumer(), ["clicks"])
            ending.callback(reader.end)
            readers.append(reader)
            assert all(one.owns(count) for one in readers)
        stage.write("clicks")
        readers[0].end()
        stage.write("clicks")
        assert readers[1].owns(4)
        all_read_once(readers, lambda: Counter(dict.fromkeys(LOGS, 20)))
    assert stage.committed() == dict.fromkeys(range(PARTITIONS), 20)
    assert not any(reader.lost_logs for reader in readers) and stage.owners() == {}


def test_a_members_commit_is_rejected_once_another_client_owns_the_partition(stage: Stage) -> None:
    stage.write("clicks")
    with stage.consumer() as consumer:
        consumer.subscribe(["clicks"])
        polled(consumer, 20)
        path = PATHS.owner(LOGS[2])
        stage.zookeeper.client.delete(path)
        stage.zookeeper.client.create(path, b"g_somebody-0", ephemeral=True)
        with pytest.raises(MembershipLost, match="does not own the partition any more"):
            consumer.commit({LOGS[2]: 5, LOGS[1]: 5})
        assert stage.committed() == {}
        stage.zookeeper.client.create(PATHS.offset(LOGS[1]), b"3", makepath=True)
        with pytest.raises(OffsetMoved, match="it is 3"):
            consumer.commit({LOGS[1]: 5})
        stage.zookeeper.client.delete(path)


def test_a_late_commit_is_rejected_also_if_another_consumer_of_ours_owns_the_partitions_by_now(
    stage: Stage, sessions: list[ZooKeeper]
) -> None:
    stage.write("clicks")
    late = stage.consumer()
    late.subscribe(["clicks"])
    polled(late, 20)
    _, session_of_member = sessions
    lose_session(session_of_member)
    with stage.consumer() as next_one:
        next_one.subscribe(["clicks"])
        polled(next_one, 4, most=1)
        with pytest.raises(MembershipLost, match="does not own the partition any more"):
            late.commit()
        assert stage.committed() == {}
        next_one.commit({LOGS[0]: 1})
        late.close()
    assert stage.committed() == {0: 1}


def test_offsets_are_read_after_every_write_before_the_assignment_became_ours(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[str] = []

    class Seen(ZooKeeper):
        def sync(self, path: str) -> None:
            requests.append("sync")
            super().sync(path)

        def read_all(self, paths: Sequence[str]) -> list[tuple[bytes, int] | None]:
            requests.append("read")
            return super().read_all(paths)

    monkeypatch.setattr("etl.streams.group_member.ZooKeeper", Seen)
    with stage.consumer() as consumer:
        assert consumer.committed(LOGS) == {}
    assert requests == ["sync", "read"], "its session may be at another server than the member's"


def test_a_member_with_an_expired_session_gets_an_error_and_joins_again_at_the_groups_offsets(
    stage: Stage, sessions: list[ZooKeeper]
) -> None:
    heard: list[str] = []

    class RebalanceLog(RebalanceListener):
        def assigned(self, partitions: Collection[TopicPartition]) -> None:
            heard.append(f"assigned {len(partitions)}")

        def lost(self, partitions: Collection[TopicPartition]) -> None:
            heard.append(f"lost {len(partitions)}")

    stage.write("clicks")
    with stage.consumer() as consumer:
        consumer.subscribe(["clicks"], listener=RebalanceLog())
        polled(consumer, 20)
        consumer.commit({LOGS[0]: 3})
        assert len(sessions) == 2
        for session in sessions[:]:
            lose_session(session)
        again = polled(consumer, 17)
        assert [one.offset for one in again if one.topic_partition == LOGS[0]] == [3, 4]
        consumer.commit()
        assert stage.committed() == dict.fromkeys(range(4), 5)
    assert heard == ["assigned 4", "lost 4", "assigned 4"]


def test_each_stream_owns_its_partitions_as_its_thread_and_gives_them(stage: Stage) -> None:
    stage.write("clicks")
    with stage.connector() as connector:
        streams = connector.create_message_streams({"clicks": 2}, timeout_s=20)["clicks"]
        found = [[next(stream).partition for _ in range(10)] for stream in streams]
        assert [set(some) for some in found] == [{0, 1}, {2, 3}]
        owners = stage.owners()
        assert [owners[number].rpartition("-")[2] for number in range(4)] == ["0", "0", "1", "1"]
        connector.commit()
        assert stage.committed() == dict.fromkeys(range(4), 5)
    assert stage.owners() == {} and not stage.zookeeper.children(PATHS.consumer_ids)


def test_a_new_topic_that_passes_the_filter_joins_by_itself_and_is_registered_as_originals_do(
    stage: Stage,
) -> None:
    with stage.connector() as connector:
        (stream,) = connector.create_message_streams_by_filter("clicks|ord.*", timeout_s=20)
        assert wait_until(lambda: len(stage.owners()) == PARTITIONS, 20)
        [member] = stage.zookeeper.children(PATHS.consumer_ids) or [""]
        registered = json.loads(stage.zookeeper.client.get(f"{PATHS.consumer_ids}/{member}")[0])
        assert registered["pattern"] == "white_list"
        assert registered["subscription"] == {"clicks|ord.*": 1}
        stage.add("orders")
        stage.write("orders")
        assert [next(stream).topic for _ in range(5)] == ["orders"] * 5
        stage.add("others")
        assert stage.owners("others") == {}
