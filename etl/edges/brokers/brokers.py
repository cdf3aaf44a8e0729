"""All brokers behind a list of addresses: one connection to each, asked one after the other or side by side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from etl.edges.brokers.idle_connections import IdleConnections
from etl.edges.brokers.simple_consumer import SimpleConsumer
from etl.errors import BrokerUnreachable, SettingsError
from etl.model.logs import Broker, BrokerPartition, Isolation, Leader
from etl.protocol.generations.choice import may_lose_isolation
from etl.protocol.messages import ClusterMetadata
from etl.settings.fetch_sizes import TIMEOUT_S

Answer = TypeVar("Answer")
Subject = TypeVar("Subject")
MOST_AT_A_TIME = 64
"""Brokers that are asked side by side, by a thread each that mostly waits: one that is slow keeps none of the others waiting."""


Registry = Callable[[Collection[str] | None], ClusterMetadata]
"""Who tells of brokers and topics where the brokers do not: asked like `describe`, as often as it is."""


class Brokers:
    """All brokers behind a list of addresses. Keeps one connection per broker until it is closed.

    registry           who tells of the cluster instead of the brokers
    generation         how all of them must be spoken to (`Broker.generation`); None: each tells it itself
    idle_connections   where connections come from, and go to with `close`; None: they are its own

    Every question raises BrokerUnreachable when nobody answers, and NotKafka when a port speaks something else.
    """

    def __init__(self, bootstrap: Sequence[tuple[str, int]], *, connect_timeout_s: float = 10.0, timeout_s: float = TIMEOUT_S,
                 registry: Registry | None = None, generation: str | None = None,
                 idle_connections: IdleConnections | None = None) -> None:
        if not bootstrap:
            raise SettingsError("there is no broker to ask", check="source.bootstrap, or the brokers in ZooKeeper")
        self._bootstrap = tuple(bootstrap)
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        self._registry, self._generation, self._idle_connections = registry, generation, idle_connections
        self._consumers: dict[tuple[str, int], SimpleConsumer] = {}

    def close(self) -> None:
        """Hang up everywhere."""
        for consumer in self._consumers.values():
            consumer.close()
        self._consumers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def describe(self, topics: Collection[str] | None = None) -> ClusterMetadata:
        """One Metadata request to the first broker that answers, or the registry's word; None: of all topics. Creates none."""
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
        raise BrokerUnreachable(f"no broker answers: {'; '.join(silent)}", check="that brokers run at these addresses",
                                brokers=", ".join(f"{host}:{port}" for host, port in self._bootstrap))

    def of_each(self, leaders: Mapping[BrokerPartition, Leader],
                ask: Callable[[SimpleConsumer, Collection[BrokerPartition]], Answer]) -> list[Answer]:
        """One answer per broker, brokers asked side by side; each has a connection of its own."""
        by_broker: dict[Broker, list[BrokerPartition]] = {}
        for log, leader in leaders.items():
            by_broker.setdefault(leader.broker, []).append(log)
        asked = [(self.consumer(broker.host, broker.port, broker.generation), logs) for broker, logs in by_broker.items()]
        return self.side_by_side(asked, ask)

    @staticmethod
    def side_by_side(asked: Sequence[tuple[SimpleConsumer, Subject]], ask: Callable[[SimpleConsumer, Subject], Answer]) -> list[Answer]:
        """One answer per question, in the order of the questions."""
        if len(asked) < 2:
            return [ask(consumer, subject) for consumer, subject in asked]
        with ThreadPoolExecutor(min(MOST_AT_A_TIME, len(asked))) as pool:
            return list(pool.map(lambda each: ask(*each), asked))

    def refuse_lost_isolation(self, brokers: Collection[Broker], isolation: Isolation) -> None:
        """Raises OtherRelease for a broker that has transactions where it is spoken to as one that has none (before 0.11).

        Only where read_committed is asked for and such a release was told is a broker asked, once for each connection. One told of
        another release, or none, keeps back itself what was not committed.
        """
        if isolation is Isolation.READ_COMMITTED:
            asked = {(one.host, one.port): self.consumer(one.host, one.port, one.generation) for one in brokers}
            unsure = [(one, isolation) for one in asked.values() if may_lose_isolation(one.generation)]
            self.side_by_side(unsure, lambda consumer, wanted: consumer.refuse_other_release(wanted))

    def with_generation(self, leader: Leader) -> Leader:
        """The same leader, with what was found out of it when it was asked: who is told need not find it out again."""
        broker = leader.broker
        found = self.consumer(broker.host, broker.port, broker.generation).generation
        return replace(leader, broker=replace(broker, generation=found))

    def consumer(self, host: str, port: int, generation: str | None = None) -> SimpleConsumer:
        """The one connection to this address; `generation`: see `Broker`."""
        if (host, port) not in self._consumers:
            self._consumers[host, port] = SimpleConsumer(
                host, port, timeout_s=self._timeout_s, connect_timeout_s=self._connect_timeout_s, generation=generation or self._generation,
                idle_connections=self._idle_connections)
        return self._consumers[host, port]
