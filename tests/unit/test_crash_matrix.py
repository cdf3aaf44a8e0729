"""The crash matrix: its check can fail, its cases can be called, its pages keep results."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.chaos.collected import ALL, ROWS, cases_on
from tests.chaos.dying_command import function_at
from tests.chaos.published import Published, PublishedOnStores, rendered
from tests.chaos.stage import WRITES, Case, CaseResult, Checked, Stage, checked
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
    expired = Figures(Counter(THREE[:1]), Counter(THREE))
    assert checked(expired, Counter(THREE)).is_whole, "what a case expects precedes the topic"


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


def test_the_page_keeps_the_results_that_were_not_played_again(tmp_path: Path) -> None:
    cases = [Case(row, f"case {row}", f"the action of {row}", _never_played) for row in (1, 2)]
    page = tmp_path / "crashes.md"
    first = Published(tmp_path, cases)
    first.played(cases[0], CaseResult("nothing", "exit 0: ingested", Checked(5, 5, 0, 0, 0)))
    first.played(cases[1], None, "AssertionError: it was missed\nmore")
    first.write()
    assert "| Spark | 2 | 0 | 1 | 5 | 5 | 0 | 0 |" in page.read_text()
    failed = "- row 2, Spark: the action of 2: AssertionError: it was missed\n"
    assert failed in page.read_text()
    again = Published(tmp_path, cases)
    again.played(cases[1], CaseResult("plan 1", "exit 0: ingested", Checked(7, 7, 0, 0, 0)))
    again.write()
    assert "| Spark | 2 | 0 | 0 | 12 | 12 | 0 | 0 |" in page.read_text()
    assert "Failed" not in page.read_text()


def test_every_row_has_a_sentence_and_the_page_of_the_whole_matrix_is_short() -> None:
    assert {case.row for case in ALL} == ROWS.keys() - {40}
    result = {"what": "", "checked": {"records": 1_000, "rows": 1_000, "missing": 0, "double": 0}}
    whole = {case.name: {"row": case.row, **result} for case in ALL}
    page = rendered(dict.fromkeys(WRITES, whole), ALL)
    assert len(page.encode()) < 20_000


def test_the_page_of_stores_has_a_line_for_each_case_and_each_pair_is_continued_alone(
    tmp_path: Path,
) -> None:
    cases = [Case(row, f"case {row}", "", _never_played) for row in (1, 40)]
    whole = CaseResult("", "", Checked(5, 5, 0, 0, 0))
    table = PublishedOnStores(tmp_path, lambda _: cases, "moto", "spark")
    table.played(cases[0], whole)
    table.played(cases[1], None, "AssertionError: it was missed")
    table.write()
    page = table.page.read_text()
    assert "2 cases, 5 records, 5 rows: 0 missing, 0 duplicate; 1 CASES FAILED.**" in page
    assert [line for line in page.splitlines() if line.startswith("| moto")] == [
        "| moto | spark | 1 | 1 | 5 | 5 | 0 | 0 |  |",
        "| moto | spark | 40 | 1 | 0 | 0 | 0 | 0 | 1 FAILED |",
    ]
    again = PublishedOnStores(tmp_path, lambda _: cases, "moto", "spark")
    assert [again.is_whole(case) for case in cases] == [True, False]
    assert not PublishedOnStores(tmp_path, lambda _: cases, "moto", "arrow").is_whole(cases[0])


def _never_played(stage: Stage) -> CaseResult:
    raise NotImplementedError


def test_every_case_has_a_name_of_its_own_and_the_arguments_of_the_function_that_plays_it() -> None:
    for cases in (ALL, *map(cases_on, STORES)):
        names = [case.name for case in cases]
        assert sorted(set(names)) == sorted(names)
        for case in cases:
            assert isinstance(case.play, partial), case.name
            inspect.signature(case.play.func).bind(None, **case.play.keywords)
            for value in case.play.keywords.values():
                place = str(value).removeprefix("after:")
                if place.startswith("etl."):
                    function_at(place)
