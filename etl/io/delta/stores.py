"""How is the store of a table accessed, and what does each failure mean?

Secrets are resolved here for one call and not kept. Files are read and written by delta-rs's own
file system (`deltalake.fs`), with the credentials of its log. Failures are recognised by their
codes. Messages do not repeat texts of a store, as those quote the signed request.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

import pyarrow as pa

from etl.decide.table_storage import delta_rs_options
from etl.errors import (
    EtlError,
    FileLost,
    NotOurTable,
    PermissionDenied,
    SettingsError,
    TableUnreachable,
    unmark,
    whole_text,
)
from etl.model.partitions import TopicPartition, render_intervals
from etl.model.plans import Plan, PlanKind
from etl.model.security import SecretRef
from etl.settings.choices import folder_of, is_url
from etl.settings.secrets import resolve_secret
from etl.settings.table import KEY_OF, store_of


def options_of(path: str) -> dict[str, str] | None:
    """Return delta-rs' storage options for a path; None without any.

    Raises SettingsError for a missing secret.
    """
    options = {}
    for key, value in delta_rs_options(path, store_of(path)).items():
        if isinstance(value, SecretRef):
            value = resolve_secret(value, KEY_OF[key])
        options[key] = value
    return options or None


class TableFolder(Protocol):
    """Files of a table, by their paths below its directory. Each method raises OSError if the store
    denies access.
    """

    def create(self, path: str) -> pa.NativeFile:
        """Return a new file to write; it exists once it is closed.

        Raises TableUnreachable if the table's directory is gone.
        """

    def remove(self, path: str) -> None:
        """Remove a file that exists, or that was created and not closed."""

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Return the size of each file in bytes; None if it is missing."""

    def named(self, pattern: str) -> list[str]:
        """Return the paths of all files whose name matches the pattern, at any depth."""


def table_folder(root: str) -> TableFolder:
    """Return the directory at a table's path."""
    if folder_of(root) is not None:
        return LocalFolder(root)
    return StoreFolder(root)


class LocalFolder:
    """A directory of this machine; see `TableFolder`."""

    def __init__(self, root: str) -> None:
        self._root = root

    def create(self, path: str) -> pa.NativeFile:
        """See `TableFolder`."""
        root = Path(self._root)
        file = root / path
        if not root.is_dir():
            # The driver creates the directory with the table. Created here it would hold files
            # without a table's log.
            raise TableUnreachable(
                "The table's directory does not exist",
                path=self._root,
                action="Check that it is the same directory on every executor's host, and who "
                "removed it. The next run appends the same plan again",
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        return pa.OSFile(str(file), "wb")

    def remove(self, path: str) -> None:
        """See `TableFolder`."""
        Path(self._root, path).unlink()

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """See `TableFolder`."""
        sizes: list[int | None] = []
        for path in paths:
            file = Path(self._root, path)
            if file.is_file():
                sizes.append(file.stat().st_size)
            else:
                sizes.append(None)
        return sizes

    def named(self, pattern: str) -> list[str]:
        """See `TableFolder`."""
        return [str(path.relative_to(self._root)) for path in Path(self._root).rglob(pattern)]


class StoreFolder:
    """A directory of an object store; see `TableFolder`.

    A file that was created and not closed does not exist: its parts stay until the store drops
    them.
    """

    def __init__(self, root: str) -> None:
        # The class under `deltalake.fs`, whose own streams accept no buffers of pyarrow.
        from deltalake._internal import DeltaFileSystemHandler

        self._files: Any = DeltaFileSystemHandler(root, options_of(root))

    def create(self, path: str) -> pa.NativeFile:
        """See `TableFolder`."""
        return pa.PythonFile(_Upload(self._files.open_output_stream(path)), "w")

    def remove(self, path: str) -> None:
        """See `TableFolder`."""
        with contextlib.suppress(FileNotFoundError):
            self._files.delete_file(path)

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """See `TableFolder`."""
        return [found.size for found in self._files.get_file_info(list(paths))]

    def named(self, pattern: str) -> list[str]:
        """See `TableFolder`. A store has no directories: the whole table is listed."""
        matching = []
        for file in self._files.get_file_info_selector("", allow_not_found=True, recursive=True):
            if fnmatchcase(file.base_name, pattern):
                matching.append(file.path)
        return matching


class _Upload:
    """File object over a stream of delta-rs, which accepts only bytes; pyarrow writes buffers."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return bool(self._stream.closed)

    def write(self, data: Any) -> int:
        """Write all bytes; return their number."""
        return int(self._stream.write(bytes(data)))

    def tell(self) -> int:
        """Return the number of bytes written."""
        return int(self._stream.tell())

    def flush(self) -> None:
        """Do nothing: buffered bytes are sent with the next part."""

    def close(self) -> None:
        """Close the stream; then the file exists."""
        self._stream.close()


_REFUSED = (
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "XAdminUserNotFound",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "InvalidSecurity",
    "AccountProblem",
    "AllAccessDisabled",  # S3
    "AuthenticationFailed",
    "AuthorizationFailure",
    "AuthorizationPermissionMismatch",
    "InvalidAuthenticationInfo",  # Azure
    "AccessControlException",
)  # Hadoop
_LOGIN = (
    "Check the credentials and their rights on this path: table.store, or the environment if "
    "table.store has none"
)
_OTHER_REGION = ("The bucket is in another region than the configured one", "table.store.region")
_SETTINGS: Mapping[str, tuple[str, str]] = {
    "NoSuchBucket": ("The store has no such bucket", "table.path"),
    "InvalidBucketName": ("No bucket can have such a name", "table.path"),
    "ContainerNotFound": ("The storage account has no such container", "table.path"),
    "InvalidResourceName": ("No container can have such a name", "table.path"),
    "AuthorizationHeaderMalformed": _OTHER_REGION,
    "PermanentRedirect": _OTHER_REGION,
    "IllegalLocationConstraintException": _OTHER_REGION,
    "URL scheme is not allowed": (
        "The endpoint is http://, which is not allowed",
        "table.store.endpoint",
    ),
    "InvalidContentType": ("The endpoint does not use TLS", "table.store.endpoint"),
    "UnknownIssuer": (
        "The endpoint's certificate is signed by a CA that this machine does not trust",
        "table.store.endpoint",
    ),
    "NotValidForName": (
        "The endpoint's certificate belongs to another host",
        "table.store.endpoint",
    ),
    "Invalid Access Key": (
        "The account's key is not a key of Azure, which is base64",
        "table.store.account_key",
    ),
}
"""Text of a store's answer or of a client -> message, and the key to check."""
_CODE = re.compile(
    r"<Code>([A-Za-z]{1,60})</Code>|\b(\d{3}) [A-Z][A-Za-z ]{2,30}\b"
    r"|Error Code: ([A-Za-z]{1,60})|Status Code: (\d{3})"
)
_BY_SPARK = re.compile(
    r"software\.amazon\.awssdk|java\.nio\.file\.AccessDeniedException|hadoop\.fs\.s3a"
    r"|AbfsRestOperationException|hadoop\.fs\.azurebfs|UnknownHostException"
    r"|java\.net\.\w*ConnectException|NoRouteToHostException|SocketTimeoutException"
    r"|AccessControlException|hadoop\.ipc\."
)
_STORE_OBSTACLES = (
    "Connection refused",
    "Name or service not known",
    "Temporary failure in name resolution",
    "No route to host",
    "timed out",
    "Connection reset",
    "connection closed",
    "network is unreachable",
    "failed to lookup address information",
)


def of_store(error: BaseException, path: str, message: str) -> EtlError:
    """Return the error for a table in a store that cannot be `read` or `written` (`message`):
    PermissionDenied, SettingsError or TableUnreachable.
    """
    text = str(error)
    for known, (sentence, key) in _SETTINGS.items():
        if known in text:
            return SettingsError(sentence, path=str(path), key=key, action=f"Check {key}")
    code = None
    code_found = _CODE.search(text)
    if code_found:
        code = next((group for group in code_found.groups() if group), None)
    if "169.254.169.254" in text:
        return PermissionDenied(
            "No credentials for the store were found", path=str(path), action=_LOGIN
        )
    if (
        any(denied in text for denied in _REFUSED)
        or code in ("401", "403")
        or "lacked the necessary privileges" in text
    ):
        return PermissionDenied(
            f"The store denies access{_suffix(code)}", path=str(path), action=_LOGIN
        )
    if "SafeModeException" in text:
        return TableUnreachable(
            f"The table cannot be {message}: HDFS is in safe mode, which allows no writes",
            path=str(path),
            action="Check with `hdfs dfsadmin -safemode get`. A name node leaves safe mode once it "
            "knows its blocks",
        )
    lowered = text.lower()
    obstacle = next((known for known in _STORE_OBSTACLES if known.lower() in lowered), None)
    return TableUnreachable(
        f"The table cannot be {message}{_suffix(obstacle or code)}",
        path=str(path),
        action="Check the store's address and region, the network, and the credentials",
    )


def is_of_store(text: str) -> bool:
    """Return True if a Java stack trace comes from a store or its connection, not from a bug."""
    return _BY_SPARK.search(text) is not None


def public_cause(error: BaseException | None, path: str) -> BaseException | None:
    """Return the exception to show as the cause in a traceback; None for a store, as the texts of
    stores may contain signed requests.
    """
    if is_url(path):
        return None
    return error


def _suffix(code: str | None) -> str:
    if not code:
        return ""
    return f": {code}"


_OBSTACLES = (
    "permission denied",
    "accessdeniedexception",
    "access denied",
    "accesscontrolexception",
    "read-only file system",
    "no space left",
    "disk quota exceeded",
    "mkdirs failed",
    "parentnotdirectory",
    "not a directory",
    "input/output error",
    "operation not permitted",
    "delta_cannot_create_log_path",
)
_COLOURS = re.compile(r"\x1b\[\d*m(↳ ?)?")
_CONFLICT = re.compile(
    r"DELTA_(METADATA_CHANGED|PROTOCOL_CHANGED|CONCURRENT_\w+)"
    r"|io\.delta\.exceptions\.(Concurrent|Metadata|Protocol)\w+"
)
_NO_STORE = re.compile("Unknown scheme|Could not parse .* as a URL|Unable to recognise URL")
"""Text of delta-rs for a URL of an unknown store."""
_NO_CHECKPOINT = "didn't find any checkpoints"
_LOG_LOST = re.compile(
    f"Expected contiguous commit files|No table metadata or protocol found|{_NO_CHECKPOINT}"
)
"""Text of delta-rs for a log with gaps."""
_COMMIT_LACKING = re.compile(r"Could not find any delta files for version (\d+)")
"""Text of Delta on Spark for a log whose newest version has a checkpoint only."""
_LOG_DAMAGED = re.compile(r"(?:Json|Parquet) error: (?!External:)[^\n]+")
"""Text of delta-rs for a commit file, or a checkpoint, with other bytes than its writer wrote.
External: is a store that does not answer.
"""
_RESTORE = "Restore it from a copy, or from the versions that the store keeps"
_NO_COLUMNS = "Cannot scan Delta table with empty schema"
"""Text of delta-rs for a table without columns (`CREATE TABLE ... USING delta` alone)."""
_NO_FILE_SYSTEM = re.compile(
    r'No FileSystem for scheme "?[\w+.-]+"?|ClassNotFoundException: Class [\w.]*FileSystem '
    r"not found"
)
"""Text of Hadoop for a URL of an unknown store."""
_UNSUPPORTED = re.compile(r"(?i)unsupported|not supported|max catalog version is required")
_OF_PYTHON = ("org.apache.spark.api.python.PythonException", "thrown from the Python worker")
_NUL_IN_FOLDER = re.compile(r"/([^/=\s]+)=[^/\n]*\0")
"""Delta creates a directory for each partition value, and escapes all characters that its name
cannot have, except this one.
"""
_NEW_FOLDER = re.compile(r"/([^/=\s]+)=[^/\n]*?(?=/| \(exists=|\n|$)")
FOLDER_BYTES = 255
"""Longest name of a directory, in bytes."""
_FORGET = (
    ". Without a copy, remove the file from the table's log (delta-rs: DeltaTable(PATH).repair()), "
    "and accept that its rows are gone: `etl table accept-changes`, as the next run describes"
)
_UNREADABLE = re.compile(
    r"\[(FAILED_READ_FILE[\w.]*|DELTA_TRUNCATED_TRANSACTION_LOG|DELTA_LOG_FILE_NOT_FOUND\w*)\] "
    r"(?:Encountered error while reading file )?(\S+?)[.:]?\s"
)


def translate(failure: Exception, path: str) -> Exception:
    """Return the error that an exception of Spark or delta-rs stands for: an executor's EtlError,
    an unwritable place, else the exception itself.
    """
    from deltalake.exceptions import CommitFailedError, DeltaError

    if isinstance(failure, EtlError):
        return failure
    text = whole_text(failure)
    marked = unmark(text)
    if marked is None and _is_of_python(text):
        # A transform's function may fail with any of the texts looked for below.
        return failure
    if marked is None and (is_conflict(text) or isinstance(failure, CommitFailedError)):
        return TableUnreachable(
            "Another writer changed the table during this append",
            path=path,
            action="Check who else writes to it (DESCRIBE HISTORY). Beside a replay these may be "
            "`etl table compact` and `etl table maintain`, too. This run committed nothing; the "
            "next run appends the same plan again",
        )
    if marked is None and isinstance(failure, DeltaError):
        marked = not_supported(failure, path) or _removed(failure, path)
    marked = (
        marked
        or _outside_of_replay(text, path)
        or _constraint_violation(text, path)
        or _no_file_system(text, path)
    )
    if marked:
        return marked
    unusable_name = _invalid_directory_name(text, path)
    if unusable_name:
        return unusable_name
    if is_url(path) and (isinstance(failure, (DeltaError, OSError)) or is_of_store(text)):
        return of_store(failure, path, "written")
    if is_obstacle(text):
        return unreachable(failure, path, "written")
    return failure


def _is_of_python(text: str) -> bool:
    """Return True for an exception of Python code in a worker, such as a transform's."""
    return any(phrase in text for phrase in _OF_PYTHON)


def without_columns(error: BaseException, path: str) -> NotOurTable | None:
    """Return the error for a table without columns; None for anything else."""
    if _NO_COLUMNS not in str(error):
        return None
    return NotOurTable(
        "The Delta table has no columns",
        path=path,
        action="Check who created it. Add one of the rows' columns (ALTER TABLE ... ADD COLUMNS); "
        "the next run lists the others with their types. A partitioned table has to be created "
        "again: drop it if it never held a row (DESCRIBE HISTORY)",
    )


def _removed(error: BaseException, path: str) -> TableUnreachable | None:
    """Return the error for a table whose log vanished between a read and a commit."""
    if "Invalid table version" not in str(error):
        return None
    return TableUnreachable(
        "The table was removed during this append",
        path=path,
        action="Check who removed or replaced the table's directory. This run committed nothing; "
        "the next run reports the state that it finds",
    )


_OUTSIDE_OF_REPLAY = "DELTA_REPLACE_WHERE_MISMATCH"
"""Delta's name of the error for a row outside of what a write replaces."""


def _outside_of_replay(text: str, path: str) -> SettingsError | None:
    """Return the error for rows of a replay outside of the replaced offsets: Delta checks each."""
    if _OUTSIDE_OF_REPLAY not in text:
        return None
    return SettingsError(
        "The transform changes the columns that identify a record, so a replay would add rows "
        "without removing the old ones",
        key="transform",
        path=path,
        action="Check the function: it must not change topic, partition, offset and incarnation. "
        "Nothing was replaced",
    )


class Constraint(NamedTuple):
    """A constraint of a table that rows violate."""

    name: str
    """As in a sentence."""
    condition: str
    """In SQL: true for the rows that it permits."""


_CHECK = re.compile(r"CHECK constraint (\S+) (.+?) violated by row", re.DOTALL)
_NOT_NULL = re.compile(r"NOT NULL constraint violated for column: ([^\s.]+)")


def violated_constraint(text: str) -> Constraint | None:
    """Return the constraint that Delta's exception names; None for anything else.

    Delta checks the offsets of a replay as a constraint, too, which is none of the table's. A
    transform's exception may quote Delta's words.
    """
    if _OUTSIDE_OF_REPLAY in text or _is_of_python(text):
        return None
    found = _CHECK.search(text)
    if found:
        return Constraint(f"constraint {found[1]}, {found[2]},", found[2])
    found = _NOT_NULL.search(text)
    if found:
        return Constraint(f"column {found[1]}, which is NOT NULL,", f"{found[1]} is not null")
    return None


def constraint_error(
    violated: Constraint, path: str, place: Mapping[str, Any], plan: Plan | None
) -> NotOurTable:
    """Return the error for rows that violate a constraint.

    `place`: of the record, if known. `plan`: the stored plan of the rows; None: they have none.
    """
    action = "Change the constraint or the transform"
    if plan is None:
        action += ", then run the command again"
    else:
        action += f"; the next run appends the same plan again{_ways_to_leave_out(plan, place)}"
    return NotOurTable(
        f"The table's {violated.name} rejects a row", **place, path=path, action=action
    )


def _ways_to_leave_out(plan: Plan, place: Mapping[str, Any]) -> str:
    """Return the advice for a stored plan with a record that the table rejects."""
    skip = "TOPIC:PARTITION:FROM-UNTIL"
    if {"topic", "partition", "offset"} == place.keys():
        partition = TopicPartition(place["topic"], place["partition"])
        skip = render_intervals([(partition, place["offset"], place["offset"] + 1)])
    supersede = f"etl plans supersede CONF {plan.number}"
    if plan.kind is PlanKind.REPLAY:
        return f". To give the replay up: `{supersede} --reason ...`"
    if plan.kind is PlanKind.BACKFILL:
        return ""
    return f". To leave the record out: `{supersede} --skip {skip} --reason ...`"


def _constraint_violation(text: str, path: str) -> NotOurTable | None:
    violated = violated_constraint(text)
    if violated is None:
        return None
    return constraint_error(violated, path, {}, None)


def _no_file_system(text: str, path: str) -> SettingsError | None:
    """Return the error for a URL that delta-rs supports and Spark does not, by a Java stack
    trace.
    """
    found = _NO_FILE_SYSTEM.search(text)
    if found is None:
        return None
    return SettingsError(
        f"Spark does not support the store of this URL: {found[0]}",
        path=path,
        action="Check table.path, and that Spark has the store's jars (spark.jars.packages, e.g. "
        "hadoop-aws for s3a://)",
    )


def _invalid_directory_name(text: str, path: str) -> SettingsError | None:
    with_nul = _NUL_IN_FOLDER.search(text)
    if with_nul is not None:
        return invalid_directory_name(with_nul[1], "contains a NUL", path)
    for folder in _NEW_FOLDER.finditer(text):
        if len(folder[0].encode()) > FOLDER_BYTES + 1:
            return invalid_directory_name(folder[1], "is too long", path)
    return None


def invalid_directory_name(name: str, reason: str, path: str | None = None) -> SettingsError:
    """Return the error for a text in column `name` that cannot name a partition directory."""
    return SettingsError(
        f"A text in the partition column {name} {reason}: no directory can have such a name",
        key="table.partition_by",
        path=path,
        action=f"Change the transform so that {name} has no such text. The next run executes the "
        "stored plan again with the changed function. Or give the plan up: "
        "`etl plans supersede CONF N --reason ...`",
    )


def is_conflict(text: str) -> bool:
    """Return True if a Java stack trace comes from a conflict with another commit: nothing was
    committed.
    """
    return _CONFLICT.search(text) is not None


def is_obstacle(text: str) -> bool:
    """Return True if a Java stack trace comes from an unwritable place, not from a bug."""
    lowered = text.lower()
    return any(word in lowered for word in _OBSTACLES)


def unknown_store(error: BaseException, path: str) -> SettingsError | None:
    """Return the error for a URL that delta-rs does not support; None for anything else."""
    if not _NO_STORE.search(str(error)):
        return None
    reason = first_line(error).split(". Known schemes", 1)[0]
    return SettingsError(
        f"The store of this URL is not supported: {reason}",
        path=path,
        action="Check table.path: a directory, or the URL of a store that delta-rs and Spark "
        "support",
    )


def not_supported(error: BaseException, path: str) -> NotOurTable | None:
    """Return the error for a table that delta-rs cannot read or commit to, recognised by its
    text.
    """
    if not _UNSUPPORTED.search(str(error)):
        return None
    return NotOurTable(
        f"Delta-rs does not support the table: {first_line(error)}",
        path=path,
        action="Check the table's features (DESCRIBE DETAIL): delta-rs must support all of them. "
        "`etl doctor CONF` lists those that it does not support",
    )


def incomplete_log(
    error: BaseException, path: str, find_file: Callable[[str], str | None]
) -> FileLost | None:
    """Return the error for a log with gaps, after a manual cleanup. A damaged file leaves a gap,
    too, if it is empty; `find_file` as in `damaged_log`.
    """
    found = _LOG_LOST.search(str(error))
    if found is None:
        return None
    damaged = find_file(path)
    if damaged:
        return damaged_log_file(damaged, found[0], path)
    if found[0] == _NO_CHECKPOINT:
        return FileLost(
            "_delta_log/_last_checkpoint names a checkpoint that does not exist",
            path=path,
            action="Check that _delta_log has all commits (*.json), from 0 or from another "
            "checkpoint on; then remove _last_checkpoint, a hint that no reader needs. If commits "
            "are missing, restore them from a copy",
        )
    return FileLost(
        f"The table's log lacks files: {found[0]}",
        path=path,
        action="Check who removed files of its _delta_log, and restore them from a copy. Without "
        "one, the rows are in its Parquet files only: move the directory away; the next run "
        "reports "
        "how to continue without it",
    )


def damaged_log(
    error: BaseException, path: str, find_file: Callable[[str], str | None]
) -> FileLost | None:
    """Return the error for a commit or checkpoint that is cut off or overwritten.

    `find_file`: returns its name; None: unknown.
    """
    found = _LOG_DAMAGED.search(str(error))
    if found is None:
        return None
    is_checkpoint = found[0].startswith("Parquet")
    return damaged_log_file(find_file(path), found[0], path, is_checkpoint=is_checkpoint)


def damaged_log_file(
    file: str | None, cause: str, path: str, *, is_checkpoint: bool = False
) -> FileLost:
    """Return the error for a damaged commit or checkpoint, as after a full disk or a power failure.

    `file`: its name; None: unknown. A retry does not help: files of a log never change.
    """
    if is_checkpoint or (file and ".checkpoint." in file):
        kind = "checkpoint"
        action = (
            f"{_RESTORE}. Without one, check that _delta_log has all commits (*.json), "
            "from 0 or from another checkpoint on; then move this checkpoint and _last_checkpoint "
            "away"
        )
    else:
        kind = "commit file"
        action = (
            f"{_RESTORE}. Without one, and if no later commit exists, move it out of _delta_log: "
            "its rows are then not in the table, and the next run loads them or reports what is "
            "missing"
        )
    return FileLost(
        f"A {kind} of the table's log is damaged: {cause}", file=file, path=path, action=action
    )


def unreachable(
    error: BaseException, path: str, operation: str, *, at: Path | None = None
) -> EtlError:
    """Return the error for a table that cannot be `read` or `written` (`operation`).

    For an object store that denies access it is PermissionDenied, as a retry does not help.
    """
    if is_url(path):
        return of_store(error, path, operation)
    text = _obstacle_in(error) or first_line(error)
    if _NOT_LINKED in str(error) and _os_error(error) in _NO_LINKS:
        return SettingsError(
            f"The mount of the table creates no hard links: {text}",
            key="table.path",
            path=path,
            action="Set table.path to a file system with hard links (ext4, xfs, NFS), or to the URL "
            "of the bucket instead of its mount. Nothing was committed",
        )
    return TableUnreachable(
        f"The table cannot be {operation}: {text}",
        path=path,
        folder=at,
        action="Check permissions, free space, and that every part of the path above it is a "
        "directory",
    )


def unreadable(text: str, path: str) -> FileLost | TableUnreachable | None:
    """Return the error for a file of the table, or of its log, that Spark could not read; None for
    anything else.
    """
    lacking = _COMMIT_LACKING.search(text)
    if lacking is not None:
        return FileLost(
            f"Spark cannot read the table: its log has a checkpoint of version {lacking[1]}, and "
            "not the commit file",
            file=f"{int(lacking[1]):020}.json",
            path=path,
            action="Check who removed files of its _delta_log, and restore the file from a copy. "
            "Without one, write the rows, which delta-rs still reads, into a new table, and set "
            "table.path to it: the next run reports how to accept it",
        )
    found = _UNREADABLE.search(text)
    if found is None:
        return None
    is_of_log = "DELTA_" in found[1]
    file = unquote(found[2]).rpartition("/")[2]
    if is_of_log or "NOT_EXIST" in found[1]:
        action = (
            "Check who removed it, for example a clean-up of the directory or VACUUM with a short "
            "retention. Restore it from a copy"
        )
        if not is_of_log:
            action += _FORGET
        return FileLost(
            "A file that the table's log names does not exist", file=file, path=path, action=action
        )
    return TableUnreachable(
        "A file of the table cannot be read",
        file=file,
        path=path,
        action="Check that it is readable and complete: compare it with a copy, and restore the "
        "copy",
    )


_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_NOT_LINKED = "Unable to rename file"
"""Text of delta-rs for a hard link that fails, too."""
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP})


def _os_error(error: BaseException) -> int | None:
    found = _OS_ERROR.search(str(error))
    return int(found[1]) if found else None


def _obstacle_in(error: BaseException) -> str | None:
    """Return the line with the cause: of delta-rs the innermost one, of a Java stack trace the
    last cause.
    """
    if _COLOURS.search(str(error)):
        return _COLOURS.sub("", str(error)).strip().splitlines()[-1].strip()
    first = None
    last_cause = None
    for line in str(error).splitlines()[1:]:
        if not is_obstacle(line):
            continue
        text = line.strip().removeprefix(": ")
        if text.startswith("Caused by: "):
            last_cause = text.removeprefix("Caused by: ")
        if first is None and not text.startswith("at "):
            first = text
    return last_cause or first


def first_line(error: BaseException) -> str:
    """Return the first line of an exception, without delta-rs' colours; its class if it is
    empty.
    """
    return _COLOURS.sub("", str(error)).strip().split("\n", 1)[0] or type(error).__name__
