"""What lies at a table's path, before anybody reads or writes it: nothing, a Delta table, or something else.

Owns how a path is told to both engines (delta-rs and Spark) and which failure each obstacle is.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow import fs

from etl.edges.delta.log import open_log
from etl.errors import EtlError, FileLost, NotOurTable, PermissionRefused, SettingsError, TableUnreachable
from etl.settings.places import folder_of

if TYPE_CHECKING:
    from deltalake import DeltaTable

_REFUSED = ("403", "forbidden", "accessdenied", "access denied", "unauthorized", "credential")
_OBSTACLES = (
    "permission denied", "accessdeniedexception", "access denied", "accesscontrolexception", "read-only file system",
    "no space left", "disk quota exceeded", "mkdirs failed", "parentnotdirectory", "not a directory", "input/output error",
    "operation not permitted", "delta_cannot_create_log_path",
)
_CONFLICT = re.compile(r"DELTA_(METADATA_CHANGED|PROTOCOL_CHANGED|CONCURRENT_\w+)|io\.delta\.exceptions\.(Concurrent|Metadata|Protocol)\w+")
_NO_STORE = re.compile("Unknown scheme|Could not parse .* as a URL|Unable to recognise URL")
"""What delta-rs says of a URL by which it finds no store."""
_LOG_LOST = re.compile("Expected contiguous commit files|No table metadata or protocol found|didn't find any checkpoints")
"""What it says where clean-up by hand left holes."""
_NO_FILE_SYSTEM = re.compile(r'No FileSystem for scheme "?[\w+.-]+"?|ClassNotFoundException: Class [\w.]*FileSystem not found')
"""What Hadoop says of it."""
_UNSUPPORTED = re.compile(r"(?i)unsupported|not supported|max catalog version is required")


def local_path(path: str) -> Path | None:
    """The folder that `path` names on this machine, absolute; None for an object store."""
    folder = folder_of(path)
    return None if folder is None else Path(folder).absolute()


def spark_path(path: str) -> str:
    """The same place as Spark must be told: with a scheme, because a cluster's default file system may be another one.

    Hadoop takes the text as it is: nothing is percent-encoded.
    """
    local = local_path(path)
    return path if local is None else f"file://{local}"


def rust_path(path: str) -> str:
    """The same place as delta-rs must be told."""
    local = local_path(path)
    return path if local is None else str(local)


def open_table(path: str) -> DeltaTable | None:
    """The Delta table at `path`, or None where there is none yet: nothing, an empty folder, or a first write that never finished.

    Raises NotOurTable for anything else that lies there, TableUnreachable or PermissionRefused when nobody can tell.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, DeltaProtocolError, TableNotFoundError

    if not _may_be_table(path):
        return None
    try:
        return DeltaTable(rust_path(path))
    except TableNotFoundError as error:
        if _NO_STORE.search(str(error)):
            raise _no_store(error, path) from error
        _refuse_other_files(path)
        return None
    except DeltaProtocolError as error:
        check = "the table's features (DESCRIBE DETAIL); delta-rs must be able to read them"
        raise NotOurTable(f"the table cannot be read: {_first_line(error)}", path=path, check=check) from error
    except (DeltaError, OSError) as error:
        if _NO_STORE.search(str(error)):
            raise _no_store(error, path) from error
        raise not_supported(error, path) or _log_lost(error, path) or unreachable(error, path, "read") from error


def check_writable(path: str) -> None:
    """Raise TableUnreachable when it can be told before any work that the table's folder cannot be written.

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
        raise _in_the_way(local_path(path) or folder, path) or unreachable(error, path, "written", at=folder) from error
    except OSError as error:
        raise unreachable(error, path, "written", at=folder) from error


def announce_first_write(path: str) -> None:
    """Leave the empty `_delta_log` that tells the files of a first write that never finished from somebody else's.

    Spark makes that folder only with the commit, after the data files; without it a crash in between would leave a folder of
    Parquet files that looks like anybody's. In an object store there are no folders, and nothing is announced.
    """
    folder = local_path(path)
    if folder is None:
        return
    try:
        (folder / "_delta_log").mkdir(parents=True, exist_ok=True)
    except (NotADirectoryError, FileExistsError) as error:
        raise _in_the_way(folder, path) or unreachable(error, path, "written") from error
    except OSError as error:
        raise unreachable(error, path, "written") from error


def unreachable(error: BaseException, path: str, what: str, *, at: Path | None = None) -> EtlError:
    """The failure for a table that cannot be `read` or `written`: credentials refused by an object store are no passing trouble."""
    text = _obstacle_in(error) or _first_line(error)
    if local_path(path) is None and any(word in str(error).lower() for word in _REFUSED):
        return PermissionRefused(f"the store refuses us: {text}", path=path, check="the credentials and their rights on this path")
    check = "the store's address and region, the network, and the credentials"
    if local_path(path) is not None:
        check = "permissions, free space, and that every part of the path above it is a folder"
    return TableUnreachable(f"the table cannot be {what}: {text}", path=path, folder=at, check=check)


def no_file_system(text: str, path: str) -> SettingsError | None:
    """The failure for a URL that delta-rs knows and Spark does not, by a Java stack trace."""
    found = _NO_FILE_SYSTEM.search(text)
    if found is None:
        return None
    check = "table.path, and that Spark has the store's jars (spark.jars.packages, e.g. hadoop-aws for s3a://)"
    return SettingsError(f"Spark knows no store of such a URL: {found[0]}", path=path, check=check)


def not_supported(error: BaseException, path: str) -> NotOurTable | None:
    """The failure for a table that delta-rs cannot read or commit to: it says so in words, and raises what it raises for all else."""
    if not _UNSUPPORTED.search(str(error)):
        return None
    check = "the table's features (DESCRIBE DETAIL); delta-rs must support them, `etl doctor CONF` names those that it does not"
    return NotOurTable(f"delta-rs does not support the table: {_first_line(error)}", path=path, check=check)


def _no_store(error: BaseException, path: str) -> SettingsError:
    check = "table.path: a folder, or the URL of a store that delta-rs and Spark know"
    said = _first_line(error).split(". Known schemes", 1)[0]
    return SettingsError(f"no store goes by such a URL: {said}", path=path, check=check)


def _log_lost(error: BaseException, path: str) -> FileLost | None:
    found = _LOG_LOST.search(str(error))
    if found is None:
        return None
    check = (
        "who removed files of its _delta_log; put them back from a copy; where there is none, the rows are in its Parquet files alone: "
        "move the folder away, and the next run says how to go on without it")
    return FileLost(f"the table's log lacks files: {found[0]}", path=path, check=check)


def is_conflict(text: str) -> bool:
    """Whether a Java stack trace speaks of somebody else's commit that Delta could not put ours behind: nothing was committed."""
    return _CONFLICT.search(text) is not None


def is_obstacle(text: str) -> bool:
    """Whether a Java stack trace speaks of a place that cannot be written, and not of a bug."""
    return any(word in text.lower() for word in _OBSTACLES)


def _may_be_table(path: str) -> bool:
    """False when nothing is there. An object store is always asked."""
    folder = local_path(path)
    if folder is None:
        return True
    if re.search("%[0-9A-Fa-f]{2}", str(folder)):  # delta-rs would take it for an escaped character and look elsewhere
        raise SettingsError("a folder with % and two digits in its name cannot hold a table", path=path, check="table.path")
    try:
        entries = sorted(os.listdir(folder))
    except FileNotFoundError:
        return False
    except NotADirectoryError as error:
        raise _in_the_way(folder, path) or unreachable(error, path, "read") from error
    except OSError as error:
        raise unreachable(error, path, "read") from error
    if "_delta_log" in entries and not (folder / "_delta_log").is_dir():
        raise NotOurTable("its _delta_log is a file", path=path, check="table.path: it must name a Delta table, an empty folder or nothing")
    return bool(entries)


def _in_the_way(folder: Path, path: str) -> NotOurTable | None:
    """The failure for a file where a folder should be."""
    if folder.is_file():
        return NotOurTable("the path is a file, not a Delta table", path=path, check="table.path: it must name a folder")
    above = next((one for one in folder.parents if one.is_file()), None)
    what = f"{above} is a file, and the path lies below it"
    return NotOurTable(what, path=path, check="table.path: every part above it must be a folder") if above else None


def _refuse_other_files(path: str) -> None:
    found = [info.base_name for info in _entries(path)]
    if found and "_delta_log" not in found:
        shown = ", ".join(sorted(found)[:3]) + (", ..." if len(found) > 3 else "")
        what = f"the folder is no Delta table: it has no _delta_log, but holds {shown}"
        raise NotOurTable(what, path=path, check="table.path: it must name a Delta table, an empty folder or nothing")


def _entries(path: str) -> list[fs.FileInfo]:
    """What lies in the folder. delta-rs lists no empty folders, so a local one is listed by the system."""
    folder = local_path(path)
    try:
        if folder is not None:
            return list(fs.LocalFileSystem().get_file_info(fs.FileSelector(str(folder))))
        return list(open_log(path).get_file_info(fs.FileSelector("", recursive=False)))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreachable(error, path, "read") from error


def _obstacle_in(error: BaseException) -> str | None:
    """The line that names the obstacle: a Java stack trace begins with what was called, and its last cause is why it failed."""
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines()[1:] if is_obstacle(line)]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return causes[-1] if causes else next((line for line in lines if not line.startswith("at ")), None)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
