"""The laws that hold for the services of a run in memory and for the real ones; each suite has a
`stage` fixture of its own.

Both use the real ledger, offsets and owners, whose own laws are in tests/system/test_ledger.py,
test_zookeeper_group_offsets.py and test_owners.py. Here are those of what differs: the table, and
how a call of a run becomes calls of these classes. Where rows do not matter a plan has no ranges,
and then the real services need no Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import pytest

from etl.errors import CommitUnknown, ExpiredOffsets, LedgersDisagree, Owned, TableAppeared
from etl.io.zookeeper.ledger import PlanLedger
from etl.ledger.plan_document import with_id
from etl.model.partitions import NOTHING_COMMITTED, Committed, PartitionOffsets, TopicPartition
from etl.model.plans import (
    CommitResult,
    Loss,
    LossReason,
    OffsetRange,
    Plan,
    PlanKind,
    PlanOrigin,
    Request,
    RunKeyRecord,
    TableExpectation,
)
from etl.model.snapshot import Ledger, ResolvedRequest, Table
from etl.run.service_interfaces import Services
from tests.builders import changed, plain_plan, with_facts

SIZES = (5, 3, 4)
"""How many records each of the stage's logs has. The third is for what cannot be undone."""


class Stage(Protocol):
    """One ZooKeeper, three partitions and a path for a table, real or not; without any plan."""

    @property
    def logs(self) -> tuple[TopicPartition, ...]:
        """Three partitions of one topic with the sizes of `SIZES`."""

    def world(self, run_id: str = "run-1", request: Request | None = None) -> Services:
        """A driver of the pipeline with its own session; `request`: the run's bounds and key."""

    def rows(self) -> list[tuple[TopicPartition, int]]:
        """Log and offset of each row of the table, in order."""

    def losses(self) -> list[Loss]:
        """The rows of the losses table, in order."""

    def plans(self) -> dict[int, str]:
        """Number and id of each plan that ZooKeeper holds."""

    def forget(self, number: int | None = None) -> None:
        """Delete this plan and its result from ZooKeeper; without a number the whole pipeline."""

    def expire(self, partition: TopicPartition, until: int) -> None:
        """Retention deletes the records before `until`."""

    def replace_table(self) -> None:
        """Another writer creates a table with the same columns at the table's path."""

    def clean_up_log(self) -> None:
        """The table's log loses the commits' metadata; the rows stay."""


def plan_for(world: Services, until: Mapping[TopicPartition, int], **changes: Any) -> Plan:
    """The next plan, up to these offsets, of a driver that observes now. It is not stored."""
    seen = world.observe()
    newest, table = seen.ledger.newest, seen.table
    positions = {
        **(newest.loaded_until if newest else {partition: 0 for partition in until}),
        **until,
    }
    starts = {
        partition: newest.loaded_until.get(partition, 0) if newest else 0 for partition in until
    }
    plan = plain_plan(
        number=newest.number + 1 if newest else 1,
        origin=PlanOrigin(
            pipeline_id=seen.ledger.uid or "uid1",
            created_at_ms=world.now_ms(),
            previous=newest.id if newest else None,
        ),
        kind=PlanKind.INGEST,
        cluster=seen.cluster,
        shape="shape",
        loaded_until=positions,
        ranges=tuple(
            OffsetRange(partition, starts[partition], until[partition], seen.leaders[partition])
            for partition in sorted(until)
            if starts[partition] < until[partition]
        ),
        expected_commits={
            partition: seen.committed.get(partition, NOTHING_COMMITTED) for partition in positions
        },
        table=TableExpectation(
            id=table.id if table else None,
            transaction_version=(table.transaction_version or 0) if table else 0,
            version=table.version if table else None,
        ),
        topic_ids=seen.topic_ids,
    )
    return with_id(changed(plan, **changes))


def another(plan: Plan, **changes: Any) -> Plan:
    return with_id(changed(plan, **{"supersedes": plan.id, "reason": "it is tried", **changes}))


def append(world: Services, plan: Plan) -> tuple[CommitResult | None, Table | None]:
    """Look, fetch and append, as a run does."""
    return world.append(plan, world.fetch(plan, world.observe()))


def stored(world: Services, until: Mapping[TopicPartition, int], **changes: Any) -> Plan:
    plan = plan_for(world, until, **changes)
    world.store(plan)
    return plan


def appended(
    world: Services, until: Mapping[TopicPartition, int], **changes: Any
) -> tuple[Plan, CommitResult]:
    """The next plan in the ledger and in the table; no record of it, and no offset moved."""
    plan = stored(world, until, **changes)
    applied, _ = append(world, plan)
    assert applied is not None
    return plan, applied


def loaded(world: Services, until: Mapping[TopicPartition, int], **changes: Any) -> Plan:
    """The next plan, as a quiet run leaves it."""
    plan, applied = appended(world, until, **changes)
    world.record(plan, applied)
    world.commit(plan)
    return plan


def counts(applied: CommitResult | None) -> list[tuple[int | None, int]]:
    """Rows and missing offsets of each range."""
    assert applied is not None
    return [(result.rows, result.missing_offsets) for result in applied.results]


K = Request("2026-01-31T00")


class WorldContract:
    def test_before_anything_is_planned_there_are_logs_and_nothing_else(self, stage: Stage) -> None:
        seen = stage.world().observe()
        assert set(seen.readable) == set(stage.logs)
        assert all(
            seen.readable[partition] == PartitionOffsets(0, size)
            for partition, size in zip(stage.logs[:2], SIZES, strict=False)
        )
        assert (
            seen.ledger,
            seen.table,
            seen.committed,
            seen.owners,
            seen.group.live_consumers,
        ) == (
            Ledger(),
            None,
            {},
            {},
            (),
        )

    def test_each_verb_of_a_run_is_seen_by_the_next_look(self, stage: Stage) -> None:
        a, b, _ = stage.logs
        world, other = stage.world(), stage.world("run-2")
        plan = stored(world, {a: 5, b: 3})
        seen = other.observe()
        assert seen.ledger == Ledger("uid1", plan, newest_version=0) and seen.table is None
        with world.claiming(plan):
            assert set(other.observe().owners) == {a, b}
            applied, table = append(world, plan)
            assert applied is not None and table is not None
            seen = other.observe()
            assert seen.table == table and seen.ledger.applied is None and seen.committed == {}
            world.record(plan, applied)
            seen = other.observe()
            assert (
                seen.ledger
                == Ledger("uid1", plan, applied, applied.delta_version, newest_version=0)
                and seen.committed == {}
            )
            moved = world.commit(plan)
            assert other.observe().committed == moved == {a: Committed(5, 0), b: Committed(3, 0)}
            before = other.observe()
            world.tidy()
        assert other.observe() == with_facts(before, owners={})

    def test_a_plan_of_a_pipeline_that_was_named_otherwise_is_refused(self, stage: Stage) -> None:
        world = stage.world()
        plan = stored(world, {stage.logs[0]: 5})
        with pytest.raises(Owned, match="Another driver named this pipeline"):
            world.store(plan_for(world, {stage.logs[0]: 5}, uid="uid2"))
        assert stage.plans() == {1: plan.id} and world.read_ledger().uid == "uid1"

    def test_who_supersedes_by_the_plan_that_is_there_is_not_refused(self, stage: Stage) -> None:
        """As a driver does after a lost answer."""
        world = stage.world()
        plan = stored(world, {stage.logs[0]: 5})
        seen = world.observe().ledger
        for _ in range(2):
            world.supersede(another(plan), seen)
        assert world.read_ledger() == Ledger("uid1", another(plan), newest_version=1)

    def test_where_there_is_no_plan_none_is_superseded(self, stage: Stage) -> None:
        world = stage.world()
        plan = plan_for(world, {stage.logs[0]: 5})
        with pytest.raises(LedgersDisagree, match="Plan 1 does not exist"):
            world.supersede(plan, world.read_ledger())
        world.store(plan)
        seen = world.read_ledger()
        stage.forget(1)
        with pytest.raises(Owned):
            world.supersede(another(plan), seen)
        assert stage.plans() == {}

    def test_an_empty_ledger_is_written_anew_from_the_table_with_rows_that_are_counted_again(
        self, stage: Stage
    ) -> None:
        world = stage.world()
        first, second = (
            loaded(world, {stage.logs[0]: 4}),
            loaded(world, {stage.logs[1]: 0}, ranges=()),
        )
        stage.forget()
        assert world.observe().ledger == Ledger()
        ledger = world.adopt(second)
        assert ledger == world.read_ledger() and (ledger.uid, ledger.newest) == ("uid1", second)
        assert ledger.applied is not None and ledger.applied.is_of(second)
        assert ledger.known_version == ledger.applied.delta_version
        assert stage.plans() == {1: first.id, 2: second.id}
        assert counts(world.recount(first)) == [(4, 0)]

    def test_it_is_written_from_the_newest_plan_on_that_both_sides_know(self, stage: Stage) -> None:
        """Plans before it may be pruned, and are not written again."""
        world = stage.world()
        plans = [loaded(world, {stage.logs[0]: 0}, ranges=()) for _ in range(3)]
        stage.forget(1)
        stage.forget(3)
        world.observe()
        assert world.adopt(plans[2]).newest == plans[2]
        assert stage.plans() == {2: plans[1].id, 3: plans[2].id}

    def test_a_plan_that_the_table_has_under_the_number_of_another_is_adopted_in_its_place(
        self, stage: Stage
    ) -> None:
        world, zombie = stage.world(), stage.world("run-2")
        plan = stored(world, {stage.logs[0]: 0}, ranges=())
        world.supersede(another(plan), world.read_ledger())
        append(zombie, plan)
        ledger = world.adopt(plan)
        assert (ledger.newest, ledger.newest_version) == (plan, 2)
        assert ledger.applied is not None and ledger.applied.run_id == "run-2"

    def test_a_ledger_of_another_name_is_not_written_over(self, stage: Stage) -> None:
        world = stage.world()
        plan = loaded(world, {stage.logs[0]: 0}, ranges=())
        stage.forget()
        other = stored(world, {stage.logs[0]: 0}, ranges=(), uid="uid2")
        with pytest.raises(Owned, match="Another driver named this pipeline"):
            world.adopt(plan)
        assert stage.plans() == {1: other.id}

    def test_of_a_partial_commit_only_that_part_is_reported_as_committed(
        self, stage: Stage
    ) -> None:
        a, b, _ = stage.logs
        world = stage.world()
        plan = plan_for(world, {a: 5, b: 3})
        world.commit(plan, [a])
        with pytest.raises(CommitUnknown):
            world.commit(plan)
        assert world.observe().committed == {a: Committed(5, 0)}

    def test_a_driver_overtaken_by_another_of_the_pipeline_gets_an_error(
        self, stage: Stage
    ) -> None:
        partition, world, zombie = stage.logs[0], stage.world(), stage.world("run-2")
        plan = loaded(world, {partition: 0}, ranges=(), loaded_until={partition: 1})
        loaded(world, {partition: 0}, ranges=(), loaded_until={partition: 2})
        zombie.observe()
        with pytest.raises(Owned, match="Another driver stored plan 2"):
            zombie.commit(plan)
        assert world.observe().committed == {partition: Committed(2, 1)}

    def test_a_key_is_found_in_the_plan_that_was_made_under_it_however_many_came_later(
        self, stage: Stage
    ) -> None:
        world, asking = stage.world(), stage.world("run-2", K)
        plan = stored(world, {}, run_key=K.run_key)
        seen = asking.observe()
        assert seen.ledger.newest == plan and seen.request == ResolvedRequest(K)
        stored(world, {}, run_key="the next")
        stored(world, {})
        assert asking.observe().request == ResolvedRequest(K, plan=plan)

    def test_a_key_that_had_nothing_to_read_is_not_kept_once_the_next_plan_is_stored(
        self, stage: Stage
    ) -> None:
        world, other = stage.world("run-1", K), stage.world("run-2")
        stored(other, {})
        plan = plan_for(other, {})
        world.remember(RunKeyRecord("2026-01-31T00", 1, is_empty=True), after=1)
        other.store(plan)
        with pytest.raises(Owned):
            world.remember(RunKeyRecord("another", 1, is_empty=True), after=1)
        assert stage.plans()[2] == plan.id and world.observe().request == ResolvedRequest(
            K, RunKeyRecord("2026-01-31T00", 1, is_empty=True)
        )

    # -- the table

    def test_rows_of_any_offsets_in_the_present_table_are_counted_whoever_appended_them(
        self, stage: Stage
    ) -> None:
        a, b, _ = stage.logs
        world = stage.world()
        plan, _ = appended(world, {a: 4, b: 3})
        request = replace(
            plan, ranges=(OffsetRange(a, 2, 6), OffsetRange(b, 0, 3), OffsetRange(b, 7, 9))
        )
        found = world.loaded.results_in_table(request)
        assert found is not None and [one.rows for one in found] == [2, 3, 0]
        if a.broker_id is None:
            assert [(one.gaps, one.gaps_complete) for one in found] == [
                (((4, 6),), True),
                ((), True),
                (((7, 9),), True),
            ]

    def test_an_append_adds_each_record_of_the_plan_once_and_returns_applied(
        self, stage: Stage
    ) -> None:
        a, b, _ = stage.logs
        world = stage.world()
        plan = stored(world, {a: 4, b: 3})
        applied, table = append(world, plan)
        assert applied is not None and table is not None
        assert stage.rows() == [(a, n) for n in range(4)] + [(b, n) for n in range(3)]
        assert (
            applied.is_of(plan) and not applied.is_recounted and counts(applied) == [(4, 0), (3, 0)]
        )
        assert (applied.run_id, applied.table_id, applied.delta_version) == (
            "run-1",
            table.id,
            table.version,
        )
        assert table.transaction_version == 1 and table.metadata is not None
        assert (table.metadata.plan_id, table.metadata.run_id) == (plan.id, "run-1")

    def test_the_plan_that_another_driver_appended_is_not_appended_again_and_its_rows_are_counted(
        self, stage: Stage
    ) -> None:
        world, zombie = stage.world(), stage.world("run-2")
        plan, first = appended(world, {stage.logs[0]: 4})
        again, table = append(zombie, plan)
        assert again is not None and table is not None
        assert stage.rows() == [(stage.logs[0], n) for n in range(4)]
        assert (again.run_id, again.delta_version, table.version) == (
            "run-1",
            first.delta_version,
            first.delta_version,
        )
        assert again.is_recounted and counts(again) == [(4, 0)] and not again.results[0].epochs

    def test_where_the_table_holds_another_plan_of_the_number_nothing_is_appended(
        self, stage: Stage
    ) -> None:
        world, zombie = stage.world(), stage.world("run-2")
        plan = stored(world, {stage.logs[0]: 4})
        instead = another(plan, ranges=())
        world.supersede(instead, world.read_ledger())
        append(world, instead)
        applied, table = append(zombie, plan)
        assert applied is None and table is not None and table.metadata is not None
        assert table.metadata.plan_id == instead.id and stage.rows() == []

    def test_a_plan_that_later_ones_came_after_is_found_where_it_is(self, stage: Stage) -> None:
        world, zombie = stage.world(), stage.world("run-2")
        first, applied = appended(world, {stage.logs[0]: 0}, ranges=())
        world.record(first, applied)
        second = loaded(world, {stage.logs[0]: 0}, ranges=())
        again, table = append(zombie, first)
        assert again is not None and table is not None
        assert (again.number, again.delta_version) == (1, applied.delta_version)
        assert table.transaction_version == second.number == 2

    def test_an_append_that_fails_leaves_no_row_and_its_number_is_free(self, stage: Stage) -> None:
        partition, world = stage.logs[2], stage.world()
        plan = stored(world, {partition: 4}, ranges=(OffsetRange(partition, 0, 4),))
        stage.expire(partition, 2)
        with pytest.raises(ExpiredOffsets):
            append(world, plan)
        assert world.observe().table is None
        instead = another(plan, ranges=())
        world.supersede(instead, world.read_ledger())
        assert append(world, instead)[0] is not None

    def test_a_plan_for_no_table_is_not_appended_where_there_is_one_by_now(
        self, stage: Stage
    ) -> None:
        world = stage.world()
        plan = stored(world, {stage.logs[0]: 4})
        stage.replace_table()
        with pytest.raises(TableAppeared):
            append(world, plan)
        assert stage.rows() == []

    def test_a_plan_for_one_table_is_not_appended_to_another(self, stage: Stage) -> None:
        world = stage.world()
        loaded(world, {stage.logs[0]: 0}, ranges=())
        plan = stored(world, {stage.logs[0]: 4})
        stage.replace_table()
        with pytest.raises(LedgersDisagree):
            append(world, plan)
        assert stage.rows() == []

    def test_a_plan_is_counted_again_where_the_table_has_it_and_no_other_is(
        self, stage: Stage
    ) -> None:
        world = stage.world("run-2")
        plan = stored(world, {stage.logs[0]: 4})
        assert world.recount(plan) is None
        append(stage.world(), plan)
        recounted = world.recount(plan)
        assert recounted is not None and (recounted.run_id, recounted.is_recounted) == (
            "run-1",
            True,
        )
        assert counts(recounted) == [(4, 0)] and world.recount(another(plan)) is None

    def test_where_the_tables_log_forgot_the_commit_the_rows_of_today_are_counted(
        self, stage: Stage
    ) -> None:
        world = stage.world("run-2")
        plan, _ = appended(stage.world(), {stage.logs[0]: 4})
        stage.clean_up_log()
        seen = world.observe().table
        assert seen is not None and (seen.transaction_version, seen.metadata) == (1, None)
        recounted = world.recount(plan)
        assert recounted is not None and recounted.run_id is None and counts(recounted) == [(4, 0)]

    def test_the_record_of_another_plan_is_none_of_this_one_and_gives_way_to_it(
        self, stage: Stage
    ) -> None:
        world = stage.world()
        plan, applied = appended(world, {stage.logs[0]: 0}, ranges=())
        world.record(plan, replace(applied, plan_id=another(plan).id))
        assert world.read_ledger().applied is None
        world.record(plan, applied)
        assert world.read_ledger().applied == applied

    def test_what_a_plan_let_go_is_written_down_once_with_its_record_or_without(
        self, stage: Stage
    ) -> None:
        partition, world = stage.logs[0], stage.world()
        lost = Loss(partition, 0, 2, LossReason.EXPIRED)
        plan, applied = appended(world, {partition: 2}, ranges=(), lost=(lost,))
        assert stage.losses() == []
        world.record(plan, None)
        assert stage.losses() == [lost] and world.read_ledger().applied is None
        world.record(plan, applied)
        assert stage.losses() == [lost] and world.read_ledger().applied == applied
        loaded(world, {partition: 2}, ranges=())
        assert stage.losses() == [lost]

    @pytest.mark.parametrize("is_adopted", [False, True], ids=["recorded", "adopted"])
    def test_losses_are_written_down_before_the_ledger_has_the_result(
        self, stage: Stage, is_adopted: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A driver that dies in between leaves no result without its losses."""

        def die(*_: object, **__: object) -> None:
            raise ZeroDivisionError

        partition, world = stage.logs[0], stage.world()
        lost = Loss(partition, 0, 2, LossReason.EXPIRED)
        plan, applied = appended(world, {partition: 2}, ranges=(), lost=(lost,))
        monkeypatch.setattr(PlanLedger, "record_applied", die)
        monkeypatch.setattr(PlanLedger, "adopt_plan", die)
        if is_adopted:
            stage.forget()
            world.observe()
        with pytest.raises(ZeroDivisionError):
            if is_adopted:
                world.adopt(plan)
            else:
                world.record(plan, applied)
        assert stage.losses() == [lost]

    def test_a_plan_that_is_adopted_has_its_losses_written_down(self, stage: Stage) -> None:
        partition, world = stage.logs[0], stage.world()
        lost = Loss(partition, 0, 2, LossReason.MISSING)
        plan, _ = appended(world, {partition: 2}, ranges=(), lost=(lost,))
        stage.forget()
        world.observe()
        world.adopt(plan)
        assert stage.losses() == [lost]
