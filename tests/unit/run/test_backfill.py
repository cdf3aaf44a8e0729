"""Backfills on a fake cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from etl.commands.restore_ledger import restore_from_commits
from etl.decide.backfill import BackfillRequest
from etl.decide.byte_offsets import no_operator_offsets
from etl.decide.plan_replacement import topics_left_to_read
from etl.decide.replay import ReplayRequest
from etl.errors import (
    DataLoss,
    EtlError,
    LedgersDisagree,
    NeedsDecision,
    NotReady,
    Owned,
    PartitionTruncated,
    SessionLost,
    SettingsError,
)
from etl.io.zookeeper.ledger_side_documents import BackfillStore
from etl.model.partitions import TopicPartition, parse_named
from etl.model.plans import Plan
from etl.report.describe import format_time
from etl.report.run_progress import Outcome
from etl.run.backfill import BegunBackfill
from etl.run.replay import replay
from etl.settings.source import Timestamp
from tests.fakes.backfill_stories import (
    CAPPED,
    accept_table,
    backfill_request,
    filled,
    left,
    live,
)
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
    once,
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
    assert not [row for row, times in outside.rows().items() if times > 1]


def reject_lacking(outside: Outside, first: int = 0) -> None:
    """Each record from `first` on is in the table once."""
    reject_twice(outside)
    there = {
        (partition, at)
        for partition, found in outside.logs.items()
        for at in range(first, found.end)
    }
    assert set(outside.rows()) == there


def test_a_backfill_loads_the_records_before_the_start_in_bounded_plans_and_moves_no_offset() -> (
    None
):
    outside = live(5, 5, 5)
    offsets, report = dict(outside.offsets), new_report()
    filled(outside, report=report)
    reject_lacking(outside)
    assert outside.offsets == offsets
    of_backfill = [plan for plan in outside.ledger.read_plans() if plan.backfill == "old"]
    assert [sum(r.size for r in plan.ranges) for plan in of_backfill] == [4, 4, 4, 3]
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


def test_a_deleted_backfill_ends_after_its_present_plan_and_its_name_is_free() -> None:
    outside = live(3, 3, 3)

    def deleted(step: str, when: When) -> None:
        if step == "append":
            outside.backfills.clear()

    with pytest.raises(SettingsError, match="Backfill old was deleted while it was loaded"):
        filled(outside, backfill_request(0, 3), deleted)
    loaded = len(outside.rows())
    assert 6 < loaded < 15, "the present plan is in the table"
    filled(outside, backfill_request(0, 3, only_missing=True))
    reject_lacking(outside)


@pytest.mark.parametrize(
    ("moment", "message"),
    [
        (("observe", When.AFTER), "does not have the result of plan"),
        (("store plan", When.BEFORE), "or the ledger was restored from a copy"),
    ],
)
def test_a_ledger_that_is_restored_during_a_run_gets_no_plan_of_it(
    moment: tuple[str, When], message: str
) -> None:
    """Otherwise a backfill would load offsets of plan N again."""
    outside = live(3, 3, 3)
    copy_of_ledger = outside.zookeeper.persistent()
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 3), crash_at("tidy", When.AFTER))
    grow(outside, 1, 1, 1)

    restored = once(*moment, lambda: outside.zookeeper.restore(copy_of_ledger))
    with pytest.raises(Owned, match=message):
        run(outside, CAPPED, restored)
    run(outside, CAPPED)
    filled(outside, backfill_request(0, 3, only_missing=True), name="rest")
    reject_lacking(outside)


def _replay(outside: Outside) -> Plan:
    wanted = ReplayRequest((parse_named("clicks:0"),), 5, 6)
    return replay(FakeWorld(outside, CAPPED), CAPPED, new_report(), wanted, None)


def _set_offsets(outside: Outside) -> Plan | None:
    return set_to(outside, CAPPED, a=9)


def _restore_offsets(outside: Outside) -> Plan:
    outside.move_offset(LOGS[0], 4)
    world = FakeWorld(outside, CAPPED)
    return restore_from_commits(world, world.observe(), CAPPED, "seen", "run-9")


@pytest.mark.parametrize("command", [_replay, _set_offsets, _restore_offsets])
def test_a_command_takes_the_number_of_a_stored_plan_of_a_backfill(
    command: Callable[[Outside], Plan | None],
) -> None:
    outside = live(5, 5, 5)
    if command is _set_offsets:
        grow(outside, 4, 4, 4)
    with pytest.raises(Crash):
        filled(outside, backfill_request(1, 3), crash_at("store plan", When.AFTER))
    stored = outside.newest_plan()
    plan = command(outside)
    assert stored and plan and plan.backfill is None
    assert (plan.number, plan.origin.supersedes) == (stored.number, stored.id)
    while outcomes(run(outside, CAPPED)) != [Outcome.UP_TO_DATE]:
        reject_twice(outside)
    assert outside.offsets[LOGS[0]][0] == outside.logs[LOGS[0]].end
    filled(outside, None)
    reject_twice(outside)
    assert not left(outside)


def test_rows_that_only_an_unknown_plan_can_have_loaded_are_not_loaded_again() -> None:
    """ZooKeeper was restored from a copy, and the table's log has lost commits since."""
    outside = live(3, 3, 3)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 3), crash_at("create backfill", When.AFTER))
    copy_of_ledger = outside.zookeeper.persistent()
    filled(outside, None)
    grow(outside, 1, 1, 1)
    run(outside, CAPPED)
    outside.zookeeper.restore(copy_of_ledger)
    assert outside.table
    newest = outside.table[-1]
    forgotten = outside.table[2:-1]
    with forgetting(outside, forgotten):
        run(outside, CAPPED)
    assert outside.newest_plan() == newest.plan
    with pytest.raises(NeedsDecision, match="rows of offsets 0 to .* ZooKeeper knows") as refused:
        filled(outside, None)
    assert refused.value.where["partition"] == 0
    reject_twice(outside)


def test_a_complete_backfill_reports_its_time_and_its_request() -> None:
    """A relative time was another moment then: a fixed name would load one day alone."""
    outside = live(3, 3, 3)
    what = replace(backfill_request(0, 3), asked="from -24h until -1h")
    filled(outside, what)
    requested, report = BackfillStore(outside.ledger).read("old"), new_report()
    assert requested
    filled(outside, what, report=report)
    text = (
        f"Backfill old: all 9 offsets of 3 partitions loaded; it began at "
        f"{format_time(requested.created_at_ms)} from -24h until -1h"
    )
    assert report.outcomes == [(Outcome.ALREADY_LOADED, text)]


def test_what_the_pipeline_or_another_backfill_has_is_refused_by_name_and_left_out_on_request() -> (
    None
):
    outside = live(5, 5, 5)
    with pytest.raises(
        SettingsError,
        match="The pipeline has loaded this partition from offset 5 on, or its runs load it, and the interval is 0",
    ):
        grow(outside, 2, 2, 2)
        filled(outside, backfill_request(0, 9))
    with pytest.raises(
        SettingsError,
        match="The pipeline has loaded this partition from offset 5 on, or its runs load it, and the interval is 2",
    ) as refused:
        filled(outside, backfill_request(2, 6))
    assert (
        refused.value.action
        and "`--only-unloaded`, which leaves these offsets out (it loads 2 to 5)."
        in refused.value.action
    )
    filled(outside, backfill_request(2, 4))
    with pytest.raises(SettingsError, match="The pipeline has loaded offsets 2 to 4"):
        filled(outside, backfill_request(0, 5), name="new")
    filled(outside, backfill_request(0, 9, only_missing=True), name="new")
    assert intervals_of(outside, "new") == {((0, 2), (4, 5))}
    report = filled(outside, backfill_request(0, 9, only_missing=True), name="none")
    assert outcomes(report) == [Outcome.UP_TO_DATE] and "none" not in outside.backfills
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
    for partition in LOGS:
        outside.logs[partition].later = {n: 10_000 + n for n in range(2, 5)} | {
            n: 90_000 for n in range(5, 9)
        }
    filled(outside, backfill_request(_time(10), _time(60)))
    assert intervals_of(outside) == {((2, 5),)}
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
def test_what_cannot_be_backfilled_is_rejected_and_nothing_is_stored(
    what: BackfillRequest, error: type[EtlError], message: str
) -> None:
    outside = live(5, 5, 5)
    plans = dict(outside.plans)
    with pytest.raises(error, match=message):
        filled(outside, what)
    assert not outside.backfills and outside.plans == plans


def with_a_new_partition() -> Outside:
    outside = live(5, 5, 5)
    outside.logs[TopicPartition("clicks", 3)] = FakeLog(9)
    return outside


def backfilled() -> Outside:
    outside = live(5, 5, 5)
    filled(outside)
    return outside


@pytest.mark.parametrize(
    ("make", "what", "message"),
    [
        (lambda: outside_of(3, 3, 3), backfill_request(), "This pipeline has loaded nothing yet,"),
        (with_a_new_partition, backfill_request(), "The pipeline has not begun this partition,"),
        (lambda: live(5, 5, 5), None, "No backfill of this name exists"),
        (
            backfilled,
            backfill_request(0, 4),
            r"Backfill old was begun from 0 until 5 \(\) False, and this request is from 0 until 4",
        ),
    ],
    ids=["before the first run", "a partition not begun", "not begun", "another interval"],
)
def test_a_backfill_that_does_not_fit_the_pipeline_is_refused(
    make: Callable[[], Outside], what: BackfillRequest | None, message: str
) -> None:
    outside = make()
    with pytest.raises(SettingsError, match=message):
        filled(outside, what)


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
    for partition in LOGS:
        outside.logs[partition].later = dict.fromkeys(range(9), 90_000)
    with pytest.raises(DataLoss, match=message):
        filled(outside, backfill_request(from_, 5))
    filled(outside, backfill_request(from_, 5, only_retained=True))
    requested = BackfillStore(outside.ledger).read("old")
    assert requested and dict(requested.intervals) == {LOGS[0]: ((2, 5),), LOGS[2]: ((0, 5),)}


def test_what_expired_meanwhile_ends_a_backfill_or_is_let_go_by_policy() -> None:
    outside = live(5, 5, 5)
    with pytest.raises(Crash):
        filled(outside, at=crash_at("create backfill", When.AFTER))
    outside.logs[LOGS[0]].log_start = 2
    with pytest.raises(DataLoss):
        filled(outside)
    skipping = settings_of(
        starting_offsets="latest", on_data_loss="skip", limits={"max_records_per_plan": 4}
    )
    filled(outside, settings=skipping)
    reject_twice(outside)
    assert {(LOGS[0], at) for at in (2, 3, 4)} <= set(outside.rows())
    assert [loss.until_offset for _, loss in outside.losses] == [2]
    report = new_report()
    filled(outside, settings=skipping, report=report)
    [(_, message)] = report.outcomes
    assert message.startswith(
        "Backfill old: 13 offsets of 3 partitions loaded; 2 more are lost, which the "
        "policy allows, and are not in the "
        "table: the losses table lists them; it began at "
    )


def test_a_driver_that_sleeps_while_its_backfill_is_deleted_does_not_begin_it_again() -> None:
    outside, begun = live(5, 5, 5), BegunBackfill()

    def sleep() -> None:
        outside.backfills.clear()
        raise SessionLost("the session ended")

    with pytest.raises(SessionLost):
        filled(outside, at=once("append", When.AFTER, sleep), begun=begun)
    with pytest.raises(SettingsError, match="Backfill old was deleted while it was loaded"):
        filled(outside, begun=begun)
    assert not outside.backfills


def test_the_driver_of_a_deleted_backfill_that_wakes_up_does_not_advise_to_delete_it() -> None:
    outside = live(5, 5, 5)

    def slept(step: str, when: When) -> None:
        if (step, when) == ("fetch", When.BEFORE):
            outside.backfills.clear()
            for log in outside.logs.values():
                log.log_start = 5

    with pytest.raises(SettingsError, match="Backfill old was deleted while it was loaded"):
        filled(outside, at=slept)


def test_offsets_that_were_set_back_into_the_request_are_left_to_runs_and_not_called_loaded() -> (
    None
):
    outside = started(5, 5, 5)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 5), crash_at("fetch", When.BEFORE))
    set_to(outside, CAPPED, a=1)
    outcome, sentence = filled(outside, None).outcomes[-1]
    assert outcome is Outcome.BACKFILL_DONE
    assert "11 offsets of 3 partitions loaded; 4 more are not in the table" in sentence
    while outcomes(run(outside, CAPPED)) != [Outcome.UP_TO_DATE]:
        reject_twice(outside)
    _, sentence = filled(outside, None).outcomes[-1]
    assert "all 15 offsets of 3 partitions loaded" in sentence
    reject_lacking(outside)


def test_a_dropped_table_that_was_accepted_is_made_by_a_backfill() -> None:
    outside = live(5, 5, 5)
    outside.table = None
    accept_table(outside)
    filled(outside, backfill_request(0, 5))
    assert not left(outside)
    filled(outside, backfill_request(0, 7, only_missing=True), name="rest")
    reject_twice(outside)
    reject_lacking(outside)


def test_what_an_older_copy_of_the_table_lacks_is_loaded_again_once_that_is_accepted() -> None:
    outside = live(3, 3, 3)
    filled(outside, backfill_request(0, 3))
    assert outside.table
    del outside.table[-2:]
    with pytest.raises(LedgersDisagree):
        filled(outside, None)
    accept_table(outside)
    report = filled(outside, None)
    assert outcomes(report)[-1] is Outcome.BACKFILL_DONE
    reject_lacking(outside)


def test_physical_logs_are_backfilled_by_offsets_at_which_a_message_begins() -> None:
    settings = settings_of(broker_type="jafka", starting_offsets="latest")
    outside = physical_outside_of(5, 5)
    run(outside, settings)
    ends = {partition: found.end for partition, found in outside.logs.items()}
    for partition in PHYSICAL_LOGS[:2]:
        outside.logs[partition].grow(1)
    run(outside, settings)
    filled(outside, backfill_request(0, ends[PHYSICAL_LOGS[0]], "clicks:1-0"), settings=settings)
    requested = BackfillStore(outside.ledger).read("old")
    assert requested and list(requested.intervals) == [PHYSICAL_LOGS[0]]
    assert {place for partition, place in outside.rows() if partition == PHYSICAL_LOGS[0]} == set(
        outside.logs[PHYSICAL_LOGS[0]].read(0, outside.logs[PHYSICAL_LOGS[0]].end)
    )


def test_of_two_requests_under_one_name_at_one_moment_the_second_is_rejected() -> None:
    outside = live(5, 5, 5)

    def meanwhile(step: str, when: When) -> None:
        if (step, when) == ("create backfill", When.BEFORE) and not outside.backfills:
            filled(outside, backfill_request(1, 3))

    with pytest.raises(Owned, match="Another command changed this backfill"):
        filled(outside, backfill_request(0, 3), meanwhile)
    reject_twice(outside)


@pytest.mark.parametrize("until", [5, 7])
def test_the_stored_plan_of_a_run_is_executed_before_a_backfill_begins(until: int) -> None:
    outside = started(5, 5, 5)
    grow(outside, 4, 4, 4)
    if until == 5:
        with pytest.raises(Crash):
            run(outside, CAPPED, crash_at("store plan", When.AFTER))
    else:
        set_to(outside, CAPPED, a=until)
    assert outside.newest_plan() and outside.transaction_version() == 1
    filled(outside, backfill_request(0, until, "clicks:0"))
    while outcomes(run(outside, CAPPED)) != [Outcome.UP_TO_DATE]:
        reject_twice(outside)
    assert {offset_of(at) for partition, at in outside.rows() if partition == LOGS[0]} == set(
        range(9)
    ), "also offsets that an operator skipped"


def test_each_plan_is_loaded_under_a_driver_lock_of_its_own() -> None:
    turns = list[int]()

    @contextlib.contextmanager
    def turn() -> Any:
        turns.append(len(outside.rows()))
        yield

    outside = live(5, 5, 5)
    filled(outside, turn=turn)
    assert turns == [6, 10, 14, 18, 21], "before each plan, and to see that nothing is left"


def intervals_of(outside: Outside, name: str = "old") -> set[tuple[tuple[int, int], ...]]:
    requested = BackfillStore(outside.ledger).read(name)
    assert requested
    return set(requested.intervals.values())


@contextlib.contextmanager
def forgetting(outside: Outside, commits: list[FakeCommit]) -> Any:
    """Inside, the table's log has lost these commits, and the table has their rows."""
    gone = {id(one) for one in commits}
    whole = Outside.commits

    def commits_left(self: Outside) -> list[tuple[int, FakeCommit]]:
        return [(version, one) for version, one in whole(self) if id(one) not in gone]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outside, "commits", commits_left)
        yield


def test_losses_are_the_backfills_though_it_was_killed_after_their_plan_was_recorded() -> None:
    skipping = settings_of(
        starting_offsets="latest", on_data_loss="skip", limits={"max_records_per_plan": 4}
    )
    outside = live(5, 5, 5, settings=skipping)
    outside.logs[LOGS[0]].lost = {1}
    with pytest.raises(Crash):
        filled(outside, settings=skipping, at=crash_at("replace backfill", When.BEFORE))
    filled(outside, None)
    assert [(loss.from_offset, loss.until_offset) for _, loss in outside.losses] == [(1, 2)]
    assert not left(outside)
    reject_twice(outside)


def test_the_retention_of_all_topics_is_known_to_each_plan_of_a_backfill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It explains missing offsets: below the loaded-until offsets no other plan needs it."""
    named = list[bool]()
    observe = FakeWorld.observe

    def observe_and_note(world: FakeWorld, offsets: Any = no_operator_offsets) -> Any:
        named.append(offsets is not no_operator_offsets)
        return observe(world, offsets)

    outside = live(5, 5, 5)
    monkeypatch.setattr(FakeWorld, "observe", observe_and_note)
    filled(outside)
    assert len(named) == 5 and all(named)


def test_a_deleted_topic_stops_runs_beside_a_stored_plan_of_a_backfill() -> None:
    outside = live(5, 5, 5)
    with pytest.raises(Crash):
        filled(outside, backfill_request(1, 3), crash_at("store plan", When.AFTER))
    assert topics_left_to_read(outside.ledger.read_ledger()) == set()


# -- truncated and recreated partitions


EARLIEST = settings_of()
FIRST = "clicks:0"


def cut_at(outside: Outside, at: int, more: int = 0) -> None:
    """The first log loses what comes from there on, and others write so much to it."""
    outside.logs[LOGS[0]].cut(at)
    outside.logs[LOGS[0]].grow(more)


def reject_doubled(outside: Outside) -> None:
    """No record that ever was is in the table twice."""
    assert not [row for row, times in outside.records().items() if times > 1]


def begun(until: int = 5) -> Outside:
    """A backfill has claimed up to there, and one plan of it is in the table."""
    outside = live(9, 9, 9)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, until, FIRST), crash_at("tidy", When.AFTER))
    assert (
        sum(partition == LOGS[0] and int(str(at)) < until for partition, at in outside.rows()) == 4
    )
    return outside


@pytest.mark.parametrize("only_missing", [True, False])
def test_the_rest_of_a_truncated_log_is_not_loaded_again_by_a_backfill(
    only_missing: bool,
) -> None:
    outside = outside_of(6, 2, 2)
    run(outside, EARLIEST)
    cut_at(outside, 3, 2)
    accept(outside, FIRST)
    run(outside, EARLIEST)
    run(outside, EARLIEST)
    with pytest.raises(
        NeedsDecision,
        match="This partition was truncated or recreated since the pipeline began it.",
    ):
        filled(outside, backfill_request(0, 3, FIRST, only_missing=only_missing), settings=EARLIEST)
    assert not outside.backfills
    reject_doubled(outside)
    report = filled(
        outside, backfill_request(0, 2, "clicks:1", only_missing=True), settings=EARLIEST
    )
    assert outcomes(report) == [Outcome.UP_TO_DATE], "the others are not refused"


@pytest.mark.parametrize("step", ["tidy", "store plan"])
def test_a_backfill_does_not_read_on_where_the_pipeline_has_another_incarnation_of_the_log(
    step: str,
) -> None:
    outside = live(9, 9, 9)
    with pytest.raises(Crash):
        filled(outside, backfill_request(0, 8, FIRST), crash_at(step, When.AFTER))
    cut_at(outside, 5, 9)
    accept(outside, FIRST, settings=CAPPED)
    run(outside, CAPPED)
    with pytest.raises(
        NeedsDecision,
        match="as truncated or recreated, and the backfill was requested before that",
    ) as refused:
        filled(outside, None)
    assert "`etl backfills delete CONF old --reason ...`" in refused.value.action
    for _ in range(4):
        run(outside, CAPPED)
    reject_doubled(outside)


@pytest.mark.parametrize("more", [0, 9], ids=["it is short", "others wrote more"])
def test_a_log_that_was_cut_inside_of_a_request_is_not_read_before_anybody_accepts_it(
    more: int,
) -> None:
    outside = begun(8)
    cut_at(outside, 5, more)
    before = outside.rows()
    with pytest.raises(PartitionTruncated) as refused:
        filled(outside, None)
    assert "etl topics accept-changes" in refused.value.action
    assert outside.rows() == before
