"""Many znodes at once, on a real ZooKeeper: read by few requests or one by one, written by
transactions that are in flight together.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from kazoo.exceptions import NoAuthError
from kazoo.security import make_acl

from etl.errors import OffsetMoved, PermissionDenied
from etl.io.zookeeper import session_requests
from etl.io.zookeeper.group_offsets import ConsumerGroup
from etl.io.zookeeper.session_requests import (
    FEWEST,
    ZooKeeper,
    children_of_each,
    ensure_each,
    knows_multi_read,
)
from etl.model.partitions import NOTHING_COMMITTED, Committed, TopicPartition
from etl.testkit.cluster import ZooKeeper as Server
from tests.builders import plain_plan

MANY = 700


@pytest.fixture
def zookeeper(server: Server) -> Iterator[ZooKeeper]:
    with ZooKeeper(f"{server.connect}/{uuid.uuid4().hex}") as opened:
        opened.ensure("/")
        yield opened


def made(zookeeper: ZooKeeper, count: int) -> list[str]:
    request = zookeeper.client.transaction()
    request.create("/x", b"")
    for number in range(count):
        request.create(f"/x/{number}", str(number).encode(), ephemeral=number % 7 == 0)
    assert zookeeper.transact(request, "/x")
    return [f"/x/{number}" for number in range(count)]


def test_znodes_are_the_same_whether_a_server_reads_many_at_once_or_each(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [*made(zookeeper, MANY), "/x", "/x/none", "/none"]
    assert knows_multi_read(zookeeper.client)
    monkeypatch.setattr(session_requests, "_PATHS_OF_ONE", 300)
    together = zookeeper.read_znodes(paths)
    with ZooKeeper(zookeeper.connect) as another:
        monkeypatch.setattr(
            another.client,
            "command",
            lambda _: "Zookeeper version: 3.5.10-x, built on 2022-04-14 23:18 UTC\n",
        )
        assert another.read_znodes(paths) == together
    assert [found and found.payload for found in together] == [
        *(str(n).encode() for n in range(MANY)),
        b"",
        None,
        None,
    ]
    assert {found.owner_session for found in together if found} == {
        0,
        zookeeper.client.client_id[0],
    }


@pytest.mark.parametrize(
    ("message", "knows"),
    [
        ("Zookeeper version: 3.9.3-c26634f34490bb0ea7a09cc51e05ede3b4e320ee, built on 2024", True),
        ("Zookeeper version: 3.6.0--b4", True),
        ("Zookeeper version: 3.4.14-4c25d480e66aadd371de8bd2fd8da255ac140bcf", False),
        ("Zookeeper version: 4.0.0", True),
        ("srvr is not executed because it is not in the whitelist.", False),
        ("", False),
    ],
)
def test_only_a_server_of_version_3_6_or_later_gets_multi_reads(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch, message: str, knows: bool
) -> None:
    monkeypatch.setattr(zookeeper.client, "command", lambda _: message)
    assert knows_multi_read(zookeeper.client) is knows


def test_one_znode_that_we_may_not_read_refuses_them_all(zookeeper: ZooKeeper) -> None:
    paths = made(zookeeper, FEWEST)
    zookeeper.client.set_acls(paths[3], [make_acl("world", "anyone", admin=True)])
    with pytest.raises(NoAuthError):
        zookeeper.client.get(paths[3])
    with pytest.raises(PermissionDenied, match="ZooKeeper denies access"):
        zookeeper.read_znodes(paths)


def test_znodes_are_ensured_with_those_above_them_and_again(zookeeper: ZooKeeper) -> None:
    paths = [f"/a/{number}/b" for number in range(20)]
    for some in (paths[:3], paths, paths):
        ensure_each(zookeeper, some)
    assert children_of_each(zookeeper, ["/a/7", "/none", "/a/19"]) == [["b"], [], ["b"]]


def test_a_request_that_is_refused_keeps_none_of_the_others_back(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = ConsumerGroup(zookeeper, "g")
    partitions = [TopicPartition("clicks", number) for number in range(30)]
    before = group.commit(
        plain_plan(
            1,
            loaded_until=dict.fromkeys(partitions, 5),
            expected_commits=dict.fromkeys(partitions, NOTHING_COMMITTED),
        )
    )
    monkeypatch.setattr(session_requests, "NODE_MAX_BYTES", 1_700)  # some ten offsets
    zookeeper.client.set("/consumers/g/offsets/clicks/15", b"7")
    with pytest.raises(OffsetMoved, match="it is 7, the plan's is 9"):
        group.commit(
            plain_plan(2, loaded_until=dict.fromkeys(partitions, 9), expected_commits=before)
        )
    now = group.committed(partitions)
    stays = [partition.partition for partition in partitions if now[partition] != Committed(9, 1)]
    assert stays == list(range(stays[0], stays[-1] + 1)) and 0 < stays[0] <= 15 <= stays[-1] < 29
