"""Runs on a fake outside: their steps, outcomes and errors, and what the next one finishes.

That no history of crashes and of other drivers doubles or loses a record is in
`test_stateful_law`, except for byte offsets: they have the crash table here.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import replace
from typing import Any

import pytest

from etl.decide.restore_ledger import Lost, find_lost_part
from etl.errors import LedgersDisagree, NeedsDecision, Owned, PartitionTruncated, SettingsError
from etl.ledger.documents import parse
from etl.ledger.plan_document import with_id
from etl.model.partitions import Isolation, TopicPartition
from etl.model.plans import CommitResult, Plan
from etl.model.snapshot import Acknowledgement, Pause
from etl.report.report_json import report_as_json
from etl.report.run_progress import Outcome
from etl.run.ingest import ingest
from etl.settings.choices import OnOwned
from tests.builders import changed
from tests.fakes.fake_log import FakeLog
from tests.fakes.outside import FakeCommit, Outside
from tests.fakes.stories import (
    CRASHES,
    FIRST_CRASHES,
    LOGS,
    SETTINGS,
    STEPS,
    At,
    OutsideOf,
    crash_at,
    grow,
    new_report,
    of_both_kinds,
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


def test_a_log_without_a_leader_is_named_and_what_it_holds_is_read_when_it_has_one_again() -> None:
    outside, settings = outside_of(4, 4), settings_of(on_no_leader="skip")
    run(outside, settings)
    outside.logs[LOGS[0]] = FakeLog(9, has_leader=False)
    outside.logs[LOGS[1]].end = 6
    report = run(outside, settings)
    assert outcomes(report) == [Outcome.NO_LEADER, Outcome.INGESTED]
    assert report.outcomes[0][1] == "clicks 0: no leader; left out"
    outside.logs[LOGS[0]].has_leader = True
    assert outcomes(run(outside, settings)) == [Outcome.INGESTED]
    assert sorted(outside.rows()) == [(LOGS[0], n) for n in range(9)] + [
        (LOGS[1], n) for n in range(6)
    ]


@of_both_kinds
def test_a_first_run_takes_these_steps_and_its_table_and_offsets_end_together(
    outside_of: OutsideOf,
) -> None:
    outside = outside_of(5, 3, 4)
    world = FakeWorld(outside, settings_for(outside))
    ingest(world, settings_for(outside), new_report())
    assert world.steps == STEPS
    reject_unfinished(outside)


@of_both_kinds
@pytest.mark.parametrize(
    ("step", "when", "is_first"),
    [(*crash, True) for crash in FIRST_CRASHES] + [(*crash, False) for crash in CRASHES],
)
def test_after_a_crash_the_next_run_finishes_and_every_record_is_there_once(
    outside_of: OutsideOf, step: str, when: When, is_first: bool
) -> None:
    outside = outside_of(5, 3, 4)
    if not is_first:
        run(outside)
        grow(outside, 7, 1, 2)
    with pytest.raises(Crash):
        run(outside, at=crash_at(step, when))
    reject_broken(outside)
    grow(outside, 3, 1, 9)
    run(outside)
    reject_unfinished(outside)


@of_both_kinds
def test_a_stored_plan_is_replayed_to_the_old_end_and_what_came_since_is_the_same_runs_next_plan(
    outside_of: OutsideOf,
) -> None:
    outside = outside_of(5, 3, 4)
    with pytest.raises(Crash):
        run(outside, at=crash_at("store plan", When.AFTER))
    stored = outside.newest_plan()
    grow(outside, 10, 10, 10)
    report = run(outside)
    assert outcomes(report) == [Outcome.PLAN_RESUMED, Outcome.INGESTED, Outcome.INGESTED]
    assert report.plans[0].plan == stored
    assert [commit.number for commit in outside.table or ()] == [1, 2]
    rows = sum(outside.rows().values())
    assert (
        report.records,
        report.offsets_committed,
        report_as_json(report)["previous_plans"][0]["number"],
    ) == (rows, 6, 1)
    reject_unfinished(outside)


def test_the_caps_apply_to_the_new_plan_and_the_report_lists_the_rest() -> None:
    outside, settings = outside_of(9, 0, 0), settings_of(limits={"max_records_per_plan": 4})
    with pytest.raises(Crash):
        run(outside, settings, at=crash_at("store plan", When.AFTER))
    report = run(outside, settings)
    assert outcomes(report) == [
        Outcome.PLAN_RESUMED,
        Outcome.INGESTED,
        Outcome.INGESTED,
        Outcome.LIMIT_REACHED,
    ]
    assert [one.records for one in report.plans] == [4, 4]
    assert (
        report.outcomes[-1][1] == "limits.max_records_per_plan (4): 1 offsets of 1 partition remain"
    )


def test_an_error_after_the_replay_leaves_a_report_of_both_plans() -> None:
    outside, report = outside_of(5, 3, 4), new_report()
    with pytest.raises(Crash):
        run(outside, at=crash_at("store plan", When.AFTER))
    grow(outside, 1, 0, 0)

    def at(reached: str, side: When) -> None:
        if reached == "append" and len(outside.plans) == 2:
            raise SettingsError("the table folder is invalid")

    with pytest.raises(SettingsError):
        ingest(FakeWorld(outside, SETTINGS, at), SETTINGS, report)
    reported = report_as_json(report)
    assert (
        [plan["number"] for plan in reported["previous_plans"]],
        reported["plan"]["number"],
        reported["records_read"],
    ) == ([1], 2, 12)
    assert (reported["table_version"], reported["plan"]["table_version"]) == (1, None)


def test_a_missing_record_is_counted_again_from_the_table() -> None:
    outside = outside_of(5, 3, 4)
    outside.logs[LOGS[0]].missing = {1, 2}
    run(outside)
    whole = outside.applied.pop(1)
    report = run(outside)
    assert outcomes(report) == [Outcome.PLAN_COMPLETED, Outcome.UP_TO_DATE]
    found, before = (
        parse(CommitResult, payload, path="applied") for payload in (outside.applied[1], whole)
    )
    rows_tell = tuple(
        replace(result, fetched_bytes=None, last_epoch=None, epochs=()) for result in before.results
    )
    assert found == replace(before, results=rows_tell)


def without_result_and_commit(outside: Outside) -> Outside:
    """A plan ran; its result was not recorded, and the table's log was cleaned up."""
    run(outside)
    outside.applied.clear()
    outside.forgotten_commits = True
    return outside


def test_a_plan_without_result_may_be_another_one_than_the_tables_if_its_log_forgot_the_commit() -> (
    None
):
    outside = without_result_and_commit(outside_of(5, 3, 4))
    with pytest.raises(LedgersDisagree, match="is unknown: the table's log no longer") as rejected:
        run(outside)
    assert "etl ledger restore CONF" in rejected.value.action and not outside.applied
    snapshot = FakeWorld(outside, SETTINGS).observe()
    assert find_lost_part(snapshot, SETTINGS) == (Lost.PLANS, None)


def test_such_a_plan_stays_unknown_when_the_table_is_accepted() -> None:
    """Its rows may have been deleted, or may be those of another plan of this number."""
    outside = without_result_and_commit(outside_of(5, 3, 4))
    table = FakeWorld(outside, SETTINGS).observe().table
    assert table is not None
    outside.acknowledged = Acknowledgement(table.id, table.version, 1, "it is right", 1)
    with pytest.raises(LedgersDisagree, match="is unknown: the table's log no longer") as rejected:
        run(outside)
    assert "etl ledger restore CONF" in rejected.value.action and not outside.applied


def test_such_a_plan_of_jafka_counts_as_done_once_the_table_is_accepted() -> None:
    outside = without_result_and_commit(physical_outside_of(5, 3, 4))
    with pytest.raises(LedgersDisagree, match="is unknown") as rejected:
        run(outside)
    table = FakeWorld(outside, settings_for(outside)).observe().table
    assert table is not None
    assert f"etl table accept-changes CONF {table.version} " in rejected.value.action
    outside.acknowledged = Acknowledgement(table.id, table.version, 1, "not restored", 1)
    assert outcomes(run(outside)) == [Outcome.PLAN_COMPLETED, Outcome.UP_TO_DATE]
    recorded = parse(CommitResult, outside.applied[1], path="applied")
    assert recorded.rows == sum(outside.rows().values()) >= 12


class Uncounted(FakeWorld):
    def recount(self, plan: Plan) -> None:
        """The table does not hold this plan any more."""


def test_an_uncountable_result_does_not_stop_the_pipeline() -> None:
    outside, report = outside_of(5, 3, 4), new_report()
    run(outside)
    outside.applied.clear()
    ingest(Uncounted(outside, SETTINGS), SETTINGS, report)
    assert outcomes(report) == [Outcome.UP_TO_DATE]


def test_a_run_with_nothing_new_only_looks() -> None:
    outside = outside_of(5, 3, 4)
    run(outside)
    world, report = FakeWorld(outside, SETTINGS), new_report()
    ingest(world, SETTINGS, report)
    assert world.steps == ["observe"]
    assert outcomes(report) == [Outcome.UP_TO_DATE]
    assert set(outside.plans) == {1}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("source.isolation_level", Isolation.READ_UNCOMMITTED),
        ("transform.dataframe", "shaping:rows"),
        ("transform.record_batch", "shaping:batch"),
        ("table.partition_by", ("event_date",)),
    ],
)
def test_a_stored_plan_is_not_replayed_in_another_shape(key: str, value: Any) -> None:
    outside = outside_of(5, 3, 4)
    with pytest.raises(Crash):
        run(outside, at=crash_at("store plan", When.AFTER))
    world = FakeWorld(outside, SETTINGS)
    section, name = key.split(".")
    changed = getattr(SETTINGS, section).model_copy(update={name: value})
    with pytest.raises(NeedsDecision, match="the settings of its rows have changed") as caught:
        ingest(world, SETTINGS.model_copy(update={section: changed}), new_report())
    assert key in caught.value.action
    assert world.steps == ["observe"]
    run(outside)
    reject_unfinished(outside)


@pytest.mark.parametrize("trouble", ["live group", "owned"])
def test_what_others_read_is_refused_before_anything_is_stored(trouble: str) -> None:
    outside = outside_of(5, 3, 4)
    if trouble == "live group":
        outside.live_consumers = ("group_host-1",)
    else:
        outside.owners = {LOGS[1]: "group_host-1-0"}
    before = copy.deepcopy(outside)
    with pytest.raises(Owned, match="group_host-1") as caught:
        run(outside)
    assert caught.value.exit_code == 4 and outside == before


def overtaken(outside: Outside, *, always: bool) -> At:
    """Another driver appends another plan of our number before we do: once, or whatever we try."""

    def at(reached: str, side: When) -> None:
        if (reached, side) == ("open table", When.BEFORE) and (always or outside.table is None):
            # the other driver superseded our plan, appended its own and died before it could commit
            newest = outside.newest_plan()
            assert newest is not None
            other = with_id(
                changed(
                    newest,
                    ranges=newest.ranges[:1],
                    loaded_until={**newest.loaded_until, LOGS[1]: 0, LOGS[2]: 0},
                )
            )
            rows = tuple(
                (r.partition, offset)
                for r in other.ranges
                for offset in range(r.from_offset, r.until_offset)
            )
            outside.table = [*(outside.table or ()), FakeCommit(other, rows)]

    return at


def test_another_plan_of_the_same_number_in_the_table_is_an_outcome_and_the_run_continues() -> None:
    outside = outside_of(5, 3, 4)
    report = run(outside, at=overtaken(outside, always=False))
    assert outcomes(report) == [
        Outcome.LOADED_BY_ANOTHER_RUN,
        Outcome.LEDGER_RESTORED,
        Outcome.PLAN_COMPLETED,
        Outcome.INGESTED,
    ]
    assert [(one.plan.number, one.applied is None) for one in report.plans] == [
        (1, True),
        (2, False),
    ]
    reject_unfinished(outside)


def test_a_run_that_is_overtaken_again_and_again_ends_as_owned_by_another_driver() -> None:
    outside = outside_of(5, 3, 4)

    def at(reached: str, side: When) -> None:
        if (reached, side) == ("observe", When.BEFORE):
            grow(outside, 1, 1, 1)
        overtaking(reached, side)

    overtaking = overtaken(outside, always=True)
    with pytest.raises(Owned, match="3 steps did not finish"):
        run(outside, at=at)
    reject_broken(outside)
    run(outside)
    reject_unfinished(outside)


def test_a_disagreement_of_the_ledgers_is_reported_with_the_path_of_the_table() -> None:
    outside = outside_of(5, 3, 4)
    run(outside)
    outside.table = None
    with pytest.raises(LedgersDisagree) as caught:
        run(outside)
    assert caught.value.where["path"] == SETTINGS.table.path
    assert (
        "given up, and loading continues after them, in clicks 0 from offset 5 (and 2 more)"
        in caught.value.action
    )


@pytest.mark.parametrize("step", ["open table", "append"])
def test_our_plan_appended_by_another_run_is_reported_with_that_runs_name_and_finished(
    step: str,
) -> None:
    outside, report = outside_of(5, 3, 4), new_report()

    def at(reached: str, side: When) -> None:
        if (reached, side) == (step, When.BEFORE):
            with contextlib.suppress(Crash):
                ingest(
                    FakeWorld(outside, SETTINGS, crash_at("record", When.BEFORE), run_id="run-2"),
                    SETTINGS,
                    new_report(),
                )

    ingest(FakeWorld(outside, SETTINGS, at), SETTINGS, report)
    assert report.outcomes == [
        (
            Outcome.LOADED_BY_ANOTHER_RUN,
            "Plan 1 was loaded by run run-2: 12 rows written, table version 1",
        )
    ]
    reject_unfinished(outside)


@of_both_kinds
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_ledger_that_was_lost_or_restored_from_an_old_copy_is_rebuilt_from_the_tables_commits(
    outside_of: OutsideOf, kept: int
) -> None:
    outside = outside_of(5, 3, 4)
    copies = [outside.zookeeper.persistent()]
    for more in (0, 2, 1):
        grow(outside, more, more, more)
        run(outside)
        copies.append(outside.zookeeper.persistent())
    uid = outside.uid
    outside.zookeeper.restore(copies[kept])
    grow(outside, 4, 0, 1)
    report = run(outside)
    assert outcomes(report) == [Outcome.LEDGER_RESTORED, Outcome.PLAN_COMPLETED, Outcome.INGESTED]
    assert sorted(outside.plans) == [1, 2, 3, 4] and outside.uid == uid is not None
    reject_unfinished(outside)


def test_a_moved_offset_is_followed_once_and_kept_in_the_next_plan() -> None:
    outside, settings = outside_of(5, 3, 4), settings_of(on_offset_changed="follow")
    run(outside, settings)
    outside.logs[LOGS[1]].end = 9
    outside.move_offset(LOGS[1], 7)
    report = run(outside, settings)
    assert outcomes(report) == [Outcome.OFFSET_CHANGED, Outcome.RECORDS_LOST, Outcome.INGESTED]
    assert report.outcomes[0][1] == "clicks 1: another client committed 7 (+4), followed"
    assert report.plan is not None
    assert [(r.from_offset, r.until_offset) for r in report.plan.ranges] == [(7, 9)]
    assert outcomes(run(outside, settings)) == [Outcome.UP_TO_DATE]


def test_a_moved_offset_of_a_topic_that_is_not_named_any_longer_is_left_until_it_is_named() -> None:
    orders = TopicPartition("clicks-orders", 0)
    outside, both = outside_of(5, 3, 4), settings_of(on_offset_changed="follow")
    outside.logs[orders] = FakeLog(2)
    run(outside, both)
    outside.logs[orders].end = 9
    outside.move_offset(orders, 7)
    grow(outside, 1, 1, 1)
    report = run(outside, settings_of(on_offset_changed="follow", topics=["clicks"]))
    assert report.plan is not None and report.plan.loaded_until[orders] == 2
    assert report.outcomes[0] == (
        Outcome.OFFSET_CHANGED,
        "clicks-orders 0: another client committed 7 (+5), not followed: the partition is not "
        "read now",
    )
    assert outside.offsets[orders][0] == 7 and not outside.losses
    named_again = [Outcome.OFFSET_CHANGED, Outcome.RECORDS_LOST, Outcome.INGESTED]
    assert outcomes(run(outside, both)) == named_again


@pytest.mark.parametrize("is_owned", [False, True], ids=["paused", "owned"])
def test_an_offset_is_not_followed_past_a_truncation_of_a_partition_that_is_left_out(
    is_owned: bool,
) -> None:
    """Otherwise the new records below our offset would be neither loaded nor recorded as lost."""
    outside, settings = outside_of(4, 3, 4), settings_of(on_offset_changed="follow")
    group = settings.group.model_copy(update={"on_owned": OnOwned.SKIP})
    settings = settings.model_copy(update={"group": group})
    run(outside, settings)
    partition = LOGS[0]
    if is_owned:
        outside.owners[partition] = "group_host-1-0"
    else:
        outside.pauses = (Pause(partition.topic, partition, "seen", "kim@host", 5),)
    outside.logs[partition].cut(3)
    outside.logs[partition].grow(2)
    outside.move_offset(partition, 5)
    with pytest.raises(PartitionTruncated):
        run(outside, settings)
