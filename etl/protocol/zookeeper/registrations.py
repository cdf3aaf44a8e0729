"""What brokers and their controller write in ZooKeeper of themselves and of topics, parsed. What is
no such text is None, never an error.

Two families write there. Kafka 0.8 to 3.x: JSON, `/brokers/ids/[b]` in versions 1 (0.8) to 5 (2.7
and later), a topic's replicas, the state of each partition. Jafka and Kafka 0.7:
`creator:host:port`, from Jafka 1.4 on with a fourth field, and partition counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from etl.model.partitions import Broker, BrokerFamily
from etl.model.security import OPEN, Security, SecurityProtocol

_MOST_PARTITIONS = 100_000
"""Of one topic on one broker: a znode that claims more is no count."""
_JAVA_OBJECT = b"\xac\xed\x00\x05t"
"""Before a text that a ZkClient with its default serializer wrote: two bytes with the length, then
the text.
"""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What the controller last wrote of a partition (Kafka 0.8 to 3.x)."""

    leader: int | None
    leader_epoch: int | None
    in_sync: tuple[int, ...]
    """The replicas that had every committed record."""


def dialect_of(payload: bytes) -> BrokerFamily | None:
    """The family of a broker by its registration: JSON or fields; None for a text that is neither."""
    if payload.lstrip().startswith(b"{"):
        return BrokerFamily.KAFKA
    return BrokerFamily.JAFKA if _fields(payload) is not None else None


def parse_broker(broker_id: str, payload: bytes, security: Security = OPEN) -> Broker | None:
    """A broker of Kafka 0.8 or later, or None when it has no listener of that protocol and name, or
    is not registered as JSON.

    `host` and `port` are those of the first listener without encryption and login, or null and -1
    where there is none by the name PLAINTEXT; then, and for any other listener, `endpoints` counts,
    with `listener_security_protocol_map` (version 4 on), which says what a listener of another name
    speaks.
    """
    try:
        registration = json.loads(payload)
        host, port = registration.get("host"), registration.get("port")
        is_first = security.protocol is SecurityProtocol.PLAINTEXT and security.listener is None
        if is_first and host and isinstance(port, int) and _is_port(port):
            return Broker(int(broker_id), str(host), port)
        for listener, speaks, address in _endpoints(registration):
            host, _, text = address.rpartition(":")
            if (
                speaks == security.protocol.value
                and security.listener in (None, listener)
                and host
                and _is_port(int(text))
            ):
                return Broker(int(broker_id), host.strip("[]"), int(text))
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError):
        pass
    return None


def parse_listeners(payload: bytes) -> tuple[str, ...]:
    """The listeners that a broker of Kafka registered, for a person: `INSIDE (SASL_SSL)`; nothing
    for what is no such registration.
    """
    return tuple(
        name if name == speaks else f"{name} ({speaks})"
        for name, speaks in parse_endpoints(payload)
    )


def parse_endpoints(payload: bytes) -> tuple[tuple[str, str], ...]:
    """The same as values: the name of each listener, and the protocol that it speaks."""
    try:
        return tuple((name, speaks) for name, speaks, _ in _endpoints(json.loads(payload)))
    except (ValueError, AttributeError, TypeError, RecursionError):
        return ()


def _endpoints(registration: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The name of each listener, what it speaks, and its address."""
    speaks = registration.get("listener_security_protocol_map") or {}
    parts = [str(endpoint).partition("://") for endpoint in registration.get("endpoints") or ()]
    return [
        (listener, str(speaks.get(listener, listener)), address) for listener, _, address in parts
    ]


def parse_physical_broker(broker_id: str, payload: bytes) -> Broker | None:
    """A broker of Jafka or Kafka 0.7, or None when its registration is not of this form.

    `creator:host:port`, and from Jafka 1.4 on `:true` or `:false` behind it, whether topics are
    made by the first message. Where the host has colons (IPv6), Jafka writes `#` for them.
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
    """How many partitions of a topic a broker of Jafka or Kafka 0.7 has; they are numbered from 0."""
    text = _text(payload)
    found = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
    return found if 0 < found <= _MOST_PARTITIONS else None


def parse_cluster_id(payload: bytes) -> str | None:
    """Kafka's cluster id, or None when the payload is not its JSON."""
    try:
        return str(json.loads(payload)["id"] or "") or None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def parse_replicas(payload: bytes) -> dict[int, tuple[int, ...]]:
    """The brokers that hold each partition of a topic (Kafka 0.8 to 3.x), the preferred leader
    first; empty for anything else.
    """
    try:
        found: Mapping[str, Any] = json.loads(payload)["partitions"]
        return {int(number): tuple(map(int, brokers)) for number, brokers in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def parse_topic_config(payload: bytes) -> dict[str, str]:
    """`/config/topics/[t]` (Kafka 0.8.1 to 3.x): what was set for the topic, not what brokers
    default to; empty for anything else.
    """
    try:
        found: Mapping[str, Any] = json.loads(payload)["config"]
        return {str(key): str(value) for key, value in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def parse_partition_state(payload: bytes) -> PartitionState | None:
    """`/brokers/topics/[t]/partitions/[p]/state` (Kafka 0.8 to 3.x)."""
    try:
        found = json.loads(payload)
        leader, epoch = int(found["leader"]), int(found["leader_epoch"])
        return PartitionState(
            leader if leader >= 0 else None,
            epoch if epoch >= 0 else None,
            tuple(map(int, found["isr"])),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _fields(payload: bytes) -> list[str] | None:
    """Creator, host and port, and what follows; None for a document, which `dialect_of` takes for
    the other family's.
    """
    text = _text(payload)
    fields = text.split(":")
    if text.startswith("{") or len(fields) not in (3, 4) or not fields[1]:
        return None
    if not re.fullmatch(r"[0-9]{1,5}", fields[2]) or not _is_port(int(fields[2])):
        return None
    return fields if len(fields) == 3 or fields[3] in ("true", "false") else None


def _text(payload: bytes) -> str:
    """UTF-8, or what Java's own serialization wraps it in."""
    if payload.startswith(_JAVA_OBJECT):
        payload = payload[len(_JAVA_OBJECT) + 2 :]
    return payload.decode("utf-8", "replace").strip()


def _is_port(number: int) -> bool:
    return 0 < number < 65536
