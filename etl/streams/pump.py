"""The thread of one connector: a member of its group, it fetches into the queues of its streams,
and commits when it is told to.

Brokers and the group are asked by this thread alone, so what other threads want of them is handed
to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from etl.errors import ConsumerInUse, EtlError, NotAssigned
from etl.streams.fetches import Fetches
from etl.streams.stream_positions import StreamPositions
from etl.streams.subscribed import Subscribed

_SLICE_S = 0.05
_REST_S = 0.5
"""Behind a failure that may pass."""


class Pump:
    """See the module. Whatever it stands on ends with `until`."""

    def __init__(
        self,
        group: Subscribed,
        positions: StreamPositions,
        fetches: Fetches,
        until: ExitStack,
        changed: threading.Condition,
    ) -> None:
        self.positions = positions
        self.is_ended = False
        """Whether there will be nothing more."""
        self.failure: BaseException | None = None
        """What it ended with, where that was not our wish."""
        self.trouble: EtlError | None = None
        """What keeps it from fetching; None while nothing does. It tries again."""
        self._group, self._fetches, self._until, self._changed = group, fetches, until, changed
        self._wanted: list[Callable[[], None]] = []
        self._is_stopping = False
        self._left_with: BaseException | None = None
        """What leaving failed with."""
        self._thread = threading.Thread(target=self._run, name="streams: fetches", daemon=True)
        self._thread.start()

    def commit(self) -> None:
        """Store where the streams are; returns once that is done. Raises what it raises."""
        if threading.current_thread() is self._thread:
            raise ConsumerInUse(
                "a listener commits the connector that called it",
                check="auto_commit_s, which commits at let-go",
            )
        done, raised = threading.Event(), list[BaseException]()

        def commit() -> None:
            try:
                if self.is_ended:
                    raise NotAssigned(
                        "the connector has ended, and nothing is committed any more",
                        check="commit() before shutdown()",
                    )
                if handed := self.positions.handed():
                    self._group.commit(handed)
            except BaseException as error:  # raised where it was asked for
                raised.append(error)
            finally:
                done.set()

        with self._changed:
            if self.is_ended:
                commit()
            else:
                self._wanted.append(commit)
        done.wait()
        if raised:
            raise raised[0]

    def stop(self) -> None:
        """Leave, and end all streams; returns once that is done, and raises what leaving failed
        with. May be called again.
        """
        self._is_stopping = True
        if threading.current_thread() is not self._thread:
            self._thread.join()
            failure, self._left_with = self._left_with, None
            if failure is not None:
                raise failure.with_traceback(None)

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while not self._is_stopping:
                self._try_step()
        except BaseException as error:  # raised where a stream is asked for its next record
            failure = error
        try:
            self._until.close()
        except BaseException as error:
            self._left_with, failure = error, failure or error
        with self._changed:
            self.failure, self.is_ended = failure, True
            wanted, self._wanted = self._wanted, []
            self._changed.notify_all()
        for do in wanted:
            do()

    def _try_step(self) -> None:
        try:
            self._step()
        except EtlError as error:
            if not error.retriable:
                raise
            with self._changed:
                self.trouble = error
                self._changed.notify_all()
            time.sleep(_REST_S)
        else:
            self.trouble = None

    def _step(self) -> None:
        try:
            self._group.tend()
        finally:  # who waits for a commit is told, also where the group does not settle
            with self._changed:
                wanted, self._wanted = self._wanted, []
            for do in wanted:
                do()
        self.positions.place()
        self.positions.take_answers(self._fetches.end(time.monotonic() + _SLICE_S))
        self._fetches.begin(self.positions.to_ask())
        self.positions.refuse_unreachable()
