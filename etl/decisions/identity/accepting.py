"""What an operator names and says who accepts that logs were cut or made again. Pure functions of
values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from etl.errors import SettingsError
from etl.model.logs import BrokerPartition
from etl.protocol.stretches import FORM_OF_PARTITION, may_be_topic, parse_log, render_log
from etl.protocol.zookeeper.payloads import parse_partition_key

_MISSPELT = re.compile(r".*:[0-9-]*|:.*", re.DOTALL)
"""No topic's name, though one might be called so, for what is meant is a partition."""


@dataclass(frozen=True, slots=True)
class Named:
    """What an operator named: a topic, or one partition of it."""

    topic: str
    log: BrokerPartition | None = None
    """None: all of the topic's."""

    def __str__(self) -> str:
        return self.topic if self.log is None else render_log(self.log)

    def covers(self, log: BrokerPartition) -> bool:
        """Whether the log is meant."""
        return log.topic == self.topic and self.log in (None, log)


@dataclass(frozen=True, slots=True)
class Accepting:
    """What an operator accepts, and why."""

    named: tuple[Named, ...]
    reason: str
    at: int | None = None
    """Up to where what is left of the one log is what was read, where nobody else can tell."""
    is_same_log: bool = False
    """The topics, or logs, are the same: only what stands for their ids has changed."""

    def covers(self, log: BrokerPartition) -> bool:
        return any(one.covers(log) for one in self.named)

    def offsets_of(self, log: BrokerPartition) -> tuple[int, ...]:
        """Which of the log's offsets are named."""
        return (self.at,) if self.at is not None and self.covers(log) else ()

    def names_itself(self, log: BrokerPartition) -> bool:
        return any(one.log == log for one in self.named)


def parse_named(text: str) -> Named:
    """`TOPIC` or `TOPIC:PARTITION`. Raises SettingsError."""
    log = parse_log(text)
    if log is not None:
        return Named(log.topic, log)
    if not may_be_topic(text) or _MISSPELT.fullmatch(text):
        raise SettingsError(
            f"{text!r} names no log",
            key="LOG",
            check=f"the form TOPIC or TOPIC:PARTITION; {FORM_OF_PARTITION}",
        )
    return Named(text)


def parse_partition(topic: str, text: str) -> Named:
    """A partition of a topic. Raises SettingsError."""
    log = parse_partition_key(topic, text)
    if log is None:
        raise SettingsError(
            f"{text!r} names no partition", key="--partition", check=FORM_OF_PARTITION
        )
    return Named(topic, log)
