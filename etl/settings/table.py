"""Where is the table, how is its store accessed, and how are rows written?

Lives here: the sections `table` and `table.store`, and a path type that carries the store's
settings. Not here: the options that Spark and delta-rs receive (etl/decide/table_storage.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from etl.errors import SettingsError
from etl.model.plans import FILE_BYTES, ROW_GROUP_BYTES, WRITE_BUFFER_BYTES, Codec
from etl.settings.choices import OnRowsRemoved, WriterName, check_place, is_url, place_of
from etl.settings.secrets import INT64, ByteSize, Secret, Section, one_or_several


class StoreKind(str, Enum):
    """Which family of stores a URL is of."""

    S3 = "S3"
    AZURE = "Azure"
    HDFS = "HDFS"
    OTHER = "other"


_KINDS: Mapping[str, StoreKind] = {
    "s3": StoreKind.S3,
    "s3a": StoreKind.S3,
    "abfs": StoreKind.AZURE,
    "abfss": StoreKind.AZURE,
    "hdfs": StoreKind.HDFS,
}
_FITTING: Mapping[StoreKind, tuple[str, ...]] = {
    StoreKind.S3: ("endpoint", "region", "allow_http", "access_key", "secret_key"),
    StoreKind.AZURE: ("endpoint", "allow_http", "account", "account_key"),
}
KEY_OF: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "table.store.access_key",
    "AWS_SECRET_ACCESS_KEY": "table.store.secret_key",
    "AZURE_STORAGE_ACCOUNT_KEY": "table.store.account_key",
}
"""Name of a secret in delta-rs -> the conf's key."""


class StoreSettings(Section):
    """Store options for both engines. Without them each uses its own chain of credentials
    (environment, role, Hadoop's files).
    """

    endpoint: str | None = Field(default=None, pattern=r"^https?://[^/\s@]+(/[^\s?#]*)?$")
    """Address of a store that is not its vendor's own."""
    region: str | None = Field(default=None, pattern=r"^[A-Za-z0-9-]+$")
    allow_http: bool = False
    """Permit `http://` endpoints, where traffic can be read and changed."""
    access_key: Secret | None = None
    secret_key: Secret | None = None
    account: str | None = Field(default=None, pattern=r"^[A-Za-z0-9]+$")
    """Azure's storage account; None: the one that the path names."""
    account_key: Secret | None = None

    @property
    def said(self) -> tuple[str, ...]:
        """Return the keys that are set."""
        return tuple(
            name
            for name, field in type(self).model_fields.items()
            if getattr(self, name) != field.default
        )


class TablePath(str):
    """A table's path with its store. As text, and in comparisons, it is the path only."""

    __slots__ = ("store",)
    store: StoreSettings

    def __new__(cls, path: str, store: StoreSettings) -> Self:
        """The path, with its store; any string operation gives the path alone."""
        made = super().__new__(cls, path)
        made.store = store
        return made

    def __reduce__(self) -> tuple[type[TablePath], tuple[str, StoreSettings]]:
        return type(self), (str(self), self.store)


def store_of(path: str) -> StoreSettings:
    """Return the store of a path; default options if it carries none."""
    return path.store if isinstance(path, TablePath) else StoreSettings()


def kind_of(path: str) -> StoreKind | None:
    """The family of the store that a path lies in; None for a folder of this machine."""
    return _KINDS.get(path.partition("://")[0].lower(), StoreKind.OTHER) if is_url(path) else None


def untried(path: str) -> str | None:
    """Return a warning for a store that is supported but untested; None for other paths."""
    if kind_of(path) is not StoreKind.OTHER:
        return None
    scheme = path.partition("://")[0].lower()
    return f"{scheme}:// is taken, and no run of this project was ever tried there"


def reject_unsupported_store_keys(path: str, store: StoreSettings, conf: str | None) -> None:
    """Raises SettingsError for keys that the path's store does not support, for half of a pair, and
    for an endpoint that is not permitted.
    """
    kind = kind_of(path)
    fitting = _FITTING.get(kind, ()) if kind else ()
    unfit = next((name for name in store.said if name not in fitting), None)
    if unfit is not None:
        where = "a folder of this machine" if kind is None else f"{path.partition('://')[0]}://"
        takes = (
            f"it takes {', '.join(fitting)}"
            if fitting
            else "it takes none of these keys: each engine goes by its own chain there"
        )
        raise SettingsError(
            f"table.path is {where}, which has no {unfit}",
            key=f"table.store.{unfit}",
            path=conf,
            action=takes,
        )
    for one, other in (("access_key", "secret_key"), ("secret_key", "access_key")):
        if getattr(store, one) is not None and getattr(store, other) is None:
            raise SettingsError(
                f"{one} is there without {other}",
                key=f"table.store.{other}",
                path=conf,
                action="both of them, or none",
            )
    if (store.endpoint or "").startswith("http://") and not store.allow_http:
        action = "https://; or table.store.allow_http: true, where nobody else is on the way"
        raise SettingsError(
            "the endpoint is http://, by which secrets and rows can be read on the way",
            key="table.store.endpoint",
            path=conf,
            action=action,
        )
    _reject_another_account(path, store, conf)


def _reject_another_account(path: str, store: StoreSettings, conf: str | None) -> None:
    if kind_of(path) is not StoreKind.AZURE:
        return
    named = account_of(path)
    if named is None:
        form = "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"
        raise SettingsError(
            "the path names no storage account",
            key="table.path",
            path=conf,
            action=f"table.path: {form}",
        )
    if store.account is not None and store.account != named:
        message = f"the path names the storage account {named}, and not {store.account}"
        raise SettingsError(
            message,
            key="table.store.account",
            path=conf,
            action="table.path, or leave table.store.account out",
        )


def account_of(path: str) -> str | None:
    """The storage account that `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH` names; None
    where it names none.
    """
    container, _, host = urlsplit(path).netloc.partition("@")
    return host.partition(".")[0] or None if container else None


class TableSettings(Section):
    """Where the rows go."""

    store: StoreSettings = StoreSettings()
    name: str | None = Field(default=None, pattern=r"^[\w-]+(\.[\w-]+){1,2}$")
    """CATALOG.SCHEMA.TABLE or SCHEMA.TABLE in Spark's catalogs, which provide the path; excludes
    `path`.
    """
    written_path: str | None = Field(default=None, min_length=1, alias="path")
    """None: a named table whose location is not known yet."""
    writer: WriterName = WriterName.SPARK
    """`auto`: by the tasks themselves where that can be (`decide.plan`), else by Spark."""
    compression: Codec | None = None
    """None: zstd for files that tasks write, the session's default for Spark's."""
    target_file_bytes: ByteSize = Field(default=FILE_BYTES, ge=2**20, le=INT64)
    """Size of files that tasks write, after which a row group ends the file; also the target of
    compaction.
    """
    row_group_bytes: ByteSize = Field(default=ROW_GROUP_BYTES, ge=2**16, le=2**30)
    """Bytes in memory that become a row group of such files."""
    write_buffer_bytes: ByteSize = Field(default=WRITE_BUFFER_BYTES, ge=2**16, le=2**32)
    """Rows of such files that a task has in memory, of all its files."""
    auto_compact_min_files: int = Field(default=0, ge=0, le=INT64)
    """Number of small files after which a run compacts; 0: never."""
    partition_by: Annotated[tuple[str, ...], BeforeValidator(one_or_several)] = ()
    """Columns of the table; `event_date` is built in: the UTC date of the record's timestamp."""
    on_rows_removed: OnRowsRemoved = OnRowsRemoved.FAIL
    losses_path: str | None = Field(default=None, min_length=1)
    """Delta table of lost offsets under `on_data_loss: skip` or `on_offset_changed: follow`; default
    `<path>_losses`.
    """

    @field_validator("partition_by")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = [
            name for name in value if sum(name.lower() == other.lower() for other in value) > 1
        ]
        if twice:
            raise ValueError(f"names {twice[0]} more than once")
        return value

    @model_validator(mode="before")
    @classmethod
    def _path_is_looked_at(cls, given: Any) -> Any:
        """Validate also without a path: then a name is required."""
        return {"path": None, **given} if isinstance(given, dict) else given

    @field_validator("written_path")
    @classmethod
    def _one_of_two(cls, path: str | None, info: ValidationInfo) -> str | None:
        if path is None and "name" in info.data and info.data["name"] is None:
            raise PydanticCustomError("missing", "Field required")
        if path is not None and info.data.get("name") is not None:
            raise ValueError(
                "is there beside table.name, by which Spark tells the path: leave one of the two out"
            )
        return path

    @field_validator("written_path", "losses_path")
    @classmethod
    def _is_a_place(cls, path: str | None, info: ValidationInfo) -> str | None:
        return (
            TablePath(check_place(path), info.data.get("store", StoreSettings())) if path else path
        )

    def placed(self, path: str | None, losses_path: str | None) -> TableSettings:
        """Return the settings with other paths in the same store."""
        return self.model_copy(
            update={
                "written_path": TablePath(path, self.store) if path else None,
                "losses_path": TablePath(losses_path, self.store) if losses_path else None,
            }
        )

    @property
    def path(self) -> str:
        """Return the table's path, which carries `store` (`TablePath`), as `losses_path` does.
        Raises LookupError for a named table before `run.spark.placed`.
        """
        if self.written_path is None:
            raise LookupError(f"nobody has asked yet where the table {self.name} is")
        return self.written_path

    @property
    def is_placed(self) -> bool:
        """True if the table's location is known."""
        return self.written_path is not None

    @property
    def called(self) -> str:
        """Return the conf's name or path of the table."""
        return self.name or self.path

    @property
    def losses_at(self) -> str:
        """Return the location of the losses table."""
        return self.losses_path or TablePath(f"{self.path.rstrip('/')}_losses", self.store)

    @property
    def place(self) -> str:
        """Return the table's location, equal for all spellings of `path`."""
        return place_of(self.path)
