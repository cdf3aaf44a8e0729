"""Which brokers and topics does a pipeline read, and from which offsets?

Lives here: the section `source` of a conf.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationError,
    field_validator,
    model_validator,
)

from etl.model.partitions import BrokerFamily, Isolation
from etl.model.security import Security
from etl.settings import choices
from etl.settings.choices import OnDataLoss, OnNoLeader, OnOffsetChanged, StartAt, split_address
from etl.settings.connection_security import SecuritySettings
from etl.settings.secrets import DAY_S, TEN_YEARS_S, Section, one_or_several


class Timestamp(Section):
    """A start by time: the first record at or after it."""

    timestamp: datetime

    @field_validator("timestamp", mode="before")
    @classmethod
    def _no_bare_number(cls, value: Any) -> Any:
        if isinstance(value, (int, float)) or (
            isinstance(value, str) and re.fullmatch(r"\s*[-+]?[\d.]+\s*", value)
        ):
            raise ValueError(
                "is a bare number, seconds or milliseconds nobody knows; write 2026-01-31T00:00:00+00:00"
            )
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


def timestamp_of(ms: int) -> Timestamp:
    """Return the timestamp of ms since the epoch."""
    return Timestamp(timestamp=datetime.fromtimestamp(ms / 1000, UTC))


def parse_timestamp(text: str) -> Timestamp:
    """Parse a time outside of a conf. Raises ValueError with what is wrong."""
    try:
        return Timestamp.model_validate({"timestamp": text})
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


Start = StartAt | Timestamp


def _start(value: Any) -> Any:
    """Decide by the form which of the two it is, so that an error speaks of that one only."""
    if isinstance(value, dict):
        return Timestamp.model_validate(value)
    if value not in tuple(StartAt):
        raise ValueError("must be earliest, latest or {timestamp: ...}")
    return StartAt(value)


_NESTED_CLASS = re.compile(r"\[\^?\]?[^\]]*?(?:\[|&&)")
"""In an expression without its escapes. Python takes both for characters of the class."""


def _expressions(value: tuple[str, ...]) -> tuple[str, ...]:
    for expression in value:
        if _NESTED_CLASS.search(re.sub(r"\\.", "_", expression)):
            message = f"{expression!r} has a [ or && inside a class, which means one thing in Java and another in Python"
            raise ValueError(f"{message}; write a character that is meant as \\[ or \\&")
        try:
            re.compile(expression)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{expression!r} is no regular expression: {error}") from error
    return value


class TopicFilter(Section):
    """Which topics to read: full-match regular expressions."""

    allow: Annotated[tuple[str, ...], BeforeValidator(one_or_several)] = Field(min_length=1)
    deny: Annotated[tuple[str, ...], BeforeValidator(one_or_several)] = ()

    @field_validator("allow", "deny")
    @classmethod
    def _are_expressions(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _expressions(value)

    def admits(self, topic: str) -> bool:
        """True if a topic of this name is read."""
        return any(re.fullmatch(e, topic) for e in self.allow) and not any(
            re.fullmatch(e, topic) for e in self.deny
        )

    @property
    def literal_names(self) -> tuple[str, ...]:
        """The allowed expressions that can match one name only: those topics must exist."""
        return tuple(e for e in self.allow if re.fullmatch(r"[A-Za-z0-9_-]+", e))


def _addresses(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


_OF_PHYSICAL_LOGS = {"isolation": Isolation.READ_UNCOMMITTED, "on_no_leader": OnNoLeader.SKIP}
"""The defaults where there are no transactions, and where each log is on one broker only;
`physical` refuses anything else there.
"""


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
    """The brokers, the topics, and what to do when they surprise us."""

    dialect: BrokerFamily = BrokerFamily.KAFKA
    bootstrap: Annotated[tuple[str, ...] | None, BeforeValidator(_addresses)] = None
    """`host:port,host:port`; from ZooKeeper's `/brokers/ids` unless given."""
    listener: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.-]+$")
    """Which of their listeners is meant, where brokers are registered in ZooKeeper; None: the first
    of `security.protocol`.
    """
    security: SecuritySettings = SecuritySettings()
    broker_version: Annotated[str | None, BeforeValidator(_version)] = None
    """Kafka release of the brokers, such as 0.9; None: detected."""
    topics: TopicFilter
    start: Annotated[Start, PlainValidator(_start)] = StartAt.EARLIEST
    """Logs that are there at the first run and have no committed offset."""
    new_topics_starting_offsets: StartAt = StartAt.EARLIEST
    """Topics that appear later; a new partition of a known topic always starts at its first record.
    """
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    on_offset_changed: OnOffsetChanged = OnOffsetChanged.FAIL
    on_no_leader: OnNoLeader = OnNoLeader.FAIL
    wait_for_leader_s: float = Field(default=30, ge=0, le=DAY_S)
    isolation: Isolation = Isolation.READ_COMMITTED
    fetch_max_bytes: int = Field(
        default=choices.FETCH_MAX_BYTES, ge=1024, le=choices.FETCH_MAX_BYTES_MOST
    )
    """Bytes of one fetch; doubled for a record batch that does not fit, up to `max_batch_bytes`.
    """
    max_batch_bytes: int = Field(
        default=choices.MAX_BATCH_BYTES, ge=1024, le=choices.MAX_BATCH_BYTES_MOST
    )
    max_record_bytes: int = Field(
        default=choices.MAX_RECORD_BYTES, ge=1024, le=choices.MAX_RECORD_BYTES_MOST
    )
    """A record of more bytes stops the run; a task's JVM takes about ten times as much memory for
    one.
    """
    timeout_s: float = Field(default=choices.TIMEOUT_S, gt=0, le=DAY_S)
    """Deadline of one request to a broker."""
    expiry_warning_s: float = Field(default=3600, ge=0, le=TEN_YEARS_S)
    """Ranges that may expire within this time are reported and read first; 0: none."""
    assume_compacted: Annotated[tuple[str, ...], BeforeValidator(one_or_several)] = ()
    """Expressions for topics whose missing offsets were compacted, whatever brokers report: they
    hide `cleanup.policy`, or it was `compact` before.
    """

    @model_validator(mode="before")
    @classmethod
    def _fitting_defaults(cls, given: Any) -> Any:
        return (
            {**_OF_PHYSICAL_LOGS, **given}
            if isinstance(given, dict) and given.get("dialect") == BrokerFamily.JAFKA
            else given
        )

    @property
    def is_physical(self) -> bool:
        """True if offsets are byte positions (`BrokerPartition.is_physical`) and only ZooKeeper
        names brokers.
        """
        return self.dialect is BrokerFamily.JAFKA

    @property
    def way_in(self) -> Security:
        """How every connection to the brokers is entered."""
        return self.security.value(self.listener)

    @field_validator("bootstrap")
    @classmethod
    def _host_and_port(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and not value:
            raise ValueError("names no broker; null takes them from ZooKeeper")
        for address in value or ():
            split_address(address)
        return value

    @field_validator("assume_compacted")
    @classmethod
    def _are_expressions(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _expressions(value)

    def is_assumed_compacted(self, topic: str) -> bool:
        """True if `assume_compacted` names the topic."""
        return any(re.fullmatch(expression, topic) for expression in self.assume_compacted)

    @model_validator(mode="after")
    def _listeners_are_registered(self) -> SourceSettings:
        if self.listener is not None and self.bootstrap is not None:
            raise ValueError(
                "listener chooses among the addresses that brokers register in ZooKeeper, and bootstrap names one: "
                "brokers tell those of the listener on which they are asked; leave one of the two out"
            )
        return self

    @model_validator(mode="after")
    def _limit_holds_one_fetch(self) -> SourceSettings:
        if self.max_batch_bytes < self.fetch_max_bytes:
            raise ValueError("max_batch_bytes is below fetch_max_bytes")
        return self
