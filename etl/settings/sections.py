"""The sections of a conf file as frozen values.

Durations and sizes carry their unit in the name, times carry an offset, choices are enums. Nothing below `run.wiring` sees a
dictionary of strings. What the keys mean is told below each of them; `conf/clicks.yaml` is a file with all of them.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, field_validator, model_validator

from etl.model.logs import Dialect, Isolation
from etl.settings import fetch_sizes
from etl.settings.address import split_address
from etl.settings.places import check_place, place_of
from etl.settings.policies import OnDataLoss, OnLiveGroup, OnMoved, OnNoLeader, OnOwned, OnRowsRemoved, OwnershipMode, StartAt

NAME = r"^[A-Za-z0-9._-]*[A-Za-z0-9_-][A-Za-z0-9._-]*$"
"""What may name a znode and a group: not dots alone, which ZooKeeper refuses in a path."""
_CHROOT = re.compile(r"(/(?!\.{1,2}(/|$))[^/,\x00-\x20]+)*/?")
_DAY_S, _TEN_YEARS_S, _INT64 = 86_400, 10 * 366 * 86_400, 2**63 - 1
"""Clocks and requests take no number of any size; offsets and sizes are int64 (Kafka protocol, "Primitive Types")."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth(cls, value: Any) -> Any:
        """No key is true or false, but YAML reads `yes`, `no`, `on` and `off` as such, and pydantic true as 1."""
        if isinstance(value, bool):
            raise ValueError("is true or false, which this key never is; YAML takes yes, no, on and off for it: put the value in quotes")
        return value


class Timestamp(_Section):
    """A start by time: the first record at or after it."""

    timestamp: datetime

    @field_validator("timestamp", mode="before")
    @classmethod
    def _no_bare_number(cls, value: Any) -> Any:
        if isinstance(value, (int, float)) or (isinstance(value, str) and re.fullmatch(r"\s*[-+]?[\d.]+\s*", value)):
            raise ValueError("is a bare number, seconds or milliseconds nobody knows; write 2026-01-31T00:00:00+00:00")
        return value

    @field_validator("timestamp")
    @classmethod
    def _with_offset(cls, value: datetime) -> datetime:
        if value.tzinfo is None:
            raise ValueError("has no UTC offset; write it as 2026-01-31T00:00:00+00:00")
        if value.timestamp() < 0:
            raise ValueError("lies before 1970, where no record's timestamp lies")
        return value

    @property
    def ms(self) -> int:
        """Milliseconds since the epoch."""
        return round(self.timestamp.timestamp() * 1000)


Start = StartAt | Timestamp


def _start(value: Any) -> Any:
    """Decide by the form which of the two it is, so that an error speaks of that one only."""
    if isinstance(value, dict):
        return Timestamp.model_validate(value)
    if value not in tuple(StartAt):
        raise ValueError("must be earliest, latest or {timestamp: ...}")
    return StartAt(value)


class ZooKeeperSettings(_Section):
    """Where the ledger and, for clusters that have one, the brokers' registry are."""

    connect: str
    """`host:port,host:port/chroot`, as Kafka's own `zookeeper.connect`."""
    session_timeout_s: float = Field(default=10, ge=1, le=3600)
    connect_timeout_s: float = Field(default=10, gt=0, le=3600)

    @field_validator("connect")
    @classmethod
    def _hosts_and_chroot(cls, value: str) -> str:
        hosts, slash, chroot = value.partition("/")
        for address in hosts.split(","):
            split_address(address.strip())
        if not _CHROOT.fullmatch(slash + chroot):
            raise ValueError(f"{slash + chroot!r} is no path in ZooKeeper; one chroot follows the last host: host:port,host:port/chroot")
        return value


def _expressions(value: tuple[str, ...]) -> tuple[str, ...]:
    for expression in value:
        try:
            re.compile(expression)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{expression!r} is no regular expression: {error}") from error
    return value


def _one_or_several(value: Any) -> Any:
    """`allow: clicks` is a list of one."""
    return (value,) if isinstance(value, str) and value else value


class TopicFilter(_Section):
    """Which topics to read: full-match regular expressions."""

    allow: Annotated[tuple[str, ...], BeforeValidator(_one_or_several)] = Field(min_length=1)
    deny: Annotated[tuple[str, ...], BeforeValidator(_one_or_several)] = ()

    @field_validator("allow", "deny")
    @classmethod
    def _are_expressions(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _expressions(value)

    def admits(self, topic: str) -> bool:
        """Whether a topic of this name is read."""
        return any(re.fullmatch(e, topic) for e in self.allow) and not any(re.fullmatch(e, topic) for e in self.deny)

    @property
    def literal_names(self) -> tuple[str, ...]:
        """The allowed expressions that can match one name only: those topics must exist."""
        return tuple(e for e in self.allow if re.fullmatch(r"[A-Za-z0-9_-]+", e))


def _addresses(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


class SourceSettings(_Section):
    """The brokers, the topics, and what to do when they surprise us."""

    dialect: Dialect = Dialect.KAFKA
    bootstrap: Annotated[tuple[str, ...] | None, BeforeValidator(_addresses)] = None
    """`host:port,host:port`; from ZooKeeper's `/brokers/ids` unless given."""
    topics: TopicFilter
    start: Annotated[Start, PlainValidator(_start)] = StartAt.EARLIEST
    """Logs that are there at the first run and have no committed offset."""
    start_new_topics: StartAt = StartAt.EARLIEST
    """Topics that appear later; a new partition of a known topic always starts at its first record."""
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    on_moved: OnMoved = OnMoved.FAIL
    on_no_leader: OnNoLeader = OnNoLeader.FAIL
    wait_for_leader_s: float = Field(default=30, ge=0, le=_DAY_S)
    isolation: Isolation = Isolation.READ_COMMITTED
    fetch_max_bytes: int = Field(default=fetch_sizes.FETCH_MAX_BYTES, ge=1024, le=fetch_sizes.FETCH_MAX_BYTES_MOST)
    """Bytes asked for in one Fetch; doubled for a record batch that does not fit, up to `fetch_limit_bytes`."""
    fetch_limit_bytes: int = Field(default=fetch_sizes.FETCH_LIMIT_BYTES, ge=1024, le=fetch_sizes.FETCH_LIMIT_BYTES_MOST)
    max_record_bytes: int = Field(default=fetch_sizes.MAX_RECORD_BYTES, ge=1024, le=fetch_sizes.MAX_RECORD_BYTES_MOST)
    """A record of more bytes stops the run; a task's JVM takes about ten times as much memory for one."""
    timeout_s: float = Field(default=fetch_sizes.TIMEOUT_S, gt=0, le=_DAY_S)
    """Deadline of one request to a broker."""
    expiry_warning_s: float = Field(default=3600, ge=0, le=_TEN_YEARS_S)
    """Ranges whose start may expire within this time are told and read first; 0 tells of none."""
    compacted_topics: Annotated[tuple[str, ...], BeforeValidator(_one_or_several)] = ()
    """Expressions for topics whose missing offsets are compaction's, whatever the brokers tell: they refuse to tell `cleanup.policy`, or
    it was `compact` once."""

    @field_validator("dialect")
    @classmethod
    def _known_dialect(cls, value: Dialect) -> Dialect:
        if value is not Dialect.KAFKA:
            raise ValueError("jafka is not built yet; this version reads Kafka 0.11 and later (dialect: kafka)")
        return value

    @field_validator("bootstrap")
    @classmethod
    def _host_and_port(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and not value:
            raise ValueError("names no broker; null takes them from ZooKeeper")
        for address in value or ():
            split_address(address)
        return value

    @field_validator("compacted_topics")
    @classmethod
    def _are_expressions(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _expressions(value)

    def says_compacted(self, topic: str) -> bool:
        """Whether `compacted_topics` names the topic."""
        return any(re.fullmatch(expression, topic) for expression in self.compacted_topics)

    @model_validator(mode="after")
    def _limit_holds_one_fetch(self) -> SourceSettings:
        if self.fetch_limit_bytes < self.fetch_max_bytes:
            raise ValueError("fetch_limit_bytes is below fetch_max_bytes")
        return self


class TableSettings(_Section):
    """Where the rows go."""

    path: str = Field(min_length=1)
    writer: Literal["spark"] = "spark"
    partition_by: Annotated[tuple[str, ...], BeforeValidator(_one_or_several)] = ()
    """Columns of the table; `event_date` is built in: the UTC date of the record's timestamp."""
    on_rows_removed: OnRowsRemoved = OnRowsRemoved.FAIL
    losses_path: str | None = Field(default=None, min_length=1)
    """The Delta table of what was let go under `on_data_loss: skip` or `on_moved: follow`; `<path>_losses` unless given."""

    @field_validator("partition_by")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = [name for name in value if sum(name.lower() == other.lower() for other in value) > 1]
        if twice:
            raise ValueError(f"names {twice[0]} more than once")
        return value

    _are_places = field_validator("path", "losses_path")(lambda path: check_place(path) if path else path)

    @property
    def losses_at(self) -> str:
        """Where that table is."""
        return self.losses_path or f"{self.path.rstrip('/')}_losses"

    @property
    def place(self) -> str:
        """Where the table is, the same however `path` is written."""
        return place_of(self.path)


class Limits(_Section):
    """How much one run may take on, and how large one task may be."""

    max_records_per_run: int | None = Field(default=None, ge=1, le=_INT64)
    """Counted in offsets, so an upper bound of the rows."""
    max_bytes_per_run: int | None = Field(default=None, ge=1, le=_INT64)
    """By the brokers' own sizes of the logs where they tell them, else by an assumed record size."""
    target_task_bytes: int = Field(default=fetch_sizes.TARGET_TASK_BYTES, ge=1, le=_INT64)


class OwnershipSettings(_Section):
    """How the run behaves towards other consumers of the group and other drivers of the pipeline."""

    mode: OwnershipMode = OwnershipMode.CLAIM
    on_owned: OnOwned = OnOwned.FAIL
    on_live_group: OnLiveGroup = OnLiveGroup.FAIL
    """`unowned` takes what none of them owns."""
    wait_for_driver_s: float = Field(default=60, ge=0, le=_DAY_S)
    """For another driver of this pipeline, and under `on_owned: wait` for the owners of what is read."""


class ReportSettings(_Section):
    """Where each run leaves its report."""

    path: str = "reports"
    keep: int = Field(default=1000, ge=1, le=1_000_000)
    """Of this pipeline's reports the newest so many stay, each with Spark's log."""


class Settings(_Section):
    """One pipeline."""

    version: Literal[1]
    pipeline: str = Field(pattern=NAME)
    cluster: str | None = Field(default=None, pattern=NAME)
    """A name, needed where brokers have no cluster id (before 0.10.1, Jafka)."""
    group: str = Field(pattern=NAME)
    zookeeper: ZooKeeperSettings
    source: SourceSettings
    table: TableSettings
    limits: Limits = Limits()
    ownership: OwnershipSettings = OwnershipSettings()
    transform: str | None = Field(default=None, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """`package.module:function`, a function DataFrame -> DataFrame."""
    report: ReportSettings = ReportSettings()
    spark: dict[str, str] = {}
    """Plain Spark settings."""

    @field_validator("spark", mode="before")
    @classmethod
    def _text_values(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {k: _spark_text(v) for k, v in value.items()}


def _spark_text(value: Any) -> Any:
    """A number or truth as Spark writes it; a mapping or nothing stays, and is refused as no text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value
