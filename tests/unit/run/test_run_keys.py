"""Runs with a key and up to a bound on the fake cluster: a repeated run, at any moment, loads the
requested records once.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from etl.decide.next_step import steps_ahead
from etl.decide.run_requests import KEYS_KEPT, with_key
from etl.errors import EtlError, Owned, SettingsError
from etl.model.plans import Bound, Bounds, Request, RunKeyRecord
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from etl.run.ingest import ingest
from etl.settings.sections import Settings
from tests.builders import plain_settings
from tests.fakes import fake_ledger
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    CRASHES,
    LOGS,
    SETTINGS,
    At,
    crash_at,
    crash_at_moment,
    new_report,
    outcomes,
    outside_of,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When

T = 100
UNTIL = Bounds(until=Bound("T", at_ms=T))
K = Request("2026-01-31T00", UNTIL)
AFTER_T = {LOGS[0]: 3, LOGS[1]: 2}
"""The first offset of each partition with a record at T or later; none in the third one."""


def outside() -> Outside:
    """Three logs with a few records after T in two of them."""
    out = outside_of(5, 3, 4)
    for partition, offset in AFTER_T.items():
        out.logs[partition].later = {at: T for at in range(offset, 20)}
    return out


def load(
    out: Outside, request: Request | None = K, settings: Settings = SETTINGS, at: At | None = None
) -> Report:
    report = replace(new_report(), request=request)
    ingest(
        FakeWorld(out, settings, at or (lambda step, when: None), request=request), settings, report
    )
    return report


def reached(out: Outside) -> list[int]:
    """How many offsets of each log are in the table; each is there once and none is left out."""
    rows = out.rows()
    assert set(rows.values()) <= {1}
    found = [
        sorted(offset for partition, offset in rows if partition == one and isinstance(offset, int))
        for one in LOGS
    ]
    assert all(offsets == list(range(len(offsets))) for offsets in found)
    return [len(offsets) for offsets in found]


def grow(out: Outside) -> None:
    for partition in LOGS:
        out.logs[partition].grow(2)


def messages_of(report: Report, outcome: Outcome) -> list[str]:
    return [sentence for one, sentence in report.outcomes if one is outcome]


def test_a_bounded_run_reads_each_log_to_the_first_record_as_late_and_a_later_run_continues() -> (
    None
):
    out = outside()
    report = load(out, Request(None, UNTIL))
    assert reached(out) == [3, 2, 4]
    assert messages_of(report, Outcome.NOT_COMPLETE) == [
        "Plan 1: 1 partition has no record at or after T and was read to the log end. Older "
        "records that arrive later are loaded by a later run"
    ]
    assert outcomes(load(out, None)) == [Outcome.INGESTED]
    assert reached(out) == [5, 3, 4]


def test_the_same_key_again_loads_nothing_and_names_the_plan_however_the_logs_grew() -> None:
    out = outside()
    load(out)
    grow(out)
    report = load(out)
    assert report.outcomes == [
        (Outcome.ALREADY_LOADED, f"Run key {K.run_key} was loaded by plan 1 (until T)")
    ]
    assert (reached(out), len(out.plans), report.exit_code) == ([3, 2, 4], 1, 0)
    assert outcomes(load(out, Request("the next"))) == [Outcome.INGESTED]
    assert messages_of(load(out), Outcome.ALREADY_LOADED) == [
        f"Run key {K.run_key} was loaded by plan 1 (until T)"
    ]
    assert (reached(out), len(out.plans)) == ([7, 5, 6], 2)


@pytest.mark.parametrize(("step", "when"), CRASHES)
def test_a_run_that_crashed_is_finished_by_its_key_up_to_the_bound_that_it_froze(
    step: str, when: When
) -> None:
    out = outside()
    with pytest.raises(Crash):
        load(out, at=crash_at(step, when))
    stored = len(out.plans)
    grow(out)
    report = load(out)
    assert reached(out) == ([3, 2, 4] if stored else [3, 2, 6])
    if stored:
        assert messages_of(report, Outcome.ALREADY_LOADED) == [
            f"Run key {K.run_key} was loaded by plan 1 (until T)"
        ]
    assert outcomes(load(out)) == [Outcome.ALREADY_LOADED]


@pytest.mark.parametrize(("step", "when"), CRASHES)
def test_a_retry_while_the_first_driver_still_works_loads_nothing_twice_at_any_moment(
    step: str, when: When
) -> None:
    out, retried = outside(), list[int]()

    def retry(reached_step: str, side: When) -> None:
        if (reached_step, side) == (step, when) and not retried:
            retried.append(1)
            out.owners.clear()  # that of the first driver, which runs under the same name
            load(out)

    with_owned = None
    try:
        load(out, at=retry)
    except Owned as error:
        with_owned = error
    assert retried and (with_owned is None or with_owned.retriable)
    assert reached(out) == [3, 2, 4]
    grow(out)
    assert outcomes(load(out)) == [Outcome.ALREADY_LOADED]
    assert reached(out) == [3, 2, 4]


def test_a_key_is_known_when_its_plan_is_pruned() -> None:
    out = outside()
    load(out)
    grow(out)
    load(out, None)
    fake_ledger.prune(out)
    grow(out)
    assert load(out).outcomes == [
        (Outcome.ALREADY_LOADED, f"Run key {K.run_key} was loaded by plan 1 (until T)")
    ]
    assert len(out.plans) == 1


def test_under_caps_a_key_makes_as_many_plans_as_its_bound_needs_and_is_done_with_the_last() -> (
    None
):
    out, capped = outside(), settings_of(limits={"max_records_per_plan": 2})
    report = load(out, settings=capped)
    assert reached(out) == [3, 2, 4]
    assert [one.plan.request.run_key for one in report.plans] == [K.run_key] * 5
    assert Outcome.LIMIT_REACHED not in outcomes(report)
    assert messages_of(load(out, settings=capped), Outcome.ALREADY_LOADED) == [
        f"Run key {K.run_key} was loaded by plan 5 (until T)"
    ]


@pytest.mark.parametrize("moment", range(0, 100, 3))
def test_a_key_that_caps_cut_is_finished_after_a_crash_to_the_bound_of_its_first_plan(
    moment: int,
) -> None:
    out, capped = outside(), settings_of(limits={"max_records_per_plan": 2})
    with pytest.raises(Crash):
        load(out, settings=capped, at=crash_at_moment(moment))
    stored = len(out.plans)
    grow(out)
    load(out, settings=capped)
    assert reached(out) == ([3, 2, 4] if stored else [3, 2, 6])
    assert outcomes(load(out, settings=capped)) == [Outcome.ALREADY_LOADED]


def test_a_key_cut_by_a_cap_continues_after_a_run_without_the_key_if_records_are_left() -> None:
    out, capped = outside(), settings_of(limits={"max_records_per_plan": 3})
    with pytest.raises(Crash):
        load(out, settings=capped, at=crash_at("tidy", When.AFTER))
    load(out, None, settings_of(limits={"max_records_per_plan": 2}))
    before = sum(reached(out))
    load(out, settings=capped)
    assert before == 5 and reached(out) == [3, 2, 4]
    load(out, None)
    assert load(out, settings=capped).outcomes == [
        (Outcome.ALREADY_LOADED, f"Run key {K.run_key} was loaded by plan 4 (until T)")
    ]


def test_a_key_that_had_nothing_to_read_stays_at_that_whatever_comes() -> None:
    out = outside()
    load(out, None)
    report = load(out)
    assert report.outcomes == [
        (
            Outcome.ALREADY_BEYOND_UNTIL,
            "clicks 0 and 1 more partitions: an earlier run loaded 3 offsets beyond T",
        ),
        (
            Outcome.UP_TO_DATE,
            f"No new records (until T). Run key {K.run_key} is done: a later run with it "
            f"loads nothing",
        ),
        (
            Outcome.NOT_COMPLETE,
            "1 partition has no record at or after T. Older records that arrive later are "
            "loaded by a later run",
        ),
    ]
    out.logs[LOGS[2]].grow(2)
    report = load(out)
    assert report.outcomes == [
        (
            Outcome.ALREADY_LOADED,
            f"Run key {K.run_key} is done: it had no records, after plan 1 (until T)",
        )
    ]
    assert reached(out) == [5, 3, 4]


def test_a_key_that_had_nothing_to_read_but_a_log_without_a_leader_is_not_kept() -> None:
    out, skips = outside(), settings_of(on_no_leader="skip")
    load(out, None)
    out.logs[LOGS[2]].grow(2)
    out.logs[LOGS[2]].has_leader = False
    assert messages_of(load(out, settings=skips), Outcome.UP_TO_DATE) == ["No new records"]
    out.logs[LOGS[2]].has_leader = True
    assert Outcome.INGESTED in outcomes(load(out, settings=skips))
    assert reached(out) == [5, 3, 6] and outcomes(load(out)) == [Outcome.ALREADY_LOADED]


def test_a_key_that_had_nothing_to_read_but_a_log_of_another_owner_is_not_kept() -> None:
    out, leaves = (
        outside(),
        plain_settings(
            source={"assume_cluster_id": "cluster-1", "topics": ["clicks.*"]},
            group={"on_owned": "skip"},
        ),
    )
    load(out, None)
    out.logs[LOGS[2]].grow(2)
    out.owners[LOGS[2]] = "old-consumer"
    assert messages_of(load(out, settings=leaves), Outcome.UP_TO_DATE) == ["No new records"]
    out.owners.clear()
    assert Outcome.INGESTED in outcomes(load(out, settings=leaves))
    assert reached(out) == [5, 3, 6] and outcomes(load(out)) == [Outcome.ALREADY_LOADED]


def test_a_key_without_records_is_not_kept_if_another_driver_stored_a_plan_meanwhile() -> None:
    out = outside()
    load(out, None)

    def meanwhile(step: str, when: When) -> None:
        if (step, when) == ("remember", When.BEFORE):
            out.logs[LOGS[2]].grow(2)
            load(out)

    with pytest.raises(Owned):
        load(out, at=meanwhile)
    assert load(out).outcomes == [
        (Outcome.ALREADY_LOADED, f"Run key {K.run_key} was loaded by plan 2 (until T)")
    ]


@pytest.mark.parametrize(
    "other",
    [
        Bounds(),
        Bounds(until=Bound("T2", at_ms=200)),
        Bounds(Bound("S", at_ms=0), Bound("T", at_ms=T)),
    ],
)
@pytest.mark.parametrize("kept", ["stored", "in the table", "pruned", "empty"])
def test_a_key_that_comes_with_other_bounds_is_refused_and_nothing_is_changed(
    kept: str, other: Bounds
) -> None:
    out = outside()
    if kept == "stored":
        with pytest.raises(Crash):
            load(out, at=crash_at("fetch", When.BEFORE))
        load(out, None)
    elif kept == "empty":
        load(out, None)
        load(out)
    else:
        load(out)
    if kept == "pruned":
        load(out, None)
        fake_ledger.prune(out)
    before = reached(out)
    with pytest.raises(SettingsError, match=f"Run key {K.run_key} was first used until T, and now"):
        load(out, Request(K.run_key, other))
    assert reached(out) == before


def test_an_unfinished_plan_is_executed_first_and_its_records_beyond_the_bound_are_reported() -> (
    None
):
    out = outside()
    with pytest.raises(Crash):
        load(out, None, at=crash_at("fetch", When.BEFORE))
    report = load(out)
    assert outcomes(report) == [
        Outcome.PLAN_RESUMED,
        Outcome.INGESTED,
        Outcome.ALREADY_BEYOND_UNTIL,
        Outcome.UP_TO_DATE,
        Outcome.NOT_COMPLETE,
    ]
    assert reached(out) == [5, 3, 4]


def test_a_plan_under_a_key_that_is_superseded_keeps_key_and_bound() -> None:
    out, lets_go = outside(), settings_of(on_data_loss="skip")
    with pytest.raises(Crash):
        load(out, settings=lets_go, at=crash_at("fetch", When.BEFORE))
    grow(out)
    out.logs[LOGS[0]].log_start = 1
    report = load(out, settings=lets_go)
    assert outcomes(report)[0] is Outcome.PLAN_SUPERSEDED
    assert messages_of(report, Outcome.ALREADY_LOADED) == [
        f"Run key {K.run_key} was loaded by plan 1 (until T)"
    ]
    assert {
        partition: max(offset for one, offset in out.rows() if one == partition)
        for partition in LOGS
    } == {
        LOGS[0]: 2,
        LOGS[1]: 1,
        LOGS[2]: 3,
    }


def test_a_ledger_that_is_lost_with_its_keys_loads_nothing_twice() -> None:
    out = outside()
    load(out)
    out.plans.clear()
    out.applied.clear()
    out.uid = None
    report = load(out)
    assert messages_of(report, Outcome.ALREADY_LOADED) == [
        f"Run key {K.run_key} was loaded by plan 1 (until T)"
    ]
    load(out, None)
    out.plans.clear()
    out.applied.clear()
    assert Outcome.INGESTED not in outcomes(load(out))
    assert reached(out) == [5, 3, 4]


def test_of_forgotten_keys_nothing_is_loaded_twice_and_no_more_are_kept_than_the_bound() -> None:
    kept = tuple(RunKeyRecord(str(n), n) for n in range(KEYS_KEPT))
    assert with_key(kept, RunKeyRecord("new", 7)) == (*kept[1:], RunKeyRecord("new", 7))
    assert with_key(kept, RunKeyRecord("3", 9, is_empty=True))[-1].number == 9
    out = outside()
    load(out)
    load(out, None)
    fake_ledger.prune(out)
    out.kept_keys = ()
    assert outcomes(load(out)) == [
        Outcome.ALREADY_BEYOND_UNTIL,
        Outcome.UP_TO_DATE,
        Outcome.NOT_COMPLETE,
    ]
    assert reached(out) == [5, 3, 4]


def test_a_run_since_the_last_success_is_any_run() -> None:
    out = outside()
    load(out, Request("k", Bounds(Bound("since-last-success"))))
    assert reached(out) == [5, 3, 4]


@pytest.mark.parametrize(
    ("back", "expected"), [(0, [5, 3, 4]), (2, [3, 1, 2]), (4, [1, 0, 0]), (100, [0, 0, 0])]
)
def test_a_run_up_to_so_many_offsets_before_the_end_counts_in_each_partition(
    back: int, expected: list[int]
) -> None:
    out = outside()
    load(out, Request("k", Bounds(until=Bound(f"-{back}", back=back))))
    assert reached(out) == expected
    grow(out)
    assert outcomes(load(out, Request("k", Bounds(until=Bound(f"-{back}", back=back))))) == [
        Outcome.ALREADY_LOADED
    ]


def test_records_after_an_open_transaction_are_left_to_a_later_run_though_in_bounds() -> None:
    out = outside()
    out.logs[LOGS[0]].held_back = 4
    load(out)
    assert reached(out) == [1, 2, 4]
    out.logs[LOGS[0]].held_back = 0
    load(out, None)
    assert reached(out) == [5, 3, 4]


def test_records_out_of_order_are_read_to_the_first_offset_as_late_and_the_rest_next() -> None:
    out = outside()
    out.logs[LOGS[0]].later = {2: T}
    load(out)
    assert reached(out) == [2, 2, 4]
    load(out, Request("the next", Bounds(until=Bound("T2", at_ms=T + 1))))
    assert reached(out) == [5, 3, 4]


def test_a_preview_follows_the_run_key_and_the_bounds_of_the_request() -> None:
    out, capped = outside(), settings_of(limits={"max_records_per_plan": 2})
    steps = steps_ahead(FakeWorld(out, capped, request=K).observe(), capped, now_ms=1, uid="u")
    assert [(step.plan.request.run_key if step.plan else None, step.goes_on) for step in steps] == [
        (K.run_key, True)
    ]
    load(out)
    steps = steps_ahead(FakeWorld(out, SETTINGS, request=K).observe(), SETTINGS, now_ms=1, uid="u")
    assert [step.done_before for step in steps] == [RunKeyRecord("2026-01-31T00", 1, "until T")]


def test_a_log_that_appears_under_a_key_that_caps_cut_is_left_to_a_later_run() -> None:
    out, capped = outside_of(4, 3), settings_of(limits={"max_records_per_plan": 3})
    with pytest.raises(Crash):
        load(out, Request("k"), capped, at=crash_at("tidy", When.AFTER))
    out.logs[LOGS[2]] = outside_of(2).logs[LOGS[0]]
    load(out, Request("k"), capped)
    assert reached(out) == [4, 3, 0]
    load(out, None)
    assert reached(out) == [4, 3, 2]


def test_a_run_that_fails_under_a_key_leaves_the_key_free() -> None:
    out = outside()
    out.logs[LOGS[0]].has_leader = False
    with pytest.raises(EtlError):
        load(out)
    out.logs[LOGS[0]].has_leader = True
    assert Outcome.INGESTED in outcomes(load(out))


def test_what_caps_left_is_counted_up_to_the_bound_and_not_to_the_end() -> None:
    out, capped = outside(), settings_of(limits={"max_records_per_plan": 2})
    report = load(out, Request(None, UNTIL), capped)
    assert messages_of(report, Outcome.LIMIT_REACHED) == [
        "limits.max_records_per_plan (2): 7 offsets of 3 partitions remain"
    ]
    assert Outcome.LIMIT_REACHED not in outcomes(load(out, Request(None, UNTIL), SETTINGS))
