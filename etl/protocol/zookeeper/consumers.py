"""How consumers register in ZooKeeper, `/consumers/[group]/ids/[consumer]`, and what they are called there and as owners.

    Kafka 0.7     { "clicks": 2,"orders": 1 }           topics and how many threads read each
                  *4*clicks.*                           four threads read each topic that matches
                  !4!clicks.*                           four threads read each topic that does not
    Jafka         {"clicks":2,"orders":1}               topics alone: a Jafka consumer cannot read anything else
    Kafka 0.8 on  {"version":1,"subscription":{"clicks":2},"pattern":"static","timestamp":"1446000000000"}
                  the same with `"pattern":"white_list"` or `"black_list"` and one key, the regular expression

A consumer that cannot read one registration of its group fails every rebalance, so the form follows the family of its brokers. Where the
originals differ in nothing but a map's order of topics, what is rendered here is theirs byte for byte, to 0.11: consumers of 1.0 and 1.1
escape their filter twice, and whoever reads that, they themselves too, reads another one (`\\\\d` is no digit). It is read here as by them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from etl.errors import SettingsError
from etl.model.partitions import BrokerFamily
from etl.protocol.zookeeper.java_classes import NotTranslated
from etl.protocol.zookeeper.topic_filters import FilterKind, TopicFilter, cleaned

_MOST_THREADS = 100_000
"""Of one consumer for one topic: a registration that claims more is none."""
_BY_FILTER = re.compile(r"(?P<kind>[*!])(?P<threads>[0-9]{1,9})(?P=kind)(?P<text>.*)")
_KINDS = {"*": FilterKind.WHITE_LIST, "!": FilterKind.BLACK_LIST}
_STATIC = "static"
_ESCAPED = str.maketrans(
    {
        **{chr(code): f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0))},
        '"': '\\"',
        "\\": "\\\\",
        "/": "\\/",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
    }
)
_CHECK = "who wrote that znode; the group's old consumers cannot read it either, and fail to rebalance while it is there"


@dataclass(frozen=True, slots=True)
class FixedTopics:
    """A consumer that named its topics."""

    threads: Mapping[str, int]
    """How many of its threads read each."""


@dataclass(frozen=True, slots=True)
class FilteredTopics:
    """A consumer that reads whatever topics pass its filter, those that are made later, too."""

    filter: TopicFilter
    threads: int
    """For each of them."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What one consumer of a group says that it reads."""

    dialect: BrokerFamily
    """The family of consumers that can read it."""
    reads: FixedTopics | FilteredTopics

    def threads(self, topics: Iterable[str]) -> dict[str, int]:
        """How many threads read which topic, where `topics` exist; one that is named counts whether
        it exists or not.
        """
        if isinstance(self.reads, FixedTopics):
            return {topic: count for topic, count in self.reads.threads.items() if count > 0}
        return {topic: self.reads.threads for topic in topics if self.reads.filter.allows(topic)}


def parse_registration(payload: bytes, *, path: str) -> Registration:
    """What the consumer of this znode reads.

    Raises SettingsError, with the znode, for what is no registration and for a filter whose meaning
    is not certain here.
    """
    try:
        text = payload.decode()
        by_filter = _BY_FILTER.fullmatch(text)
        if by_filter:
            reads = _filtered(
                _KINDS[by_filter["kind"]], by_filter["text"], int(by_filter["threads"])
            )
            return Registration(BrokerFamily.JAFKA, reads)
        return _of_document(json.loads(text))
    except NotTranslated as error:
        what = f"a consumer of the group reads topics by a pattern that is not understood here: {error}"
        raise SettingsError(what, znode=path, check="that consumer's topic filter") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = f"a consumer of the group is not registered as consumers are: {payload[:80].decode('utf-8', 'replace')!r}"
        raise SettingsError(what, znode=path, check=_CHECK) from error


def render_registration(registration: Registration, *, now_ms: int) -> bytes:
    """The payload of a consumer's znode, in the form that consumers of its family write. Raises
    SettingsError for a filter of Jafka's.
    """
    reads = registration.reads
    if registration.dialect is BrokerFamily.JAFKA:
        if isinstance(reads, FilteredTopics):
            raise SettingsError(
                "consumers of Jafka read topics by name only", check="name the topics"
            )
        return _map(reads.threads).encode()
    if isinstance(reads, FixedTopics):
        pattern, subscription = _STATIC, _map(reads.threads)
    else:
        pattern, subscription = reads.filter.kind.value, _map({reads.filter.text: reads.threads})
    return f'{{"version":1,"subscription":{subscription},"pattern":"{pattern}","timestamp":"{now_ms}"}}'.encode()


def consumer_id(group: str, name: str) -> str:
    """What a consumer of that name is called: the name of its znode, and the beginning of its
    threads' names.
    """
    return f"{group}_{name}"


def generated_name(host: str, now_ms: int, unique: int) -> str:
    """The name of a consumer that was given none. `unique`: 128 random bits, of which the first
    eight digits are taken.
    """
    return f"{host}-{now_ms}-{unique >> 64:x}"[: len(f"{host}-{now_ms}-") + 8]


def thread_id(consumer: str, number: int) -> str:
    """What a thread of a consumer writes where it is the owner; numbers begin at 0 for each topic."""
    return f"{consumer}-{number}"


def consumer_of(thread: str) -> str:
    """The consumer whose thread an owner's payload names: hosts and groups may have `-` in them,
    numbers do not.
    """
    return thread.rpartition("-")[0] or thread


def _of_document(found: Any) -> Registration:
    """Raises ValueError, TypeError, KeyError or AttributeError for another one."""
    if not isinstance(found.get("subscription"), dict):
        counts = {topic: _count(count, least=0) for topic, count in found.items()}
        return Registration(BrokerFamily.JAFKA, FixedTopics(counts))
    counts = {topic: _count(count, least=1) for topic, count in found["subscription"].items()}
    if not isinstance(found["pattern"], str):
        raise ValueError("the pattern is no text")
    kind = next((kind for kind in FilterKind if kind.value == found["pattern"]), None)
    if (
        kind is None or not counts
    ):  # the originals take any other word for `static`, and a filter without one, too
        return Registration(BrokerFamily.KAFKA, FixedTopics(counts))
    ((text, threads),) = counts.items()
    return Registration(BrokerFamily.KAFKA, _filtered(kind, text, threads))


def _filtered(kind: FilterKind, text: str, threads: int) -> FilteredTopics:
    return FilteredTopics(TopicFilter(kind, cleaned(text)), _count(threads, least=1))


def _count(found: Any, *, least: int) -> int:
    if type(found) is not int or not least <= found <= _MOST_THREADS:
        raise ValueError(f"{found!r} is no number of threads")
    return found


def _map(threads: Mapping[str, int]) -> str:
    return (
        "{"
        + ",".join(
            f'"{topic.translate(_ESCAPED)}":{count}' for topic, count in sorted(threads.items())
        )
        + "}"
    )
