"""Which generation a broker is of: the one place where they are all named. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from etl.errors import NotKafka, SettingsError
from etl.protocol.generations.dialect import Generation, Greeting, Request
from etl.protocol.generations.jafka.dialect import Jafka
from etl.protocol.generations.kafka import login
from etl.protocol.generations.kafka.dialect import Kafka
from etl.protocol.generations.kafka.versions import release_of
from etl.protocol.login import LoginDialect

Greeted = TypeVar("Greeted")
GENERATIONS: tuple[Generation, ...] = (Kafka(), Jafka())
"""The newest first."""


def choose(
    greet: Callable[[Greeting], Greeted], *, client_id: str, address: str, told: str | None = None
) -> Greeted:
    """What `greet` makes of the first generation whose greeting the broker answers; of the one that
    was `told`, if one was.

    `greet` raises NotKafka for an answer that is not of the generation. Where no generation fits,
    that of the newest is raised, which most brokers are of. Raises SettingsError for a name that no
    generation has.
    """
    strangers: list[NotKafka] = []
    for generation in _asked(told):
        try:
            return greet(generation.greeting(client_id, address, told))
        except NotKafka as stranger:
            strangers.append(stranger)
    raise strangers[0]


def login_asked_first(client_id: str, address: str) -> Request[LoginDialect]:
    """The question by which a broker tells how it is logged in to. One generation has logins at
    all.
    """
    return login.asked_first(client_id, address)


def is_release(told: str | None) -> bool:
    """Whether a broker that was told to be of this generation could also be asked what it is."""
    return any(told in generation.releases for generation in GENERATIONS)


def may_lose_isolation(told: str | None) -> bool:
    """Whether a broker that was told to be of this generation is asked for records as one without
    transactions, whatever it is.
    """
    return any(told in generation.without_isolation for generation in GENERATIONS)


def of_broker_version(version: str, **said: str) -> str:
    """The name of the generation that speaks with brokers of this version of Kafka, so that none of
    them is asked.

    Raises SettingsError for a version of which it is not known what its brokers speak; `said` names
    the setting.
    """
    release = release_of(version)
    if release is None:
        what = f"what brokers of version {version} speak is not known"
        check = "the number, such as 0.8.2, 0.9 or 3.9; brokers from 0.10 on tell what they speak by themselves"
        raise SettingsError(what, check=check, **(said or {"key": "source.broker_version"}))
    return Kafka.name_of(release)


def _asked(told: str | None) -> tuple[Generation, ...]:
    if told is None:
        return tuple(generation for generation in GENERATIONS if not generation.is_told)
    found = tuple(generation for generation in GENERATIONS if told in generation.names)
    if not found:
        names = ", ".join(name for generation in GENERATIONS for name in generation.names)
        raise SettingsError(
            f"there is no generation of brokers called {told}", check=f"one of {names}"
        )
    return found
