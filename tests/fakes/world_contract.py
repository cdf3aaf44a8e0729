"""The laws that hold for the services of a run in memory and for the real ones; each suite has a
`stage` fixture of its own.

Both use the real ledger, offsets and owners, whose own laws are in tests/system/test_ledger.py,
test_zookeeper_group_offsets.py and test_owners.py. Here are those of what differs: the table, and
how a call of a run becomes calls of these classes. Where rows do not matter a plan has no ranges,
and then the real services need no Spark.
"""

from __future__ import annotations

import pytest

from etl.errors import CommitUnknown, LedgersDisagree, Owned
from etl.model.partitions import Committed, PartitionOffsets
from etl.model.plans import Request, RunKeyRecord
from etl.model.snapshot import Ledger, ResolvedRequest
from tests.builders import with_facts
from tests.fakes.table_contract import TableContract
from tests.fakes.world_stage import (
    GROUP_OWNER,
    SIZES,
    Stage,
    another,
    append,
    counts,
    loaded,
    plan_for,
    stored,
)

K = Request("2026-01-31T00")


class WorldContract(TableContract):
    """What `ingest` may rely on."""

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
