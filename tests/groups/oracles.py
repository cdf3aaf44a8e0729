"""Kafka's and Jafka's own assignors in a process of Java, and ours in the same format."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from etl.decide.group_assignment import (
    AssignmentContext,
    GroupMember,
    Strategy,
    assign,
    assign_as_leader,
    assignment_of,
)
from etl.errors import SettingsError
from etl.model.partitions import BrokerFamily
from etl.testkit.brokers import JAFKA
from tests.brokers.foreign import Process
from tests.groups.random_groups import GROUP, Group, group_of

GROUPS = int(os.environ.get("GROUPS", "10000"))
"""How many random groups of each kind `make test-groups` looks at."""
SOURCES = Path(__file__).with_name("java")
REFUSED = "refused"
Shares = dict[str, list[str]]
"""By consumer, lines "THREAD TOPIC KEY" of what it owns; a single line: it rejects the group."""

DIVIDED = (
    (JAFKA, Strategy.RANGE),
    ("0.8.2.2", Strategy.RANGE),
    ("0.8.2.2", Strategy.ROUND_ROBIN),
    ("0.9.0.1", Strategy.ROUND_ROBIN),
    ("0.10.2.2", Strategy.RANGE),
    ("0.10.2.2", Strategy.ROUND_ROBIN_0_10),
    ("1.1.1", Strategy.RANGE),
    ("1.1.1", Strategy.ROUND_ROBIN_1_0),
)


def group_for(version: str, seed: int) -> Group:
    return group_of(seed, BrokerFamily.JAFKA if version == JAFKA else BrokerFamily.KAFKA)


def ours(
    group: Group, strategy: Strategy, views: Mapping[str, AssignmentContext] | None = None
) -> Shares:
    """What each member comes to; `views`: by what each of them read."""
    found: Shares = {}
    for member in group.members:
        try:
            share = assignment_of(
                member, assign(views[member] if views else group.context, strategy, member)
            )
            found[member] = sorted(
                f"{thread} {partition.topic} {partition.key}" for partition, thread in share.items()
            )
        except SettingsError:
            found[member] = [REFUSED]
    return found


def digest(shares: object) -> str:
    """A few digits that stand for an answer in a list of many."""
    return hashlib.sha256(repr(shares).encode()).hexdigest()[:8]


class Oracle:
    """One release's own classes: `with Oracle("0.8.2.2", folder) as oracle:`."""

    def __init__(self, version: str, folder: Path) -> None:
        name = "JafkaAssignor" if version == JAFKA else "ScalaAssignors"
        self.process = Process(name, version, folder, sources=SOURCES, is_short=False)

    def __enter__(self) -> Oracle:
        self.process.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.__exit__(None, None, None)

    def shares(self, groups: Iterable[Group], *strategies: Strategy) -> Iterator[list[Shares]]:
        """The owners of each group by each strategy. Fails the test if consumers differ."""
        return map(_shares, self.process.ask_each(_command(group, strategies) for group in groups))


def _command(group: Group, strategies: Iterable[Strategy]) -> list[str]:
    words = [word for path, payload in group.znodes.items() for word in (path, f"x{payload.hex()}")]
    names = ",".join(strategy.value.partition("-")[0] for strategy in strategies)
    return ["assign", names, GROUP, ",".join(group.members), *words]


def _shares(answer: Iterable[Sequence[str]]) -> list[Shares]:
    views: list[dict[str, dict[tuple[str, str], str]]] = []
    refused: list[set[str]] = []
    for line in answer:
        if line[0] == "strategy":
            views.append({})
            refused.append(set())
        elif line[0] == "consumer":
            consumer = line[1]
            view = views[-1].setdefault(consumer, {})
        elif line[0] == REFUSED:
            refused[-1].add(consumer)
        else:
            view[line[1], line[2]] = line[0]
    return [_of_one(*one) for one in zip(views, refused, strict=True)]


def _of_one(views: Mapping[str, dict[tuple[str, str], str]], refused: Collection[str]) -> Shares:
    assert not any(_disagree(views[one], views[another]) for one in views for another in views), (
        views
    )
    return {
        consumer: [REFUSED] if consumer in refused else _own(consumer, view)
        for consumer, view in views.items()
    }


def _disagree(one: dict[tuple[str, str], str], another: dict[tuple[str, str], str]) -> bool:
    return any(another.get(partition, thread) != thread for partition, thread in one.items())


def _own(consumer: str, view: dict[tuple[str, str], str]) -> list[str]:
    return sorted(
        f"{thread} {topic} {key}"
        for (topic, key), thread in view.items()
        if thread.rpartition("-")[0] == consumer
    )


def lead(strategy: str, members: Iterable[GroupMember], partitions: dict[str, int]) -> list[str]:
    """What we assign, in lines "MEMBER TOPIC PARTITION"."""
    found = assign_as_leader(strategy, list(members), partitions)
    return sorted(
        f"{member} {partition.topic} {partition.partition}"
        for member, topic_partitions in found.items()
        for partition in topic_partitions
    )


def led_by_java(
    process: Process, strategy: str, groups: Iterable[tuple[list[GroupMember], dict[str, int]]]
) -> Iterator[list[str]]:
    """What the classes of Kafka's Java consumer assign in each group."""
    answers = process.ask_each(_led(strategy, *group) for group in groups)
    return (sorted(" ".join(line) for line in answer) for answer in answers)


def _led(strategy: str, members: Iterable[GroupMember], partitions: Mapping[str, int]) -> list[str]:
    reported = [
        word
        for one in members
        for word in (one.member_id, one.instance_id or "-", ",".join(sorted(one.topics)))
    ]
    return [
        "assign",
        strategy,
        ",".join(f"{topic}={count}" for topic, count in partitions.items()),
        *reported,
    ]
