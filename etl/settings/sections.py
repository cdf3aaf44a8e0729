"""Which sections and keys does a conf have?

The sections of a conf file as frozen values.

Durations and sizes carry their unit in the name, times carry an offset, choices are enums. Nothing
below `run.wiring` sees a dictionary of strings. What the keys mean is told below each of them;
`conf/clicks.yaml` is a file with all of them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from etl.model.partitions import Membership, OffsetsStorage
from etl.settings import fetch_sizes
from etl.settings.ownership import OwnershipSettings, refuse_other_storage
from etl.settings.places import check_place, is_url
from etl.settings.policies import MetricsPer, OnLiveGroup
from etl.settings.section import INT64, NAME, Section
from etl.settings.source import SourceSettings
from etl.settings.table import TableSettings
from etl.settings.zookeeper import ZooKeeperSettings


class Limits(Section):
    """How much one run may take on, and how large one task may be."""

    max_records_per_run: int | None = Field(default=None, ge=1, le=INT64)
    """Counted in offsets, so an upper bound of the rows."""
    max_bytes_per_run: int | None = Field(default=None, ge=1, le=INT64)
    """By the brokers' own sizes of the logs where they tell them, else by an assumed record size.
    """
    target_task_bytes: int = Field(default=fetch_sizes.TARGET_TASK_BYTES, ge=1, le=INT64)
    without_spark_below_bytes: int = Field(default=0, ge=0, le=INT64)
    """Plans below this are read by processes of the driver's machine, where tasks write the files;
    0: none.
    """


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
    """A group that Kafka's brokers keep: positions are written into it for lag monitors, and never
    read.
    """
    zookeeper: ZooKeeperSettings
    source: SourceSettings
    table: TableSettings
    limits: Limits = Limits()
    ownership: OwnershipSettings = OwnershipSettings()
    offsets: OffsetsSettings = Field(default=OffsetsSettings(), validate_default=True)
    transform: str | None = Field(default=None, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """`package.module:function`, a function DataFrame -> DataFrame."""
    arrow_transform: str | None = Field(default=None, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """`package.module:function`, a function pyarrow.RecordBatch -> pyarrow.RecordBatch, under
    either writer; not beside `transform`.
    """
    report: ReportSettings = ReportSettings()
    metrics_path: str | None = Field(default=None, min_length=1)
    """A file that ends in `.prom`, or a folder that gets one of `name_in_files`; None: no metrics
    are written.
    """
    metrics_per: MetricsPer = MetricsPer.TOPIC
    lineage_namespace: str | None = Field(default=None, min_length=1)
    """The namespace of the pipeline's job in OpenLineage; None: nobody is told of runs."""
    spark: dict[str, str] = {}
    """Plain Spark settings."""

    @field_validator("mirror_group")
    @classmethod
    def _another_group(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and value == info.data.get("group"):
            raise ValueError(
                "is the pipeline's own group: consumers of that name would begin where it is written to; name another one"
            )
        return value

    @field_validator("offsets")
    @classmethod
    def _where_the_group_has_them(
        cls, value: OffsetsSettings, info: ValidationInfo
    ) -> OffsetsSettings:
        ownership = info.data.get("ownership")
        source = info.data.get("source")
        if ownership and source:
            refuse_other_storage(value.storage, ownership.membership_of(source))
        joins = (
            ownership is not None
            and source is not None
            and ownership.membership_of(source) is not None
        )
        if (
            value.storage is not OffsetsStorage.ZOOKEEPER
            and not joins
            and ownership
            and ownership.on_live_group is OnLiveGroup.UNOWNED
        ):
            raise ValueError(
                f"storage {value.storage.value} does not go with ownership.on_live_group: unowned: "
                "while a group has members in Kafka its coordinator takes no offsets of anybody else"
            )
        return value

    @field_validator("arrow_transform")
    @classmethod
    def _the_only_transform(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("transform") is not None:
            raise ValueError(
                "is a second one beside transform: name one of the two, and null for the other"
            )
        return value

    @field_validator("metrics_path")
    @classmethod
    def _is_a_folder_of_this_machine(cls, value: str | None) -> str | None:
        if value is not None and (is_url(check_place(value)) or value.startswith("file:")):
            raise ValueError(
                "it is a file or folder of this machine, which the node exporter of Prometheus reads"
            )
        return value

    @field_validator("ownership")
    @classmethod
    def _joins_what_the_source_has(
        cls, value: OwnershipSettings, info: ValidationInfo
    ) -> OwnershipSettings:
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
        """What files about the pipeline are called in a folder that several share:
        `GROUP+PIPELINE`; no name has a plus.
        """
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
    """A number or a boolean as Spark writes it; anything else stays as it is, and is refused where
    it is no text.
    """
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value
