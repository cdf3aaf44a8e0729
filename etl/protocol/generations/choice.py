"""Which generation a broker is of: the one place where they are all named. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from etl.errors import NotKafka
from etl.protocol.generations.dialect import Generation, Greeting
from etl.protocol.generations.kafka.dialect import Kafka

Greeted = TypeVar("Greeted")
GENERATIONS: tuple[Generation, ...] = (Kafka(),)
"""The newest first."""


def choose(greet: Callable[[Greeting], Greeted], *, client_id: str, address: str) -> Greeted:
    """What `greet` makes of the first generation whose greeting the broker answers.

    `greet` raises NotKafka for an answer that is not of the generation. Where no generation fits, that of the newest is raised, which
    most brokers are of.
    """
    strangers: list[NotKafka] = []
    for generation in GENERATIONS:
        try:
            return greet(generation.greeting(client_id, address))
        except NotKafka as stranger:
            strangers.append(stranger)
    raise strangers[0]
