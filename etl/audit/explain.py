"""Why does an offset have no row?

Explains missing rows by range results, lost offsets of plans, and commits of other writers, and
decides whether a table that lacks them is right all the same.

Not here: what is missing (etl/audit/audit.py), commits of others (etl/io/delta/log.py), rows of a
plan's own commit (etl/io/delta/recover_results.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from etl.audit.audit import Expected, IncompleteInterval, LogFindings
from etl.decide.loaded_intervals import interval_of, without
from etl.model.plans import Loss, RangeResult
from etl.model.snapshot import ForeignCommit


@dataclass(frozen=True, slots=True)
class Gaps:
    """The offsets of one log that gave no row, and why; counts of offsets."""

    control_records: int = 0
    aborted_records: int = 0
    compacted: int = 0
    unexplained: int = 0
    """Unknown: recounted from the table's files, after a crash or a transform that did not read
    all. On Jafka it is never known which offsets should have a row.
    """
    losses: tuple[Loss, ...] = ()
    read_by_others: tuple[tuple[int, int], ...] = ()
    """Offsets [from, until) that other members of the group read."""
    unnamed: tuple[tuple[int, int], ...] = ()
    """In a partition that others read, too: offsets [from, until) between two loaded ones that
    nothing accounts for.
    """

    @property
    def let_go(self) -> int:
        """Offsets of the losses; bytes, where offsets are byte positions."""
        return sum(loss.until_offset - loss.from_offset for loss in self.losses)

    @property
    def says(self) -> str:
        """A few words for a person; empty where every offset has its row."""
        counts = (
            (self.control_records, "control"),
            (self.aborted_records, "aborted"),
            (self.compacted, "compacted"),
            (self.unexplained, "not known why"),
        )
        of_bytes = "bytes " if any(loss.log.is_physical for loss in self.losses) else ""
        lost = [
            f"{loss.until_offset - loss.from_offset:,} {of_bytes}lost ({loss.from_offset} to {loss.until_offset}, {loss.why.value})"
            for loss in self.losses[:1]
        ]
        if self.losses[1:]:
            lost = [
                f"{self.let_go:,} {of_bytes}lost ({len(self.losses)} stretches from {self.losses[0].from_offset})"
            ]
        read = sum(until - start for start, until in self.read_by_others)
        by_others = [f"{read:,} {of_bytes}read by other members of the group"] if read else []
        return ", ".join(
            [*(f"{count:,} {why}" for count, why in counts if count), *lost, *by_others]
        )


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of the rows of an `IncompleteInterval` at their commit."""

    short: IncompleteInterval
    delta_version: int | None = None
    """The commit that should hold them; None: of a plan that was pruned."""
    planned_rows: int = 0
    committed_rows: int | None = None
    """Rows of the interval in the commit's own files; None: the files are gone or unknown."""
    is_elsewhere: bool = False
    """The commit is one of a table that was there before this one, and an operator accepted this
    one.
    """


@dataclass(frozen=True, slots=True)
class Missing:
    """The missing rows of one log by what became of them."""

    never_came: int = 0
    """Not even in the commit that should hold them."""
    removed: int = 0
    """They were in that commit."""
    unknown: int = 0
    """The files that could tell are gone."""
    elsewhere: int = 0
    """They went to a table that was there before this one."""
    by: tuple[ForeignCommit, ...] = ()
    """Commits of others since then that removed rows."""
    allowed: bool = True
    """Rows that came later on were removed only as policy or an operator allows."""

    @property
    def says(self) -> str:
        """A few words for a person."""
        who = " and ".join(
            f"{found.operation} at version {found.delta_version}" for found in self.by[:3]
        )
        who += f" and {len(self.by) - 3} more" if len(self.by) > 3 else ""
        words = (
            (self.never_came, "never came into the table"),
            (
                self.removed,
                f"removed later by somebody else's {who}"
                if who
                else "removed later, by a commit that the log no longer holds",
            ),
            (self.elsewhere, "in the table that was there before this one"),
            (
                self.unknown,
                "of which nobody knows any more whether they came"
                + (f"; since then somebody else did {who}" if who else ""),
            ),
        )
        return ", ".join(f"{count:,} {kind}" for count, kind in words if count)


@dataclass(frozen=True, slots=True)
class UnprovenOffsets:
    """Offsets of one partition without a row, where it is unknown whether the log held a record."""

    offsets: int = 0
    """On Jafka all bytes of such intervals."""
    plans: tuple[int, ...] = ()
    """The plans that read them; of those that were pruned the newest."""
    first: tuple[int, int] = (0, 0)
    """The first interval [from, until) with such offsets."""
    allowed: bool = True
    """An operator accepted the table as it is after all of these plans."""
    is_physical: bool = False

    @property
    def says(self) -> str:
        """A few words for a person; empty where there is no doubt."""
        if not self.offsets:
            return ""
        plans = f"plan{'s' if self.plans[1:] else ''} {', '.join(map(str, self.plans))}"
        subject = (
            f"the messages of {self.offsets:,} bytes"
            if self.is_physical
            else f"{self.offsets:,} offsets without a row"
        )
        whether = (
            "how many messages the log held there"
            if self.is_physical
            else "whether the log held a record there"
        )
        return (
            f"{subject} cannot be proven (first between {self.first[0]} and {self.first[1]}; {plans}): "
            "what the reader counted did not arrive (a crash took it, or the transform does not read its rows to the end, as limit() "
            f"does), and from the table nobody can tell {whether}"
        )


@dataclass(frozen=True, slots=True)
class LogProof:
    """One log: what the table holds, why offsets gave no row, and what became of missing rows."""

    findings: LogFindings
    gaps: Gaps = Gaps()
    missing: Missing = Missing()
    doubt: UnprovenOffsets = UnprovenOffsets()

    @property
    def is_right(self) -> bool:
        """True if each row that nobody was permitted to remove is there once, and nothing else."""
        f, m = self.findings, self.missing
        is_clean = not (
            f.double_rows
            or f.unexpected
            or f.entries_with_holes
            or m.never_came
            or self.gaps.unnamed
        )
        return is_clean and (m.allowed or not f.missing) and self.doubt.allowed


def gaps_of(expected: Expected, losses: Collection[Loss], *, is_physical: bool = False) -> Gaps:
    """Add up what results and loaded intervals say. A range that a crash left in both counts once."""
    loaded = list(expected.coverage)
    for r, receipt in expected.ranges:
        if not any(
            i.from_offset <= r.from_offset and r.until_offset <= i.until_offset
            for i in expected.coverage
        ):
            loaded.append(interval_of(r, receipt))
    return Gaps(
        sum(i.control_records for i in loaded),
        sum(i.aborted_records for i in loaded),
        sum(i.compacted for i in loaded),
        0 if is_physical else sum(i.unexplained for i in loaded),
        tuple(sorted(losses)),
        expected.read_by_others,
        _unnamed(expected, losses),
    )


def _unnamed(expected: Expected, losses: Collection[Loss]) -> tuple[tuple[int, int], ...]:
    """Return unaccounted offsets; not if a member of a group was the only reader, where a start may
    move silently.
    """
    if not expected.read_by_others:
        return ()
    loaded = [
        *((one.from_offset, one.until_offset) for one in (*expected.coverage, *expected.given_up)),
        *((r.from_offset, r.until_offset) for r, _ in expected.ranges),
    ]
    named = [
        *loaded,
        *expected.read_by_others,
        *((loss.from_offset, loss.until_offset) for loss in losses),
    ]
    return tuple(without((min(named)[0], max(until for _, until in named)), named))


def doubt_of(
    unproven: Sequence[IncompleteInterval],
    plans: Mapping[tuple[int, int], int],
    *,
    pruned: int,
    accepted: int,
    is_physical: bool = False,
) -> UnprovenOffsets:
    """Return what cannot be proven of one partition. `plans`: numbers of kept plans by interval,
    `pruned`: the newest doubtful other one; up to plan `accepted` an operator accepted the table.
    """
    if not unproven:
        return UnprovenOffsets()
    numbers = sorted({plans.get((s.from_offset, s.until_offset), pruned) for s in unproven})
    first = min((s.from_offset, s.until_offset) for s in unproven)
    return UnprovenOffsets(
        sum(s.missing for s in unproven),
        tuple(numbers),
        first,
        numbers[-1] <= accepted,
        is_physical,
    )


def origin_of(
    short: IncompleteInterval,
    delta_version: int,
    planned: RangeResult,
    committed: RangeResult | None,
) -> Origin:
    """Return the origin of a plan's range with a known commit."""
    return Origin(short, delta_version, planned.rows or 0, committed.rows if committed else None)


def blame(
    origins: Iterable[Origin], removals: Iterable[ForeignCommit], allowed: frozenset[int]
) -> Missing:
    """Explain the missing rows. `removals`: known commits of others that removed rows, `allowed`:
    versions that policy or an operator permits. Missing rows of unknown origin are right only if
    such a commit could have removed them.
    """
    elsewhere, here = 0, list[Origin]()
    for origin in origins:
        if origin.is_elsewhere:
            elsewhere += origin.short.missing
        else:
            here.append(origin)
    known = [
        (origin, _absent(origin, origin.committed_rows))
        for origin in here
        if origin.committed_rows is not None
    ]
    never_came = sum(absent for _, absent in known)
    removed = sum(origin.short.missing for origin, _ in known) - never_came
    unknown = sum(origin.short.missing for origin in here if origin.committed_rows is None)
    by = (
        tuple(found for found in removals if any(_is_after(found, origin) for origin in here))
        if removed or unknown
        else ()
    )
    is_allowed = bool(by) and all(found.delta_version in allowed for found in by)
    return Missing(
        never_came, removed, unknown, elsewhere, by, is_allowed or not (removed or unknown)
    )


def _absent(origin: Origin, committed_rows: int) -> int:
    """Missing rows that the commit never held."""
    return min(origin.short.missing, max(0, origin.planned_rows - committed_rows))


def _is_after(found: ForeignCommit, origin: Origin) -> bool:
    return origin.delta_version is None or found.delta_version > origin.delta_version
