"""Parts with servers of their own: small cold runs, planning at size, and reading through TLS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from bench import encrypted as behind_tls
from bench import planning as planned
from bench import small_runs
from bench.whole.parts import AddResult

_OF_A_BROKER = 100
_OF_TLS_MIB = 512


def small(rounds: int, report: AddResult, *, cold: int = 1) -> None:
    """See `bench.small_runs`; `cold` rounds are left out."""
    for kind, seconds in small_runs.measured(rounds, cold=cold):
        report(
            {"part": "small", "kind": kind, "seconds": seconds, "is_bare": kind == small_runs.BARE}
        )


def planning(sizes: Sequence[int], report: AddResult) -> None:
    """See `bench.planning`."""
    for partitions in sizes:
        for run in planned.measured(partitions, partitions // _OF_A_BROKER):
            figures = asdict(run)
            report({"part": "planning", "kind": figures.pop("run"), **figures})


def encrypted(rounds: int, report: AddResult) -> None:
    """See `bench.encrypted`."""
    for one in behind_tls.measured(_OF_TLS_MIB, rounds):
        report({"part": "encrypted", "mib_s": one.mib_s, **asdict(one)})
