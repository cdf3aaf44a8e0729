"""Rules of the code and of the tests that no linter checks: the file that breaks one is named."""

from __future__ import annotations

import ast
import configparser
import functools
import importlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import etl

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "etl").rglob("*.py"))
JOBS = sorted((ROOT / "jobs").glob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))

JOB_CEILING_LINES = 40
HEAVY = (
    "pyspark py4j delta deltalake numba numpy pandas pyarrow kafka kazoo jinja2 prometheus_client"
).split()
BANNED = set("manager helper helpers util utils handler processor info base impl".split())


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def words(name: str) -> set[str]:
    """`SimpleConsumer` and `client` are `simple` and `consumer`."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


class Read(NamedTuple):
    """What the rules ask of one file of code."""

    docstring: str | None
    defined: tuple[str, ...]
    raised: tuple[str, ...]
    asserted: tuple[int, ...]
    imported_from: tuple[str, ...]


@functools.cache
def read(path: Path) -> Read:
    """Parse and walk each file once; the trees of all files would fill memory and are dropped."""
    tree = ast.parse(path.read_text())
    nodes = tuple(ast.walk(tree))
    raised = [node.exc for node in nodes if isinstance(node, ast.Raise)]
    called = [exc.func if isinstance(exc, ast.Call) else exc for exc in raised]
    return Read(
        ast.get_docstring(tree),
        tuple(
            node.name
            for node in nodes
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ),
        tuple(name.id for name in called if isinstance(name, ast.Name)),
        tuple(node.lineno for node in nodes if isinstance(node, ast.Assert)),
        tuple(node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)),
    )


def test_a_module_docstring_has_its_subject() -> None:
    assert MODULES and [place(module) for module in MODULES if not read(module).docstring] == [], (
        "its first statement is a docstring"
    )


def test_names_contain_no_filler_words() -> None:
    assert [
        (place(module), name)
        for module in MODULES
        for name in (module.stem, *read(module).defined)
        if BANNED & words(name)
    ] == []


def test_a_module_raises_no_bare_exception_and_asserts_nothing_about_data() -> None:
    raised = [(place(module), name) for module in MODULES for name in read(module).raised]
    assert [(where, name) for where, name in raised if name in ("Exception", "BaseException")] == []
    assert {place(module): at for module in MODULES if (at := read(module).asserted)} == {}, "lines"


def test_a_job_is_arguments_wiring_and_an_exit_code() -> None:
    assert JOBS
    assert {place(job): lines(job) for job in JOBS if lines(job) >= JOB_CEILING_LINES} == {}


def test_a_test_is_a_sentence() -> None:
    short, twice = {}, {}
    for test in TESTS:
        names = Counter(name for name in read(test).defined if name.startswith("test_"))
        short[place(test)] = [name for name in names if name.count("_") < 4]
        twice[place(test)] = [name for name, count in names.items() if count > 1]
    assert short
    assert {file: names for file, names in short.items() if names} == {}, "four words at least"
    assert {file: names for file, names in twice.items() if names} == {}, (
        "a second one of the same name would hide the first"
    )


def test_no_two_files_of_tests_have_one_name_for_pytest_would_collect_one() -> None:
    names = Counter(test.name for test in TESTS)
    assert [name for name, count in names.items() if count > 1] == []


def test_what_tests_share_is_in_no_file_of_tests() -> None:
    importing = {}
    for path in (ROOT / "tests").rglob("*.py"):
        importing[place(path)] = [name for name in read(path).imported_from if ".test_" in name]
    assert {path: names for path, names in importing.items() if names} == {}


def test_the_installed_version_of_the_package_equals_its_own() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    assert settings["metadata"]["version"] == "attr: etl.__version__"
    assert re.fullmatch(r"\d+\.\d+\.\d+", etl.__version__)


def test_the_contracts_of_imports_name_every_generation() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    there = {f"etl.kafka.{path.stem}" for path in (ROOT / "etl" / "kafka").glob("*_broker_type.py")}
    apart, hidden = (
        settings["importlinter:contract:generations-apart"],
        settings["importlinter:contract:no-generation-above"],
    )
    assert there and set(apart["modules"].split()) == there
    assert there <= set(hidden["forbidden_modules"].split())


def test_the_command_of_setup_cfg_exists() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    target = settings["options.entry_points"]["console_scripts"].split("=")[1].strip()
    module, _, function = target.partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_asking_for_help_imports_nothing_heavy() -> None:
    program = f"import sys, etl.cli; print([name for name in {HEAVY!r} if name in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
