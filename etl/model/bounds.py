"""What a run was asked to read, and under which key it was asked: values that a plan keeps with
what it decided by them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of what is to be read. Of `at_ms` and `back` one is given, or none: where the
    pipeline is.
    """

    said: str
    """As it is told and compared: a time in UTC, or a relative form as it was asked for (`-1h`,
    `-10000`, `since-last-success`).
    """
    at_ms: int | None = None
    """The first record at or after this moment, in milliseconds since the epoch."""
    back: int | None = None
    """So many offsets before the end of each log."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Both ends, as they were asked for. Two are the same where they were said in the same words:
    `-1h` is another moment an hour later.
    """

    start: Bound | None = None
    until: Bound | None = None
    open_logs: int = 0
    """Of a plan: in how many logs no record was as late as `until`, so that its end is where they
    ended then.
    """

    @property
    def said(self) -> str:
        """For people: `from 2026-01-31T00:00:00Z until 2026-01-31T01:00:00Z`, or what is there of
        it; empty where nothing was asked for.
        """
        ends = (("from", self.start), ("until", self.until))
        return " ".join(f"{word} {bound.said}" for word, bound in ends if bound)


NO_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class Request:
    """What a run is asked for beside its conf."""

    run_key: str | None = None
    """Names this run: asked for again under it, nothing is loaded again."""
    bounds: Bounds = NO_BOUNDS


@dataclass(frozen=True, slots=True)
class KeptKey:
    """A run key, and what became of the run under it, as pruned plans leave it and runs that had
    nothing to read.
    """

    key: str
    number: int
    """The plan that was made under it, or behind which there was nothing to read; 0: there was no
    plan yet.
    """
    said: str = ""
    """Its bounds (`Bounds.said`)."""
    is_empty: bool = False
    """There was nothing to read up to its bound: no plan was made."""
