"""Parts with servers of their own: small cold runs, and planning at size."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import asdict

from tests.bench import small_runs
from tests.bench.whole.parts import Tell

PLANNED = (1_000, 10_000, 100_000)
"""Partitions."""
_OF_A_BROKER = 100
_PLANNING = "tests.bench.planning"


def small(rounds: int, tell: Tell, *, cold: int = 1) -> None:
    """See `tests.bench.small_runs`; `cold` rounds are left out."""
    for kind, each in small_runs.measured(rounds, cold=cold).items():
        for number, seconds in enumerate(each):
            tell({"part": "small", "kind": kind, "round": number, "seconds": seconds, "is_bare": kind == small_runs.BARE})


def planning(tell: Tell) -> None:
    """See `tests.bench.planning`."""
    if importlib.util.find_spec(_PLANNING) is None:
        print("tests/bench/planning.py is not there")
        return
    for partitions in PLANNED:
        for run in importlib.import_module(_PLANNING).measured(partitions, partitions // _OF_A_BROKER):
            figures = asdict(run)
            tell({"part": "planning", "kind": figures.pop("run"), **figures})
