"""What a run does when the world surprises it: the choices of a conf file, by their names."""

from __future__ import annotations

from enum import Enum


class StartAt(str, Enum):
    """Where a log without a committed offset starts."""

    EARLIEST = "earliest"
    LATEST = "latest"


class OnDataLoss(str, Enum):
    """What to do when wanted offsets lie below the log start."""

    FAIL = "fail"
    SKIP = "skip"


class OnMoved(str, Enum):
    """What to do when somebody else moved a committed offset."""

    FAIL = "fail"
    FOLLOW = "follow"


class OnNoLeader(str, Enum):
    """What to do with a log that has no leader once waiting for one is over."""

    FAIL = "fail"
    SKIP = "skip"


class OnRowsRemoved(str, Enum):
    """What to do when somebody deleted rows of the table. RESTORE and overwrite always stop."""

    FAIL = "fail"
    RECORD = "record"


class OwnershipMode(str, Enum):
    """Whether the run only looks at owners, claims what it reads, or is one of the group's members."""

    OBSERVE = "observe"
    CLAIM = "claim"
    JOIN = "join"


class GroupStrategy(str, Enum):
    """How the consumers of the group divide its partitions: theirs is ours. Those of ZooKeeper, and
    those of Kafka's coordinator.
    """

    RANGE = "range"
    ROUND_ROBIN = "roundrobin"
    """0.8.2 and 0.9; wherever it has an answer, it is that of 0.10 and 0.11."""
    ROUND_ROBIN_0_10 = "roundrobin-0.10"
    """0.10 and 0.11."""
    ROUND_ROBIN_1_0 = "roundrobin-1.0"
    """1.0 and 1.1."""
    STICKY = "sticky"
    COOPERATIVE_STICKY = "cooperative-sticky"


class HandOverAt(str, Enum):
    """When the group's offsets of a member move."""

    PLAN = "at_plan"
    """With the stored plan: nothing is read by two."""
    APPEND = "after_append"
    """Once its rows are in the table, by the membership that it was made with: of groups whose
    members are all ours.
    """


class Stay(str, Enum):
    """How long a run is a member of its group."""

    RUN = "run"
    SHARE = "share"
    """Until what it owned is handed over."""


class OnOwned(str, Enum):
    """What to do with a log that somebody else owns."""

    FAIL = "fail"
    WAIT = "wait"
    SKIP = "skip"


class OnLiveGroup(str, Enum):
    """What to do when live consumers of the group are registered."""

    FAIL = "fail"
    UNOWNED = "unowned"


class WriterName(str, Enum):
    """Who writes a table's files."""

    AUTO = "auto"
    SPARK = "spark"
    ARROW = "arrow"


class MetricsPer(str, Enum):
    """What a series of the metrics of lag is of."""

    TOPIC = "topic"
    PARTITION = "partition"
