"""How do brokers and consumers register in ZooKeeper?

Brokers of Kafka 0.8 to 3.x write JSON: `/brokers/ids/[b]` in versions 1 (0.8) to 5 (2.7 and later),
replicas of topics, state of partitions. Jafka and Kafka 0.7 write `creator:host:port`, from Jafka
1.4 on with a fourth field, and partition counts. Unparsable text is None, never an error.

Consumers register in `/consumers/[group]/ids/[consumer]`:

    Kafka 0.7     { "clicks": 2,"orders": 1 }    topics and threads per topic
                  *4*clicks.*                    four threads for each topic that matches
                  !4!clicks.*                    four threads for each topic that does not
    Jafka         {"clicks":2,"orders":1}        topics only
    Kafka 0.8 on  {"version":1,"subscription":{"clicks":2},"pattern":"static","timestamp":"1446"}
                  the same with `"pattern":"white_list"` or `"black_list"` and one pattern

A consumer that cannot parse a registration of its group fails each rebalance, so the format follows
the broker type. Registrations written here equal those of the original consumers byte for byte, up
to the order of topics. Consumers of 1.0 and 1.1 escape their pattern twice, and read it so; it is
parsed here as they do.

Lives here: also znodes with one value, a committed offset and the id of a pipeline.
Not here: owners of partitions and the driver lock (owner_nodes.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from etl.errors import BadOffset, LedgersDisagree, SettingsError
from etl.ledger.topic_filters import FilterKind, NotTranslated, TopicFilter, cleaned
from etl.model.partitions import Broker, BrokerFamily, TopicPartition
from etl.model.security import OPEN, Security, SecurityProtocol

_MOST_PARTITIONS = 100_000
"""Most partitions of one topic on one broker; a larger number is invalid."""
_JAVA_OBJECT = b"\xac\xed\x00\x05t"
"""Prefix of a text that a ZkClient with its default serializer wrote.

Two bytes with the length follow, then the text.
"""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """State of a partition as last written by the controller (Kafka 0.8 to 3.x)."""

    leader: int | None
    leader_epoch: int | None
    in_sync: tuple[int, ...]
    """Ids of the in-sync replicas."""


def dialect_of(payload: bytes) -> BrokerFamily | None:
    """Return the broker type by the form of a registration; None for an unknown form."""
    if payload.lstrip().startswith(b"{"):
        return BrokerFamily.KAFKA
    return BrokerFamily.JAFKA if _fields(payload) is not None else None


def parse_broker(broker_id: str, payload: bytes, security: Security = OPEN) -> Broker | None:
    """Return a broker of Kafka 0.8 or later; None without such a listener, or if it is invalid.

    `host` and `port` are those of the first PLAINTEXT listener, null and -1 without one. Then, and
    for other listeners, `endpoints` is used, with `listener_security_protocol_map` (from version 4
    on) for named ones.
    """
    try:
        registration = json.loads(payload)
        host = registration.get("host")
        port = registration.get("port")
        is_first = security.protocol is SecurityProtocol.PLAINTEXT and security.listener is None
        if is_first and host and isinstance(port, int) and _is_port(port):
            return Broker(int(broker_id), str(host), port)
        for listener, protocol, address in _endpoints(registration):
            if protocol != security.protocol.value or security.listener not in (None, listener):
                continue
            host, _, text = address.rpartition(":")
            if host and _is_port(int(text)):
                return Broker(int(broker_id), host.strip("[]"), int(text))
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError):
        pass
    return None


def parse_listeners(payload: bytes) -> tuple[str, ...]:
    """Return the listeners of a Kafka broker as text: `INSIDE (SASL_SSL)`; empty if invalid."""
    listeners = []
    for name, protocol in parse_endpoints(payload):
        if name == protocol:
            listeners.append(name)
        else:
            listeners.append(f"{name} ({protocol})")
    return tuple(listeners)


def parse_endpoints(payload: bytes) -> tuple[tuple[str, str], ...]:
    """Return name and protocol of each listener of a Kafka broker; empty if invalid."""
    try:
        return tuple((name, protocol) for name, protocol, _ in _endpoints(json.loads(payload)))
    except (ValueError, AttributeError, TypeError, RecursionError):
        return ()


def _endpoints(registration: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return name, protocol and address of each listener."""
    protocols = registration.get("listener_security_protocol_map") or {}
    endpoints = []
    for endpoint in registration.get("endpoints") or ():
        listener, _, address = str(endpoint).partition("://")
        endpoints.append((listener, str(protocols.get(listener, listener)), address))
    return endpoints


def parse_physical_broker(broker_id: str, payload: bytes) -> Broker | None:
    """Return a broker of Jafka or Kafka 0.7; None for another format.

    The format is `creator:host:port`, from Jafka 1.4 on with `:true` or `:false` (whether the first
    message creates a topic). In an IPv6 host Jafka writes `#` for `:`.
    """
    fields = _fields(payload)
    if fields is None or not re.fullmatch(r"[0-9]{1,10}", broker_id):
        return None
    return Broker(
        int(broker_id),
        fields[1].replace("#", ":").strip("[]"),
        int(fields[2]),
        BrokerFamily.JAFKA.value,
    )


def parse_count(payload: bytes) -> int | None:
    """Return the number of partitions of a topic on a broker of Jafka or Kafka 0.7, or None."""
    text = _text(payload)
    if not re.fullmatch(r"[0-9]{1,9}", text):
        return None
    count = int(text)
    if not 0 < count <= _MOST_PARTITIONS:
        return None
    return count


def parse_cluster_id(payload: bytes) -> str | None:
    """Return Kafka's cluster id; None if the payload is invalid."""
    try:
        return str(json.loads(payload)["id"] or "") or None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def parse_replicas(payload: bytes) -> dict[int, tuple[int, ...]]:
    """Return the replicas of each partition of a topic (Kafka 0.8 to 3.x), preferred leader first.

    Empty if the payload is invalid.
    """
    try:
        found: Mapping[str, Any] = json.loads(payload)["partitions"]
        return {int(number): tuple(map(int, brokers)) for number, brokers in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def parse_topic_config(payload: bytes) -> dict[str, str]:
    """Parse `/config/topics/[t]` (Kafka 0.8.1 to 3.x).

    Returns the overrides of the topic, without broker defaults; empty if invalid.
    """
    try:
        found: Mapping[str, Any] = json.loads(payload)["config"]
        return {str(key): str(value) for key, value in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def parse_partition_state(payload: bytes) -> PartitionState | None:
    """Parse `/brokers/topics/[t]/partitions/[p]/state` (Kafka 0.8 to 3.x); None if invalid."""
    try:
        found = json.loads(payload)
        return PartitionState(
            _unless_negative(int(found["leader"])),
            _unless_negative(int(found["leader_epoch"])),
            tuple(map(int, found["isr"])),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _unless_negative(number: int) -> int | None:
    """Return the number; None if it is negative, which means that it is missing."""
    if number < 0:
        return None
    return number


def _fields(payload: bytes) -> list[str] | None:
    """Return creator, host, port and an optional flag; None for another form, such as JSON."""
    text = _text(payload)
    fields = text.split(":")
    if text.startswith("{") or len(fields) not in (3, 4) or not fields[1]:
        return None
    if not re.fullmatch(r"[0-9]{1,5}", fields[2]) or not _is_port(int(fields[2])):
        return None
    if len(fields) == 4 and fields[3] not in ("true", "false"):
        return None
    return fields


def _text(payload: bytes) -> str:
    """Return the UTF-8 text, with or without the header of Java's serialization."""
    if payload.startswith(_JAVA_OBJECT):
        payload = payload[len(_JAVA_OBJECT) + 2 :]
    return payload.decode("utf-8", "replace").strip()


def _is_port(number: int) -> bool:
    return 0 < number < 65536


MAX_OFFSET = 2**63 - 1


def render_offset(offset: int) -> bytes:
    """Return the offset as ASCII decimal: old consumers reject a trailing newline or blank."""
    return str(offset).encode("ascii")


def parse_offset(payload: bytes, *, path: str, partition: TopicPartition) -> int:
    """Return a committed offset. Raises BadOffset with the znode and its content."""
    text = payload.decode("latin-1")
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= MAX_OFFSET):
        raise BadOffset(
            f"The committed offset is no number: {text[:40]!r}",
            **partition.place,
            znode=path,
            action="Check which client wrote that znode. If the pipeline has a plan, run "
            "`etl ledger restore CONF --reason ...`, which writes the loaded-until offset there; "
            "before the first plan set it to the next offset to read, as plain decimal text",
        )
    return int(text)


def parse_uid(payload: bytes, *, path: str) -> str | None:
    """Return the pipeline's uid; None if the znode is only a parent of others."""
    if not payload:
        return None
    text = payload.decode("latin-1")
    if not (text.isascii() and text.isalnum() and len(text) <= 64):
        raise LedgersDisagree(
            f"The pipeline's uid is invalid: {text[:40]!r}",
            znode=path,
            action="Check which client wrote that znode",
        )
    return text


_MOST_THREADS = 100_000
"""Most threads of one consumer for one topic; a larger number is invalid."""
_BY_FILTER = re.compile(r"(?P<kind>[*!])(?P<threads>[0-9]{1,9})(?P=kind)(?P<text>.*)")
_KINDS = {"*": FilterKind.WHITE_LIST, "!": FilterKind.BLACK_LIST}
_STATIC = "static"
_CONTROL_CODES = (*range(0x20), *range(0x7F, 0xA0))
_ESCAPED_CONTROLS = {chr(code): f"\\u{code:04x}" for code in _CONTROL_CODES}
_ESCAPED = str.maketrans(
    {
        **_ESCAPED_CONTROLS,
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
_CHECK_WRITER = (
    "Check which client wrote that znode; the group's old consumers cannot read it either, and "
    "fail to rebalance as long as it exists"
)


@dataclass(frozen=True, slots=True)
class FixedTopics:
    """The subscription of a consumer that named its topics."""

    threads: Mapping[str, int]
    """Number of threads for each topic."""


@dataclass(frozen=True, slots=True)
class FilteredTopics:
    """The subscription of a consumer that reads all topics of a filter, later ones, too."""

    filter: TopicFilter
    threads: int
    """Number of threads for each topic."""


@dataclass(frozen=True, slots=True)
class Registration:
    """The registration of one consumer of a group."""

    dialect: BrokerFamily
    """Broker type: consumers of this type can read the registration."""
    reads: FixedTopics | FilteredTopics

    def threads(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of threads for each topic.

        `topics`: the existing ones. A topic that the consumer named counts even if it is missing.
        """
        if isinstance(self.reads, FixedTopics):
            return {topic: count for topic, count in self.reads.threads.items() if count > 0}
        threads = {}
        for topic in topics:
            if self.reads.filter.allows(topic):
                threads[topic] = self.reads.threads
        return threads


def parse_registration(payload: bytes, *, path: str) -> Registration:
    """Parse a consumer's registration.

    Raises SettingsError, with the znode, if it is invalid or its filter cannot be translated.
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
        raise SettingsError(
            f"A consumer of the group reads topics by a pattern that is not supported: {error}",
            znode=path,
            action="Check that consumer's topic filter",
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        text = payload[:80].decode("utf-8", "replace")
        raise SettingsError(
            f"The registration of a consumer of the group is invalid: {text!r}",
            znode=path,
            action=_CHECK_WRITER,
        ) from error


def render_registration(registration: Registration, *, now_ms: int) -> bytes:
    """Return the payload of a consumer's znode, as consumers of its broker type write it.

    Raises ValueError for a topic filter on Jafka. Its own consumers may register one
    (`parse_registration`); ours register the names of the topics there, and register again when
    these change (etl/io/zookeeper/group_member.py).
    """
    reads = registration.reads
    if registration.dialect is BrokerFamily.JAFKA:
        if isinstance(reads, FilteredTopics):
            raise ValueError("a member registers topics by name on Jafka")
        return _map(reads.threads).encode()
    if isinstance(reads, FixedTopics):
        pattern = _STATIC
        subscription = _map(reads.threads)
    else:
        pattern = reads.filter.kind.value
        subscription = _map({reads.filter.text: reads.threads})
    document = (
        f'{{"version":1,"subscription":{subscription},'
        f'"pattern":"{pattern}","timestamp":"{now_ms}"}}'
    )
    return document.encode()


def _of_document(found: Any) -> Registration:
    """Return the registration of a JSON document.

    Raises ValueError, TypeError, KeyError or AttributeError if it is invalid.
    """
    if not isinstance(found.get("subscription"), dict):
        counts = _counts(found, least=0)
        return Registration(BrokerFamily.JAFKA, FixedTopics(counts))
    counts = _counts(found["subscription"], least=1)
    if not isinstance(found["pattern"], str):
        raise ValueError("the pattern is no text")
    kind = _kind(found["pattern"])
    # Original consumers treat an unknown pattern as `static`, and so a filter without a text.
    if kind is None or not counts:
        return Registration(BrokerFamily.KAFKA, FixedTopics(counts))
    ((text, threads),) = counts.items()
    return Registration(BrokerFamily.KAFKA, _filtered(kind, text, threads))


def _kind(pattern: str) -> FilterKind | None:
    for kind in FilterKind:
        if kind.value == pattern:
            return kind
    return None


def _filtered(kind: FilterKind, text: str, threads: int) -> FilteredTopics:
    return FilteredTopics(TopicFilter(kind, cleaned(text)), _count(threads, least=1))


def _counts(found: Mapping[str, Any], *, least: int) -> dict[str, int]:
    return {topic: _count(count, least=least) for topic, count in found.items()}


def _count(found: Any, *, least: int) -> int:
    if type(found) is not int or not least <= found <= _MOST_THREADS:
        raise ValueError(f"{found!r} is no number of threads")
    return found


def _map(threads: Mapping[str, int]) -> str:
    fields = [f'"{topic.translate(_ESCAPED)}":{count}' for topic, count in sorted(threads.items())]
    return "{" + ",".join(fields) + "}"
