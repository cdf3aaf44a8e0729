"""The sentences of `world_contract` on claims: who begins a backfill, closes it, or claims for the
live pipeline, is alone at that.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from etl.errors import NeedsDecision, Owned
from etl.ledger.plan_document import with_id
from etl.model.plans import Plan, PlanKind
from etl.model.snapshot import Claimed, Ledger, Reservation, ReservationState
from etl.run.service_interfaces import Services
from tests.fakes.world_stage import Stage, another, append, loaded, plan_for, stored


def claim_of(stage: Stage, start: int = 0, until: int = 2, name: str = "old") -> Reservation:
    return Reservation(name, {stage.logs[0]: ((start, until),)}, {}, "from 0 until 2", 5)


def first_plan(world: Services, stage: Stage, uid: str = "uid2") -> Plan:
    """Plan 1 of a backfill, which reads nothing."""
    changes = {
        "kind": PlanKind.BACKFILL,
        "number": 1,
        "uid": uid,
        "previous": None,
        "moves_offsets": False,
    }
    logs = {stage.logs[0]: 0}
    plan = plan_for(world, logs, ranges=(), positions=logs, **changes)
    return with_id(replace(plan, table=replace(plan.table, transaction_version=0)))


class BackfillContract:
    """What a run may rely on of the fence and of claims."""

    def test_a_claim_and_its_first_plan_are_there_together_for_all_to_see(
        self, stage: Stage
    ) -> None:
        live, own = stage.world(), stage.backfill("old")
        loaded(live, {stage.logs[0]: 3}, ranges=())
        seen = live.observe()
        assert list(seen.claims) == [] and own.claim() is None and seen.backfill is None
        claim, plan = claim_of(stage), first_plan(live, stage)
        live.begin_backfill(claim, plan)
        assert list(live.observe().claims) == [claim] and own.claim() == Claimed(claim, 0)
        seen = own.observe()
        assert (seen.backfill, seen.ledger) == (claim, Ledger("uid2", plan, newest_version=0))
        assert seen.live_epochs == {stage.logs[0]: 0}
        assert list(seen.extents) == [stage.logs[0]] and (
            seen.committed,
            seen.owners,
            list(seen.claims),
        ) == ({}, {}, [])

    def test_a_backfill_is_closed_and_settled_by_an_observation_without_brokers(
        self, stage: Stage
    ) -> None:
        own, plan = begun(stage)
        append(own, plan)
        known, seen = own.observe(), own.observe_ledgers()
        assert (seen.backfill, seen.ledger, seen.table, seen.live_epochs) == (
            known.backfill,
            known.ledger,
            known.table,
            known.live_epochs,
        )
        assert (seen.extents, seen.committed, seen.owners, list(seen.claims)) == ({}, {}, {}, [])
        closed = replace(claim_of(stage), state=ReservationState.CLOSING, reason="no")
        own.close_backfill(closed, another(plan), seen.ledger)
        own.observe_ledgers()
        own.settle_backfill(replace(closed, state=ReservationState.GIVEN_UP, stretches={}))
        assert own.claim() == Claimed(
            replace(closed, state=ReservationState.GIVEN_UP, stretches={}), 2
        )

    def test_of_two_who_claim_by_the_same_look_the_second_is_refused_and_has_stored_nothing(
        self, stage: Stage
    ) -> None:
        first, second = stage.world(), stage.world("run-2")
        loaded(first, {stage.logs[0]: 3}, ranges=())
        plan = first_plan(first, stage)
        second.observe()
        first.begin_backfill(claim_of(stage), plan)
        with pytest.raises(Owned):
            second.begin_backfill(claim_of(stage, 1, 3, "new"), first_plan_of(plan, "uid3"))
        assert (
            stage.backfill("new").claim() is None
            and stage.backfill("new").read_ledger().newest is None
        )

    def test_an_observation_from_before_the_pipeline_began_a_log_reserves_nothing(
        self, stage: Stage
    ) -> None:
        live, other = stage.world(), stage.world("run-2")
        loaded(live, {stage.logs[0]: 3}, ranges=())
        plan = first_plan(other, stage)
        stored(live, {stage.logs[1]: 0}, ranges=())
        with pytest.raises(Owned):
            other.begin_backfill(claim_of(stage), plan)

    def test_a_continuing_plan_reserves_nothing_and_a_restarted_one_uses_its_own_observation(
        self, stage: Stage
    ) -> None:
        live, other = stage.world(), stage.world("run-2")
        loaded(live, {stage.logs[0]: 3}, ranges=())
        claiming = first_plan(other, stage)
        stored(live, {stage.logs[0]: 4}, ranges=())
        begins = plan_for(live, {stage.logs[1]: 0}, ranges=())
        other.begin_backfill(claim_of(stage), claiming)
        with pytest.raises(Owned):
            live.store(begins)
        assert 3 not in stage.plans()
        stored(live, {stage.logs[1]: 0}, ranges=())

    @pytest.mark.parametrize("is_replay_first", [True, False])
    def test_a_replay_claims_what_it_reads_by_its_own_look(
        self, stage: Stage, is_replay_first: bool
    ) -> None:
        live, other = stage.world(), stage.world("run-2")
        loaded(live, {stage.logs[0]: 3}, ranges=())
        claiming = first_plan(other, stage)
        again = plan_for(live, {stage.logs[0]: 3}, kind=PlanKind.REPLAY)
        if is_replay_first:
            live.store(again)
            with pytest.raises(Owned):
                other.begin_backfill(claim_of(stage), claiming)
        else:
            other.begin_backfill(claim_of(stage), claiming)
            with pytest.raises(Owned):
                live.store(again)
            assert 2 not in stage.plans()

    def test_a_plan_that_begins_where_a_backfill_claims_is_not_stored(self, stage: Stage) -> None:
        live = stage.world()
        loaded(live, {stage.logs[0]: 3}, ranges=())
        live.begin_backfill(claim_of(stage), first_plan(live, stage))
        with pytest.raises(NeedsDecision, match="backfill old has reserved offsets 1 to 2"):
            stored(live, {stage.logs[0]: 1}, ranges=())
        assert sorted(stage.plans()) == [1]
        stored(live, {stage.logs[0]: 2}, ranges=())

    def test_another_plan_takes_the_place_of_one_that_claimed_by_the_same_look(
        self, stage: Stage
    ) -> None:
        live = stage.world()
        plan = stored(live, {stage.logs[0]: 3}, ranges=())
        live.supersede(another(plan), live.read_ledger())
        assert live.read_ledger().newest == another(plan)

    def test_a_plan_of_a_backfill_is_stored_at_the_claim_that_was_seen_and_moves_it(
        self, stage: Stage
    ) -> None:
        own, plan = begun(stage)
        own.supersede(another(plan), own.observe().ledger)
        own.supersede(another(plan, reason="once more"), own.read_ledger())
        assert own.claim() == Claimed(claim_of(stage), 2)

    def test_a_backfill_closed_since_the_observation_accepts_no_plan(self, stage: Stage) -> None:
        own, plan = begun(stage)
        append(own, plan)
        forgotten = stage.backfill("old", "run-2")
        following = plan_for(
            forgotten, {stage.logs[0]: 0}, ranges=(), kind=PlanKind.BACKFILL, moves_offsets=False
        )
        ledger = own.observe().ledger
        closing, closed = (
            another(plan),
            replace(claim_of(stage), state=ReservationState.CLOSING, reason="no"),
        )
        own.close_backfill(closed, closing, ledger)
        assert own.claim() == Claimed(closed, 1) and own.read_ledger().newest == closing
        with pytest.raises(Owned):
            forgotten.store(following)
        with pytest.raises(Owned):
            forgotten.close_backfill(closed, following, own.read_ledger())
        assert own.read_ledger().newest == closing

    def test_a_claim_is_settled_once_by_one_look(self, stage: Stage) -> None:
        own, other = begun(stage)[0], stage.backfill("old", "run-2")
        own.observe()
        other.observe()
        settled = replace(claim_of(stage), state=ReservationState.GIVEN_UP, stretches={})
        own.settle_backfill(settled)
        with pytest.raises(Owned):
            other.settle_backfill(settled)
        assert own.claim() == Claimed(settled, 1)


def first_plan_of(plan: Plan, uid: str) -> Plan:
    """The same of another backfill."""
    return another(plan, uid=uid, supersedes=None, reason=None)


def begun(stage: Stage) -> tuple[Services, Plan]:
    """A backfill, and its first plan."""
    live = stage.world()
    loaded(live, {stage.logs[0]: 3}, ranges=())
    plan = first_plan(live, stage)
    live.begin_backfill(claim_of(stage), plan)
    return stage.backfill("old"), plan
