"""What the real world of a run makes of an append, without servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from etl.errors import SettingsError
from etl.io.delta import loaded_plans, recover_results
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger import plan_document
from etl.model.partitions import TopicPartition
from etl.model.plans import Loss, LossReason, OffsetRange, Plan, RangeResult
from etl.model.snapshot import CommitMetadata, Ledger, Table
from etl.run import live_services
from etl.run.live_services import LiveServices
from etl.run.read_rows import Following
from etl.run.run_context import RunContext
from tests.builders import plain_plan, plain_settings, plain_snapshot

READ, COUNTED = RangeResult(9, 100), RangeResult(8, None, missing_offsets=2)
LOG = TopicPartition("clicks", 0)
PLAN = plain_plan(ranges=(OffsetRange(LOG, 0, 10),), loaded_until={LOG: 10}, id="plan-1")


def reading_of(plan_id: str) -> Following:
    """A reading that gave its range results."""
    reading = Following(plan_id, PLAN.ranges, [(0,)])
    reading.results = cast(Any, SimpleNamespace(in_order=lambda count: (READ,) * count))
    return reading


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> LiveServices:
    world = LiveServices(plain_settings(), ZooKeeper("127.0.0.1:1"), RunContext(), "run-1")
    world._reading = reading_of(PLAN.id)
    monkeypatch.setattr(
        recover_results, "recount", lambda *arguments, **more: recover_results.Recount((COUNTED,))
    )
    return world


@pytest.mark.parametrize(
    "store",
    [
        lambda world: world.store(PLAN),
        lambda world: world.supersede(PLAN, Ledger(newest_version=0)),
    ],
)
def test_a_plan_that_no_commit_can_carry_is_refused_before_anything_is_stored(
    world: LiveServices,
    store: Callable[[LiveServices], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ZooKeeper is not there: whatever were written to it would end the test in another way."""
    monkeypatch.setattr(plan_document, "METADATA_MAX_BYTES", 10)
    monkeypatch.setattr(plan_document, "METADATA_FULL_BYTES", 10)
    with pytest.raises(SettingsError, match="commit metadata"):
        store(world)


DAY_MS = 86_400_000
YESTERDAY, TODAY = (
    replace(PLAN, origin=replace(PLAN.origin, created_at_ms=DAY_MS + 1)),
    replace(PLAN, origin=replace(PLAN.origin, created_at_ms=2 * DAY_MS + 1)),
)
LOST = (Loss(LOG, 3, 5, LossReason.EXPIRED),)
LOSING = replace(TODAY, losses=replace(TODAY.losses, lost=LOST))


@pytest.fixture
def probed(world: LiveServices, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The last part of each path that was probed."""
    found: list[str] = []
    monkeypatch.setattr(live_services, "now_ms", lambda: 2 * DAY_MS + 2)
    monkeypatch.setattr(
        live_services,
        "require_exclusive_create",
        lambda path: found.append(path.rpartition("/")[2]),
    )
    return found


@pytest.mark.parametrize(
    ("newest", "plan", "places"),
    [
        (None, TODAY, ["clicks"]),
        (YESTERDAY, TODAY, ["clicks"]),
        (TODAY, TODAY, []),
        (None, LOSING, ["clicks", "clicks_losses"]),
        (TODAY, LOSING, ["clicks_losses"]),
        (LOSING, LOSING, []),
        (
            replace(YESTERDAY, losses=replace(YESTERDAY.losses, lost=LOST)),
            LOSING,
            ["clicks", "clicks_losses"],
        ),
    ],
)
def test_each_table_is_probed_once_a_day_before_a_plan_is_stored(
    world: LiveServices,
    probed: list[str],
    newest: Plan | None,
    plan: Plan,
    places: list[str],
) -> None:
    world._seen_ledger = Ledger("u", newest)
    for _ in range(2):
        world.reject_unwritable(plan)
    assert probed == places


@pytest.mark.parametrize(("plan", "places"), [(YESTERDAY, ["clicks"]), (TODAY, [])])
def test_a_plan_that_was_left_is_probed_for_where_it_is_of_another_day(
    world: LiveServices,
    probed: list[str],
    plan: Plan,
    places: list[str],
) -> None:
    world.fetch(replace(plan, ranges=()), plain_snapshot({}))
    assert probed == places


def outcome_by(run_id: str | None, plan_id: str = PLAN.id) -> loaded_plans.Outcome:
    metadata = CommitMetadata(4, "app", "u", 1, plan_id, run_id=run_id)
    return loaded_plans.Outcome(loaded_plans.Result.APPLIED, metadata, Table("t", 4, 1, metadata))


def test_the_range_results_of_an_append_are_those_of_the_run_that_appended(
    world: LiveServices,
) -> None:
    assert world._applied(PLAN, outcome_by("run-1")).results == (READ,)


@pytest.mark.parametrize("run_id", ["run-2", None])
def test_results_read_next_to_another_runs_append_are_not_those_in_the_table(
    world: LiveServices, run_id: str | None
) -> None:
    """Compaction may lie between two drivers' readings of one plan."""
    applied = world._applied(PLAN, outcome_by(run_id))
    assert (applied.results, applied.run_id) == ((COUNTED,), run_id)


def test_results_read_for_another_plan_are_not_those_of_this_one(world: LiveServices) -> None:
    world._reading = reading_of("plan-0")
    assert world._applied(PLAN, outcome_by("run-1")).results == (COUNTED,)
