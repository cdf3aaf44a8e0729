"""Which plans and which changes by other writers do the commits of a table's log record?

Parses commit files (Delta protocol, "Actions"). delta-rs reads the state of a table; this module
finds the commit with our `txn` and the commits after it, through delta-rs's object store, without a
JVM. `history()` of delta-rs is not used: after a commit its version numbers are too low by one.

Not here: the consequences (etl/decide/table_changes.py).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pyarrow import fs

from etl.decide.table_changes import (
    APP_ID_PREFIX,
    REDEFINED,
    REMOVED_ROWS,
    RESTORE,
    IsOurs,
    removes_rows_of,
)
from etl.errors import LedgersDisagree, NeedsDecision, TableUnreachable
from etl.io.delta.stores import damaged_log_file, options_of, public_cause, unreachable
from etl.ledger.plan_document import parse_commit_metadata, parse_plan
from etl.model.plans import Plan, Predecessor
from etl.model.snapshot import ForeignCommit


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
    """The table that a `metaData` action defines: id, columns, partitioning."""

    table_id: str
    columns: Mapping[str, str]
    """Name -> type, as canonical JSON with nullability and without the columns' metadata."""
    partition_by: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Name in the data files -> name in the table, where they differ (column mapping)."""


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
    """Path of the table."""


def open_log(path: str) -> TableFileSystem:
    """Return the file system of a table's directory, which must exist."""
    from deltalake.fs import DeltaStorageHandler

    files = TableFileSystem(DeltaStorageHandler(path, options_of(path)))
    files.path = path
    return files


def walk_back(files: fs.FileSystem, newest: int) -> Iterator[Commit]:
    """Yield the commits from version `newest` down, as long as the log holds them.

    Ends without an error at a commit file that log clean-up removed: only checkpoints cover older
    versions.
    """
    for version in range(newest, -1, -1):
        content = read_commit_file(files, version)
        if content is None:
            return
        yield parse_commit(version, content)


def read_commit_file(files: fs.FileSystem, version: int) -> bytes | None:
    """Return the bytes of a commit file; None if it does not exist (cleaned up, or not written
    yet).

    delta-rs takes an empty file for a commit that changes nothing. Raises FileLost for it, and
    TableUnreachable.
    """
    name = f"{version:020}.json"
    path = getattr(files, "path", "")
    try:
        with files.open_input_stream(f"_delta_log/{name}") as stream:
            content = bytes(stream.read())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreachable(error, path, "read") from public_cause(error, path)
    if not content.strip():
        raise damaged_log_file(name, "it is empty", path)
    return content


def damaged_file(path: str) -> str | None:
    """Return the name of the newest file of a table's log that is no commit and no checkpoint, but
    has the name of one; None if there is none, or the log cannot be read.
    """
    try:
        files = open_log(path)
        infos = files.get_file_info(fs.FileSelector("_delta_log"))
        for info in sorted(infos, key=lambda info: info.base_name, reverse=True):
            if _is_damaged(files, info):
                return str(info.base_name)
    except OSError:
        return None
    return None


def _is_damaged(files: fs.FileSystem, info: fs.FileInfo) -> bool:
    is_checkpoint = _CHECKPOINT.fullmatch(info.base_name)
    if not is_checkpoint and not _COMMIT.fullmatch(info.base_name):
        return False
    if not info.size:
        return True
    if is_checkpoint:
        with files.open_input_file(info.path) as stream:
            stream.seek(max(info.size - len(_END_OF_PARQUET), 0))
            return bytes(stream.read()) != _END_OF_PARQUET
    with files.open_input_stream(info.path) as stream:
        content = bytes(stream.read())
    try:
        parse_added(content)
    except TableUnreachable:
        return True
    return False


def hash_of_commit(files: fs.FileSystem, version: int) -> str | None:
    """Return the SHA-256 of a commit file, which distinguishes commits of one version; None if it
    is gone.

    A copied table has equal files. Two commits never do, since each contains its time and files.
    """
    content = read_commit_file(files, version)
    if content is None:
        return None
    return hashlib.sha256(content).hexdigest()


def parse_commit(version: int, content: bytes) -> Commit:
    """Parse the actions of a commit file: a JSON object per line. `add` actions, most of the file,
    are skipped.

    Raises TableUnreachable for a truncated or invalid file.
    """
    operation = "unknown"
    user_metadata = None
    removed_rows = False
    shape = None
    transactions: dict[str, int] = {}
    with _reading(_NOT_A_COMMIT, delta_version=version):
        for action, body in _actions(content, skip=b'{"add"'):
            if action == "commitInfo":
                operation = str(body.get("operation", "unknown"))
                user_metadata = body.get("userMetadata")
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
    """Return the Parquet files that a commit adds.

    Raises TableUnreachable for a truncated or invalid file.
    """
    added = []
    with _reading(_NOT_A_COMMIT):
        for action, body in _actions(content):
            if action == "add":
                partition_values = dict(body.get("partitionValues") or {})
                added.append(Added(str(body["path"]), partition_values, _rows_of(body)))
    return added


def parse_removed(content: bytes) -> frozenset[str]:
    """Return the paths of the files that one commit file removes. Raises as `parse_added`."""
    removed = set()
    with _reading(_NOT_A_COMMIT):
        for action, body in _actions(content, skip=b'{"add"'):
            if action == "remove":
                removed.add(str(body["path"]))
    return frozenset(removed)


def adds_rows(content: bytes) -> bool:
    """Return True if a commit adds rows, not only files with existing rows (OPTIMIZE)."""
    with _reading(_NOT_A_COMMIT):
        for action, body in _actions(content):
            if action == "add" and body.get("dataChange", True):
                return True
    return False


def _rows_of(body: Mapping[str, Any]) -> int | None:
    stats = json.loads(body.get("stats") or "{}")
    if not isinstance(stats, dict):
        return None
    rows = stats.get("numRecords")
    return rows if isinstance(rows, int) else None


PHYSICAL_NAME = "delta.columnMapping.physicalName"
"""Key of a column's metadata (Delta protocol, "Column Mapping")."""


def parse_shape(table_id: str, schema_json: str, partition_by: Any) -> Shape:
    """Return the shape in a schema of Delta, or of Spark: `StructType.json()` is the same format.

    Raises TableUnreachable for an invalid schema.
    """
    columns = {}
    renamed = {}
    with _reading("The table's log holds an invalid schema", table_id=table_id):
        for field_ in json.loads(schema_json)["fields"]:
            name = field_["name"]
            kind = {"type": _plain(field_["type"]), "nullable": field_["nullable"]}
            columns[name] = json.dumps(kind, sort_keys=True)
            physical_name = (field_.get("metadata") or {}).get(PHYSICAL_NAME, name)
            if physical_name != name:
                renamed[physical_name] = name
        return Shape(table_id, columns, tuple(partition_by), renamed)


def plan_of(user_metadata: str | None, delta_version: int) -> Plan | None:
    """Return the plan in the metadata of a pipeline's commit; None without a readable plan."""
    metadata = parse_commit_metadata(user_metadata or "", delta_version)
    if metadata is None or metadata.document is None:
        return None
    try:
        return parse_plan(metadata.document, path=f"commit {delta_version} of the table")
    except (LedgersDisagree, NeedsDecision):  # damaged, or of a newer version: offsets unknown
        return None


def every_topic(topic: str) -> bool:
    """Return True: for callers that do not know which topics are the pipeline's."""
    return True


_NO_PREDECESSORS: Mapping[str, int] = MappingProxyType({})


def judge(
    commit: Commit,
    app_id: str,
    before: Shape | None,
    is_ours: IsOurs = every_topic,
    inherited: Mapping[str, int] = _NO_PREDECESSORS,
) -> ForeignCommit | None:
    """Return the change of our rows or columns by this commit; None if it is ours or harmless.

    `before` is the table's shape before it; None: unknown, and no shape is compared. A RESTORE
    always counts: it may restore rows that the table holds already. Rows that another pipeline
    removed are judged by its plan (`removes_rows_of`, also for `is_ours` and `inherited`).
    """
    if app_id in commit.transactions:
        return None
    if before is not None and commit.shape is not None and not _kept(before, commit.shape):
        return ForeignCommit(commit.version, commit.operation, REDEFINED)
    if commit.removed_rows:
        return _removal(commit, is_ours, inherited)
    if commit.operation == RESTORE:
        return ForeignCommit(commit.version, commit.operation, "brought rows back")
    return None


def _removal(commit: Commit, is_ours: IsOurs, inherited: Mapping[str, int]) -> ForeignCommit | None:
    """Return a removal of rows; None if it is of another pipeline, and of rows that are not ours."""
    by = _pipeline_of(commit)
    if by is None:
        return ForeignCommit(commit.version, commit.operation, REMOVED_ROWS)
    plan = plan_of(commit.user_metadata, commit.version)
    if plan is not None and plan.number != by.number:
        plan = None
    if not removes_rows_of(plan, by, is_ours, inherited):
        return None
    if plan is None:
        return ForeignCommit(commit.version, commit.operation, REMOVED_ROWS, unread=by)
    return ForeignCommit(commit.version, commit.operation, REMOVED_ROWS, by)


def _pipeline_of(commit: Commit) -> Predecessor | None:
    """Return the pipeline of a commit; None without one."""
    for name, number in commit.transactions.items():
        if name.startswith(APP_ID_PREFIX):
            return Predecessor(name, number)
    return None


def removals_since(
    files: fs.FileSystem,
    newest: int,
    after: int | None,
    app_id: str,
    is_ours: IsOurs = every_topic,
    inherited: Mapping[str, int] = _NO_PREDECESSORS,
) -> list[ForeignCommit]:
    """Return commits of other writers that removed or restored rows, oldest first.

    after     a version; only commits above it are read (None: all that the log holds)
    others    as in `judge`
    """
    found = []
    for commit in walk_back(files, newest):
        if after is not None and commit.version <= after:
            break
        judged = judge(commit, app_id, None, is_ours, inherited)
        if judged:
            found.append(judged)
    return found[::-1]


def _kept(before: Shape, after: Shape) -> bool:
    """Return True if our rows still fit the table.

    A new column is harmless; another id or partitioning, or a missing or changed column, is not.
    """
    if before.table_id != after.table_id or before.partition_by != after.partition_by:
        return False
    return all(after.columns.get(name) == kind for name, kind in before.columns.items())


_COMMIT = re.compile(r"\d{20}\.json")
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.(.*\.)?parquet")
_END_OF_PARQUET = b"PAR1"
_NOT_A_COMMIT = "A file of the table's log is not a valid commit"


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
        raise TableUnreachable(
            f"{message}: {type(error).__name__}: {error}",
            action="Check who writes to the table's _delta_log, and whether the store shows files "
            "that are written half",
            **place,
        ) from error


def _actions(content: bytes, skip: bytes | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in content.split(b"\n"):
        line = line.strip()
        if line and not (skip and line.startswith(skip)):
            yield from json.loads(line).items()


def _plain(kind: Any) -> Any:
    """Return a type without the metadata of nested columns, which column mapping adds."""
    if isinstance(kind, list):
        return [_plain(item) for item in kind]
    if isinstance(kind, dict):
        return {key: _plain(value) for key, value in kind.items() if key != "metadata"}
    return kind
