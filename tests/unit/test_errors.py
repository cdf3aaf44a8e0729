"""Every failure keeps its place, its exit code and its way through a pickle or a traceback."""

from __future__ import annotations

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

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, EtlError)]
EXIT_CODES = {
    "EtlError": 1, "SettingsError": 2, "TopicMissing": 2, "WrongChroot": 2, "NotKafka": 2, "PermissionRefused": 2, "MessageTooLarge": 2,
    "NotOurTable": 2, "DataLost": 3, "Owned": 4, "NeedsDecision": 5, "LedgersDisagree": 5, "TableAppeared": 5, "OffsetMoved": 5,
    "BadOffset": 5,
    "LogTruncated": 5, "TopicMadeAgain": 5, "DataLoss": 5, "ExpiredOffsets": 5, "MissingOffsets": 5, "CorruptData": 5,
    "RecordTooLarge": 5, "RanOutBeforeUntil": 5, "FileLost": 5, "VerifyFailed": 5, "Unreachable": 6,
    "ZooKeeperUnreachable": 6, "SessionLost": 6, "CommitUnknown": 6, "BrokerUnreachable": 6, "BrokerError": 6, "NotYetReadable": 6,
    "SparkLost": 6, "TableUnreachable": 7, "Stopped": 130,
}
RETRIABLE_CODES = {4, 6, 7, 130}


def test_every_kind_has_the_exit_code_of_its_branch() -> None:
    assert {kind.__name__: kind.exit_code for kind in KINDS} == EXIT_CODES


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_may_be_retried_when_its_exit_code_says_so(kind: type[EtlError]) -> None:
    assert kind.retriable == (kind.exit_code in RETRIABLE_CODES)


def test_the_tree_in_the_docstring_names_every_kind_under_its_parent() -> None:
    depth_of: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ((?:[│├└─ ])*)([A-Z]\w+)", line)
        if found:
            depth = len(found[1]) // 4
            depth_of[depth:] = [found[2]]
            parents = [base.__name__ for base in getattr(errors, found[2]).__bases__]
            assert parents == [depth_of[depth - 1] if depth else "Exception"], line


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_comes_back_whole_from_a_pickle(kind: type[EtlError]) -> None:
    error = kind("it broke", check="the logs", topic="clicks", partition=3, offset=17)
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is kind
    assert (found.what, found.check, found.where, str(found)) == (error.what, error.check, error.where, str(error))


def test_the_text_names_what_where_and_what_to_check() -> None:
    error = CorruptData("the CRC is wrong", topic="clicks", partition=3, offset=None, check="the broker's disk")
    assert str(error) == "the CRC is wrong (topic clicks, partition 3). Check: the broker's disk"
    assert str(EtlError("odd")) == "odd"


def test_an_error_is_a_json_document_whatever_its_places_are() -> None:
    error = SettingsError("the conf file is not there", path=Path("/x/clicks.yaml"), key=("a", 1))
    document = json.loads(json.dumps(error.as_json()))
    assert document["error"] == "SettingsError"
    assert document["where"] == {"path": "/x/clicks.yaml", "key": "('a', 1)"}
    assert (document["exit_code"], document["retriable"]) == (2, False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_marked_error_is_found_in_a_long_traceback(kind: type[EtlError]) -> None:
    error = kind('a "quoted" \\ line\nand more é', check="this", topic="t", partition=0, offset=2**62)
    text = f"Py4JJavaError: {'x' * 50_000}\n  at org.apache\nRuntimeError: {mark(error)}\n\tat java.lang.Thread\n{'y' * 50_000}"
    found = unmark(text)
    assert type(found) is kind
    assert (found.what, found.check, found.where) == (error.what, error.check, error.where)


def test_the_first_of_several_marked_errors_is_the_one() -> None:
    found = unmark(mark(CorruptData("first")) + mark(SettingsError("second")))
    assert isinstance(found, CorruptData)


def test_a_marker_in_other_text_does_not_hide_the_error_behind_it() -> None:
    found = unmark('raise RuntimeError("etl-error:" + text)\n' + mark(CorruptData("here")))
    assert isinstance(found, CorruptData)


def test_a_kind_that_this_version_does_not_know_is_still_an_error() -> None:
    found = unmark(mark(CorruptData("what", topic="t")).replace("CorruptData", "FromTheFuture"))
    assert found is not None
    assert (type(found), found.what, found.where) == (EtlError, "what", {"topic": "t"})


@pytest.mark.parametrize("junk", [
    "", "etl-error:", "etl-error", "etl-error:{", "etl-error:5", "etl-error:null", 'etl-error:"four"', "etl-error:[1,2,3,4]",
    "etl-error:[[],[],[],[]]", 'etl-error:["EtlError","what","check","where"]', 'etl-error:["EtlError","what","check",null]',
    'etl-error:{"a":1,"b":2,"c":3,"d":4}', 'etl-error:["EtlError","what","check",{"what":1}]', "etl-error:" + "[" * 100_000,
])
def test_junk_holds_no_error(junk: str) -> None:
    assert unmark(junk) is None


@given(st.text().filter(lambda text: "etl-error:" not in text), st.text(), st.text())
def test_what_stands_around_a_marked_error_is_no_error_and_hides_none(text: str, before: str, after: str) -> None:
    assert unmark(text) is None
    found = unmark(before + mark(CorruptData(text)) + after)
    assert (type(found), found and found.what) == (CorruptData, text)


JSON = st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(JSON.filter(lambda document: not (isinstance(document, list) and len(document) == 4 and isinstance(document[3], dict))))
def test_a_marked_document_that_is_no_error_holds_none(document: object) -> None:
    assert unmark("etl-error:" + json.dumps(document)) is None


@given(what=st.text(), check=st.text(), topic=st.text(), offset=st.integers())
def test_whatever_an_error_says_survives_marking(what: str, check: str, topic: str, offset: int) -> None:
    found = unmark("…" + mark(CorruptData(what, check=check, topic=topic, offset=offset)) + "…")
    assert found is not None
    assert (found.what, found.check, found.where) == (what, check, {"topic": topic, "offset": offset})
