"""Backfills of a pipeline on the fake cluster: begun, loaded, given up."""

from __future__ import annotations

import contextlib
from typing import Any

from etl.decide.backfill import BackfillRequest, left_to_runs, unloaded_of, without
from etl.decide.offsets import starts_of
from etl.decide.table_changes import acknowledging, is_told
from etl.io.zookeeper.ledger_side_documents import BackfillStore, read_all_loaded_intervals
from etl.model.partitions import TopicPartition, parse_named
from etl.model.plans import CommitResult
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from etl.run.backfill import BegunBackfill, Turn, backfill
from etl.settings.load import settings_of_backfill
from etl.settings.sections import Settings
from tests.fakes import fake_table
from tests.fakes.outside import Outside
from tests.fakes.stories import At, grow, new_report, outcomes, outside_of, run, settings_of
from tests.fakes.world import Crash, FakeWorld, When

CAPPED = settings_of(starting_offsets="latest", limits={"max_records_per_plan": 4})
"""The live pipeline begins at the ends, and no plan has more than four offsets."""


def backfill_request(
    from_: Any = 0,
    until: Any = 5,
    *names: str,
    only_retained: bool = False,
    only_missing: bool = False,
) -> BackfillRequest:
    named = tuple(map(parse_named, names))
    return BackfillRequest(
        named,
        from_,
        until,
        only_retained,
        f"from {from_} until {until} {names} {only_missing}",
        only_missing,
    )


def live(*ends: int, settings: Settings = CAPPED) -> Outside:
    """A pipeline that began at these ends, and has loaded two offsets more of each."""
    outside = outside_of(*ends)
    run(outside, settings)
    grow(outside, *(2 for _ in range(3)))
    run(outside, settings)
    while outcomes(run(outside, settings)) != [Outcome.UP_TO_DATE]:
        pass
    return outside


def nothing(step: str, when: When) -> None:
    del step, when


def filled(
    outside: Outside,
    what: BackfillRequest | None = backfill_request(),
    at: At = nothing,
    *,
    name: str = "old",
    settings: Settings = CAPPED,
    report: Report | None = None,
    run_id: str = "run-1",
    reads_first: bool = False,
    turn: Turn = contextlib.nullcontext,
    begun: BegunBackfill | None = None,
) -> Report:
    own = settings_of_backfill(settings, name)
    world = FakeWorld(outside, own, at, run_id=run_id, reads_first=reads_first)
    report = report or new_report()
    backfill(world, own, report, name, what, turn, begun)
    return report


def left(outside: Outside, name: str = "old") -> dict[TopicPartition, tuple[tuple[int, int], ...]]:
    requested, newest = BackfillStore(outside.ledger).read(name), outside.newest_plan()
    assert requested and newest
    unloaded = unloaded_of(requested, read_all_loaded_intervals(outside.ledger))
    of_runs = left_to_runs(requested, unloaded, starts_of(newest), newest.incarnations)
    return dict(without(unloaded, of_runs))


def accept_table(outside: Outside, *, settings: Settings = CAPPED) -> None:
    """The decision of `etl table accept-changes` on the present table."""
    ledger, table = outside.ledger.read_ledger(), fake_table.read_table(outside)
    assert ledger.newest
    lacks_plan = False
    if not is_told(ledger, table):
        found = fake_table.results_from_table(outside, ledger.newest)
        lacks_plan = not any(one.rows for one in found)
        if table and not lacks_plan:
            outside.ledger.record_applied(
                CommitResult(
                    ledger.newest.number, ledger.newest.id, table.version, table.id, tuple(found)
                )
            )
    outside.acknowledged = acknowledging(
        ledger,
        ledger.newest,
        table,
        reason="seen",
        at_ms=outside.now_ms,
        lacks_plan=lacks_plan,
        commit=None,
        place=settings.table.place,
    )


def stored() -> Outside:
    """Two plans of it are in the table, and its driver died when the third one was stored."""
    outside, plans = live(3, 3, 3), list[int]()

    def at(step: str, when: When) -> None:
        if (step, when) == ("fetch", When.BEFORE):
            plans.append(1)
            if len(plans) == 3:
                raise Crash("the third is stored")

    with contextlib.suppress(Crash):
        filled(outside, backfill_request(0, 3), at)
    assert len(plans) == 3
    return outside
