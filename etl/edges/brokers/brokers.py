"""All brokers behind a list of addresses: one connection to each, asked one after the other or side
by side.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from etl.edges.brokers.idle_connections import IdleConnections
from etl.edges.brokers.simple_consumer import SimpleConsumer
from etl.edges.machine import open_files
from etl.errors import BrokerUnreachable, SettingsError
from etl.kafka.families import may_lose_isolation
from etl.kafka.messages import ClusterMetadata
from etl.model.partitions import Broker, BrokerPartition, Isolation, Leader
from etl.model.security import OPEN, Security
from etl.settings.choices import TIMEOUT_S

Answer = TypeVar("Answer")
Subject = TypeVar("Subject")
MOST_AT_A_TIME = 64
"""Brokers that are asked side by side, by a thread each that mostly waits: one that is slow keeps
none of the others waiting.
"""


def connections_to_keep() -> int:
    """Half of the files that this process may open, less those of brokers that are asked just now:
    the rest is for all else.
    """
    return max(0, open_files() // 2 - MOST_AT_A_TIME)


Registry = Callable[[Collection[str] | None], ClusterMetadata]
"""Who tells of brokers and topics where the brokers do not: asked like `describe`, as often as it
is.
"""


class Brokers:
    """All brokers behind a list of addresses. Keeps a connection to each until it is closed, but to
    no more than `keeps`.

    keeps              brokers beyond so many are hung up on behind each question; None:
    `connections_to_keep` registry           who tells of the cluster instead of the brokers
    generation         how all of them must be spoken to (`Broker.generation`); None: each tells it
    itself idle_connections   where connections come from, and go to with `close`; None: they are
    its own security           encryption and login of all of them

    Every question raises BrokerUnreachable when nobody answers, and NotKafka when a port speaks
    something else.
    """

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        *,
        connect_timeout_s: float = 10.0,
        timeout_s: float = TIMEOUT_S,
        registry: Registry | None = None,
        generation: str | None = None,
        idle_connections: IdleConnections | None = None,
        keeps: int | None = None,
        security: Security = OPEN,
    ) -> None:
        if not bootstrap:
            raise SettingsError(
                "there is no broker to ask", check="source.bootstrap, or the brokers in ZooKeeper"
            )
        self._bootstrap = tuple(bootstrap)
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        self._registry, self._generation, self._idle_connections = (
            registry,
            generation,
            idle_connections,
        )
        self.security = security
        """How the brokers' listeners are entered."""
        self._consumers: dict[tuple[str, int], SimpleConsumer] = {}
        self._keeps = connections_to_keep() if keeps is None else keeps
        self._not_kept: set[SimpleConsumer] = set()

    @property
    def bootstrap(self) -> tuple[tuple[str, int], ...]:
        """Host and port of the brokers that are asked first."""
        return self._bootstrap

    def close(self) -> None:
        """Hang up everywhere."""
        for consumer in self._consumers.values():
            consumer.close()
        self._consumers.clear()
        self._not_kept.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def describe(self, topics: Collection[str] | None = None) -> ClusterMetadata:
        """One Metadata request to the first broker that answers, or the registry's word; None: of
        all topics. Creates none.
        """
        if self._registry is not None:
            return self._registry(topics)
        return self.first(lambda consumer: consumer.topic_metadata(topics))

    def first(self, ask: Callable[[SimpleConsumer], Answer]) -> Answer:
        """The answer of the first broker that gives one."""
        silent: list[str] = []
        for host, port in self._bootstrap:
            try:
                return ask(self.consumer(host, port))
            except BrokerUnreachable as error:
                silent.append(str(error))
        raise BrokerUnreachable(
            f"no broker answers: {'; '.join(silent)}",
            check="that brokers run at these addresses",
            brokers=", ".join(f"{host}:{port}" for host, port in self._bootstrap),
        )

    def of_each(
        self,
        leaders: Mapping[BrokerPartition, Leader],
        ask: Callable[[SimpleConsumer, Collection[BrokerPartition]], Answer],
    ) -> list[Answer]:
        """One answer per broker, brokers asked side by side; each has a connection of its own."""
        by_address: dict[tuple[str, int], tuple[Broker, list[BrokerPartition]]] = {}
        for log, leader in leaders.items():
            broker = leader.broker
            by_address.setdefault((broker.host, broker.port), (broker, []))[1].append(log)
        asked = [
            (self.consumer(broker.host, broker.port, broker.generation), logs)
            for broker, logs in by_address.values()
        ]
        return self.side_by_side(asked, ask)

    def side_by_side(
        self,
        asked: Sequence[tuple[SimpleConsumer, Subject]],
        ask: Callable[[SimpleConsumer, Subject], Answer],
    ) -> list[Answer]:
        """One answer per question, in the order of the questions, all of them under one deadline:
        that of a call to one broker.

        However many brokers are silent, all together take no longer than one of them; whoever's
        turn comes behind it is not asked.
        """
        deadline = time.monotonic() + self._timeout_s

        def in_turn(each: tuple[SimpleConsumer, Subject]) -> Answer:
            consumer, subject = each
            try:
                with consumer.ending_by(deadline):
                    return ask(consumer, subject)
            finally:
                if consumer in self._not_kept:
                    consumer.close()

        if len(asked) < 2:
            return [in_turn(each) for each in asked]
        with ThreadPoolExecutor(min(MOST_AT_A_TIME, len(asked))) as pool:
            return list(pool.map(in_turn, asked))

    def refuse_lost_isolation(self, brokers: Collection[Broker], isolation: Isolation) -> None:
        """Raises OtherRelease for a broker that has transactions where it is spoken to as one that
        has none (before 0.11).

        Only where read_committed is asked for and such a release was told is a broker asked, once
        for each connection. One told of another release, or none, keeps back itself what was not
        committed.
        """
        if isolation is Isolation.READ_COMMITTED:
            asked = {
                (one.host, one.port): self.consumer(one.host, one.port, one.generation)
                for one in brokers
            }
            unsure = [
                (one, isolation) for one in asked.values() if may_lose_isolation(one.generation)
            ]
            self.side_by_side(
                unsure, lambda consumer, wanted: consumer.refuse_other_release(wanted)
            )

    def with_generation(self, broker: Broker) -> Broker:
        """The same broker, with what was found out of it when it was asked: who is told need not
        find it out again.
        """
        found = self.consumer(broker.host, broker.port, broker.generation).generation
        return broker if found == broker.generation else replace(broker, generation=found)

    def consumer(self, host: str, port: int, generation: str | None = None) -> SimpleConsumer:
        """The one connection to this address; `generation`: see `Broker`."""
        if (host, port) not in self._consumers:
            made = self._consumers[host, port] = SimpleConsumer(
                host,
                port,
                timeout_s=self._timeout_s,
                connect_timeout_s=self._connect_timeout_s,
                generation=generation or self._generation,
                idle_connections=self._idle_connections,
                security=self.security,
            )
            if len(self._consumers) > self._keeps:
                self._not_kept.add(made)
        return self._consumers[host, port]
