"""What is at a table's path: nothing, a Delta table, or something else?

Lives here: the path as Spark and delta-rs need it; columns of the table, and whether rows fit,
`event_date` included; table features and properties, and which writers support them (Delta
protocol, "Table Features").

Not here: which types fit (etl/decide/table_rules.py), failures (etl/io/delta/stores.py).
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
from etl.io.delta.log import Shape, open_log, parse_shape
from etl.io.delta.stores import (
    behind,
    first_line,
    log_lost,
    no_store,
    not_supported,
    options_of,
    table_folder,
    unreachable,
    without_columns,
)
from etl.settings.choices import folder_of
from etl.settings.table import store_of

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable


_ANNOUNCED = "_delta_log/.announced"
"""Sorts before all commits: a listing of the log begins after it."""
PROBE_PREFIX = ".etl_probe_"
"""Prefix of `exclusive_create`'s files; Spark and VACUUM skip names with a leading dot."""


def local_path(path: str) -> Path | None:
    """The folder that `path` names on this machine, absolute; None for an object store."""
    folder = folder_of(path)
    return None if folder is None else Path(folder).absolute()


def spark_path(path: str) -> str:
    """Return the location for Spark: with a scheme, because a cluster's default file system may
    differ; not percent-encoded. Hadoop knows `s3a://` and, by default, not `s3://`; `abfss://`
    always uses TLS.
    """
    local = local_path(path)
    if path.startswith("s3://"):
        return f"s3a://{path.removeprefix('s3://')}"
    if path.startswith("abfss://") and (store_of(path).endpoint or "").startswith("http://"):
        return f"abfs://{path.removeprefix('abfss://')}"
    return path if local is None else f"file://{local}"


def rust_path(path: str) -> str:
    """Return the location for delta-rs."""
    local = local_path(path)
    return path if local is None else str(local)


def open_table(path: str) -> DeltaTable | None:
    """Return the Delta table at `path`, or None if there is none yet: nothing, an empty directory,
    or a first write that never finished. Raises NotOurTable for anything else there,
    TableUnreachable or PermissionDenied if that is unknown.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, DeltaProtocolError, TableNotFoundError

    if not _may_be_table(path):
        return None
    try:
        return DeltaTable(rust_path(path), storage_options=options_of(path))
    except TableNotFoundError as error:
        nowhere = no_store(error, path)
        if nowhere:
            raise nowhere from error
        _reject_other_files(path)
        return None
    except DeltaProtocolError as error:
        action = "Check the table's features (DESCRIBE DETAIL); delta-rs must be able to read them"
        raise NotOurTable(
            f"The table cannot be read: {first_line(error)}", path=path, action=action
        ) from error
    except (DeltaError, OSError) as error:
        refusal = (
            no_store(error, path)
            or not_supported(error, path)
            or without_columns(error, path)
            or log_lost(error, path)
        )
        raise refusal or unreachable(error, path, "read") from behind(error, path)


def check_writable(path: str) -> None:
    """Raise TableUnreachable if the table's local directory cannot be written, tested with an
    unnamed temporary file.
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
        raise _in_the_way(local_path(path) or folder, path) or unreachable(
            error, path, "written", at=folder
        ) from behind(error, path)
    except OSError as error:
        raise unreachable(error, path, "written", at=folder) from behind(error, path)


def announce_first_write(path: str) -> None:
    """Create the empty `_delta_log` that marks the files of a first write.

    Spark creates it only with the commit, after the data files; after a crash in between a
    directory of Parquet files would look like anybody's. In a store without directories an empty
    file marks it.
    """
    folder = local_path(path)
    try:
        if folder is None:
            table_folder(path).create(_ANNOUNCED).close()
            return
        (folder / "_delta_log").mkdir(parents=True, exist_ok=True)
    except (NotADirectoryError, FileExistsError) as error:
        raise (_in_the_way(folder, path) if folder else None) or unreachable(
            error, path, "written"
        ) from behind(error, path)
    except OSError as error:
        raise unreachable(error, path, "written") from behind(error, path)


def _may_be_table(path: str) -> bool:
    """False if nothing is there. An object store is always asked."""
    folder = local_path(path)
    if folder is None:
        return True
    if re.search(
        "%[0-9A-Fa-f]{2}", str(folder)
    ):  # delta-rs would take it for an escaped character and look elsewhere
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
        raise _in_the_way(folder, path) or unreachable(error, path, "read") from behind(error, path)
    except OSError as error:
        raise unreachable(error, path, "read") from behind(error, path)
    if "_delta_log" in entries and not (folder / "_delta_log").is_dir():
        raise NotOurTable(
            "Its _delta_log is a file",
            path=path,
            action="Check table.path: it must name a Delta table, an empty folder or nothing",
        )
    return bool(entries)


def _in_the_way(folder: Path, path: str) -> NotOurTable | None:
    """The failure for a file where a folder should be."""
    if folder.is_file():
        return NotOurTable(
            "The path is a file, not a Delta table",
            path=path,
            action="Check table.path: it must name a folder",
        )
    above = next((one for one in folder.parents if one.is_file()), None)
    message = f"{above} is a file, and the path lies below it"
    return (
        NotOurTable(
            message, path=path, action="Check table.path: every part above it must be a folder"
        )
        if above
        else None
    )


def _reject_other_files(path: str) -> None:
    found = [
        info.base_name for info in _entries(path) if not info.base_name.startswith(PROBE_PREFIX)
    ]
    if found and "_delta_log" not in found:
        shown = ", ".join(sorted(found)[:3]) + (", ..." if len(found) > 3 else "")
        message = f"The folder is no Delta table: it has no _delta_log, but holds {shown}"
        raise NotOurTable(
            message,
            path=path,
            action="Check table.path: it must name a Delta table, an empty folder or nothing",
        )


def _entries(path: str) -> list[fs.FileInfo]:
    """List the directory. delta-rs lists no empty directories, so a local one is listed by the
    system.
    """
    folder = local_path(path)
    try:
        if folder is not None:
            return list(fs.LocalFileSystem().get_file_info(fs.FileSelector(str(folder))))
        return list(open_log(path).get_file_info(fs.FileSelector("", recursive=False)))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreachable(error, path, "read") from behind(error, path)


EVENT_DATE = "event_date"
_EVENT_DATE = {"name": EVENT_DATE, "type": "date", "nullable": True, "metadata": {}}
_MAPPING_OF_NEW_TABLES = "spark.databricks.delta.properties.defaults.columnMapping.mode"


def check_shape(path: str, expected: pyarrow.Schema, partition_by: Sequence[str]) -> None:
    """Reject a table that our rows do not fit, or that could not be created.

    `expected`: columns of the rows without the built-in `event_date`. A column that we do not write
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
    """Do the same for columns as in a schema of Spark or delta-rs, JSON. `spark`: the conf's
    settings. `key`: the conf's key of the transform.
    """
    fields = json.loads(expected)["fields"]
    names = [field["name"] for field in fields]
    reject_unknown(partition_by, names)
    if EVENT_DATE in partition_by and EVENT_DATE not in names:
        fields.append(_EVENT_DATE)
    table = open_table(path)
    with_mapping = table is not None or (spark or {}).get(_MAPPING_OF_NEW_TABLES, "none") != "none"
    reject_impossible_columns(fields, with_mapping=with_mapping, key=key)
    wanted = parse_shape("", json.dumps({"fields": fields}), partition_by)
    found = shape_of(table) if table is not None else None
    is_there_so = found is not None and found.partition_by == wanted.partition_by
    reject_partitions(wanted.columns, partition_by, path=path if is_there_so else None)
    if found is None:
        return
    reject_other_columns(path, wanted.columns, found.columns)
    _reject_another_partitioning(found, wanted.partition_by, path)


def columns_to_add(path: str, expected: pyarrow.Schema) -> str:
    """The statement that gives the table the columns that it lacks; empty if there is none, or it
    has all of them.
    """
    from deltalake import Schema

    table = open_table(path)
    if table is None:
        return ""
    wanted = parse_shape("", Schema.from_arrow(expected).to_json(), ())
    return table_rules.columns_to_add(wanted.columns, shape_of(table).columns)


def check_partitioning(path: str, partition_by: Sequence[str]) -> None:
    """Check what `check_columns` rejects whatever the columns are. Raises NotOurTable,
    SettingsError.
    """
    table = open_table(path)
    if table is None:
        return
    found = shape_of(table)
    _reject_another_partitioning(found, tuple(partition_by), path)
    reject_partitions(found.columns, partition_by, path=path)


def _reject_another_partitioning(found: Shape, partition_by: Sequence[str], path: str) -> None:
    if found.partition_by != partition_by:
        reject_partitions(
            found.columns, found.partition_by, path=path
        )  # one that cannot go on so is not to be named in the conf either
        message = f"The table is partitioned by {_listed(found.partition_by)}, the conf says {_listed(partition_by)}"
        raise NotOurTable(
            message,
            path=path,
            key="table.partition_by",
            action="Check table.partition_by, or that table.path is the right table",
        )


def with_event_date_field(schema: pyarrow.Schema, partition_by: Sequence[str]) -> pyarrow.Schema:
    """The schema with the built-in column `event_date`, when the partitioning names it and the rows
    lack it.
    """
    import pyarrow

    reject_unknown(partition_by, schema.names)
    if EVENT_DATE not in partition_by or EVENT_DATE in schema.names:
        return schema
    return schema.append(pyarrow.field(EVENT_DATE, pyarrow.date32()))


def reject_unknown(partition_by: Sequence[str], columns: Sequence[str]) -> None:
    """`event_date` is made of the column `timestamp`, every other column must be there. Raises
    SettingsError.
    """
    for name in partition_by:
        needed = "timestamp" if name == EVENT_DATE and name not in columns else name
        if needed not in columns:
            message = f"The table cannot be partitioned by {name}: the rows have no column {needed}"
            raise SettingsError(
                message, key="table.partition_by", action=f"Use the columns {', '.join(columns)}"
            )


def shape_of(table: DeltaTable) -> Shape:
    """The table's id, columns and partitioning."""
    return parse_shape(id_of(table), table.schema().to_json(), table.metadata().partition_columns)


def id_of(table: DeltaTable) -> str:
    """The table's id."""
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
"""Features that the Delta of our Spark reports as supported; a test asks it."""
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
"""Features that delta-rs commits to; a test tries them."""
WRITTEN_BY_ARROW = frozenset(
    ("appendOnly", "changeDataFeed", "deletionVectors", "timestampNtz", "v2Checkpoint")
)
"""Features under which our own files may be added; a test tries them."""
_IN_NAME_ONLY = frozenset(
    ("checkConstraints", "columnMapping", "generatedColumns", "identityColumns", "invariants")
)
"""Features that a table often names without using them: only their use matters."""
_BY_WRITER_VERSION = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
"""Features of writer versions below 7 (Delta protocol, "Requirements for Writers")."""
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
    """Return why our own files cannot be added to the table; None if they can. No reader checks
    such files: constraints, generated values and column names would be violated silently.
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
    """Return what a column requires of its values that our files would not satisfy."""
    feature = next((key for key in field.get("metadata", {}) if key in _OF_COLUMNS), None)
    if feature:
        return f"its column {field['name']} is {_OF_COLUMNS[feature]}"
    return None if field["nullable"] else f"its column {field['name']} is NOT NULL"


_OF_COLUMNS = {
    "delta.generationExpression": "generated",
    "delta.invariants": "under an invariant",
    "delta.identity.start": "an identity column",
    "__CHAR_VARCHAR_TYPE_STRING": "CHAR or VARCHAR",
}


def reject_expiring_transaction_ids(
    table: DeltaTable,
    path: str,
    *,
    called: str = "the table",
    harm: str = "a plan could be applied twice",
) -> None:
    """Raises NotOurTable if the table expires transaction ids, which tell what was applied; `harm`:
    the consequence.
    """
    if _FORGETS_IDS in table.metadata().configuration:
        action = f"ALTER TABLE ... UNSET TBLPROPERTIES ('{_FORGETS_IDS}'): once an id has expired, {harm}"
        raise NotOurTable(
            f"{called} forgets transaction ids ({_FORGETS_IDS})", path=path, action=action
        )
