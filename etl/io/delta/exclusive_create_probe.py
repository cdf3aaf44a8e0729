"""Does the table's store or mount create a file only if it is absent?

Each commit depends on it: the writer that creates `N.json` has committed version N. On S3 and Azure
that is a put with `If-None-Match: *`, on HDFS a rename that does not overwrite, on a local file
system a hard link. Without it two writers replace each other's commits, and both exit with 0.

In a store the probe is a race of two delta-rs writers for version 0 of a separate table, with a
random hidden name in the table's directory, which readers and VACUUM skip. It is removed
afterwards. `decide.table_storage.is_probe_due` decides when a run probes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path

from etl.errors import EtlError, NoExclusiveCreate, SettingsError, TableUnreachable
from etl.io.delta.stores import options_of, public_cause, table_folder, unreachable
from etl.io.delta.table_shape import PROBE_PREFIX, local_path
from etl.settings.table import StoreKind, TablePath, kind_of, store_of

ROUNDS = 20
"""A round proves nothing if one writer sees the other's file before its own attempt: one of five on
a nearby store.
"""
_HARM = "two writers could replace each other's commit"
_FAULTS: Mapping[StoreKind | None, str] = {
    StoreKind.S3: "The store ignores If-None-Match",
    StoreKind.AZURE: "The store ignores If-None-Match",
    StoreKind.HDFS: "The store renames a file over another one",
    StoreKind.OTHER: "The store creates a file over another one",
}
_STORE_CHECK = (
    "Check the release and the settings of the store, and of each proxy before it: a put with "
    "`If-None-Match: *` must fail if the name exists. Otherwise move the table to another store "
    "(docs/guides/networks-and-stores.md). Nothing was written; `etl doctor` probes again"
)
_MOVE = (
    "Set table.path to a file system with hard links (ext4, xfs, NFS), or to the URL of the bucket "
    "instead of its mount (docs/guides/networks-and-stores.md). Nothing was written; `etl doctor` "
    "probes again"
)
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
_UNSAFE_RENAME = "MOUNT_ALLOW_UNSAFE_RENAME"
"""delta-rs reads it for each local path."""
_YES = frozenset({"1", "true", "on", "yes", "y"})


class _Attempt(Enum):
    """The result of one writer's attempt to create version 0."""

    CREATED = "created"
    REFUSED = "refused"
    """The store rejected the put itself."""
    CAME_LATE = "came late"
    """The writer saw the other one's file, and sent no put."""


def require_exclusive_create(path: str) -> None:
    """Raise an error if a file of the table's log could replace another one of its name.

    Raises NoExclusiveCreate for a store, SettingsError for a mount, and the errors of an append.
    """
    folder = local_path(path)
    if folder is None:
        _probe_store(path)
    else:
        _reject_unsafe_rename(path)
        _probe_mount(path, folder)


def _probe_store(path: str) -> None:
    for _ in range(ROUNDS):
        probe = TablePath(f"{path.rstrip('/')}/{_random_name()}", store_of(path))
        attempts = _race(probe, path)
        if attempts.count(_Attempt.CREATED) > 1:
            message = f"{_FAULTS[kind_of(path)]}: {_HARM}"
            raise NoExclusiveCreate(
                message, store=store_of(path).endpoint, path=path, action=_STORE_CHECK
            )
        if _Attempt.REFUSED in attempts:
            return
    raise TableUnreachable(
        "The probe cannot show whether the store separates two writers: its puts never met",
        store=store_of(path).endpoint,
        path=path,
        action="Check how long the store takes to answer; then run again",
    )


def _race(probe: TablePath, path: str) -> list[_Attempt]:
    """Create one table by two writers at the same time; return the result of each."""
    start = threading.Barrier(2)
    try:
        with ThreadPoolExecutor(2) as writers:
            running = [writers.submit(_create, probe, start) for _ in range(2)]
            return [attempt.result() for attempt in running]
    except EtlError:  # a missing secret
        raise
    except Exception as error:  # delta-rs' errors of a store have no common class
        raise unreachable(error, path, "written") from public_cause(error, path)
    finally:
        _remove(probe)


def _create(probe: TablePath, start: threading.Barrier) -> _Attempt:
    import pyarrow
    from deltalake import CommitProperties, DeltaTable
    from deltalake.exceptions import CommitFailedError, DeltaError

    columns = pyarrow.schema([("probe", pyarrow.int32())])
    once = CommitProperties(max_commit_retries=0)
    start.wait()
    try:
        DeltaTable.create(probe, columns, storage_options=options_of(probe), commit_properties=once)
    except CommitFailedError:
        return _Attempt.REFUSED
    except DeltaError as error:
        if "already exists" not in str(error):
            raise
        return _Attempt.CAME_LATE
    return _Attempt.CREATED


def _remove(probe: TablePath) -> None:
    """Delete the probe's files, then the directories that HDFS has. What cannot be deleted
    stays.
    """
    with contextlib.suppress(Exception):
        folder = table_folder(probe)
        for name in (*folder.named("*.json"), "_delta_log", ""):
            folder.remove(name)


def _reject_unsafe_rename(path: str) -> None:
    if os.environ.get(_UNSAFE_RENAME, "").strip().lower() in _YES:
        message = f"{_UNSAFE_RENAME} makes delta-rs rename a commit over another one: {_HARM}"
        raise NoExclusiveCreate(
            message,
            path=path,
            action="Remove the variable from the environment: a table needs hard links",
        )


def _probe_mount(path: str, folder: Path) -> None:
    """Create two hard links of one name, by the system call of delta-rs.

    For a table that does not exist yet, its nearest existing parent directory is probed.
    """
    probe = None
    try:
        while not folder.exists():
            folder = folder.parent
        probe = Path(tempfile.mkdtemp(prefix=PROBE_PREFIX, dir=folder))
        fault = _fault_of_links(probe)
    except OSError as error:
        raise unreachable(error, path, "written", at=folder) from error
    finally:
        if probe is not None:
            shutil.rmtree(probe, ignore_errors=True)
    if fault is not None:
        raise SettingsError(
            f"{fault}: {_HARM}", key="table.path", path=path, mount=_mount_of(folder), action=_MOVE
        )


def _mount_of(folder: Path) -> str:
    """Return the mount point of a directory and its type; the directory if they are unknown."""
    folder = folder.resolve()
    found = str(folder)
    longest = -1
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text("utf-8", "replace").splitlines():
            _, point, kind, *_ = line.split(" ")
            point = point.replace("\\040", " ")
            if folder.is_relative_to(point) and len(point) >= longest:
                longest = len(point)
                found = f"{point} ({kind})"
    return found


def _fault_of_links(probe: Path) -> str | None:
    """Return the fault of hard links in that directory's file system; None if they work.

    Raises OSError for any other problem.
    """
    written = probe / "written"
    commit = probe / "commit"
    written.touch()
    try:
        os.link(written, commit)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return f"The mount has no hard links ({os.strerror(error.errno)})"
    try:
        os.link(written, commit)
    except FileExistsError:
        return None
    return "The mount creates a hard link over another file"


def _random_name() -> str:
    return f"{PROBE_PREFIX}{uuid.uuid4().hex}"
