"""Which sections and keys does a conf have?

Durations and sizes carry their unit in the name, times carry a UTC offset, choices are enums. Each
key is documented at its field; `conf/clicks.yaml` shows them in a conf.

Not here: `source` (etl/settings/source.py), `table` (etl/settings/table.py), security
(etl/settings/connection_security.py).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from etl.model.partitions import BrokerFamily, GroupProtocol, Membership, OffsetsStorage
from etl.settings import choices
from etl.settings.choices import (
    CommitWhen,
    GroupStrategy,
    LeaveAfter,
    MetricsPer,
    OnActiveMembers,
    OnOwned,
    OwnershipMode,
    check_place,
    is_url,
)
from etl.settings.connection_security import ZooKeeperSettings
from etl.settings.secrets import DAY_S, INT64, NAME, Section, one_or_several
from etl.settings.source import SourceSettings
from etl.settings.table import TableSettings

_OF_ZOOKEEPER = (
    GroupStrategy.RANGE,
    GroupStrategy.ROUND_ROBIN,
    GroupStrategy.ROUND_ROBIN_0_10,
    GroupStrategy.ROUND_ROBIN_1_0,
)
_OF_COORDINATOR = (
    GroupStrategy.RANGE,
    GroupStrategy.ROUND_ROBIN,
    GroupStrategy.STICKY,
    GroupStrategy.COOPERATIVE_STICKY,
)
_NOT_OF_ZOOKEEPER = ("protocol", "session_timeout_s", "rebalance_timeout_s")
_NOT_OF_COORDINATOR = ("threads", "backoff_s")


class OwnershipSettings(Section):
    """The keys. Those from `membership` on are of `mode: join`."""

    mode: OwnershipMode = OwnershipMode.CLAIM
    on_owned: OnOwned = OnOwned.FAIL
    on_active_members: OnActiveMembers = OnActiveMembers.FAIL
    """`unowned` takes what none of them owns."""
    lock_timeout_s: float = Field(default=60, ge=0, le=DAY_S)
    """Time to wait for another driver, and with `on_owned: wait` for owners."""
    membership: Membership | None = None
    """Which of the two groups of this name; None: ZooKeeper's where the brokers are found there,
    else the coordinator's.
    """
    hand_over: CommitWhen = CommitWhen.PLAN
    """`after_append` is for groups with our members only: what another member reads meanwhile is
    read by both.
    """
    strategy: Annotated[tuple[GroupStrategy, ...], BeforeValidator(one_or_several)] = Field(
        default=(GroupStrategy.RANGE,), min_length=1
    )
    """How the group's consumers divide what they read; of a coordinator's the one that all have in
    common, the first one preferred.
    """
    protocol: GroupProtocol = GroupProtocol.CLASSIC
    """By which requests a coordinator is spoken to."""
    threads: int = Field(default=1, ge=1, le=10_000)
    """How many threads of a group in ZooKeeper a run counts for."""
    member_id: str | None = Field(default=None, pattern=NAME)
    """Name as a member; in Kafka a static member (group.instance.id). None: a name of the process.
    """
    join_timeout_s: float = Field(default=60, gt=0, le=DAY_S)
    backoff_s: float = Field(default=2, gt=0, le=DAY_S)
    """Time between tries to claim an assignment in ZooKeeper."""
    session_timeout_s: float = Field(default=45, ge=1, le=3600)
    """Time after which a coordinator removes a silent member."""
    rebalance_timeout_s: float = Field(default=60, ge=1, le=3600)
    """Time that a coordinator waits for a run to rejoin, or to release revoked partitions."""
    stay: LeaveAfter = LeaveAfter.RUN

    def membership_of(self, source: SourceSettings) -> Membership | None:
        """Return the kind of group that runs join; None: none."""
        if self.mode is not OwnershipMode.JOIN:
            return None
        return self.membership or (
            Membership.ZOOKEEPER if source.bootstrap is None else Membership.COORDINATOR
        )

    def is_said(self, name: str) -> bool:
        """True if the key differs from its default."""
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    def reject_for(self, source: SourceSettings) -> None:
        """Reject values that this source does not support, and keys without effect. Raises
        ValueError.
        """
        membership = self.membership_of(source)
        self._reject_commit_when(membership)
        if membership is Membership.ZOOKEEPER:
            self._reject_unsupported_in_zookeeper(source)
        elif membership is Membership.COORDINATOR:
            self._reject_unsupported_in_kafka(source)

    def _reject_commit_when(self, membership: Membership | None) -> None:
        if self.hand_over is CommitWhen.PLAN:
            return
        if membership is None:
            raise ValueError(
                f"hand_over: {self.hand_over.value} means nothing under mode: {self.mode.value}, whose runs are no members "
                "and move offsets behind the append anyhow: leave it out, or mode: join"
            )
        if self.stay is LeaveAfter.SHARE:
            raise ValueError(
                f"stay: share does not go with hand_over: {self.hand_over.value}: who has left commits nothing any more: "
                "stay: run"
            )

    def _reject_unsupported_in_zookeeper(self, source: SourceSettings) -> None:
        if source.bootstrap is not None:
            raise ValueError(
                "membership: zookeeper divides what is registered in ZooKeeper among the group's members: leave "
                "source.bootstrap out, or join the group that the brokers keep with membership: coordinator"
            )
        self._reject_meaningless(
            _NOT_OF_ZOOKEEPER,
            Membership.ZOOKEEPER,
            "the session is that of zookeeper.session_timeout_s",
        )
        if len(self.strategy) > 1:
            raise ValueError(
                "strategy: members in ZooKeeper divide by one strategy, the same for all of them: name that one"
            )
        self._reject_strategies(_OF_ZOOKEEPER, Membership.ZOOKEEPER)
        if source.dialect is BrokerFamily.JAFKA and self.strategy != (GroupStrategy.RANGE,):
            named = self.strategy[0].value
            raise ValueError(
                f"strategy: {named} does not go with source.dialect: jafka, whose consumers divide by range"
            )

    def _reject_unsupported_in_kafka(self, source: SourceSettings) -> None:
        if source.dialect is BrokerFamily.JAFKA:
            raise ValueError(
                "membership: coordinator does not go with source.dialect: jafka, whose brokers keep no groups"
            )
        self._reject_meaningless(
            _NOT_OF_COORDINATOR,
            Membership.COORDINATOR,
            "the coordinator gives each member one share",
        )
        self._reject_strategies(_OF_COORDINATOR, Membership.COORDINATOR)
        if len(set(self.strategy)) < len(self.strategy):
            raise ValueError("strategy: names one of them more than once")
        if self.protocol is GroupProtocol.CONSUMER and self.is_said("strategy"):
            raise ValueError(
                "strategy means nothing under protocol: consumer, by which the coordinator divides as it likes: leave it out"
            )

    def _reject_strategies(self, known: tuple[GroupStrategy, ...], membership: Membership) -> None:
        for one in self.strategy:
            if one not in known:
                raise ValueError(
                    f"strategy: {one.value} is none of membership: {membership.value}, which has "
                    f"{', '.join(each.value for each in known)}"
                )

    def _reject_meaningless(self, names: tuple[str, ...], membership: Membership, why: str) -> None:
        for name in names:
            if self.is_said(name):
                raise ValueError(
                    f"{name} means nothing under membership: {membership.value}: {why}; leave it out"
                )


def reject_unsupported_storage(storage: OffsetsStorage, membership: Membership | None) -> None:
    """Reject an offset storage that cannot be committed with a member's plan, or by its membership.
    Raises ValueError.
    """
    if membership is Membership.ZOOKEEPER and storage is not OffsetsStorage.ZOOKEEPER:
        raise ValueError(
            f"storage: {storage.value} does not go with ownership.mode: join among members in ZooKeeper: "
            "their owner nodes fence no commit in Kafka, so that plan and offsets could not move in one step"
        )
    if membership is Membership.COORDINATOR and storage is OffsetsStorage.ZOOKEEPER:
        raise ValueError(
            "storage: zookeeper does not go with ownership.mode: join among members in Kafka, who keep the group's offsets "
            "there: storage: kafka"
        )
    if membership is Membership.COORDINATOR and storage is OffsetsStorage.DUAL:
        raise ValueError(
            "storage: dual does not go with ownership.mode: join among members in Kafka: the larger of both would count, "
            "and no membership fences the one in ZooKeeper; storage: kafka"
        )


class Limits(Section):
    """How much one run may take on, and how large one task may be."""

    max_records_per_plan: int | None = Field(default=None, ge=1, le=INT64)
    """Counted in offsets, so an upper bound of the rows."""
    max_bytes_per_plan: int | None = Field(default=None, ge=1, le=INT64)
    """By sizes that brokers report, else by an assumed record size."""
    target_task_bytes: int = Field(default=choices.TARGET_TASK_BYTES, ge=1, le=INT64)
    local_below_bytes: int = Field(default=0, ge=0, le=INT64)
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
    """Number of this pipeline's newest reports to keep, each with Spark's log."""


class Settings(Section):
    """One pipeline."""

    version: Literal[1]
    defaults: str | None = Field(default=None, min_length=1)
    """File with defaults for this conf, relative to the conf."""
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
    """`package.module:function` from pyarrow.RecordBatch to pyarrow.RecordBatch, for either writer;
    excludes `transform`.
    """
    report: ReportSettings = ReportSettings()
    metrics_path: str | None = Field(default=None, min_length=1)
    """A file that ends in `.prom`, or a folder that gets one of `name_in_files`; None: no metrics
    are written.
    """
    metrics_per: MetricsPer = MetricsPer.TOPIC
    lineage_namespace: str | None = Field(default=None, min_length=1)
    """Namespace of the pipeline's job in OpenLineage; None: no events."""
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
            reject_unsupported_storage(value.storage, ownership.membership_of(source))
        joins = (
            ownership is not None
            and source is not None
            and ownership.membership_of(source) is not None
        )
        if (
            value.storage is not OffsetsStorage.ZOOKEEPER
            and not joins
            and ownership
            and ownership.on_active_members is OnActiveMembers.UNOWNED
        ):
            raise ValueError(
                f"storage {value.storage.value} does not go with ownership.on_active_members: unowned: "
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
            value.reject_for(source)
        return value

    @property
    def membership(self) -> Membership | None:
        """Return the kind of group that runs by this conf join; None: none."""
        return self.ownership.membership_of(self.source)

    @property
    def name_in_files(self) -> str:
        """Return the pipeline's name for files in shared directories: `GROUP+PIPELINE`; names
        contain no plus.
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
