"""What do the commits of a table's log say of our plans and of other writers?

Parses commit files (Delta protocol, "Actions"). delta-rs reads the state of a table; which commit
carried our `txn` and what happened since is read here, through delta-rs's object store, without a
JVM. `history()` of delta-rs is not used: after a commit its version numbers are too low by one.

Not here: what follows (etl/decide/table_changes.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyarrow import fs

from etl.decide.table_changes import RESTORE
from etl.errors import TableUnreachable
from etl.io.delta.stores import behind, options_of, unreachable
from etl.model.snapshot import ForeignCommit, is_same_pipeline


@dataclass(frozen=True, slots=True)
class Added:
    """One Parquet file that a commit added."""

    path: str
    """As in the log: relative to the table and percent-encoded."""
    partition_values: Mapping[str, str | None]
    rows: int | None = field(default=None, compare=False)
    """Rows by the commit; None without a count."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a `metaData` action defines: id, columns, partitioning."""

    table_id: str
    columns: Mapping[str, str]
    """Name -> type, as canonical JSON with nullability and without the columns' metadata."""
    partition_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """The parts of a commit file that matter here."""

    version: int
    operation: str = "unknown"
    user_metadata: str | None = None
    transactions: Mapping[str, int] = field(default_factory=dict)
    """Application id -> version, from the `txn` actions."""
    removed_rows: bool = False
    """Holds a `remove` with `dataChange`: DELETE, UPDATE, MERGE, overwrite, TRUNCATE. OPTIMIZE has
    it false.
    """
    shape: Shape | None = None
    """None: the commit has no `metaData` action."""


class TableFileSystem(fs.PyFileSystem):  # type: ignore[misc]
    """The table's directory as a file system with relative paths."""

    path: str
    """The table's."""


def open_log(path: str) -> TableFileSystem:
    """The file system of a table's folder, which must exist."""
    from deltalake.fs import DeltaStorageHandler

    files = TableFileSystem(DeltaStorageHandler(path, options_of(path)))
    files.path = path
    return files


def walk_back(files: fs.FileSystem, newest: int) -> Iterator[Commit]:
    """The commits from version `newest` down, as long as the log still holds them.

    It ends without an error where clean-up removed a commit file: only checkpoints know about older
    ones.
    """
    for version in range(newest, -1, -1):
        content = read_commit_file(files, version)
        if content is None:
            return
        yield parse_commit(version, content)


def read_commit_file(files: fs.FileSystem, version: int) -> bytes | None:
    """The bytes of one commit file, or None when it is not there (cleaned up, or not yet written).
    Raises TableUnreachable.
    """
    try:
        with files.open_input_stream(f"_delta_log/{version:020}.json") as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return None
    except OSError as error:
        path = getattr(files, "path", "")
        raise unreachable(error, path, "read") from behind(error, path)


def hash_of_commit(files: fs.FileSystem, version: int) -> str | None:
    """Return what distinguishes commits of one version: SHA-256 of the file; None if it is gone. A
    copied table has equal files; two commits never do, since each names its time and files.
    """
    content = read_commit_file(files, version)
    return None if content is None else hashlib.sha256(content).hexdigest()


def parse_commit(version: int, content: bytes) -> Commit:
    """Parse the actions of a commit file: a JSON object per line. `add` actions, the most, are
    skipped unparsed. Raises TableUnreachable for a truncated or invalid file.
    """
    operation, user_metadata, removed_rows, shape = "unknown", None, False, None
    transactions: dict[str, int] = {}
    with _reading("a file of the table's log is no commit", delta_version=version):
        for action, body in _actions(content, skip=b'{"add"'):
            if action == "commitInfo":
                operation, user_metadata = (
                    str(body.get("operation", "unknown")),
                    body.get("userMetadata"),
                )
            elif action == "txn":
                transactions[str(body["appId"])] = int(body["version"])
            elif action == "remove":
                removed_rows = removed_rows or bool(body.get("dataChange", True))
            elif action == "metaData":
                shape = parse_shape(
                    str(body["id"]), body["schemaString"], body.get("partitionColumns", ())
                )
    return Commit(version, operation, user_metadata, transactions, removed_rows, shape)


def parse_added(content: bytes) -> list[Added]:
    """Return the Parquet files that a commit adds. Raises TableUnreachable for a truncated or
    invalid file.
    """
    with _reading("a file of the table's log is no commit"):
        return [
            Added(str(body["path"]), dict(body.get("partitionValues") or {}), _rows_of(body))
            for action, body in _actions(content)
            if action == "add"
        ]


def parse_removed(content: bytes) -> frozenset[str]:
    """The paths of the files that one commit file removes. Raises as `parse_added`."""
    with _reading("a file of the table's log is no commit"):
        return frozenset(
            str(body["path"])
            for action, body in _actions(content, skip=b'{"add"')
            if action == "remove"
        )


def adds_rows(content: bytes) -> bool:
    """True if a commit adds rows, not only files with existing rows (OPTIMIZE)."""
    with _reading("a file of the table's log is no commit"):
        return any(
            action == "add" and body.get("dataChange", True) for action, body in _actions(content)
        )


def _rows_of(body: Mapping[str, Any]) -> int | None:
    stats = json.loads(body.get("stats") or "{}")
    rows = stats.get("numRecords") if isinstance(stats, dict) else None
    return rows if isinstance(rows, int) else None


def parse_shape(table_id: str, schema_json: str, partition_by: Any) -> Shape:
    """The shape in a schema as Delta writes it (and Spark: `StructType.json()` is the same format).

    Raises TableUnreachable where it is none.
    """
    with _reading("the table's log holds a schema that is none", table_id=table_id):
        fields = json.loads(schema_json)["fields"]
        columns = {
            f["name"]: json.dumps(
                {"type": _plain(f["type"]), "nullable": f["nullable"]}, sort_keys=True
            )
            for f in fields
        }
        return Shape(table_id, columns, tuple(partition_by))


def judge(commit: Commit, app_id: str, before: Shape | None) -> ForeignCommit | None:
    """Return what this commit did to our rows or columns, or None if it is ours, a backfill's, or
    harmless.

    `before` is the table's shape before it; None: unknown, and no shape is compared. A RESTORE
    always counts: it may bring rows back that are there already.
    """
    if any(is_same_pipeline(one, app_id) for one in commit.transactions):
        return None
    if before is not None and commit.shape is not None and not _kept(before, commit.shape):
        return ForeignCommit(commit.version, commit.operation, "redefined the table")
    if commit.removed_rows:
        return ForeignCommit(commit.version, commit.operation, "removed rows")
    if commit.operation == RESTORE:
        return ForeignCommit(commit.version, commit.operation, "brought rows back")
    return None


def removals_since(
    files: fs.FileSystem, newest: int, after: int | None, app_id: str
) -> list[ForeignCommit]:
    """Commits of others that removed rows or brought some back, above version `after` (None: all
    that the log holds), oldest first.
    """
    found = []
    for commit in walk_back(files, newest):
        if after is not None and commit.version <= after:
            break
        judged = judge(commit, app_id, None)
        if judged:
            found.append(judged)
    return found[::-1]


def _kept(before: Shape, after: Shape) -> bool:
    """True if our rows still fit: a new column does no harm; another id or partitioning, or a
    missing or changed column, does.
    """
    same_table = (before.table_id, before.partition_by) == (after.table_id, after.partition_by)
    return same_table and all(
        after.columns.get(name) == kind for name, kind in before.columns.items()
    )


@contextmanager
def _reading(message: str, **place: Any) -> Iterator[None]:
    try:
        yield
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        check = "Check who writes to the table's _delta_log, and whether the store lets half a file be seen"
        raise TableUnreachable(
            f"{message}: {type(error).__name__}: {error}", action=check, **place
        ) from error


def _actions(content: bytes, skip: bytes | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in content.split(b"\n"):
        line = line.strip()
        if line and not (skip and line.startswith(skip)):
            yield from json.loads(line).items()


def _plain(kind: Any) -> Any:
    """A type without the metadata of nested columns, which column mapping adds and which changes no
    row.
    """
    if isinstance(kind, list):
        return [_plain(item) for item in kind]
    if isinstance(kind, dict):
        return {key: _plain(value) for key, value in kind.items() if key != "metadata"}
    return kind
