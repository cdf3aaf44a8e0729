"""Owner nodes on a real ZooKeeper: claimed, given back, taken from dead drivers, waited for."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from kazoo.client import KazooState
from kazoo.exceptions import ConnectionLoss
from kazoo.security import make_acl

from etl.errors import Owned, PermissionDenied, SessionLost
from etl.io.zookeeper.group_offsets import ConsumerGroup
from etl.io.zookeeper.owners import Owners
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger import owner_nodes, znode_paths
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange
from etl.run.live_services import LiveServices
from etl.run.run_context import RunContext
from etl.testkit.server_process import wait_until
from tests.builders import plain_plan, plain_settings
from tests.system.driving import lose_session

GROUP, PIPELINE = "group", "clicks"
FOREIGN = "group_host-1-0"
LOGS = [TopicPartition("clicks", p) for p in range(4)]
OLD = TopicPartition("clicks", 0, 3)


def owners_of(session: ZooKeeper, pipeline: str = PIPELINE) -> Owners:
    return Owners(session, GROUP, pipeline)


def owners_in(session: ZooKeeper) -> dict[TopicPartition, str]:
    session.sync("/")
    return ConsumerGroup(session, GROUP).owners(["clicks", "other"])


def own(session: ZooKeeper, partition: TopicPartition, owner: str = FOREIGN) -> None:
    """As an old consumer does it."""
    path = znode_paths.GroupPaths(GROUP).owner(partition)
    session.client.create(path, owner.encode(), ephemeral=True, makepath=True)


@pytest.mark.parametrize(("mode", "partitions"), [("observe", LOGS), ("claim", [])])
def test_under_observe_and_without_ranges_nothing_is_claimed(
    zookeeper: ZooKeeper, mode: str, partitions: list[TopicPartition]
) -> None:
    settings = plain_settings(
        pipeline=PIPELINE,
        source={"topics": ["clicks"], "bootstrap_servers": "127.0.0.1:1"},
        group={"id": GROUP, "mode": mode},
    )
    plan = plain_plan(
        ranges=tuple(OffsetRange(partition, 0, 1) for partition in partitions),
        loaded_until={partition: 1 for partition in LOGS},
    )
    with LiveServices(settings, zookeeper, RunContext(), "run-1").claiming(plan):
        assert owners_in(zookeeper) == {}


@pytest.mark.parametrize("owned", LOGS[:3], ids=str)
def test_with_one_owned_partition_none_is_claimed_and_its_owner_stays(
    connect: str, zookeeper: ZooKeeper, owned: TopicPartition
) -> None:
    own(zookeeper, owned)
    with (
        ZooKeeper(connect) as session,
        pytest.raises(Owned, match=f"owned by {FOREIGN}") as caught,
        owners_of(session).claiming(LOGS[:3], "run-1"),
    ):
        pytest.fail("it is owned")
    assert caught.value.where == owned.place
    assert owners_in(zookeeper) == {owned: FOREIGN}


def test_claims_of_an_earlier_try_are_taken_over_and_not_released_by_that_try(
    connect: str, zookeeper: ZooKeeper
) -> None:
    with ZooKeeper(connect) as one, ZooKeeper(connect) as other:
        first = owners_of(one).claiming(LOGS, "run-1")
        second = owners_of(other).claiming(LOGS[:2], "run-1")
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert set(owners_in(zookeeper)) == set(LOGS[:2])
        second.__exit__(None, None, None)
    assert owners_in(zookeeper) == {}


def test_a_claim_is_ephemeral_and_names_the_driver_as_a_thread_of_the_group(
    zookeeper: ZooKeeper,
) -> None:
    with owners_of(zookeeper).claiming([OLD], "run-1"):
        payload, stat = zookeeper.client.get("/consumers/group/owners/clicks/3-0")
        assert stat.owner_session_id == zookeeper.client.client_id[0]
        owner = owner_nodes.parse_owner(GROUP, payload.decode())
        assert owner and (owner.pipeline, owner.driver.run_id) == (PIPELINE, "run-1")
    assert zookeeper.client.exists("/consumers/group/owners/clicks/3-0") is None


def test_of_two_drivers_that_claim_one_partition_one_wins_and_the_other_leaves_nothing(
    connect: str, zookeeper: ZooKeeper
) -> None:
    start, released = threading.Barrier(2), threading.Event()
    won: dict[str, set[TopicPartition]] = {}
    lost: list[str] = []

    def claim(name: str, partitions: list[TopicPartition]) -> None:
        with ZooKeeper(connect) as session:
            start.wait(30)
            try:
                with owners_of(session, name).claiming(partitions, f"run-{name}"):
                    won[name] = set(partitions)
                    released.wait(30)
            except Owned:
                lost.append(name)
                released.wait(30)

    for _ in range(5):
        won.clear()
        lost.clear()
        released.clear()
        rivals = [
            threading.Thread(target=claim, args=each)
            for each in (("left", LOGS[:3]), ("right", LOGS[2:]))
        ]
        for rival in rivals:
            rival.start()
        assert wait_until(lambda: len(won) + len(lost) == 2, 60)
        assert (len(won), len(lost)) == (1, 1)
        assert set(owners_in(zookeeper)) == next(iter(won.values()))
        released.set()
        for rival in rivals:
            rival.join(30)


def test_a_large_claim_goes_in_several_requests_and_all_of_it_is_undone_when_the_last_one_fails(
    connect: str, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = [TopicPartition("clicks", p) for p in range(3000)]
    requests: list[int] = []
    transaction = zookeeper.client.transaction

    def counted() -> Any:
        requests.append(1)
        return transaction()

    monkeypatch.setattr(zookeeper.client, "transaction", counted)
    with owners_of(zookeeper).claiming(partitions, "run-1"):
        assert len(zookeeper.children("/consumers/group/owners/clicks") or ()) == 3000
        assert len(requests) > 1
    assert owners_in(zookeeper) == {}
    with ZooKeeper(connect) as consumer:
        own(consumer, partitions[-1])
        with (
            pytest.raises(Owned, match=FOREIGN),
            owners_of(zookeeper).claiming(partitions, "run-1"),
        ):
            pytest.fail("the last one is owned")
        assert owners_in(zookeeper) == {partitions[-1]: FOREIGN}


def test_a_node_made_anew_between_the_look_and_the_delete_is_not_deleted(
    connect: str, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, owners = znode_paths.GroupPaths(GROUP).owner(LOGS[1]), owners_of(zookeeper)
    send_deletes = owners._send_deletes
    with ZooKeeper(connect) as consumer:

        def delete_too_late(partitions: Any) -> Any:
            consumer.client.delete(path)
            own(consumer, LOGS[1])
            return send_deletes(partitions)

        with owners.claiming(LOGS, "run-1"):
            monkeypatch.setattr(owners, "_send_deletes", delete_too_late)
        assert owners_in(zookeeper) == {LOGS[1]: FOREIGN}


CLAIM_FOR_EVER = """
import sys, time
from etl.io.zookeeper.owners import Owners
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange
logs = [TopicPartition("clicks", p) for p in range(3)]
with ZooKeeper(sys.argv[1], session_timeout_s=60) as session, Owners(session, "group", sys.argv[2]).claiming(logs, "run-1"):
    print("claimed", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def claimed_by_a_process(
    connect: str, zookeeper: ZooKeeper
) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts a process that owns the first three logs for a pipeline."""
    with contextlib.ExitStack() as started:

        def start(pipeline: str) -> subprocess.Popen[bytes]:
            process = started.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", CLAIM_FOR_EVER, connect, pipeline],
                    stdout=subprocess.PIPE,
                )
            )
            started.callback(process.kill)
            assert process.stdout is not None and process.stdout.readline() == b"claimed\n"
            return process

        yield start


def test_the_claims_of_a_killed_process_are_taken_over_at_once(
    claimed_by_a_process: Callable[[str], subprocess.Popen[bytes]], zookeeper: ZooKeeper
) -> None:
    process = claimed_by_a_process(PIPELINE)
    with (
        pytest.raises(Owned, match=f"run-1:{process.pid}:"),
        owners_of(zookeeper).claiming(LOGS, "run-2"),
    ):
        pytest.fail("it is alive")
    process.kill()
    process.wait()
    assert len(owners_in(zookeeper)) == 3, "its session is alive for a minute"
    with owners_of(zookeeper).claiming(LOGS[1:], "run-2"):
        found = owners_in(zookeeper)
        assert ["run-2" in found[partition] for partition in LOGS] == [False, True, True, True]
    assert set(owners_in(zookeeper)) == {LOGS[0]}, "this run does not read it"


def test_the_claims_of_another_pipelines_killed_process_belong_to_another_owner(
    claimed_by_a_process: Callable[[str], subprocess.Popen[bytes]], zookeeper: ZooKeeper
) -> None:
    process = claimed_by_a_process("other")
    process.kill()
    process.wait()
    with pytest.raises(Owned, match="etl:other"), owners_of(zookeeper).claiming(LOGS, "run-2"):
        pytest.fail("it is not ours")
    assert len(owners_in(zookeeper)) == 3


def test_a_dead_drivers_node_that_becomes_a_consumers_meanwhile_is_left_to_it(
    claimed_by_a_process: Callable[[str], subprocess.Popen[bytes]],
    connect: str,
    zookeeper: ZooKeeper,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = claimed_by_a_process(PIPELINE)
    process.kill()
    process.wait()
    owners = owners_of(zookeeper)
    with ZooKeeper(connect) as consumer:

        def read_then_too_late(partitions: Any) -> Any:
            monkeypatch.undo()
            found = owners._read(partitions)
            consumer.client.delete(znode_paths.GroupPaths(GROUP).owner(LOGS[1]))
            own(consumer, LOGS[1])
            return found

        monkeypatch.setattr(owners, "_read", read_then_too_late)
        with pytest.raises(Owned, match=FOREIGN), owners.claiming(LOGS, "run-2"):
            pytest.fail("a consumer owns one")
        assert owners_in(zookeeper)[LOGS[1]] == FOREIGN


@pytest.mark.parametrize("happened", [True, False])
def test_after_a_lost_answer_the_nodes_show_whether_they_are_ours(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    transaction = zookeeper.client.transaction
    lost: list[Any] = []

    def losing() -> Any:
        request = transaction()
        if not lost:
            lost.append(request)
            commit_async = request.commit_async

            def lose() -> Any:
                if happened:
                    commit_async().get()
                answer = zookeeper.client.handler.async_result()
                answer.set_exception(ConnectionLoss())
                return answer

            request.commit_async = lose
        return request

    monkeypatch.setattr(zookeeper.client, "transaction", losing)
    with owners_of(zookeeper).claiming(LOGS, "run-1"):
        assert set(owners_in(zookeeper)) == set(LOGS)
    assert owners_in(zookeeper) == {} and lost


def test_a_driver_that_lost_its_session_claims_nothing_more_and_deletes_nothing_of_the_next_run(
    connect: str, zookeeper: ZooKeeper
) -> None:
    ended = threading.Event()
    with (
        ZooKeeper(connect) as first,
        ZooKeeper(connect) as second,
        contextlib.ExitStack() as claims,
    ):
        first.client.add_listener(lambda state: ended.set() if state == KazooState.LOST else None)
        with owners_of(first).claiming(LOGS, "run-1"):
            lose_session(first)
            assert ended.wait(30)
            assert wait_until(lambda: owners_in(zookeeper) == {}, 60)
            claims.enter_context(owners_of(second).claiming(LOGS, "run-2"))
            with pytest.raises(SessionLost), owners_of(first).claiming(LOGS, "run-1"):
                pytest.fail("its session is lost")
        assert len(owners_in(zookeeper)) == 4
        assert all(":run-2:" in owner for owner in owners_in(zookeeper).values())


def test_a_client_without_permission_to_claim_gets_an_error(zookeeper: ZooKeeper) -> None:
    zookeeper.ensure("/consumers/group/owners")
    zookeeper.client.create(
        "/consumers/group/owners/clicks", b"", acl=[make_acl("world", "anyone", read=True)]
    )
    with (
        pytest.raises(PermissionDenied, match="claim partitions") as caught,
        owners_of(zookeeper).claiming(LOGS, "run-1"),
    ):
        pytest.fail("the ACL lets a client claim")
    znode = "/consumers/group/owners/clicks/0"
    assert caught.value.where == {"key": "zookeeper.auth", "znode": znode}


def test_a_waiting_run_continues_when_the_last_owner_leaves(
    connect: str, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter = owners_of(zookeeper)
    looks: queue.Queue[set[TopicPartition]] = queue.Queue()
    look = waiter.owned_of

    def observe_and_report(partitions: Collection[TopicPartition], changed: threading.Event) -> Any:
        owned = look(partitions, changed)
        looks.put(set(owned))
        return owned

    monkeypatch.setattr(waiter, "owned_of", observe_and_report)
    with ZooKeeper(connect) as first, ZooKeeper(connect) as last:
        own(first, LOGS[0])
        own(last, LOGS[1])
        own(last, LOGS[3])
        waiting = threading.Thread(target=lambda: waiter.wait_until_gone(LOGS[:3], wait_s=60))
        waiting.start()
        assert looks.get(timeout=60) == {LOGS[0], LOGS[1]}
        first.close()
        assert looks.get(timeout=60) == {LOGS[1]}, "it looks again, and waits on"
        assert waiting.is_alive()
        last.client.delete(znode_paths.GroupPaths(GROUP).owner(LOGS[1]))
        assert looks.get(timeout=60) == set()
        waiting.join(60)
    assert not waiting.is_alive()
