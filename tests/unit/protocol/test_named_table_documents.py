"""Where a named table was, as the ledger keeps it."""

from __future__ import annotations

import json
import zlib

import pytest

from etl.errors import LedgersDisagree, NeedsDecision
from etl.ledger.documents import parse, render
from etl.model.snapshot import NamedTable

FOUND = NamedTable("main.lake.clicks", "s3a://bucket/wh/clicks", "3f-1", 1_700_000_000_000, "0a1b")


@pytest.mark.parametrize("found", [FOUND, NamedTable("lake.clicks", "/wh/cl icks", None, 0)])
def test_a_stored_document_is_parsed_unchanged(found: NamedTable) -> None:
    assert parse(NamedTable, render(found), path="p") == found


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"path": ""}, LedgersDisagree),
        ({"name": 3}, LedgersDisagree),
        ({"table_id": 3}, LedgersDisagree),
        ({"at_ms": "now"}, LedgersDisagree),
        ({"catalog": 3}, LedgersDisagree),
        ({"format": 99}, NeedsDecision),
        ({"since": "then"}, None),
    ],
)
def test_another_document_is_rejected_and_an_additional_key_is_not(
    change: dict[str, object], kind: type[Exception] | None
) -> None:
    document = {**json.loads(zlib.decompress(render(FOUND))), **change}
    payload = zlib.compress(json.dumps(document).encode())
    if kind is None:
        assert parse(NamedTable, payload, path="p") == FOUND
        return
    with pytest.raises(kind):
        parse(NamedTable, payload, path="p")
