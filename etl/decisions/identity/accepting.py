"""What an operator names and says who accepts that logs were cut or made again. Pure functions of
values.
"""

from __future__ import annotations

from dataclasses import dataclass

from etl.model.partitions import BrokerPartition, Named


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
