"""The connection of one member to the coordinator of its group: found by asking any broker, and
found again when it is another one.

One thread asks at a time; another one may `interrupt` it. Nothing here decides what an answer
means.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import closing

from etl.edges.brokers.broker_questions import BrokerQuestions
from etl.edges.brokers.exchange import Answer, Ask
from etl.errors import BrokerUnreachable, SettingsError
from etl.kafka.messages import ClusterMetadata, ToldCoordinator
from etl.model.security import OPEN, Security


class CoordinatorConnection:
    """Connects with the first question. See `BrokerQuestions` for what every question may raise.

    bootstrap      brokers that are asked who the coordinator is, one after the other until one
    answers answers_in_s   how long an ordinary answer may take, and the connect longest_s      how
    long any answer may take: a join waits for all members of the group generation     how the
    brokers must be spoken to (`Broker.generation`); None: each tells it itself security
    encryption and login of their listeners
    """

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        group: str,
        *,
        answers_in_s: float,
        longest_s: float,
        generation: str | None = None,
        security: Security = OPEN,
    ) -> None:
        if not bootstrap:
            raise SettingsError(
                "there is no broker to ask", check="source.bootstrap, or the brokers in ZooKeeper"
            )
        self._bootstrap, self._group, self._generation = tuple(bootstrap), group, generation
        self._answers_in_s, self._longest_s, self._security = answers_in_s, longest_s, security
        self._open: BrokerQuestions | None = None

    @property
    def address(self) -> str | None:
        """Of the coordinator; None while none is known."""
        return None if self._open is None else self._open.address

    @property
    def broker(self) -> BrokerQuestions:
        """The coordinator itself; looked up where none is known."""
        if self._open is None:
            found = self._look_up().broker
            self._open = self._questions(found.host, found.port, self._longest_s)
        return self._open

    def ask(self, ask: Ask[Answer], *, within_s: float | None = None) -> Answer:
        """The coordinator's answer, asked for once; looked up first where none is known.
        `within_s`: None: an ordinary answer.
        """
        coordinator = self.broker
        with coordinator.ending_by(
            time.monotonic() + (self._answers_in_s if within_s is None else within_s)
        ):
            return coordinator.send(ask, may_repeat=False)

    def topics(self, names: Collection[str]) -> ClusterMetadata:
        """What the coordinator knows of these topics."""
        return self.ask(lambda dialect: dialect.metadata(names))

    def forget(self) -> None:
        """Hang up: the next question looks the coordinator up again."""
        if self._open is not None:
            self._open.close()
        self._open = None

    def interrupt(self) -> None:
        """From another thread: whoever waits for an answer gets BrokerUnreachable."""
        if opened := self._open:
            opened.interrupt()

    def _look_up(self) -> ToldCoordinator:
        silent: list[str] = []
        for host, port in self._bootstrap:
            try:
                with closing(self._questions(host, port, self._answers_in_s)) as broker:
                    told = broker.send(lambda dialect: dialect.coordinator(self._group))
            except BrokerUnreachable as error:
                silent.append(str(error))
                continue
            if told.refusal is not None:
                raise told.refusal.error(
                    f"name the coordinator of group {self._group}", broker=f"{host}:{port}"
                )
            return told
        raise BrokerUnreachable(
            f"no broker answers: {'; '.join(silent)}",
            check="that brokers run at these addresses",
            brokers=", ".join(f"{host}:{port}" for host, port in self._bootstrap),
        )

    def _questions(self, host: str, port: int, timeout_s: float) -> BrokerQuestions:
        return BrokerQuestions(
            host,
            port,
            connect_timeout_s=self._answers_in_s,
            timeout_s=timeout_s,
            generation=self._generation,
            security=self._security,
        )
