"""How does the process of one server start and end: its folder, log, start, stop and kill?"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from etl.errors import SettingsError, Unreachable
from etl.testkit.java_and_jars import java_environment

HOST = "127.0.0.1"

# Below the ports that Linux and macOS give to outgoing connections, so that the port of a
# restarting server stays free.
_PORTS = range(20_000, 30_000)
_reserved: deque[int] = deque(maxlen=1_000)
_LOOK_EVERY_S = 0.03
_TAIL_LINES = 15


def free_port() -> int:
    """Return a free port of 127.0.0.1, none of the last thousand returned here, which may be used
    soon.
    """
    for port in random.sample(_PORTS, 100):
        if port in _reserved:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
                _reserved.append(port)
                return port
            except OSError:
                continue
    raise SettingsError(
        "No free port was found",
        action=f"Check who listens on the ports from {_PORTS.start} on",
        host=HOST,
    )


def answers(port: int, host: str = HOST) -> bool:
    """True if the port accepts connections."""
    try:
        with socket.create_connection((host, port), timeout=5):
            return True
    except OSError:
        return False


def wait_until(ready: Callable[[], bool], within_s: float) -> bool:
    """True if `ready` returned true within `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


class Server(ABC):
    """One server process on 127.0.0.1, as a context manager that starts and stops it.

    Without a `folder` it gets a temporary one, deleted when the context ends; after a failed start
    the folder stays, because the error names the log file in it. `start` after `stop` or `kill`
    gives the same port and data.
    """

    start_within_s = 60.0
    stop_within_s = 20.0

    def __init__(
        self, name: str, folder: Path | str | None = None, port: int | None = None
    ) -> None:
        self.name = name
        self.port = free_port() if port is None else port
        self._temporary = folder is None
        if folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix=f"etl-{name}-"))
        else:
            self.folder = Path(folder).absolute()
        self.log = self.folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """Write what the server reads into the folder and return the command that starts it."""

    @abstractmethod
    def is_ready(self) -> bool:
        """True if the server is ready."""

    def environment(self) -> dict[str, str]:
        """The server's environment."""
        return java_environment()

    @property
    def pid(self) -> int | None:
        """The server's process, None when it is not running."""
        if self._process is not None and self._process.poll() is None:
            return self._process.pid
        return None

    def start(self) -> None:
        """Start the server and return when it is ready. Raises Unreachable, naming the log file,
        when it does not get there.
        """
        if self.pid is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._launch()
            wait_until(lambda: self.pid is None or self.is_ready(), self.start_within_s)
            if self.pid is None or not self.is_ready():
                raise self._failed()
        except BaseException:  # also Ctrl-C: only this function knows the process yet
            self.kill()
            if self._temporary and not self.log.exists():
                shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def stop(self) -> None:
        """Ask the server to stop, and end it when it has not after `stop_within_s` seconds."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(self.stop_within_s)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self) -> None:
        """End the server and its children at once, as a crash would."""
        process, watch = self._process, self._watch
        self._process = self._watch = None
        if process is not None:
            _end_group(process)
        if watch is not None:
            _end_group(watch)
            if watch.stdin is not None:
                watch.stdin.close()

    def restart(self) -> None:
        """Stop and start: the same port, the same data."""
        self.stop()
        self.start()

    def _launch(self) -> None:
        command, environment = self.command(), self.environment()
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C on the terminal is for the program, which then stops its
            # servers in order.
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        watch = [
            sys.executable,
            "-I",
            "-S",
            str(Path(__file__).with_name("stop_with_parent.py")),
            str(self._process.pid),
        ]
        self._watch = subprocess.Popen(
            watch, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def _failed(self) -> Unreachable:
        code = self._process.poll() if self._process is not None else None
        if code is None:
            message = f"was not ready after {self.start_within_s:g} s"
        else:
            message = f"ended with exit code {code} while it started"
        return Unreachable(
            f"{self.name} {message}",
            action=f"Check the log file, which ends with:\n{tail(self.log)}",
            port=self.port,
            log=self.log,
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)


def tail(log: Path) -> str:
    """The last lines of a log file."""
    if not log.exists():
        return "(no log file)"
    with log.open(errors="replace") as lines:
        return "".join(f"    {line}" for line in deque(lines, _TAIL_LINES)).rstrip()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the process group, also after the process itself has ended: its children may not have."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
