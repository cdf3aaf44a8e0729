"""Random groups of consumers in ZooKeeper and in Kafka, the same for the same number."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from etl.decide.group_assignment import AssignmentContext, GroupMember, context_of
from etl.ledger.registrations import (
    FilteredTopics,
    FixedTopics,
    Registration,
    parse_registration,
    render_registration,
)
from etl.ledger.topic_filters import FilterKind, TopicFilter
from etl.model.partitions import BrokerFamily, TopicPartition

GROUP = "etl-g"
_TOPICS = (
    "orders",
    "clicks",
    "t1",
    "t10",
    "t2",
    "a.b_c-d",
    "Z",
    "page-views.2015",
    "x0",
    "orders2",
    "missing",
)
_MISSING = "missing"
_FILTERS = ("orders.*", "t[0-9]+", "(?!t).*", "clicks|orders", r"[a-z]\d+", "nothing", ".*")
_NAMES = (
    "one",
    "two",
    "vm-1446000000000-59986c35",
    "vm-1446000000001-0a",
    "a-10",
    "a-2",
    "a_b",
    "B",
    "c.d",
    "z-0",
    "0",
)


@dataclass(frozen=True, slots=True)
class Group:
    context: AssignmentContext
    znodes: Mapping[str, bytes]

    @property
    def members(self) -> list[str]:
        return sorted(self.context.members)


def group_of(seed: int, dialect: BrokerFamily) -> Group:
    """Half of them subscribe alike, as round robin of 0.8.2 requires it."""
    random = Random(seed)
    partitions = _partitions(random, dialect)
    known = [*partitions, _MISSING]
    alike = _reads(random, known, dialect, fixed=True)
    is_alike = random.random() < 0.5
    registrations = {}
    for at, name in enumerate(random.sample(_NAMES, random.randint(1, 8))):
        reads = alike if is_alike or not at else _reads(random, known, dialect, fixed=False)
        registrations[f"{GROUP}_{name}"] = Registration(dialect, reads)
    znodes = {
        f"/consumers/{GROUP}/ids/{member}": render_registration(one, now_ms=seed)
        for member, one in registrations.items()
    }
    read = {
        path.rpartition("/")[2]: parse_registration(payload, path=path)
        for path, payload in znodes.items()
    }
    return Group(context_of(read, partitions), {**znodes, **_topics(partitions, dialect)})


def _partitions(random: Random, dialect: BrokerFamily) -> dict[str, list[TopicPartition]]:
    topics = random.sample(_TOPICS[:-1], random.randint(1, 5))
    if dialect is BrokerFamily.KAFKA:
        return {
            topic: [TopicPartition(topic, p) for p in range(random.randint(1, 25))]
            for topic in topics
        }
    return {
        topic: [
            TopicPartition(topic, p, broker)
            for broker in random.sample(range(13), random.randint(1, 4))
            for p in range(random.randint(1, 13))
        ]
        for topic in topics
    }


def _reads(
    random: Random, topics: Sequence[str], dialect: BrokerFamily, *, fixed: bool
) -> FixedTopics | FilteredTopics:
    if fixed or dialect is BrokerFamily.JAFKA or random.random() < 0.7:
        named = random.sample(topics, random.randint(1, len(topics)))
        threads = random.randint(1, 12)
        return FixedTopics(
            {topic: threads if random.random() < 0.8 else random.randint(1, 3) for topic in named}
        )
    return FilteredTopics(
        TopicFilter(random.choice([*FilterKind]), random.choice(_FILTERS)), random.randint(1, 3)
    )


def _topics(
    partitions: Mapping[str, Sequence[TopicPartition]], dialect: BrokerFamily
) -> dict[str, bytes]:
    if dialect is BrokerFamily.KAFKA:
        return {
            f"/brokers/topics/{topic}": json.dumps(
                {"version": 1, "partitions": {partition.key: [1] for partition in topic_partitions}}
            ).encode()
            for topic, topic_partitions in partitions.items()
        }
    found = {f"/brokers/topics/{topic}": b"" for topic in partitions}
    for topic, topic_partitions in partitions.items():
        for broker in {partition.broker_id for partition in topic_partitions}:
            found[f"/brokers/topics/{topic}/{broker}"] = str(
                sum(partition.broker_id == broker for partition in topic_partitions)
            ).encode()
    return found


def led_group_of(seed: int) -> tuple[list[GroupMember], dict[str, int]]:
    """The members of a group of Kafka's coordinator, and each topic's partitions."""
    random = Random(seed)
    partitions = {
        topic: random.randint(1, 25) for topic in random.sample(_TOPICS[:-1], random.randint(1, 5))
    }
    members = [
        GroupMember(
            f"{name}-{random.randrange(100)}",
            frozenset(random.sample([*partitions, _MISSING], random.randint(1, len(partitions)))),
            f"i-{name}" if random.random() < 0.4 else None,
        )
        for name in random.sample(_NAMES, random.randint(1, 8))
    ]
    return members, partitions
