"""Arguments of a scheduler's run, and the scheduler's reaction to exit codes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from etl.decide.run_requests import (
    Verdict,
    backfill_arguments,
    interval_between,
    interval_of_run,
    range_arguments,
    run_arguments,
    verdict_of,
)
from etl.errors import EtlError, SettingsError, family

FIVE, SIX = datetime(2026, 11, 10, 5, tzinfo=UTC), datetime(2026, 11, 10, 6, tzinfo=UTC)
KEY = "20261110T050000Z-20261110T060000Z"
KINDS = sorted(set(family(EtlError)), key=lambda kind: kind.__name__)


def test_a_run_with_a_data_interval_is_for_that_one() -> None:
    assert interval_of_run(None, None, (FIVE, SIX)).run_key == KEY
    assert interval_of_run("", "", (FIVE, SIX)).run_key == KEY, (
        "the trigger form of Airflow gives empty texts"
    )


def test_params_take_precedence_over_any_data_interval_of_airflow() -> None:
    later = datetime(2026, 11, 20, 10, tzinfo=UTC), datetime(2026, 11, 20, 11, tzinfo=UTC)
    for made_up in ((None, None), (SIX, SIX), later):
        assert (
            interval_of_run("2026-11-10T05:00:00Z", "2026-11-10T06:00:00Z", made_up).run_key == KEY
        )


@pytest.mark.parametrize(
    "interval", [(None, None), (FIVE, None), (None, SIX)], ids=["none", "no end", "no start"]
)
def test_a_run_without_an_interval_is_refused_with_the_ways_to_give_it_one(
    interval: tuple[object, object],
) -> None:
    with pytest.raises(SettingsError, match="The run has no interval:") as found:
        interval_of_run(None, None, interval)
    for way in (
        "from and until",
        "data_interval_start and data_interval_end",
        "airflow backfill create",
    ):
        assert way in found.value.action


def test_the_empty_data_interval_of_a_cron_string_is_rejected_with_the_right_timetable() -> None:
    with pytest.raises(SettingsError, match="The run's data interval is empty:") as found:
        interval_of_run(None, None, (FIVE, FIVE))
    assert "CronDataIntervalTimetable" in found.value.action


def test_a_data_interval_that_does_not_match_a_named_logical_date_is_rejected() -> None:
    named = datetime(2026, 11, 2, 5, tzinfo=UTC)
    with pytest.raises(
        SettingsError, match="not that of its logical date 2026-11-02T05:00:00"
    ) as found:
        interval_of_run(None, None, (FIVE, SIX), named)
    assert "from and until" in found.value.action
    for fitting in (FIVE, SIX, datetime(2026, 11, 10, 6, 30, tzinfo=UTC)):
        assert interval_of_run(None, None, (FIVE, SIX), fitting).run_key == KEY, (
            "its start, or the last whole interval before it"
        )
    assert interval_of_run(FIVE.isoformat(), SIX.isoformat(), (FIVE, SIX), named).run_key == KEY


def test_one_param_without_the_other_is_rejected_also_with_a_data_interval() -> None:
    for from_time, until_time in ((FIVE.isoformat(), None), ("", FIVE.isoformat())):
        with pytest.raises(SettingsError, match="only one is given: 2026-11-10T05"):
            interval_of_run(from_time, until_time, (FIVE, SIX))


def test_params_that_run_backwards_are_refused() -> None:
    with pytest.raises(SettingsError, match="runs backwards"):
        interval_of_run(SIX.isoformat(), FIVE.isoformat())


def test_a_run_loads_up_to_the_end_of_its_interval_under_the_intervals_key() -> None:
    interval = interval_between(FIVE, SIX)
    assert run_arguments("/conf/clicks.yaml", interval, is_physical=False) == [
        "/conf/clicks.yaml",
        "--run-key",
        KEY,
        "--until",
        "2026-11-10T06:00:00+00:00",
        "--json",
    ]
    assert "--until" not in run_arguments("/conf/jafka.yaml", interval, is_physical=True)


def test_a_range_is_given_by_the_params_that_are_set() -> None:
    params = {"partitions": ["clicks"], "from": "10", "until": 20, "else": "x"}
    assert range_arguments(params) == ["--partition", "clicks", "--from", "10", "--until", "20"]
    params = {"partitions": ["clicks:0", "clicks:1"], "from": " ", "until": ""}
    assert range_arguments(params) == ["--partition", "clicks:0", "--partition", "clicks:1"]
    assert range_arguments({"partitions": None}) == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_may_help_by_the_class_of_an_error_is_tried_again_and_nothing_else_is(
    kind: type[EtlError],
) -> None:
    document = kind("something").as_json()
    expected = Verdict.RETRY if kind.retriable else Verdict.FAIL
    assert verdict_of(kind.exit_code, document) is expected
    assert verdict_of(1, document) is expected, "cluster managers have exit codes of their own"
    assert verdict_of(None, document) is expected


@pytest.mark.parametrize(
    ("verdict", "codes", "document"),
    [
        (Verdict.DONE, [0], None),
        (Verdict.DONE, [0], {"outcomes": [], "exit_code": 0, "error": None}),
        (Verdict.DONE, [0], {"rows": 5}),
        (Verdict.FAIL, [3], {"outcomes": [], "exit_code": 3, "error": None}),
        (Verdict.FAIL, [2, 3, 5, 126, 127], None),
        (Verdict.RETRY, [4, 6, 7, 130], None),
        (Verdict.RETRY, [-9, -15, 1, 134, 137, 143, 255, None], None),
        (Verdict.RETRY, [-9, -15, 1, 134, 137, 143, 255, None], {"exit_code": 0, "error": None}),
    ],
    ids=[
        "done",
        "a run that is done",
        "another command that is done",
        "what policy let go under --strict",
        "misuse, or a command that is missing",
        "codes that are retriable",
        "killed, or Spark did not come up",
        "killed behind its end",
    ],
)
def test_without_the_class_of_an_error_the_exit_code_decides(
    verdict: Verdict, codes: list[int | None], document: dict[str, object] | None
) -> None:
    assert {verdict_of(code, document) for code in codes} == {verdict}


def test_a_backfill_keeps_its_name_in_each_retry_and_loads_only_missing_offsets_on_request() -> (
    None
):
    given = {"name": "old", "from": "2026-01-01T00:00:00Z", "until": 500}
    words = ["conf.yaml", "old", "--from", "2026-01-01T00:00:00Z", "--until", "500"]
    assert backfill_arguments("conf.yaml", given) == [*words, "--yes", "--json"]
    assert backfill_arguments("conf.yaml", {**given, "only_unloaded": False, "topic": None}) == [
        *words,
        "--yes",
        "--json",
    ]
    assert backfill_arguments("conf.yaml", {**given, "only_unloaded": True}) == [
        *words,
        "--only-unloaded",
        "--yes",
        "--json",
    ]
