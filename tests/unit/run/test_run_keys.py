"""Runs with a key and up to a bound on the fake cluster."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest

from etl.decide import loaded_intervals
from etl.decide.next_step import steps_ahead
from etl.decide.run_requests import KEYS_KEPT, with_key
from etl.errors import Owned, SettingsError
from etl.io.zookeeper.ledger_side_documents import prune
from etl.model.partitions import TopicPartition
from etl.model.plans import Bound, Bounds, Request, RunKeyRecord
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from etl.run.ingest import ingest
from etl.settings.choices import OnOwned
from etl.settings.sections import Settings
from tests.builders import with_keys
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    CRASHES,
    LOGS,
    PHYSICAL_SETTINGS,
    SETTINGS,
    At,
    crash_at,
    crash_at_moment,
    new_report,
    outcomes,
    outside_of,
    physical_outside_of,
    set_to,
    settings_of,
)
from tests.fakes.world import Crash, FakeWorld, When

T = 100
UNTIL = Bounds(until=Bound("T", at_ms=T))
K = Request("K", UNTIL)
BARE = Request("K")
SKIPS = settings_of(on_no_leader="skip")
CAPPED = settings_of(limits={"max_records_per_plan": 3}, on_no_leader="skip")
LEAVES = with_keys(SETTINGS, group={"on_owned": OnOwned.SKIP})
AWAY = LOGS[2]
AFTER_T = {LOGS[0]: 3, LOGS[1]: 2}
"""The first offset of each partition with a record at T or later; none in the third one."""


def outside(third: int | None = None) -> Outside:
    """Three logs with a few records after T in two of them; `third`: from there on in the third."""
    out = outside_of(5, 3, 4)
    for partition, offset in {**AFTER_T, **({} if third is None else {AWAY: third})}.items():
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


def reached(out: Outside, *, is_whole: bool = True) -> list[int]:
    """The loaded offsets of each log, each once and without gaps unless not whole."""
    rows = out.rows()
    assert set(rows.values()) <= {1}
    found = [
        sorted(offset for partition, offset in rows if partition == one and isinstance(offset, int))
        for one in LOGS
    ]
    assert not is_whole or all(offsets == list(range(len(offsets))) for offsets in found)
    return [len(offsets) for offsets in found]


def prune_oldest(out: Outside) -> None:
    """Prune the oldest plan, as if the limit were reached."""
    with mock.patch.object(loaded_intervals, "PLANS_KEPT", len(out.plans) - 1):
        prune(out.ledger)


def grow(out: Outside) -> None:
    for partition in LOGS:
        out.logs[partition].grow(2)


def left(report: Report) -> list[str]:
    return messages_of(report, Outcome.NOT_COMPLETE)


def lead(out: Outside, *, is_led: bool, partition: TopicPartition = AWAY) -> None:
    out.logs[partition].has_leader = is_led


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
    prune_oldest(out)
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
        prune_oldest(out)
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
    prune_oldest(out)
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


@pytest.mark.parametrize("settings", [SKIPS, CAPPED], ids=["without caps", "with caps"])
def test_records_behind_an_open_transaction_stay_open_under_the_key(settings: Settings) -> None:
    out = outside()
    out.logs[LOGS[0]].held_back = 4
    for _ in range(2):
        report = load(out, settings=settings)
        assert any("Run key K is not loaded in clicks 0" in sentence for sentence in left(report))
        assert not any(
            "Each of 2 partitions has no record" in sentence for sentence in left(report)
        )
        assert reached(out) == [1, 2, 4]
    out.logs[LOGS[0]].held_back = 1
    load(out, settings=settings)
    assert reached(out) == [3, 2, 4], "the record of T is readable now, and is the bound"
    assert Outcome.ALREADY_LOADED in outcomes(load(out, settings=settings))
    out.logs[LOGS[0]].held_back = 0
    load(out, None)
    assert reached(out) == [5, 3, 4]


def test_a_key_with_nothing_but_an_open_transaction_is_not_done() -> None:
    out = outside_of(3, 0, 0)
    out.logs[LOGS[0]].held_back = 3
    assert Outcome.NOT_COMPLETE in outcomes(load(out))
    out.logs[LOGS[0]].held_back = 0
    load(out)
    assert reached(out) == [3, 0, 0]
    assert Outcome.ALREADY_LOADED in outcomes(load(out))


def test_without_a_key_records_behind_an_open_transaction_are_not_reported_as_missing() -> None:
    out = outside()
    out.logs[LOGS[0]].held_back = 4
    assert left(load(out, Request(None, UNTIL))) == [
        "Plan 1: 1 partition has no record at or after T and was read to the log end. Older records "
        "that arrive later are loaded by a later run"
    ]


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
    assert [step.request.done_before for step in steps] == [RunKeyRecord("K", 1, "until T")]


def test_a_log_that_appears_under_a_key_that_caps_cut_is_left_to_a_later_run() -> None:
    out, capped = outside_of(4, 3), settings_of(limits={"max_records_per_plan": 3})
    with pytest.raises(Crash):
        load(out, Request("k"), capped, at=crash_at("tidy", When.AFTER))
    out.logs[LOGS[2]] = outside_of(2).logs[LOGS[0]]
    load(out, Request("k"), capped)
    assert reached(out) == [4, 3, 0]
    load(out, None)
    assert reached(out) == [4, 3, 2]


def test_what_caps_left_is_counted_up_to_the_bound_and_not_to_the_end() -> None:
    out, capped = outside(), settings_of(limits={"max_records_per_plan": 2})
    report = load(out, Request(None, UNTIL), capped)
    assert messages_of(report, Outcome.LIMIT_REACHED) == [
        "limits.max_records_per_plan (2): 7 offsets of 3 partitions remain"
    ]
    assert Outcome.LIMIT_REACHED not in outcomes(load(out, Request(None, UNTIL), SETTINGS))


@pytest.mark.parametrize("settings", [SKIPS, CAPPED])
@pytest.mark.parametrize("request_", [K, BARE], ids=["up to a time", "to the ends"])
def test_a_key_is_done_once_the_log_that_had_no_leader_is_loaded_too(
    settings: Settings, request_: Request
) -> None:
    out = outside(2)
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


def test_what_a_key_left_and_another_run_has_loaded_by_now_is_nobodys_to_load() -> None:
    out = outside(2)
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
    assert reached(out, is_whole=False) == [4, 3, 4]
    assert outcomes(load(out, BARE, lets_go)) == [Outcome.ALREADY_LOADED]


def test_a_key_that_left_a_log_stays_done_after_later_plans_and_pruning() -> None:
    out = outside_of(5, 3, 4)
    load(out, None, LEAVES)
    grow(out)
    out.owners[AWAY] = "old-consumer"
    load(out, BARE, LEAVES)
    out.owners.clear()
    load(out, None, LEAVES)
    prune_oldest(out)
    prune_oldest(out)
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
    assert reached(out, is_whole=False) == [3, 3, 4]
    assert outcomes(load(out, BARE)) == [Outcome.ALREADY_LOADED]


def test_a_relative_start_of_a_key_is_not_resolved_again_an_hour_later() -> None:
    out = outside_of(5, 3, 4)
    request = Request("K", Bounds(start=Bound("-1h", at_ms=T)))
    with pytest.raises(Crash):
        load(out, request, CAPPED, at=crash_at("tidy", When.AFTER))
    load(out, replace(request, bounds=Bounds(start=Bound("-1h", at_ms=2 * T))), CAPPED)
    assert reached(out) == [5, 3, 4]


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
