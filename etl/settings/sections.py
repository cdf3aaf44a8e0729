"""The sections of a conf file as frozen values.

Durations and sizes carry their unit in the name, times carry an offset, choices are enums. Nothing below `run.wiring` sees a
dictionary of strings. What the keys mean is told below each of them; `conf/clicks.yaml` is a file with all of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from etl.model.committed import OffsetsStorage
from etl.model.data_files import FILE_BYTES, HELD_BYTES, ROW_GROUP_BYTES, Codec
from etl.model.membership import Membership
from etl.settings import fetch_sizes
from etl.settings.address import split_connect
from etl.settings.places import check_place, is_url, place_of
from etl.settings.ownership import OwnershipSettings, refuse_other_storage
from etl.settings.policies import MetricsPer, OnLiveGroup, OnRowsRemoved, WriterName
from etl.settings.section import INT64, NAME, Section, one_or_several
from etl.settings.source import SourceSettings
from etl.settings.store import StoreSettings, TablePath


class ZooKeeperSettings(Section):
    """Where the ledger and, for clusters that have one, the brokers' registry are."""

    connect: str
    """`host:port,host:port/chroot`, as Kafka's own `zookeeper.connect`."""
    session_timeout_s: float = Field(default=10, ge=1, le=3600)
    connect_timeout_s: float = Field(default=10, gt=0, le=3600)

    @field_validator("connect")
    @classmethod
    def _hosts_and_chroot(cls, value: str) -> str:
        split_connect(value)
        return value


class TableSettings(Section):
    """Where the rows go."""

    store: StoreSettings = StoreSettings()
    path: str = Field(min_length=1)
    """It carries `store` along (`TablePath`), and so does `losses_path`."""
    writer: WriterName = WriterName.SPARK
    """`auto`: by the tasks themselves where that can be (`decisions.writers`), else by Spark."""
    codec: Codec | None = None
    """None: zstd for files that tasks write, and what the session says for Spark's."""
    target_file_bytes: int = Field(default=FILE_BYTES, ge=2**20, le=INT64)
    """Of files that tasks write: one ends behind the row group that takes it there. And of those that small ones are put together in."""
    row_group_bytes: int = Field(default=ROW_GROUP_BYTES, ge=2**16, le=2**30)
    """Of such files: rows in memory that become one."""
    held_bytes: int = Field(default=HELD_BYTES, ge=2**16, le=2**32)
    """Rows of such files that a task has in memory, of all its files."""
    compact_at_small_files: int = Field(default=0, ge=0, le=INT64)
    """A run that leaves so many behind puts them together; 0: none does."""
    partition_by: Annotated[tuple[str, ...], BeforeValidator(one_or_several)] = ()
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

    @field_validator("path", "losses_path")
    @classmethod
    def _is_a_place(cls, path: str | None, info: ValidationInfo) -> str | None:
        return TablePath(check_place(path), info.data.get("store", StoreSettings())) if path else path

    def placed(self, path: str, losses_path: str | None) -> TableSettings:
        """The same with other paths, which lie in the same store."""
        return self.model_copy(update={
            "path": TablePath(path, self.store), "losses_path": TablePath(losses_path, self.store) if losses_path else None})

    @property
    def losses_at(self) -> str:
        """Where that table is."""
        return self.losses_path or TablePath(f"{self.path.rstrip('/')}_losses", self.store)

    @property
    def place(self) -> str:
        """Where the table is, the same however `path` is written."""
        return place_of(self.path)


class Limits(Section):
    """How much one run may take on, and how large one task may be."""

    max_records_per_run: int | None = Field(default=None, ge=1, le=INT64)
    """Counted in offsets, so an upper bound of the rows."""
    max_bytes_per_run: int | None = Field(default=None, ge=1, le=INT64)
    """By the brokers' own sizes of the logs where they tell them, else by an assumed record size."""
    target_task_bytes: int = Field(default=fetch_sizes.TARGET_TASK_BYTES, ge=1, le=INT64)
    without_spark_below_bytes: int = Field(default=0, ge=0, le=INT64)
    """Plans below this are read by processes of the driver's machine, where tasks write the files; 0: none."""


class OffsetsSettings(Section):
    """Where the group's offsets are."""

    storage: OffsetsStorage = OffsetsStorage.ZOOKEEPER
    """`kafka` and `dual` take brokers of 0.8.2 or later."""


class ReportSettings(Section):
    """Where each run leaves its report."""

    path: str = "reports"
    keep: int = Field(default=1000, ge=1, le=1_000_000)
    """Of this pipeline's reports the newest so many stay, each with Spark's log."""


class Settings(Section):
    """One pipeline."""

    version: Literal[1]
    defaults: str | None = Field(default=None, min_length=1)
    """The file whose keys hold where the conf has none, seen from the conf's folder."""
    pipeline: str = Field(pattern=NAME)
    cluster: str | None = Field(default=None, pattern=NAME)
    """A name, needed where brokers have no cluster id (before 0.10.1, Jafka)."""
    group: str = Field(pattern=NAME)
    mirror_group: str | None = Field(default=None, pattern=NAME)
    """A group that Kafka's brokers keep: positions are written into it for lag monitors, and never read."""
    zookeeper: ZooKeeperSettings
    source: SourceSettings
    table: TableSettings
    limits: Limits = Limits()
    ownership: OwnershipSettings = OwnershipSettings()
    offsets: OffsetsSettings = Field(default=OffsetsSettings(), validate_default=True)
    transform: str | None = Field(default=None, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """`package.module:function`, a function DataFrame -> DataFrame."""
    arrow_transform: str | None = Field(default=None, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """`package.module:function`, a function pyarrow.RecordBatch -> pyarrow.RecordBatch, under either writer; not beside `transform`."""
    report: ReportSettings = ReportSettings()
    metrics_path: str | None = Field(default=None, min_length=1)
    """A file that ends in `.prom`, or a folder that gets one of `name_in_files`; None: no metrics are written."""
    metrics_per: MetricsPer = MetricsPer.TOPIC
    lineage_namespace: str | None = Field(default=None, min_length=1)
    """The namespace of the pipeline's job in OpenLineage; None: nobody is told of runs."""
    spark: dict[str, str] = {}
    """Plain Spark settings."""

    @field_validator("mirror_group")
    @classmethod
    def _another_group(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and value == info.data.get("group"):
            raise ValueError("is the pipeline's own group: consumers of that name would begin where it is written to; name another one")
        return value

    @field_validator("offsets")
    @classmethod
    def _where_the_group_has_them(cls, value: OffsetsSettings, info: ValidationInfo) -> OffsetsSettings:
        ownership = info.data.get("ownership")
        source = info.data.get("source")
        if ownership and source:
            refuse_other_storage(value.storage, ownership.membership_of(source))
        joins = ownership is not None and source is not None and ownership.membership_of(source) is not None
        if value.storage is not OffsetsStorage.ZOOKEEPER and not joins and ownership and ownership.on_live_group is OnLiveGroup.UNOWNED:
            raise ValueError(f"storage {value.storage.value} does not go with ownership.on_live_group: unowned: "
                             "while a group has members in Kafka its coordinator takes no offsets of anybody else")
        return value

    @field_validator("arrow_transform")
    @classmethod
    def _the_only_transform(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("transform") is not None:
            raise ValueError("is a second one beside transform: name one of the two, and null for the other")
        return value

    @field_validator("metrics_path")
    @classmethod
    def _is_a_folder_of_this_machine(cls, value: str | None) -> str | None:
        if value is not None and (is_url(check_place(value)) or value.startswith("file:")):
            raise ValueError("it is a file or folder of this machine, which the node exporter of Prometheus reads")
        return value

    @field_validator("ownership")
    @classmethod
    def _joins_what_the_source_has(cls, value: OwnershipSettings, info: ValidationInfo) -> OwnershipSettings:
        source = info.data.get("source")
        if source is not None:
            value.refuse_for(source)
        return value

    @property
    def membership(self) -> Membership | None:
        """What runs by this conf are members of; None: of nothing."""
        return self.ownership.membership_of(self.source)

    @property
    def name_in_files(self) -> str:
        """What files about the pipeline are called in a folder that several share: `GROUP+PIPELINE`; no name has a plus."""
        return name_in_files(self.group, self.pipeline)

    @property
    def either_transform(self) -> str | None:
        """`transform` or `arrow_transform`."""
        return self.transform or self.arrow_transform

    @property
    def metrics_file(self) -> str | None:
        """The file of the metrics."""
        if self.metrics_path is None or self.metrics_path.endswith(".prom"):
            return self.metrics_path
        return f"{self.metrics_path.rstrip('/')}/{self.name_in_files}.prom"

    @field_validator("spark", mode="before")
    @classmethod
    def _text_values(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {k: _spark_text(v) for k, v in value.items()}


def name_in_files(group: str, pipeline: str) -> str:
    """See `Settings.name_in_files`."""
    return f"{group}+{pipeline}"


def _spark_text(value: Any) -> Any:
    """A number or a boolean as Spark writes it; anything else stays as it is, and is refused where it is no text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value
