"""The tasks of a read: what each one reads, as values that travel to where it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from etl.model.partitions import Broker, BrokerPartition, Cleanup, Tail
from etl.model.plans import OffsetRange

T = TypeVar("T")
NAME = "offset_ranges"


@dataclass(frozen=True, slots=True)
class Task:
    """The ranges that one Spark partition reads, and which ranges of the plan they are."""

    indices: tuple[int, ...]
    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """What the topics' ids were when the ranges were planned, where the plan knows them."""
    leader_epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """The same of the leaders' epochs."""
    log_epochs: Mapping[BrokerPartition, int] = field(default_factory=dict)
    """Which life of the log the rows are of, where it is not the first."""
    cleanups: Mapping[str, Cleanup] = field(default_factory=dict)
    """How the topics are cleaned up, where that is known."""
    tails: Mapping[BrokerPartition, Tail] = field(default_factory=dict)
    """By which bytes physical logs were known when the ranges were planned."""

    @property
    def number(self) -> int:
        """Names it among the tasks of its plan: its first range, which no other one reads."""
        return self.indices[0]


@dataclass(frozen=True, slots=True)
class QueryTask(Task):
    """A task of a DataFrame whose bounds move.

    Spark plans the tasks of a DataFrame once, and each query executes them again. `ranges` are cut
    from the logs as they were when the tasks were planned. The first range of a log stands for all
    offsets below its end, the last for all offsets from its start on: each query binds them to the
    log's bounds of that time (`ranges.pieces_of`).
    """

    planned: Mapping[BrokerPartition, OffsetRange] = field(default_factory=dict)
    """The whole range of each log when the tasks were planned. An empty one is in `ranges`, too."""
    brokers: tuple[Broker, ...] = ()
    """All brokers of the cluster when the tasks were planned."""
    others_than: frozenset[BrokerPartition] | None = None
    """The task also reads every chosen log that is not one of these: it was added later. None:
    another task does, or none.
    """


def of_topics(told: Mapping[str, T], topics: Iterable[str]) -> dict[str, T]:
    return {topic: told[topic] for topic in sorted(topics) if topic in told}


def tasks_of_ranges(
    ranges: Sequence[OffsetRange],
    tasks: Sequence[Sequence[int]],
    *,
    topic_ids: Mapping[str, str],
    leader_epochs: Mapping[BrokerPartition, int],
    log_epochs: Mapping[BrokerPartition, int],
    cleanups: Mapping[str, Cleanup],
    tails: Mapping[BrokerPartition, Tail],
) -> list[Task]:
    """The tasks as values, each with what concerns it alone."""
    return [
        Task(
            tuple(task),
            read,
            of_topics(topic_ids, topics),
            _of_logs(leader_epochs, logs),
            _of_logs(log_epochs, logs),
            of_topics(cleanups, topics),
            _of_logs(tails, logs),
        )
        for task in tasks
        for read in [tuple(ranges[i] for i in task)]
        for logs in [[r.log for r in read]]
        for topics in [{log.topic for log in logs}]
    ]


def _of_logs(
    told: Mapping[BrokerPartition, T], logs: Iterable[BrokerPartition]
) -> dict[BrokerPartition, T]:
    return {log: told[log] for log in logs if log in told}
