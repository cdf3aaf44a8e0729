"""Does what docstrings and pages name exist: modules, symbols, settings, files, tests and links?"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from pydantic import BaseModel

from etl.settings.sections import Settings
from tests.pages import PAGES, ROOT, place

MODULES = sorted((ROOT / "etl").rglob("*.py"))
CODE = [*MODULES, *sorted((ROOT / "jobs").glob("*.py"))]
THEIRS = ("spark.", "kafka.", "delta.", "etl.zip")
"""Names of Spark, Kafka and Delta begin like this, and are not checked."""


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


class Written(NamedTuple):
    """Names and texts of one source file."""

    symbols: dict[str, set[str]]
    """What the module defines or imports, and what each of its classes does."""
    texts: tuple[str, ...]
    spelled: frozenset[str]
    """Every name, and every word of a text of one line."""


@functools.cache
def written(path: Path) -> Written:
    """Parse and walk each file once; the trees of all files would fill memory and are dropped."""
    symbols, texts, names = dict[str, set[str]](), list[str](), set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        symbols.update(_defined(node))
        spelled_here = [getattr(node, key, None) for key in ("id", "attr", "arg", "name")]
        names.update(name for name in spelled_here if isinstance(name, str))
        if isinstance(node, ast.Expr):
            text = getattr(node.value, "value", None)
            texts += [text] if isinstance(text, str) else []
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if "\n" not in node.value:
                names.update(re.findall(r"\w+", node.value))
    return Written(symbols, tuple(texts), frozenset(names))


def _defined(node: ast.AST) -> Iterator[tuple[str, set[str]]]:
    if isinstance(node, ast.ClassDef):
        yield node.name, {name for inner in node.body for name, _ in _defined(inner)}
    elif isinstance(node, ast.FunctionDef):
        yield node.name, set()
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from ((name.id, set()) for name in ast.walk(target) if isinstance(name, ast.Name))


@functools.cache
def is_setting(name: str) -> bool:
    section: Any = Settings
    for part in name.split("."):
        fields = getattr(section, "model_fields", {})
        if part not in fields:
            return False
        section = fields[part].annotation
    return True


@functools.cache
def is_there(name: str) -> bool:
    """True for a module, a symbol in one, or a member of a class of ours."""
    parts = name.split(".")
    for path in MODULES:
        symbols = written(path).symbols
        if _has(symbols, parts[-2:]):
            return True
        for depth in range(min(3, len(parts))):
            head, tail = parts[: len(parts) - depth], parts[len(parts) - depth :]
            if f".{dotted(path)}".endswith("." + ".".join(head)) and _has(symbols, tail):
                return True
    return False


def _has(defined: dict[str, set[str]], tail: list[str]) -> bool:
    if len(tail) < 2:
        return not tail or tail[0] in defined
    return tail[1] in defined.get(tail[0], set())


@functools.cache
def ours() -> frozenset[str]:
    """Modules, folders and classes. Computed by the tests: each worker imports this module."""
    modules = {part for path in MODULES for part in dotted(path).split(".")}
    return frozenset(
        modules
        | {name for path in MODULES for name, members in written(path).symbols.items() if members}
    )


def names_in(text: str) -> set[str]:
    """`module.symbol` in backticks, with a module, a folder or a class of ours as first part."""
    found = re.findall(r"`((?:[A-Za-z_]+\.)+[A-Za-z_]+)(?:\(\))?`", text)
    return {
        name
        for name in found
        if name.split(".")[0] in ours() and not name.startswith(THEIRS) and not name.endswith(".py")
    }


def test_what_a_docstring_calls_by_its_name_is_there() -> None:
    dotted_names, snake_case = set(), set()
    for module in CODE:
        for text in written(module).texts:
            dotted_names |= {(place(module), name) for name in names_in(text)}
            for name in re.findall(r"`([a-z]+(?:_[a-z]+)+)`", text):
                snake_case.add((place(module), name))
    assert dotted_names and snake_case
    missing = [one for one in dotted_names if not is_there(one[1]) and not is_setting(one[1])]
    assert sorted(missing) == []
    of_spark_sql = {"to_date"}
    assert sorted(one for one in snake_case if one[1] not in spelled() | of_spark_sql) == []


@functools.cache
def spelled() -> frozenset[str]:
    """Every name and every word of a text in the code."""
    return frozenset(part for path in MODULES for part in dotted(path).split(".")).union(
        *(written(path).spelled for path in MODULES)
    )


def keys_of(section: type[BaseModel], above: str = "") -> Iterator[str]:
    for key, field in section.model_fields.items():
        name, inner = field.alias or key, field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from keys_of(inner, f"{above}{name}.")
        else:
            yield above + name


def leaves(
    document: Mapping[str, object], known: Collection[str], above: str = ""
) -> Iterator[str]:
    """The keys of a conf file, down to those that are known, or to what holds no others."""
    for name, value in document.items():
        key = above + name
        if isinstance(value, dict) and key not in known:
            yield from leaves(value, known, f"{key}.")
        else:
            yield key


def test_the_conf_that_has_every_key_has_each_of_them() -> None:
    known = sorted(keys_of(Settings))
    document = yaml.safe_load((ROOT / "conf" / "examples" / "clicks.yaml").read_text())
    assert sorted(leaves(document, known)) == known


@functools.cache
def names_of_tests() -> frozenset[str]:
    """Return the functions and files of all tests."""
    names = set()
    for path in (ROOT / "tests").rglob("*.py"):
        names.add(path.stem)
        names.update(re.findall(r"^ *def (test_\w+)\(", path.read_text(), re.MULTILINE))
    return frozenset(names)


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_a_test_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"\btest_[a-z0-9_]+", page.read_text()))
    assert sorted(named - names_of_tests()) == []


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    anchors = set()
    for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.lower())
        anchors.add(words.replace(" ", "-"))
    return anchors


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_a_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []


CONSUMERS = ROOT / "docs" / "adr" / "0029-what-consumers-do.md"


ROWS_OF_A_SECTION = (19, 34, 36, 21, 16, 18, 20, 8, 4, 6, 7)


_ROW = re.compile(r"\| (\d+\.\d+) \| (.+?) \| (there|refused) \| (.*) ?\|")


def test_each_row_of_what_consumers_do_exists_once_with_its_test_or_the_reason_for_none() -> None:
    lines = [line for line in CONSUMERS.read_text().splitlines() if re.match(r"\| \d", line)]
    rows = [found for line in lines if (found := _ROW.fullmatch(line))]
    assert len(rows) == len(lines), "every row has a number, a behaviour, and one of two words"
    numbers = []
    for section, count in enumerate(ROWS_OF_A_SECTION, 1):
        numbers += [f"{section}.{row}" for row in range(1, count + 1)]
    assert [row[1] for row in rows] == numbers
    assert [row[1] for row in rows if not row[4].strip()] == []


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_a_file_module_or_symbol_that_a_page_names_is_there(page: Path) -> None:
    """Except `NAME`, a placeholder for a future file, and the conf that `etl init` writes."""
    text = page.read_text()
    paths = set(re.findall(r"\b((?:etl|tests|jobs|conf|docs|airflow_dags)/[\w/.-]*\w)", text))
    paths.discard("conf/clicks.yaml")
    missing = [path for path in paths if "NAME" not in path and not (ROOT / path).exists()]
    names = names_in(text) | set(re.findall(r"\betl(?:\.\w+)+", text))
    missing += [
        name
        for name in names
        if not name.startswith(THEIRS) and not is_there(name) and not is_setting(name)
    ]
    assert sorted(missing) == []
