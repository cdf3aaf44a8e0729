"""What this machine gives a process."""

from __future__ import annotations

import contextlib
import getpass
import os
import resource
import socket
import sys
from pathlib import Path


def cores() -> int:
    """Those that this process may use, and no more than its control group's share, as a JVM counts
    them.
    """
    found = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        found = min(found, -(-int(quota) // int(period)))  # `max` is no number: no limit
    return max(1, found)


def user_at_host() -> str:
    """Who is at work here, for whoever reads it later: `user@host`; the user's number where the
    machine has no name for it.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container that runs under a number of its own
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def open_files() -> int:
    """How many files and connections this process may have open at once (`ulimit -n`)."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if most == resource.RLIM_INFINITY else most
