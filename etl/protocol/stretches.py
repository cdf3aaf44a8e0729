"""Logs and stretches of their offsets as text, as an operator names them and a message names them
to him.

So a task tells the driver, and the driver a person, what is missing, and `--skip` takes the same
form.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from etl.model.logs import BrokerPartition
from etl.protocol.zookeeper.payloads import parse_partition_key

Stretch = tuple[BrokerPartition, int, int]
"""A log, from, until."""
FORM_OF_PARTITION = "PARTITION is a number, e.g. 3; where brokers have logs of their own (0.7 family) BROKER-PARTITION, e.g. 0-3"
_LOG = re.compile(r"(?P<topic>.+):(?P<key>(\d{1,10}-)?\d{1,9})")
_STRETCH = re.compile(r"(?P<log>.*):(?P<start>\d{1,19})-(?P<until>\d{1,19})")
_IN_NO_TOPIC = re.compile(r"[/\x00-\x1f\x7f-\x9f]")


def render_log(log: BrokerPartition) -> str:
    """`TOPIC:PARTITION`."""
    return f"{log.topic}:{log.key}"


def quoted_log(log: BrokerPartition) -> str:
    """The same as a shell takes it."""
    return shlex.quote(render_log(log))


def may_be_topic(text: str) -> bool:
    """Whether brokers of any generation may have a topic of this name: those of the 0.7 family
    forbid less than Kafka (a '/', control characters, '.' and '..')."""
    return bool(text) and text not in (".", "..") and not _IN_NO_TOPIC.search(text)


def parse_log(text: str) -> BrokerPartition | None:
    """The log that `render_log` names; None for any other text. The last ':' is the one before the
    partition, for topics may have some.
    """
    found = _LOG.fullmatch(text)
    return (
        parse_partition_key(found["topic"], found["key"])
        if found and may_be_topic(found["topic"])
        else None
    )


def render_stretches(stretches: Iterable[Stretch]) -> str:
    """Each as `TOPIC:PARTITION:FROM-UNTIL`, until exclusive, with a space between them."""
    return " ".join(f"{render_log(log)}:{start}-{until}" for log, start, until in stretches)


def parse_stretch(text: str) -> Stretch | None:
    """One of those that `render_stretches` wrote; None for any other text, and for a stretch
    without an offset.
    """
    found = _STRETCH.fullmatch(text)
    log = parse_log(found["log"]) if found else None
    if not found or log is None or int(found["start"]) >= int(found["until"]):
        return None
    return log, int(found["start"]), int(found["until"])


def parse_stretches(text: str) -> tuple[Stretch, ...]:
    """What `render_stretches` wrote of topics without a space, as Kafka's are. Raises ValueError
    for anything else.
    """
    found = [parse_stretch(one) for one in text.split()]
    if None in found:
        raise ValueError(f"{text!r} names no stretches of offsets")
    return tuple(one for one in found if one is not None)
