"""The sentences that hold for the fake world of a run, for the soak's and for the real one; each suite brings a `stage` fixture of its own.

What crash laws say of a run in memory is worth as much as the memory is like the real thing: a fake that lies fails here. Where rows are
not the question a plan has no ranges, and then the real world needs no Spark.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from etl.errors import CommitUnknown, ExpiredOffsets, LedgersDisagree, OffsetMoved, Owned, TableAppeared
from etl.model.ledger import Ledger
from etl.model.logs import Extent
from etl.model.plans import Committed, Loss, LossReason, OffsetRange
from etl.model.table import ForeignCommit
from tests.fakes.world_stage import GROUP_OWNER, SIZES, Stage, another, append, appended, counts, loaded, plan_for, stored


class WorldContract:
    """What `ingest` may rely on."""

    # -- what a run leaves behind --------------------------------------------------------------------------------------

    def test_before_anything_is_planned_there_are_logs_and_nothing_else(self, stage: Stage) -> None:
        seen = stage.world().observe()
        assert seen.extents == {log: Extent(0, size) for log, size in zip(stage.logs, SIZES, strict=True)}
        assert (seen.ledger, seen.table, seen.committed, seen.owners, seen.live_consumers) == (Ledger(), None, {}, {}, ())

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
            assert seen.ledger == Ledger("uid1", plan, applied, applied.delta_version, newest_version=0) and seen.committed == {}
            moved = world.commit(plan)
            assert other.observe().committed == moved == {a: Committed(5, 0), b: Committed(3, 0)}
            before = other.observe()
            world.tidy()
        assert other.observe() == replace(before, owners={})

    # -- store and supersede -------------------------------------------------------------------------------------------

    def test_the_same_plan_is_stored_as_often_as_anybody_likes(self, stage: Stage) -> None:
        first, second = stage.world(), stage.world("run-2")
        plan = plan_for(first, {stage.logs[0]: 5})
        second.observe()
        for world in (first, second, first):
            world.store(plan)
        assert first.read_ledger() == Ledger("uid1", plan, newest_version=0)

    def test_another_plan_of_a_number_that_is_stored_is_refused_and_what_is_there_stays(self, stage: Stage) -> None:
        first, second = stage.world(), stage.world("run-2")
        mine, theirs = plan_for(first, {stage.logs[0]: 5}), plan_for(second, {stage.logs[0]: 4})
        first.store(mine)
        with pytest.raises(Owned):
            second.store(theirs)
        assert stage.plans() == {1: mine.id}

    def test_a_plan_of_a_pipeline_that_was_named_otherwise_is_refused(self, stage: Stage) -> None:
        world = stage.world()
        plan = stored(world, {stage.logs[0]: 5})
        with pytest.raises(Owned, match="another driver named this pipeline"):
            world.store(plan_for(world, {stage.logs[0]: 5}, uid="uid2"))
        assert stage.plans() == {1: plan.id} and world.read_ledger().uid == "uid1"

    def test_a_plan_that_supersedes_another_takes_its_place_and_moves_its_version(self, stage: Stage) -> None:
        world = stage.world()
        plan = stored(world, {stage.logs[0]: 5})
        instead = another(plan)
        world.supersede(instead, world.read_ledger())
        assert world.read_ledger() == Ledger("uid1", instead, newest_version=1)
        world.supersede(another(instead), world.read_ledger())
        assert world.read_ledger().newest_version == 2

    def test_of_two_who_supersede_what_they_saw_the_second_is_refused(self, stage: Stage) -> None:
        first, second = stage.world(), stage.world("run-2")
        plan = stored(first, {stage.logs[0]: 5})
        seen = second.observe().ledger
        first.supersede(another(plan), first.observe().ledger)
        with pytest.raises(Owned):
            second.supersede(another(plan, reason="later"), seen)
        assert stage.plans() == {1: another(plan).id}

    def test_who_supersedes_by_the_plan_that_is_there_is_not_refused(self, stage: Stage) -> None:
        """As a driver does whose answer was lost."""
        world = stage.world()
        plan = stored(world, {stage.logs[0]: 5})
        seen = world.observe().ledger
        for _ in range(2):
            world.supersede(another(plan), seen)
        assert world.read_ledger() == Ledger("uid1", another(plan), newest_version=1)

    def test_where_there_is_no_plan_none_is_superseded(self, stage: Stage) -> None:
        world = stage.world()
        plan = plan_for(world, {stage.logs[0]: 5})
        with pytest.raises(LedgersDisagree, match="no plan 1 to supersede"):
            world.supersede(plan, world.read_ledger())
        world.store(plan)
        seen = world.read_ledger()
        stage.forget(1)
        with pytest.raises(Owned):
            world.supersede(another(plan), seen)
        assert stage.plans() == {}

    # -- adopt ---------------------------------------------------------------------------------------------------------

    def test_an_empty_ledger_is_written_anew_from_the_table_with_rows_that_are_counted_again(self, stage: Stage) -> None:
        world = stage.world()
        first, second = loaded(world, {stage.logs[0]: 4}), loaded(world, {stage.logs[1]: 0}, ranges=())
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

    def test_a_plan_that_the_table_has_under_the_number_of_another_is_adopted_in_its_place(self, stage: Stage) -> None:
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
        with pytest.raises(Owned, match="another driver named this pipeline"):
            world.adopt(plan)
        assert stage.plans() == {1: other.id}

    # -- append --------------------------------------------------------------------------------------------------------

    def test_an_append_puts_each_record_of_the_plan_into_the_table_once_and_says_so(self, stage: Stage) -> None:
        a, b, _ = stage.logs
        world = stage.world()
        plan = stored(world, {a: 4, b: 3})
        applied, table = append(world, plan)
        assert applied is not None and table is not None
        assert stage.rows() == [(a, n) for n in range(4)] + [(b, n) for n in range(3)]
        assert applied.is_of(plan) and not applied.is_recounted and counts(applied) == [(4, 0), (3, 0)]
        assert (applied.run_id, applied.table_id, applied.delta_version) == ("run-1", table.id, table.version)
        assert table.transaction_version == 1 and table.metadata is not None
        assert (table.metadata.plan_id, table.metadata.run_id) == (plan.id, "run-1")

    def test_the_plan_that_another_driver_appended_is_not_appended_again_and_its_rows_are_counted(self, stage: Stage) -> None:
        world, zombie = stage.world(), stage.world("run-2")
        plan, first = appended(world, {stage.logs[0]: 4})
        again, table = append(zombie, plan)
        assert again is not None and table is not None
        assert stage.rows() == [(stage.logs[0], n) for n in range(4)]
        assert (again.run_id, again.delta_version, table.version) == ("run-1", first.delta_version, first.delta_version)
        assert again.is_recounted and counts(again) == [(4, 0)] and not again.receipts[0].epochs

    def test_where_the_table_holds_another_plan_of_the_number_nothing_is_appended(self, stage: Stage) -> None:
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
        log, world = stage.logs[2], stage.world()
        plan = stored(world, {log: 4}, ranges=(OffsetRange(log, 0, 4),))
        stage.expire(log, 2)
        with pytest.raises(ExpiredOffsets):
            append(world, plan)
        assert world.observe().table is None
        instead = another(plan, ranges=())
        world.supersede(instead, world.read_ledger())
        assert append(world, instead)[0] is not None

    def test_a_plan_for_no_table_is_not_appended_where_there_is_one_by_now(self, stage: Stage) -> None:
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

    # -- recount and record --------------------------------------------------------------------------------------------

    def test_a_plan_is_counted_again_where_the_table_has_it_and_no_other_is(self, stage: Stage) -> None:
        world = stage.world("run-2")
        plan = stored(world, {stage.logs[0]: 4})
        assert world.recount(plan) is None
        append(stage.world(), plan)
        recounted = world.recount(plan)
        assert recounted is not None and (recounted.run_id, recounted.is_recounted) == ("run-1", True)
        assert counts(recounted) == [(4, 0)] and world.recount(another(plan)) is None

    def test_where_the_tables_log_forgot_the_commit_the_rows_of_today_are_counted(self, stage: Stage) -> None:
        world = stage.world("run-2")
        plan, _ = appended(stage.world(), {stage.logs[0]: 4})
        stage.clean_up_log()
        seen = world.observe().table
        assert seen is not None and (seen.transaction_version, seen.metadata) == (1, None)
        recounted = world.recount(plan)
        assert recounted is not None and recounted.run_id is None and counts(recounted) == [(4, 0)]

    def test_a_record_stays_unless_the_run_whose_append_it_was_knows_more(self, stage: Stage) -> None:
        world, other = stage.world(), stage.world("run-2")
        plan, known = appended(world, {stage.logs[0]: 4})
        counted = other.recount(plan)
        for record in (counted, known, counted):
            world.record(plan, record)
        assert world.read_ledger().applied == known

    def test_the_record_of_another_plan_is_none_of_this_one_and_gives_way_to_it(self, stage: Stage) -> None:
        world = stage.world()
        plan, applied = appended(world, {stage.logs[0]: 0}, ranges=())
        world.record(plan, replace(applied, plan_id=another(plan).id))
        assert world.read_ledger().applied is None
        world.record(plan, applied)
        assert world.read_ledger().applied == applied

    def test_what_a_plan_let_go_is_written_down_once_with_its_record_or_without(self, stage: Stage) -> None:
        log, world = stage.logs[0], stage.world()
        lost = Loss(log, 0, 2, LossReason.EXPIRED)
        plan, applied = appended(world, {log: 2}, ranges=(), losses=(lost,))
        assert stage.losses() == []
        world.record(plan, None)
        assert stage.losses() == [lost] and world.read_ledger().applied is None
        world.record(plan, applied)
        assert stage.losses() == [lost] and world.read_ledger().applied == applied
        loaded(world, {log: 2}, ranges=())
        assert stage.losses() == [lost]

    def test_a_plan_that_is_adopted_has_its_losses_written_down(self, stage: Stage) -> None:
        log, world = stage.logs[0], stage.world()
        lost = Loss(log, 0, 2, LossReason.MISSING)
        plan, _ = appended(world, {log: 2}, ranges=(), losses=(lost,))
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

    # -- commit --------------------------------------------------------------------------------------------------------

    def test_offsets_move_from_what_the_plan_saw_to_its_positions(self, stage: Stage) -> None:
        a, b, c = stage.logs
        world = stage.world()
        stage.move_offset(a, 1)
        stage.move_offset(b, 3)
        plan = plan_for(world, {a: 5, b: 3, c: 2})
        assert plan.seen == {a: Committed(1, 0), b: Committed(3, 0), c: Committed()}
        assert world.commit(plan) == {a: Committed(5, 1), c: Committed(2, 0)}
        assert world.observe().committed == {a: Committed(5, 1), b: Committed(3, 0), c: Committed(2, 0)}

    def test_of_some_logs_only_where_they_are_named(self, stage: Stage) -> None:
        a, b, _ = stage.logs
        world = stage.world()
        plan = plan_for(world, {a: 5, b: 3})
        assert world.commit(plan, [b]) == world.observe().committed == {b: Committed(3, 0)}
        assert world.commit(plan, []) == {}

    def test_what_is_committed_is_committed_once(self, stage: Stage) -> None:
        a, b, _ = stage.logs
        world, zombie = stage.world(), stage.world("run-2")
        plan = plan_for(world, {a: 5, b: 3})
        assert world.commit(plan) == zombie.commit(plan) == world.observe().committed == {a: Committed(5, 0), b: Committed(3, 0)}

    def test_where_another_client_moved_one_offset_none_of_the_request_moves(self, stage: Stage) -> None:
        a, b, _ = stage.logs
        world = stage.world()
        plan = stored(world, {a: 5, b: 3})
        stage.move_offset(b, 1)
        with pytest.raises(OffsetMoved):
            world.commit(plan)
        assert world.observe().committed == {b: Committed(1, 0)}

    def test_an_offset_that_was_moved_and_moved_back_was_moved(self, stage: Stage) -> None:
        log, world = stage.logs[0], stage.world()
        stage.move_offset(log, 1)
        plan = stored(world, {log: 5})
        stage.move_offset(log, 4)
        stage.move_offset(log, 1)
        with pytest.raises(OffsetMoved):
            world.commit(plan)
        assert world.observe().committed == {log: Committed(1, 2)}

    def test_where_a_part_is_committed_the_rest_is_not_said_to_be(self, stage: Stage) -> None:
        a, b, _ = stage.logs
        world = stage.world()
        plan = plan_for(world, {a: 5, b: 3})
        world.commit(plan, [a])
        with pytest.raises(CommitUnknown):
            world.commit(plan)
        assert world.observe().committed == {a: Committed(5, 0)}

    def test_a_driver_that_was_overtaken_by_another_of_the_pipeline_is_told_so(self, stage: Stage) -> None:
        log, world, zombie = stage.logs[0], stage.world(), stage.world("run-2")
        plan = loaded(world, {log: 0}, ranges=(), positions={log: 1})
        loaded(world, {log: 0}, ranges=(), positions={log: 2})
        zombie.observe()
        with pytest.raises(Owned, match="another driver went on to plan 2"):
            zombie.commit(plan)
        assert world.observe().committed == {log: Committed(2, 1)}

    def test_a_plan_that_moves_no_offsets_moves_none(self, stage: Stage) -> None:
        world = stage.world()
        assert world.commit(plan_for(world, {stage.logs[0]: 5}, moves_offsets=False)) == {}
        assert world.observe().committed == {}

    # -- claims --------------------------------------------------------------------------------------------------------

    def test_where_another_consumer_owns_one_log_none_is_claimed(self, stage: Stage) -> None:
        a, b, _ = stage.logs
        world = stage.world()
        plan = plan_for(world, {a: 5, b: 3})
        stage.own(b)
        with pytest.raises(Owned, match=GROUP_OWNER), world.claiming(plan):
            pytest.fail("it is owned")
        assert list(world.observe().owners) == [b]

    def test_claims_are_given_back_when_the_run_fails(self, stage: Stage) -> None:
        world = stage.world()
        with pytest.raises(ZeroDivisionError), world.claiming(plan_for(world, {stage.logs[0]: 5})):
            1 / 0  # noqa: B018
        assert world.observe().owners == {}
