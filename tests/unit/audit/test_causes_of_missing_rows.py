"""Why offsets have no row, and whether a table that lacks rows is right all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from etl.audit.causes_of_missing_rows import (
    Gaps,
    Missing,
    Origin,
    PartitionProof,
    PlanProof,
    UnprovenOffsets,
    blame,
    doubt_of,
    gaps_of,
    origin_of,
)
from etl.audit.compare_rows import (
    AuditedPartition,
    Bucket,
    Expected,
    IncompleteInterval,
    PartitionFindings,
    audit_partition,
)
from etl.decide.loaded_intervals import interval_of
from etl.model.partitions import TopicPartition
from etl.model.plans import Loss, LossReason, OffsetRange, RangeResult
from etl.model.snapshot import ForeignCommit, Interval
from etl.report.verify import Proof

LOG = TopicPartition("clicks", 0)
SHORT = IncompleteInterval(0, 10, 4)
DELETE, WRITE = (
    ForeignCommit(5, "DELETE", "removed rows"),
    ForeignCommit(7, "WRITE", "removed rows"),
)


def test_reasons_are_summed_over_results_and_intervals_and_unknown_after_a_recount() -> None:
    expected = Expected(
        (
            (OffsetRange(LOG, 100, 120), RangeResult(10, 900, 4, 3, 3)),
            (OffsetRange(LOG, 120, 130), RangeResult(8, None, missing_offsets=2)),
        ),
        (Interval(0, 100, 90, 1, 2, 3),),
    )
    losses = (Loss(LOG, 140, 150, LossReason.MOVED), Loss(LOG, 130, 140, LossReason.EXPIRED))
    gaps = gaps_of(expected, losses)
    assert gaps == Gaps(5, 5, 6, unexplained=6, losses=losses[::-1])
    known = "5 control, 5 aborted, 6 compacted, 6 of unknown reason"
    assert gaps.summary == f"{known}, 20 lost (2 intervals from 130)"
    assert gaps_of(Expected(), losses[1:]).summary == "10 lost (130 to 140, expired)"
    whole = Expected(((OffsetRange(LOG, 0, 10), RangeResult(10, 900)),))
    assert gaps_of(whole, ()).summary == ""


def test_records_that_a_transform_left_out_are_a_reason() -> None:
    result = RangeResult(10, 900, control_records=2).without_left_out(3)
    interval = interval_of(OffsetRange(LOG, 0, 12), result)
    expected = Expected(((OffsetRange(LOG, 12, 24), result),), (interval,))
    assert gaps_of(expected, ()) == Gaps(control_records=4, left_out=6)
    assert gaps_of(expected, ()).summary == "4 control, 6 left out by the transform"


def test_the_sum_of_a_plan_is_right_if_the_table_has_the_rows_of_its_files() -> None:
    whole = PlanProof(3, records=100, written=90, found=90)
    assert whole.is_right and whole.summary.endswith(
        "10 left out by the transform; the table has all of these rows"
    )
    assert not replace(
        whole, found=89, missing=blame([origin(10)], (DELETE,), frozenset())
    ).is_right
    assert replace(whole, found=89, missing=blame([origin(10)], (DELETE,), frozenset({5}))).is_right
    assert not replace(whole, found=91).is_right


def test_a_range_that_is_in_the_coverage_already_is_explained_once() -> None:
    result = RangeResult(8, 900, control_records=2)
    expected = Expected(((OffsetRange(LOG, 0, 10), result),), (Interval(0, 20, 16, 4, 0, 0),))
    assert gaps_of(expected, ()) == Gaps(control_records=4)
    assert gaps_of(expected, ()).summary == "4 control"


def origin(committed: int | None, *, version: int | None = 3, missing: int = 4) -> Origin:
    return Origin(IncompleteInterval(0, 10, missing), version, 10, committed)


@pytest.mark.parametrize(
    ("committed", "expected"),
    [
        (10, Missing(removed=4, by=(DELETE,), not_permitted=(DELETE,))),
        (6, Missing(never_came=4)),
        (9, Missing(never_came=1, removed=3, by=(DELETE,), not_permitted=(DELETE,))),
        (None, Missing(unknown=4, by=(DELETE,), not_permitted=(DELETE,))),
        (3, Missing(never_came=4)),
    ],
    ids=[
        "all were there",
        "none of them was there",
        "one never came",
        "files gone",
        "more lacked than now: another writer restored some rows",
    ],
)
def test_missing_rows_are_distinguished_by_the_content_of_their_commit(
    committed: int | None, expected: Missing
) -> None:
    assert blame([origin(committed)], [DELETE], frozenset()) == expected


def test_only_removals_after_the_commit_are_named() -> None:
    assert blame([origin(10, version=6)], [DELETE, WRITE], frozenset()).by == (WRITE,)
    assert blame([origin(None, version=None)], [DELETE, WRITE], frozenset()).by == (DELETE, WRITE)
    unread = blame([origin(10, version=8)], [DELETE, WRITE], frozenset())
    assert (unread.by, unread.allowed) == ((), False)
    assert unread.summary == "4 removed later, by a commit that the table's log no longer has"


def test_rows_that_others_removed_are_right_only_where_every_such_commit_was_allowed() -> None:
    assert blame([origin(10)], [DELETE, WRITE], frozenset({5, 7})).allowed
    assert not blame([origin(10)], [DELETE, WRITE], frozenset({5})).allowed
    assert blame([origin(None)], [DELETE], frozenset({5})).allowed
    assert not blame([origin(None)], [], frozenset({5})).allowed


def test_rows_in_an_earlier_table_are_reported_as_such() -> None:
    elsewhere = Origin(SHORT, is_elsewhere=True)
    found = blame([elsewhere, origin(10)], [DELETE], frozenset({5}))
    assert found == Missing(removed=4, elsewhere=4, by=(DELETE,))
    assert found.summary.endswith("4 in an earlier table that was replaced by this one")


@pytest.mark.parametrize(
    ("missing", "is_right"),
    [
        (Missing(removed=4, by=(DELETE,)), True),
        (Missing(removed=4, by=(DELETE,), not_permitted=(DELETE,)), False),
        (Missing(never_came=1, removed=3, by=(DELETE,)), False),
        (Missing(never_came=1, unknown=3, may_drop=True), True),
        (Missing(never_came=1, removed=3, may_drop=True), False),
        (Missing(unknown=4, by=(DELETE,), not_permitted=(DELETE,), may_drop=True), False),
    ],
)
def test_a_partition_is_right_when_all_that_is_missing_may_be_missing(
    missing: Missing, is_right: bool
) -> None:
    short = PartitionFindings(AuditedPartition(LOG), 10, 6, missing=4, short=(SHORT,))
    assert PartitionProof(short, missing=missing).is_right is is_right


def test_the_advice_takes_back_no_change_that_is_permitted() -> None:
    permitted = ForeignCommit(4, "DELETE", "removed rows")
    missing = blame([origin(10)], (permitted, DELETE), frozenset({4}))
    assert missing.not_permitted == (DELETE,)
    short = PartitionFindings(AuditedPartition(LOG), 10, 6, missing=4, short=(SHORT,))
    proof = Proof((PartitionProof(short, missing=missing),), (), 5, ())
    assert "RESTORE the table to version 4" in proof.action


@pytest.mark.parametrize("transform", [None, "jobs.rows:without_bots"])
def test_the_advice_on_rows_that_may_be_missing_is_a_replay_and_names_a_transform_if_there_is_one(
    transform: str | None,
) -> None:
    other = AuditedPartition(TopicPartition("clicks", 1))
    unproven = (IncompleteInterval(0, 10, 1),)
    proofs = []
    for audited in (AuditedPartition(LOG), other):
        findings = PartitionFindings(audited, 9, 9, unproven=unproven)
        doubt = doubt_of(unproven, {(0, 10): 1}, pruned=0, accepted=0)
        proofs.append(PartitionProof(findings, doubt=doubt))
    current = frozenset((AuditedPartition(LOG), other))
    proof = Proof(tuple(proofs), (), 3, (), transform, current=current)
    assert proof.first_finding.endswith(f"; also failed: {other.partition}")
    assert f"`etl replay CONF -p {LOG.topic}:{LOG.key} --from 0 --until 10" in proof.action
    assert ("Check the transform" in proof.action) is (transform is not None)
    assert "etl table accept-changes CONF 3" in proof.action


@pytest.mark.parametrize("is_current", [True, False], ids=["current", "earlier incarnation"])
def test_the_advice_on_missing_rows_is_a_replay_if_kafka_may_have_their_records(
    is_current: bool,
) -> None:
    audited = AuditedPartition(LOG)
    short = PartitionFindings(audited, 10, 6, missing=4, short=(SHORT,))
    missing = blame([origin(None)], (), frozenset())
    current = frozenset((audited,)) if is_current else frozenset()
    proof = Proof((PartitionProof(short, missing=missing),), (), 5, (), current=current)
    command = f"--from {SHORT.from_offset} --until {SHORT.until_offset} --reason"
    assert (command in proof.action) is is_current
    assert "also failed" not in proof.first_finding


@pytest.mark.parametrize(
    "findings",
    [
        PartitionFindings(AuditedPartition(LOG), 10, 11, double_rows=1),
        PartitionFindings(AuditedPartition(LOG), 10, 11, unexpected=1),
    ],
)
def test_a_partition_with_a_row_too_many_is_wrong(findings: PartitionFindings) -> None:
    assert not PartitionProof(findings).is_right


def test_unprovable_ranges_are_reported_with_their_plans_until_an_operator_accepts() -> None:
    intervals = ((0, 10, 4), (10, 30, 2), (90, 95, 1))
    unproven = tuple(IncompleteInterval(*one) for one in intervals)
    plans = {(10, 30): 7, (90, 95): 9}
    doubt = doubt_of(unproven, plans, pruned=3, accepted=8)
    assert doubt == UnprovenOffsets(7, (3, 7, 9), (0, 10), allowed=False)
    cannot = "7 offsets without a row cannot be proven (first between 0 and 10; plans 3, 7, 9): "
    assert doubt.summary.startswith(cannot)
    # both leave no range result
    assert "(a crash lost them)" in doubt.summary
    transformed = doubt_of(unproven, plans, pruned=3, accepted=8, has_transform=True)
    assert "a crash lost them, or the transform does not read all its rows" in transformed.summary
    findings = PartitionFindings(AuditedPartition(LOG), 10, 10, unproven=unproven)
    accepted = doubt_of(unproven, plans, pruned=3, accepted=9)
    assert not PartitionProof(findings, doubt=doubt).is_right
    assert PartitionProof(findings, doubt=accepted).is_right
    permitted = doubt_of(unproven, plans, pruned=3, accepted=0, may_drop=True)
    assert PartitionProof(findings, doubt=permitted).is_right
    none = doubt_of((), plans, pruned=3, accepted=0)
    assert (none, none.summary, none.allowed) == (UnprovenOffsets(), "", True)


def test_the_origin_of_a_range_compares_planned_and_committed_offsets() -> None:
    assert origin_of(SHORT, 3, RangeResult(rows=10), RangeResult(rows=8)) == Origin(SHORT, 3, 10, 8)
    assert origin_of(SHORT, 3, RangeResult(rows=10), None).committed_rows is None


def test_many_removals_are_counted() -> None:
    by = tuple(ForeignCommit(n, "DELETE", "removed rows") for n in range(4, 9))
    assert blame([origin(10)], by, frozenset()).summary == (
        "4 removed later by another writer's DELETE at version 4 and DELETE at version 5 and "
        "DELETE at version 6 and 2 more"
    )


OURS = (
    (OffsetRange(LOG, 0, 10), RangeResult(10, 100)),
    (OffsetRange(LOG, 20, 30), RangeResult(10, 100)),
)


def rows_of(*offsets: int) -> list[Bucket]:
    bits = sum(1 << offset for offset in offsets)
    return [Bucket(0, len(offsets), bits.to_bytes(4096, "little"))]


def proof_of(expected: Expected, rows: list[Bucket], *losses: Loss) -> PartitionProof:
    return PartitionProof(
        audit_partition(AuditedPartition(LOG), expected, rows), gaps_of(expected, losses)
    )


def test_a_hole_that_a_plan_names_is_right_and_reported_and_a_row_in_it_is_one_too_many() -> None:
    expected = Expected(OURS, read_by_others=((10, 20),))
    proof = proof_of(expected, rows_of(*range(10), *range(20, 30)))
    assert proof.is_right
    assert proof.gaps.summary == "10 read by other members of the group"
    proof = proof_of(expected, rows_of(*range(10), 15, *range(20, 30)))
    assert (proof.is_right, proof.findings.unexpected_first) == (False, (15,))


@pytest.mark.parametrize(
    ("named", "unnamed"), [((10, 15), (15, 20)), ((12, 20), (10, 12)), ((30, 40), (10, 20))]
)
def test_among_members_a_hole_without_a_name_is_wrong(
    named: tuple[int, int], unnamed: tuple[int, int]
) -> None:
    proof = proof_of(Expected(OURS, read_by_others=(named,)), rows_of(*range(10), *range(20, 30)))
    assert (proof.is_right, proof.gaps.unnamed) == (False, (unnamed,))
    lost = Loss(LOG, *unnamed, LossReason.EXPIRED)
    assert not gaps_of(Expected(OURS, read_by_others=(named,)), (lost,)).unnamed, "a loss is a name"
    assert gaps_of(Expected(OURS), ()) == Gaps(), "without other readers no hole needs one"
