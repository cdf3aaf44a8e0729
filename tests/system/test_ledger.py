"""The plans in a real ZooKeeper; what a run relies on is in test_live_services."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from etl.decide import loaded_intervals
from etl.errors import LedgersDisagree, NeedsDecision, Owned, ZooKeeperUnreachable
from etl.io.zookeeper import ledger as documents
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.ledger_side_documents import BackfillStore, note_removals, prune, remember
from etl.io.zookeeper.pipelines import GroupPipelines
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger.plan_document import render_plan, with_id
from etl.model.partitions import Broker, Committed, Leader, TopicPartition
from etl.model.plans import CommitResult, OffsetRange, Plan, RangeResult, RunKeyRecord
from etl.model.snapshot import (
    Backfill,
    ForeignCommit,
    Interval,
    Ledger,
    LoadedIntervals,
    Retirement,
)
from etl.testkit import cluster as embedded
from tests.builders import changed, plain_plan

LOG = TopicPartition("clicks", 0)
ROOT = "/consumers/g/etl/clicks"


@pytest.fixture
def ledger(zookeeper: ZooKeeper) -> PlanLedger:
    return PlanLedger(zookeeper, "g", "clicks")


@pytest.fixture
def pipelines(zookeeper: ZooKeeper) -> GroupPipelines:
    return GroupPipelines(zookeeper, "g")


def plan_of(number: int, **changes: Any) -> Plan:
    plan = plain_plan(
        number,
        uid="feedbeef",
        ranges=(OffsetRange(LOG, number * 10, number * 10 + 10, Leader(Broker(0, "h", 9092), 1)),),
        loaded_until={LOG: number * 10 + 10},
        expected_commits={LOG: Committed(number * 10, number)},
        table_id="t",
        table_transaction_version=number - 1,
    )
    return with_id(changed(plan, **changes))


def applied_of(plan: Plan, rows: int = 9) -> CommitResult:
    results = tuple(RangeResult(rows=rows) for _ in plan.ranges)
    return CommitResult(plan.number, plan.id, plan.number + 4, "t", results)


def large_plan(number: int, partitions: int = 40_000) -> Plan:
    """A plan that no compression brings below one znode."""
    chance = random.Random(number)
    starts = {TopicPartition("clicks", p): chance.randrange(2**60) for p in range(partitions)}
    return plan_of(
        number,
        ranges=tuple(
            OffsetRange(log, start, start + chance.randrange(1, 2**40))
            for log, start in starts.items()
        ),
        loaded_until={log: start + 2**40 for log, start in starts.items()},
        expected_commits={
            log: Committed(start, chance.randrange(2**31)) for log, start in starts.items()
        },
    )


def pieces_of(zookeeper: ZooKeeper) -> int:
    digests = zookeeper.children(f"{ROOT}/chunks") or []
    return sum(len(zookeeper.children(f"{ROOT}/chunks/{digest}") or []) for digest in digests)


def test_a_pipeline_that_never_ran_has_an_empty_ledger(
    ledger: PlanLedger, zookeeper: ZooKeeper
) -> None:
    assert ledger.read_ledger() == Ledger()
    assert (ledger.plan_numbers(), ledger.read_plan(1)) == ([], None)
    assert (ledger.read_applied(1), ledger.read_loaded_intervals()) == (None, LoadedIntervals())
    zookeeper.ensure(ROOT)
    assert ledger.read_ledger() == Ledger(), "the root that the lock made has no uid yet"


def test_a_uid_is_kept_once(ledger: PlanLedger, zookeeper: ZooKeeper) -> None:
    zookeeper.ensure(ROOT)
    ledger.store_uid("feedbeef")
    ledger.store_uid("feedbeef")
    with pytest.raises(Owned):
        ledger.store_uid("deadbeef")
    assert ledger.read_ledger() == Ledger("feedbeef")


def test_the_newest_plan_comes_back_with_what_came_of_it(
    ledger: PlanLedger, zookeeper: ZooKeeper
) -> None:
    zookeeper.ensure(ROOT)
    ledger.store_uid("feedbeef")
    for number in (1, 2, 9, 10):
        ledger.store_plan(plan_of(number))
        ledger.record_applied(applied_of(plan_of(number)))
    assert ledger.read_ledger() == Ledger(
        "feedbeef", plan_of(10), applied_of(plan_of(10)), 14, newest_version=0
    )
    ledger.store_plan(plan_of(11))
    assert ledger.read_ledger() == Ledger("feedbeef", plan_of(11), None, 14, newest_version=0)


def test_one_plan_is_stored_under_a_number_and_where_it_is_read_does_not_make_it_another_one(
    ledger: PlanLedger,
) -> None:
    plan = plan_of(1)
    ledger.store_plan(plan)
    ledger.store_plan(replace(plan, ranges=tuple(replace(r, leader=None) for r in plan.ranges)))
    with pytest.raises(Owned) as caught:
        ledger.store_plan(plan_of(1, created_at_ms=2))
    assert (caught.value.exit_code, ledger.read_plan(1)) == (4, plan)


def another(pipelines: GroupPipelines, topic: str = "clicks") -> tuple[PlanLedger, Plan]:
    """Another pipeline of the group, and its first plan."""
    partition = TopicPartition(topic, 0)
    return pipelines.ledger_of("other"), plan_of(
        1,
        uid="deadbeef",
        ranges=(OffsetRange(partition, 10, 20),),
        loaded_until={partition: 20},
        expected_commits={partition: Committed(10, 1)},
    )


@pytest.fixture
def group(zookeeper: ZooKeeper) -> str:
    """As it is while two drivers hold their locks."""
    for pipeline in ("clicks", "other"):
        zookeeper.ensure(f"/consumers/g/etl/{pipeline}")
    return "/consumers/g/etl"


@pytest.mark.parametrize("topic", ["clicks", "views"])
def test_of_two_pipelines_that_take_topics_at_the_same_moment_one_wins_and_the_other_stores_nothing(
    ledger: PlanLedger,
    pipelines: GroupPipelines,
    zookeeper: ZooKeeper,
    group: str,
    topic: str,
) -> None:
    other, first = another(pipelines, topic)
    version = pipelines.version()
    for name in ("clicks", "other"):
        assert not pipelines.topics_of_others(name), "each is alone"
    ledger.store_plan(plan_of(1), pipelines_version=version)
    with pytest.raises(Owned) as caught:
        other.store_plan(first, pipelines_version=version)
    assert caught.value.exit_code == 4
    assert zookeeper.read(f"{group}/other") == (b"", 0) and not zookeeper.children(f"{group}/other")
    assert pipelines.topics_of_others("other") == {"clicks": frozenset({"clicks"})}


def test_a_superseding_plan_takes_topics_as_a_new_one_does(
    ledger: PlanLedger, pipelines: GroupPipelines, group: str
) -> None:
    other, first = another(pipelines, "views")
    ledger.store_plan(plan_of(1))
    version = pipelines.version()
    other.store_plan(first, pipelines_version=version)
    partitions = [LOG, TopicPartition("views", 0)]
    wider = plan_of(
        1,
        loaded_until=dict.fromkeys(partitions, 20),
        expected_commits=dict.fromkeys(partitions, Committed()),
    )
    with pytest.raises(Owned):
        ledger.supersede_plan(wider, 0, pipelines_version=version)
    assert ledger.read_plan(1) == plan_of(1)


def test_a_plan_with_a_lost_answer_is_stored(
    ledger: PlanLedger, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = zookeeper.refused_at

    def refused_at(request: Any, path: str) -> str | None:
        real(request, path)
        raise ZooKeeperUnreachable("the answer was lost")

    monkeypatch.setattr(zookeeper, "refused_at", refused_at)
    ledger.store_plan(plan_of(1))
    with pytest.raises(ZooKeeperUnreachable):
        ledger.store_plan(plan_of(1, created_at_ms=2))
    assert ledger.read_plan(1) == plan_of(1)


def test_a_retired_pipeline_leaves_its_topics_to_others_until_it_is_resumed(
    ledger: PlanLedger, pipelines: GroupPipelines, group: str
) -> None:
    other, first = another(pipelines)
    ledger.store_plan(plan_of(1))
    pipelines.retire("clicks", Retirement("moved", 5))
    assert ledger.read_ledger().retired == Retirement("moved", 5)
    assert pipelines.topics_of_others("other") == {}
    with pytest.raises(Owned):
        pipelines.retire("clicks", Retirement("again", 6))
    inherited = Retirement("taken over", 7, "g/other")
    with pytest.raises(Owned):
        pipelines.retire("clicks", inherited, before=Retirement("again", 6))
    assert ledger.read_retirement() == Retirement("moved", 5)
    pipelines.retire("clicks", inherited, before=Retirement("moved", 5))
    assert ledger.read_retirement() == inherited
    version = pipelines.version()
    assert version is not None
    other.store_plan(first, pipelines_version=version)
    with pytest.raises(Owned):
        pipelines.resume("clicks", version=version)
    assert ledger.read_ledger().retired
    pipelines.resume("clicks", version=version + 1)
    assert ledger.read_ledger().retired is None
    assert "clicks" in pipelines.topics_of_others("other")


def test_a_record_stays_unless_the_run_that_appended_knows_more_than_one_that_counted_again(
    ledger: PlanLedger,
) -> None:
    for rows in (9, 5):
        ledger.record_applied(applied_of(plan_of(1), rows=rows))
        assert ledger.read_applied(1) == applied_of(plan_of(1))
    known = replace(applied_of(plan_of(1)), results=(RangeResult(9, 100, control_records=1),))
    for record in (applied_of(plan_of(1)), known, applied_of(plan_of(1))):
        ledger.record_applied(record)
    assert ledger.read_applied(1) == known


def test_a_plan_of_several_megabytes_goes_in_pieces_and_comes_back(
    ledger: PlanLedger, zookeeper: ZooKeeper
) -> None:
    plan = large_plan(1)
    assert len(render_plan(plan)) > 1_200_000
    ledger.store_plan(plan)
    assert pieces_of(zookeeper) == 2
    assert ledger.read_plan(1) == plan
    ledger.store_plan(plan)
    with pytest.raises(Owned):
        ledger.store_plan(plan_of(1))


def test_a_plan_with_a_missing_or_changed_piece_is_refused(
    ledger: PlanLedger, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "NODE_MAX_BYTES", 100)
    ledger.store_plan(plan_of(1))
    [digest] = zookeeper.children(f"{ROOT}/chunks") or []
    piece = f"{ROOT}/chunks/{digest}/1"
    found = zookeeper.read(piece)
    assert found
    assert zookeeper.replace(piece, b"x" + found[0][1:], version=0)
    with pytest.raises(LedgersDisagree) as caught:
        ledger.read_ledger()
    assert caught.value.where["znode"] == f"{ROOT}/plans/1"
    zookeeper.delete_tree(piece)
    with pytest.raises(LedgersDisagree, match="Pieces"):
        ledger.read_ledger()


@pytest.mark.parametrize(
    "junk",
    [
        b"x",
        b"{",
        b"{}",
        b'{"chunks":"a","count":"b"}',
        b'{"chunks":"a","count":1e999}',
        b'{"chunks":7,"count":1,"bytes":1}',
        b'{"chunks":"' + b"0" * 64 + b'","count":999999999999,"bytes":1}',
        b'{"chunks":"' + b"0" * 64 + b'","count":1,"bytes":1}',
    ],
)
def test_a_plan_that_is_not_ours_to_read_is_refused(
    ledger: PlanLedger, zookeeper: ZooKeeper, junk: bytes
) -> None:
    zookeeper.create(f"{ROOT}/plans/1", junk)
    with pytest.raises(NeedsDecision) as caught:
        ledger.read_ledger()
    assert caught.value.where["znode"] == f"{ROOT}/plans/1"


def test_pruning_drops_loose_pieces_and_no_others(
    ledger: PlanLedger, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "NODE_MAX_BYTES", 100)
    ledger.store_plan(plan_of(1))
    ledger.record_applied(applied_of(plan_of(1)))
    kept = zookeeper.children(f"{ROOT}/chunks") or []
    zookeeper.create(f"{ROOT}/chunks/{'0' * 64}/0", b"of a driver that died before it named them")
    prune(ledger)
    assert sorted(zookeeper.children(f"{ROOT}/chunks") or []) == sorted(kept)
    assert ledger.read_plan(1) == plan_of(1)


def loaded(through: int, until: int, rows: int) -> LoadedIntervals:
    return LoadedIntervals(through, {LOG: (Interval(10, until, rows),)}, table_id="t")


def fill(ledger: PlanLedger, numbers: range) -> None:
    for number in numbers:
        plan = plan_of(number)
        ledger.store_plan(plan)
        ledger.record_applied(applied_of(plan))


def test_plans_beyond_those_kept_are_folded_into_coverage_once(
    ledger: PlanLedger, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_intervals, "PLANS_KEPT", 3)
    fill(ledger, range(1, 6))
    prune(ledger)
    assert ledger.plan_numbers() == [3, 4, 5]
    assert sorted(zookeeper.children(f"{ROOT}/applied") or []) == ["3", "4", "5"]
    assert ledger.read_loaded_intervals() == loaded(2, 30, 18)
    prune(ledger)
    assert ledger.read_loaded_intervals() == loaded(2, 30, 18)
    fill(ledger, range(6, 8))
    prune(ledger)
    assert ledger.plan_numbers() == [5, 6, 7]
    assert ledger.read_loaded_intervals() == loaded(4, 50, 36)


def test_coverage_that_needs_pieces_replaces_its_old_ones(
    ledger: PlanLedger, zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_intervals, "PLANS_KEPT", 1)
    monkeypatch.setattr(documents, "NODE_MAX_BYTES", 50)
    fill(ledger, range(1, 4))
    prune(ledger)
    assert ledger.read_loaded_intervals() == loaded(2, 30, 18)
    znodes = zookeeper.read_all([f"{ROOT}/coverage", f"{ROOT}/plans/3", f"{ROOT}/applied/3"])
    named = [found[0] for found in znodes if found]
    pieces = zookeeper.children(f"{ROOT}/chunks")
    assert pieces and all(any(digest.encode() in text for text in named) for digest in pieces)
    assert (ledger.read_plan(3), ledger.read_applied(3)) == (plan_of(3), applied_of(plan_of(3)))


def test_a_plan_without_a_known_outcome_is_given_up_when_it_is_pruned(
    ledger: PlanLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_intervals, "PLANS_KEPT", 1)
    ledger.store_plan(plan_of(1))
    fill(ledger, range(2, 4))
    prune(ledger)
    assert ledger.plan_numbers() == [3]
    kept = ledger.read_loaded_intervals()
    assert kept.through == 2 and kept.given_up.keys() == kept.intervals.keys()


def test_pruning_that_meets_another_driver_folds_no_plan_twice(
    ledger: PlanLedger,
    server: embedded.ZooKeeper,
    zookeeper: ZooKeeper,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between our reading of coverage and our transaction another driver prunes the same plans."""
    monkeypatch.setattr(loaded_intervals, "PLANS_KEPT", 1)
    fill(ledger, range(1, 4))
    with ZooKeeper(server.connect + zookeeper.chroot) as session:
        overtake(ledger, monkeypatch, lambda: prune(PlanLedger(session, "g", "clicks")))
        prune(ledger)
    assert ledger.plan_numbers() == [3]
    assert ledger.read_loaded_intervals() == loaded(2, 30, 18)


def overtake(ledger: PlanLedger, monkeypatch: pytest.MonkeyPatch, by: Callable[[], None]) -> None:
    """Once, right after the ledger has read its coverage, another driver does this."""
    read = ledger.read_loaded_intervals_with_version

    def read_and_be_overtaken() -> tuple[LoadedIntervals, int | None]:
        found = read()
        monkeypatch.setattr(ledger, "read_loaded_intervals_with_version", read)
        by()
        return found

    monkeypatch.setattr(ledger, "read_loaded_intervals_with_version", read_and_be_overtaken)


def test_nothing_is_written_over_a_coverage_that_another_driver_changed_since_it_was_read(
    ledger: PlanLedger,
    server: embedded.ZooKeeper,
    zookeeper: ZooKeeper,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    removal = ForeignCommit(3, "DELETE", "removed rows")
    first, second = RunKeyRecord("first", 0), RunKeyRecord("second", 0)
    with ZooKeeper(server.connect + zookeeper.chroot) as session:
        other = PlanLedger(session, "g", "clicks")
        overtake(ledger, monkeypatch, lambda: remember(other, first, after=0))
        note_removals(ledger, [removal])
        found = ledger.read_loaded_intervals()
        assert (found.keys, found.removals) == ((first,), (removal,))
        later = replace(removal, delta_version=4)
        overtake(ledger, monkeypatch, lambda: note_removals(other, [later]))
        with pytest.raises(Owned):
            remember(ledger, second, after=0)
    assert len(ledger.read_loaded_intervals().removals) == 2


def test_requests_of_backfills_are_created_once_and_change_by_compare_and_set(
    ledger: PlanLedger,
) -> None:
    store = BackfillStore(ledger)
    old = Backfill("old", {LOG: ((0, 8), (20, 24))}, {}, "from 0 until 24", 5)
    assert store.read_all() == [] and store.read("old") is None
    store.create(old)
    store.create(old)  # a lost answer
    with pytest.raises(Owned):
        store.create(replace(old, request="from 0 until 25"))
    after = replace(old, lost={LOG: ((0, 3),)})
    store.replace(old, after)
    store.replace(old, after)  # a lost answer
    with pytest.raises(Owned):
        store.replace(old, replace(old, lost={LOG: ((0, 4),)}))
    store.create(replace(old, name="new"))
    assert [one.name for one in store.read_all()] == ["new", "old"]
    store.delete("old")
    store.delete("old")
    assert store.read("old") is None and len(store.read_all()) == 1


def test_a_plan_is_stored_only_while_the_result_before_it_is_recorded(ledger: PlanLedger) -> None:
    """A ledger that is restored from a copy during a run lacks it."""
    first = plan_of(1)
    ledger.store_plan(first)
    second = with_id(replace(plan_of(2), origin=replace(plan_of(2).origin, previous=first.id)))
    with pytest.raises(Owned, match="does not have the result of plan 1"):
        ledger.store_plan(second, is_after_record=True)
    ledger.record_applied(applied_of(first))
    ledger.store_plan(second, is_after_record=True)
    assert ledger.plan_numbers() == [1, 2]


def test_a_plan_whose_result_was_recorded_meanwhile_is_not_replaced(ledger: PlanLedger) -> None:
    """Its driver slept, and appended and recorded it after the plan in its place was decided."""
    plan = plan_of(1)
    ledger.store_plan(plan)
    other = with_id(replace(plan, origin=replace(plan.origin, supersedes=plan.id, reason="seen")))
    ledger.record_applied(applied_of(plan))
    with pytest.raises(Owned, match="executed plan 1 meanwhile"):
        ledger.supersede_plan(other, 0)
    assert ledger.read_plan(1) == plan
