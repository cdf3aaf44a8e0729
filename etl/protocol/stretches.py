"""Stretches of offsets as text, in the form that `--skip` takes: so a task tells the driver, and the driver a person, what is missing."""

from __future__ import annotations

from collections.abc import Iterable

from etl.model.logs import BrokerPartition

Stretch = tuple[BrokerPartition, int, int]
"""A log, from, until."""


def render_stretches(stretches: Iterable[Stretch]) -> str:
    """Each as `TOPIC:PARTITION:FROM-UNTIL`, until exclusive, with a space between them."""
    return " ".join(f"{log.topic}:{log.partition}:{start}-{until}" for log, start, until in stretches)


def parse_stretches(text: str) -> tuple[Stretch, ...]:
    """What `render_stretches` wrote."""
    found = []
    for one in text.split():
        topic, partition, interval = one.split(":")
        start, until = interval.split("-")
        found.append((BrokerPartition(topic, int(partition)), int(start), int(until)))
    return tuple(found)
