"""The sentences of `world_contract` on offsets and owners: commit, claims."""

from __future__ import annotations

import pytest

from etl.errors import CommitUnknown, OffsetMoved, Owned
from etl.model.partitions import Committed
from tests.fakes.world_stage import GROUP_OWNER, Stage, loaded, plan_for, stored


class OffsetsContract:
    """What a run may rely on of moving offsets and of claiming logs."""

    # -- commit
    # ----------------------------------------------------------------------------------------------

    def test_offsets_move_from_what_the_plan_saw_to_its_positions(self, stage: Stage) -> None:
        a, b, c = stage.logs
        world = stage.world()
        stage.move_offset(a, 1)
        stage.move_offset(b, 3)
        plan = plan_for(world, {a: 5, b: 3, c: 2})
        assert plan.expected_commits == {a: Committed(1, 0), b: Committed(3, 0), c: Committed()}
        assert world.commit(plan) == {a: Committed(5, 1), c: Committed(2, 0)}
        assert world.observe().committed == {
            a: Committed(5, 1),
            b: Committed(3, 0),
            c: Committed(2, 0),
        }

    def test_of_some_logs_only_where_they_are_named(self, stage: Stage) -> None:
        a, b, _ = stage.logs
        world = stage.world()
        plan = plan_for(world, {a: 5, b: 3})
        assert world.commit(plan, [b]) == world.observe().committed == {b: Committed(3, 0)}
        assert world.commit(plan, []) == {}

    def test_offsets_are_committed_once(self, stage: Stage) -> None:
        a, b, _ = stage.logs
        world, zombie = stage.world(), stage.world("run-2")
        plan = plan_for(world, {a: 5, b: 3})
        assert (
            world.commit(plan)
            == zombie.commit(plan)
            == world.observe().committed
            == {a: Committed(5, 0), b: Committed(3, 0)}
        )

    def test_where_another_client_moved_one_offset_none_of_the_request_moves(
        self, stage: Stage
    ) -> None:
        a, b, _ = stage.logs
        world = stage.world()
        plan = stored(world, {a: 5, b: 3})
        stage.move_offset(b, 1)
        with pytest.raises(OffsetMoved):
            world.commit(plan)
        assert world.observe().committed == {b: Committed(1, 0)}

    def test_an_offset_that_was_moved_and_moved_back_was_moved(self, stage: Stage) -> None:
        partition, world = stage.logs[0], stage.world()
        stage.move_offset(partition, 1)
        plan = stored(world, {partition: 5})
        stage.move_offset(partition, 4)
        stage.move_offset(partition, 1)
        with pytest.raises(OffsetMoved):
            world.commit(plan)
        assert world.observe().committed == {partition: Committed(1, 2)}

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

    # -- claims
    # ----------------------------------------------------------------------------------------------

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
