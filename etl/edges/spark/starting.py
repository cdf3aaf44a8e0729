"""While a JVM for Spark starts: whose Ctrl-C it is, and where it writes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType


@contextlib.contextmanager
def own_ctrl_c() -> Iterator[None]:
    """A first Ctrl-C or SIGTERM waits until the session is there; a second one does not, and ends
    the JVM that is about to start.

    pyspark leaves a JVM behind for ever whose start was broken off: it removes the folder through
    which the JVM would tell its port, and the JVM fails before it begins to watch whether its
    parent lives. And pyspark's own handler for Ctrl-C talks to the JVM in the middle of another
    call: the handlers that were there come back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    ours = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}

    def wait(kind: int, _frame: FrameType | None) -> None:
        came.append(kind)
        if len(came) > 1:
            raise KeyboardInterrupt

    for kind in ours:
        signal.signal(kind, wait)
    try:
        yield
    except KeyboardInterrupt as stop:
        _end_what_was_started(stop)
        raise
    finally:
        for kind, handler in ours.items():
            signal.signal(kind, handler)
        if came:
            signal.raise_signal(came[0])


def _end_what_was_started(stop: KeyboardInterrupt) -> None:
    """While a JVM starts nobody but pyspark's function that waits for it has it in its hands, and
    that is left by now.
    """
    for frame, _ in traceback.walk_tb(stop.__traceback__):
        for held in frame.f_locals.values():
            if isinstance(held, subprocess.Popen):
                held.kill()


@contextlib.contextmanager
def what_is_started_writes_to(log: Path | None) -> Iterator[None]:
    """A JVM that is started inside writes its log, and its workers theirs, to this file instead of
    the terminal.

    A JVM keeps the standard output and error that its parent had when it was started, so these two
    are exchanged for that moment.
    """
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    kept = [os.dup(1), os.dup(2)]
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        yield
    finally:
        for number, before in enumerate(kept, start=1):
            os.dup2(before, number)
            os.close(before)
