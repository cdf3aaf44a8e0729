"""Progress of tasks over a socket, which no task fails or waits for."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.io.progress_port import ProgressAddress, ProgressPort, ProgressSender
from etl.report.run_progress import AttemptProgress
from etl.testkit.server_process import wait_until

PLANNED = {0: 100, 7: 50}
LOCAL = "127.0.0.1"


@contextlib.contextmanager
def listening() -> Iterator[ProgressPort]:
    with contextlib.closing(ProgressPort(PLANNED, bind=LOCAL, host=LOCAL)) as port:
        yield port


@pytest.fixture
def port() -> Iterator[ProgressPort]:
    with listening() as opened:
        yield opened


def address_of(port: ProgressPort) -> ProgressAddress:
    assert port.address is not None
    return port.address


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_a_task_reads_is_known_to_the_driver_while_it_reads(port: ProgressPort) -> None:
    def reaches(*progress: int) -> bool:
        return wait_until(lambda: port.last_progress.get(7) == AttemptProgress(*progress), 10)

    clock = Clock()
    sender = ProgressSender(port.address, 7, 0, clock=clock)
    assert reaches(0, 0, 0, 0) and port.began is not None
    clock.now = 1
    sender.read(0, 10, 9, 900)
    assert reaches(0, 10, 9, 900)
    clock.now = 2
    sender.read(1, 5, 5, 100)
    assert reaches(0, 15, 14, 1000)
    sender.read(0, 10**9, 10**9, 5)
    sender.close()
    assert reaches(0, 50, 50, 105), "no more records than the task has"


def test_a_task_reports_its_beginning_its_end_and_at_most_two_updates_a_second() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as driver:
        driver.bind(("127.0.0.1", 0))
        driver.settimeout(10)
        clock = Clock()
        sender = ProgressSender(
            ProgressAddress("127.0.0.1", driver.getsockname()[1], bytes(16)), 0, 0, clock=clock
        )
        for step in range(100):
            clock.now = step / 100
            sender.read(0, step + 1, step, step)
        sender.close()
        reported = [int.from_bytes(driver.recv(100)[24:32], "big") for _ in range(4)]
        assert reported == [0, 1, 51, 100]
        driver.settimeout(0.01)
        with pytest.raises(TimeoutError):
            driver.recv(100)


def test_a_later_attempt_counts_and_an_earlier_one_no_more(port: ProgressPort) -> None:
    for attempt, offsets in ((0, 40), (1, 10), (0, 50)):
        sender = ProgressSender(port.address, 0, attempt)
        sender.read(0, offsets, offsets, offsets)
        sender.close()
    ProgressSender(port.address, 7, 0).close()
    assert wait_until(lambda: 7 in port.last_progress, 10)
    assert port.last_progress[0] == AttemptProgress(1, 10, 10, 10)


def test_what_does_not_know_the_token_or_is_of_no_task_is_dropped(port: ProgressPort) -> None:
    address = address_of(port)
    ProgressSender(replace(address, token=bytes(16)), 0, 0).close()
    ProgressSender(address, 3, 0).close()
    ProgressSender(address, 7, 0).close()
    assert wait_until(lambda: 7 in port.last_progress, 10)
    assert set(port.last_progress) == {7}


@given(st.binary(max_size=200))
def test_junk_does_not_end_the_listening(junk: bytes) -> None:
    with listening() as port, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        address = address_of(port)
        stranger.sendto(junk, (address.host, address.port))
        stranger.sendto(address.token + junk, (address.host, address.port))
        ProgressSender(address, 0, 0).close()
        assert wait_until(lambda: 0 in port.last_progress, 10)


@pytest.mark.parametrize("host", [LOCAL, "no.such.host.invalid", "a" * 300, "", None])
def test_a_task_without_a_listener_reads_on(host: str | None) -> None:
    address = None if host is None else ProgressAddress(host, 9 if host else 0, bytes(16))
    sender = ProgressSender(address, 0, 0, clock=iter(range(1000)).__next__)
    for step in range(10):
        sender.read(0, step, step, step)
    sender.read(1, -1, 2**70, 0)
    sender.close()
    sender.read(0, 1, 1, 1)
    sender.close()


def test_where_no_port_is_to_be_had_there_is_no_address() -> None:
    assert ProgressPort(PLANNED, bind="192.0.2.1", host="192.0.2.1").address is None
