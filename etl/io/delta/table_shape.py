"""What exists at a table's path: nothing, a Delta table, or something else?

Lives here: the path in the forms of Spark and delta-rs; the table's columns and partitioning, with
the built-in `event_date`, and whether the rows fit; table features and properties, and which
writers support them (Delta protocol, "Table Features").

Not here: which column types fit (etl/decide/table_rules.py), the meaning of failures
(etl/io/delta/stores.py).
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from etl.decide import table_rules
from etl.decide.table_rules import (
    reject_impossible_columns,
    reject_other_columns,
    reject_partitions,
)
from etl.errors import NotOurTable, SettingsError
from etl.io.delta.log import Shape, damaged_file, open_log, parse_shape
from etl.io.delta.stores import (
    damaged_log,
    first_line,
    incomplete_log,
    not_supported,
    options_of,
    public_cause,
    table_folder,
    unknown_store,
    unreachable,
    without_columns,
)
from etl.settings.choices import folder_of
from etl.settings.table import store_of

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable


EVENT_DATE = "event_date"
_EVENT_DATE = {"name": EVENT_DATE, "type": "date", "nullable": True, "metadata": {}}
_MAPPING_OF_NEW_TABLES = "spark.databricks.delta.properties.defaults.columnMapping.mode"
_ANNOUNCED = "_delta_log/.announced"
"""Sorts before all commits, so a listing of the log begins after it."""
PROBE_PREFIX = ".etl_probe_"
"""Prefix of `exclusive_create`'s files. Spark and VACUUM skip names with a leading dot."""


def local_path(path: str) -> Path | None:
    """Return the absolute local directory that `path` names; None for an object store."""
    folder = folder_of(path)
    return None if folder is None else Path(folder).absolute()


def spark_path(path: str) -> str:
    """Return the location for Spark: with a scheme, and not percent-encoded.

    Without a scheme, a cluster's default file system would decide. Hadoop knows `s3a://` and, by
    default, not `s3://`; `abfss://` always uses TLS.
    """
    local = local_path(path)
    if local is not None:
        return f"file://{local}"
    if path.startswith("s3://"):
        return f"s3a://{path.removeprefix('s3://')}"
    if path.startswith("abfss://") and (store_of(path).endpoint or "").startswith("http://"):
        return f"abfs://{path.removeprefix('abfss://')}"
    return path


def rust_path(path: str) -> str:
    """Return the location for delta-rs."""
    local = local_path(path)
    return path if local is None else str(local)


def open_table(path: str) -> DeltaTable | None:
    """Return the Delta table at `path`; None if there is none yet.

    None means: nothing, an empty directory, or a first write that never finished. Raises
    NotOurTable for anything else, TableUnreachable or PermissionDenied if that is unknown.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, DeltaProtocolError, TableNotFoundError

    if not _may_be_table(path):
        return None
    try:
        return DeltaTable(rust_path(path), storage_options=options_of(path))
    except TableNotFoundError as error:
        store_unknown = unknown_store(error, path)
        if store_unknown:
            raise store_unknown from error
        _reject_other_files(path)
        return None
    except DeltaProtocolError as error:
        action = "Check the table's features (DESCRIBE DETAIL); delta-rs must be able to read them"
        raise NotOurTable(
            f"The table cannot be read: {first_line(error)}", path=path, action=action
        ) from error
    except (DeltaError, OSError) as error:
        known = (
            unknown_store(error, path)
            or not_supported(error, path)
            or without_columns(error, path)
            or incomplete_log(error, path, damaged_file)
            or damaged_log(error, path, damaged_file)
        )
        raise known or unreachable(error, path, "read") from public_cause(error, path)


def check_writable(path: str) -> None:
    """Raise TableUnreachable if the table's local directory is not writable.

    The test writes an unnamed temporary file.
    """
    folder = local_path(path)
    if folder is None:
        return
    try:
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"x")
    except NotADirectoryError as error:
        failure = _file_on_the_path(local_path(path) or folder, path)
        if failure is None:
            raise unreachable(error, path, "written", at=folder) from public_cause(error, path)
        raise failure from public_cause(error, path)
    except OSError as error:
        raise unreachable(error, path, "written", at=folder) from public_cause(error, path)


def announce_first_write(path: str) -> None:
    """Create the empty `_delta_log` that marks the files of a first write as the pipeline's.

    Spark creates it only with the commit, after the data files. After a crash in between, the
    directory would look like Parquet files of unknown origin, and the next run would reject it. In
    a store without directories an empty file is the mark.
    """
    folder = local_path(path)
    try:
        if folder is None:
            table_folder(path).create(_ANNOUNCED).close()
            return
        (folder / "_delta_log").mkdir(parents=True, exist_ok=True)
    except (NotADirectoryError, FileExistsError) as error:
        failure = None if folder is None else _file_on_the_path(folder, path)
        if failure is None:
            raise unreachable(error, path, "written") from public_cause(error, path)
        raise failure from public_cause(error, path)
    except OSError as error:
        raise unreachable(error, path, "written") from public_cause(error, path)


def _may_be_table(path: str) -> bool:
    """Return False if nothing exists there. An object store is not checked: always True."""
    folder = local_path(path)
    if folder is None:
        return True
    # delta-rs would decode such a name as an escaped character and read another directory
    if re.search("%[0-9A-Fa-f]{2}", str(folder)):
        raise SettingsError(
            "A folder with % and two digits in its name cannot hold a table",
            path=path,
            action="Check table.path",
        )
    try:
        entries = sorted(os.listdir(folder))
    except FileNotFoundError:
        return False
    except NotADirectoryError as error:
        failure = _file_on_the_path(folder, path)
        if failure is None:
            raise unreachable(error, path, "read") from public_cause(error, path)
        raise failure from public_cause(error, path)
    except OSError as error:
        raise unreachable(error, path, "read") from public_cause(error, path)
    if "_delta_log" in entries and not (folder / "_delta_log").is_dir():
        raise NotOurTable(
            "Its _delta_log is a file",
            path=path,
            action="Check table.path: it must name a Delta table, an empty folder or nothing",
        )
    return bool(entries)


def _file_on_the_path(folder: Path, path: str) -> NotOurTable | None:
    """Return the error for a file where the path needs a directory; None if there is no file."""
    if folder.is_file():
        return NotOurTable(
            "The path is a file, not a Delta table",
            path=path,
            action="Check table.path: it must name a folder",
        )
    for parent in folder.parents:
        if parent.is_file():
            return NotOurTable(
                f"{parent} is a file, and the path lies below it",
                path=path,
                action="Check table.path: every part above it must be a folder",
            )
    return None


def _reject_other_files(path: str) -> None:
    """Raise NotOurTable for a directory with files and without a `_delta_log`."""
    found = []
    for info in _entries(path):
        if not info.base_name.startswith(PROBE_PREFIX):
            found.append(info.base_name)
    found.sort()
    if not found or "_delta_log" in found:
        return
    shown = ", ".join(found[:3])
    if len(found) > 3:
        shown += ", ..."
    raise NotOurTable(
        f"The folder is no Delta table: it has no _delta_log, but holds {shown}",
        path=path,
        action="Check table.path: it must name a Delta table, an empty folder or nothing",
    )


def _entries(path: str) -> list[fs.FileInfo]:
    """List the directory.

    delta-rs lists no empty directories, so the operating system lists a local one.
    """
    folder = local_path(path)
    try:
        if folder is not None:
            return list(fs.LocalFileSystem().get_file_info(fs.FileSelector(str(folder))))
        return list(open_log(path).get_file_info(fs.FileSelector("", recursive=False)))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreachable(error, path, "read") from public_cause(error, path)


def check_shape(path: str, expected: pyarrow.Schema, partition_by: Sequence[str]) -> None:
    """Reject a table that the rows do not fit, or that could not be created.

    `expected`: columns of the rows without the built-in `event_date`. Any other column of the table
    must be nullable. Raises NotOurTable with the first column that differs, SettingsError for an
    impossible partitioning.
    """
    from deltalake import Schema

    check_columns(path, Schema.from_arrow(expected).to_json(), partition_by)


def check_columns(
    path: str,
    expected: str,
    partition_by: Sequence[str],
    *,
    spark: Mapping[str, str] | None = None,
    key: str = "transform",
) -> None:
    """Check columns as `check_shape` does, given as a JSON schema of Spark or delta-rs.

    `spark`: the conf's Spark settings. `key`: the conf's key of the transform.
    """
    fields = json.loads(expected)["fields"]
    names = [field["name"] for field in fields]
    table = open_table(path)
    if table is not None:
        _reject_generated_partitions(table, (*names, EVENT_DATE), partition_by, path)
    reject_unknown(partition_by, names)
    if EVENT_DATE in partition_by and EVENT_DATE not in names:
        fields.append(_EVENT_DATE)
    mapping_of_new_table = (spark or {}).get(_MAPPING_OF_NEW_TABLES, "none")
    with_mapping = table is not None or mapping_of_new_table != "none"
    reject_impossible_columns(fields, with_mapping=with_mapping, key=key)

    wanted = parse_shape("", json.dumps({"fields": fields}), partition_by)
    if table is None:
        reject_partitions(wanted.columns, partition_by, path=None)
        return
    found = shape_of(table)
    path_of_same = path if found.partition_by == wanted.partition_by else None
    reject_partitions(wanted.columns, partition_by, path=path_of_same)
    reject_other_columns(path, wanted.columns, found.columns, found.renamed)
    _reject_another_partitioning(found, wanted.partition_by, path)


def columns_to_add(table: DeltaTable, expected: pyarrow.Schema) -> str:
    """Return the SQL statement that adds the columns that the table lacks.

    Empty if it has all of them, if also under another name.
    """
    from deltalake import Schema

    wanted = parse_shape("", Schema.from_arrow(expected).to_json(), ())
    found = shape_of(table)
    return table_rules.columns_to_add(wanted.columns, {**found.renamed, **found.columns})


def check_partitioning(path: str, partition_by: Sequence[str]) -> None:
    """Check the part of `check_columns` that does not depend on the rows' columns.

    Raises NotOurTable, SettingsError.
    """
    table = open_table(path)
    if table is None:
        return
    _reject_generated_partitions(table, partition_by, partition_by, path)
    found = shape_of(table)
    _reject_another_partitioning(found, tuple(partition_by), path)
    reject_partitions(found.columns, partition_by, path=path)


def _reject_generated_partitions(
    table: DeltaTable, names: Sequence[str], partition_by: Sequence[str], path: str
) -> None:
    """Raise NotOurTable for a generated partition column that the rows or the conf lack.

    `names`: the columns of the rows.
    """
    for field in json.loads(table.schema().to_json())["fields"]:
        name = field["name"]
        expression = field.get("metadata", {}).get("delta.generationExpression")
        is_partition = name in table.metadata().partition_columns
        if expression is None or not is_partition or name in names and name in partition_by:
            continue
        raise NotOurTable(
            f"The table is partitioned by {name}, which it generates ({expression}), and rows must "
            "have the column",
            path=path,
            key="table.partition_by",
            action=f"Make the column in transform.dataframe, F.expr({expression!r}), and set "
            f"table.partition_by to {_listed(table.metadata().partition_columns)}",
        )


def _reject_another_partitioning(found: Shape, partition_by: Sequence[str], path: str) -> None:
    if found.partition_by == partition_by:
        return
    # first: an impossible partitioning of the table must not be recommended for the conf
    reject_partitions(found.columns, found.partition_by, path=path)
    message = (
        f"The table is partitioned by {_listed(found.partition_by)}, "
        f"the conf sets {_listed(partition_by)}"
    )
    raise NotOurTable(
        message,
        path=path,
        key="table.partition_by",
        action="Check table.partition_by, or that table.path is the right table",
    )


def with_event_date_field(schema: pyarrow.Schema, partition_by: Sequence[str]) -> pyarrow.Schema:
    """Return the schema with the built-in column `event_date` if it is needed.

    It is needed if the partitioning names it and the rows lack it.
    """
    import pyarrow

    reject_unknown(partition_by, schema.names)
    if EVENT_DATE not in partition_by or EVENT_DATE in schema.names:
        return schema
    return schema.append(pyarrow.field(EVENT_DATE, pyarrow.date32()))


def reject_unknown(partition_by: Sequence[str], columns: Sequence[str]) -> None:
    """Raise SettingsError for a partition column that the rows do not have.

    The built-in `event_date` is computed from the column `timestamp`.
    """
    for name in partition_by:
        needed = name
        if name == EVENT_DATE and name not in columns:
            needed = "timestamp"
        if needed not in columns:
            raise SettingsError(
                f"The table cannot be partitioned by {name}: the rows have no column {needed}",
                key="table.partition_by",
                action=f"Use the columns {', '.join(columns)}",
            )


def shape_of(table: DeltaTable) -> Shape:
    """Return the table's id, columns and partitioning."""
    return parse_shape(id_of(table), table.schema().to_json(), table.metadata().partition_columns)


def id_of(table: DeltaTable) -> str:
    """Return the table's id."""
    return str(table.metadata().id)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


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
"""Features that this release of Delta for Spark reports as supported; a test compares them."""
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
"""Features of tables to which delta-rs can commit; a test tries each."""
WRITTEN_BY_ARROW = frozenset(
    ("appendOnly", "changeDataFeed", "deletionVectors", "timestampNtz", "v2Checkpoint")
)
"""Features of tables to which files of the arrow writer can be added; a test tries each."""
_IN_NAME_ONLY = frozenset(
    ("checkConstraints", "columnMapping", "generatedColumns", "identityColumns", "invariants")
)
"""Features that tables often name without using them. Only their use matters, which
`unfit_for_arrow` checks.
"""
_BY_WRITER_VERSION = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
"""Features of writer versions below 7 (Delta protocol, "Requirements for Writers")."""

_REQUIREMENTS = {
    "delta.generationExpression": "generated",
    "delta.invariants": "under an invariant",
    "delta.identity.start": "an identity column",
    "__CHAR_VARCHAR_TYPE_STRING": "CHAR or VARCHAR",
}
"""Key in a column's metadata -> how the message describes the column."""

_ID_RETENTION = "delta.setTransactionRetentionDuration"


def features_of(table: DeltaTable) -> frozenset[str]:
    """Return the names of the table features, with those that an old protocol version implies."""
    protocol = table.protocol()
    names = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    if protocol.min_writer_version < 7:
        for version, features in _BY_WRITER_VERSION.items():
            if version <= protocol.min_writer_version:
                names.update(features)
    return frozenset(map(str, names))


def not_by_delta_rs(table: DeltaTable) -> frozenset[str]:
    """Return the table's features that delta-rs cannot commit to; Spark may support them."""
    if table.protocol().min_writer_version < 7:
        return frozenset()
    return features_of(table) - WRITTEN_BY_DELTA_RS


def unfit_for_arrow(table: DeltaTable) -> str | None:
    """Return why files of the arrow writer cannot be added to the table; None if they can.

    No reader checks such files: they would silently violate constraints, generated values and
    column names.
    """
    by_arrow = WRITTEN_BY_ARROW | _IN_NAME_ONLY
    unsupported = sorted((features_of(table) - by_arrow) | not_by_delta_rs(table))
    if unsupported:
        return f"it has the table feature {unsupported[0]}"
    properties = table.metadata().configuration
    mapping = properties.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        return f"it has column mapping ({mapping})"
    for key in sorted(properties):
        if key.startswith("delta.constraints."):
            return f"it has the constraint {key.removeprefix('delta.constraints.')}"
    for field in json.loads(table.schema().to_json())["fields"]:
        requirement = _requirement_of(field)
        if requirement:
            return requirement
    return None


def _requirement_of(field: Mapping[str, Any]) -> str | None:
    """Return what a column requires of its values that the arrow writer does not ensure."""
    for key in field.get("metadata", {}):
        if key in _REQUIREMENTS:
            return f"its column {field['name']} is {_REQUIREMENTS[key]}"
    return None if field["nullable"] else f"its column {field['name']} is NOT NULL"


def reject_expiring_transaction_ids(
    table: DeltaTable,
    path: str,
    *,
    called: str = "The table",
    harm: str = "a plan could be applied twice",
) -> None:
    """Raise NotOurTable if the table expires transaction ids, which show what was applied.

    `called`: the table in the message. `harm`: the consequence.
    """
    if _ID_RETENTION in table.metadata().configuration:
        action = (
            f"Run ALTER TABLE ... UNSET TBLPROPERTIES ('{_ID_RETENTION}'). "
            f"Once an id has expired, {harm}"
        )
        raise NotOurTable(
            f"{called} forgets transaction ids ({_ID_RETENTION})", path=path, action=action
        )
