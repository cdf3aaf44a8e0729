"""Every failure keeps its place, its exit code and its way through a pickle."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl import errors
from etl.errors import CorruptData, EtlError, SettingsError, mark, unmark
from tests.pages import ROOT

KINDS = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, EtlError)
]
EXIT_CODES = {
    1: "EtlError ConsumerInUse NotAssigned",
    2: "SettingsError TopicMissing WrongChroot NotKafka OtherRelease PermissionDenied "
    "MessageTooLarge NotOurTable",
    3: "DataLost",
    4: "Owned",
    5: "NeedsDecision LedgersDisagree TableAppeared OffsetMoved BadOffset PartitionTruncated "
    "TopicRecreated DataLoss ExpiredOffsets MissingOffsets CorruptData MisalignedOffset "
    "RecordTooLarge RanOutBeforeUntil FileLost",
    6: "Unreachable ZooKeeperUnreachable SessionLost MembershipLost CommitUnknown "
    "BrokerUnreachable BrokerError NotYetReadable ProcessLost",
    7: "TableUnreachable NoExclusiveCreate",
    8: "NotReady",
    9: "VerificationFailed",
    130: "Stopped",
}
RETRIABLE_CODES = {4, 6, 7, 8, 130}


def test_the_tree_in_the_docstring_names_every_kind_under_its_parent() -> None:
    depth_of: list[str] = []
    named: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ((?:[│├└─ ])*)([A-Z]\w+)", line)
        if found:
            depth = len(found[1]) // 4
            depth_of[depth:] = [found[2]]
            named.append(found[2])
            parents = [base.__name__ for base in getattr(errors, found[2]).__bases__]
            assert parents == [depth_of[depth - 1] if depth else "Exception"], line
    assert sorted(named) == sorted(kind.__name__ for kind in KINDS)


FOLDERS_OF_RUNS = (
    "cli",
    "commands",
    "decide",
    "io",
    "kafka",
    "ledger",
    "model",
    "records",
    "run",
)
NAMES_WHAT_TO_CHANGE = re.compile(
    r"\b(?:source|table|group|zookeeper|limits|report|ledger|spark|transform)\.[a-z]"
    r"|--[a-z]+|`etl |\b[A-Z]+_[A-Z_]+\b"
)
"""A key of a conf, an option, a command or a variable of the environment."""
DECIDED_ELSEWHERE = {
    "A consumer of the group reads topics by a pattern": "the other consumer",
    "The Delta table has no columns": "who created the table",
    "This consumer is not registered in its group": "who deleted its znode",
    "This package was imported from a zip": "the installation",
    "This process's user id has no name": "the machine",
    "ZooKeeper closes the connection at a request": "the server",
}
"""Beginnings of messages about what no conf and no command decides, and who does."""


def is_named(call: ast.Call) -> bool:
    """True if the error has a key or option, if its text names one, or is composed elsewhere."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    action = keywords.get("action")
    if {"key", "option", None} & keywords.keys() or not isinstance(action, ast.Constant):
        return True
    return NAMES_WHAT_TO_CHANGE.search(" ".join(texts_of(call))) is not None


def texts_of(call: ast.Call) -> list[str]:
    found = [node.value for node in ast.walk(call) if isinstance(node, ast.Constant)]
    return [text for text in found if isinstance(text, str)]


def test_an_error_of_exit_2_names_the_key_or_option_that_decides() -> None:
    kinds = set(EXIT_CODES[2].split())
    unnamed = set()
    for folder in FOLDERS_OF_RUNS:
        for path in (ROOT / "etl" / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                    continue
                if node.func.id in kinds and not is_named(node):
                    unnamed.add(texts_of(node)[0])
    for text in DECIDED_ELSEWHERE:
        unnamed -= {found for found in unnamed if found.startswith(text)}
    assert not unnamed


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_comes_back_whole_from_a_pickle(kind: type[EtlError]) -> None:
    error = kind("it broke", action="the logs", topic="clicks", partition=3, offset=17)
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is kind
    assert (found.message, found.action, found.where, str(found)) == (
        error.message,
        error.action,
        error.where,
        str(error),
    )


def test_the_text_names_what_where_and_what_to_check() -> None:
    error = CorruptData(
        "the CRC is wrong", topic="clicks", partition=3, offset=None, action="the broker's disk"
    )
    assert str(error) == "the CRC is wrong (topic clicks, partition 3). the broker's disk"
    assert str(EtlError("odd")) == "odd"


def test_an_error_is_a_json_document_whatever_its_places_are() -> None:
    error = SettingsError("the conf file is not there", path=Path("/x/clicks.yaml"), key=("a", 1))
    document = json.loads(json.dumps(error.as_json()))
    assert document["error"] == "SettingsError"
    assert document["where"] == {"path": "/x/clicks.yaml", "key": "('a', 1)"}
    assert (document["exit_code"], document["retriable"]) == (2, False)


def test_every_kind_has_the_exit_code_of_its_branch_which_says_whether_it_is_retriable() -> None:
    kinds: dict[int, set[str]] = {}
    for kind in KINDS:
        kinds.setdefault(kind.exit_code, set()).add(kind.__name__)
    assert kinds == {code: set(names.split()) for code, names in EXIT_CODES.items()}
    assert [kind for kind in KINDS if kind.retriable != (kind.exit_code in RETRIABLE_CODES)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_marked_error_is_found_in_a_long_traceback(kind: type[EtlError]) -> None:
    error = kind(
        'a "quoted" \\ line\nand more é', action="this", topic="t", partition=0, offset=2**62
    )
    text = (
        f"Py4JJavaError: {'x' * 50_000}\n  at org.apache\nRuntimeError: {mark(error)}\n\tat "
        f"java.lang.Thread\n{'y' * 50_000}"
    )
    found = unmark(text)
    assert type(found) is kind
    assert (found.message, found.action, found.where) == (error.message, error.action, error.where)


def test_the_first_of_several_marked_errors_is_the_one() -> None:
    found = unmark(mark(CorruptData("first")) + mark(SettingsError("second")))
    assert isinstance(found, CorruptData)


def test_a_marker_in_other_text_does_not_hide_the_error_after_it() -> None:
    found = unmark('raise RuntimeError("etl-error:" + text)\n' + mark(CorruptData("here")))
    assert isinstance(found, CorruptData)


def test_a_kind_that_this_version_does_not_know_is_still_an_error() -> None:
    found = unmark(mark(CorruptData("what", topic="t")).replace("CorruptData", "FromTheFuture"))
    assert found is not None
    assert (type(found), found.message, found.where) == (EtlError, "what", {"topic": "t"})


@pytest.mark.parametrize(
    "junk",
    [
        "",
        "etl-error:",
        "etl-error",
        "etl-error:{",
        "etl-error:5",
        "etl-error:null",
        'etl-error:"four"',
        "etl-error:[1,2,3,4]",
        "etl-error:[[],[],[],[]]",
        'etl-error:["EtlError","message","action","where"]',
        'etl-error:["EtlError","message","action",null]',
        'etl-error:{"a":1,"b":2,"c":3,"d":4}',
        'etl-error:["EtlError","message","action",{"message":1}]',
        "etl-error:" + "[" * 100_000,
    ],
)
def test_junk_holds_no_error(junk: str) -> None:
    assert unmark(junk) is None


@given(st.text().filter(lambda text: "etl-error:" not in text), st.text(), st.integers())
def test_text_around_an_error_hides_none(text: str, around: str, offset: int) -> None:
    assert unmark(text) is None
    found = unmark(
        around + mark(CorruptData(text, action=around, topic=text, offset=offset)) + text
    )
    assert type(found) is CorruptData
    assert (found.message, found.action) == (text, around)
    assert found.where == {"topic": text, "offset": offset}
