"""Which sections and keys does a conf have?

Durations and sizes carry their unit in the name, times carry a UTC offset, choices are enums. Each
key is described once, by its field's `description` (of a section: the docstring of its class). The
JSON Schema, error texts and docs/SETTINGS.md are derived from it (etl/settings/schema.py). What a
description does not say because only a maintainer needs it is a docstring under the field.

Not here: `source` (etl/settings/source.py), `table` (etl/settings/table.py), security
(etl/settings/connection_security.py).
"""

# Without `from __future__ import annotations`: pydantic would compile each annotation at import.

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, field_validator

from etl.model.partitions import BrokerFamily, GroupProtocol, Membership, OffsetsStorage
from etl.model.security import LocalFile, SecretRef
from etl.settings import choices
from etl.settings.choices import (
    CommitWhen,
    GroupStrategy,
    LeaveAfter,
    OnActiveMembers,
    OnOffsetChanged,
    OnOwned,
    OwnershipMode,
    check_place,
    is_url,
)
from etl.settings.connection_security import ZooKeeperSettings
from etl.settings.secrets import (
    DAY_S,
    INT64,
    NAME,
    PIPELINE_NAME,
    PRIVATE_KEYS,
    SECRET_KEYS,
    ByteSize,
    PositiveByteSize,
    Section,
    one_or_several,
)
from etl.settings.source import SourceSettings
from etl.settings.table import TableSettings

_ZOOKEEPER_STRATEGIES = (
    GroupStrategy.RANGE,
    GroupStrategy.ROUND_ROBIN,
    GroupStrategy.ROUND_ROBIN_0_10,
    GroupStrategy.ROUND_ROBIN_1_0,
)
_KAFKA_STRATEGIES = (
    GroupStrategy.RANGE,
    GroupStrategy.ROUND_ROBIN,
    GroupStrategy.STICKY,
    GroupStrategy.COOPERATIVE_STICKY,
)
_FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
"""`package.module:function`."""
_KAFKA_ONLY = ("protocol", "session_timeout_s", "rebalance_timeout_s")
_ZOOKEEPER_ONLY = ("num_streams",)


class JoinSettings(Section):
    """How a run is a member of its group, with `group.mode: join`."""

    commit_when: CommitWhen = Field(
        default=CommitWhen.BEFORE_READ,
        description="before_read: commit a plan's offsets with the stored plan; after_append: "
        "after the append, for groups of pipelines only (until then other members may read the "
        "same records)",
    )
    leave_after: LeaveAfter = Field(
        default=LeaveAfter.RUN,
        description="Leave the group at the end of the run, or after the offset commit",
    )
    assignment_strategy: Annotated[tuple[GroupStrategy, ...], BeforeValidator(one_or_several)] = (
        Field(
            default=(GroupStrategy.RANGE,),
            min_length=1,
            description="As the group's consumers. ZooKeeper: range, or roundrobin of Kafka 0.8.2 "
            "and 0.9, of 0.10 and 0.11 (-0.10), of 1.0 and 1.1 (-1.0); Jafka: range. Kafka: range, "
            "roundrobin, sticky or cooperative-sticky, or a list by preference",
        )
    )
    protocol: GroupProtocol = Field(
        default=GroupProtocol.CLASSIC,
        description="Kafka's group.protocol. classic: 0.9 to 4.x; consumer: 4.0 or later, where "
        "the brokers assign",
    )
    instance_id: str | None = Field(
        default=None,
        pattern=NAME,
        description="Name as a member, for one run at a time; in Kafka a static member "
        "(group.instance.id, 2.3 or later). null: a name of the process",
    )
    num_streams: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="Consumer threads that a run counts for, in ZooKeeper's group",
    )
    join_timeout_s: float = Field(
        default=60,
        gt=0,
        le=DAY_S,
        description="Time to get an assignment, else exit 4; longer than others need to rejoin: 8 "
        "s in Kafka 0.8, 40 s in Jafka, max.poll.interval.ms in Kafka's groups",
    )
    session_timeout_s: float = Field(
        default=45,
        ge=1,
        le=3600,
        description="Kafka's session.timeout.ms, with protocol: classic; by default 30 with "
        "brokers before 0.10.1",
    )
    rebalance_timeout_s: float = Field(
        default=60,
        ge=1,
        le=3600,
        description="Time that Kafka's coordinator waits for a run to rejoin, or to release "
        "revoked partitions",
    )

    def differs_from_default(self, name: str) -> bool:
        """True if the key differs from its default."""
        return bool(getattr(self, name) != type(self).model_fields[name].default)


class GroupSettings(Section):
    """The consumer group: its offsets, its other consumers, and membership."""

    id: str = Field(
        pattern=NAME,
        description="Consumer group: letters, digits, `.`, `_` and `-`, and not dots alone",
    )
    offsets_storage: OffsetsStorage = Field(
        default=OffsetsStorage.ZOOKEEPER,
        description="Where the group's offsets are, and which group is joined (mode: join). kafka: "
        "brokers of 0.8.2 or later; dual: both, the larger one counts. Change it while no plan is "
        "unfinished",
    )
    on_offset_changed: OnOffsetChanged = Field(
        default=OnOffsetChanged.FAIL,
        description="Another client committed. fail: exit 5; follow: if it is ahead, continue "
        "there and record the offsets between as lost",
    )
    mode: OwnershipMode = Field(
        default=OwnershipMode.CLAIM,
        description="claim: own partitions in ZooKeeper during a run; observe: only check owners; "
        "join: be a member of the group",
    )
    on_owned: OnOwned = Field(
        default=OnOwned.FAIL,
        description="Another consumer owns a partition. fail: exit 4; wait: "
        "ledger.lock_timeout_s, then exit 4; skip: leave it out",
    )
    on_active_members: OnActiveMembers = Field(
        default=OnActiveMembers.FAIL,
        description="The group has active members. fail: exit 4; skip: leave out what they own",
    )
    mirror_group: str | None = Field(
        default=None,
        pattern=NAME,
        description="Another group in Kafka (0.8.2 or later) to commit to, for lag monitors; never "
        "read",
    )
    join: JoinSettings = JoinSettings()

    @field_validator("mirror_group")
    @classmethod
    def _another_group(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and value == info.data.get("id"):
            raise ValueError(
                "is the pipeline's own group, whose consumers would start at the mirrored offsets; "
                "name another group"
            )
        return value

    @property
    def membership(self) -> Membership | None:
        """Return the kind of group that runs join; None: none."""
        if self.mode is not OwnershipMode.JOIN:
            return None
        if self.offsets_storage is OffsetsStorage.ZOOKEEPER:
            return Membership.ZOOKEEPER
        return Membership.COORDINATOR

    def reject_unsupported(self, source: SourceSettings) -> None:
        """Reject values that this source does not support, and keys without effect. Raises
        ValueError, which begins with the key.
        """
        self._reject_commit_when()
        if self.membership is Membership.ZOOKEEPER:
            self._reject_unsupported_in_zookeeper(source)
        elif self.membership is Membership.COORDINATOR:
            self._reject_unsupported_in_kafka(source)
        elif (
            self.offsets_storage is not OffsetsStorage.ZOOKEEPER
            and self.on_active_members is OnActiveMembers.SKIP
        ):
            raise ValueError(
                f"offsets_storage: {self.offsets_storage.value} does not go with "
                f"on_active_members: "
                "skip: while a group has members in Kafka, its coordinator accepts offsets from "
                "members only. Set group.on_active_members: fail"
            )

    def _reject_commit_when(self) -> None:
        if self.join.commit_when is CommitWhen.BEFORE_READ:
            return
        value = self.join.commit_when.value
        if self.membership is None:
            raise ValueError(
                f"join.commit_when: {value} has no effect with mode: {self.mode.value}, "
                f"which always "
                "commits after the append. Remove the key, or set group.mode: join"
            )
        if self.join.leave_after is LeaveAfter.COMMIT:
            raise ValueError(
                f"join.leave_after: commit does not go with join.commit_when: {value}: a "
                f"member that "
                "left cannot commit. Set group.join.leave_after: run"
            )

    def _reject_unsupported_in_zookeeper(self, source: SourceSettings) -> None:
        if source.bootstrap_servers is not None:
            raise ValueError(
                "offsets_storage: zookeeper with mode: join divides the partitions that are "
                "registered in ZooKeeper. Remove source.bootstrap_servers, or join Kafka's group "
                "with group.offsets_storage: kafka"
            )
        self._reject_without_effect(
            _KAFKA_ONLY, "ZooKeeper's group uses zookeeper.session_timeout_s"
        )
        strategies = self.join.assignment_strategy
        if len(strategies) > 1:
            raise ValueError(
                "join.assignment_strategy: members in ZooKeeper all use one strategy. Name one"
            )
        self._reject_strategies(_ZOOKEEPER_STRATEGIES)
        if source.broker_type is BrokerFamily.JAFKA and strategies != (GroupStrategy.RANGE,):
            raise ValueError(
                f"join.assignment_strategy: {strategies[0].value} does not go with "
                "source.broker_type: jafka, whose consumers use range"
            )

    def _reject_unsupported_in_kafka(self, source: SourceSettings) -> None:
        if source.broker_type is BrokerFamily.JAFKA:
            raise ValueError(
                f"offsets_storage: {self.offsets_storage.value} does not go with "
                "source.broker_type: jafka, whose brokers keep no groups"
            )
        if self.offsets_storage is OffsetsStorage.DUAL:
            raise ValueError(
                "offsets_storage: dual does not go with mode: join: the larger offset would count, "
                "and no membership fences the one in ZooKeeper. Set group.offsets_storage: kafka"
            )
        self._reject_without_effect(
            _ZOOKEEPER_ONLY, "Kafka's group gives each member one assignment"
        )
        self._reject_strategies(_KAFKA_STRATEGIES)
        strategies = self.join.assignment_strategy
        if len(set(strategies)) < len(strategies):
            raise ValueError("join.assignment_strategy: names a strategy more than once")
        if self.join.protocol is GroupProtocol.CONSUMER and self.join.differs_from_default(
            "assignment_strategy"
        ):
            raise ValueError(
                "join.assignment_strategy has no effect with protocol: consumer, where the "
                "coordinator assigns. Remove the key"
            )

    def _reject_strategies(self, known: tuple[GroupStrategy, ...]) -> None:
        for strategy in self.join.assignment_strategy:
            if strategy not in known:
                names = ", ".join(one.value for one in known)
                raise ValueError(
                    f"join.assignment_strategy: {strategy.value} is not supported with "
                    f"offsets_storage: {self.offsets_storage.value}, which supports {names}"
                )

    def _reject_without_effect(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            if self.join.differs_from_default(name):
                raise ValueError(
                    f"join.{name} has no effect with offsets_storage: "
                    f"{self.offsets_storage.value}: {why}. Remove the key"
                )


class LimitsSettings(Section):
    """How much one plan may read, and how large one task may be."""

    max_records_per_plan: int | None = Field(
        default=None,
        ge=1,
        le=INT64,
        description="Offsets per plan, an upper bound of its rows; null: no limit",
    )
    max_bytes_per_plan: PositiveByteSize | None = Field(
        default=None,
        description="Bytes per plan, as brokers report them (where they do not, 1,024 per "
        "offset); null: no limit",
    )
    target_task_bytes: ByteSize = Field(
        default=choices.TARGET_TASK_BYTES,
        ge=1,
        le=INT64,
        description="Bytes per task; a larger partition is read by several tasks",
    )
    local_below_bytes: ByteSize = Field(
        default=0,
        ge=0,
        le=INT64,
        description="Run smaller plans without Spark (writer arrow or auto); 0: never. For runs "
        "every few minutes: 64 MiB",
    )


class TransformSettings(Section):
    """Your function on the rows."""

    dataframe: str | None = Field(
        default=None,
        pattern=_FUNCTION,
        description="package.module:function from DataFrame to DataFrame, which keeps topic, "
        "partition and offset",
    )
    record_batch: str | None = Field(
        default=None,
        pattern=_FUNCTION,
        description="package.module:function from pyarrow.RecordBatch to RecordBatch, in the "
        "tasks, with either writer, instead of dataframe",
    )
    may_drop: bool = Field(
        default=False,
        description="The transform may leave out records: verify proves what it can, exit 0",
    )
    _folder: str | None = PrivateAttr(default=None)

    @field_validator("record_batch")
    @classmethod
    def _the_only_transform(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("dataframe") is not None:
            raise ValueError(
                "excludes transform.dataframe: set one of the two, and null for the other"
            )
        return value

    @property
    def function(self) -> str | None:
        """Return the function of either kind."""
        return self.dataframe or self.record_batch

    @property
    def key(self) -> str:
        """Return the key that names the function."""
        return "transform.dataframe" if self.dataframe else "transform.record_batch"

    @property
    def folder(self) -> str | None:
        """Return the directory where its module is looked for first: that of the file that sets the
        function; None: settings that no file has.
        """
        return self._folder

    def beside(self, folder: str) -> Self:
        """Return the same function, of a file in `folder`."""
        placed = self.model_copy()
        placed._folder = folder
        return placed


class LedgerSettings(Section):
    """The ledger of plans in ZooKeeper."""

    lock_timeout_s: float = Field(
        default=60,
        ge=0,
        le=DAY_S,
        description="Time to wait for another driver of this pipeline, and with group.on_owned: "
        "wait for owners",
    )


class ReportSettings(Section):
    """Where each run writes its report."""

    path: str = Field(default="reports", description="Directory of run reports")
    keep: int = Field(
        default=1000,
        ge=1,
        le=1_000_000,
        description="Newest reports of this pipeline to keep",
    )


class MetricsSettings(Section):
    """Prometheus metrics of runs."""

    path: str | None = Field(
        default=None,
        min_length=1,
        description="Local textfile (.prom) for Prometheus' node exporter, or its directory; null: "
        "no metrics",
    )
    per_partition: bool = Field(
        default=False, description="Lag series per partition instead of per topic"
    )

    @field_validator("path")
    @classmethod
    def _is_local(cls, value: str | None) -> str | None:
        if value is not None and (is_url(check_place(value)) or value.startswith("file:")):
            raise ValueError(
                "must be a local file or directory, which Prometheus' node exporter reads"
            )
        return value


class OpenLineageSettings(Section):
    """OpenLineage events of runs."""

    namespace: str | None = Field(
        default=None,
        min_length=1,
        description="Namespace of the pipeline's job in OpenLineage events (extra openlineage; "
        "OPENLINEAGE_URL names the server); null: no events",
    )


class Settings(Section):
    """One pipeline."""

    pipeline: str = Field(
        pattern=PIPELINE_NAME,
        description="Name in the ledger and in the table's commits: letters, digits, `.`, `_` and "
        "`-`, the first one a letter or digit",
    )
    defaults: str | None = Field(
        default=None,
        min_length=1,
        description="Path of a file whose keys apply where this conf has none",
    )
    source: SourceSettings
    table: TableSettings
    transform: TransformSettings = TransformSettings()
    limits: LimitsSettings = LimitsSettings()
    group: GroupSettings
    zookeeper: ZooKeeperSettings
    ledger: LedgerSettings = LedgerSettings()
    report: ReportSettings = ReportSettings()
    metrics: MetricsSettings = MetricsSettings()
    openlineage: OpenLineageSettings = OpenLineageSettings()
    spark: dict[str, str] = Field(
        default={}, description='Spark properties: {spark.master: "local[4]"}'
    )

    @field_validator("group")
    @classmethod
    def _fits_the_source(cls, value: GroupSettings, info: ValidationInfo) -> GroupSettings:
        source = info.data.get("source")
        if source is not None:
            value.reject_unsupported(source)
        return value

    @property
    def name_in_files(self) -> str:
        """Return the pipeline's name for files in shared directories: `GROUP+PIPELINE`; names
        contain no plus.
        """
        return name_in_files(self.group.id, self.pipeline)

    @property
    def metrics_file(self) -> str | None:
        """Return the path of the metrics file; None: no metrics are written."""
        path = self.metrics.path
        if path is None or path.endswith(".prom"):
            return path
        return f"{path.rstrip('/')}/{self.name_in_files}.prom"

    @field_validator("spark", mode="before")
    @classmethod
    def _text_values(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: _spark_text(one) for name, one in value.items()}


def name_in_files(group: str, pipeline: str) -> str:
    """Return `Settings.name_in_files` of a group and a pipeline."""
    return f"{group}+{pipeline}"


def files_of_secrets(settings: Settings) -> dict[str, LocalFile]:
    """Return the files that contain secrets, by key: references, and keys of certificates."""
    files = {}
    for key in (*SECRET_KEYS, *PRIVATE_KEYS):
        if key.endswith(".username"):
            continue  # may be a reference, and is not secret
        value: Any = settings
        for name in key.split("."):
            value = getattr(value, name)
        if isinstance(value, SecretRef) and value.kind == "file":
            files[key] = value.file
        elif isinstance(value, LocalFile):
            files[key] = value
    return files


def _spark_text(value: Any) -> Any:
    """Return a number or boolean as Spark writes it, anything else unchanged: validation rejects it
    if it is not a text.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    return value
