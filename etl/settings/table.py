"""The table's location, the access to its store, and the writing of rows.

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
    """The family of stores of a URL."""

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
    """Endpoint and credentials of the store. Without them Spark and delta-rs each use their own
    chain (environment, role, Hadoop's files).
    """

    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^/\s@]+(/[^\s?#]*)?$",
        description="URL of an S3 or Azure endpoint; null: the vendor's",
    )
    region: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9-]+$",
        description="S3 region such as eu-central-1; null: the environment's, with an endpoint "
        "us-east-1",
    )
    allow_http: bool = Field(
        default=False,
        description="Allow http:// endpoints, where traffic can be read and changed",
    )
    access_key: Secret | None = Field(default=None, description="S3 access key")
    secret_key: Secret | None = Field(default=None, description="S3 secret key")
    account: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9]+$",
        description="Azure storage account; null: the one in table.path",
    )
    account_key: Secret | None = Field(default=None, description="Key of the account")

    @property
    def keys_set(self) -> tuple[str, ...]:
        """The keys that differ from their defaults."""
        keys = []
        for name, field in type(self).model_fields.items():
            if getattr(self, name) != field.default:
                keys.append(name)
        return tuple(keys)


class TablePath(str):
    """A table's path with its store. As text, and in comparisons, it is the path only."""

    __slots__ = ("store",)
    store: StoreSettings

    def __new__(cls, path: str, store: StoreSettings) -> Self:
        """Create the path with its store. String operations return a plain path."""
        table_path = super().__new__(cls, path)
        table_path.store = store
        return table_path

    def __reduce__(self) -> tuple[type[TablePath], tuple[str, StoreSettings]]:
        return type(self), (str(self), self.store)


def store_of(path: str) -> StoreSettings:
    """Return the store of a path; default options if it carries none."""
    return path.store if isinstance(path, TablePath) else StoreSettings()


def kind_of(path: str) -> StoreKind | None:
    """Return the family of a path's store; None for a local directory."""
    if not is_url(path):
        return None
    scheme = path.partition("://")[0].lower()
    return _KINDS.get(scheme, StoreKind.OTHER)


def untried(path: str) -> str | None:
    """Return a warning for a store that is supported but untested; None for other paths."""
    if kind_of(path) is not StoreKind.OTHER:
        return None
    scheme = path.partition("://")[0].lower()
    return f"{scheme}:// is supported but not tested"


def reject_unsupported_store_keys(path: str, store: StoreSettings, conf: str | None) -> None:
    """Raise SettingsError for keys that the path's store does not support, for one key of a pair,
    and for an endpoint that is not permitted.
    """
    kind = kind_of(path)
    fitting = _FITTING.get(kind, ()) if kind else ()
    unsupported = [name for name in store.keys_set if name not in fitting]
    if unsupported:
        where = "a local directory" if kind is None else f"{path.partition('://')[0]}://"
        action = "Remove the keys of table.store: each engine uses its own credentials chain there"
        if fitting:
            action = f"Set only {', '.join(fitting)}"
        raise SettingsError(
            f"table.path is {where}, which does not support {unsupported[0]}",
            key=f"table.store.{unsupported[0]}",
            path=conf,
            action=action,
        )
    for one, other in (("access_key", "secret_key"), ("secret_key", "access_key")):
        if getattr(store, one) is not None and getattr(store, other) is None:
            raise SettingsError(
                f"table.store.{one} is set without {other}",
                key=f"table.store.{other}",
                path=conf,
                action="Set both, or none",
            )
    if (store.endpoint or "").startswith("http://") and not store.allow_http:
        raise SettingsError(
            "The endpoint is http://, so secrets and rows can be read on the network",
            key="table.store.endpoint",
            path=conf,
            action="Use https://, or set table.store.allow_http: true in a trusted network",
        )
    _reject_another_account(path, store, conf)


def _reject_another_account(path: str, store: StoreSettings, conf: str | None) -> None:
    if kind_of(path) is not StoreKind.AZURE:
        return
    named = account_of(path)
    if named is None:
        form = "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"
        raise SettingsError(
            "The path names no storage account",
            key="table.path",
            path=conf,
            action=f"Write table.path as {form}",
        )
    if store.account is not None and store.account != named:
        raise SettingsError(
            f"The path names the storage account {named}, not {store.account}",
            key="table.store.account",
            path=conf,
            action="Change table.path, or remove table.store.account",
        )


def account_of(path: str) -> str | None:
    """Return ACCOUNT of `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH`; None without one."""
    container, _, host = urlsplit(path).netloc.partition("@")
    if not container:
        return None
    return host.partition(".")[0] or None


class TableSettings(Section):
    """The table, and how its files are written; `path` or `name` is required."""

    store: StoreSettings = StoreSettings()
    name: str | None = Field(
        default=None,
        pattern=r"^[\w-]+(\.[\w-]+){1,2}$",
        description="CATALOG.SCHEMA.TABLE or SCHEMA.TABLE in Spark's catalogs, instead of path",
    )
    written_path: str | None = Field(
        default=None,
        min_length=1,
        alias="path",
        description="Directory, or URL of a store: s3://BUCKET/PATH, "
        "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH or hdfs://HOST:PORT/PATH",
    )
    """None: a named table with a location that is not known yet."""
    writer: WriterName = Field(
        default=WriterName.SPARK,
        description="Who writes the data files. arrow: the tasks (exit 2 with the reason where "
        "that is impossible); auto: arrow where possible",
    )
    compression: Codec | None = Field(
        default=None,
        description="Compression of Parquet pages; null: zstd (arrow), the session's (spark)",
    )
    target_file_bytes: ByteSize = Field(
        default=FILE_BYTES,
        ge=2**20,
        le=INT64,
        description="Size of data files (arrow, compaction)",
    )
    """A file ends with the row group that reaches it."""
    row_group_bytes: ByteSize = Field(
        default=ROW_GROUP_BYTES,
        ge=2**16,
        le=2**30,
        description="Size of row groups in memory (arrow)",
    )
    write_buffer_bytes: ByteSize = Field(
        default=WRITE_BUFFER_BYTES,
        ge=2**16,
        le=2**32,
        description="Rows in a task's memory, of all files that it writes (arrow)",
    )
    auto_compact_min_files: int = Field(
        default=0,
        ge=0,
        le=INT64,
        description="A run compacts at so many files below half of target_file_bytes; 0: never",
    )
    partition_by: Annotated[tuple[str, ...], BeforeValidator(one_or_several)] = Field(
        default=(),
        description="Columns; event_date is built in: the UTC date of timestamp, null without one. "
        "No binary ones; in text columns an empty text reads as null. Fixed once the table exists",
    )
    on_rows_removed: OnRowsRemoved = Field(
        default=OnRowsRemoved.FAIL,
        description="Another writer deleted rows. fail: exit 5; record: record it. UPDATE, "
        "MERGE, RESTORE and overwrites always stop",
    )
    losses_path: str | None = Field(
        default=None,
        min_length=1,
        description="Path of the Delta table of lost offsets; null: PATH_losses",
    )

    @field_validator("partition_by")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        seen = set()
        for name in value:
            if name.lower() in seen:
                raise ValueError(f"names {name} more than once")
            seen.add(name.lower())
        return value

    @model_validator(mode="before")
    @classmethod
    def _path_is_validated(cls, given: Any) -> Any:
        """Validate `path` also if it is missing: then a name is required."""
        return {"path": None, **given} if isinstance(given, dict) else given

    @field_validator("written_path")
    @classmethod
    def _one_of_two(cls, path: str | None, info: ValidationInfo) -> str | None:
        if path is None and "name" in info.data and info.data["name"] is None:
            raise PydanticCustomError("missing", "Field required")
        if path is not None and info.data.get("name") is not None:
            raise ValueError(
                "is set, and so is table.name, whose path Spark's catalog provides. Remove "
                "one of them"
            )
        return path

    @field_validator("written_path", "losses_path")
    @classmethod
    def _is_a_place(cls, path: str | None, info: ValidationInfo) -> str | None:
        if not path:
            return path
        return TablePath(check_place(path), info.data.get("store", StoreSettings()))

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
        Raises LookupError for a named table before `run.spark_on_demand.placed`.
        """
        if self.written_path is None:
            raise LookupError(f"the path of the table {self.name} is not looked up yet")
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
