"""Where a table was that a catalog names, as bytes: one document for a pipeline."""

from __future__ import annotations

import zlib
from typing import Any

from etl.model.snapshot import NamedTable
from etl.protocol.zookeeper.documents import FORMAT, canonical, parsed


def render_named_table(found: NamedTable) -> bytes:
    """The znode of a named table."""
    told = {
        "name": found.name,
        "path": found.path,
        "table_id": found.table_id,
        "at_ms": found.at_ms,
        "catalog": found.catalog,
    }
    document = {"format": FORMAT, **told}
    return zlib.compress(canonical(document), 6)


def parse_named_table(payload: bytes, *, path: str) -> NamedTable:
    """Where the table was. Raises LedgersDisagree where the znode does not say, NeedsDecision where
    a newer version wrote it.
    """
    return parsed(payload, path, _named_table)


def _named_table(found: dict[str, Any]) -> NamedTable:
    name, place, table_id, at_ms = found["name"], found["path"], found["table_id"], found["at_ms"]
    if not (
        isinstance(name, str)
        and isinstance(place, str)
        and name
        and place
        and isinstance(at_ms, int)
    ):
        raise ValueError(f"{name!r} at {place!r} is no place of a table")
    if not (table_id is None or isinstance(table_id, str)):
        raise ValueError(f"{table_id!r} is no id of a table")
    catalog = found.get("catalog")
    if not (catalog is None or isinstance(catalog, str)):
        raise ValueError(f"{catalog!r} names no catalog")
    return NamedTable(name, place, table_id, at_ms, catalog)
