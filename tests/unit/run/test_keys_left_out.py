"""Run keys and partitions that were unreadable when the key was given: they belong to the key until
it has read them, and the run reports it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from etl.decide.next_step import Action, steps_ahead
from etl.errors import Owned
from etl.model.partitions import TopicPartition
from etl.model.plans import Bound, Bounds, Request
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from etl.run.ingest import ingest
from etl.settings.sections import Settings
from tests.builders import plain_settings
from tests.fakes import fake_ledger
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    LOGS,
    PHYSICAL_SETTINGS,
    At,
    crash_at,
    new_report,
    outcomes,
    outside_of,
    physical_outside_of,
    set_to,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When

T = 100
K, BARE = Request("K", Bounds(until=Bound("T", at_ms=T))), Request("K")
SKIPS = settings_of(on_no_leader="skip")
CAPPED = settings_of(limits={"max_records_per_plan": 3}, on_no_leader="skip")
LEAVES = plain_settings(
    source={"assume_cluster_id": "cluster-1", "topics": ["clicks.*"]}, group={"on_owned": "skip"}
)
AWAY = LOGS[2]


def outside() -> Outside:
    """Three logs, each with records after T."""
    out = outside_of(5, 3, 4)
    for partition, offset in zip(LOGS, (3, 2, 2)):
        out.logs[partition].later = {at: T for at in range(offset, 20)}
    return out


def load(
    out: Outside, request: Request | None = K, settings: Settings = SKIPS, at: At | None = None
) -> Report:
    report = replace(new_report(), request=request)
    ingest(
        FakeWorld(out, settings, at or (lambda step, when: None), request=request), settings, report
    )
    return report


def reached(out: Outside) -> list[int]:
    rows = out.rows()
    assert set(rows.values()) <= {1}
    return [sum(1 for partition, _ in rows if partition == one) for one in LOGS]


def left(report: Report) -> list[str]:
    return [sentence for outcome, sentence in report.outcomes if outcome is Outcome.NOT_COMPLETE]


def lead(out: Outside, *, is_led: bool, partition: TopicPartition = AWAY) -> None:
    out.logs[partition].has_leader = is_led


def grow(out: Outside) -> None:
    for partition in LOGS:
        out.logs[partition].grow(2)


@pytest.mark.parametrize("settings", [SKIPS, CAPPED])
@pytest.mark.parametrize("request_", [K, BARE], ids=["up to a time", "to the ends"])
def test_a_key_is_done_once_the_log_that_had_no_leader_is_loaded_too(
    settings: Settings, request_: Request
) -> None:
    out = outside()
    lead(out, is_led=False)
    report = load(out, request_, settings)
    first = [3, 2, 0] if request_ is K else [5, 3, 0]
    assert reached(out) == first and report.exit_code == 0
    assert left(report) == [
        "Run key K is not loaded in clicks 2, which could not be read. Run it again with the "
        "key when it can be read"
    ]
    assert left(load(out, request_, settings)) == left(report)
    assert reached(out) == first
    out.logs[LOGS[0]].grow(2)
    lead(out, is_led=True)
    report = load(out, request_, settings)
    assert reached(out) == [*first[:2], 2 if request_ is K else 4] and not left(report)
    grow(out)
    assert outcomes(load(out, request_, settings)) == [Outcome.ALREADY_LOADED]


def test_a_log_without_a_leader_between_two_plans_of_a_key_is_loaded_to_the_frozen_end() -> None:
    out = outside_of(5, 3, 4)

    def leave(step: str, when: When) -> None:
        if (step, when) == ("tidy", When.AFTER):
            lead(out, is_led=False)

    report = load(out, BARE, CAPPED, at=leave)
    assert reached(out)[:2] == [5, 3] and reached(out)[2] < 4 and left(report)
    lead(out, is_led=True)
    grow(out)
    assert not left(load(out, BARE, CAPPED))
    assert reached(out) == [5, 3, 4]
    assert outcomes(load(out, BARE, CAPPED)) == [Outcome.ALREADY_LOADED]


def test_a_log_that_had_an_owner_is_loaded_to_its_end_at_the_keys_first_run() -> None:
    out = outside_of(5, 3, 4)
    load(out, None, LEAVES)
    grow(out)
    out.owners[AWAY] = "old-consumer"
    assert left(load(out, BARE, LEAVES))
    grow(out)
    out.owners.clear()
    load(out, BARE, LEAVES)
    assert reached(out) == [7, 5, 6]
    assert outcomes(load(out, BARE, LEAVES)) == [Outcome.ALREADY_LOADED]


def test_what_a_key_left_and_another_run_has_loaded_by_now_is_nobodys_to_load() -> None:
    out = outside()
    lead(out, is_led=False)
    load(out)
    lead(out, is_led=True)
    load(out, None)
    assert reached(out) == [5, 3, 4]
    assert outcomes(load(out)) == [Outcome.ALREADY_LOADED]


def test_a_key_that_finds_no_more_in_a_log_that_is_back_stays_at_that_whatever_comes_there() -> (
    None
):
    out = outside_of(5, 3, 4)
    load(out, None)
    out.logs[LOGS[0]].grow(2)
    lead(out, is_led=False)
    assert left(load(out, BARE))
    lead(out, is_led=True)
    assert outcomes(load(out, BARE)) == [Outcome.ALREADY_LOADED]
    grow(out)
    assert outcomes(load(out, BARE)) == [Outcome.ALREADY_LOADED]
    assert reached(out) == [7, 3, 4]


def test_a_plan_that_supersedes_one_under_a_key_keeps_the_log_without_a_leader() -> None:
    out, lets_go = outside_of(5, 3, 4), settings_of(on_data_loss="skip", on_no_leader="skip")
    with pytest.raises(Crash):
        load(out, BARE, lets_go, at=crash_at("fetch", When.BEFORE))
    out.logs[LOGS[0]].log_start = 1
    lead(out, is_led=False)
    grow(out)
    report = load(out, BARE, lets_go)
    assert outcomes(report)[0] is Outcome.PLAN_SUPERSEDED and left(report)
    lead(out, is_led=True)
    load(out, BARE, lets_go)
    assert reached(out) == [4, 3, 4]
    assert outcomes(load(out, BARE, lets_go)) == [Outcome.ALREADY_LOADED]


def test_a_key_that_left_a_log_stays_done_after_later_plans_and_pruning() -> None:
    out = outside_of(5, 3, 4)
    load(out, None, LEAVES)
    grow(out)
    out.owners[AWAY] = "old-consumer"
    load(out, BARE, LEAVES)
    out.owners.clear()
    load(out, None, LEAVES)
    fake_ledger.prune(out)
    fake_ledger.prune(out)
    grow(out)
    assert outcomes(load(out, BARE, LEAVES)) == [Outcome.ALREADY_LOADED]
    assert reached(out) == [7, 5, 6]


def test_a_key_without_records_is_incomplete_if_none_is_as_late_or_a_log_was_left_out() -> None:
    out = outside_of(5, 3, 4)
    load(out, None)
    report = load(out)
    assert left(report) == [
        "Each of 3 partitions has no record at or after T. Older records that arrive later "
        "are loaded by a later run"
    ]
    assert Outcome.UP_TO_DATE in outcomes(report)
    lead(out, is_led=False)
    assert any(
        "Run key other is not loaded in clicks 2" in sentence
        for sentence in left(load(out, Request("other")))
    )


def test_a_key_with_a_plan_superseded_by_set_offsets_keeps_its_frozen_bound() -> None:
    out = outside_of(5, 3, 4)
    with pytest.raises(Crash):
        load(out, BARE, at=crash_at("fetch", When.BEFORE))
    grow(out)
    out.owners.clear()
    set_to(out, a=2)
    load(out, BARE)
    assert reached(out) == [3, 3, 4]
    assert outcomes(load(out, BARE)) == [Outcome.ALREADY_LOADED]


def test_a_relative_start_of_a_key_is_not_resolved_again_an_hour_later() -> None:
    out = outside_of(5, 3, 4)
    request = Request("K", Bounds(start=Bound("-1h", at_ms=T)))
    with pytest.raises(Crash):
        load(out, request, CAPPED, at=crash_at("tidy", When.AFTER))
    load(out, replace(request, bounds=Bounds(start=Bound("-1h", at_ms=2 * T))), CAPPED)
    assert reached(out) == [5, 3, 4]


def test_a_key_unknown_to_a_lost_ledger_is_searched_again_after_the_restore() -> None:
    out = outside_of(5, 3, 4)
    load(out, BARE)
    grow(out)
    load(out, None)
    out.plans.clear()
    out.applied.clear()
    out.uid = None
    grow(out)
    assert outcomes(load(out, BARE)) == [Outcome.LEDGER_RESTORED, Outcome.ALREADY_LOADED]
    assert reached(out) == [7, 5, 6]


def test_a_log_of_byte_offsets_is_read_to_its_frozen_end_though_no_boundary_names_it() -> None:
    out = physical_outside_of(3, 4)
    capped = PHYSICAL_SETTINGS.model_copy(
        update={"limits": PHYSICAL_SETTINGS.limits.model_copy(update={"max_bytes_per_plan": 1})}
    )
    ends = [partition.end for partition in out.logs.values()]
    with pytest.raises(Crash):
        load(out, BARE, capped, at=crash_at("tidy", When.AFTER))
    for partition in out.logs.values():
        partition.grow(2)
    report = load(out, BARE, capped)
    assert (
        report.plan
        and [report.plan.loaded_until[partition] for partition in out.logs] == ends
        and not left(report)
    )
    assert outcomes(load(out, BARE, capped)) == [Outcome.ALREADY_LOADED]


def test_a_plan_that_supersedes_one_under_a_key_ends_at_the_same_byte_offset() -> None:
    out = physical_outside_of(3, 4)
    first, second = out.logs
    ends = [partition.end for partition in out.logs.values()]
    with pytest.raises(Crash):
        load(out, BARE, PHYSICAL_SETTINGS, at=crash_at("fetch", When.BEFORE))
    for partition in out.logs.values():
        partition.grow(2)
    lead(out, is_led=False, partition=second)
    report = load(out, BARE, PHYSICAL_SETTINGS)
    assert outcomes(report)[0] is Outcome.PLAN_SUPERSEDED and "clicks" in left(report)[0]
    assert report.plan and report.plan.loaded_until[first] == ends[0]
    lead(out, is_led=True, partition=second)
    report = load(out, BARE, PHYSICAL_SETTINGS)
    assert report.plan and [report.plan.loaded_until[partition] for partition in out.logs] == ends
    assert outcomes(load(out, BARE, PHYSICAL_SETTINGS)) == [Outcome.ALREADY_LOADED]


def test_a_preview_of_a_plan_cut_by_a_cap_and_left_by_a_crash_includes_the_next_one() -> None:
    out = outside_of(5, 3, 4)
    with pytest.raises(Crash):
        load(out, BARE, CAPPED, at=crash_at("fetch", When.BEFORE))
    out.owners.clear()
    steps = steps_ahead(FakeWorld(out, CAPPED, request=BARE).observe(), CAPPED, now_ms=1, uid="u")
    assert [(step.action, step.plan and step.plan.number) for step in steps] == [
        (Action.REPLAY, 1),
        (Action.STORE, 2),
    ]


def test_a_key_is_not_remembered_over_a_plan_that_was_stored_meanwhile() -> None:
    out = outside_of(5, 3, 4)
    load(out, None)
    out.logs[LOGS[0]].grow(2)
    lead(out, is_led=False)
    load(out, BARE)
    lead(out, is_led=True)

    def meanwhile(step: str, when: When) -> None:
        if (step, when) == ("remember", When.BEFORE):
            grow(out)
            load(out, None)

    with pytest.raises(Owned):
        load(out, BARE, at=meanwhile)
