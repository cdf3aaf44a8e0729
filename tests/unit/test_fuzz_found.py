"""Inputs that fuzzing found: each of them once raised an unexpected error, hung, or exhausted the
memory.
"""

from __future__ import annotations

import pytest

from tests.fuzz.guard import check
from tests.fuzz.seeds import COMMITS, CONF
from tests.fuzz.targets import BY_NAME

HEADER = b"\0\0\0\1"
NULL = b"\xff\xff\xff\xff"
CLICKS = b"\0\6clicks"


def aliases(first: bytes, each: bytes) -> bytes:
    """Eight lines that each name the one before nine times."""
    lines = [b"x0: &x0 " + first]
    for i in range(1, 9):
        lines.append(b"x%d: &x%d " % (i, i) + each % b",".join([b"*x%d" % (i - 1)] * 9))
    return CONF + b"\n".join(lines) + b"\n"


FOUND: dict[str, tuple[str, bytes]] = {
    "a document in three million pieces": (
        "ledger-znode",
        b'{"chunks": "%s", "count": 3000000, "bytes": 3000000}' % (b"a" * 64),
    ),
    "a null array of versions": ("response-api-versions", b"\0" + HEADER + b"\0\0" + NULL),
    "a null array of brokers": (
        "response-metadata",
        b"\5" + HEADER + bytes(4) + NULL + b"\xff\xff" + bytes(8),
    ),
    "a null array of topics": (
        "response-metadata",
        b"\5" + HEADER + b"\0\0\0\0" + b"\0\0\0\0" + b"\xff\xff" + b"\0\0\0\1" + NULL,
    ),
    "a topic without a name": (
        "response-metadata",
        b"\x0c"
        + HEADER
        + b"\0"
        + bytes(4)
        + b"\1"
        + b"\0"
        + b"\0\0\0\1"
        + b"\2"
        + b"\0\0"
        + b"\0"
        + bytes(17)
        + b"\2"
        + b"\0\0"
        + b"\0\0\0\3"
        + b"\0\0\0\1"
        + b"\0\0\0\5"
        + b"\1\1\1"
        + b"\0"
        + b"\0\0\0\0"
        + b"\0"
        + b"\0",
    ),
    "a length without an end": (
        "response-metadata",
        b"\x0c" + HEADER + b"\0\0\0\0\0" + b"\xff" * 600_000,
    ),
    "a port that is none": (
        "response-metadata",
        b"\4"
        + HEADER
        + bytes(4)
        + b"\0\0\0\1"
        + b"\0\0\0\1"
        + b"\0\1b"
        + b"\0\1\0\0"
        + b"\xff\xff" * 2
        + bytes(8),
    ),
    "a null array of listed offsets": (
        "response-list-offsets",
        b"\2" + HEADER + bytes(4) + b"\0\0\0\1" + CLICKS + NULL,
    ),
    "a null array of folders": ("logs-describe-log-dirs", b"\1" + bytes(4) + NULL),
    "a negative partition": (
        "response-offset-fetch",
        b"\2"
        + HEADER
        + b"\0\0\0\1"
        + CLICKS
        + b"\0\0\0\1"
        + NULL
        + bytes(8)
        + b"\xff\xff"
        + b"\0\0"
        + b"\0\0",
    ),
    "a null array of appended logs": (
        "response-produce",
        b"\3" + HEADER + b"\0\0\0\1" + CLICKS + NULL + bytes(4),
    ),
    "a commit file that is cut off": ("commit-file", COMMITS[0][:100]),
    "a commit file that is no text": ("commit-file", b"\xb7\x91"),
    "a commit file of lists": ("commit-file", b"[{}]\n"),
    "a txn without a version": ("commit-file", b'{"txn": {"appId": "a"}}\n'),
    "a txn of an infinite version": (
        "commit-file",
        b'{"txn": {"appId": "a", "version": Infinity}}\n',
    ),
    "a commitInfo that is null": ("commit-file", b'{"commitInfo": null}\n'),
    "metaData without a schema": ("commit-file", b'{"metaData": {"id": "x"}}\n'),
    "metaData with a schema that is no text": (
        "commit-file",
        b'{"metaData": {"id": "x", "schemaString": {}}}\n',
    ),
    "metaData with a number of columns": (
        "commit-file",
        b'{"metaData": {"id": "x", "schemaString": "{\\"fields\\": []}", "partitionColumns": 1}}\n',
    ),
    "a commit file nested without an end": ("commit-file", b'{"x": ' + b"[" * 100_000),
    "an add that is a text": ("added-files", b'{"add": "x"}\n'),
    "an add without a path": ("added-files", b'{"add": {}}\n'),
    "partition values in a list": (
        "added-files",
        b'{"add": {"path": "x", "partitionValues": [1]}}\n',
    ),
    "a schema without fields": ("table-shape", b'{"type": "struct"}'),
    "a column with a list as its name": (
        "table-shape",
        b'{"fields": [{"name": [], "type": "long", "nullable": true}]}',
    ),
    "a schema that is cut off": ("table-shape", b'{"fields": ['),
    "aliases of aliases": ("conf-file", aliases(b"[1,1,1,1,1,1,1,1,1]", b"[%s]")),
    "merges of merges": ("conf-file", aliases(b"{a: 1, b: 2}", b"{<<: [%s]}")),
    "brackets in brackets": ("conf-file", b"[" * 20_000),
    "a number of sixties": ("conf-file", b"version: " + b"1:" * 3000 + b"1\n"),
    "a number of thousands of hex digits": ("conf-file", b"version: 0x" + b"f" * 5000 + b"\n"),
    "a fraction of sixties": ("conf-file", b"version: " + b"59:" * 3000 + b"1.0\n"),
    "a secret without an end": (
        "conf-file",
        CONF.replace(b"path: reports", b"path: '${file:/dev/zero}'"),
    ),
    "a conf file larger than any": ("conf-file", CONF + b"# " + b"x" * 2**20),
    "a host that no lookup takes": ("address", b"broker..example.org:9092"),
    "a port in other digits": ("address", "host:\u0669\u0660\u0669\u0662".encode()),
    "a number of bytes in superscript": (
        "source-options",
        '{"bootstrap": "b:1", "topics": "t", "fetch_max_bytes": "\u00b2"}'.encode(),
    ),
    "a number of bytes of 5000 digits": (
        "source-options",
        b'{"bootstrap": "b:1", "topics": "t", "fetch_max_bytes": "%s"}' % (b"9" * 5000),
    ),
    "a port in superscript": (
        "source-options",
        '{"bootstrap": "b:\u00b2", "topics": "t"}'.encode(),
    ),
    "ranges with an infinite offset": (
        "ranges-option",
        b'[{"topic": "clicks", "partition": 0, "from": Infinity, "until": 20}]',
    ),
}


@pytest.mark.parametrize("name, content", FOUND.values(), ids=FOUND)
def test_input_found_by_fuzzing_raises_the_named_error(name: str, content: bytes) -> None:
    check(BY_NAME[name], content)
    with pytest.raises(BY_NAME[name].raises):
        BY_NAME[name].read(content)
