"""How is the store of a table accessed, and what does each failure mean?

Secrets are resolved here for one call and not kept. Files are read and written by delta-rs's own
file system (`deltalake.fs`), with the credentials of its log. Failures are recognised by their
codes; texts of a store are not repeated, because they quote the signed request.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol
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
from etl.model.security import SecretRef
from etl.settings.choices import folder_of, is_url
from etl.settings.secrets import resolve_secret
from etl.settings.table import KEY_OF, store_of


def options_of(path: str) -> dict[str, str] | None:
    """Return delta-rs' storage options for a path; None without any. Raises SettingsError for a
    missing secret.
    """
    options = delta_rs_options(path, store_of(path))
    return {
        key: resolve_secret(value, KEY_OF[key]) if isinstance(value, SecretRef) else value
        for key, value in options.items()
    } or None


class TableFolder(Protocol):
    """Files by their paths below the folder. All raise OSError where it refuses."""

    def create(self, path: str) -> pa.NativeFile:
        """A new file to write; it is there when it is closed. Raises TableUnreachable where the
        folder itself is gone.
        """

    def remove(self, path: str) -> None:
        """A file that is there, or begun."""

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Return the size of each file in bytes; None if it is missing."""

    def named(self, pattern: str) -> list[str]:
        """Return the paths of all files whose name matches the pattern, at any depth."""


def table_folder(root: str) -> TableFolder:
    """The folder at a table's path."""
    return LocalFolder(root) if folder_of(root) is not None else StoreFolder(root)


class LocalFolder:
    """A folder of this machine; see `TableFolder`."""

    def __init__(self, root: str) -> None:
        self._root = root

    def create(self, path: str) -> pa.NativeFile:
        """See `TableFolder`."""
        root = Path(self._root)
        whole = root / path
        if not root.is_dir():  # whoever begins to write makes it: made again it would be a folder of files that no log stands beside
            action = "Check that it is the same folder on every executor's host, and who removed it; the next run appends the same plan again"
            raise TableUnreachable(
                "The table's folder is not there", path=self._root, action=action
            )
        whole.parent.mkdir(parents=True, exist_ok=True)
        return pa.OSFile(str(whole), "wb")

    def remove(self, path: str) -> None:
        """See `TableFolder`."""
        Path(self._root, path).unlink()

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """See `TableFolder`."""
        return [
            whole.stat().st_size if (whole := Path(self._root, path)).is_file() else None
            for path in paths
        ]

    def named(self, pattern: str) -> list[str]:
        """See `TableFolder`."""
        return [str(path.relative_to(self._root)) for path in Path(self._root).rglob(pattern)]


class StoreFolder:
    """A folder of a store; see `TableFolder`. A file that was begun and not closed is none: its
    parts stay until the store drops them.
    """

    def __init__(self, root: str) -> None:
        from deltalake._internal import (
            DeltaFileSystemHandler,
        )  # what `deltalake.fs` wraps: its own streams take no buffers of pyarrow

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
        found = self._files.get_file_info_selector("", allow_not_found=True, recursive=True)
        return [file.path for file in found if fnmatchcase(file.base_name, pattern)]


class _Upload:
    """delta-rs takes bytes alone, and pyarrow's writers have buffers."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def closed(self) -> bool:
        """True if closed, as of file objects."""
        return bool(self._stream.closed)

    def write(self, data: Any) -> int:
        """All of it."""
        return int(self._stream.write(bytes(data)))

    def tell(self) -> int:
        """Bytes so far."""
        return int(self._stream.tell())

    def flush(self) -> None:
        """Do nothing: buffered bytes go with the next part."""

    def close(self) -> None:
        """The file is there."""
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
_LOGIN = "Check the credentials and their rights on this path: table.store, or what the environment gives where that says nothing"
_SETTINGS: Mapping[str, tuple[str, str]] = {
    "NoSuchBucket": ("the store has no such bucket", "table.path"),
    "InvalidBucketName": ("no bucket can have such a name", "table.path"),
    "ContainerNotFound": ("the storage account has no such container", "table.path"),
    "InvalidResourceName": ("no container can have such a name", "table.path"),
    "AuthorizationHeaderMalformed": (
        "the bucket is in another region than the one that is named",
        "table.store.region",
    ),
    "PermanentRedirect": (
        "the bucket is in another region than the one that is named",
        "table.store.region",
    ),
    "IllegalLocationConstraintException": (
        "the bucket is in another region than the one that is named",
        "table.store.region",
    ),
    "URL scheme is not allowed": (
        "the endpoint is http://, and nobody allowed that",
        "table.store.endpoint",
    ),
    "InvalidContentType": ("the endpoint does not speak TLS", "table.store.endpoint"),
    "UnknownIssuer": (
        "nobody whom this machine trusts signed the endpoint's certificate",
        "table.store.endpoint",
    ),
    "NotValidForName": ("the endpoint's certificate is another host's", "table.store.endpoint"),
    "Invalid Access Key": (
        "the account's key is no key of Azure's, which is base64",
        "table.store.account_key",
    ),
}
"""Text in an answer or of a client -> a sentence, and the key to check."""
_CODE = re.compile(
    r"<Code>([A-Za-z]{1,60})</Code>|\b(\d{3}) [A-Z][A-Za-z ]{2,30}\b|Error Code: ([A-Za-z]{1,60})|Status Code: (\d{3})"
)
_BY_SPARK = re.compile(
    r"software\.amazon\.awssdk|java\.nio\.file\.AccessDeniedException|hadoop\.fs\.s3a|AbfsRestOperationException|hadoop\.fs\.azurebfs"
    r"|UnknownHostException|java\.net\.\w*ConnectException|NoRouteToHostException|SocketTimeoutException|AccessControlException"
    r"|hadoop\.ipc\."
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
    """The failure for a table in a store that cannot be `read` or `written`: PermissionDenied,
    SettingsError or TableUnreachable.
    """
    text = str(error)
    found = next((one for one in _SETTINGS if one in text), None)
    if found is not None:
        sentence, key = _SETTINGS[found]
        return SettingsError(sentence, path=str(path), key=key, action=f"Check {key}")
    code_found = _CODE.search(text)
    code = next((one for one in code_found.groups() if one), None) if code_found else None
    if "169.254.169.254" in text:
        return PermissionDenied(
            "No credentials for the store were found", path=str(path), action=_LOGIN
        )
    if (
        any(one in text for one in _REFUSED)
        or code in ("401", "403")
        or "lacked the necessary privileges" in text
    ):
        return PermissionDenied(f"The store refuses us{_told(code)}", path=str(path), action=_LOGIN)
    if "SafeModeException" in text:
        message = f"The table cannot be {message}: HDFS is in safe mode, in which nobody writes"
        return TableUnreachable(
            message,
            path=str(path),
            action="Run hdfs dfsadmin -safemode get; a name node leaves it once it knows its blocks",
        )
    obstacle = next((one for one in _STORE_OBSTACLES if one.lower() in text.lower()), None)
    action = "Check the store's address and region, the network, and the credentials"
    return TableUnreachable(
        f"The table cannot be {message}{_told(obstacle or code)}", path=str(path), action=action
    )


def is_of_store(text: str) -> bool:
    """True if a Java stack trace is of a store's answer, or the connection to it, and not of a bug."""
    return _BY_SPARK.search(text) is not None


def behind(error: BaseException | None, path: str) -> BaseException | None:
    """Return an exception without texts of a store, for a traceback."""
    return None if is_url(path) else error


def _told(code: str | None) -> str:
    return f": {code}" if code else ""


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
    r"DELTA_(METADATA_CHANGED|PROTOCOL_CHANGED|CONCURRENT_\w+)|io\.delta\.exceptions\.(Concurrent|Metadata|Protocol)\w+"
)
_NO_STORE = re.compile("Unknown scheme|Could not parse .* as a URL|Unable to recognise URL")
"""Text of delta-rs for a URL of no known store."""
_NO_CHECKPOINT = "didn't find any checkpoints"
_LOG_LOST = re.compile(
    f"Expected contiguous commit files|No table metadata or protocol found|{_NO_CHECKPOINT}"
)
"""Text of delta-rs for a log with gaps."""
_NO_COLUMNS = "Cannot scan Delta table with empty schema"
"""Text of delta-rs for a table without columns (`CREATE TABLE ... USING delta` alone)."""
_NO_FILE_SYSTEM = re.compile(
    r'No FileSystem for scheme "?[\w+.-]+"?|ClassNotFoundException: Class [\w.]*FileSystem not found'
)
"""Text of Hadoop for a URL of no known store."""
_UNSUPPORTED = re.compile(r"(?i)unsupported|not supported|max catalog version is required")
_OF_PYTHON = ("org.apache.spark.api.python.PythonException", "thrown from the Python worker")
_CONSTRAINT = re.compile(r"\[DELTA_(?:VIOLATE_CONSTRAINT|NOT_NULL_CONSTRAINT)\w*\] ([^\n]*)")
_NUL_IN_FOLDER = re.compile(r"/([^/=\s]+)=[^/\n]*\0")
"""Delta makes a folder of each value of a partition, and escapes in its name what a folder's name
cannot have, but for this.
"""
_NEW_FOLDER = re.compile(r"/([^/=\s]+)=[^/\n]*?(?=/| \(exists=|\n|$)")
FOLDER_BYTES = 255
"""So long a folder's name may be."""
_FORGET = (
    "; where there is none, take it out of the table's log (delta-rs: DeltaTable(PATH).repair()), and accept that its rows are gone: "
    "`etl table accept-changes`, as the next run says"
)
_UNREADABLE = re.compile(
    r"\[(FAILED_READ_FILE[\w.]*|DELTA_TRUNCATED_TRANSACTION_LOG|DELTA_LOG_FILE_NOT_FOUND\w*)\] "
    r"(?:Encountered error while reading file )?(\S+?)[.:]?\s"
)


def translate(failure: Exception, path: str) -> Exception:
    """Return the meaning of an exception of Spark or delta-rs: an executor's EtlError, an
    unwritable place, or itself.
    """
    from deltalake.exceptions import CommitFailedError, DeltaError

    if isinstance(failure, EtlError):  # a writer says itself what it met
        return failure
    text = whole_text(failure)
    marked = unmark(text)
    if marked is None and (is_conflict(text) or isinstance(failure, CommitFailedError)):
        action = "Check who else writes to it (DESCRIBE HISTORY); nothing of ours was committed, the next run appends the same plan again"
        return TableUnreachable(
            "Somebody else changed the table while ours were written", path=path, action=action
        )
    if marked is None and isinstance(failure, DeltaError):
        marked = not_supported(failure, path) or _removed(failure, path)
    marked = (
        marked
        or _outside_of_replay(text, path)
        or _refused_by_constraint(text, path)
        or _no_file_system(text, path)
    )
    if marked or any(
        phrase in text for phrase in _OF_PYTHON
    ):  # a function may say of its own file what a table's folder says
        return marked or failure
    named = _no_folders_name(text, path)
    if (
        named is None
        and is_url(path)
        and (isinstance(failure, (DeltaError, OSError)) or is_of_store(text))
    ):
        return of_store(failure, path, "written")
    return named or (unreachable(failure, path, "written") if is_obstacle(text) else failure)


def without_columns(error: BaseException, path: str) -> NotOurTable | None:
    """Return the error for a table without columns; None for anything else."""
    if _NO_COLUMNS not in str(error):
        return None
    action = (
        "Check who made it; ALTER TABLE ... ADD COLUMNS with one of the rows' columns, and the next run names the others with their types. "
        "A partitioned one is made anew: drop it, where its history (DESCRIBE HISTORY) never held a row"
    )
    return NotOurTable("The Delta table has no columns", path=path, action=action)


def _removed(error: BaseException, path: str) -> TableUnreachable | None:
    """Return the error for a table whose log vanished between a read and a commit."""
    if "Invalid table version" not in str(error):
        return None
    action = "Check who removed the table's folder, or put another there; nothing of ours was committed, the next run says what it finds"
    return TableUnreachable(
        "The table was removed while ours were written", path=path, action=action
    )


def _outside_of_replay(text: str, path: str) -> SettingsError | None:
    """Return the error for rows of a replay outside of what it replaces: Delta checks each."""
    if "DELTA_REPLACE_WHERE_MISMATCH" not in text:
        return None
    message = "The transform changes what names the record of a row, so that a replay would add rows where it takes none out"
    action = "Check the function: it must leave topic, partition, offset and incarnation of each row as they came; nothing was replaced"
    return SettingsError(message, key="transform", path=path, action=action)


def _refused_by_constraint(text: str, path: str) -> NotOurTable | None:
    found = _CONSTRAINT.search(text)
    if found is None:
        return None
    action = "Check the table's constraints (SHOW TBLPROPERTIES) against what the topic holds; the next run appends the same plan again"
    return NotOurTable(
        f"A constraint of the table refuses our rows: {found[1].strip()}", path=path, action=action
    )


def _no_file_system(text: str, path: str) -> SettingsError | None:
    """The failure for a URL that delta-rs knows and Spark does not, by a Java stack trace."""
    found = _NO_FILE_SYSTEM.search(text)
    if found is None:
        return None
    action = "Check table.path, and that Spark has the store's jars (spark.jars.packages, e.g. hadoop-aws for s3a://)"
    return SettingsError(
        f"Spark knows no store of such a URL: {found[0]}", path=path, action=action
    )


def _no_folders_name(text: str, path: str) -> SettingsError | None:
    with_nul = _NUL_IN_FOLDER.search(text)
    if with_nul is not None:
        return of_no_folder(with_nul[1], "holds a NUL", path)
    too_long = next(
        (one for one in _NEW_FOLDER.finditer(text) if len(one[0].encode()) > FOLDER_BYTES + 1), None
    )
    return of_no_folder(too_long[1], "is too long", path) if too_long else None


def of_no_folder(name: str, why: str, path: str | None = None) -> SettingsError:
    """Return the error for a text that cannot name a partition directory; `why` says what is wrong."""
    action = (
        f"Check the transform, that it leaves no such text in {name}; the stored plan is executed again by the next run, with the function as it "
        "is then; or give the plan up: etl plans supersede CONF N --reason ..."
    )
    message = f"A text in the column {name}, by which the table is partitioned, {why}: no folder can have such a name"
    return SettingsError(message, key="table.partition_by", path=path, action=action)


def is_conflict(text: str) -> bool:
    """True if a Java stack trace is of a conflict with another commit: nothing was committed."""
    return _CONFLICT.search(text) is not None


def is_obstacle(text: str) -> bool:
    """True if a Java stack trace is of an unwritable place, and not of a bug."""
    return any(word in text.lower() for word in _OBSTACLES)


def unknown_store(error: BaseException, path: str) -> SettingsError | None:
    """The failure for a URL by which delta-rs finds no store."""
    if not _NO_STORE.search(str(error)):
        return None
    action = "Check table.path: a folder, or the URL of a store that delta-rs and Spark know"
    reason = first_line(error).split(". Known schemes", 1)[0]
    return SettingsError(f"No store goes by such a URL: {reason}", path=path, action=action)


def not_supported(error: BaseException, path: str) -> NotOurTable | None:
    """Return the error for a table that delta-rs cannot read or commit to, recognised by its text."""
    if not _UNSUPPORTED.search(str(error)):
        return None
    action = "Check the table's features (DESCRIBE DETAIL); delta-rs must support them, `etl doctor CONF` names those that it does not"
    return NotOurTable(
        f"Delta-rs does not support the table: {first_line(error)}", path=path, action=action
    )


def incomplete_log(error: BaseException, path: str) -> FileLost | None:
    """Return the error for a log with gaps, after a manual cleanup."""
    found = _LOG_LOST.search(str(error))
    if found is None:
        return None
    if found[0] == _NO_CHECKPOINT:
        message = "_delta_log/_last_checkpoint names a checkpoint that is not there"
        action = (
            "Check that the commits (*.json) of _delta_log are all there, from 0 or from another checkpoint on; then remove _last_checkpoint: it "
            "is a hint, which every reader does without. Where they are not, put them back from a copy"
        )
        return FileLost(message, path=path, action=action)
    action = (
        "Check who removed files of its _delta_log, and restore them from a copy. Without one, the rows are in its Parquet files only: "
        "move the directory away; the next run reports how to continue without it"
    )
    return FileLost(f"The table's log lacks files: {found[0]}", path=path, action=action)


def unreachable(
    error: BaseException, path: str, operation: str, *, at: Path | None = None
) -> EtlError:
    """The failure for a table that cannot be `read` or `written`: credentials refused by an object
    store are no passing trouble.
    """
    if is_url(path):
        return of_store(error, path, operation)
    text = _obstacle_in(error) or first_line(error)
    action = "Check permissions, free space, and that every part of the path above it is a folder"
    return TableUnreachable(
        f"The table cannot be {operation}: {text}", path=path, folder=at, action=action
    )


def unreadable(text: str, path: str) -> FileLost | TableUnreachable | None:
    """Return the error for a file of the table, or of its log, that Spark could not read; None for
    anything else.
    """
    found = _UNREADABLE.search(text)
    if found is None:
        return None
    is_of_log, file = "DELTA_" in found[1], unquote(found[2]).rpartition("/")[2]
    if is_of_log or "NOT_EXIST" in found[1]:
        action = "Check who removed it: somebody's clean-up of the folder, VACUUM with a short retention; put it back from a copy"
        action += "" if is_of_log else _FORGET
        return FileLost(
            "A file that the table's log names is not there", file=file, path=path, action=action
        )
    action = "Check whether it can be read, and is whole: compare it with a copy, and put that back"
    return TableUnreachable(
        "A file of the table cannot be read", file=file, path=path, action=action
    )


def _obstacle_in(error: BaseException) -> str | None:
    """Return the line with the cause: the last cause of a Java stack trace."""
    lines = [
        line.strip().removeprefix(": ") for line in str(error).splitlines()[1:] if is_obstacle(line)
    ]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    if causes:
        return causes[-1]
    return next((line for line in lines if not line.startswith("at ")), None)


def first_line(error: BaseException) -> str:
    """Return the first line of an exception, without delta-rs' colours; its name if it is empty."""
    return _COLOURS.sub("", str(error)).strip().split("\n", 1)[0] or type(error).__name__
