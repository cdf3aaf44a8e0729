"""One driver at a time for a pipeline: an ephemeral znode that says who is at work.

It saves work, no more: correctness rests on the numbered plans. Who a driver is, and whether it
lives, is told by `process`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterator

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from etl.edges.zookeeper.documents import Check
from etl.edges.zookeeper.process import is_dead, this_driver
from etl.edges.zookeeper.session import ZooKeeper
from etl.errors import Owned, PermissionRefused, SessionLost, Unreachable
from etl.ledger import paths, registrations


class DriverLock:
    """The driver's znode of one pipeline. Raises what `ZooKeeper` raises."""

    def __init__(self, zookeeper: ZooKeeper, group: str, pipeline: str) -> None:
        self._zookeeper = zookeeper
        self._paths, self._pipelines = (
            paths.PipelinePaths(group, pipeline),
            paths.GroupPaths(group).pipelines,
        )

    @contextlib.contextmanager
    def driving(self, run_id: str, *, wait_s: float) -> Iterator[None]:
        """Be the only driver of the pipeline. Raises Owned when another is at work and stays so for
        `wait_s`.

        A node left by a dead process of this host is taken over at once.
        """
        us = this_driver(run_id)
        deadline = time.monotonic() + wait_s
        made = self._zookeeper.missing(self._paths.root)
        while not self._try_driving(us):
            self._wait_for_driver(deadline)
        try:
            yield
        finally:
            with contextlib.suppress(
                KazooException, KazooTimeoutError, Unreachable, PermissionRefused
            ):
                self._delete_own_driver_node()
                self._delete_unused(made)

    @contextlib.contextmanager
    def proven(self) -> Iterator[Check]:
        """Inside, what a transaction asks so that it is refused once the lock is not ours any more.
        Raises SessionLost.

        The driver's node itself cannot be asked: that of whoever came behind us has the same
        version. A znode that only this session makes, and that ends with it, can; while the session
        lives, the lock is ours.
        """
        client = self._zookeeper.client
        session = client.client_id[0] if client.client_id else 0
        path = self._paths.session(session)
        self._zookeeper.require_session()
        with contextlib.suppress(NodeExistsError):  # of a hand-over before
            self._zookeeper.guarded(lambda: client.create(path, b"", ephemeral=True), path)
        try:
            found = self._zookeeper.read_znodes([self._paths.driver])[0]
            if found is None or found.owner_session != session:
                raise SessionLost(
                    "the driver's lock is not ours any more",
                    znode=self._paths.driver,
                    check="nothing; run again",
                )
            yield Check(path, 0)
        finally:
            with contextlib.suppress(
                KazooException, KazooTimeoutError, Unreachable, PermissionRefused
            ):
                client.delete(path, version=0)

    def driver(self) -> registrations.DriverNode | None:
        """Who drives the pipeline now; None where nobody does, or only a dead process of this host
        is named.
        """
        found = self._zookeeper.read(self._paths.driver)
        driver = registrations.parse_driver(found[0]) if found else None
        return None if driver is None or is_dead(driver) else driver

    def _try_driving(self, us: registrations.DriverNode) -> bool:
        path, payload = self._paths.driver, registrations.render_driver(us)
        try:
            self._zookeeper.ensure(self._paths.root)
            # tried again when the answer was lost: our own node is then found, and known by its
            # payload
            self._zookeeper.guarded(
                lambda: self._zookeeper.client.retry(
                    self._zookeeper.client.create, path, payload, ephemeral=True
                ),
                path,
            )
        except NoNodeError:
            return self._try_driving(
                us
            )  # a driver that was refused took what it had made away, between our two steps
        except NodeExistsError:
            found = self._zookeeper.read(path)
            other = registrations.parse_driver(found[0]) if found else None
            if found and other == us:
                return True  # the answer to our create was lost, not the create
            if found and other and is_dead(other):
                with contextlib.suppress(NoNodeError, BadVersionError):
                    self._zookeeper.guarded(
                        lambda: self._zookeeper.client.delete(path, version=found[1]), path
                    )
                return self._try_driving(us)
            return False
        return True

    def _wait_for_driver(self, deadline: float) -> None:
        gone = threading.Event()
        found = self._zookeeper.guarded(
            lambda: self._zookeeper.client.exists(self._paths.driver, watch=lambda _: gone.set())
        )
        if (
            found
            and not gone.wait(max(0.0, deadline - time.monotonic()))
            and time.monotonic() >= deadline
        ):
            node = self._zookeeper.read(self._paths.driver)
            other = registrations.parse_driver(node[0]) if node else None
            check = "whether that run is meant to be; a second one waits ownership.wait_for_driver_s for it"
            raise Owned(
                f"another driver is at work on this pipeline: {other or 'unknown'}",
                znode=self._paths.driver,
                check=check,
            )

    def _delete_unused(self, made: Collection[str]) -> None:
        """Delete what a run made that stored nothing: empty znodes of our names, and those above
        them that it made.

        ZooKeeper deletes no znode with a child, such as the node of a driver that came meanwhile.
        """
        ours = (self._paths.root, self._pipelines)
        for path in (*ours, *(above for above in made if above not in ours)):
            if not self._zookeeper.delete_unused(path):
                return

    def _delete_own_driver_node(self) -> None:
        stat = self._zookeeper.client.exists(self._paths.driver)
        if (
            stat
            and self._zookeeper.client.client_id
            and stat.owner_session_id == self._zookeeper.client.client_id[0]
        ):
            self._zookeeper.client.delete(self._paths.driver, version=stat.version)
