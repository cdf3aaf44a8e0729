"""What a table asks of its writers: its features and which of them Spark and delta-rs can commit to (Delta protocol, "Table Features"); and
the one property that no table of ours may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.edges.delta.path import open_table
from etl.errors import NotOurTable

if TYPE_CHECKING:
    from deltalake import DeltaTable

WRITTEN_BY_SPARK = frozenset((
    "adaptiveMetadata-preview", "allowColumnDefaults", "appendOnly", "catalogManaged", "changeDataFeed", "checkConstraints",
    "checkpointProtection", "clustering", "columnMapping", "coordinatedCommits-preview", "deletionVectors", "domainMetadata",
    "generatedColumns", "geospatial", "geospatial-dev", "icebergCompatV1", "icebergCompatV2", "icebergCompatV3", "identityColumns",
    "inCommitTimestamp", "invariants", "materializePartitionColumns", "rowTracking", "timestampNtz", "typeWidening",
    "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck", "variantShredding", "variantShredding-preview", "variantType",
    "variantType-preview",
))
"""What the Delta of our Spark says it supports; a test asks it."""
WRITTEN_BY_DELTA_RS = frozenset((
    "appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors", "generatedColumns", "invariants",
    "timestampNtz", "v2Checkpoint", "variantType", "variantType-preview",
))
"""What delta-rs commits to, found by trying; a test tries it."""
_BY_WRITER_VERSION = {
    2: ("appendOnly", "invariants"), 3: ("checkConstraints",), 4: ("changeDataFeed", "generatedColumns"), 5: ("columnMapping",),
    6: ("identityColumns",),
}
"""What a writer version below 7 brings without naming it (Delta protocol, "Requirements for Writers")."""
_FORGETS_IDS = "delta.setTransactionRetentionDuration"


def features_of(table: DeltaTable) -> frozenset[str]:
    """The table features by name, also those that an old protocol version implies."""
    protocol = table.protocol()
    named = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    if protocol.min_writer_version < 7:
        named |= {f for version, brings in _BY_WRITER_VERSION.items() if version <= protocol.min_writer_version for f in brings}
    return frozenset(map(str, named))


def not_by_delta_rs(table: DeltaTable) -> frozenset[str]:
    """The features that keep delta-rs from committing to the table; Spark may."""
    return features_of(table) - WRITTEN_BY_DELTA_RS if table.protocol().min_writer_version >= 7 else frozenset()


def unknown_to_delta_rs(path: str) -> frozenset[str]:
    """The features that keep delta-rs from committing to the table at `path`; none where there is no table. Raises as `open_table`."""
    table = open_table(path)
    return not_by_delta_rs(table) if table is not None else frozenset()


def refuse_expiring_ids(
    table: DeltaTable, path: str, *, called: str = "the table", harm: str = "a plan could be applied twice",
) -> None:
    """Transaction ids tell what was applied, so a table must keep them for ever. Raises NotOurTable; `harm`: what could happen else."""
    if _FORGETS_IDS in table.metadata().configuration:
        check = f"ALTER TABLE ... UNSET TBLPROPERTIES ('{_FORGETS_IDS}'): once an id has expired, {harm}"
        raise NotOurTable(f"{called} forgets transaction ids ({_FORGETS_IDS})", path=path, check=check)
