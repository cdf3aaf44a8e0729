"""The names that users import are few, stable, and load nothing before their first use."""

from __future__ import annotations

import ast
import importlib
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import etl

ROOT = Path(__file__).parents[2]
PUBLIC = [name for name in etl.__all__ if name != "__version__"]


def printed_by_python(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_importing_the_package_imports_none_of_its_modules() -> None:
    program = "import sys, etl; print([name for name in sys.modules if name.startswith('etl.')])"
    assert printed_by_python(program) == "[]"


def test_a_name_that_is_not_public_is_no_attribute_of_the_package() -> None:
    with pytest.raises(AttributeError, match="'etl' has no attribute 'KafkaConsumer'"):
        etl.KafkaConsumer  # noqa: B018
    assert not hasattr(etl, "KafkaConsumer")


def test_a_star_import_gives_the_public_names_alone() -> None:
    assert printed_by_python(
        "before = set(globals()); from etl import *; print(sorted(set(globals()) - before - "
        "{'before'}))"
    ) == str(sorted(etl.__all__))


def test_type_checkers_see_the_names_that_are_loaded_at_runtime() -> None:
    tree = ast.parse((ROOT / "etl" / "__init__.py").read_text())
    checked = {
        name.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in etl._HOMES.values()
        for name in node.names
    }
    assert checked == etl._HOMES


def test_the_programs_of_the_pages_import_each_public_class_and_nothing_else() -> None:
    text = (ROOT / "docs" / "READER.md").read_text()
    imported = set[str]()
    for names in re.findall(r"^from etl import (.+)$", text, re.MULTILINE):
        imported.update(names.split(", "))
    assert imported == set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_the_class_of_its_module_and_is_pickled_by_that_modules_name(
    name: str,
) -> None:
    value = getattr(etl, name)
    assert value.__name__ == name
    assert value is getattr(importlib.import_module(value.__module__), name)
    assert pickle.loads(pickle.dumps(value)) is value
