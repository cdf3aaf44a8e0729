"""The sentences of `world_contract` on the table: append, recount, record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from etl.errors import ExpiredOffsets, LedgersDisagree, TableAppeared
from etl.model.plans import Loss, LossReason, OffsetRange
from etl.model.snapshot import ForeignCommit
from tests.fakes.world_stage import Stage, another, append, appended, counts, loaded, stored


class TableContract:
    """What a run may rely on of appends, of counting them again, and of the records of both."""

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

    # -- append
    # ----------------------------------------------------------------------------------------------

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

    # -- recount and record
    # --------------------------------------------------------------------------------------------

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

    def test_a_result_is_replaced_only_by_a_more_exact_one_of_the_run_that_appended(
        self, stage: Stage
    ) -> None:
        world, other = stage.world(), stage.world("run-2")
        plan, known = appended(world, {stage.logs[0]: 4})
        counted = other.recount(plan)
        for record in (counted, known, counted):
            world.record(plan, record)
        assert world.read_ledger().applied == known

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

    def test_a_plan_that_is_adopted_has_its_losses_written_down(self, stage: Stage) -> None:
        partition, world = stage.logs[0], stage.world()
        lost = Loss(partition, 0, 2, LossReason.MISSING)
        plan, _ = appended(world, {partition: 2}, ranges=(), lost=(lost,))
        stage.forget()
        world.observe()
        world.adopt(plan)
        assert stage.losses() == [lost]

    def test_what_others_removed_is_kept_once(self, stage: Stage) -> None:
        world, found = stage.world(), ForeignCommit(2, "DELETE", "removed rows")
        stored(world, {stage.logs[0]: 5})
        for _ in range(2):
            world.note_removals([found])
        assert stage.removals() == [found]
