"""The crash harness itself: its check can fail, its short form has the cases with real processes,
its pages keep results of cases that were not played again.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import partial
from pathlib import Path

import pytest

from tests.chaos.collected import ALL, ROWS, cases_on
from tests.chaos.published import Published, PublishedOnStores, rendered
from tests.chaos.stage import Case, CaseResult, Checked, Stage, checked
from tests.chaos.writes import WRITES
from tests.stores.servers import STORES
from tests.traffic.rows import Row


@dataclass
class Figures:
    """What a topic and a table hold, without either."""

    topic: Counter[Row] = field(default_factory=Counter)
    table: Counter[Row] = field(default_factory=Counter)

    def in_topic(self) -> Counter[Row]:
        return self.topic

    def in_table(self) -> Counter[Row]:
        return self.table


THREE: list[Row] = [(0, 0, "a"), (0, 1, "b"), (1, 0, "a")]


def test_a_table_with_every_record_once_is_whole() -> None:
    assert checked(Figures(Counter(THREE), Counter(THREE))) == Checked(3, 3, 0, 0, 0)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (THREE[:2], "missing=1, double=0, unexpected=0"),
        ([*THREE, THREE[0], THREE[0]], "missing=0, double=2, unexpected=0"),
        ([*THREE, (1, 1, "c")], "missing=0, double=0, unexpected=1"),
        ([*THREE[:2], (1, 0, "c")], "missing=1, double=0, unexpected=1"),
        ([*THREE, (1, 0, "c")], "missing=0, double=1, unexpected=1"),
    ],
    ids=["missing", "double", "not in the topic", "another value", "double with another value"],
)
def test_a_table_that_differs_from_the_topic_is_not_whole(rows: list[Row], found: str) -> None:
    with pytest.raises(AssertionError, match=found):
        checked(Figures(Counter(THREE), Counter(rows)))


def test_two_messages_of_an_entry_are_not_double_and_the_second_of_one_index_is() -> None:
    entry: list[Row] = [(0, 1, 31, 0, "a"), (0, 1, 31, 1, "a"), (1, 1, 31, 0, "a")]
    assert checked(Figures(Counter(entry), Counter(entry))) == Checked(3, 3, 0, 0, 0)
    with pytest.raises(AssertionError, match="missing=0, double=1, unexpected=0"):
        checked(Figures(Counter(entry), Counter([*entry, entry[1]])))


def test_what_a_case_expects_comes_before_what_the_topic_still_holds() -> None:
    assert checked(Figures(Counter(THREE[:1]), Counter(THREE)), Counter(THREE)).is_whole


def test_every_case_has_a_name_of_its_own_and_the_short_form_has_what_takes_real_processes() -> (
    None
):
    """The soak kills and pauses at each request of a run; Delta's own commit is real."""
    names = [case.name for case in ALL]
    assert sorted(set(names)) == sorted(names)
    assert {7} <= {case.row for case in ALL if case.short}
    assert {*range(1, 11)} <= {case.row for case in ALL if not case.short}, (
        "the whole matrix kills at each point"
    )


def test_the_arguments_of_each_case_are_those_of_the_function_that_plays_it() -> None:
    for case in (*ALL, *(one for store in STORES for one in cases_on(store))):
        assert isinstance(case.play, partial), case.name
        inspect.signature(case.play.func).bind(None, **case.play.keywords)


@pytest.mark.parametrize("row", [28, 29])
def test_other_generations_are_killed_where_kafka_is_and_see_the_same_two_drivers(row: int) -> None:
    again = [case.name.rpartition(", ")[0] for case in ALL if case.row == row]
    assert again == [
        case.name
        for case in ALL
        if case.row in (*range(1, 9), 10) and not case.name.startswith("SIG")
    ]


def names_of(row: int) -> list[str]:
    return [case.name for case in ALL if case.row == row]


def test_offsets_in_kafka_and_in_both_places_see_the_same() -> None:
    in_kafka, in_both = (names_of(row) for row in (36, 37))
    assert [
        name.replace("offsets in kafka: ", "offsets in dual: ") for name in in_kafka
    ] == in_both[: len(in_kafka)]
    assert [name.partition(": ")[2] for name in in_both[len(in_kafka) :]] == [
        "killed between the places, request",
        "killed between the places, answer",
        "ZooKeeper went back",
    ]


def test_the_page_keeps_the_results_that_were_not_played_again(tmp_path: Path) -> None:
    cases = [Case(row, f"case {row}", f"the action of {row}", _never_played) for row in (1, 2)]
    first = Published(tmp_path, cases)
    first.played(cases[0], CaseResult("nothing", "exit 0: ingested", Checked(5, 5, 0, 0, 0)))
    first.played(cases[1], None, "AssertionError: it was missed\nmore")
    first.write()
    page = (tmp_path / "crashes.md").read_text()
    assert "| Spark | 2 | 0 | 1 | 5 | 5 | 0 | 0 |" in page
    assert "- row 2, Spark: the action of 2: AssertionError: it was missed\n" in page
    again = Published(tmp_path, cases)
    again.played(cases[1], CaseResult("plan 1", "exit 0: ingested", Checked(7, 7, 0, 0, 0)))
    again.write()
    page = (tmp_path / "crashes.md").read_text()
    assert "| Spark | 2 | 0 | 0 | 12 | 12 | 0 | 0 |" in page
    assert "Failed" not in page


def test_the_page_has_a_line_for_each_row_with_the_results_of_each_writer(tmp_path: Path) -> None:
    cases = [Case(row, f"case {row}", f"the action of {row}", _never_played) for row in (1, 2, 2)]
    for writer, checked_of in (
        ("spark", Checked(5, 5, 0, 0, 0)),
        ("arrow", Checked(5, 6, 1, 2, 0)),
    ):
        some = Published(tmp_path, cases, writer)
        some.played(cases[1], CaseResult("nothing", "exit 0: ingested", checked_of))
        some.write()
    page = (tmp_path / "crashes.md").read_text().splitlines()
    assert f"| 1 | {ROWS[1]} | 1 | not played | not played | not played |" in page
    assert f"| 2 | {ROWS[2]} | 2 | 2 / 0 / 0 | 2 / 2 / 4 | not played |" in page
    assert json.loads((tmp_path / "crashes.json").read_text()).keys() == {"case 2"}


def test_every_row_has_a_sentence_and_the_page_of_the_whole_matrix_is_short() -> None:
    assert {case.row for case in ALL} == ROWS.keys() - {40}
    result = {"what": "", "checked": {"records": 1_000, "rows": 1_000, "missing": 0, "double": 0}}
    whole = {case.name: {"row": case.row, **result} for case in ALL}
    page = rendered(dict.fromkeys(WRITES, whole), ALL)
    assert len(page.encode()) < 20_000


def test_the_page_has_the_time_of_its_cases(tmp_path: Path) -> None:
    cases, whole = (
        [Case(1, f"case {n}", "the action", _never_played) for n in (1, 2, 3)],
        CaseResult("", "", Checked(5, 5, 0, 0, 0)),
    )
    (tmp_path / "crashes.json").write_text(
        '{"case 1": {"row": 1, "what": "", "after": "", "next_run": "", "checked": %s}}'
        % json.dumps(asdict(whole.checked))
    )
    for case, day in zip(cases[1:], (date(2026, 11, 22), date(2026, 11, 23))):
        table = Published(tmp_path, cases, today=day)
        table.played(case, whole)
        table.write()
    page = (tmp_path / "crashes.md").read_text()
    assert "| not recorded: 1, 2026-11-22: 1, 2026-11-23: 1 |\n" in page


def test_the_page_of_stores_has_a_line_for_each_case_and_each_pair_is_continued_alone(
    tmp_path: Path,
) -> None:
    cases, reported = (
        [Case(row, f"case {row}", "", _never_played) for row in (1, 40)],
        CaseResult("", "", Checked(5, 5, 0, 0, 0)),
    )
    for store, writer in (("moto", "spark"), ("azurite", "arrow")):
        table = PublishedOnStores(tmp_path, lambda _: cases, store, writer)
        table.played(cases[0], reported)
        if store == "moto":
            table.played(cases[1], None, "AssertionError: it was missed")
        table.write()
    page = table.page.read_text()
    assert "3 cases, 10 records, 10 rows: 0 missing, 0 duplicate; 1 CASES FAILED.**" in page
    assert [line for line in page.splitlines() if line.startswith(("| moto", "| azurite"))] == [
        "| moto | spark | 1 | 1 | 5 | 5 | 0 | 0 |  |",
        "| moto | spark | 40 | 1 | 0 | 0 | 0 | 0 | 1 FAILED |",
        "| azurite | arrow | 1 | 1 | 5 | 5 | 0 | 0 |  |",
        "| azurite | arrow | 40 | 0 | 0 | 0 | 0 | 0 | 1 not played |",
    ]
    again = PublishedOnStores(tmp_path, lambda _: cases, "moto", "spark")
    assert [again.is_whole(case) for case in cases] == [True, False]
    assert not PublishedOnStores(tmp_path, lambda _: cases, "moto", "arrow").is_whole(cases[0])


@pytest.mark.parametrize("store", list(STORES))
def test_on_stores_the_first_ten_rows_are_played_and_the_failures_between_a_run_and_its_store(
    store: str,
) -> None:
    rows, names = {case.row for case in cases_on(store)}, [case.name for case in cases_on(store)]
    assert rows == {*range(1, 11), 40} and sorted(set(names)) == sorted(names)
    assert ("store: commit throttled" in names) == (store != "minidfs")


def _never_played(stage: Stage) -> CaseResult:
    raise NotImplementedError
