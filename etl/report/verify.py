"""What did `etl verify` find, as sentences and as a JSON document?

Lives here: the proof of a table, its first finding, the advice on it, and its document.
Not here: comparing rows with plans (etl/audit/), running the command (etl/commands/verify.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etl.audit.causes_of_missing_rows import Gaps, PartitionProof, PlanProof
from etl.audit.compare_rows import AuditedPartition
from etl.decide.replay import replay_command
from etl.decide.table_changes import error_of
from etl.errors import LedgersDisagree
from etl.model.columns import names_of_key
from etl.model.snapshot import ForeignCommit

NAMED_MAX = 3
"""Names of partitions in a message."""
_CHECK_HISTORY = (
    "Check with DESCRIBE HISTORY who changed rows of the table in addition to this pipeline"
)


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of auditing the whole table."""

    partitions: tuple[PartitionProof, ...]
    doubles: tuple[tuple[AuditedPartition, tuple[int, ...], int], ...]
    """The first duplicated rows: partition, offset (of Jafka also the index of the message), and
    number of rows.
    """
    delta_version: int | None
    notes: tuple[str, ...]
    transform: str | None = None
    by_others: tuple[ForeignCommit, ...] = ()
    """Changes by other writers that no operator accepted: a run stops at them."""
    without_partition: int = 0
    """Rows with key columns that name no record of a partition."""
    of_no_log_first: tuple[Mapping[str, Any], ...] = ()
    """Key columns of the first such rows."""
    rows_before: int = 0
    """Rows from before plan 1; they are not verified."""
    more_than_before: tuple[tuple[AuditedPartition, int], ...] = ()
    """Partitions with more such rows than plan 1 found, and how many more."""
    double_spans: Mapping[AuditedPartition, tuple[int, int]] = field(default_factory=dict)
    """From the first duplicated offset to one after the last, if Kafka still has the partition's
    records.
    """
    current: frozenset[AuditedPartition] = frozenset()
    """Partitions whose records Kafka may still have: those of the current incarnation."""
    plans: tuple[PlanProof, ...] = ()
    """Plans of which only the sum of the rows is known."""

    @property
    def found_rows(self) -> int:
        """Return the number of rows in the table."""
        return (
            sum(partition.findings.found_rows for partition in self.partitions)
            + self.without_partition
            + self.rows_before
        )

    @property
    def missing(self) -> int:
        """Return the number of missing rows; if the proof passed, their removal is accepted."""
        return sum(partition.findings.missing for partition in self.partitions)

    @property
    def allowed(self) -> tuple[str, ...]:
        """Describe partitions that pass although rows are missing, because that is accepted."""
        removed = []
        accepted = []
        for topic_partition in self.partitions:
            partition = topic_partition.findings.audited.partition
            if topic_partition.findings.missing and topic_partition.is_right:
                removed.append(
                    f"{partition}: {topic_partition.missing.summary}, as policy or an operator "
                    "allows"
                )
            if topic_partition.doubt.offsets and topic_partition.doubt.allowed:
                reason = "an operator accepted that"
                if topic_partition.doubt.may_drop:
                    reason = "transform.may_drop permits that"
                accepted.append(f"{partition}: {topic_partition.doubt.summary}; {reason}")
        return (*removed, *accepted)

    @property
    def left_out(self) -> int:
        """Return the records that a transform is known to have left out."""
        of_partitions = sum(partition.gaps.left_out for partition in self.partitions)
        return of_partitions + sum(max(0, plan.records - plan.written) for plan in self.plans)

    @property
    def transformed(self) -> tuple[str, ...]:
        """Describe what the transform left out, as far as it is known."""
        sentences = [plan.summary for plan in self.plans]
        if self.left_out:
            sentences.insert(
                0, f"{self.left_out:,} records were read and left out by the transform"
            )
        return tuple(sentences)

    @property
    def is_right(self) -> bool:
        """Return whether the table has each record of every loaded plan once and no other row.

        Rows may be missing if their removal is accepted.
        """
        if self.by_others or self.without_partition or self.more_than_before:
            return False
        if not all(plan.is_right for plan in self.plans):
            return False
        return all(partition.is_right for partition in self.partitions)

    @property
    def first_finding(self) -> str:
        """Return a sentence on the first partition that fails.

        If all pass: on rows of no partition, or on changes by other writers.
        """
        wrong = self._first_wrong
        if wrong is not None:
            sentence = f"{_place_of(wrong.findings.audited)}: {', '.join(self._findings_of(wrong))}"
            if self._may_be_transform(wrong):
                sentence += self._transform_note
            return sentence + self._describe_other_wrong()
        if self.more_than_before:
            return self._written_since
        if self.without_partition:
            return self._rows_without_partition
        if self._first_wrong_plan:
            return self._first_wrong_plan.summary
        return self._refusal.message

    def _describe_other_wrong(self) -> str:
        """Name the other partitions that fail; empty without one."""
        wrong = [partition for partition in self.partitions if not partition.is_right]
        others = [str(one.findings.audited.partition) for one in wrong[1:]]
        if not others:
            return ""
        named = ", ".join(others[:NAMED_MAX])
        if len(others) > NAMED_MAX:
            named += f" and {len(others) - NAMED_MAX:,} more"
        return f"; also failed: {named}"

    def _findings_of(self, wrong: PartitionProof) -> list[str]:
        found = wrong.findings
        parts = []
        if found.missing:
            first = _first(found.missing_first)
            parts.append(f"{found.missing:,} missing (first: {first}): {wrong.missing.summary}")
        if found.double_rows:
            places = []
            for audited, place, _ in self.doubles:
                if audited == found.audited:
                    places.append(_offset(place))
            parts.append(f"{found.double_rows:,} double (first: {_first(places)})")
        if found.unexpected:
            first = _first(found.unexpected_first)
            parts.append(f"{found.unexpected:,} that no plan wrote (first: {first})")
        if found.entries_with_holes:
            first = _first(found.entries_with_holes_first)
            parts.append(
                f"{found.entries_with_holes:,} entries with the right number of messages, but "
                f"without consecutive message indexes from 0 (first: {first})"
            )
        if wrong.gaps.unnamed:
            start, end = wrong.gaps.unnamed[0]
            parts.append(
                f"offsets {start} to {end} were neither loaded nor recorded as lost or as read by "
                "other members"
            )
        if not wrong.doubt.allowed:
            parts.append(wrong.doubt.summary)
        return parts

    @property
    def action(self) -> str:
        """Return what to do about the first partition that fails."""
        wrong = self._first_wrong
        if wrong is None and self.more_than_before:
            return _CHECK_HISTORY
        if wrong is None and not self.without_partition:
            if self._first_wrong_plan:
                return self._action_on_plan(self._first_wrong_plan)
            return self._refusal.action
        if self._may_be_transform(wrong):
            return self._action_on_transform(wrong)
        if wrong is None:
            return _CHECK_HISTORY
        return self._action_of(wrong)

    def _action_on_transform(self, wrong: PartitionProof | None) -> str:
        physical = any(
            partition.findings.audited.partition.is_physical for partition in self.partitions
        )
        action = (
            "Check the transform: verification needs one row per record, with its "
            f"{names_of_key(physical=physical)}"
        )
        replay = self._replay_of_doubles(wrong) if wrong else ""
        if replay:
            action += f". If it makes one row per record, these offsets were loaded twice. {replay}"
        return action

    def _replay_of_doubles(self, wrong: PartitionProof) -> str:
        """Return the command that leaves one row per duplicated offset.

        Empty if no offset is duplicated, or the records are no longer in Kafka.
        """
        audited = wrong.findings.audited
        if audited not in self.double_spans:
            return ""
        replay = f"Run {_replay_of(audited, *self.double_spans[audited])}"
        if not self.by_others:
            return replay
        return f"{self._refusal.action}. When runs continue: {replay}"

    def _replay_of_missing(self, wrong: PartitionProof) -> str:
        """Return the command that loads the first interval without all of its rows again.

        Empty if there is none, or the records are no longer in Kafka.
        """
        found = wrong.findings
        intervals = found.short or found.unproven
        if found.audited not in self.current or not intervals:
            return ""
        return _replay_of(found.audited, intervals[0].from_offset, intervals[0].until_offset)

    def _action_of(self, wrong: PartitionProof) -> str:
        if wrong.missing.not_permitted:
            return error_of(wrong.missing.not_permitted, self.delta_version).action
        if not wrong.doubt.allowed:
            return self._action_on_doubt(wrong)
        replay_of_doubles = self._replay_of_doubles(wrong)
        if replay_of_doubles:
            return replay_of_doubles
        action = _CHECK_HISTORY
        if self.by_others:
            action = self._refusal.action
        replay = self._replay_of_missing(wrong)
        if replay:
            action += f". To load the missing rows again, run {replay}"
        return action

    def _action_on_doubt(self, wrong: PartitionProof) -> str:
        action = "Check whether the topic has records at these offsets"
        if self.transform:
            action = (
                "Check the transform: which records it leaves out (limit, where, dropDuplicates) "
                "is not known. If it may leave out records, set transform.may_drop: true. Else "
                "check whether the topic still has records at these offsets"
            )
        replay = self._replay_of_missing(wrong)
        if replay:
            action += f". If it has, run {replay}"
        return (
            f"{action}. If they are meant to be missing, run `etl table accept-changes CONF "
            f"{self.delta_version} --reason ...`"
        )

    def _action_on_plan(self, wrong: PlanProof) -> str:
        if wrong.missing.not_permitted:
            return error_of(wrong.missing.not_permitted, self.delta_version).action
        return _CHECK_HISTORY

    @property
    def _first_wrong_plan(self) -> PlanProof | None:
        for plan in self.plans:
            if not plan.is_right:
                return plan
        return None

    @property
    def _first_wrong(self) -> PartitionProof | None:
        for partition in self.partitions:
            if not partition.is_right:
                return partition
        return None

    @property
    def _refusal(self) -> LedgersDisagree:
        return error_of(self.by_others, self.delta_version)

    @property
    def _written_since(self) -> str:
        audited, more = self.more_than_before[0]
        return f"{_place_of(audited)}: {more:,} rows of offsets from before plan 1 were added later"

    @property
    def _rows_without_partition(self) -> str:
        first = []
        for row in self.of_no_log_first:
            columns = [f"{name} {_sql_text(value)}" for name, value in row.items()]
            first.append(", ".join(columns))
        return (
            f"{self.without_partition:,} rows name no record of a partition (first: "
            f"{'; '.join(first)}){self._transform_note}"
        )

    @property
    def _transform_note(self) -> str:
        if not self.transform:
            return ""
        return f"; the transform {self.transform} may be the reason"

    def _may_be_transform(self, wrong: PartitionProof | None) -> bool:
        """Return whether a transform may be the reason.

        It may be if the plan's commit lacks rows, or has rows twice or of no partition.
        """
        if not self.transform:
            return False
        if wrong is None:
            return True
        found = wrong.findings
        return bool(
            wrong.missing.never_came
            or found.double_rows
            or found.unexpected
            or found.entries_with_holes
        )

    def as_json(self) -> dict[str, Any]:
        """Return the document of `etl verify`."""
        partitions = sorted(self.partitions, key=lambda partition: partition.findings.audited)
        return {
            "passed": self.is_right,
            "found_rows": self.found_rows,
            "expected_rows": sum(partition.findings.expected_rows for partition in self.partitions),
            "missing": self.missing,
            "table_version": self.delta_version,
            "left_out_by_transform": self.left_out,
            "notes": [*self.notes, *self.transformed, *self.allowed],
            "by_others": [foreign_commit_as_json(found) for found in self.by_others],
            "rows_without_partition": self.without_partition,
            "rows_without_partition_first": [list(row.values()) for row in self.of_no_log_first],
            "rows_before_plan_1": self.rows_before,
            "written_since": [
                {**audited.partition.place, "incarnation": audited.incarnation, "rows": more}
                for audited, more in self.more_than_before
            ],
            "partitions": [self._partition_as_json(partition) for partition in partitions],
        }

    def _partition_as_json(self, partition: PartitionProof) -> dict[str, Any]:
        f = partition.findings
        missing = partition.missing
        document = {
            **f.audited.partition.place,
            "incarnation": f.audited.incarnation,
            "passed": partition.is_right,
            "expected_rows": f.expected_rows,
            "found_rows": f.found_rows,
            "missing": f.missing,
            "missing_first": list(f.missing_first),
            "never_came": missing.never_came,
            "removed_by_others": missing.removed,
            "cause_unknown": missing.unknown,
            "in_a_table_before": missing.elsewhere,
            "removed_by": [foreign_commit_as_json(by) for by in missing.by],
            "not_provable": partition.doubt.offsets,
            "not_provable_in": [[u.from_offset, u.until_offset, u.missing] for u in f.unproven],
            "double_rows": f.double_rows,
            "double_first": [[*place, rows] for a, place, rows in self.doubles if a == f.audited],
            "unexpected": f.unexpected,
            "unexpected_first": list(f.unexpected_first),
        }
        if f.audited.partition.is_physical:
            document["entries_with_holes"] = f.entries_with_holes
            document["entries_with_holes_first"] = list(f.entries_with_holes_first)
        document["unequal"] = [
            [u.from_offset, u.until_offset, u.expected_rows, u.found_rows] for u in f.unequal
        ]
        document["without_row"] = _gaps_as_json(partition.gaps)
        return document


def _gaps_as_json(gaps: Gaps) -> dict[str, Any]:
    """Return the offsets without a row as a JSON object."""
    document = {
        "message": gaps.summary,
        "control_records": gaps.control_records,
        "aborted_records": gaps.aborted_records,
        "compacted": gaps.compacted,
        "left_out_by_transform": gaps.left_out,
        "not_known": gaps.unexplained,
        "lost": gaps.let_go,
        "losses": [[loss.from_offset, loss.until_offset, loss.why.value] for loss in gaps.losses],
    }
    if gaps.read_by_others:
        document["read_by_others"] = [list(interval) for interval in gaps.read_by_others]
    if gaps.unnamed:
        document["unnamed"] = [list(interval) for interval in gaps.unnamed]
    return document


def foreign_commit_as_json(found: ForeignCommit) -> dict[str, Any]:
    """Return changes by another writer as a JSON object."""
    return {"table_version": found.delta_version, "operation": found.operation, "reason": found.why}


def _replay_of(audited: AuditedPartition, start: int, until: int) -> str:
    """Return the replay that leaves one row per record of these offsets."""
    command = replay_command(audited.partition, start, until)
    return f"{command}: it reads these offsets again and replaces their rows by one per record"


def _place_of(audited: AuditedPartition) -> str:
    return ", ".join(f"{name} {value}" for name, value in audited.partition.place.items())


def _offset(place: Sequence[int]) -> str:
    """Return an offset as text; of Jafka with the index of the message."""
    return " message ".join(map(str, place))


def _sql_text(value: Any) -> Any:
    if value is None:
        return "NULL"
    return value


def _first(numbers: Sequence[int | str]) -> str:
    return ", ".join(map(str, numbers)) or "unknown"
