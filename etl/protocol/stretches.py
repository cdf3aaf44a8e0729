"""Logs and stretches of their offsets as text, as an operator names them and a message names them to him.

So a task tells the driver, and the driver a person, what is missing, and `--skip` takes the same form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from etl.model.logs import BrokerPartition
from etl.protocol.zookeeper.payloads import parse_partition_key

Stretch = tuple[BrokerPartition, int, int]
"""A log, from, until."""
FORM_OF_PARTITION = "PARTITION is a number, e.g. 3; where brokers have logs of their own (0.7 family) BROKER-PARTITION, e.g. 0-3"
_LOG = re.compile(r"(?P<topic>[A-Za-z0-9._-]+):(?P<key>(\d{1,10}-)?\d{1,9})")
_STRETCH = re.compile(r"(?P<log>[^:]*:[^:]*):(?P<start>\d{1,19})-(?P<until>\d{1,19})")


def render_log(log: BrokerPartition) -> str:
    """`TOPIC:PARTITION`."""
    return f"{log.topic}:{log.key}"


def parse_log(text: str) -> BrokerPartition | None:
    """The log that `render_log` names; None for any other text."""
    found = _LOG.fullmatch(text)
    return parse_partition_key(found["topic"], found["key"]) if found else None


def render_stretches(stretches: Iterable[Stretch]) -> str:
    """Each as `TOPIC:PARTITION:FROM-UNTIL`, until exclusive, with a space between them."""
    return " ".join(f"{render_log(log)}:{start}-{until}" for log, start, until in stretches)


def parse_stretch(text: str) -> Stretch | None:
    """One of those that `render_stretches` wrote; None for any other text, and for a stretch without an offset."""
    found = _STRETCH.fullmatch(text)
    log = parse_log(found["log"]) if found else None
    if not found or log is None or int(found["start"]) >= int(found["until"]):
        return None
    return log, int(found["start"]), int(found["until"])


def parse_stretches(text: str) -> tuple[Stretch, ...]:
    """What `render_stretches` wrote. Raises ValueError for anything else."""
    found = [parse_stretch(one) for one in text.split()]
    if None in found:
        raise ValueError(f"{text!r} names no stretches of offsets")
    return tuple(one for one in found if one is not None)
