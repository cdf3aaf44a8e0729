"""Random bytes and corrupted valid examples for every parser of foreign input: they raise the
documented error and nothing else.

The targets, their examples and their bounds: `tests/fuzz/targets.py`. The longer, coverage-guided
form is `make fuzz`.
"""

from __future__ import annotations

import ast
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.guard import Found, check
from tests.fuzz.mutations import mutated
from tests.fuzz.targets import TARGETS, Target

ROOT = Path(__file__).parents[2]
each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@each_target
def test_the_examples_of_a_target_are_read_without_an_error(target: Target) -> None:
    for seed in target.seeds:
        target.read(seed)


@each_target
@given(content=st.binary(max_size=300))
def test_random_bytes_give_the_named_error_and_nothing_else(target: Target, content: bytes) -> None:
    check(target, content)


@each_target
@given(choose=st.randoms(use_true_random=False))
def test_an_example_made_wrong_gives_the_named_error_and_nothing_else(
    target: Target, choose: Random
) -> None:
    check(target, mutated([*target.seeds, *target.bad], choose, is_json=target.is_json))


def test_every_parser_of_the_protocol_is_somebodys_target() -> None:
    folders = ("kafka", "records", "ledger")
    called_whole = ("kafka/jafka_broker_type.py", "ledger/plan_document.py", "ledger/documents.py")
    callers = [
        *(ROOT / "tests" / "fuzz").glob("*.py"),
        *(ROOT / "etl" / path for path in called_whole),
    ]
    targets = [node for caller in callers for node in ast.walk(ast.parse(caller.read_text()))]
    used = {node.id for node in targets if isinstance(node, ast.Name)} | {
        node.attr for node in targets if isinstance(node, ast.Attribute)
    }
    modules = [
        *(module for folder in folders for module in (ROOT / "etl" / folder).glob("*.py")),
        *(ROOT / "etl" / "settings").glob("*.py"),
        ROOT / "etl" / "io" / "delta" / "log.py",
    ]
    parsers = [
        node.name
        for module in modules
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith(("parse_", "load_"))
    ]
    assert {
        "parse_metadata",
        "parse_fetch",
        "parse_plan",
        "parse_owner",
        "parse_commit",
        "load_settings",
    } <= set(parsers)
    assert [name for name in parsers if name not in used] == []


def endless(_: bytes) -> None:
    while True:
        pass


@pytest.mark.parametrize(
    "read, found",
    [
        (lambda content: content[5], "IndexError"),
        (lambda content: [0] * 2**20, "bytes of memory"),
        (endless, "more than"),
    ],
    ids=["another error", "memory", "a hang"],
)
def test_the_guard_sees_what_it_is_there_for(read: object, found: str) -> None:
    target = Target("broken", read, (b"",), (ValueError,), floor_bytes=2**20)  # type: ignore[arg-type]
    with pytest.raises(Found, match=found):
        check(target, b"x", hang_s=0.2)
