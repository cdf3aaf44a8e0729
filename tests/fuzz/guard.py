"""One input through one target: the named errors and nothing else, within bounds of time and
memory.

Time is bounded by an alarm that raises in the middle of whatever runs, counted in time of this
process, so that a busy machine raises no false one; what waits or never comes back to Python
(compiled code) is ended with a trace by faulthandler. Memory is bounded by what Python and numpy
ask for (tracemalloc) as a multiple of the input, and by the growth of the whole process for what
Rust and C++ take.
"""

from __future__ import annotations

import contextlib
import faulthandler
import resource
import signal
import sys
import tracemalloc
from collections.abc import Iterator
from functools import cache
from types import FrameType

from tests.fuzz.targets import BY_NAME, Target

HANG_S = 5
"""No input here is larger than some kilobytes: what takes that long hangs."""
STUCK_S = 60
PROCESS_GROWTH_BYTES = 512 << 20


class Found(Exception):
    """A target broke its rules: the rule, the bytes, and the lines to add to the tests."""


class _Hung(BaseException):
    """Raised by the alarm: no `except Exception` of the target may swallow it."""


def check(target: Target, content: bytes) -> None:
    """Read `content`. Raises Found for an unnamed error, a hang, or too much memory."""
    _read_examples(target.name)
    before = _process_bytes()
    tracemalloc.start()
    try:
        with _alarm():
            attempt(target, content)
        peak = tracemalloc.get_traced_memory()[1]
    except _Hung:
        raise _found(target, content, f"it took more than {HANG_S} seconds") from None
    finally:
        tracemalloc.stop()
    most, grown = target.floor_bytes + target.multiple * len(content), _process_bytes() - before
    if peak > most:
        raise _found(
            target, content, f"it took {peak:,} bytes of memory where {most:,} are allowed"
        )
    if grown > PROCESS_GROWTH_BYTES:
        raise _found(target, content, f"the process grew by {grown:,} bytes")


@cache
def _read_examples(name: str) -> None:
    """Once per process, so that loaded code (kernels: 50 MB) is not the input's memory."""
    for seed in BY_NAME[name].seeds if name in BY_NAME else ():
        BY_NAME[name].read(seed)


def attempt(target: Target, content: bytes) -> None:
    """Read `content` without bounds. Raises Found for an error that the target does not name."""
    try:
        target.read(content)
    except target.raises as named:
        if type(named) not in target.raises:
            what = f"{type(named).__name__} is narrower than what it names"
            raise _found(target, content, what) from named
        str(named), repr(named.args)  # an error without a printable text is a finding
    except Exception as other:
        raise _found(target, content, f"{type(other).__name__}: {other}"[:300]) from other


def _found(target: Target, content: bytes, what: str) -> Found:
    shown = repr(content) if len(content) < 2000 else f"{content[:2000]!r}..."
    text = f"{target.name}: {what}; the input, for tests/unit/test_fuzz_parsers.py: {shown}"
    return Found(text)


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    def hung(_: int, __: FrameType | None) -> None:
        raise _Hung

    before = signal.signal(signal.SIGPROF, hung)
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        faulthandler.cancel_dump_traceback_later()


def _process_bytes() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
