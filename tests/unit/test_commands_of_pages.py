"""Every command on a page is executed by a test, or a table names the test, or the reason why there
is none.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest

from tests.page_commands import (
    ELSEWHERE,
    IN_ORDER,
    NOT_HERE,
    NOT_RUN_SECTIONS,
    PROGRAMS,
    Runs,
    group_of,
)
from tests.pages import (
    PAGES,
    ROOT,
    Written,
    family,
    is_command,
    lines,
    meant_by,
    place,
    programs,
    sentences,
)

NO_COMMANDS = re.compile(
    r"/consumers/|time\(\) - |offset_range_etl_|# |(FROM|USER|COPY|RUN) "
    r"|brokers$|ZooKeeper├?|ZooKeeper |Delta$|└|Replay, |FirstRun, |"
    r"(table|spark):$|(path|store|name|spark\.[\w.]+): "
)
"""Indented lines that are not commands: znodes, Prometheus' expressions, comments, a Dockerfile, a
conf, a picture.
"""
OF_SEVERAL = ROOT / "tests" / "system" / "driving.py"


def written() -> Iterator[tuple[Written, bool]]:
    for page in PAGES:
        yield from ((one, True) for one in lines(page) if is_command(one.text))
        yield from ((one, False) for one in sentences(page))


EACH = [(one, in_line, group_of(one, in_line=in_line)) for one, in_line in written()]


def test_nothing_in_a_line_of_its_own_is_unknown() -> None:
    unknown = [
        one
        for page in PAGES
        for one in lines(page)
        if not is_command(one.text) and not NO_COMMANDS.match(one.text)
    ]
    assert unknown == []


def test_each_command_is_run_by_a_test_or_has_a_reason_for_none() -> None:
    assert [one for one, _, group in EACH if group is None] == []


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("pytest tests/nowhere", None),
        ("airflow dags list", None),
        ("etl demo --broker-type jafka", "typed"),
        ("etl run CONF --dry-run --all", "typed"),
        ("etl offsets set ...", "name"),
        ("make nothing", "dry run"),
    ],
)
def test_a_new_command_is_typed_if_it_is_ours_and_else_nothing_runs_it(
    text: str, group: str | None
) -> None:
    assert group_of(Written("docs/RUNNING.md", "The page", text), in_line=True) == group


def test_a_command_named_by_its_first_words_is_typed_as_a_whole_somewhere() -> None:
    run = {
        family(one.text.removeprefix(".venv/bin/"))
        for one, _, group in EACH
        if group in ("typed", "in order", "elsewhere")
    }
    named = {family(one.text): one for one, _, group in EACH if group == "name"}
    typed_by_tests = {"table gaps": "tests/system/test_complete.py"}
    assert {
        name: one for name, one in named.items() if name not in run | typed_by_tests.keys() | GROUPS
    } == {}
    for name, file in typed_by_tests.items():
        assert set(name.split()) <= literals(file)


GROUPS = {
    "",
    "backfills",
    "conf",
    "ledger",
    "offsets",
    "pipelines",
    "plans",
    "records",
    "table",
    "topics",
}
"""Names of several commands."""


@functools.cache
def literals(file: str) -> frozenset[str]:
    nodes = [
        node for path in (ROOT / file, OF_SEVERAL) for node in ast.walk(ast.parse(path.read_text()))
    ]
    return frozenset(
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


@pytest.mark.parametrize(
    "runs", sorted({*ELSEWHERE.values(), *IN_ORDER.values(), *PROGRAMS.values()}), ids=str
)
def test_the_test_that_a_table_names_is_there_and_types_these_words(runs: Runs) -> None:
    names = {
        node.name
        for node in ast.walk(ast.parse((ROOT / runs.file).read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert not runs.test or runs.test in names
    assert set(runs.types.split()) <= literals(runs.file)


def test_the_tables_have_nothing_that_is_on_no_page() -> None:
    found = {meant_by(one.text) for one, _, _ in EACH}
    assert [text for text in (*ELSEWHERE, *NOT_HERE) if text not in found] == []
    assert {name.partition(":")[0] for name in IN_ORDER} | PROGRAMS.keys() <= {
        place(page) for page in PAGES
    }


def test_programs_in_python_stand_only_where_a_test_runs_them() -> None:
    assert {place(page) for page in PAGES if programs(page)} == PROGRAMS.keys()


@pytest.mark.parametrize("section", sorted(NOT_RUN_SECTIONS))
def test_a_section_without_a_run_is_reported(section: str) -> None:
    page, _, heading = section.partition(": ")
    text = (ROOT / page).read_text()
    part = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert part and re.search(r"\bnot run here\b", part[1], re.IGNORECASE)


@pytest.mark.parametrize(
    "text", sorted({one.text for one, _, _ in EACH if one.text.startswith("make ")})
)
def test_make_has_the_targets_that_a_page_names(text: str) -> None:
    """They would start other tests; `--dry-run` only prints them here."""
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    result = subprocess.run(
        [*shlex.split(text), "--dry-run"], cwd=ROOT, env=quiet, capture_output=True, text=True
    )
    assert result.returncode == 0 and "python" in result.stdout, result.stderr
    for module in re.findall(r"python -m (tests[\w.]*)", result.stdout):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists()
