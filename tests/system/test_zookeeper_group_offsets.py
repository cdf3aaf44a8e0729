"""Offsets, consumers and owners of a group in a real ZooKeeper."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from kazoo.client import KazooClient, KazooState, TransactionRequest
from kazoo.exceptions import ConnectionLoss
from kazoo.security import make_digest_acl

from etl.errors import (
    BadOffset,
    CommitUnknown,
    OffsetMoved,
    PermissionDenied,
    SessionLost,
    ZooKeeperUnreachable,
)
from etl.io.zookeeper import session_requests
from etl.io.zookeeper.group_offsets import ConsumerGroup
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.partitions import Committed, TopicPartition
from etl.model.plans import Plan
from etl.testkit import cluster as embedded
from tests.builders import plain_plan
from tests.system.driving import lose_session

A, B, C = (TopicPartition("clicks", p) for p in range(3))
OTHER = TopicPartition("other", 7)
OLD, OLD_A = (TopicPartition("clicks", p, broker_id=0) for p in (3, 0))


@pytest.fixture
def zookeeper(server: embedded.ZooKeeper) -> Iterator[ZooKeeper]:
    """A session with a new chroot, which does not exist yet."""
    with ZooKeeper(f"{server.connect}/{uuid.uuid4().hex}/kafka") as session:
        yield session


@pytest.fixture
def client(zookeeper: ZooKeeper) -> KazooClient:
    """Another consumer's hands, under the same chroot."""
    zookeeper.ensure("/")
    return zookeeper.client


@pytest.fixture
def group(zookeeper: ZooKeeper, client: KazooClient) -> ConsumerGroup:
    return ConsumerGroup(zookeeper, "g")


def plan_of(
    positions: Mapping[TopicPartition, int],
    seen: Mapping[TopicPartition, Committed],
    **changes: Any,
) -> Plan:
    return plain_plan(
        3,
        loaded_until=dict(positions),
        expected_commits={partition: seen.get(partition, Committed()) for partition in positions},
        **changes,
    )


def set_offset(client: KazooClient, partition: TopicPartition, text: bytes) -> None:
    path = f"/consumers/g/offsets/{partition.topic}/{partition.key}"
    if client.exists(path):
        client.set(path, text)
    else:
        client.create(path, text, makepath=True)


def around_commits(
    monkeypatch: pytest.MonkeyPatch, client: KazooClient, around: Callable[[Callable[[], Any]], Any]
) -> None:
    """Each transaction of this client is committed by `around`, which is given its real commit."""

    class Transaction(TransactionRequest):  # type: ignore[misc]  # kazoo has no types
        def commit_async(self) -> Any:
            answer = self.client.handler.async_result()
            try:
                answer.set(around(lambda: TransactionRequest.commit_async(self).get()))
            except ConnectionLoss as error:
                answer.set_exception(error)
            return answer

    monkeypatch.setattr(client, "transaction", lambda: Transaction(client))


def test_only_requested_offsets_are_read_with_their_versions(
    group: ConsumerGroup, client: KazooClient
) -> None:
    assert (group.live_consumers(), group.owners(["clicks"])) == ((), {})
    assert group.committed([A, B]) == {}
    set_offset(client, A, b"17")
    set_offset(client, A, b"18")
    set_offset(client, B, b"0")
    set_offset(client, OLD, b"5")
    client.create("/consumers/g/offsets/clicks/not-a-partition", b"x")
    assert group.committed([A, OLD, C, OTHER]) == {A: Committed(18, 1), OLD: Committed(5, 0)}


def test_of_very_many_topics_only_those_with_znodes_are_asked_for(
    group: ConsumerGroup, client: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [f"topic-{number}" for number in range(100_000)]
    partitions = [TopicPartition(topic, 0) for topic in topics]
    assert group.committed(partitions) == {} == group.owners(topics)
    set_offset(client, partitions[7], b"5")
    asked: list[str] = []
    children_of = client.get_children_async

    def noting(path: str, *options: Any, **more: Any) -> Any:
        asked.append(path)
        return children_of(path, *options, **more)

    monkeypatch.setattr(client, "get_children_async", noting)
    assert group.committed(partitions) == {partitions[7]: Committed(5, 0)}
    assert asked == ["/consumers/g/offsets", "/consumers/g/offsets/topic-7"]


@pytest.mark.parametrize("text", [b"null", b"-1", b"12\n", b"\xff"])
def test_text_that_is_no_number_is_a_bad_offset_that_names_the_znode(
    group: ConsumerGroup, client: KazooClient, text: bytes
) -> None:
    set_offset(client, A, text)
    with pytest.raises(BadOffset) as caught:
        group.committed([A])
    znode = "/consumers/g/offsets/clicks/0"
    assert caught.value.where == {"topic": "clicks", "partition": 0, "znode": znode}


def test_a_bare_znode_is_nothing_committed_and_is_written_all_the_same(
    group: ConsumerGroup, client: KazooClient
) -> None:
    client.ensure_path("/consumers/g/offsets/clicks/0")
    seen = group.committed([A])
    assert seen.get(A, Committed()).offset is None
    assert group.commit(plan_of({A: 5}, seen)) == {A: Committed(5, 1)}
    assert group.committed([A]) == {A: Committed(5, 1)}


def test_live_consumers_and_owners_are_named(group: ConsumerGroup, client: KazooClient) -> None:
    client.create("/consumers/g/ids/g_host-1", b"{}", ephemeral=True, makepath=True)
    client.create("/consumers/g/owners/clicks/1", b"g_host-1-0", ephemeral=True, makepath=True)
    assert group.live_consumers() == ("g_host-1",)
    assert group.owners(["clicks", "other"]) == {B: "g_host-1-0"}


@pytest.mark.parametrize(
    ("physical", "ours", "theirs"),
    [(False, A, OLD_A), (True, OLD_A, A)],
    ids=["of-kafka", "of-jafka"],
)
def test_what_consumers_of_the_other_family_left_for_the_same_partition_is_left_alone(
    zookeeper: ZooKeeper,
    client: KazooClient,
    physical: bool,
    ours: TopicPartition,
    theirs: TopicPartition,
) -> None:
    group = ConsumerGroup(zookeeper, "g", physical=physical)
    for partition, text in ((ours, b"17"), (theirs, b"5")):
        set_offset(client, partition, text)
        path = f"/consumers/g/owners/clicks/{partition.key}"
        client.create(path, partition.key.encode(), ephemeral=True, makepath=True)
    assert group.committed([ours]) == {ours: Committed(17, 0)}
    assert group.partitions_with_offsets(lambda topic: True) == {ours}
    assert group.owners(["clicks"]) == {ours: ours.key}
    assert group.offsets_of_the_other_family(["clicks", "other"]) == [theirs]
    assert group.commit(plan_of({ours: 20}, {ours: Committed(17, 0)})) == {ours: Committed(20, 1)}
    assert client.get(f"/consumers/g/offsets/clicks/{theirs.key}")[0] == b"5"


def test_a_commit_creates_sets_and_skips_offsets_and_returns_the_present_ones(
    group: ConsumerGroup, client: KazooClient
) -> None:
    for partition, text in ((A, b"3"), (B, b"9")):
        set_offset(client, partition, text)
    seen = group.committed([A, B, C, OTHER])
    now = group.commit(plan_of({A: 5, B: 9, C: 0, OTHER: 2, OLD: 4096}, seen))
    expected = {A: Committed(5, 1), C: Committed(0, 0), OTHER: Committed(2, 0)}
    assert now == {**expected, OLD: Committed(4096, 0)}
    assert group.committed([A, B, C, OTHER]) == {**expected, B: Committed(9, 0)}
    assert client.get("/consumers/g/offsets/clicks/0")[0] == b"5"
    assert client.get("/consumers/g/offsets/clicks/0-3")[0] == b"4096"


@pytest.mark.parametrize("stale", ["moved", "removed", "appeared"])
def test_one_stale_offset_moves_nothing_at_all(
    group: ConsumerGroup, client: KazooClient, stale: str
) -> None:
    set_offset(client, A, b"3")
    set_offset(client, B, b"4")
    seen = group.committed([A, B, C])
    if stale == "moved":
        set_offset(client, B, b"4")  # the same value: only the version differs
    elif stale == "removed":
        client.delete("/consumers/g/offsets/clicks/1")
    else:
        set_offset(client, C, b"1")
    before = group.committed([A, B, C])
    with pytest.raises(OffsetMoved) as caught:
        group.commit(plan_of({A: 5, B: 6, C: 7}, seen))
    assert caught.value.where["partition"] == (2 if stale == "appeared" else 1)
    assert group.committed([A, B, C]) == before


def test_a_lost_answer_to_a_commit_that_happened_is_recognised_as_ours(
    group: ConsumerGroup, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_the_answer(commit: Callable[[], Any]) -> Any:
        commit()
        raise ConnectionLoss

    around_commits(monkeypatch, zookeeper.client, lose_the_answer)
    assert group.commit(plan_of({A: 5, B: 6}, {})) == {A: Committed(5, 0), B: Committed(6, 0)}


def test_a_lost_request_is_not_taken_for_a_commit(
    group: ConsumerGroup, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_the_request(commit: Callable[[], Any]) -> Any:
        raise ConnectionLoss

    around_commits(monkeypatch, zookeeper.client, lose_the_request)
    with pytest.raises(CommitUnknown) as caught:
        group.commit(plan_of({A: 5, B: 6}, {}))
    assert caught.value.retriable
    assert group.committed([A, B]) == {}


def test_a_lost_answer_followed_by_a_write_of_another_client_is_no_commit_of_ours(
    group: ConsumerGroup, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_and_let_others_write(commit: Callable[[], Any]) -> Any:
        commit()
        set_offset(zookeeper.client, A, b"99")
        raise ConnectionLoss

    around_commits(monkeypatch, zookeeper.client, lose_and_let_others_write)
    with pytest.raises(OffsetMoved) as caught:
        group.commit(plan_of({A: 5, B: 6}, {}))
    assert (caught.value.where["partition"], caught.value.where["offset"]) == (0, 99)


def test_twelve_thousand_offsets_fit_into_the_requests_that_a_server_takes(
    group: ConsumerGroup,
) -> None:
    partitions = [TopicPartition("a-topic-with-a-long-name." * 4, p) for p in range(12_000)]
    plan = plan_of({partition: 10**18 + partition.partition for partition in partitions}, {})
    now = group.commit(plan)
    assert len(now) == len(partitions)
    again = group.commit(plan_of(dict.fromkeys(partitions, 5), now))
    assert again[partitions[-1]] == Committed(5, 1)


def test_offsets_that_we_may_not_write_are_a_refused_permission(
    group: ConsumerGroup, client: KazooClient
) -> None:
    client.create("/consumers/g/offsets/clicks/0", b"3", makepath=True)
    client.set_acls("/consumers/g/offsets/clicks/0", [make_digest_acl("root", "secret", all=True)])
    with pytest.raises(PermissionDenied):
        group.committed([A])
    with pytest.raises(PermissionDenied) as caught:
        group.commit(plan_of({A: 5}, {A: Committed(3, 0)}))
    assert caught.value.exit_code == 2


def test_after_a_lost_session_nothing_is_committed_although_a_new_one_reads(
    server: embedded.ZooKeeper,
) -> None:
    chroot = uuid.uuid4().hex
    with ZooKeeper(f"{server.connect}/{chroot}") as zookeeper:
        zookeeper.ensure("/")
        group = ConsumerGroup(zookeeper, "g")
        zookeeper.require_session()
        ended = threading.Event()
        zookeeper.client.add_listener(
            lambda state: ended.set() if state == KazooState.LOST else None
        )
        lose_session(zookeeper)
        assert ended.wait(30)
        with pytest.raises(SessionLost) as caught:
            group.commit(plan_of({A: 5}, {}))
        assert caught.value.exit_code == 6
        assert group.committed([A]) == {}


def test_a_zookeeper_that_went_away_is_unreachable() -> None:
    with (
        embedded.ZooKeeper() as server,
        ZooKeeper(server.connect, session_timeout_s=1, connect_timeout_s=0.5) as zookeeper,
    ):
        group = ConsumerGroup(zookeeper, "g")
        plan = plan_of({A: 5}, {})
        group.commit(plan)
        server.kill()
        for ask in (
            lambda: group.committed([A]),
            group.live_consumers,
            lambda: group.commit(plan_of({A: 6}, {A: Committed(5, 0)})),
            lambda: zookeeper.create("/x", b""),
            lambda: zookeeper.sync("/"),
            lambda: zookeeper.ensure("/x"),
        ):
            with pytest.raises((ZooKeeperUnreachable, SessionLost)):
                ask()


def test_a_request_that_is_refused_keeps_none_of_the_others_back(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = ConsumerGroup(zookeeper, "g")
    partitions = [TopicPartition("clicks", number) for number in range(30)]
    before = group.commit(plan_of(dict.fromkeys(partitions, 5), {}))
    monkeypatch.setattr(session_requests, "NODE_MAX_BYTES", 1_700)  # some ten offsets
    zookeeper.client.set("/consumers/g/offsets/clicks/15", b"7")
    with pytest.raises(OffsetMoved, match="it is 7, the plan's is 9"):
        group.commit(plan_of(dict.fromkeys(partitions, 9), before))
    now = group.committed(partitions)
    stays = [partition.partition for partition in partitions if now[partition] != Committed(9, 1)]
    assert stays == list(range(stays[0], stays[-1] + 1)) and 0 < stays[0] <= 15 <= stays[-1] < 29
