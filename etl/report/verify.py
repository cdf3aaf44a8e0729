"""What did the audit of a table find, for people and programs?"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etl.audit.audit import AuditedLog
from etl.audit.explain import LogProof
from etl.decide.table_changes import error_of
from etl.errors import LedgersDisagree
from etl.model.columns import names_of_key
from etl.model.snapshot import ForeignCommit

_WHO_WROTE = "DESCRIBE HISTORY of the table: who changed its rows besides this pipeline"


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of auditing the whole table."""

    logs: tuple[LogProof, ...]
    doubles: tuple[tuple[AuditedLog, tuple[int, ...], int], ...]
    """The first doubled rows: the log, the offset (of a physical log the entry's, and the message's
    index in it), and how many they are.
    """
    delta_version: int | None
    notes: tuple[str, ...]
    transform: str | None = None
    by_others: tuple[ForeignCommit, ...] = ()
    """Changes by others without permission: a run stops at them, whatever the rows are."""
    of_no_log: int = 0
    """Rows that name no record of any log."""
    of_no_log_first: tuple[Mapping[str, Any], ...] = ()
    """Key columns of the first of them."""
    rows_before: int = 0
    """Rows from before plan 1, which are not judged."""
    more_than_before: tuple[tuple[AuditedLog, int], ...] = ()
    """Logs that have more of them than plan 1 found, and how many more."""
    double_spans: Mapping[AuditedLog, tuple[int, int]] = field(default_factory=dict)
    """From the first duplicate offset to one after the last, of partitions that can still be read
    there.
    """

    @property
    def found_rows(self) -> int:
        """Rows in the table."""
        return sum(log.findings.found_rows for log in self.logs) + self.of_no_log + self.rows_before

    @property
    def missing(self) -> int:
        """Expected rows that are not there; of a proof that is right, those that others were
        allowed to remove.
        """
        return sum(log.findings.missing for log in self.logs)

    @property
    def allowed(self) -> tuple[str, ...]:
        """A sentence for each log that lacks rows and is right all the same."""
        lacking = (log for log in self.logs if log.findings.missing and log.is_right)
        removed = (
            f"{log.findings.audited.log}: {log.missing.says}, as policy or an operator allows"
            for log in lacking
        )
        accepted = (
            f"{log.findings.audited.log}: {log.doubt.says}; an operator accepted that"
            for log in self.logs
            if log.doubt.offsets and log.doubt.allowed
        )
        return (*removed, *accepted)

    @property
    def is_right(self) -> bool:
        """Every record of every applied plan is there once, but for rows that others were allowed
        to remove, and nothing else.
        """
        return all(log.is_right for log in self.logs) and not (
            self.by_others or self.of_no_log or self.more_than_before
        )

    @property
    def first_finding(self) -> str:
        """Return a sentence on the first wrong partition; else on rows without a record, or on
        changes by others.
        """
        wrong = self._first_wrong
        if wrong is None and self.more_than_before:
            return self._written_since
        if wrong is None:
            return self._strangers if self.of_no_log else self._refusal.message
        f, log = wrong.findings, wrong.findings.audited.log
        said = []
        if f.missing:
            said.append(
                f"{f.missing:,} missing (first: {_first(f.missing_first)}): {wrong.missing.says}"
            )
        if f.double_rows:
            said.append(
                f"{f.double_rows:,} double (first: {_first([_place(place) for a, place, _ in self.doubles if a == f.audited])})"
            )
        if f.unexpected:
            said.append(
                f"{f.unexpected:,} that no plan put there (first: {_first(f.unexpected_first)})"
            )
        if f.entries_with_holes:
            message = "entries whose messages are not numbered 0, 1, 2 and so on, though none is missing by their number"
            said.append(
                f"{f.entries_with_holes:,} {message} (first: {_first(f.entries_with_holes_first)})"
            )
        if wrong.gaps.unnamed:
            first = wrong.gaps.unnamed[0]
            said.append(
                f"offsets {first[0]} to {first[1]} were neither loaded nor let go, nor read by others as far as the plans know"
            )
        if not wrong.doubt.allowed:
            said.append(wrong.doubt.says)
        blamed = self._blamed if self._is_transforms(wrong) else ""
        place = ", ".join(f"{name} {value}" for name, value in log.place.items())
        return f"{place}: " + ", ".join(said) + blamed

    @property
    def action(self) -> str:
        """Return what to do about the first wrong partition."""
        wrong = self._first_wrong
        if wrong is None and self.more_than_before:
            return _WHO_WROTE
        if wrong is None and not self.of_no_log:
            return self._refusal.action
        if self._is_transforms(wrong):
            physical = any(log.findings.audited.log.is_physical for log in self.logs)
            transform = f"the transform: a proof needs one row for each record, with its {names_of_key(physical=physical)}"
            again = self._removes_doubles(wrong) if wrong else ""
            return (
                f"{transform}. Where it makes one row of a record, these offsets were loaded twice: {again}"
                if again
                else transform
            )
        return self._check_of(wrong) if wrong else _WHO_WROTE

    def _removes_doubles(self, wrong: LogProof) -> str:
        """The command that leaves one row of each doubled offset; empty where none is doubled, or
        the records are gone.
        """
        audited = wrong.findings.audited
        if audited not in self.double_spans:
            return ""
        (start, until), topic = self.double_spans[audited], shlex.quote(audited.log.topic)
        replay = (
            f"`etl replay CONF -p {topic}:{audited.log.key} --from {start} --until {until} --reason ...` reads them again and "
            "replaces all rows of these offsets by one for each record"
        )
        if not self.by_others:
            return replay
        return f"{self._refusal.action}. When a run goes on, {replay}"

    def _check_of(self, wrong: LogProof) -> str:
        if wrong.missing.by:
            return error_of(wrong.missing.by, self.delta_version).action
        if not wrong.doubt.allowed:
            return (
                "the transform: one that drops rows (limit, where, dropDuplicates) leaves a table that nobody can prove. Whether the topic "
                "still has records at these offsets; if they are to be missing, accept the table as it is: etl table accept-changes CONF "
                f"{self.delta_version} --reason ..."
            )
        return self._removes_doubles(wrong) or _WHO_WROTE

    @property
    def _first_wrong(self) -> LogProof | None:
        return next((log for log in self.logs if not log.is_right), None)

    @property
    def _refusal(self) -> LedgersDisagree:
        return error_of(self.by_others, self.delta_version)

    @property
    def _written_since(self) -> str:
        audited, more = self.more_than_before[0]
        place = ", ".join(f"{name} {value}" for name, value in audited.log.place.items())
        return f"{place}: {more:,} rows of offsets from before plan 1 were written since"

    @property
    def _strangers(self) -> str:
        shown = "; ".join(
            ", ".join(f"{name} {'NULL' if value is None else value}" for name, value in one.items())
            for one in self.of_no_log_first
        )
        return f"{self.of_no_log:,} rows name no record of any log (first: {shown}){self._blamed}"

    @property
    def _blamed(self) -> str:
        return f"; the transform {self.transform} may have done it" if self.transform else ""

    def _is_transforms(self, wrong: LogProof | None) -> bool:
        """Rows that no commit ever held, that it held twice, or that are of no log may be the work
        of a transform.
        """
        return bool(self.transform) and (
            wrong is None
            or bool(
                wrong.missing.never_came
                or wrong.findings.double_rows
                or wrong.findings.unexpected
                or wrong.findings.entries_with_holes
            )
        )

    def as_json(self) -> dict[str, Any]:
        """The document of `etl verify`."""
        return {
            "passed": self.is_right,
            "found_rows": self.found_rows,
            "expected_rows": sum(log.findings.expected_rows for log in self.logs),
            "missing": self.missing,
            "table_version": self.delta_version,
            "notes": [*self.notes, *self.allowed],
            "by_others": [described(found) for found in self.by_others],
            "rows_of_no_log": self.of_no_log,
            "rows_of_no_log_first": [list(one.values()) for one in self.of_no_log_first],
            "rows_before_plan_1": self.rows_before,
            "written_since": [
                {**a.log.place, "log_epoch": a.log_epoch, "rows": more}
                for a, more in self.more_than_before
            ],
            "logs": [
                self._log_as_json(log)
                for log in sorted(self.logs, key=lambda log: log.findings.audited)
            ],
        }

    def _log_as_json(self, log: LogProof) -> dict[str, Any]:
        f, gaps, missing = log.findings, log.gaps, log.missing
        return {
            **f.audited.log.place,
            "log_epoch": f.audited.log_epoch,
            "passed": log.is_right,
            "expected_rows": f.expected_rows,
            "found_rows": f.found_rows,
            "missing": f.missing,
            "missing_first": list(f.missing_first),
            "never_came": missing.never_came,
            "removed_by_others": missing.removed,
            "nobody_knows": missing.unknown,
            "in_a_table_before": missing.elsewhere,
            "removed_by": [described(by) for by in missing.by],
            "not_provable": log.doubt.offsets,
            "not_provable_in": [[u.from_offset, u.until_offset, u.missing] for u in f.unproven],
            "double_rows": f.double_rows,
            "double_first": [[*place, rows] for a, place, rows in self.doubles if a == f.audited],
            "unexpected": f.unexpected,
            "unexpected_first": list(f.unexpected_first),
            **(
                {
                    "entries_with_holes": f.entries_with_holes,
                    "entries_with_holes_first": list(f.entries_with_holes_first),
                }
                if f.audited.log.is_physical
                else {}
            ),
            "unequal": [
                [u.from_offset, u.until_offset, u.expected_rows, u.found_rows] for u in f.unequal
            ],
            "without_row": {
                "message": gaps.says,
                "control_records": gaps.control_records,
                "aborted_records": gaps.aborted_records,
                "compacted": gaps.compacted,
                "not_known": gaps.unexplained,
                "lost": gaps.let_go,
                "losses": [
                    [loss.from_offset, loss.until_offset, loss.why.value] for loss in gaps.losses
                ],
                **(
                    {"read_by_others": [list(stretch) for stretch in gaps.read_by_others]}
                    if gaps.read_by_others
                    else {}
                ),
                **(
                    {"unnamed": [list(stretch) for stretch in gaps.unnamed]} if gaps.unnamed else {}
                ),
            },
        }


def described(found: ForeignCommit) -> dict[str, Any]:
    """Return changes by others for a document."""
    return {"table_version": found.delta_version, "operation": found.operation, "why": found.why}


def _place(place: Sequence[int]) -> str:
    """An offset; that of an entry, with the index of the message in it."""
    return " message ".join(map(str, place))


def _first(numbers: Sequence[int | str]) -> str:
    return ", ".join(map(str, numbers)) or "not known"
