"""Offsets that are not in the table and never will be, lost or read by others; and offsets whose
rows outlive their records.

Bounds live in names: `from_offset` is inclusive, `until_offset` exclusive.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from etl.model.logs import BrokerPartition


class LossReason(str, Enum):
    """Why offsets of a log are not in the table and never will be."""

    EXPIRED = "expired"
    """Retention had deleted them (`source.on_data_loss: skip`)."""
    MOVED = "offset moved"
    """Somebody moved the committed offset past them (`source.on_moved: follow`)."""
    MISSING = "missing from the log"
    """No record batch of the log had them, and nothing explains it (`source.on_data_loss: skip`).
    """
    SKIPPED = "skipped by hand"
    """An operator superseded the plan that held them, or set the position behind them."""
    DELETED = "topic deleted"
    """A stored plan was to read them, and their topic was deleted before it did."""
    RECREATED = "topic recreated"
    """The same, and there is another topic of that name, with offsets of its own."""
    TRUNCATED = "log truncated"
    """A stored plan was to read them, and the log lost them: others may have their offsets."""


LOST_WITH_LOG = frozenset((LossReason.DELETED, LossReason.RECREATED, LossReason.TRUNCATED))
"""No plan reads such offsets again, whatever the log of that name holds by now."""


@dataclass(frozen=True, slots=True, order=True)
class Loss:
    """Offsets [from, until) of one log that a plan let go."""

    log: BrokerPartition
    from_offset: int
    until_offset: int
    why: LossReason
    log_epoch: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Vanished:
    """Offsets [from, until) of one life of one log that are, or may be, in the table, and whose
    records the brokers no longer hold.
    """

    log: BrokerPartition
    from_offset: int
    until_offset: int
    log_epoch: int = 0


@dataclass(frozen=True, slots=True, order=True)
class ReadByOthers:
    """Offsets [from, until) of one life of one log that other members of the group read: nothing of
    them is lost, and none is for us.
    """

    log: BrokerPartition
    from_offset: int
    until_offset: int
    log_epoch: int = 0
