"""What a process and all below it take: processor time, and peaks of memory, those of the JVM and
of Python apart. From Linux's /proc.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

_LOOK_EVERY_S = 0.02
_JVM, _DRIVER, _WORKER = "jvm", "driver", "worker"


def tree(root: int) -> Iterator[int]:
    """The process and all below it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(
                int(stat.parent.name)
            )
    left = [root]
    while left:
        pid = left.pop()
        yield pid
        left += children.get(pid, [])


def cpu_seconds(root: int) -> float:
    """User and system time of the process, of all below it, and of those that have ended and were
    waited for.
    """
    return sum(map(_ticks, tree(root))) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> int:
    with contextlib.suppress(OSError):
        return sum(
            map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15])
        )
    return 0


@dataclass
class Peaks:
    """`with Peaks(pid) as peaks: ...`: the largest resident memory (VmHWM) of each process of the
    tree since its start.

    Shared pages, for example of libraries and from before a fork, count for each process. It is
    read every 20 ms, so the last 20 ms of a process are missing.
    """

    root: int
    _kinds: dict[int, str] = field(default_factory=dict)
    _bytes: dict[int, int] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread:
            self._thread.join()
        self._sample_memory()

    def largest(self) -> Mapping[str, int]:
        """Bytes, by kind: the JVM, the process itself, and the largest Python process below them."""
        found: dict[str, int] = {}
        for pid, size in self._bytes.items():
            kind = self._kinds[pid]
            found[kind] = max(size, found.get(kind, 0))
        return found

    def _look(self) -> None:
        while not self._over.wait(_LOOK_EVERY_S):
            self._sample_memory()

    def _sample_memory(self) -> None:
        for pid in tree(self.root):
            with contextlib.suppress(OSError, StopIteration):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
                self._kinds[pid] = self._kind(pid)
                self._bytes[pid] = peak << 10

    def _kind(self, pid: int) -> str:
        if pid == self.root:
            return _DRIVER
        program = Path(os.readlink(f"/proc/{pid}/exe")).name
        if program == "java":
            return _JVM
        if program.startswith("python"):
            return _WORKER
        return program
