"""The tasks of a read: what each one reads, and the text in which Spark hands it to an executor."""

from __future__ import annotations

import atexit
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from etl.model.logs import Broker, BrokerPartition, Cleanup, Leader, Tail
from etl.model.plans import OffsetRange

T = TypeVar("T")
NAME = "offset_ranges"
INLINE_BYTES = 32 * 1024
"""Longer tasks travel as a file: Spark sends every option to every task."""


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


_NOTHING_KNOWN: Mapping[Any, Any] = MappingProxyType({})


def render_tasks(
    ranges: Sequence[OffsetRange], tasks: Sequence[Sequence[int]], topic_ids: Mapping[str, str] = _NOTHING_KNOWN,
    leader_epochs: Mapping[BrokerPartition, int] = _NOTHING_KNOWN, log_epochs: Mapping[BrokerPartition, int] = _NOTHING_KNOWN,
    cleanups: Mapping[str, Cleanup] = _NOTHING_KNOWN, tails: Mapping[BrokerPartition, Tail] = _NOTHING_KNOWN,
) -> str:
    """Ranges with their leaders, what is known of their topics and logs, and the tasks, as the text that `parse_tasks` reads."""
    topics = {r.log.topic for r in ranges}
    document = {
        "ranges": [_row(r) for r in ranges], "tasks": [list(task) for task in tasks], "topic_ids": of_topics(topic_ids, topics),
        "leader_epochs": [leader_epochs.get(r.log) for r in ranges], "log_epochs": [log_epochs.get(r.log) for r in ranges],
        "cleanups": {topic: [told.is_compacted, told.is_tiered] for topic, told in of_topics(cleanups, topics).items()},
        "tails": [[(t := tails[r.log]).until_offset, t.size, t.digest] if r.log in tails else None for r in ranges]}
    return json.dumps(document, separators=(",", ":"))


def parse_tasks(text: str) -> list[Task]:
    """The tasks of `render_tasks`."""
    found = json.loads(text)
    ranges = [_range(row) for row in found["ranges"]]

    def known(name: str, task: Sequence[int]) -> dict[BrokerPartition, Any]:
        return {ranges[i].log: found[name][i] for i in task if found[name][i] is not None}

    topics = [{ranges[i].log.topic for i in task} for task in found["tasks"]]
    cleanups = {topic: Cleanup(*told) for topic, told in found["cleanups"].items()}
    return [
        Task(tuple(task), tuple(ranges[i] for i in task), of_topics(found["topic_ids"], read), known("leader_epochs", task),
             known("log_epochs", task), of_topics(cleanups, read), {log: Tail(*told) for log, told in known("tails", task).items()})
        for task, read in zip(found["tasks"], topics, strict=True)]


def of_topics(told: Mapping[str, T], topics: Iterable[str]) -> dict[str, T]:
    return {topic: told[topic] for topic in sorted(topics) if topic in told}


def _row(r: OffsetRange) -> list[Any]:
    row: list[Any] = [r.log.topic, r.log.partition, r.log.broker_id, r.from_offset, r.until_offset]
    if r.leader is None:
        return row
    broker = r.leader.broker
    return [*row, broker.id, broker.host, broker.port, r.leader.epoch, broker.generation]


def _range(row: Sequence[Any]) -> OffsetRange:
    topic, partition, broker_id, start, until, *led = row
    leader = Leader(Broker(led[0], led[1], led[2], led[4]), led[3]) if led else None
    return OffsetRange(BrokerPartition(topic, partition, broker_id), start, until, leader)


def keep_file(text: str) -> str:
    """A file for as long as this process lives: a DataFrame may be planned again at any time."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix=f"{NAME}-", suffix=".json", delete=False) as file:
        file.write(text)
    atexit.register(_remove, file.name)
    return file.name


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.remove(path)
