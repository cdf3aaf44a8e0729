"""`python -m etl.demo.crash_run CONF VERB [SIGNAL [COMMAND WORD...]]`: a command that kills itself.

It runs `etl run`, `etl replay`, `etl backfills run` or a command of `etl plans` ("plans
supersede"), which sends itself SIGKILL, or another signal of `signal.Signals` (INT, TERM, STOP),
when it would begin VERB. VERB is a method of `etl.run.service_interfaces.Services` (observe, store,
claiming, fetch, append, record, commit, tidy, ...), or `half_record` (losses are written, the
result is not), `half_commit` (half of the offsets are moved) or `superseded` (another plan took the
number of the stored one).
"""

from __future__ import annotations

import contextlib
import functools
import os
import runpy
import signal
import sys
from collections.abc import Collection, Iterator, Mapping
from types import ModuleType
from typing import Any

from etl.model.partitions import Committed, TopicPartition
from etl.model.plans import CommitResult, Plan
from etl.run.open_services import open_services
from etl.run.service_interfaces import Services

HALF_RECORD, HALF_COMMIT, SUPERSEDED = "half_record", "half_commit", "superseded"


class Dying:
    """Services that send this process `kind` before the first call of `verb`; every other call
    goes through.
    """

    def __init__(
        self, services: Services, verb: str, kind: signal.Signals = signal.SIGKILL
    ) -> None:
        self._world, self._verb, self._kind = services, verb, kind

    def __call__(self, services: Services) -> Any:
        """Wrap the next services of this process: a run has new ones after a lost session."""
        self._world = services
        return self

    def __getattr__(self, name: str) -> Any:
        if name == self._verb:
            self._end_once()
        if name == "commit" and self._verb == HALF_COMMIT:
            return self._half_commit
        if name == "record" and self._verb == HALF_RECORD:
            return self._half_record
        if name == "supersede" and self._verb == SUPERSEDED:
            return self._superseded
        return getattr(self._world, name)

    def end(self) -> None:
        """The end, or what the signal makes of it."""
        os.kill(os.getpid(), self._kind)

    def _end_once(self) -> None:
        self._verb = ""
        self.end()

    def _half_record(self, plan: Plan, applied: CommitResult | None) -> None:
        """Stop between a plan's losses and its result."""
        self._world.record(plan, None)
        self._end_once()
        self._world.record(plan, applied)

    def _superseded(self, *arguments: Any) -> None:
        """Stop after a command has stored its plan."""
        self._world.supersede(*arguments)
        self._end_once()

    def _half_commit(
        self, plan: Plan, partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, Committed]:
        """Stop between two requests of a commit."""
        wanted = sorted(plan.offsets_to_move if partitions is None else partitions)
        half = len(wanted) // 2
        moved = self._world.commit(plan, wanted[:half])
        self._end_once()
        return {**moved, **self._world.commit(plan, wanted[half:])}


def main(conf: str, verb: str, kind: str = "KILL", door: str = "run", *words: str) -> None:
    """Run the pipeline of `conf` and die; exits with the command's exit code where the signal
    leaves one.
    """
    from etl.commands import backfill, operator_session, replay, run

    around: list[Dying] = []

    def dying(services: Services) -> Any:
        if not around:
            around.append(Dying(services, verb, signal.Signals[f"SIG{kind}"]))
        return around[0](services)

    @contextlib.contextmanager
    def opened(*arguments: Any, **named: Any) -> Iterator[Any]:
        with open_services(*arguments, **named) as services:
            yield dying(services)

    # the command as it is, errors and exit codes included, with one thing exchanged
    _replace(run, "run", functools.partial(run.run, around=dying))
    _replace(replay, "replay_rows", functools.partial(replay.replay_rows, around=dying))
    _replace(backfill, "run_backfill", functools.partial(backfill.run_backfill, around=dying))
    _replace(operator_session, "open_services", opened)
    sys.argv = ["etl", *door.split(), conf, *words, "--json"]
    runpy.run_module("etl", run_name="__main__")


def _replace(module: ModuleType, name: str, value: Any) -> None:
    """Replace a name that the module has. Raises AttributeError: the signal would never be sent."""
    getattr(module, name)
    setattr(module, name, value)


if __name__ == "__main__":
    main(*sys.argv[1:])
