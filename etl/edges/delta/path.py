"""What lies at a table's path, before anybody reads or writes it: nothing, a Delta table, or
something else.

Owns how a path is told to both engines (delta-rs and Spark), and which failure it is that something
else lies there. What an exception means is in `failures`.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow import fs

from etl.edges.delta.failures import (
    first_line,
    log_lost,
    no_store,
    not_supported,
    unreachable,
    without_columns,
)
from etl.edges.delta.log import open_log
from etl.edges.delta.store_failures import behind
from etl.edges.delta.stores import options_of
from etl.edges.delta.table_folder import table_folder
from etl.errors import NotOurTable, SettingsError
from etl.settings.choices import folder_of
from etl.settings.table import store_of

_ANNOUNCED = "_delta_log/.announced"
"""Its name is before those of all commits: who lists a log begins behind it."""
PROBE_PREFIX = ".etl_probe_"
"""Of what `exclusive_create` creates in a table's folder. Spark and VACUUM pass over names that
begin with a dot.
"""

if TYPE_CHECKING:
    from deltalake import DeltaTable


def local_path(path: str) -> Path | None:
    """The folder that `path` names on this machine, absolute; None for an object store."""
    folder = folder_of(path)
    return None if folder is None else Path(folder).absolute()


def spark_path(path: str) -> str:
    """The same place as Spark must be told: with a scheme, because a cluster's default file system
    may be another one.

    Hadoop takes the text as it is: nothing is percent-encoded. By `s3://` it knows no store unless
    it is told, by `s3a://` it does, and by `abfss://` it speaks TLS whatever it is told.
    """
    local = local_path(path)
    if path.startswith("s3://"):
        return f"s3a://{path.removeprefix('s3://')}"
    if path.startswith("abfss://") and (store_of(path).endpoint or "").startswith("http://"):
        return f"abfs://{path.removeprefix('abfss://')}"
    return path if local is None else f"file://{local}"


def rust_path(path: str) -> str:
    """The same place as delta-rs must be told."""
    local = local_path(path)
    return path if local is None else str(local)


def open_table(path: str) -> DeltaTable | None:
    """The Delta table at `path`, or None where there is none yet: nothing, an empty folder, or a
    first write that never finished.

    Raises NotOurTable for anything else that lies there, TableUnreachable or PermissionRefused when
    nobody can tell.
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
        _refuse_other_files(path)
        return None
    except DeltaProtocolError as error:
        check = "the table's features (DESCRIBE DETAIL); delta-rs must be able to read them"
        raise NotOurTable(
            f"the table cannot be read: {first_line(error)}", path=path, check=check
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
    """Raise TableUnreachable when it can be told before any work that the table's folder cannot be
    written.

    Only folders of this machine are tried, with a nameless temporary file that leaves no trace.
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
    """Leave the empty `_delta_log` that tells the files of a first write that never finished from
    somebody else's.

    Spark makes that folder only with the commit, after the data files; without it a crash in
    between would leave a folder of Parquet files that looks like anybody's. In a store, which may
    know no empty folders, an empty file announces it.
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
    """False when nothing is there. An object store is always asked."""
    folder = local_path(path)
    if folder is None:
        return True
    if re.search(
        "%[0-9A-Fa-f]{2}", str(folder)
    ):  # delta-rs would take it for an escaped character and look elsewhere
        raise SettingsError(
            "a folder with % and two digits in its name cannot hold a table",
            path=path,
            check="table.path",
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
            "its _delta_log is a file",
            path=path,
            check="table.path: it must name a Delta table, an empty folder or nothing",
        )
    return bool(entries)


def _in_the_way(folder: Path, path: str) -> NotOurTable | None:
    """The failure for a file where a folder should be."""
    if folder.is_file():
        return NotOurTable(
            "the path is a file, not a Delta table",
            path=path,
            check="table.path: it must name a folder",
        )
    above = next((one for one in folder.parents if one.is_file()), None)
    what = f"{above} is a file, and the path lies below it"
    return (
        NotOurTable(what, path=path, check="table.path: every part above it must be a folder")
        if above
        else None
    )


def _refuse_other_files(path: str) -> None:
    found = [
        info.base_name for info in _entries(path) if not info.base_name.startswith(PROBE_PREFIX)
    ]
    if found and "_delta_log" not in found:
        shown = ", ".join(sorted(found)[:3]) + (", ..." if len(found) > 3 else "")
        what = f"the folder is no Delta table: it has no _delta_log, but holds {shown}"
        raise NotOurTable(
            what,
            path=path,
            check="table.path: it must name a Delta table, an empty folder or nothing",
        )


def _entries(path: str) -> list[fs.FileInfo]:
    """What lies in the folder. delta-rs lists no empty folders, so a local one is listed by the
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
