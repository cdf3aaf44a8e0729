"""A run under way, on standard error: what it is at and how far, as a picture on a terminal,
elsewhere as a line now and then.

It asks `doing` from a thread of its own, and nothing that happens here ends or slows a run.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from etl.report.run_state import Doing, Pace, Verb, time_in_words, told_in_words

FIRST_LINE_S, MOST_BETWEEN_LINES_S = 10.0, 60.0
_LOOK_S = 0.25
_WORDS = {
    None: "at work",
    Verb.CONNECT: "connecting",
    Verb.OBSERVE: "looking at brokers, ledger and table",
    Verb.RECONCILE: "reconciling",
    Verb.PLAN: "planning",
    Verb.START_SPARK: "starting Spark",
    Verb.FIRST_JOB: "waiting for the first task",
    Verb.FETCH: "fetching and writing",
    Verb.APPEND: "committing to the table",
    Verb.COMMIT: "moving the offsets",
    Verb.COMPACT: "putting small files together",
    Verb.CLOSE: "stopping Spark",
}


@contextlib.contextmanager
def showing(doing: Callable[[], Doing]) -> Iterator[None]:
    """While a run happens inside, show what `doing` tells."""
    with own_stderr() as stream:
        console = Console(file=stream, highlight=False)
        if console.is_terminal and not console.is_dumb_terminal:
            picture = Picture(doing)
            with Live(
                get_renderable=picture.now,
                console=console,
                refresh_per_second=1 / _LOOK_S,
                transient=True,
            ):
                yield
        else:
            with following(Lines(doing, lambda line: print(line, file=stream, flush=True))):
                yield


class _Words:
    """What a run is at in words; the pace is that of the fetch alone."""

    def __init__(self) -> None:
        self._pace = Pace()

    def of(self, doing: Doing, now: float) -> tuple[str, str]:
        """What it is at, and how far; nothing where that is not known."""
        reached = doing.reached
        if reached is None or doing.verb is Verb.FIRST_JOB:
            return _WORDS[doing.verb], ""
        if doing.verb is not Verb.FETCH:
            return _WORDS[doing.verb], told_in_words(reached)
        self._pace.see(now, reached)
        return _WORDS[doing.verb], told_in_words(reached, self._pace)


class Picture:
    """What a terminal shows at a moment: what the run is at, and below it how far that is."""

    def __init__(self, doing: Callable[[], Doing]) -> None:
        self._doing, self._words, self._began = doing, _Words(), time.monotonic()
        self._spinner = Spinner("dots")

    def now(self) -> Group:
        """As it is now."""
        doing, now = self._doing(), time.monotonic()
        what, how_far = self._words.of(doing, now)
        cells: list[RenderableType] = [self._spinner, Text(what)]
        if how_far and doing.reached:
            cells.append(
                ProgressBar(
                    total=max(doing.reached.offsets_in_all, 1),
                    completed=doing.reached.offsets,
                    width=24,
                )
            )
        line = Table.grid(padding=(0, 1))
        line.add_row(*cells, Text(time_in_words(now - self._began), style="cyan"))
        return (
            Group(line, Text(f"  {how_far}", no_wrap=True, overflow="ellipsis"))
            if how_far
            else Group(line)
        )


class Lines:
    """What is said where nobody looks all the time: that Spark starts, and after ten seconds, later
    every minute, what goes on.
    """

    def __init__(
        self,
        doing: Callable[[], Doing],
        say: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._doing, self._say, self._clock = doing, say, clock
        self._words = _Words()
        self._verb: Verb | None = None
        self._between = FIRST_LINE_S
        self._next = clock() + self._between

    def look(self) -> None:
        """Say what there is to say by now."""
        doing, now = self._doing(), self._clock()
        what, how_far = self._words.of(doing, now)
        before, self._verb = self._verb, doing.verb
        if now >= self._next:
            self._between = min(MOST_BETWEEN_LINES_S, 2 * self._between)
            self._next = now + self._between
        elif doing.verb is not Verb.START_SPARK or before is Verb.START_SPARK:
            return
        self.tell(what, how_far, doing)

    def tell(self, what: str, how_far: str, doing: Doing) -> None:
        """One line."""
        self._say(
            f"{datetime.now(UTC).isoformat(timespec='seconds')} etl: {what}"
            + (f": {how_far}" if how_far else "")
        )


@contextlib.contextmanager
def following(lines: Lines) -> Iterator[None]:
    """Inside, `lines` look now and then, in a thread of their own."""
    ended = threading.Event()

    def follow() -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody listens to standard error any more
            while not ended.wait(_LOOK_S):
                lines.look()

    watcher = threading.Thread(target=follow, name="showing", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


@contextlib.contextmanager
def own_stderr() -> Iterator[TextIO]:
    """Standard error as it is now: while Spark starts, the process's own is exchanged for a file."""
    try:
        number = os.dup(sys.stderr.fileno())
    except (OSError, ValueError):  # none, or one in memory
        yield sys.stderr
        return
    stream = os.fdopen(number, "w", encoding=sys.stderr.encoding, errors="backslashreplace")
    try:
        yield stream
    finally:
        with contextlib.suppress(OSError):  # what nobody takes any more
            stream.close()
