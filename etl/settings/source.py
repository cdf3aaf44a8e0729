"""Which brokers and topics does a pipeline read, and from which offsets?

Lives here: the section `source` of a conf.
"""

# Without `from __future__ import annotations`: pydantic would compile each annotation at import.

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    field_validator,
    model_validator,
)

from etl.model.partitions import BrokerFamily, Isolation
from etl.model.security import Security
from etl.settings import choices
from etl.settings.choices import OnDataLoss, OnNoLeader, StartAt, finds_times, split_address
from etl.settings.connection_security import SecuritySettings
from etl.settings.secrets import DAY_S, NAME, TEN_YEARS_S, ByteSize, Section, one_or_several


class Timestamp(Section):
    """A start by time: the first record at or after it."""

    timestamp: datetime

    @field_validator("timestamp", mode="before")
    @classmethod
    def _no_bare_number(cls, value: Any) -> Any:
        if isinstance(value, (int, float)) or (
            isinstance(value, str) and re.fullmatch(r"\s*[-+]?[\d.]+\s*", value)
        ):
            raise ValueError("is a number without a unit; write 2026-01-31T00:00:00+00:00")
        return value

    @field_validator("timestamp")
    @classmethod
    def _with_offset(cls, value: datetime) -> datetime:
        if value.tzinfo is None:
            raise ValueError("has no UTC offset; write it as 2026-01-31T00:00:00+00:00")
        if value.timestamp() < 0:
            raise ValueError("is before 1970, and no record has such a timestamp")
        return value

    @property
    def ms(self) -> int:
        """Milliseconds since the epoch."""
        return round(self.timestamp.timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class BeforeEnd:
    """A start by count: this many offsets before the readable end, but not before the log start."""

    offsets: int


def timestamp_of(ms: int) -> Timestamp:
    """Return the timestamp of ms since the epoch."""
    return Timestamp(timestamp=datetime.fromtimestamp(ms / 1000, UTC))


def parse_timestamp(text: str) -> Timestamp:
    """Parse a time outside of a conf. Raises ValueError with the reason."""
    try:
        return Timestamp.model_validate({"timestamp": text})
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


StartingOffsets = StartAt | Timestamp


def _starting_offsets(value: Any) -> StartingOffsets:
    """Convert a value by its form, so that an error mentions that form only."""
    if isinstance(value, Timestamp):
        return value
    if value in tuple(StartAt):
        return StartAt(value)
    if not isinstance(value, (str, date)):
        raise ValueError("must be earliest, latest or a time such as 2026-01-31T00:00:00+00:00")
    try:
        return Timestamp.model_validate({"timestamp": value})
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ValueError(f"must be earliest, latest or a time: {reason}") from None


def _starting_offsets_text(value: StartingOffsets) -> str:
    """Return the value as a conf has it."""
    if isinstance(value, Timestamp):
        return value.timestamp.isoformat()
    return value.value


_NESTED_CLASS = re.compile(r"\[\^?\]?[^\]]*?(?:\[|&&)")
"""In an expression without its escapes. Python takes both for characters of the class."""


_A_NAME = re.compile(r"[A-Za-z0-9._-]+")
"""An expression that is meant as a name, though a dot matches any character."""
_LITERAL_NAME = re.compile(r"[A-Za-z0-9_-]+")


def _expressions(value: tuple[str, ...]) -> tuple[str, ...]:
    for expression in value:
        if _A_NAME.fullmatch(expression):
            continue
        if _NESTED_CLASS.search(re.sub(r"\\.", "_", expression)):
            raise ValueError(
                f"{expression!r} has [ or && inside a class, which Java and Python read "
                f"differently. "
                "Write a literal character as \\[ or \\&"
            )
        try:
            re.compile(expression)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{expression!r} is not a regular expression: {error}") from error
    return value


class Expressions:
    """Regular expressions that match whole topic names.

    Each is compiled once, and a name is found among names: a conf may list many thousands.
    """

    def __init__(self, expressions: tuple[str, ...]) -> None:
        self._names = frozenset(filter(_A_NAME.fullmatch, expressions))
        """Each matches itself; one with a dot matches other names, too."""
        self._expressions = [one for one in expressions if not _LITERAL_NAME.fullmatch(one)]
        self._compiled: list[re.Pattern[str]] | None = None

    def match(self, topic: str) -> bool:
        """True if one of them matches the name."""
        if topic in self._names:
            return True
        if self._compiled is None:
            self._compiled = [re.compile(expression) for expression in self._expressions]
        return any(pattern.fullmatch(topic) for pattern in self._compiled)


@dataclass(frozen=True)
class TopicFilter:
    """Which topics to read: regular expressions that match whole names."""

    topics: tuple[str, ...]
    exclude_topics: tuple[str, ...] = ()

    def admits(self, topic: str) -> bool:
        """True if a topic of this name is read."""
        return self.selects(topic) and not self.excludes(topic)

    def selects(self, topic: str) -> bool:
        """True if `topics` matches the name, which may be excluded."""
        return self._topics.match(topic)

    def excludes(self, topic: str) -> bool:
        """True if `exclude_topics` matches the name."""
        return self._excluded.match(topic)

    @property
    def names(self) -> Iterator[str]:
        """Return the expressions that are a name. One with a dot matches other names, too."""
        return filter(_A_NAME.fullmatch, self.topics)

    @cached_property
    def literal_names(self) -> tuple[str, ...]:
        """Return the expressions that match one name only: those topics must exist."""
        return tuple(filter(_LITERAL_NAME.fullmatch, self.topics))

    @cached_property
    def _topics(self) -> Expressions:
        return Expressions(self.topics)

    @cached_property
    def _excluded(self) -> Expressions:
        return Expressions(self.exclude_topics)


def _addresses(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


_OF_PHYSICAL_LOGS = {"isolation_level": Isolation.READ_UNCOMMITTED, "on_no_leader": OnNoLeader.SKIP}
"""The only possible values for Jafka, which has no transactions and one broker per partition."""


def _version(value: Any) -> Any:
    if isinstance(value, (int, float)):
        raise ValueError(
            "is a number, in which 0.10 and 0.1 are the same; write it in quotes: '0.10.2'"
        )
    if isinstance(value, str) and not re.fullmatch(
        r"[0-9]{1,3}(\.[0-9]{1,3}){1,3}", value, re.ASCII
    ):
        raise ValueError("is no version; its form is 0.8.2 or 3.9")
    return value


class SourceSettings(Section):
    """Brokers and topics, and policies for missing offsets and leaders; `topics` is required."""

    broker_type: BrokerFamily = Field(
        default=BrokerFamily.KAFKA,
        description="kafka: Kafka 0.8 to 4.x; jafka: Jafka and Kafka 0.7",
    )
    bootstrap_servers: Annotated[tuple[str, ...] | None, BeforeValidator(_addresses)] = Field(
        default=None,
        description="host:port,host:port of some brokers; null: those in ZooKeeper, required where "
        "it has none",
    )
    listener: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="Listener that brokers register in ZooKeeper; null: the first one of "
        "security.protocol",
    )
    security: SecuritySettings = SecuritySettings()
    broker_version: Annotated[str | None, BeforeValidator(_version)] = Field(
        default=None,
        description="Kafka release of the brokers, in quotes: '0.9'; null: ask them. Later brokers "
        "convert records to it, without the headers and timestamps that it lacks",
    )
    assume_cluster_id: str | None = Field(
        default=None,
        pattern=NAME,
        description="Used where brokers report no cluster id (Kafka before 0.10.1, Jafka). Keep it "
        "after their upgrade. If the same brokers have a new id: the former one",
    )
    topics: Annotated[tuple[str, ...], BeforeValidator(one_or_several)] = Field(
        min_length=1,
        description="Names, which must exist, or regular expressions (Python's) that match whole "
        "names: [clicks, 'orders-.*']. Internal topics are read only by name",
    )
    exclude_topics: Annotated[tuple[str, ...], BeforeValidator(one_or_several)] = Field(
        default=(), description="Topics to leave out, as regular expressions: ['.*-test']"
    )
    starting_offsets: Annotated[
        StartingOffsets, PlainValidator(_starting_offsets), PlainSerializer(_starting_offsets_text)
    ] = Field(
        default=StartAt.EARLIEST,
        description="Start of topics of the first run without committed offsets; of a time such as "
        "2026-01-31T00:00:00+00:00 the first record at or after it (Kafka 0.10.1 or later)",
    )
    new_topics_starting_offsets: StartAt = Field(
        default=StartAt.EARLIEST,
        description="Start of topics that appear later. A new partition of a known topic starts at "
        "its first record",
    )
    on_data_loss: OnDataLoss = Field(
        default=OnDataLoss.FAIL,
        description="Offsets are gone. fail: exit 5; skip: record them as lost",
    )
    on_no_leader: OnNoLeader = Field(
        default=OnNoLeader.FAIL,
        description="A partition has no leader. fail: no new plan, for any partition (exit 6); "
        "skip: leave it out, a later run loads it",
    )
    wait_for_leader_s: float = Field(
        default=30, ge=0, le=DAY_S, description="Time to wait for a leader"
    )
    isolation_level: Isolation = Field(
        default=Isolation.READ_COMMITTED,
        description="Kafka's isolation.level. read_committed leaves out aborted transactions",
    )
    fetch_max_bytes: ByteSize = Field(
        default=choices.FETCH_MAX_BYTES,
        ge=1024,
        le=choices.FETCH_MAX_BYTES_MOST,
        description="Bytes of a fetch; a task holds two",
    )
    max_batch_bytes: ByteSize = Field(
        default=choices.MAX_BATCH_BYTES,
        ge=1024,
        le=choices.MAX_BATCH_BYTES_MOST,
        description="Largest record batch, at least fetch_max_bytes: a fetch grows up to it",
    )
    max_record_bytes: ByteSize = Field(
        default=choices.MAX_RECORD_BYTES,
        ge=1024,
        le=choices.MAX_RECORD_BYTES_MOST,
        description="Largest record, else exit 5. Spark's JVM needs about ten times as much "
        "memory, for each core",
    )
    request_timeout_s: float = Field(
        default=choices.TIMEOUT_S,
        gt=0,
        le=DAY_S,
        description="Deadline of a request to a broker. A response that arrives at 8 KiB/s or "
        "more may take longer",
    )
    expiry_warning_s: float = Field(
        default=3600,
        ge=0,
        le=TEN_YEARS_S,
        description="Warn of unread records that expire within this time, and read them first; 0: "
        "never",
    )
    assume_compacted: Annotated[tuple[str, ...], BeforeValidator(one_or_several)] = Field(
        default=(),
        description="Topics to treat as compacted, as regular expressions, whatever the brokers "
        "report",
    )

    @model_validator(mode="before")
    @classmethod
    def _fitting_defaults(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("broker_type") == BrokerFamily.JAFKA:
            return {**_OF_PHYSICAL_LOGS, **given}
        return given

    @property
    def is_physical(self) -> bool:
        """True if offsets are byte positions (`TopicPartition.is_physical`) and only ZooKeeper
        names brokers.
        """
        return self.broker_type is BrokerFamily.JAFKA

    @property
    def way_in(self) -> Security:
        """How every connection to the brokers is entered."""
        return self.security.value(self.listener)

    @property
    def finds_times(self) -> bool:
        """See `etl.settings.choices.finds_times`."""
        return finds_times(self.broker_type, self.broker_version)

    @cached_property
    def topic_filter(self) -> TopicFilter:
        """Return the topics to read."""
        return TopicFilter(self.topics, self.exclude_topics)

    @field_validator("bootstrap_servers")
    @classmethod
    def _host_and_port(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and not value:
            raise ValueError("names no broker; null uses the brokers in ZooKeeper")
        for address in value or ():
            split_address(address)
        return value

    @field_validator("topics", "exclude_topics", "assume_compacted")
    @classmethod
    def _are_expressions(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _expressions(value)

    def is_assumed_compacted(self, topic: str) -> bool:
        """True if `assume_compacted` names the topic."""
        return self._assumed_compacted.match(topic)

    @cached_property
    def _assumed_compacted(self) -> Expressions:
        return Expressions(self.assume_compacted)

    @model_validator(mode="after")
    def _listeners_are_registered(self) -> Self:
        if self.listener is not None and self.bootstrap_servers is not None:
            raise ValueError(
                "listener selects an address that brokers register in ZooKeeper, and "
                "bootstrap_servers "
                "names an address, on whose listener brokers report the others. Remove one of them"
            )
        return self

    @model_validator(mode="after")
    def _limit_holds_one_fetch(self) -> Self:
        if self.max_batch_bytes < self.fetch_max_bytes:
            raise ValueError("max_batch_bytes is below fetch_max_bytes")
        return self
