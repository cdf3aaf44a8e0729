"""Requests of one ZooKeeper session on a real server: single ones, and many at once."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, NoAuthError, NoNodeError
from kazoo.security import make_acl

from etl.errors import PermissionDenied, ZooKeeperUnreachable
from etl.io.zookeeper import session_requests
from etl.io.zookeeper.session_requests import (
    FEWEST,
    ZooKeeper,
    children_of_each,
    ensure_each,
    knows_multi_read,
)
from etl.testkit import cluster as embedded
from etl.testkit.server_process import free_port

MANY = 700


def test_a_chroot_of_several_parts_is_made(server: embedded.ZooKeeper) -> None:
    chroot = f"/{uuid.uuid4().hex}/b/c"
    with ZooKeeper(server.connect + chroot) as zookeeper:
        zookeeper.ensure("/x")
        assert zookeeper.create("/x/y", b"7")
    with ZooKeeper(server.connect + "/") as root:
        assert root.read(chroot + "/x/y") == (b"7", 0)


@pytest.mark.parametrize("request_name", ["create", "ensure_path"])
def test_a_parent_that_another_client_deletes_meanwhile_is_created_again(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch, request_name: str
) -> None:
    """As a driver does that stored nothing and leaves."""
    overtaken = [NoNodeError()] * 3
    request = getattr(zookeeper.client, request_name)

    def deleted_meanwhile(*args: object, **options: object) -> object:
        if overtaken:
            raise overtaken.pop()
        return request(*args, **options)

    monkeypatch.setattr(zookeeper.client, request_name, deleted_meanwhile)
    zookeeper.ensure("/a/b")
    assert zookeeper.create("/a/b/c", b"1")
    assert not overtaken
    assert zookeeper.read("/a/b/c") == (b"1", 0)


def test_each_of_several_znodes_is_created_also_if_their_parent_is_deleted_meanwhile(
    zookeeper: ZooKeeper, connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_async = zookeeper.client.create_async
    left = ["/a"]

    def deleted_meanwhile(path: str, *args: Any, **options: Any) -> object:
        if left and path == "/a/b":
            with ZooKeeper(connect) as another:
                another.delete_tree(left.pop())
        return create_async(path, *args, **options)

    monkeypatch.setattr(zookeeper.client, "create_async", deleted_meanwhile)
    ensure_each(zookeeper, ["/a/b", "/a/c"])
    assert not left
    assert sorted(zookeeper.children("/a") or ()) == ["b", "c"]


def test_put_if_absent_and_compare_and_set_return_their_success(
    zookeeper: ZooKeeper,
) -> None:
    assert zookeeper.create("/a/b", b"1")
    assert not zookeeper.create("/a/b", b"1")
    assert zookeeper.replace("/a/b", b"2", version=0)
    assert not zookeeper.replace("/a/b", b"3", version=0)
    assert not zookeeper.replace("/a/missing", b"3", version=0)
    assert zookeeper.read_all(["/a/b", "/a/missing", "/a"]) == [(b"2", 1), None, (b"", 0)]
    zookeeper.delete_tree("/a")
    zookeeper.delete_tree("/a")
    assert zookeeper.children("/a") is None


def test_a_create_with_a_lost_answer_is_read_back(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = zookeeper.client
    create = client.create

    def lose_the_answer(*given: Any, **named: Any) -> None:
        create(*given, **named)
        raise ConnectionLoss

    monkeypatch.setattr(client, "create", lose_the_answer)
    assert zookeeper.create("/x", b"1")

    def lose_the_request(*given: Any, **named: Any) -> None:
        raise ConnectionLoss

    monkeypatch.setattr(client, "create", lose_the_request)
    with pytest.raises(ZooKeeperUnreachable):
        zookeeper.create("/y", b"1")


def test_a_zookeeper_that_is_not_there_is_unreachable() -> None:
    with pytest.raises(ZooKeeperUnreachable) as caught:
        with ZooKeeper(f"127.0.0.1:{free_port()}", connect_timeout_s=0.5):
            pass
    assert caught.value.exit_code == 6


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
        older = "Zookeeper version: 3.5.10-x, built on 2022-04-14 23:18 UTC\n"
        monkeypatch.setattr(another.client, "command", lambda _: older)
        assert another.read_znodes(paths) == together
    payloads = [found and found.payload for found in together]
    assert payloads == [*(b"%d" % n for n in range(MANY)), b"", None, None]
    owners = {found.owner_session for found in together if found}
    assert owners == {0, zookeeper.client.client_id[0]}


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
