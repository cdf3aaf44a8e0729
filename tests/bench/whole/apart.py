"""Parts with servers of their own: small cold runs, and planning at size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from tests.bench import planning as planned, small_runs
from tests.bench.whole.parts import Tell

_OF_A_BROKER = 100


def small(rounds: int, tell: Tell, *, cold: int = 1) -> None:
    """See `tests.bench.small_runs`; `cold` rounds are left out."""
    for kind, seconds in small_runs.measured(rounds, cold=cold):
        tell({"part": "small", "kind": kind, "seconds": seconds, "is_bare": kind == small_runs.BARE})


def planning(sizes: Sequence[int], tell: Tell) -> None:
    """See `tests.bench.planning`."""
    for partitions in sizes:
        for run in planned.measured(partitions, partitions // _OF_A_BROKER):
            figures = asdict(run)
            tell({"part": "planning", "kind": figures.pop("run"), **figures})
