"""`etl offsets diff` announces what the next run does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from etl.cli.screens import screen, show_offsets_diff
from etl.commands.restore_ledger import SourcesDiff, compare_sources
from etl.errors import (
    BrokerUnreachable,
    EtlError,
    LedgersDisagree,
    NeedsDecision,
    OffsetMoved,
    Owned,
)
from etl.ledger.plan_document import parse_plan, render_plan, with_id
from etl.model.snapshot import Acknowledgement, Retirement, Snapshot
from etl.settings.sections import Settings
from tests.builders import changed, with_facts, with_keys
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    PHYSICAL_LOGS,
    SETTINGS,
    SKIPPING,
    OutsideOf,
    crash_at,
    expired_plan,
    grow,
    of_both_kinds,
    outside_of,
    physical_outside_of,
    run,
    settings_for,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When

FOLLOWING = settings_of(on_offset_changed="follow")
AWAY = BrokerUnreachable("no broker answers", action="that they run")


def diff(
    outside: Outside, settings: Settings | None = None, *, shows_all: bool = False
) -> SourcesDiff:
    return compare_sources(
        seen(outside, settings), settings or settings_for(outside), shows_all=shows_all
    )


def rows_of(sides: SourcesDiff) -> list[tuple[Any, ...]]:
    return [
        (r["partition"], r["committed"], r["plan"], r["table"], r["difference"])
        for r in sides.document["rows"]
    ]


def next_runs(sides: SourcesDiff) -> set[str]:
    return {r["next_run"] for r in sides.document["rows"]}


def crashed(step: str, when: When, outside: Outside, settings: Settings | None = None) -> Outside:
    with pytest.raises(Crash):
        run(outside, settings, at=crash_at(step, when))
    return outside


def loaded() -> Outside:
    """Plan 1 is in the table, recorded, and its offsets are moved."""
    outside = outside_of(5, 3, 4)
    run(outside)
    return outside


def with_offsets_not_moved() -> Outside:
    return crashed("commit from 2", When.BEFORE, outside_of(5, 3, 4))


def with_a_stored_plan() -> Outside:
    outside = loaded()
    grow(outside, 2, 0, 1)
    return crashed("store plan", When.AFTER, outside)


def with_an_old_ledger() -> Outside:
    """ZooKeeper was restored from a copy of the time of plan 1; the table holds plan 2."""
    outside = loaded()
    kept = outside.zookeeper.persistent()
    grow(outside, 2, 0, 1)
    run(outside)
    outside.zookeeper.restore(kept)
    return outside


def with_a_lost_ledger() -> Outside:
    outside = loaded()
    for lost in (outside.plans, outside.applied, outside.offsets):
        lost.clear()
    return outside


def with_a_plan_that_expired() -> Outside:
    return expired_plan(SKIPPING)


def with_a_plan_that_is_not_recorded() -> Outside:
    return crashed("append", When.AFTER, outside_of(5, 3, 4))


def with_an_offset_that_is_followed() -> Outside:
    outside = loaded()
    grow(outside, 9, 0, 0)
    outside.move_offset(LOGS[0], 8)
    return outside


def with_an_offset_and_no_plan() -> Outside:
    outside = outside_of(5, 3, 4)
    outside.move_offset(LOGS[1], 2)
    return outside


def with_a_stored_plan_and_a_short_log() -> Outside:
    """The table's log no longer reaches our commit."""
    outside = with_a_stored_plan()
    outside.forgotten_commits = True
    return outside


@of_both_kinds
def test_all_three_agree_after_a_run_and_rows_are_shown_only_with_all(
    outside_of: OutsideOf,
) -> None:
    outside = outside_of(5, 3, 4)
    run(outside)
    found = diff(outside)
    document = found.document
    assert (document["rows"], document["partitions"], document["differing"]) == ([], 3, 0)
    assert found.refusal is None
    rows = diff(outside, shows_all=True).document["rows"]
    assert [len({r["committed"], r["plan"], r["table"]}) for r in rows] == [1, 1, 1]
    assert {(r["difference"], r["means"], r["next_run"]) for r in rows} == {("none", None, None)}


def test_another_plan_of_the_same_number_is_reported_without_a_different_offset() -> None:
    outside = loaded()
    plan = parse_plan(outside.plans[1], path="")
    outside.plans[1] = render_plan(with_id(changed(plan, reason="superseded too late")))
    found = diff(outside)
    assert found.document["rows"] == [] and found.refusal is None
    assert found.document["plan"]["stands"] == "not the plan of this number that the table holds"
    assert found.document["plan"]["id"] != found.document["table"]["plan_id"]


def test_an_offset_of_a_topic_that_is_read_no_longer_is_left_where_another_client_put_it() -> None:
    outside, narrow = (loaded(), with_keys(FOLLOWING, source={"topics": ("others.*",)}))
    outside.move_offset(LOGS[0], 8)
    [row] = diff(outside, narrow).document["rows"]
    assert row["next_run"].startswith(
        "leaves the committed offset and the loaded-until offset as they are"
    )


RECORDED, STORED = "in the table, and recorded", "stored, and not in the table"
NOT_RECORDED, OLDER = "in the table, and not recorded", "older than the table's"
MOVES = "commits the loaded-until offset"
EXECUTES = "executes the plan"
RESTORES = f"restores the ledger from the table, then {MOVES}"
FOLLOWS = "continues at the committed offset, by group.on_offset_changed"
REPLACES = "replaces the plan: clicks 0: its range starts at 0, and the log now at 2"
NOT_MOVED, NOT_APPENDED = "offset not moved", "plan not appended"
BEHIND = "ledger behind the table"
LOADED = list(enumerate((5, 3, 4)))
MENDED: dict[Callable[[], Outside], tuple[Settings, str | None, list[Any], str | None]] = {
    loaded: (SETTINGS, RECORDED, [], None),
    with_offsets_not_moved: (SETTINGS, RECORDED, [(2, None, 4, 4, NOT_MOVED)], MOVES),
    with_a_plan_that_is_not_recorded: (
        SETTINGS,
        NOT_RECORDED,
        [(n, None, at, at, NOT_MOVED) for n, at in LOADED],
        MOVES,
    ),
    with_a_stored_plan: (
        SETTINGS,
        STORED,
        [(0, 5, 7, 5, NOT_APPENDED), (2, 4, 5, 4, NOT_APPENDED)],
        EXECUTES,
    ),
    with_a_stored_plan_and_a_short_log: (
        SETTINGS,
        STORED,
        [(0, 5, 7, None, NOT_APPENDED), (2, 4, 5, None, NOT_APPENDED)],
        EXECUTES,
    ),
    with_an_old_ledger: (
        SETTINGS,
        OLDER,
        [(0, 5, 5, 7, BEHIND), (2, 4, 4, 5, BEHIND)],
        RESTORES,
    ),
    with_a_lost_ledger: (
        SETTINGS,
        None,
        [(n, None, None, at, BEHIND) for n, at in LOADED],
        RESTORES,
    ),
    with_an_offset_and_no_plan: (
        SETTINGS,
        None,
        [(1, 2, None, None, "never read")],
        "begins the partition at offset 2",
    ),
    with_an_offset_that_is_followed: (
        FOLLOWING,
        RECORDED,
        [(0, 8, 5, 5, "moved by another client")],
        FOLLOWS,
    ),
    with_a_plan_that_expired: (
        SKIPPING,
        STORED,
        [(n, None, at, None, NOT_APPENDED) for n, at in LOADED],
        REPLACES,
    ),
}


@pytest.mark.parametrize("situation", MENDED, ids=lambda one: one.__name__)
def test_each_difference_is_named_with_what_the_next_run_does_and_the_run_leaves_an_agreement(
    situation: Callable[[], Outside],
) -> None:
    settings, stands, rows, next_run = MENDED[situation]
    outside = situation()
    found = diff(outside, settings)
    assert (rows_of(found), found.refusal) == (rows, None)
    assert (found.document["plan"] or {}).get("stands") == stands
    assert next_runs(found) == ({next_run} if rows else set())
    run(outside, settings)
    after = diff(outside, settings)
    if not outside.forgotten_commits:
        assert (after.document["rows"], after.refusal) == ([], None)


@pytest.mark.parametrize("situation", [*MENDED][:7], ids=lambda one: one.__name__)
def test_without_brokers_the_same_rows_are_listed_with_the_missing_observations(
    situation: Callable[[], Outside],
) -> None:
    settings, stands, rows, _ = MENDED[situation]
    found = diff_by_ledgers(situation(), settings)
    assert (rows_of(found), found.refusal) == (rows, None)
    assert found.document["not_looked_at"][0].startswith(
        "no broker answers. Not checked: log starts and log ends"
    )
    if stands == "stored, and not in the table":
        assert next_runs(found) == {"executes the plan, or replaces it"}


def with_an_offset_moved_back() -> Outside:
    outside = loaded()
    outside.move_offset(LOGS[0], 2)
    return outside


def with_the_table_dropped() -> Outside:
    outside = loaded()
    outside.table = None
    return outside


def with_a_wanted_offset_gone() -> Outside:
    outside = loaded()
    grow(outside, 4, 0, 0)
    outside.logs[LOGS[0]].log_start = 7
    return outside


@pytest.mark.parametrize(
    ("situation", "error", "rows"),
    [
        (with_an_offset_moved_back, OffsetMoved, [(0, 2, 5, 5, "moved by another client")]),
        (
            with_the_table_dropped,
            LedgersDisagree,
            [(n, at, at, None, "ledgers disagree") for n, at in enumerate((5, 3, 4))],
        ),
        (with_a_wanted_offset_gone, NeedsDecision, []),
    ],
)
def test_a_needed_decision_is_the_error_of_the_run_and_the_rows_are_listed_anyway(
    situation: Callable[[], Outside], error: type[EtlError], rows: list[tuple[Any, ...]]
) -> None:
    outside = situation()
    found, by_ledgers = diff(outside), diff_by_ledgers(outside)
    assert rows_of(found) == rows_of(by_ledgers) == rows
    assert isinstance(found.refusal, error) and found.refusal.exit_code == 5
    if rows:
        assert str(by_ledgers.refusal) == str(found.refusal), "no broker could change it"
    with pytest.raises(error) as stops:
        run(outside)
    assert str(found.refusal) == str(stops.value)
    assert found.document["stops"] == stops.value.as_json()
    assert next_runs(found) <= {"stops before it does anything: a person must decide"}
    if situation is with_the_table_dropped:
        assert found.document["plan"]["stands"] == "recorded, and the table does not hold it"


@pytest.mark.parametrize("situation", [loaded, with_a_stored_plan])
def test_without_brokers_it_is_unknown_whether_an_offset_is_followed(
    situation: Callable[[], Outside],
) -> None:
    outside = situation()
    outside.move_offset(LOGS[0], 800)
    found = diff_by_ledgers(outside, FOLLOWING)
    assert found.refusal is AWAY, "only brokers could show that an operator must decide"
    assert found.document["rows"][0]["difference"] == "moved by another client"


def test_an_offset_moved_during_a_stored_plan_stops_the_run_that_executes_it() -> None:
    outside = with_a_stored_plan()
    outside.move_offset(LOGS[0], 6)
    found = diff(outside)
    assert rows_of(found)[0] == (0, 6, 7, 5, "moved by another client")
    assert isinstance(found.refusal, OffsetMoved)
    assert [row["next_run"] for row in found.document["rows"]] == [
        "executes the plan, then stops at this offset: a person must decide",
        "executes the plan",
    ]
    with pytest.raises(OffsetMoved):
        run(outside)
    differences = [row[-1] for row in rows_of(diff(outside))]
    assert "plan not appended" not in differences, "its rows are in the table by then"


def test_a_table_that_lacks_a_plan_and_was_accepted_is_no_disagreement() -> None:
    outside = with_the_table_dropped()
    outside.acknowledged = Acknowledgement(None, None, 1, "it was dropped on purpose", 1)
    found = diff(outside)
    assert [row[-1] for row in rows_of(found)] == ["not in the table"] * 3 and found.refusal is None
    assert next_runs(found) == {"continues after the plan, and gives up what the table lacks of it"}


def test_a_retired_pipeline_is_compared_and_reported_as_by_a_run() -> None:
    snapshot = seen(loaded())
    found = compare_sources(
        replace(snapshot, ledger=replace(snapshot.ledger, retired=Retirement("moved", 1))), SETTINGS
    )
    assert isinstance(found.refusal, NeedsDecision) and found.document["rows"] == []


def test_an_owner_delays_a_run_and_needs_no_decision() -> None:
    outside = with_a_stored_plan()
    outside.owners[LOGS[0]] = "consumer-1"
    found = diff(outside)
    assert found.refusal is None and found.document["stops"]["error"] == Owned.__name__
    assert "A run that starts now stops:" in "\n".join(shown(found))


def shown(found: SourcesDiff) -> list[str]:
    with screen.capture() as text:
        show_offsets_diff(found.document)
    return text.get().splitlines()


def test_partitions_with_the_same_text_share_one_sentence() -> None:
    lines = shown(diff(with_a_stored_plan()))
    assert lines[0].startswith("Plan 2, id ")
    assert lines[0].endswith(": stored, and not in the table")
    assert lines[1].startswith("The table, version 1, has plan 1, id ")
    assert [line.split()[:5] for line in lines[3:5]] == [
        ["clicks", "0", "5", "7", "5"],
        ["clicks", "2", "4", "5", "4"],
    ]
    assert lines[5:] == [
        "clicks 0, 2: plan 2 is stored and not in the table; the next run executes the plan",
        "3 partitions, 2 of them with a difference",
    ]
    assert shown(diff(outside_of(5, 3, 4))) == [
        "ZooKeeper has no plan of this pipeline",
        "The table does not exist",
        "0 partitions agree",
    ]


def test_physical_logs_are_named_by_broker_and_partition() -> None:
    outside = crashed("commit from 0", When.BEFORE, physical_outside_of(5, 3, 4))
    found = diff(outside)
    named = [(row["broker_id"], row["partition"]) for row in found.document["rows"]]
    partitions = [(partition.broker_id, partition.partition) for partition in PHYSICAL_LOGS]
    assert named == sorted(partitions)
    text = "clicks 1-0, 2-0, 1-1: the rows up to the loaded-until offset are in the table"
    assert text in "\n".join(shown(found))


def seen(outside: Outside, settings: Settings | None = None) -> Snapshot:
    return FakeWorld(outside, settings or settings_for(outside)).observe()


NOT_OBSERVED = (
    "extents leaders topic_ids bytes_per_offset starts leader_epochs epoch_ends looked_at fingerprints"
).split()


def diff_by_ledgers(outside: Outside, settings: Settings = SETTINGS) -> SourcesDiff:
    """The same where no broker answers."""
    found = seen(outside, settings)
    nothing: dict[str, Any] = {name: {} for name in NOT_OBSERVED}
    snapshot = with_facts(found, leaderless=frozenset(found.readable), **nothing)
    return compare_sources(snapshot, settings, away=AWAY)
