"""Why an offset has no row in the table.

Lives here: explaining missing rows by range results, lost offsets of plans and commits of other
writers, and deciding whether a table without them is correct nevertheless. Not here: which rows are
missing (etl/audit/compare_rows.py), commits of others (etl/io/delta/log.py), rows of a plan's own
commit (etl/io/delta/recover_results.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from etl.audit.compare_rows import Expected, IncompleteInterval, PartitionFindings, is_covered
from etl.decide.loaded_intervals import interval_of, subtract_intervals
from etl.model.plans import Loss, RangeResult
from etl.model.snapshot import ForeignCommit


@dataclass(frozen=True, slots=True)
class Gaps:
    """The offsets of one partition without a row, and the reasons; counts of offsets."""

    control_records: int = 0
    aborted_records: int = 0
    compacted: int = 0
    left_out: int = 0
    """Records that a transform left out."""
    unexplained: int = 0
    """Of unknown reason: recounted from the table's files, after a crash or a transform that did
    not read all rows. 0 on Jafka, where it is never known which offsets should have a row.
    """
    losses: tuple[Loss, ...] = ()
    read_by_others: tuple[tuple[int, int], ...] = ()
    """Offsets [from, until) that other members of the group read."""
    unnamed: tuple[tuple[int, int], ...] = ()
    """In a partition that others read, too: unaccounted offsets [from, until) between loaded ones.
    """

    @property
    def let_go(self) -> int:
        """Number of lost offsets; bytes, if offsets are byte positions."""
        return sum(loss.until_offset - loss.from_offset for loss in self.losses)

    @property
    def summary(self) -> str:
        """A description for the operator; empty if every offset has its row."""
        parts = []
        for count, reason in (
            (self.control_records, "control"),
            (self.aborted_records, "aborted"),
            (self.compacted, "compacted"),
            (self.left_out, "left out by the transform"),
            (self.unexplained, "of unknown reason"),
        ):
            if count:
                parts.append(f"{count:,} {reason}")
        is_physical = any(loss.partition.is_physical for loss in self.losses)
        unit = "bytes " if is_physical else ""
        if self.losses:
            parts.append(f"{self.let_go:,} {unit}lost ({self._describe_losses()})")
        read = sum(until - start for start, until in self.read_by_others)
        if read:
            parts.append(f"{read:,} {unit}read by other members of the group")
        return ", ".join(parts)

    def _describe_losses(self) -> str:
        first = self.losses[0]
        if len(self.losses) > 1:
            return f"{len(self.losses)} intervals from {first.from_offset}"
        return f"{first.from_offset} to {first.until_offset}, {first.why.value}"


@dataclass(frozen=True, slots=True)
class Origin:
    """The rows of an `IncompleteInterval` as their commit had them."""

    short: IncompleteInterval
    delta_version: int | None = None
    """The commit that should hold the rows; None: the plan was pruned."""
    planned_rows: int = 0
    committed_rows: int | None = None
    """Rows of the interval in the commit's own files; None: the files are gone or unknown."""
    is_elsewhere: bool = False
    """The commit is in an earlier table, and an operator accepted the present one instead."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The missing rows of one partition by cause."""

    never_came: int = 0
    """Rows that are missing in the commit that should hold them, too."""
    removed: int = 0
    """Rows that were in that commit."""
    unknown: int = 0
    """Rows whose commit cannot be examined: its files are deleted."""
    elsewhere: int = 0
    """Rows that were committed to an earlier table."""
    by: tuple[ForeignCommit, ...] = ()
    """Later commits of other writers that removed rows."""
    not_permitted: tuple[ForeignCommit, ...] = ()
    """Those of `by` that neither the policy nor an operator permits."""
    may_drop: bool = False
    """The conf permits a transform that leaves out records (`transform.may_drop`)."""

    @property
    def allowed(self) -> bool:
        """True if rows were removed only as the policy or an operator permits.

        Missing rows of unknown cause are permitted only if such a commit can have removed them, or
        if a transform may have left them out.
        """
        if not self.removed and not self.unknown:
            return True
        if not self.removed and self.may_drop and not self.not_permitted:
            return True
        return bool(self.by) and not self.not_permitted

    @property
    def summary(self) -> str:
        """A description for the operator; empty if no row is missing."""
        commits = self._describe_commits()
        removed = "removed later, by a commit that the table's log no longer has"
        unknown = "of unknown cause, since the files of their commit are deleted"
        if commits:
            removed = f"removed later by another writer's {commits}"
            unknown += f"; another writer committed {commits} since"
        parts = []
        for count, cause in (
            (self.never_came, "never committed to the table"),
            (self.removed, removed),
            (self.elsewhere, "in an earlier table that was replaced by this one"),
            (self.unknown, unknown),
        ):
            if count:
                parts.append(f"{count:,} {cause}")
        return ", ".join(parts)

    def _describe_commits(self) -> str:
        commits = [f"{commit.operation} at version {commit.delta_version}" for commit in self.by]
        described = " and ".join(commits[:3])
        if len(commits) > 3:
            described += f" and {len(commits) - 3} more"
        return described


@dataclass(frozen=True, slots=True)
class UnprovenOffsets:
    """Offsets of one partition without a row, if it is unknown whether there was a record."""

    offsets: int = 0
    """Number of offsets; on Jafka all bytes of such intervals."""
    plans: tuple[int, ...] = ()
    """Numbers of the plans that read them; of pruned plans only the newest."""
    first: tuple[int, int] = (0, 0)
    """The first interval [from, until) with such offsets."""
    allowed: bool = True
    """An operator accepted the table as it is after all of these plans, or `may_drop`."""
    is_physical: bool = False
    is_transformed: bool = False
    """The plans' records and rows are counted, and of another number: a transform left out some."""
    may_drop: bool = False
    """As in `Missing`."""
    has_transform: bool = False
    """The conf has a transform."""

    @property
    def summary(self) -> str:
        """A description for the operator; empty without unproven offsets."""
        if not self.offsets:
            return ""
        subject = f"{self.offsets:,} offsets without a row"
        unknown = "whether the partition had a record there"
        if self.is_physical:
            subject = f"the messages of {self.offsets:,} bytes"
            unknown = "how many messages the partition had there"
        plans = "plans" if len(self.plans) > 1 else "plan"
        numbers = ", ".join(map(str, self.plans))
        place = f"(first between {self.first[0]} and {self.first[1]}; {plans} {numbers})"
        if self.is_transformed:
            return (
                f"{subject} cannot be proven {place}: the transform left out records, and the "
                "files do not show at which offsets"
            )
        reason = "a crash lost them"
        if self.has_transform:
            reason += ", or the transform does not read all its rows, as with limit()"
        return (
            f"{subject} cannot be proven {place}: the counts of the reader did not arrive "
            f"({reason}), and the table does not show {unknown}"
        )


@dataclass(frozen=True, slots=True)
class PartitionProof:
    """The proof of one partition: its audit, offsets without rows, and missing rows by cause."""

    findings: PartitionFindings
    gaps: Gaps = Gaps()
    missing: Missing = Missing()
    doubt: UnprovenOffsets = UnprovenOffsets()

    @property
    def is_right(self) -> bool:
        """True if the table has each expected row once, and no other row.

        Rows that were removed by permission are not expected.
        """
        findings = self.findings
        is_clean = not (
            findings.double_rows
            or findings.unexpected
            or findings.entries_with_holes
            or (self.missing.never_came and not self.missing.may_drop)
            or self.gaps.unnamed
        )
        is_complete = self.missing.allowed or not findings.missing
        return is_clean and is_complete and self.doubt.allowed


@dataclass(frozen=True, slots=True)
class PlanProof:
    """A plan of which a transform left out records at unknown offsets: the sum of its rows."""

    number: int
    records: int
    written: int
    """Rows in the files of its commit."""
    found: int
    """Rows of its offsets in the table, without doubles."""
    missing: Missing = Missing()

    @property
    def summary(self) -> str:
        """A description for the operator."""
        read = f"plan {self.number}: {self.records:,} records read, {self.written:,} rows written"
        if self.records >= self.written:
            read += f", {self.records - self.written:,} left out by the transform"
        if self.found == self.written:
            return f"{read}; the table has all of these rows"
        if self.found > self.written:
            return f"{read}; the table has {self.found:,} rows of its offsets"
        return (
            f"{read}; the table has {self.found:,} of these rows. Missing: {self.missing.summary}"
        )

    @property
    def is_right(self) -> bool:
        """True if the table has as many rows as were written, but for those that an operator or
        the policy permits to remove.
        """
        return self.found == self.written or (self.found < self.written and self.missing.allowed)


def gaps_of(expected: Expected, losses: Collection[Loss], *, is_physical: bool = False) -> Gaps:
    """Return the sums of range results and loaded intervals of one partition.

    A range that a crash left in both counts once.
    """
    loaded = list(expected.loaded)
    covered = [(interval.from_offset, interval.until_offset) for interval in expected.loaded]
    for offset_range, result in expected.ranges:
        if not is_covered(offset_range, covered):
            loaded.append(interval_of(offset_range, result))
    control_records = 0
    aborted_records = 0
    compacted = 0
    left_out = 0
    unexplained = 0
    for interval in loaded:
        control_records += interval.control_records
        aborted_records += interval.aborted_records
        compacted += interval.compacted
        left_out += interval.left_out
        if not is_physical:
            unexplained += interval.unexplained
    return Gaps(
        control_records,
        aborted_records,
        compacted,
        left_out,
        unexplained,
        tuple(sorted(losses)),
        expected.read_by_others,
        _unaccounted(expected, losses),
    )


def _unaccounted(expected: Expected, losses: Collection[Loss]) -> tuple[tuple[int, int], ...]:
    """Return offsets that are neither loaded, nor lost, nor read by others.

    Empty if no other member read the partition: then a start may move without a record of it.
    """
    if not expected.read_by_others:
        return ()
    accounted = list(expected.read_by_others)
    for interval in (*expected.loaded, *expected.given_up):
        accounted.append((interval.from_offset, interval.until_offset))
    for loss in losses:
        accounted.append((loss.from_offset, loss.until_offset))
    for offset_range, _ in expected.ranges:
        accounted.append((offset_range.from_offset, offset_range.until_offset))
    start = min(accounted)[0]
    end = max(until for _, until in accounted)
    return tuple(subtract_intervals((start, end), accounted))


def doubt_of(
    unproven: Sequence[IncompleteInterval],
    plans: Mapping[tuple[int, int], int],
    *,
    pruned: int,
    accepted: int,
    is_physical: bool = False,
    transformed: Collection[int] = (),
    may_drop: bool = False,
    has_transform: bool = False,
) -> UnprovenOffsets:
    """Return the offsets of one partition that cannot be proven.

    `plans`: numbers of stored plans by interval. `pruned`: the newest pruned plan with unproven
    offsets. `accepted`: the plan up to which an operator accepted the table. `transformed`: plans
    of which a transform left out records. `may_drop`: `transform.may_drop`. `has_transform`: the
    conf has a transform.
    """
    if not unproven:
        return UnprovenOffsets()
    offsets = 0
    intervals = []
    numbers = set()
    for short in unproven:
        interval = (short.from_offset, short.until_offset)
        offsets += short.missing
        intervals.append(interval)
        numbers.add(plans.get(interval, pruned))
    return UnprovenOffsets(
        offsets,
        tuple(sorted(numbers)),
        min(intervals),
        may_drop or max(numbers) <= accepted,
        is_physical,
        numbers <= set(transformed),
        may_drop,
        has_transform,
    )


def origin_of(
    short: IncompleteInterval,
    delta_version: int,
    planned: RangeResult,
    committed: RangeResult | None,
) -> Origin:
    """Return the origin of a plan's range with a known commit.

    `committed`: None if the commit's files cannot be examined.
    """
    committed_rows = committed.rows if committed else None
    return Origin(short, delta_version, planned.rows or 0, committed_rows)


def blame(
    origins: Iterable[Origin],
    removals: Iterable[ForeignCommit],
    allowed: frozenset[int],
    *,
    may_drop: bool = False,
) -> Missing:
    """Return the missing rows by cause.

    `removals`: known commits of other writers that removed rows. `allowed`: versions that the
    policy or an operator permits. `may_drop`: `transform.may_drop`.
    """
    never_came = 0
    removed = 0
    unknown = 0
    elsewhere = 0
    here = []
    for origin in origins:
        missing = origin.short.missing
        if origin.is_elsewhere:
            elsewhere += missing
            continue
        here.append(origin)
        if origin.committed_rows is None:
            unknown += missing
            continue
        absent = _absent(origin, origin.committed_rows)
        never_came += absent
        removed += missing - absent
    if not removed and not unknown:
        return Missing(never_came, removed, unknown, elsewhere, may_drop=may_drop)
    by = []
    for commit in removals:
        if any(_is_after(commit, origin) for origin in here):
            by.append(commit)
    not_permitted = tuple(commit for commit in by if commit.delta_version not in allowed)
    return Missing(never_came, removed, unknown, elsewhere, tuple(by), not_permitted, may_drop)


def _absent(origin: Origin, committed_rows: int) -> int:
    """Return the number of missing rows that are not in the commit either."""
    return min(origin.short.missing, max(0, origin.planned_rows - committed_rows))


def _is_after(commit: ForeignCommit, origin: Origin) -> bool:
    return origin.delta_version is None or commit.delta_version > origin.delta_version
