"""The fake ZooKeeper's side of a run: plans and records travel as bytes, offsets move by
compare-and-set and all or nothing per request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from etl.decide.loaded_intervals import fold_all
from etl.decide.offsets import is_anothers
from etl.decide.run_requests import is_reached, run_key_to_record, with_key
from etl.errors import CommitUnknown, LedgersDisagree, OffsetMoved, Owned
from etl.ledger import documents, plan_document
from etl.ledger.documents import parse, render
from etl.model.partitions import (
    NOTHING_COMMITTED,
    Committed,
    OffsetsStorage,
    RejectedCommit,
    TopicPartition,
)
from etl.model.plans import CommitResult, CommitState, Plan, RunKeyRecord
from etl.model.snapshot import Backfill, Ledger, LoadedIntervals
from tests.fakes.fake_table import result_of
from tests.fakes.outside import FakeCommit, Outside


def read_ledger(out: Outside) -> Ledger:
    newest = out.newest_plan()
    if newest is None:
        return Ledger(out.uid)
    known = _record_of(out, newest.number, newest.id) or _record_of(
        out, newest.number - 1, newest.origin.previous
    )
    return Ledger(
        out.uid,
        newest,
        known if known and known.number == newest.number else None,
        known.delta_version if known else None,
        newest_version=out.plan_versions.get(newest.number, 0),
        acknowledged=out.acknowledged,
    )


def _record_of(out: Outside, number: int, plan_id: str | None) -> CommitResult | None:
    """What came of that plan; of whichever has the number, where no id is given."""
    payload = out.applied.get(number)
    found = documents.parse(CommitResult, payload, path="applied") if payload else None
    return found if found and plan_id in (None, found.plan_id) else None


def store_uid(out: Outside, uid: str) -> None:
    if out.uid not in (None, uid):
        raise Owned("Another driver named this pipeline")
    out.uid = uid


def read_backfill(out: Outside, name: str) -> Backfill | None:
    payload = out.backfills.get(name)
    return parse(Backfill, payload, path="backfills") if payload else None


def create_backfill(out: Outside, backfill: Backfill) -> None:
    if read_backfill(out, backfill.name) not in (None, backfill):
        raise Owned("Another command changed this backfill at the same time")
    out.backfills[backfill.name] = render(backfill)


def replace_backfill(out: Outside, before: Backfill, after: Backfill) -> None:
    if read_backfill(out, before.name) not in (before, after):
        raise Owned("Another command changed this backfill at the same time")
    out.backfills[before.name] = render(after)


def hand_over(
    out: Outside, plan: Plan, name: str, write: Callable[[], None]
) -> RejectedCommit | None:
    """Plan and offsets in one transaction; why nothing of it is done. A plan that is not handed
    over is written alone.
    """
    is_there = plan.number in out.plans and not plan.origin.supersedes
    partitions: tuple[TopicPartition, ...] = ()
    is_in_zookeeper = plan.commit.storage is OffsetsStorage.ZOOKEEPER
    if plan.commit.state is CommitState.DONE and is_in_zookeeper:
        partitions = plan.offsets_to_commit
    for partition in () if is_there else partitions:
        if out.owners.get(partition) != name:
            return RejectedCommit(f"{partition} is no longer owned by this run")
        if out.committed().get(partition, NOTHING_COMMITTED) != plan.expected_commits[partition]:
            return RejectedCommit(f"the offset of {partition} was moved since it was read")
    write()
    for partition in partitions:
        moved = plan.moved(partition)
        assert moved.offset is not None and moved.znode_version is not None
        out.offsets[partition] = moved.offset, moved.znode_version
    return None


def store_plan(out: Outside, plan: Plan, *, is_after_record: bool = False) -> None:
    store_uid(out, plan.origin.pipeline_id)
    if plan.number in out.plans:
        if not _is_stored(out, plan.number, plan.id):
            raise Owned("another driver stored this number")
        return
    if is_after_record and _record_of(out, plan.number - 1, plan.origin.previous) is None:
        raise Owned("the ledger does not have the result of the plan before any more")
    out.plans[plan.number] = plan_document.render_plan(plan)


def find_key(out: Outside, key: str, newest: int) -> tuple[Plan | None, RunKeyRecord | None]:
    """The newest plan with the key before that number, and the key's record; read in the order in
    which ZooKeeper is read.
    """
    plans = (
        plan_document.parse_plan(out.plans[number], path="plans")
        for number in sorted(out.plans, reverse=True)
        if number < newest
    )
    return next((plan for plan in plans if plan.request.run_key == key), None), next(
        (one for one in out.kept_keys if one.key == key), None
    )


def remember(out: Outside, key: RunKeyRecord, after: int) -> None:
    if after + 1 in out.plans:
        raise Owned("another driver stored a plan meanwhile")
    out.kept_keys = with_key(out.kept_keys, key)


def prune(out: Outside) -> None:
    """Fold the oldest plan, in one transaction with its key."""
    plan, newest = (
        plan_document.parse_plan(out.plans.pop(min(out.plans)), path="plans"),
        out.newest_plan(),
    )
    if plan.request.run_key and is_reached(plan, newest.loaded_until if newest else {}):
        out.kept_keys = with_key(out.kept_keys, run_key_to_record(plan))


def replace_plan(out: Outside, plan: Plan, version: int | None) -> None:
    if version is None:
        raise LedgersDisagree(f"Plan {plan.number} does not exist")
    if plan.number in out.plans and out.plan_versions.get(plan.number, 0) == version:
        out.plans[plan.number] = plan_document.render_plan(plan)
        out.plan_versions[plan.number] = version + 1
    elif not _is_stored(
        out, plan.number, plan.id
    ):  # the answer may have been lost, and not the write
        raise Owned("another driver changed this plan")


def _is_stored(out: Outside, number: int, plan_id: str) -> bool:
    return (
        number in out.plans
        and plan_document.parse_plan(out.plans[number], path="plans").id == plan_id
    )


def commits_to_adopt(out: Outside) -> list[tuple[int, FakeCommit]]:
    """Version and commit, oldest first, of each plan after the newest that the ledger has with its
    record.
    """
    commits = out.commits()
    known = [
        place
        for place, (_, one) in enumerate(commits)
        if _is_stored(out, one.number, one.plan_id) and _record_of(out, one.number, one.plan_id)
    ]
    return commits[max(known) + 1 :] if known else commits


def adopt_commit(out: Outside, commit: FakeCommit, version: int) -> None:
    if commit.number in out.plans:
        out.plan_versions[commit.number] = out.plan_versions.get(commit.number, 0) + 1
    out.plans[commit.number] = plan_document.render_plan(commit.plan)
    results = tuple(result_of(r, commit.rows) for r in commit.plan.ranges)
    out.applied[commit.number] = documents.render(
        CommitResult(commit.number, commit.plan_id, version, out.table_id, results, commit.run_id)
    )


def record(out: Outside, applied: CommitResult) -> None:
    kept = _record_of(out, applied.number, applied.plan_id)
    if kept is None or (kept.is_recounted and not applied.is_recounted):
        out.applied[applied.number] = documents.render(applied)


def record_losses(out: Outside, plan: Plan) -> None:
    """The losses table takes each number once, and no smaller one after it."""
    if plan.number > max((number for number, _ in out.losses), default=0):
        out.losses.extend((plan.number, loss) for loss in plan.losses.lost)


def commit_request(
    out: Outside, plan: Plan, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, Committed]:
    there = out.committed()
    now = {partition: there.get(partition, NOTHING_COMMITTED) for partition in partitions}
    after = {partition: plan.moved(partition) for partition in partitions}
    if all(now[partition] == plan.expected_commits[partition] for partition in partitions):
        out.offsets.update(
            {
                partition: (plan.loaded_until[partition], after[partition].znode_version or 0)
                for partition in partitions
            }
        )
        return after
    if now == after:
        return after
    if any(
        now[partition] not in (after[partition], plan.expected_commits[partition])
        for partition in partitions
    ):
        newest = max(out.plans, default=plan.number)
        if newest > plan.number:
            raise Owned(f"Another driver stored plan {newest}")
        raise OffsetMoved("Another client moved the committed offset during the run")
    raise CommitUnknown("the offsets did not reach ZooKeeper")


def commit_owned(
    out: Outside,
    plan: Plan,
    partitions: Sequence[TopicPartition],
    is_ours: Callable[[str], bool],
) -> list[TopicPartition]:
    """As `OwnedOffsets.move`: the partitions with an owner node of ours, and with the offset that
    the plan observed.
    """
    there = out.committed()
    moved = [
        partition
        for partition in partitions
        if is_ours(out.owners.get(partition, ""))
        and there.get(partition, NOTHING_COMMITTED) == plan.expected_commits[partition]
    ]
    out.offsets.update(
        {
            partition: (plan.loaded_until[partition], plan.moved(partition).znode_version or 0)
            for partition in moved
        }
    )
    return moved


def commit_in_kafka(out: Outside, plan: Plan, partitions: Sequence[TopicPartition]) -> None:
    """As `StoredOffsets.move`: the offset is read first, and nothing is written if another client
    wrote it.
    """
    after = {partition: plan.moved(partition).in_kafka for partition in partitions}
    now = {partition: Committed(at, None, word) for partition, (at, word) in out.kept.items()}
    for partition in partitions:
        found = now.get(partition, NOTHING_COMMITTED)
        if is_anothers(found, plan.expected_commits[partition].in_kafka, after[partition]):
            if max(out.plans, default=plan.number) > plan.number:
                raise Owned(f"Another driver stored plan {max(out.plans)}")
            raise OffsetMoved("Another client moved the committed offset during the run")
    out.kept.update(
        {
            partition: (after[partition].offset or 0, after[partition].metadata or "")
            for partition in partitions
            if now.get(partition, NOTHING_COMMITTED).offset != after[partition].offset
        }
    )


def commit_in_zookeeper(out: Outside, plan: Plan, partitions: Sequence[TopicPartition]) -> None:
    """Of offsets in both places: those that are elsewhere there."""
    for partition in partitions:
        was, version = out.offsets.get(partition, (None, -1))
        if was != plan.loaded_until[partition]:
            seen = plan.expected_commits[partition].in_zookeeper
            if (was, version) != (
                seen.offset,
                -1 if seen.znode_version is None else seen.znode_version,
            ):
                raise OffsetMoved("Another client moved the committed offset during the run")
            out.offsets[partition] = plan.loaded_until[partition], version + 1


def stored_plans(out: Outside) -> list[tuple[Plan, bool]]:
    """The stored plans, and whether each has a record."""
    plans = [
        plan_document.parse_plan(payload, path="plans") for _, payload in sorted(out.plans.items())
    ]
    return [(plan, _record_of(out, plan.number, plan.id) is not None) for plan in plans]


def loaded(out: Outside, transaction_version: int | None) -> LoadedIntervals:
    """All that the recorded plans loaded."""
    plans = [
        plan_document.parse_plan(payload, path="plans") for _, payload in sorted(out.plans.items())
    ]
    recorded = [
        (plan, applied) for plan in plans if (applied := _record_of(out, plan.number, plan.id))
    ]
    return fold_all(LoadedIntervals(), recorded, transaction_version)
