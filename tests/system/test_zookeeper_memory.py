"""`tests.fakes.zookeeper_memory` answers random requests as a real server does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from kazoo.exceptions import KazooException
from kazoo.protocol.states import ZnodeStat

from etl.io.zookeeper.session_requests import ZooKeeper
from tests.fakes.zookeeper_memory import Memory, MemoryZooKeeper

Request = tuple[Any, ...]
"""The name of a call of kazoo, and its arguments."""

paths = st.sampled_from(("/a", "/b", "/a/a", "/a/b", "/a/b/c"))
payloads = st.sampled_from((b"", b"1", b"22"))
versions = st.integers(-1, 2)
flags = st.booleans()
parts = st.one_of(
    st.tuples(st.just("create"), paths, payloads, st.none(), flags, flags),
    st.tuples(st.just("set_data"), paths, payloads, versions),
    st.tuples(st.just("delete"), paths, versions),
    st.tuples(st.just("check"), paths, versions),
)
requests = st.one_of(
    st.tuples(st.just("create"), paths, payloads, st.none(), flags, flags, flags),
    st.tuples(st.just("create_async"), paths),
    st.tuples(st.just("set"), paths, payloads, versions),
    st.tuples(st.just("delete"), paths, versions, flags),
    st.tuples(st.just("ensure_path"), paths),
    st.tuples(st.just("get_async"), paths),
    st.tuples(st.just("get_children_async"), paths),
    st.tuples(st.just("exists"), paths),
    st.lists(parts, max_size=5).map(lambda found: ("transaction", *found)),
)
sessions = st.integers(0, 1)
examples = itertools.count()


class Side:
    """Two sessions of one ZooKeeper, in memory or real."""

    def __init__(self, *opened: ZooKeeper) -> None:
        self._clients = [one.client for one in opened]
        self._ids = [one.client.client_id[0] for one in opened]

    def answer(self, session: int, request: Request) -> Any:
        """Return the answer to one request, in a form that can be compared."""
        client, (name, *arguments) = self._clients[session], request
        try:
            if name == "transaction":
                transaction = client.transaction()
                for operation, *of_it in arguments:
                    getattr(transaction, operation)(*of_it)
                return self._plain(transaction.commit())
            found = getattr(client, name)(*arguments)
            return self._plain(found.get() if name.endswith("_async") else found)
        except KazooException as error:
            return type(error).__name__

    def znodes(self, path: str) -> dict[str, Any]:
        found = {path: self._plain(self._clients[0].get(path))}
        for name in self._clients[0].get_children(path):
            found |= self.znodes(f"{path}/{name}")
        return found

    def _plain(self, found: Any) -> Any:
        if isinstance(found, ZnodeStat):
            owner = found.owner_session_id
            session = self._ids.index(owner) if owner else None
            return found.version, found.cversion, session, found.numChildren, found.dataLength
        if isinstance(found, Exception):
            return type(found).__name__
        if isinstance(found, list) and all(isinstance(one, str) for one in found):
            return sorted(found)
        if isinstance(found, list | tuple):
            return [self._plain(one) for one in found]
        return found


def _below(root: str, request: Request) -> Request:
    """The same request with its paths below another znode."""
    name, *arguments = request
    if name == "transaction":
        return name, *(_below(root, one) for one in arguments)
    return name, root + arguments[0], *arguments[1:]


@pytest.fixture(scope="module")
def real(server: Any) -> Iterator[Side]:
    """Two sessions of a real server, under a chroot."""
    chroot = f"{server.connect}/memory"
    with ZooKeeper(chroot) as one, ZooKeeper(chroot) as other:
        one.ensure("/")
        yield Side(one, other)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(wanted=st.lists(st.tuples(sessions, requests), min_size=1, max_size=25))
def test_each_request_has_the_answer_and_the_effect_of_a_real_server(
    real: Side, wanted: list[tuple[int, Request]]
) -> None:
    memory = Memory()
    memory.ensure("/chroot")
    fake = Side(MemoryZooKeeper(memory, "/chroot"), MemoryZooKeeper(memory, "/chroot"))
    root = f"/example-{next(examples)}"
    for side in (fake, real):
        side.answer(0, ("ensure_path", root))
    for session, request in wanted:
        asked = _below(root, request)
        assert fake.answer(session, asked) == real.answer(session, asked), asked
        assert fake.znodes(root) == real.znodes(root), asked


@pytest.fixture(params=["real", "memory"])
def pair(request: pytest.FixtureRequest, connect: str) -> Iterator[tuple[ZooKeeper, ZooKeeper]]:
    if request.param == "memory":
        memory = Memory()
        yield MemoryZooKeeper(memory), MemoryZooKeeper(memory)
        return
    with ZooKeeper(connect) as one, ZooKeeper(connect) as other:
        one.ensure("/")
        yield one, other


def test_the_end_of_a_session_deletes_its_ephemeral_znodes(
    pair: tuple[ZooKeeper, ZooKeeper],
) -> None:
    ours, other = pair
    ours.client.create("/ours", b"", ephemeral=True)
    ours.client.create("/stays", b"")
    other.client.create("/theirs", b"", ephemeral=True)
    ours.close()
    assert sorted(other.children("/") or ()) == ["stays", "theirs"]
