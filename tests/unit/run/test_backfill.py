"""A backfill on a fake cluster: each offset is in the table once, wherever it is killed and
whichever driver runs at the same time.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import replace
from typing import Any

import pytest

from etl.decide.backfill import BackfillRequest
from etl.decide.replay import ReplayRequest
from etl.errors import (
    DataLoss,
    EtlError,
    LedgersDisagree,
    NeedsDecision,
    NotReady,
    Owned,
    SettingsError,
)
from etl.ledger.plan_document import render_plan, with_id
from etl.model.partitions import BrokerPartition, parse_named
from etl.model.snapshot import Acknowledgement, ReservationState
from etl.report.describe import format_time
from etl.report.run_progress import Outcome
from etl.run.replay import replay
from etl.settings.source import Timestamp
from tests.fakes import fake_ledger
from tests.fakes.backfill_stories import CAPPED, backfill_request, filled, given_up, live
from tests.fakes.fake_log import FakeLog, offset_of
from tests.fakes.outside import FakeCommit, Outside
from tests.fakes.stories import (
    LOGS,
    PHYSICAL_LOGS,
    accept,
    crash_at,
    crash_at_moment,
    grow,
    new_report,
    outcomes,
    outside_of,
    physical_outside_of,
    run,
    set_to,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When


def started(*ends: int) -> Outside:
    """A pipeline that began at these ends, and has loaded nothing yet."""
    outside = outside_of(*ends)
    run(outside, CAPPED)
    return outside


def reject_twice(outside: Outside) -> None:
    """What must hold at every moment."""
    assert not [row for row, times in outside.rows().items() if times > 1]


def reject_lacking(outside: Outside, first: int = 0) -> None:
    """Each record from `first` on is in the table once."""
    reject_twice(outside)
    there = {(log, at) for log, found in outside.logs.items() for at in range(first, found.end)}
    assert set(outside.rows()) == there


def test_a_backfill_loads_the_records_before_the_start_in_bounded_plans_and_moves_no_offset() -> (
    None
):
    outside = live(5, 5, 5)
    offsets, report = dict(outside.offsets), new_report()
    filled(outside, report=report)
    reject_lacking(outside)
    assert outside.offsets == offsets
    assert sorted(outside.backfill("old").plans) == [1, 2, 3, 4], (
        "fifteen offsets, four at most in each"
    )
    assert report.outcomes[-1] == (
        Outcome.BACKFILL_DONE,
        "Backfill old: all 15 offsets of 3 partitions loaded",
    )
    grow(outside, 1, 1, 1)
    run(outside, CAPPED)
    reject_lacking(outside)


def moments_of(story: Any) -> list[tuple[str, When]]:
    """Every change of a story, in order."""
    seen = list[tuple[str, When]]()
    story(lambda step, when: seen.append((step, when)))
    return seen


MOMENTS = len(
    moments_of(lambda format_time: filled(live(3, 3, 3), backfill_request(0, 3), format_time))
)
STEPS = {
    "observe",
    "count rows",
    "begin",
    "fetch",
    "open table",
    "append",
    "record",
    "tidy",
    "store plan",
}


def test_a_backfill_takes_these_steps() -> None:
    """A new one is in the crash laws below by its number; that it is there should be meant."""
    assert {
        step for step, _ in moments_of(lambda at: filled(live(3, 3, 3), backfill_request(0, 3), at))
    } == STEPS


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_killed_at_any_change_it_is_resumed_and_loads_each_offset_once(moment: int) -> None:
    outside = live(3, 3, 3)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 3), crash_at_moment(moment))
    reject_twice(outside)
    grow(outside, 1, 0, 2)
    run(outside, CAPPED)
    run(outside, CAPPED)
    filled(outside, backfill_request(0, 3))
    reject_lacking(outside)
    report = new_report()
    filled(outside, backfill_request(0, 3), report=report)
    assert outcomes(report) == [Outcome.ALREADY_LOADED], "a retry after success loads nothing"


@pytest.mark.parametrize("first", range(0, MOMENTS, 5))
def test_crashes_one_after_the_other_lose_and_double_nothing_of_a_backfill(first: int) -> None:
    for second in range(0, MOMENTS, 4):
        outside = live(3, 3, 3)
        for moment in (first, second):
            with contextlib.suppress(Crash):
                filled(outside, backfill_request(0, 3), crash_at_moment(moment))
            reject_twice(outside)
        filled(outside, backfill_request(0, 3))
        reject_lacking(outside)


@pytest.mark.parametrize("moment", range(MOMENTS))
@pytest.mark.parametrize(
    "other", ["the same", "one that overlaps", "the live pipeline", "set back"]
)
def test_any_run_in_the_middle_of_a_backfill_loads_no_offset_twice(moment: int, other: str) -> None:
    outside, done, at_moment = (
        started(3, 3, 3) if other == "set back" else live(3, 3, 3),
        list[int](),
        iter(range(10_000)),
    )

    def meanwhile(step: str, when: When) -> None:
        if next(at_moment) == moment and not done:
            done.append(1)
            with contextlib.suppress(EtlError):
                if other == "the same":
                    filled(outside, backfill_request(0, 3))
                elif other == "one that overlaps":
                    filled(outside, backfill_request(1, 3), name="new")
                elif other == "set back":
                    set_to(outside, CAPPED, a=1)
                    run(outside, CAPPED)
                else:
                    grow(outside, 1, 0, 2)
                    run(outside, CAPPED)

    with contextlib.suppress(EtlError):
        filled(outside, backfill_request(0, 3), meanwhile)
    reject_twice(outside)
    for name, what in (("old", backfill_request(0, 3)), ("new", backfill_request(1, 3))):
        with contextlib.suppress(EtlError):
            filled(outside, what, name=name)
    filled(outside, backfill_request(0, 3, only_missing=True), name="rest")
    while outcomes(run(outside, CAPPED)) != [Outcome.UP_TO_DATE]:
        reject_twice(outside)
    assert done
    reject_lacking(outside)


@pytest.mark.parametrize("stop", ["store plan", "append"])
@pytest.mark.parametrize("moment", range(14))
def test_deleted_at_any_moment_a_backfill_keeps_its_loaded_offsets_reserved_and_frees_the_rest(
    stop: str, moment: int
) -> None:
    outside = live(3, 3, 3)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 3), crash_at(stop, When.AFTER))
    with contextlib.suppress(Crash):
        given_up(outside, crash_at_moment(moment))
    reject_twice(outside)
    claim = given_up(outside)
    assert claim.state is ReservationState.GIVEN_UP
    in_table = {(log, at) for log, at in outside.rows() if offset_of(at) < 3}
    assert {
        (log, at)
        for log, parts in claim.stretches.items()
        for start, until in parts
        for at in range(start, until)
    } == in_table
    with pytest.raises(SettingsError, match="was given up: not needed"):
        filled(outside, backfill_request(0, 3))
    filled(outside, backfill_request(0, 3, only_missing=True), name="rest")
    reject_lacking(outside)


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_forgotten_driver_of_a_backfill_that_was_given_up_doubles_nothing(moment: int) -> None:
    """It is suspended at a moment, its session is lost, the backfill is given up, another one takes
    the rest, and it continues.
    """
    outside, done, at_moment = live(3, 3, 3), list[int](), iter(range(10_000))

    def meanwhile(step: str, when: When) -> None:
        if next(at_moment) == moment and not done:
            done.append(1)
            with contextlib.suppress(SettingsError):
                given_up(outside)
            filled(outside, backfill_request(0, 3, only_missing=True), name="rest")

    with contextlib.suppress(EtlError):
        filled(outside, backfill_request(0, 3), meanwhile)
    assert done
    reject_lacking(outside)


def test_one_that_was_given_up_stays_so_in_an_older_copy_of_zookeeper() -> None:
    """The copy has an open reservation; only the plan in the table shows that it was given up."""
    outside = live(3, 3, 3)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 3), crash_at("record", When.AFTER))
    kept = {
        name: copy.deepcopy(getattr(outside.backfill("old"), name))
        for name in ("plans", "plan_versions", "applied", "claim")
    }
    given_up(outside)
    filled(outside, backfill_request(0, 3, only_missing=True), name="rest")
    for name, value in kept.items():
        setattr(outside.backfill("old"), name, value)
    for what in (backfill_request(0, 3), None):
        with pytest.raises(SettingsError, match="Backfill old was given up: not needed"):
            filled(outside, what)
        reject_lacking(outside)
    claim = given_up(outside)
    assert (
        claim.state is ReservationState.GIVEN_UP
        and claim.reason == "not needed"
        and claim.offsets < 9
    )
    reject_lacking(outside)


def begun_and_given_up_without_a_ledger() -> Outside:
    """The table has the plan that closed it and none of its rows; ZooKeeper has no backfill."""
    outside = live(3, 3, 3)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 3), crash_at("begin", When.AFTER))
    given_up(outside)
    outside.backfills.clear()
    return outside


def test_a_name_with_plans_in_the_table_is_rejected_before_anything_is_stored() -> None:
    outside = begun_and_given_up_without_a_ledger()
    with pytest.raises(
        SettingsError,
        match="The table holds plan 1 of a backfill of this name, but ZooKeeper has no ledger of "
        "it",
    ) as refused:
        filled(outside, backfill_request(0, 3))
    assert refused.value.action and refused.value.action.startswith("Use another")
    assert outside.backfill("old").claim is None and not outside.backfill("old").plans
    filled(outside, backfill_request(0, 3), name="again")
    reject_lacking(outside)


def test_a_ledger_with_plans_that_can_never_be_in_the_table_is_deleted_and_reserves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An earlier version began a backfill under a name that the table knew."""
    outside = begun_and_given_up_without_a_ledger()
    monkeypatch.setattr(FakeWorld, "backfill_in_table", lambda self, name: None)
    with pytest.raises(LedgersDisagree, match="written by another pipeline of the same name"):
        filled(outside, backfill_request(0, 3))
    claim = given_up(outside)
    assert (claim.state, dict(claim.stretches)) == (ReservationState.GIVEN_UP, {})
    filled(outside, backfill_request(0, 3), name="again")
    reject_lacking(outside)


def test_rows_of_a_backfill_are_no_replays_to_make_again() -> None:
    outside = live(5, 5, 5)
    filled(outside, backfill_request(1, 3))
    wanted = ReplayRequest((parse_named("clicks:0"),), 1, 6)
    with pytest.raises(
        SettingsError, match="Offsets 1 to 3 of it were loaded by backfill old, or will be,"
    ):
        replay(FakeWorld(outside, CAPPED), CAPPED, new_report(), wanted, None)


def test_a_complete_backfill_is_not_deleted() -> None:
    outside = live(3, 3, 3)
    filled(outside, backfill_request(0, 3))
    with pytest.raises(
        SettingsError,
        match="Backfill old: all 9 offsets of 3 partitions loaded. There is nothing to give up",
    ):
        given_up(outside)


def test_a_complete_backfill_reports_its_time_and_its_request() -> None:
    """So long before now was another moment then: a schedule that gives each day one name would
    load the first day alone.
    """
    outside = live(3, 3, 3)
    what = replace(backfill_request(0, 3), asked="from -24h until -1h")
    filled(outside, what)
    claim, report = fake_ledger.read_claim(outside.backfill("old")), new_report()
    assert claim
    filled(outside, what, report=report)
    text = (
        f"Backfill old: all 9 offsets of 3 partitions loaded; it began at "
        f"{format_time(claim.claim.made_at_ms)} from -24h until -1h"
    )
    assert report.outcomes == [(Outcome.ALREADY_LOADED, text)]


def test_another_interval_under_the_same_name_is_refused() -> None:
    outside = live(5, 5, 5)
    filled(outside)
    with pytest.raises(
        SettingsError,
        match=r"Backfill old was begun from 0 until 5 \(\) False, and this request is from 0 "
        r"until 4",
    ):
        filled(outside, backfill_request(0, 4))


def test_a_backfill_that_was_not_begun_cannot_continue() -> None:
    outside = live(5, 5, 5)
    with pytest.raises(SettingsError, match="No backfill of this name exists"):
        filled(outside, None)
    with pytest.raises(SettingsError, match="No backfill of this name exists"):
        given_up(outside)


def test_what_the_pipeline_or_another_backfill_has_is_refused_by_name_and_left_out_on_request() -> (
    None
):
    outside = live(5, 5, 5)
    with pytest.raises(
        SettingsError,
        match="The pipeline loads this partition from offset 5 on, and the interval is 0 to 9",
    ):
        grow(outside, 2, 2, 2)
        filled(outside, backfill_request(0, 9))
    with pytest.raises(
        SettingsError,
        match="The pipeline loads this partition from offset 5 on, and the interval is 2 to 6",
    ) as refused:
        filled(outside, backfill_request(2, 6))
    assert (
        refused.value.action
        and "`--only-unloaded`, which leaves out the offsets of others (it loads 2 to 5)."
        in refused.value.action
    )
    filled(outside, backfill_request(2, 4))
    with pytest.raises(SettingsError, match="Backfill old has loaded offsets 2 to 4, or will"):
        filled(outside, backfill_request(0, 5), name="new")
    claim = filled(outside, backfill_request(0, 9, only_missing=True), name="new")
    assert claim and set(claim.stretches.values()) == {((0, 2), (4, 5))}
    report = new_report()
    assert (
        filled(outside, backfill_request(0, 9, only_missing=True), name="none", report=report)
        is None
    )
    assert outcomes(report) == [Outcome.UP_TO_DATE] and outside.backfill("none").claim is None
    run(outside, CAPPED)
    run(outside, CAPPED)
    reject_lacking(outside)


@pytest.mark.parametrize(
    ("from_", "until", "message"),
    [(3, 3, "The interval is empty"), (3, 1, "The interval runs backwards")],
)
def test_a_backfill_of_an_interval_that_is_empty_or_runs_backwards_is_refused(
    from_: int, until: int, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        backfill_request(from_, until)


def _time(seconds: int) -> Timestamp:
    return Timestamp.model_validate(
        {"timestamp": f"1970-01-01T00:{seconds // 60:02}:{seconds % 60:02}+00:00"}
    )


def test_a_backfill_by_time_begins_at_the_first_record_then() -> None:
    outside = live(5, 5, 5)
    for log in LOGS:
        outside.logs[log].later = {n: 10_000 + n for n in range(2, 5)} | {
            n: 90_000 for n in range(5, 9)
        }
    claim = filled(outside, backfill_request(_time(10), _time(60)))
    assert claim and set(claim.stretches.values()) == {((2, 5),)}
    reject_lacking(outside, 2)


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        pytest.param(
            backfill_request(_time(3_000), _time(3_500)),
            SettingsError,
            "The partitions have no record in the interval",
            id="after-the-end",
        ),
        pytest.param(
            backfill_request(0, Timestamp.model_validate({"timestamp": "2040-01-01T00:00:00Z"})),
            NotReady,
            "is not over",
            id="future",
        ),
        pytest.param(
            backfill_request(0, 99),
            SettingsError,
            "The interval ends at 99, and the partition at 7",
            id="above-the-end",
        ),
        pytest.param(
            backfill_request(1_769_817_600_000, 1_769_904_000_000, only_missing=True),
            SettingsError,
            "the longest partition ends at 7",
            id="milliseconds",
        ),
        pytest.param(
            backfill_request(0, 3, "views"),
            SettingsError,
            "The brokers have no views,",
            id="another-topic",
        ),
        pytest.param(
            backfill_request(0, 3, "clicks:9"),
            SettingsError,
            "The brokers have no clicks:9,",
            id="another-partition",
        ),
    ],
)
def test_what_cannot_be_backfilled_is_refused_and_nothing_is_claimed(
    what: BackfillRequest, error: type[EtlError], message: str
) -> None:
    outside = live(5, 5, 5)
    with pytest.raises(error, match=message):
        filled(outside, what)
    assert outside.backfill("old").claim is None and not outside.backfill("old").plans


@pytest.mark.parametrize(
    ("from_", "message"),
    [
        pytest.param(0, "Offsets 0 to 2 are gone: the log starts at 2", id="an offset"),
        pytest.param(_time(1), "The log starts at 2, so records of the interval", id="a time"),
    ],
)
def test_offsets_before_the_log_start_are_reported_and_left_out_on_request(
    from_: Any, message: str
) -> None:
    outside = live(5, 5, 5)
    outside.logs[LOGS[0]].log_start = 2
    outside.logs[LOGS[1]].log_start = 5
    for log in LOGS:
        outside.logs[log].later = dict.fromkeys(range(9), 90_000)
    with pytest.raises(DataLoss, match=message):
        filled(outside, backfill_request(from_, 5))
    claim = filled(outside, backfill_request(from_, 5, only_retained=True))
    assert claim and dict(claim.stretches) == {LOGS[0]: ((2, 5),), LOGS[2]: ((0, 5),)}


def test_before_the_first_run_nothing_is_backfilled() -> None:
    with pytest.raises(SettingsError, match="The pipeline has loaded nothing yet,"):
        filled(outside_of(3, 3, 3))


def test_a_partition_that_the_pipeline_has_not_begun_is_refused() -> None:
    outside = live(5, 5, 5)
    outside.logs[BrokerPartition("clicks", 3)] = FakeLog(9)
    with pytest.raises(SettingsError, match="The pipeline has not begun this partition,"):
        filled(outside)


def test_a_position_is_not_set_back_into_what_a_backfill_has_claimed() -> None:
    outside = started(5, 5, 5)
    with pytest.raises(Crash):
        filled(outside, backfill_request(2, 4), crash_at("begin", When.AFTER))
    with pytest.raises(
        NeedsDecision, match="would begin at offset 3, and backfill old has reserved offsets 3 to 4"
    ) as refused:
        set_to(outside, CAPPED, a=3)
    assert (
        refused.value.action
        and "`etl backfills delete CONF old --reason ...`" in refused.value.action
    )
    set_to(outside, CAPPED, a=4)
    given_up(outside)
    set_to(outside, CAPPED, b=0)
    run(outside, CAPPED)
    reject_twice(outside)


def test_a_pipeline_that_begins_inside_of_a_claim_is_refused_before_it_stores_anything() -> None:
    outside = live(5, 5, 5)
    with pytest.raises(Crash):
        filled(outside, backfill_request(2, 4), crash_at("begin", When.AFTER))
    outside.plans.clear()  # ZooKeeper lost the pipeline's ledger, and the table is another one
    outside.applied.clear()
    outside.table, outside.uid, outside.offsets = None, None, {}
    with pytest.raises(
        NeedsDecision, match="would begin at offset 0, and backfill old has reserved offsets 2 to 4"
    ):
        run(outside, settings_of())
    assert not outside.plans


def test_what_expired_meanwhile_ends_a_backfill_or_is_let_go_by_policy() -> None:
    outside = live(5, 5, 5)
    with pytest.raises(Crash):
        filled(outside, at=crash_at("begin", When.AFTER))
    outside.logs[LOGS[0]].log_start = 2
    with pytest.raises(DataLoss):
        filled(outside)
    skipping = settings_of(
        starting_offsets="latest", on_data_loss="skip", limits={"max_records_per_plan": 4}
    )
    filled(outside, settings=skipping)
    reject_twice(outside)
    assert {(LOGS[0], at) for at in (2, 3, 4)} <= set(outside.rows())
    assert [loss.until_offset for _, loss in outside.backfill("old").losses] == [2]
    report = new_report()
    filled(outside, settings=skipping, report=report)
    [(_, message)] = report.outcomes
    assert message.startswith(
        "Backfill old: 13 offsets of 3 partitions loaded; 2 more are lost, which the "
        "policy allows, and are not in the "
        "table: the losses table lists them; it began at "
    )


def test_offsets_that_are_missing_are_let_go_by_policy_in_a_plan_of_the_backfill() -> None:
    skipping = settings_of(
        starting_offsets="latest", on_data_loss="skip", limits={"max_records_per_plan": 4}
    )
    outside = live(5, 5, 5, settings=skipping)
    outside.logs[LOGS[0]].lost = {1}
    filled(outside, settings=skipping)
    reject_twice(outside)
    assert len(outside.rows()) == 20


def test_a_backfill_does_not_continue_on_a_recreated_log() -> None:
    outside = live(5, 5, 5)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 3), crash_at("store plan", When.AFTER))
    outside.logs[LOGS[0]].cut(1)
    outside.logs[LOGS[0]].grow(9)
    with pytest.raises(EtlError):
        filled(outside, backfill_request(0, 3))
    assert given_up(outside).state is ReservationState.GIVEN_UP
    accept(outside, "clicks:0", settings=CAPPED)
    run(outside, CAPPED)
    reject_twice(outside)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_backfill_of_another_table_is_deleted_and_reserves_nothing(is_there: bool) -> None:
    outside = live(5, 5, 5)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 3), crash_at("store plan", When.AFTER))
    outside.table, outside.table_id = ([] if is_there else None), "another"
    with pytest.raises(EtlError):
        filled(outside, backfill_request(0, 3))
    before = outside.backfill("old").claim
    with pytest.raises(
        NeedsDecision,
        match="The table at this path is not" if is_there else "No table exists at this path",
    ) as refused:
        given_up(outside)
    assert outside.backfill("old").claim == before, "the path may be wrong, or not mounted"
    assert f"`etl table accept-changes CONF {0 if is_there else 'none'} --reason ...`" in str(
        refused.value.action
    )
    newest = outside.newest_plan()
    assert newest
    outside.acknowledged = Acknowledgement(
        "another" if is_there else None, None, newest.number, "recreated", 1, plan_id=newest.id
    )
    claim = given_up(outside)
    assert (claim.state, dict(claim.stretches)) == (ReservationState.GIVEN_UP, {})


@pytest.mark.parametrize("is_whole", [True, False])
def test_offsets_loaded_into_another_table_are_not_reserved(is_whole: bool) -> None:
    outside = live(3, 3, 3)
    if is_whole:
        filled(outside, backfill_request(0, 3))
    else:
        with pytest.raises(Crash):
            filled(outside, backfill_request(0, 3), crash_at("record", When.AFTER))
        given_up(outside)
    plan = outside.newest_plan()
    assert plan and outside.table
    outside.table_id = (
        "another"  # recreated and accepted: it has the rows that the pipeline has loaded since
    )
    again = with_id(
        replace(
            plan,
            number=plan.number + 1,
            origin=replace(plan.origin, previous=plan.id),
            table=replace(plan.table, id="another"),
            ranges=(),
        )
    )
    outside.table = [FakeCommit(again, ())]
    outside.plans[again.number] = render_plan(again)
    if is_whole:
        with pytest.raises(LedgersDisagree, match="The table at this path has id another,"):
            filled(outside, backfill_request(0, 3))
    claim = filled(outside, backfill_request(0, 3, only_missing=True), name="rest")
    assert claim and claim.offsets == 9
    assert {offset_of(at) for _, at in outside.rows()} == {0, 1, 2}
    outside.acknowledged = Acknowledgement("another", None, -1, "recreated", 1)
    assert dict(given_up(outside).stretches) == {}
    reject_twice(outside)


def test_physical_logs_are_backfilled_by_offsets_at_which_a_message_begins() -> None:
    settings = settings_of(broker_type="jafka", starting_offsets="latest")
    outside = physical_outside_of(5, 5)
    run(outside, settings)
    ends = {log: found.end for log, found in outside.logs.items()}
    for log in PHYSICAL_LOGS[:2]:
        outside.logs[log].grow(1)
    run(outside, settings)
    claim = filled(
        outside, backfill_request(0, ends[PHYSICAL_LOGS[0]], "clicks:1-0"), settings=settings
    )
    assert claim and list(claim.stretches) == [PHYSICAL_LOGS[0]]
    assert {place for log, place in outside.rows() if log == PHYSICAL_LOGS[0]} == set(
        outside.logs[PHYSICAL_LOGS[0]].read(0, outside.logs[PHYSICAL_LOGS[0]].end)
    )


def test_of_two_who_claim_at_one_moment_the_second_is_refused() -> None:
    outside = live(5, 5, 5)

    def meanwhile(step: str, when: When) -> None:
        if (step, when) == ("begin", When.BEFORE) and not outside.backfill("new").plans:
            filled(outside, backfill_request(1, 3), name="new")

    with pytest.raises(Owned, match="offsets were claimed at this moment"):
        filled(outside, backfill_request(0, 3), meanwhile)
    assert outside.backfill("old").claim is None
    reject_twice(outside)


def test_what_a_stored_plan_of_the_pipeline_may_still_read_is_its_own() -> None:
    outside = started(5, 5, 5)
    grow(outside, 4, 0, 0)
    with pytest.raises(Crash):
        run(outside, CAPPED, crash_at("store plan", When.AFTER))
    assert outside.newest_plan() and outside.transaction_version() == 1
    with pytest.raises(SettingsError, match="The pipeline loads this partition from offset 5 on"):
        filled(outside, backfill_request(0, 6, "clicks:0"))
    filled(outside, backfill_request(0, 5))
    run(outside, CAPPED)
    reject_lacking(outside)


def test_what_a_plan_in_the_place_of_another_leaves_out_is_not_free_before_it_is_in_the_table() -> (
    None
):
    """A driver that runs the other backfill may find the missing records again, and append them."""
    settings = settings_of(starting_offsets="latest", on_data_loss="skip")
    outside = outside_of(5, 5, 5)
    run(outside, settings)
    grow(outside, 4, 0, 0)
    outside.logs[LOGS[0]].lost = {6}
    with pytest.raises(Crash):
        run(outside, settings, crash_at("supersede", When.AFTER))
    outside.logs[LOGS[0]].lost = set()
    with pytest.raises(Owned, match=r"Plan 2 of the pipeline is stored and not in the table\."):
        filled(outside, backfill_request(6, 7, "clicks:0"), settings=settings)
    run(outside, settings)
    filled(outside, backfill_request(6, 7, "clicks:0"), settings=settings)
    assert {offset_of(at) for log, at in outside.rows() if log == LOGS[0]} == set(range(5, 9))
    reject_twice(outside)


def test_after_a_stored_plan_that_sets_offsets_no_backfill_begins() -> None:
    outside = started(5, 5, 5)
    grow(outside, 4, 4, 4)
    set_to(outside, CAPPED, a=7)
    with pytest.raises(Owned, match=r"Plan 2 of the pipeline is stored and not in the table\."):
        filled(outside, backfill_request(0, 7, "clicks:0"))
    run(outside, CAPPED)
    filled(outside, backfill_request(0, 7, "clicks:0"))
    while outcomes(run(outside, CAPPED)) != [Outcome.UP_TO_DATE]:
        pass
    reject_twice(outside)
    assert {offset_of(at) for log, at in outside.rows() if log == LOGS[0]} == set(range(9)), (
        "the backfill loads the offsets that the operator skipped"
    )
