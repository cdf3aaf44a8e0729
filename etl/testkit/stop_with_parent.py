"""How does a server end with the process that started it?

A program with the server's process group as argument. Its standard input is a pipe that only the
parent holds: when the parent ends, even by SIGKILL, the pipe ends and the server is stopped.
(PR_SET_PDEATHSIG fires when the starting thread ends, and exists on Linux only.) It imports nothing
of the package, so that it starts at once.
"""

from __future__ import annotations

import os
import signal
import sys
import time

_STOP_WITHIN_S = 10.0
_LOOK_EVERY_S = 0.1


def watch(group: int) -> None:
    """Wait for the end of standard input, then end the process group: SIGTERM, and SIGKILL after a
    deadline.
    """
    sys.stdin.buffer.read()
    deadline = time.monotonic() + _STOP_WITHIN_S
    try:
        os.killpg(group, signal.SIGTERM)
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(_LOOK_EVERY_S)
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass  # the group is gone


if __name__ == "__main__":
    watch(int(sys.argv[1]))
