"""Random bytes and corrupted valid examples for every parser of foreign input, and inputs that fuzzing
found: they raise the documented error and nothing else, within bounds of time and memory.

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

from tests.fuzz.guard import check
from tests.fuzz.mutations import mutated
from tests.fuzz.seeds import COMMITS, CONF
from tests.fuzz.targets import BY_NAME, TARGETS, Target

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
    etl = ROOT / "etl"
    called_whole = ("kafka/jafka_broker_type.py", "ledger/plan_document.py", "ledger/documents.py")
    callers = [*(ROOT / "tests" / "fuzz").glob("*.py"), *(etl / path for path in called_whole)]
    used = set()
    for caller in callers:
        for node in ast.walk(ast.parse(caller.read_text())):
            used |= {getattr(node, "id", None), getattr(node, "attr", None)}
    modules = [etl / "io" / "delta" / "log.py"]
    for folder in ("kafka", "records", "ledger", "settings"):
        modules += (etl / folder).glob("*.py")
    parsers = set()
    for module in modules:
        for node in ast.parse(module.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith(("parse_", "load_")):
                parsers.add(node.name)
    known = "parse_metadata parse_fetch parse_plan parse_owner parse_commit load_settings"
    assert set(known.split()) <= parsers
    assert parsers - used == set()


HEADER = b"\0\0\0\1"
NULL = b"\xff\xff\xff\xff"
CLICKS = b"\0\6clicks"


def aliases(first: bytes, each: bytes) -> bytes:
    """Eight lines that each name the one before nine times."""
    lines = [b"x0: &x0 " + first]
    for i in range(1, 9):
        lines.append(b"x%d: &x%d " % (i, i) + each % b",".join([b"*x%d" % (i - 1)] * 9))
    return CONF + b"\n".join(lines) + b"\n"


FOUND: dict[str, dict[str, bytes]] = {
    "ledger-znode": {
        "a document in three million pieces": b'{"chunks": "%s", "count": 3000000, "bytes": 3000000}'
        % (b"a" * 64),
    },
    "response-api-versions": {
        "a null array of versions": b"\0" + HEADER + b"\0\0" + NULL,
    },
    "response-metadata": {
        "a null array of brokers": b"\5" + HEADER + bytes(4) + NULL + b"\xff\xff" + bytes(8),
        "a null array of topics": b"\5"
        + HEADER
        + b"\0\0\0\0"
        + b"\0\0\0\0"
        + b"\xff\xff"
        + b"\0\0\0\1"
        + NULL,
        "a topic without a name": bytes.fromhex(
            "0c 00000001 00 00000000 01 00 00000001 02 0000 00"
            + "00" * 17
            + "02 0000 00000003 00000001 00000005 010101 00 00000000 00 00"
        ),
        "a length without an end": b"\x0c" + HEADER + b"\0\0\0\0\0" + b"\xff" * 600_000,
        "a port that is none": bytes.fromhex(
            "04 00000001 00000000 00000001 00000001 000162 00010000 ffffffff" + "00" * 8
        ),
    },
    "response-list-offsets": {
        "a null array of listed offsets": b"\2" + HEADER + bytes(4) + b"\0\0\0\1" + CLICKS + NULL,
    },
    "logs-describe-log-dirs": {
        "a null array of folders": b"\1" + bytes(4) + NULL,
    },
    "response-offset-fetch": {
        "a negative partition": bytes.fromhex(
            f"02 00000001 00000001 {CLICKS.hex()} 00000001 ffffffff" + "00" * 8 + "ffff 0000 0000"
        ),
    },
    "response-produce": {
        "a null array of appended logs": b"\3" + HEADER + b"\0\0\0\1" + CLICKS + NULL + bytes(4),
    },
    "commit-file": {
        "a commit file that is cut off": COMMITS[0][:100],
        "a commit file that is no text": b"\xb7\x91",
        "a commit file of lists": b"[{}]\n",
        "a txn without a version": b'{"txn": {"appId": "a"}}\n',
        "a txn of an infinite version": b'{"txn": {"appId": "a", "version": Infinity}}\n',
        "a commitInfo that is null": b'{"commitInfo": null}\n',
        "metaData without a schema": b'{"metaData": {"id": "x"}}\n',
        "metaData with a schema that is no text": b'{"metaData": {"id": "x", "schemaString": {}}}\n',
        "metaData with a number of columns": b'{"metaData": {"id": "x", "schemaString": "{\\"fields\\": []}", "partitionColumns": 1}}\n',
        "a commit file nested without an end": b'{"x": ' + b"[" * 100_000,
    },
    "added-files": {
        "an add that is a text": b'{"add": "x"}\n',
        "an add without a path": b'{"add": {}}\n',
        "partition values in a list": b'{"add": {"path": "x", "partitionValues": [1]}}\n',
    },
    "table-shape": {
        "a schema without fields": b'{"type": "struct"}',
        "a column with a list as its name": b'{"fields": [{"name": [], "type": "long", "nullable": true}]}',
        "a schema that is cut off": b'{"fields": [',
    },
    "conf-file": {
        "aliases of aliases": aliases(b"[1,1,1,1,1,1,1,1,1]", b"[%s]"),
        "merges of merges": aliases(b"{a: 1, b: 2}", b"{<<: [%s]}"),
        "brackets in brackets": b"[" * 20_000,
        "a number of sixties": b"version: " + b"1:" * 3000 + b"1\n",
        "a number of thousands of hex digits": b"version: 0x" + b"f" * 5000 + b"\n",
        "a fraction of sixties": b"version: " + b"59:" * 3000 + b"1.0\n",
        "a secret without an end": CONF.replace(b"path: reports", b"path: '${file:/dev/zero}'"),
        "a conf file larger than any": CONF + b"# " + b"x" * 2**20,
    },
    "address": {
        "a host that no lookup takes": b"broker..example.org:9092",
        "a port in other digits": "host:\u0669\u0660\u0669\u0662".encode(),
    },
    "source-options": {
        "a number of bytes in superscript": '{"bootstrap": "b:1", "topics": "t", "fetch_max_bytes": "\u00b2"}'.encode(),
        "a number of bytes of 5000 digits": b'{"bootstrap": "b:1", "topics": "t", "fetch_max_bytes": "%s"}'
        % (b"9" * 5000),
        "a port in superscript": '{"bootstrap": "b:\u00b2", "topics": "t"}'.encode(),
    },
    "ranges-option": {
        "ranges with an infinite offset": b'[{"topic": "clicks", "partition": 0, "from": Infinity, "until": 20}]',
    },
}
"""The inputs of each target by what is odd in them."""


CASES = [(target, name) for target, inputs in FOUND.items() for name in inputs]


@pytest.mark.parametrize(("target", "name"), CASES)
def test_input_found_by_fuzzing_raises_the_named_error(target: str, name: str) -> None:
    content = FOUND[target][name]
    check(BY_NAME[target], content)
    with pytest.raises(BY_NAME[target].raises):
        BY_NAME[target].read(content)
