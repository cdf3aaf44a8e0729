"""One driver of a pipeline at a time, on a real ZooKeeper."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kazoo.client import KazooState
from kazoo.exceptions import ConnectionLoss

from etl.errors import Owned, SessionLost
from etl.io.zookeeper.ledger import DriverLock
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger import owner_nodes
from etl.testkit.server_process import wait_until
from tests.system.driving import lose_session

DRIVERS = "/consumers/g/etl/clicks/drivers"


def lock_of(session: ZooKeeper) -> DriverLock:
    return DriverLock(session, "g", "clicks")


def driver_in(session: ZooKeeper) -> owner_nodes.DriverNode | None:
    """The first driver in the queue, dead or alive."""
    names = session.children(DRIVERS) or []
    names.sort(key=lambda name: name.rpartition("-")[2])
    found = session.read(f"{DRIVERS}/{names[0]}") if names else None
    return owner_nodes.parse_driver(found[0]) if found else None


def test_a_driver_is_named_while_it_drives_and_gone_afterwards_also_when_the_run_fails(
    zookeeper: ZooKeeper,
) -> None:
    with pytest.raises(ZeroDivisionError), lock_of(zookeeper).driving("run-1", wait_s=0):
        driver = driver_in(zookeeper)
        assert driver is not None and driver.run_id == "run-1"
        with DriverLock(zookeeper, "g", "other").driving("run-2", wait_s=0):
            assert sorted(zookeeper.children("/consumers/g/etl") or []) == ["clicks", "other"]
        1 / 0  # noqa: B018
    assert driver_in(zookeeper) is None


@pytest.mark.parametrize("wait_s", [0, 0.2])
def test_a_second_driver_leaves_when_the_first_stays_and_names_it(
    connect: str, zookeeper: ZooKeeper, wait_s: float
) -> None:
    with lock_of(zookeeper).driving("run-1", wait_s=0), ZooKeeper(connect) as second:
        with (
            pytest.raises(Owned, match="run run-1, pid") as caught,
            lock_of(second).driving("run-2", wait_s=wait_s),
        ):
            pytest.fail("two drivers at once")
        assert caught.value.exit_code == 4
        driver = driver_in(zookeeper)
        assert driver is not None and driver.run_id == "run-1"


def test_a_second_driver_that_waits_continues_when_the_first_ends(
    connect: str, zookeeper: ZooKeeper
) -> None:
    drove = []

    def drive_second() -> None:
        with ZooKeeper(connect) as second, lock_of(second).driving("run-2", wait_s=60):
            drove.append(driver_in(second))

    waiting = threading.Thread(target=drive_second)
    with lock_of(zookeeper).driving("run-1", wait_s=0):
        waiting.start()
        assert wait_until(lambda: len(zookeeper.children(DRIVERS) or ()) == 2, 60)
        assert not drove
    waiting.join(60)
    assert [driver.run_id for driver in drove if driver] == ["run-2"]


def tree(session: ZooKeeper, path: str = "") -> list[str]:
    below = [f"{path}/{child}" for child in session.children(path or "/") or ()]
    return sorted(below + [deeper for child in below for deeper in tree(session, child)])


@pytest.mark.parametrize(
    ("there", "left"),
    [([], []), (["/ids", "/etl/other"], ["/ids", "/etl/other"]), (["/etl/clicks"], [""])],
    ids=["nothing was there", "others", "a killed run left its own"],
)
def test_a_run_that_stored_nothing_leaves_only_znodes_of_others(
    zookeeper: ZooKeeper, there: list[str], left: list[str]
) -> None:
    for path in there:
        zookeeper.ensure(f"/consumers/g{path}")
    with lock_of(zookeeper).driving("run-1", wait_s=0):
        pass
    found = tree(zookeeper)
    assert [path for path in found if not any(each.startswith(f"{path}/") for each in found)] == [
        f"/consumers/g{path}" for path in sorted(left)
    ]


@pytest.mark.parametrize("kept", ["uid", "plan"])
def test_what_a_run_stored_stays(zookeeper: ZooKeeper, kept: str) -> None:
    with lock_of(zookeeper).driving("run-1", wait_s=0):
        if kept == "uid":
            assert zookeeper.replace("/consumers/g/etl/clicks", b"feedbeef", version=0)
        else:
            zookeeper.create("/consumers/g/etl/clicks/plans/1", b"a plan")
        during = tree(zookeeper)
    assert tree(zookeeper) == [path for path in during if "/drivers" not in path]


def test_drivers_that_store_nothing_leave_nothing_however_they_come_together(
    connect: str, zookeeper: ZooKeeper
) -> None:
    """Each takes away what the other has just found there."""
    failures: list[BaseException] = []

    def drive(pipeline: str, name: str) -> None:
        try:
            with ZooKeeper(connect) as session:
                for n in range(30):
                    with DriverLock(session, "g", pipeline).driving(f"run-{name}-{n}", wait_s=60):
                        assert session.children(f"/consumers/g/etl/{pipeline}") == ["drivers"]
        except BaseException as error:
            failures.append(error)

    together = [
        threading.Thread(target=drive, args=args)
        for args in (("clicks", "a"), ("clicks", "b"), ("other", "c"))
    ]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join(120)
    assert not failures
    assert [path for path in tree(zookeeper) if "/etl" in path] == []


DRIVE_FOR_EVER = """
import sys, time
from etl.io.zookeeper.ledger import DriverLock
from etl.io.zookeeper.session_requests import ZooKeeper
with ZooKeeper(sys.argv[1], session_timeout_s=60) as session, DriverLock(session, "g", "clicks").driving("run-1", wait_s=0):
    print("driving", flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def driving_process(connect: str, *wrapper: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that drives the pipeline; `wrapper` is a command that starts it."""
    command = [*wrapper, sys.executable, "-c", DRIVE_FOR_EVER, connect]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"driving\n"
            yield process
        finally:
            process.kill()


def test_a_killed_driver_is_replaced_at_once(connect: str, zookeeper: ZooKeeper) -> None:
    with (
        driving_process(connect) as process,
        pytest.raises(Owned, match=f"pid {process.pid}"),
        lock_of(zookeeper).driving("run-2", wait_s=0),
    ):
        pytest.fail("the first is alive")
    assert driver_in(zookeeper) is not None, "its session is alive for a minute"
    with lock_of(zookeeper).driving("run-2", wait_s=0):
        driver = driver_in(zookeeper)
        assert driver is not None and driver.run_id == "run-2"


def test_a_driver_in_another_pid_namespace_of_this_host_is_not_taken_for_dead(
    connect: str, zookeeper: ZooKeeper
) -> None:
    """Its pid does not exist here, or is another process."""
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if (
        not shutil.which("unshare")
        or subprocess.run([*apart, "true"], stderr=subprocess.DEVNULL).returncode
    ):
        pytest.skip("this system does not let us make a PID namespace")
    with (
        driving_process(connect, *apart),
        pytest.raises(Owned, match="run run-1"),
        lock_of(zookeeper).driving("run-2", wait_s=0),
    ):
        pytest.fail("it is alive")


@pytest.mark.parametrize(
    "left",
    [
        b'{"host":"another host","pid":1,"started":null,"run_id":"run-0"}',
        b'{"host":"%s","pid":4194304,"started":"1","run_id":"of an earlier version"}'
        % socket.gethostname().encode(),
        b"",
        b"not ours",
        b'{"host":1,"pid":1e999,"run_id":2}',
    ],
)
def test_a_driver_on_another_machine_is_left_alone(zookeeper: ZooKeeper, left: bytes) -> None:
    path = f"{DRIVERS}/other-0000000000"
    zookeeper.create(path, left)
    with pytest.raises(Owned), lock_of(zookeeper).driving("run-2", wait_s=0):
        pytest.fail("it may be alive")
    assert zookeeper.read(path) == (left, 0)


def test_a_later_process_with_the_pid_of_a_dead_driver_is_not_that_driver(
    zookeeper: ZooKeeper,
) -> None:
    with lock_of(zookeeper).driving("run-1", wait_s=0):
        us = driver_in(zookeeper)
    assert us is not None
    if us.started is None:
        pytest.skip("this system does not report the start time of a process")
    dead = owner_nodes.render_driver(replace(us, started="1", run_id="run-0"))
    zookeeper.create(f"{DRIVERS}/dead-0000000000", dead)
    with lock_of(zookeeper).driving("run-2", wait_s=0):
        driver = driver_in(zookeeper)
        assert driver is not None and driver.run_id == "run-2"


def test_a_driver_that_lost_its_session_knows_it_and_leaves_the_next_ones_lock_alone(
    connect: str, zookeeper: ZooKeeper
) -> None:
    ended = threading.Event()
    with ZooKeeper(connect) as first:
        first.client.add_listener(lambda state: ended.set() if state == KazooState.LOST else None)
        with lock_of(first).driving("run-1", wait_s=0):
            first.require_session()
            lose_session(first)
            assert ended.wait(30)
            with pytest.raises(SessionLost) as caught:
                first.require_session()
            assert caught.value.exit_code == 6
            second = lock_of(zookeeper).driving("run-2", wait_s=10)
            second.__enter__()
        driver = driver_in(zookeeper)
        assert driver is not None and driver.run_id == "run-2"
        second.__exit__(None, None, None)
    assert driver_in(zookeeper) is None


def test_drivers_come_in_the_order_in_which_they_queued(connect: str, zookeeper: ZooKeeper) -> None:
    drove: list[str] = []

    def drive(name: str) -> None:
        with ZooKeeper(connect) as session, lock_of(session).driving(name, wait_s=60):
            drove.append(name)

    threads = []
    with lock_of(zookeeper).driving("run-0", wait_s=0):
        for number in range(1, 4):
            thread = threading.Thread(target=drive, args=(f"run-{number}",))
            thread.start()
            threads.append(thread)
            assert wait_until(lambda: len(zookeeper.children(DRIVERS) or ()) == number + 1, 30)
    for thread in threads:
        thread.join(60)
    assert drove == ["run-1", "run-2", "run-3"]


def test_a_run_waits_for_the_plan_of_a_backfill_and_comes_before_its_next_one(
    connect: str, zookeeper: ZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    drove: list[str] = []

    def run() -> None:
        with ZooKeeper(connect) as session, lock_of(session).driving("run", wait_s=0):
            drove.append("run")

    lock = lock_of(zookeeper)
    thread = threading.Thread(target=run)
    with lock.driving("backfill", wait_s=0, backfill="old"):
        [at_work] = lock.drivers()
        assert at_work.backfill == "old"
        thread.start()
        assert wait_until(lambda: len(lock.drivers()) == 2, 30)
    with lock.driving("backfill", wait_s=None, backfill="old"):
        drove.append("backfill")
    thread.join(60)
    assert drove == ["run", "backfill"]
    assert any("with a plan of backfill old" in message for message in caplog.messages)


def test_a_driver_deletes_the_znode_that_its_own_earlier_turn_left(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection broke during the delete, and the session survived."""

    def broken(lock: DriverLock, name: str) -> None:
        raise ConnectionLoss

    lock = lock_of(zookeeper)
    with monkeypatch.context() as network:
        network.setattr(DriverLock, "_delete", broken)
        with lock.driving("backfill", wait_s=0, backfill="old"):
            pass
    assert len(lock.drivers()) == 1
    with lock.driving("backfill", wait_s=0, backfill="old"):
        assert len(lock.drivers()) == 1


def test_a_run_does_not_wait_longer_for_a_run_because_a_backfill_was_before_it(
    connect: str, zookeeper: ZooKeeper
) -> None:
    failed: list[Owned] = []

    def run() -> None:
        with ZooKeeper(connect) as session:
            try:
                with lock_of(session).driving("run-2", wait_s=0):
                    pytest.fail("two drivers at once")
            except Owned as error:
                failed.append(error)

    with ZooKeeper(connect) as other, contextlib.ExitStack() as at_work:
        with lock_of(zookeeper).driving("backfill", wait_s=0, backfill="old"):
            first = threading.Thread(
                target=lambda: at_work.enter_context(lock_of(other).driving("run-1", wait_s=60))
            )
            first.start()
            assert wait_until(lambda: len(zookeeper.children(DRIVERS) or ()) == 2, 30)
            second = threading.Thread(target=run)
            second.start()
            assert wait_until(lambda: len(zookeeper.children(DRIVERS) or ()) == 3, 30)
        second.join(60)
        first.join(60)
    assert [error.message.partition(",")[0] for error in failed] == [
        "Another driver is at work on this pipeline: run run-1"
    ]
