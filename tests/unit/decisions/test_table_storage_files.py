"""Maintenance rules: how long unneeded files stay, and which files are compacted."""

from __future__ import annotations

from datetime import timedelta

import pytest

from etl.decide.table_storage import (
    KEEPS_FILES,
    DataFile,
    interval,
    is_compaction_due,
    kept_for,
    reject_table_without_our_commits,
    small_files,
)
from etl.errors import NotOurTable, SettingsError
from etl.model.snapshot import Table


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("interval 30 days", timedelta(days=30)),
        ("INTERVAL 1 week 2 days", timedelta(days=9)),
        ("36 hours", timedelta(hours=36)),
        ("interval", None),
        ("soon", None),
        ("interval 1 month", None),
        ("", None),
    ],
)
def test_a_duration_is_read_as_delta_writes_it(text: str, duration: timedelta | None) -> None:
    assert interval(text) == duration


@pytest.mark.parametrize(
    ("message", "wanted_days", "days"),
    [
        (None, None, 7),
        ("interval 1 hours", None, 7),
        ("interval 30 days", None, 30),
        (None, 7, 7),
        (None, 90, 90),
        ("interval 30 days", 31, 31),
    ],
)
def test_files_without_a_version_stay_for_a_week_at_least_and_as_long_as_the_tables_property(
    message: str | None, wanted_days: int | None, days: int
) -> None:
    wanted = None if wanted_days is None else timedelta(days=wanted_days)
    assert kept_for({KEEPS_FILES: message} if message else {}, wanted) == timedelta(days=days)


@pytest.mark.parametrize(
    ("message", "wanted_days", "least"),
    [(None, 6, 7), ("interval 1 hours", 1, 7), ("interval 30 days", 29, 30)],
)
def test_a_shorter_time_is_refused_with_the_least_one(
    message: str | None, wanted_days: int, least: int
) -> None:
    with pytest.raises(SettingsError, match=f"{least} days at least") as refused:
        kept_for({KEEPS_FILES: message} if message else {}, timedelta(days=wanted_days))
    assert f"--retain {least}" in refused.value.action


def test_an_unknown_property_is_no_reason_to_remove_a_file() -> None:
    with pytest.raises(SettingsError, match="not understood"):
        kept_for({KEEPS_FILES: "interval 1 month"})


def test_small_files_are_put_together_within_a_partition_and_full_ones_and_lone_ones_stay() -> None:
    files = [
        DataFile(("a",), 10),
        DataFile(("a",), 30),
        DataFile(("b",), 5),
        DataFile((None,), 7),
        DataFile((None,), 100),
    ]
    assert small_files(files, 100) == (2, 40)
    assert small_files([], 100) == (0, 0)


def test_files_are_small_if_two_of_them_fit_into_a_whole_one() -> None:
    assert small_files([DataFile((), 49), DataFile((), 49)], 100) == (2, 98)
    assert small_files([DataFile((), 51), DataFile((), 51)], 100) == (0, 0), (
        "counted, they would wait for ever"
    )


def test_a_run_compacts_at_the_confs_number_of_small_files_and_never_without_the_key() -> None:
    assert [is_compaction_due(small, 3) for small in (0, 2, 3, 4)] == [False, False, True, True]
    assert not is_compaction_due(10_000, 0) and not is_compaction_due(0, 0)


@pytest.mark.parametrize("table", [None, Table("id", 4, None)])
def test_a_pipeline_looks_after_no_table_that_it_has_not_loaded(table: Table | None) -> None:
    with pytest.raises(NotOurTable):
        reject_table_without_our_commits(table, "/data/clicks")
    reject_table_without_our_commits(Table("id", 4, 12), "/data/clicks")
