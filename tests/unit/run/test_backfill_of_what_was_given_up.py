"""Backfills and replays where a table was lost, or an older copy of it was put back, and an
operator accepted that.
"""

from __future__ import annotations

import contextlib

import pytest

from etl.decide.next_step import plan_superseding
from etl.decide.replay import ReplayRequest
from etl.errors import EtlError, Owned, SettingsError
from etl.model.partitions import parse_named
from etl.model.plans import Plan
from etl.model.snapshot import Supersede
from etl.report.run_progress import Outcome
from etl.run.replay import replay
from tests.fakes.backfill_stories import accept_table, backfill_request, filled, nothing
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    At,
    crash_at,
    grow,
    new_report,
    outcomes,
    outside_of,
    run,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When

FROM_THE_START = settings_of(limits={"max_records_per_plan": 4})
"""The pipeline begins at the logs' starts, so all that a backfill may load was given up."""


def loaded(*ends: int) -> Outside:
    """By one plan for every four offsets."""
    outside = outside_of(*ends)
    while outcomes(run(outside, FROM_THE_START)) != [Outcome.UP_TO_DATE]:
        pass
    return outside


def reject_lacking(outside: Outside) -> None:
    """Each record is in the table once."""
    rows = outside.rows()
    assert set(rows.values()) == {1}
    assert set(rows) == {
        (log, place)
        for log, found in outside.logs.items()
        for place in found.read(found.log_start, found.end)
    }


@pytest.mark.parametrize("has_gone_on", [True, False])
def test_what_an_older_copy_of_the_table_lacks_is_missing_as_soon_as_the_copy_is_accepted(
    has_gone_on: bool,
) -> None:
    outside = loaded(12)
    outside.table = (outside.table or [])[:2]  # of three plans
    accept_table(outside)
    if has_gone_on:
        grow(outside, 1)
        run(outside, FROM_THE_START)
    claim = filled(outside, backfill_request(0, 12, only_missing=True), settings=FROM_THE_START)
    assert claim and dict(claim.stretches) == {LOGS[0]: ((8, 12),)}
    run(outside, FROM_THE_START)
    reject_lacking(outside)
    report = new_report()
    assert (
        filled(
            outside,
            backfill_request(0, 12, only_missing=True),
            name="again",
            settings=FROM_THE_START,
            report=report,
        )
        is None
    )
    assert outcomes(report) == [Outcome.UP_TO_DATE]


def lost(*ends: int) -> Outside:
    """The table is another one since the first offsets were loaded, and that was accepted."""
    outside = loaded(*ends)
    outside.table, outside.table_id = None, "another"
    accept_table(outside)
    grow(outside, *(1 for _ in ends))
    run(outside, FROM_THE_START)
    return outside


def replayed(outside: Outside, from_: int, until: int, at: At = nothing) -> Plan:
    wanted = ReplayRequest((parse_named("clicks:0"),), from_, until)
    return replay(
        FakeWorld(outside, FROM_THE_START, at),
        FROM_THE_START,
        new_report(),
        wanted,
        "the table was lost",
    )


def backfilled(
    outside: Outside, at: At = nothing, *, name: str = "old", only_missing: bool = False
) -> None:
    """Of all that the table had before it was lost."""
    filled(
        outside,
        backfill_request(0, 12, only_missing=only_missing),
        at,
        name=name,
        settings=FROM_THE_START,
    )


def reject_twice(outside: Outside) -> None:
    assert not [row for row, times in outside.rows().items() if times > 1]


@pytest.mark.parametrize("stop", ["begin", "append", "store plan"])
def test_reserved_offsets_are_not_replayed_even_if_loaded_into_a_lost_table_before(
    stop: str,
) -> None:
    outside = lost(12)
    with pytest.raises(Crash):
        backfilled(outside, crash_at(stop, When.AFTER))
    for start, until in ((0, 12), (4, 8), (11, 13)):
        with pytest.raises(
            SettingsError,
            match=f"Offsets {start} to {min(until, 12)} of it were loaded by backfill old, or will",
        ):
            replayed(outside, start, until)
    backfilled(outside)
    reject_lacking(outside)
    with pytest.raises(
        SettingsError, match="Offsets 0 to 12 of it were loaded by backfill old, or will"
    ):
        replayed(outside, 0, 12)
    replayed(outside, 12, 13)
    reject_lacking(outside)


def test_abandoned_offsets_that_are_replayed_are_not_missing_any_more() -> None:
    outside = lost(12)
    replayed(outside, 4, 12)
    claim = filled(outside, backfill_request(0, 12, only_missing=True), settings=FROM_THE_START)
    assert claim and dict(claim.stretches) == {LOGS[0]: ((0, 4),)}
    reject_lacking(outside)


@pytest.mark.parametrize("moment", range(20))
@pytest.mark.parametrize("stop", ["begin", "append", None])
def test_a_replay_loads_no_offset_twice_if_a_backfill_of_the_same_offsets_begins_meanwhile(
    moment: int, stop: str | None
) -> None:
    outside, at_moment, done = lost(12), iter(range(10_000)), list[int]()

    def meanwhile(step: str, when: When) -> None:
        if next(at_moment) == moment:
            done.append(1)
            with contextlib.suppress(EtlError, Crash):
                backfilled(outside, crash_at(stop, When.AFTER) if stop else nothing)

    with contextlib.suppress(EtlError):
        replayed(outside, 0, 12, meanwhile)
    assert done
    for only_missing in (False, True):
        with contextlib.suppress(EtlError):
            backfilled(outside, name="rest" if only_missing else "old", only_missing=only_missing)
        reject_twice(outside)
    reject_lacking(outside)


@pytest.mark.parametrize("moment", range(24))
def test_a_backfill_loads_no_offset_twice_if_the_same_offsets_are_replayed_meanwhile(
    moment: int,
) -> None:
    outside, at_moment, done = lost(12), iter(range(10_000)), list[int]()

    def meanwhile(step: str, when: When) -> None:
        if next(at_moment) == moment:
            done.append(1)
            with contextlib.suppress(EtlError):
                replayed(outside, 0, 12)

    with contextlib.suppress(EtlError):
        backfilled(outside, meanwhile)
    assert done
    reject_twice(outside)
    backfilled(outside, name="rest", only_missing=True)
    reject_lacking(outside)


@pytest.mark.parametrize("at", ["fetch", "open table"])
def test_what_a_replay_would_read_is_free_once_the_plan_in_its_place_is_in_the_table(
    at: str,
) -> None:
    """A driver of the replay may append it as long as its number is free there."""
    outside, done = lost(12), list[int]()

    def superseded(step: str, when: When) -> None:
        if (step, when) != (at, When.BEFORE):
            return
        done.append(1)
        outside.owners.clear()  # its session is lost
        world = FakeWorld(outside, FROM_THE_START)
        snapshot = world.observe()
        assert snapshot.ledger.newest
        instead = plan_superseding(
            Supersede(snapshot.ledger.newest, "no"), snapshot, FROM_THE_START, now_ms=5
        )
        world.supersede(instead, snapshot.ledger)
        with pytest.raises(Owned, match="is stored and not in the table") as refused:
            backfilled(outside)
        assert refused.value.action and "`etl run CONF`, which executes it." in refused.value.action

    with contextlib.suppress(EtlError):
        replayed(outside, 0, 12, superseded)
    assert done
    run(outside, FROM_THE_START)
    backfilled(outside, only_missing=True)
    reject_lacking(outside)
