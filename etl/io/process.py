"""How is this process identified: its machine, its identity among drivers, its requests to brokers?

Requests, waiting time and bytes are counted per process and broker address and only grow; a
measurement is the difference of two readings (`model.plans.since`).
"""

from __future__ import annotations

import contextlib
import gc
import getpass
import os
import resource
import secrets
import socket
import sys
import threading
from pathlib import Path

from etl.ledger.owner_nodes import DriverNode
from etl.model.plans import NO_REQUESTS, Requests


def cores() -> int:
    """Return the cores that this process may use, limited by its control group, as a JVM counts
    them.
    """
    if hasattr(os, "sched_getaffinity"):
        found = len(os.sched_getaffinity(0))
    else:
        found = os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        found = min(found, -(-int(quota) // int(period)))  # `max` is no number: no limit
    return max(1, found)


def collect_garbage_rarely() -> None:
    """Let 100,000 objects be made between two runs of the garbage collector, instead of 700.

    Snapshots and plans have no cycles. While those of 100,000 partitions are made, a fifth of the
    time would be spent on visiting them again and again.
    """
    gc.set_threshold(100_000)


def user_at_host() -> str:
    """Return `user@host`; the user's number if it has no name here."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container that runs under a number of its own
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def open_files() -> int:
    """How many files and connections this process may have open at once (`ulimit -n`)."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def this_driver(run_id: str, backfill: str | None = None) -> DriverNode:
    """Return the identity of a run's driver. `backfill`: the name of the one that it loads."""
    pid = os.getpid()
    return DriverNode(socket.gethostname(), pid, _process_start(pid), run_id, _pids(), backfill)


def is_dead(driver: DriverNode) -> bool:
    """Return True if this driver was a visible process of this host, and has ended.

    A container may have the host's name and other pids, so unknown processes may be alive.
    """
    if driver.host != socket.gethostname() or driver.pids != _pids():
        return False
    return not _is_alive(driver)


# psutil is not used: its create_time() changes when the clock is set, so a living driver would
# count as dead; it reports neither the boot nor the PID namespace, and with the /proc of another
# namespace it reports another process. It would detect a reused pid on macOS; here a driver with a
# reused pid counts as alive there, and its session decides.
def _pids() -> str | None:
    """Return the name of this boot and our PID namespace (namespaces(7)); None without /proc."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot[:8]}-{os.stat('/proc/self/ns/pid').st_ino}"
    return None


def _process_start(pid: int) -> str | None:
    """Return the start of a process of this host in clock ticks since boot; None without /proc, or
    for another namespace.
    """
    with contextlib.suppress(OSError, IndexError):
        if os.readlink("/proc/self") == str(os.getpid()):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return None


def _is_alive(driver: DriverNode) -> bool:
    try:
        os.kill(driver.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    started = _process_start(driver.pid)
    return None in (driver.started, started) or started == driver.started


def new_uid() -> str:
    """Return a random id for a new pipeline: 16 hex digits."""
    return secrets.token_hex(8)


class RequestMeter:
    """Counts requests per broker; callable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, Requests] = {}

    def add(self, broker: str, more: Requests) -> None:
        """Add requests to the broker at that address."""
        with self._lock:
            self._found[broker] = self._found.get(broker, NO_REQUESTS) + more

    def counts(self) -> dict[str, Requests]:
        """Return the counts of all brokers so far."""
        with self._lock:
            return dict(self._found)


REQUEST_METER = RequestMeter()
