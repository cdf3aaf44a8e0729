"""Replays on a fake cluster, killed and with other drivers."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from etl.decide.replay import ReplayRequest, is_executed
from etl.errors import DataLoss, EtlError, NeedsDecision, Owned, SessionLost, SettingsError
from etl.model.partitions import TopicPartition, parse_named
from etl.model.plans import Plan, PlanKind
from etl.report.run_progress import Outcome
from etl.run.replay import StoredReplay, replay
from etl.settings.sections import Settings
from etl.settings.source import Timestamp
from tests.builders import changed, plain_plan
from tests.fakes.joining_stories import superseded
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    PHYSICAL_LOGS,
    SETTINGS,
    At,
    accept,
    crash_at,
    grow,
    new_report,
    once,
    outcomes,
    outside_of,
    physical_outside_of,
    reject_broken,
    reject_unfinished,
    run,
    settings_for,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When

STEPS = [
    "observe",
    "count rows",
    "store plan",
    "claim",
    "fetch",
    "open table",
    "append",
    "record",
    "tidy",
    "release",
]
"""Every change of a replay. A new one makes the test of this list fail: it needs its crash rows."""
INTERVAL = [(LOGS[0], 1), (LOGS[0], 2)]
"""The replayed intervals by default."""
CRASHES = [(step, when) for step in STEPS for when in When]


def wanted(
    from_: Any = 1, until: Any = 3, *names: str, only_retained: bool = False
) -> ReplayRequest:
    return ReplayRequest(
        tuple(map(parse_named, names or ("clicks:0",))), from_, until, only_retained
    )


def replayed(
    outside: Outside,
    what: ReplayRequest | None = None,
    at: At | None = None,
    *,
    settings: Settings | None = None,
    report: Any = None,
    shown: Plan | None = None,
    own: StoredReplay | None = None,
) -> Plan:
    settings = settings or settings_for(outside)
    world = FakeWorld(outside, settings, at or (lambda step, when: None))
    return replay(
        world,
        settings,
        report or new_report(),
        what or wanted(),
        "a better transform",
        shown=shown,
        own=own,
    )


def loaded(*ends: int) -> Outside:
    """Loaded by two runs, so that an interval may lie in several plans."""
    outside = outside_of(*(end - 2 for end in ends))
    run(outside)
    for partition in list(outside.logs.values()):
        partition.grow(2)
    run(outside)
    return outside


def reject_other_rows(
    outside: Outside,
    before: dict[Any, int],
    number: int,
    partition: TopicPartition,
    low: int,
    until: int,
) -> None:
    """The rows of the interval are those of plan `number`, all others those that they were."""
    assert outside.writers() == {
        row: number if row[0] == partition and low <= row[1] < until else by
        for row, by in before.items()
    }


def test_a_replay_takes_these_steps_and_its_rows_alone_are_new() -> None:
    outside = loaded(5, 3, 4)
    before, offsets, report = outside.writers(), dict(outside.offsets), new_report()
    world = FakeWorld(outside, SETTINGS)
    plan = replay(world, SETTINGS, report, wanted(1, 5), "why")
    assert world.steps == STEPS
    assert (plan.kind, plan.number, dict(plan.replaced_rows), plan.origin.reason) == (
        PlanKind.REPLAY,
        3,
        {LOGS[0]: 4},
        "why",
    )
    reject_other_rows(outside, before, 3, LOGS[0], 1, 5)
    assert outside.offsets == offsets
    reject_unfinished(outside)
    assert report.outcomes == [
        (Outcome.ROWS_REPLACED, "Plan 3: 4 rows replaced by 4 rows, table version 3")
    ]


@pytest.mark.parametrize(("step", "when"), CRASHES)
def test_after_a_crash_the_next_run_executes_the_stored_replay_and_every_row_is_there_once(
    step: str, when: When
) -> None:
    outside = loaded(5, 3, 4)
    before = outside.writers()
    with pytest.raises(Crash):
        replayed(outside, at=crash_at(step, when))
    reject_broken(outside)
    assert outside.writers().keys() == before.keys()
    was_stored = 3 in outside.plans
    grow(outside, 1, 0, 0)
    run(outside)
    reject_unfinished(outside)
    there = {row: by for row, by in outside.writers().items() if row in before}
    assert there == {row: 3 if was_stored and row in INTERVAL else by for row, by in before.items()}


@pytest.mark.parametrize(("step", "when"), CRASHES)
def test_a_repeated_replay_after_a_crash_ends_with_the_stored_plan(step: str, when: When) -> None:
    outside = loaded(5, 3, 4)
    with pytest.raises(Crash):
        replayed(outside, at=crash_at(step, when))
    is_done = outside.transaction_version() == 3
    plan = replayed(outside)
    assert plan.number == (4 if is_done else 3)
    assert {by for row, by in outside.writers().items() if row in INTERVAL} == {plan.number}
    reject_unfinished(outside)


@pytest.mark.parametrize(("step", "when"), CRASHES)
def test_a_command_that_lost_its_session_stores_no_second_replay(step: str, when: When) -> None:
    outside, own = loaded(5, 3, 4), StoredReplay()

    def lose_session() -> None:
        raise SessionLost("the session ended")

    with contextlib.suppress(EtlError):  # some requests are retried
        replayed(outside, at=once(step, when, lose_session), own=own)
    assert replayed(outside, own=own).number == 3
    assert sorted(outside.plans) == [1, 2, 3]
    assert {by for row, by in outside.writers().items() if row in INTERVAL} == {3}
    reject_unfinished(outside)


@pytest.mark.parametrize("is_session_lost", [False, True], ids=["same session", "new session"])
def test_a_driver_that_sleeps_while_its_replay_is_superseded_ends_and_does_not_store_it_again(
    is_session_lost: bool,
) -> None:
    outside, own = loaded(5, 3, 4), StoredReplay()
    before = outside.writers()

    def sleep() -> None:
        outside.owners.clear()
        superseded(outside, settings=SETTINGS)
        run(outside)
        grow(outside, 1, 0, 0)
        run(outside)
        if is_session_lost:
            raise SessionLost("the session ended")

    if is_session_lost:
        with pytest.raises(SessionLost):
            replayed(outside, at=once("append", When.BEFORE, sleep), own=own)
    with pytest.raises(NeedsDecision, match="Plan 3 .* was superseded by another plan") as ended:
        replayed(outside, at=once("append", When.BEFORE, sleep), own=own)
    assert "run the replay again if it is still wanted" in ended.value.action
    assert sorted(outside.plans) == [1, 2, 3, 4]
    assert outside.writers().keys() - before.keys() == {(LOGS[0], 5)}
    assert {row: outside.writers()[row] for row in before} == before
    reject_unfinished(outside)


@pytest.mark.parametrize(
    ("stored", "executed"),
    [
        pytest.param([(6, "x")], False, id="the store did not arrive"),
        pytest.param([(6, "x"), (7, "backfill")], False, id="nor in place of a backfill's plan"),
        pytest.param([(6, "x"), (7, "own"), (8, "y")], True, id="runs followed"),
        pytest.param([(7, "other")], "was superseded by another plan", id="superseded"),
        pytest.param([(8, "y")], "whether the replay was executed is unknown", id="pruned"),
    ],
)
def test_the_ledger_decides_whether_a_command_executed_its_replay(
    stored: list[tuple[int, str]], executed: bool | str
) -> None:
    own = changed(plain_plan(7), id="own", supersedes="backfill")
    plans = [changed(plain_plan(number), id=id_) for number, id_ in stored]
    if isinstance(executed, bool):
        assert is_executed(own, plans) is executed
        return
    with pytest.raises(NeedsDecision, match=executed):
        is_executed(own, plans)


def test_a_plan_that_an_earlier_run_left_is_executed_before_the_replay() -> None:
    outside = loaded(5, 3, 4)
    grow(outside, 2, 0, 0)
    with pytest.raises(Crash):
        run(outside, at=crash_at("fetch", When.AFTER))
    report = new_report()
    assert replayed(outside, wanted(5, 7), report=report).number == 4
    assert outcomes(report) == [Outcome.PLAN_RESUMED, Outcome.INGESTED, Outcome.ROWS_REPLACED]
    reject_unfinished(outside)


def test_a_stored_replay_with_expired_records_is_abandoned_and_its_rows_stay() -> None:
    outside = loaded(5, 3, 4)
    before = outside.writers()
    with pytest.raises(Crash):
        replayed(outside, at=crash_at("store plan", When.AFTER))
    outside.logs[LOGS[0]].log_start = 2
    report = run(outside)
    assert outcomes(report) == [Outcome.PLAN_SUPERSEDED, Outcome.OFFSETS_STORED]
    assert "the replay was given up, and its rows are as they were" in report.outcomes[0][1]
    assert outside.writers() == before
    grow(outside, 1, 0, 0)
    run(outside)
    assert outside.writers().keys() - before.keys() == {(LOGS[0], 5)}


@pytest.mark.parametrize(
    "settings", [SETTINGS, settings_of(on_data_loss="skip")], ids=["fail", "skip"]
)
@pytest.mark.parametrize("gone", ["expired", "missing"])
def test_a_replay_that_loses_its_records_during_the_read_is_abandoned_at_once_and_reported(
    gone: str, settings: Settings
) -> None:
    outside = loaded(5, 3, 4)
    before, partition = outside.writers(), outside.logs[LOGS[0]]

    def expire(step: str, when: When) -> None:
        if (step, when) == ("fetch", When.AFTER):
            partition.log_start, partition.lost = (2, set()) if gone == "expired" else (0, {1})

    with pytest.raises(
        NeedsDecision,
        match="was not executed: the replay was given up, and its rows are as they were",
    ):
        replayed(outside, at=expire, settings=settings)
    assert outside.writers() == before and not outside.losses
    partition.log_start, partition.lost = 0, set()
    assert run(outside, settings).outcomes == [(Outcome.UP_TO_DATE, "No new records")]
    reject_unfinished(outside)


def test_a_conf_with_another_transform_stops_a_stored_replay_with_the_command_to_run() -> None:
    outside = loaded(5, 3, 4)
    with pytest.raises(Crash):
        replayed(outside, at=crash_at("store plan", When.AFTER))
    with pytest.raises(NeedsDecision, match="the rows stay unchanged, and another `etl replay`"):
        run(outside, settings_of(isolation_level="read_uncommitted"))


def test_fewer_rows_come_than_went_where_the_log_was_compacted_and_the_ledger_knows_it() -> None:
    outside = loaded(5, 3, 4)
    outside.logs[LOGS[0]].missing = {1}
    report = new_report()
    replayed(outside, wanted(0, 4), report=report)
    assert report.outcomes[-1][1].startswith("Plan 3: 4 rows replaced by 3 rows")
    assert FakeWorld(outside, SETTINGS).loaded.intervals().intervals[LOGS[0]][0].rows == 4
    reject_unfinished(outside)


def test_an_interval_by_time_ends_where_the_pipeline_is_and_covers_each_partition() -> None:
    outside = loaded(5, 3, 4)
    for partition in LOGS:
        outside.logs[partition].later = {n: 10_000 + n for n in range(2, 9)}
    grow(outside, 3, 3, 3)
    plan = replayed(outside, wanted(_time(10), _time(1_000), "clicks"))
    assert [(r.partition, r.from_offset, r.until_offset) for r in plan.ranges] == [
        (LOGS[0], 2, 5),
        (LOGS[1], 2, 3),
        (LOGS[2], 2, 4),
    ]
    run(outside)
    reject_unfinished(outside)


def test_physical_logs_are_replayed_by_offsets_at_which_an_entry_begins() -> None:
    outside = physical_outside_of(3, 2)
    run(outside)
    end = outside.logs[PHYSICAL_LOGS[0]].end
    before = outside.writers()
    plan = replayed(outside, wanted(0, end, "clicks:1-0"))
    assert {row[0] for row, by in outside.writers().items() if by == plan.number} == {
        PHYSICAL_LOGS[0]
    }
    assert outside.writers().keys() == before.keys()
    reject_unfinished(outside)


def _time(seconds: int) -> Timestamp:
    return Timestamp.model_validate(
        {"timestamp": f"1970-01-01T00:{seconds // 60:02}:{seconds % 60:02}+00:00"}
    )


@pytest.mark.parametrize(
    ("from_", "until", "message"),
    [
        pytest.param(3, 3, "The interval is empty", id="empty"),
        pytest.param(3, 1, "The interval runs backwards", id="backwards"),
        pytest.param(_time(9), _time(3), "The interval runs backwards", id="time-backwards"),
    ],
)
def test_an_empty_or_reversed_interval_is_rejected_before_any_request(
    from_: Any, until: Any, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        wanted(from_, until)


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        pytest.param(
            wanted(1, 9),
            SettingsError,
            "loaded up to offset 5, and the interval ends at 9",
            id="beyond-our-position",
        ),
        pytest.param(
            wanted(1, 3, "views"),
            SettingsError,
            "This pipeline has loaded nothing of views",
            id="another-topic",
        ),
        pytest.param(
            wanted(1, 3, "clicks:7"),
            SettingsError,
            "This pipeline has loaded nothing of clicks:7",
            id="another-partition",
        ),
        pytest.param(
            wanted(_time(3_000), _time(3_500), "clicks"),
            SettingsError,
            "This pipeline has loaded nothing in the interval",
            id="no-record-then",
        ),
    ],
)
def test_a_replay_of_offsets_that_were_never_loaded_is_rejected_and_nothing_is_stored(
    what: ReplayRequest, error: type[EtlError], message: str
) -> None:
    outside = loaded(5, 3, 4)
    with pytest.raises(error, match=message):
        replayed(outside, what)
    assert sorted(outside.plans) == [1, 2]
    reject_unfinished(outside)


def test_before_the_first_run_there_is_nothing_to_replay() -> None:
    with pytest.raises(SettingsError, match="has loaded nothing yet"):
        replayed(outside_of(3))


def test_offsets_that_were_let_go_are_no_replays_to_load() -> None:
    outside = outside_of(5, 3, 4)
    outside.logs[LOGS[0]].log_start = 2
    run(outside, settings_of(on_data_loss="skip"))
    outside.logs[LOGS[0]].log_start = 0
    with pytest.raises(SettingsError, match="Offsets 0 to 2 of it were never loaded") as refused:
        replayed(outside, wanted(0, 4))
    assert refused.value.action == (
        "Replay the parts before and after them, each with a command of its own. A backfill loads "
        "these offsets: `etl backfills run CONF NAME -p clicks:0 --from 0 --until 2`"
    )


@pytest.mark.parametrize(
    ("from_", "until"), [(1, 4), (_time(0), _time(3_000))], ids=["offsets", "times"]
)
def test_rows_without_their_records_are_never_removed(from_: Any, until: Any) -> None:
    outside = loaded(5, 3, 4)
    before = outside.writers()
    outside.logs[LOGS[0]].log_start = 2
    with pytest.raises(DataLoss, match="--only-retained"):
        replayed(outside, wanted(from_, until))
    assert outside.writers() == before
    plan = replayed(outside, wanted(from_, until, only_retained=True))
    reject_other_rows(outside, before, plan.number, LOGS[0], 2, plan.ranges[-1].until_offset)


def test_rows_of_an_earlier_life_of_the_log_are_refused() -> None:
    outside = loaded(5, 3, 4)
    outside.logs[LOGS[0]].cut(3)
    outside.logs[LOGS[0]].grow(4)
    accept(outside, "clicks:0")
    run(outside)
    with pytest.raises(
        SettingsError, match="are of an earlier incarnation of the partition, before"
    ):
        replayed(outside, wanted(1, 5))
    plan = replayed(outside, wanted(3, 6))
    assert dict(plan.incarnations) == {LOGS[0]: 1} and dict(plan.replaced_rows) == {LOGS[0]: 3}
    assert not [row for row, times in outside.keys().items() if times > 1]


def test_a_log_without_a_leader_and_one_with_another_owner_are_not_replayed() -> None:
    outside, settings = loaded(5, 3, 4), settings_of(on_no_leader="skip")
    outside.logs[LOGS[0]].has_leader = False
    with pytest.raises(EtlError, match="has no leader"):
        replayed(outside, settings=settings)
    outside.logs[LOGS[0]].has_leader = True
    outside.owners = {LOGS[0]: "somebody_1"}
    with pytest.raises(Owned):
        replayed(outside)
    assert sorted(outside.plans) == [1, 2]


def test_what_changed_since_it_was_shown_is_not_replaced() -> None:
    outside = loaded(5, 3, 4)
    shown = replayed(outside, wanted(1, 2))
    with pytest.raises(
        NeedsDecision, match="The offsets to replace changed after the confirmation, by retention"
    ):
        replayed(outside, wanted(1, 3), shown=shown)
    assert sorted(outside.plans) == [1, 2, 3]


def test_a_moved_offset_is_decided_by_the_next_run_and_not_by_a_replay() -> None:
    outside, settings = loaded(5, 3, 4), settings_of(on_offset_changed="follow")
    grow(outside, 5, 0, 0)
    outside.move_offset(LOGS[0], 8)
    plan = replayed(outside, settings=settings)
    assert plan.loaded_until[LOGS[0]] == 5 and outside.offsets[LOGS[0]][0] == 8
    assert outcomes(run(outside, settings)) == [
        Outcome.OFFSET_CHANGED,
        Outcome.RECORDS_LOST,
        Outcome.INGESTED,
    ]
    assert not [row for row, times in outside.rows().items() if times > 1]
