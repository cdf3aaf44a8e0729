"""What a table asks of its writers: its features, and which of them Spark, delta-rs and files of
our own fit (Delta protocol, "Table Features"); and the one property that no table of ours may have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from etl.errors import NotOurTable

if TYPE_CHECKING:
    from deltalake import DeltaTable

WRITTEN_BY_SPARK = frozenset(
    (
        "adaptiveMetadata-preview",
        "allowColumnDefaults",
        "appendOnly",
        "catalogManaged",
        "changeDataFeed",
        "checkConstraints",
        "checkpointProtection",
        "clustering",
        "columnMapping",
        "coordinatedCommits-preview",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "geospatial",
        "geospatial-dev",
        "icebergCompatV1",
        "icebergCompatV2",
        "icebergCompatV3",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "materializePartitionColumns",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    )
)
"""What the Delta of our Spark says it supports; a test asks it."""
WRITTEN_BY_DELTA_RS = frozenset(
    (
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    )
)
"""What delta-rs commits to, found by trying; a test tries it."""
WRITTEN_BY_ARROW = frozenset(
    ("appendOnly", "changeDataFeed", "deletionVectors", "timestampNtz", "v2Checkpoint")
)
"""What files that we write ourselves may be added under, found by trying; a test tries it."""
_IN_NAME_ONLY = frozenset(
    ("checkConstraints", "columnMapping", "generatedColumns", "identityColumns", "invariants")
)
"""Features that a table often names and does not use: nobody would keep what they ask for, so what
matters is whether it asks.
"""
_BY_WRITER_VERSION = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
"""What a writer version below 7 brings without naming it (Delta protocol, "Requirements for
Writers").
"""
_FORGETS_IDS = "delta.setTransactionRetentionDuration"


def features_of(table: DeltaTable) -> frozenset[str]:
    """The table features by name, also those that an old protocol version implies."""
    protocol = table.protocol()
    named = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    if protocol.min_writer_version < 7:
        named |= {
            f
            for version, brings in _BY_WRITER_VERSION.items()
            if version <= protocol.min_writer_version
            for f in brings
        }
    return frozenset(map(str, named))


def not_by_delta_rs(table: DeltaTable) -> frozenset[str]:
    """The features that keep delta-rs from committing to the table; Spark may."""
    return (
        features_of(table) - WRITTEN_BY_DELTA_RS
        if table.protocol().min_writer_version >= 7
        else frozenset()
    )


def unfit_for_arrow(table: DeltaTable) -> str | None:
    """Why files that no engine for tables wrote cannot be added to the table; None where they can.

    Neither delta-rs nor any reader looks into such files: what a table asks of its rows
    (constraints, generated values, other names for columns) would be broken without a word.
    """
    unknown = sorted(
        (features_of(table) - WRITTEN_BY_ARROW - _IN_NAME_ONLY) | not_by_delta_rs(table)
    )
    if unknown:
        return f"it has the table feature {unknown[0]}"
    properties = table.metadata().configuration
    mapping = properties.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        return f"it has column mapping ({mapping})"
    constraint = next(
        (key for key in sorted(properties) if key.startswith("delta.constraints.")), None
    )
    if constraint:
        return f"it has the constraint {constraint.removeprefix('delta.constraints.')}"
    return next(
        (why for field in json.loads(table.schema().to_json())["fields"] if (why := _asks(field))),
        None,
    )


def _asks(field: Mapping[str, Any]) -> str | None:
    """What a column asks of its values that nobody would keep."""
    asked = next((key for key in field.get("metadata", {}) if key in _OF_COLUMNS), None)
    if asked:
        return f"its column {field['name']} is {_OF_COLUMNS[asked]}"
    return None if field["nullable"] else f"its column {field['name']} is NOT NULL"


_OF_COLUMNS = {
    "delta.generationExpression": "generated",
    "delta.invariants": "under an invariant",
    "delta.identity.start": "an identity column",
    "__CHAR_VARCHAR_TYPE_STRING": "CHAR or VARCHAR",
}


def refuse_expiring_ids(
    table: DeltaTable,
    path: str,
    *,
    called: str = "the table",
    harm: str = "a plan could be applied twice",
) -> None:
    """Transaction ids tell what was applied, so a table must keep them for ever. Raises
    NotOurTable; `harm`: what could happen else.
    """
    if _FORGETS_IDS in table.metadata().configuration:
        check = f"ALTER TABLE ... UNSET TBLPROPERTIES ('{_FORGETS_IDS}'): once an id has expired, {harm}"
        raise NotOurTable(
            f"{called} forgets transaction ids ({_FORGETS_IDS})", path=path, check=check
        )
