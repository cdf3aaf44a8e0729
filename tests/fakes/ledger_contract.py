"""The sentences of `world_contract` on plans: store, supersede, adopt."""

from __future__ import annotations

import pytest

from etl.errors import LedgersDisagree, Owned
from etl.model.snapshot import Ledger
from tests.fakes.world_stage import Stage, another, append, counts, loaded, plan_for, stored


class LedgerContract:
    """What a run may rely on of the plans in ZooKeeper, and of writing them anew from the table."""

    # -- store and supersede
    # -------------------------------------------------------------------------------------------

    def test_the_same_plan_is_stored_as_often_as_anybody_likes(self, stage: Stage) -> None:
        first, second = stage.world(), stage.world("run-2")
        plan = plan_for(first, {stage.logs[0]: 5})
        second.observe()
        for world in (first, second, first):
            world.store(plan)
        assert first.read_ledger() == Ledger("uid1", plan, newest_version=0)

    def test_another_plan_of_a_stored_number_is_rejected_and_the_stored_one_stays(
        self, stage: Stage
    ) -> None:
        first, second = stage.world(), stage.world("run-2")
        mine, theirs = plan_for(first, {stage.logs[0]: 5}), plan_for(second, {stage.logs[0]: 4})
        first.store(mine)
        with pytest.raises(Owned):
            second.store(theirs)
        assert stage.plans() == {1: mine.id}

    def test_a_plan_of_a_pipeline_that_was_named_otherwise_is_refused(self, stage: Stage) -> None:
        world = stage.world()
        plan = stored(world, {stage.logs[0]: 5})
        with pytest.raises(Owned, match="Another driver named this pipeline"):
            world.store(plan_for(world, {stage.logs[0]: 5}, uid="uid2"))
        assert stage.plans() == {1: plan.id} and world.read_ledger().uid == "uid1"

    def test_a_plan_that_supersedes_another_takes_its_place_and_moves_its_version(
        self, stage: Stage
    ) -> None:
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

    # -- adopt
    # ----------------------------------------------------------------------------------------------

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
