"""What `etl verify` reports about the other pipelines of its table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from etl.audit.compare_rows import AuditedPartition, Expected, PartitionFindings, Unequal
from etl.commands import verify
from etl.commands.verify import reject_topics_loaded_by_others, stops_a_run, without_others
from etl.errors import LedgersDisagree
from etl.model.partitions import TopicPartition
from etl.model.plans import Plan, Predecessor
from etl.model.snapshot import (
    FirstRun,
    ForeignCommit,
    Ledger,
    OtherPipeline,
    Retirement,
    Snapshot,
    Table,
    UpToDate,
)
from tests.fakes.stories import (
    ENDED,
    OLD,
    SETTINGS,
    loaded_by_another,
    old_pipeline,
    outside_of,
    run,
    snapshot_of,
)

AUDITED = AuditedPartition(TopicPartition("clicks", 0))
RETIRED = Ledger("u", retired=Retirement("taken over", 1, "new/clicks"))
BEYOND = PartitionFindings(AUDITED, 5, 9, unexpected=4, unexpected_first=(5, 6))
TABLE = Table("t", 3, 2)
THEIRS = ForeignCommit(4, "WRITE", "took over topic clicks", Predecessor(OLD, 4))


@dataclass
class World:
    """The few services that this test needs; `observed` counts the observations of brokers."""

    snapshot: Any = None
    settings: Any = SETTINGS
    app_id: str = "offset-range-etl/cluster-1/group/clicks"
    observed: int = 0

    def observe(self) -> Snapshot:
        self.observed += 1
        found: Snapshot = self.snapshot
        return found


@pytest.fixture(autouse=True)
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "other_pipelines", lambda path, app_id: (old_pipeline(),))


def judged(
    ledger: Ledger, found: PartitionFindings, table: Table = TABLE
) -> tuple[PartitionFindings, int]:
    world: Any = World()
    (one,), rows = without_others(world, ledger, table, {AUDITED: Expected()}, (found,))
    return one, rows


def test_rows_after_those_of_an_inherited_pipeline_are_its_successors() -> None:
    found, rows = judged(RETIRED, BEYOND)
    assert (found.is_right, rows) == (True, 4)
    assert not stops_a_run(THEIRS, RETIRED) and stops_a_run(replace(THEIRS, by=None), RETIRED)


def test_double_rows_of_an_inherited_pipeline_are_reported_too() -> None:
    assert not judged(RETIRED, replace(BEYOND, double_rows=1))[0].is_right
    unequal = replace(BEYOND, unequal=(Unequal(0, 5, 3, 5),), unexpected=6)
    assert judged(RETIRED, unequal)[0].unexpected == 2


def test_unplanned_rows_of_an_active_pipeline_are_unexpected_though_another_knows_the_topic() -> (
    None
):
    assert judged(Ledger("u"), BEYOND) == (BEYOND, 0)
    assert judged(Ledger("u"), BEYOND, replace(TABLE, foreign=(THEIRS,)))[0].is_right, (
        "`stops_a_run` judges the commits of other writers"
    )
    assert stops_a_run(THEIRS, Ledger("u"))


def test_a_pipeline_without_loads_is_rejected_as_by_a_run_if_another_loaded_its_topic() -> None:
    world = World(snapshot_of(loaded_by_another(6, 6, 6)))
    with pytest.raises(LedgersDisagree) as caught:
        reject_topics_loaded_by_others(world, FirstRun(), TABLE, Ledger())  # type: ignore[arg-type]
    with pytest.raises(LedgersDisagree) as at_run:
        run(loaded_by_another(6, 6, 6))
    assert caught.value.message == at_run.value.message
    assert caught.value.action == at_run.value.action
    assert caught.value.exit_code == 5


def test_brokers_are_not_contacted_if_every_topic_of_others_is_known_or_not_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside = outside_of(5, 3, 4)
    run(outside)
    plan = outside.newest_plan()
    assert isinstance(plan, Plan)
    heir = replace(plan, predecessors=(Predecessor(OLD, 4),))
    for ours, theirs in (
        (plan, old_pipeline(ENDED)),
        (plan, old_pipeline({TopicPartition("orders", 0): 7})),
        (heir, OtherPipeline(OLD, 4)),
    ):
        monkeypatch.setattr(verify, "other_pipelines", lambda path, app_id, one=theirs: (one,))
        state, world = UpToDate(ours, ours.loaded_until), World()
        reject_topics_loaded_by_others(world, state, TABLE, Ledger("u", ours))  # type: ignore[arg-type]
        assert world.observed == 0
