"""The laws of `world_contract` for run keys: a run with a key gets the ledger's record of it."""

from __future__ import annotations

import pytest

from etl.errors import Owned
from etl.model.plans import Request, RunKeyRecord
from etl.model.snapshot import ResolvedRequest
from tests.fakes.world_stage import Stage, plan_for, stored

K = Request("2026-01-31T00")


class RunKeyContract:
    """What a run may rely on for keys of earlier runs."""

    def test_of_an_unused_key_the_ledger_has_nothing(self, stage: Stage) -> None:
        stored(stage.world(), {stage.logs[0]: 2}, run_key="another")
        assert stage.world("run-2", K).observe().request == ResolvedRequest(K)
        assert stage.world("run-2").observe().request is None

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

    def test_a_key_without_records_is_kept_however_often_it_is_repeated(self, stage: Stage) -> None:
        world, key = (
            stage.world("run-1", K),
            RunKeyRecord("2026-01-31T00", 0, "until T", is_empty=True),
        )
        for _ in range(2):
            world.remember(key, after=0)
            assert world.observe().request == ResolvedRequest(K, key)

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
