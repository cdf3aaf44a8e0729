"""What do the two threads of a member share, and how do they reach the coordinator?

The run's thread waits for an assignment, the member's thread talks to the coordinator. Shared state
is guarded by one lock and does no I/O; times are `time.monotonic`. The coordinator is found by
asking any broker, and again after it moved. One thread sends; another may `interrupt` it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from threading import Condition

from etl.decide.group_assignment import Heartbeats, interval_of
from etl.errors import BrokerUnreachable, EtlError, SettingsError
from etl.io.brokers.client import BrokerQuestions
from etl.io.brokers.exchange import Answer, Ask
from etl.kafka.messages import ClusterMetadata, CoordinatorResponse
from etl.model.partitions import BrokerPartition, MemberAssignment, RebalanceStatistics
from etl.model.security import OPEN, Security


@dataclass(frozen=True, slots=True)
class MemberTerms:
    """How a member joins."""

    group: str
    topics: tuple[str, ...]
    strategies: tuple[str, ...] = ("range",)
    """In order of preference, of the classic protocol: all members of a group need one in common.
    """
    instance_id: str | None = None
    """Static member (from 2.3 on): within its session it may go and return with its partitions,
    unnoticed.
    """
    session_timeout_s: float = 45.0
    rebalance_timeout_s: float = 60.0
    """Time that the group waits for us to rejoin, or to release revoked partitions."""
    join_timeout_s: float = 60.0
    backoff_s: float = 0.2
    """Between two tries, where one came to nothing."""
    answers_in_s: float = 10.0
    topics_max_age_s: float = 60.0
    """How long a leader goes by the partition counts that it divided by."""
    holds_assignment: bool = False
    """True if nothing is released before `rejoin` or `leave`, within the rebalance timeout."""


class MemberState:
    """Shared by the run's thread and the member's."""

    def __init__(self, terms: MemberTerms) -> None:
        self._terms = terms
        self._changed = Condition()
        self._share: MemberAssignment | None = None
        self._unbroken = set[int | None]()
        """Generations, or epochs, since we let go of anything for the last time."""
        self._stands_since = float("-inf")
        """Time of the last request whose response confirmed the assignment."""
        self._poked = float("-inf")
        self._error: Exception | None = None
        self._trouble: EtlError | None = None
        self._is_leaving = False
        self._holds = False
        self._asked_back: frozenset[BrokerPartition] = frozenset()
        self._begun: float | None = time.monotonic()
        """Start of the current rebalance."""
        self._statistics = RebalanceStatistics()
        session_s = terms.session_timeout_s
        self._heartbeats = Heartbeats(
            interval_of(session_s), session_s, terms.backoff_s, begun=time.monotonic()
        )

    # The member's thread

    def let_go(self) -> None:
        """End the assignment; another one is wanted."""
        with self._changed:
            self._share, self._asked_back = None, frozenset()
            self._unbroken.clear()
            self._begun = time.monotonic() if self._begun is None else self._begun
            self._changed.notify_all()

    def note_try(self) -> None:
        """Count something that prevented an assignment."""
        with self._changed:
            self._statistics = replace(self._statistics, tries=self._statistics.tries + 1)

    def settle(self, share: MemberAssignment, asked_at: float) -> None:
        """Set the assignment by a response to a request of that time; or confirm it."""
        with self._changed:
            now = time.monotonic()
            if share != self._share:
                took = self._statistics.seconds + (
                    now - self._begun if self._begun is not None else 0
                )
                self._statistics = replace(
                    self._statistics, rebalances=self._statistics.rebalances + 1, seconds=took
                )
            self._begun = None
            # What was under way when the last share was let go is not the next one yet.
            self._holds = self._holds or (self._terms.holds_assignment and asked_at >= self._poked)
            self._share, self._stands_since, self._trouble = share, asked_at, None
            self._unbroken.add(share.generation)
            self._changed.notify_all()

    def request_release(self, logs: frozenset[BrokerPartition]) -> None:
        """Note that the group waits for these partitions, which are held."""
        with self._changed:
            self._asked_back = logs

    def lose(self) -> None:
        """End the membership or its assignment, against our wish."""
        with self._changed:
            if self._share is not None:
                self._statistics = replace(self._statistics, lost=self._statistics.lost + 1)

    def give_up(self, error: Exception) -> None:
        """There is no membership any more, and no way to it."""
        with self._changed:
            self._share, self._error = None, error
            self._changed.notify_all()

    def note_trouble(self, error: EtlError) -> None:
        """Note a temporary error, to report if no assignment comes in time."""
        with self._changed:
            self._trouble = error
            self._heartbeats = self._heartbeats.at_failure()

    def note_join(self) -> None:
        """The coordinator took us as a member."""
        with self._changed:
            self._heartbeats = self._heartbeats.at_join(time.monotonic())

    def note_send(self) -> float:
        """A heartbeat goes out: the moment."""
        with self._changed:
            now = time.monotonic()
            self._heartbeats = self._heartbeats.at_send(now)
            return now

    def note_answer(self) -> None:
        """The coordinator knew us."""
        with self._changed:
            self._heartbeats = self._heartbeats.at_answer(time.monotonic())

    def beat_every(self, interval_s: float) -> None:
        """Set the coordinator's heartbeat interval, if it is shorter."""
        with self._changed:
            wanted = min(interval_s, interval_of(self._terms.session_timeout_s))
            self._heartbeats = replace(self._heartbeats, interval_s=wanted)

    def pause(self, seconds: float | None = None) -> bool:
        """Wait so long, by default until the next heartbeat is due, unless the run wants to know at
        once. False: we are leaving.
        """
        with self._changed:
            until = time.monotonic() + (
                self._heartbeats.wait_s(time.monotonic()) if seconds is None else seconds
            )
            while not self._is_leaving and (left := until - time.monotonic()) > 0:
                if seconds is None and self._poked > self._heartbeats.sent:
                    break
                self._changed.wait(left)
            return not self._is_leaving

    @property
    def is_leaving(self) -> bool:
        """True if the run wants to leave."""
        with self._changed:
            return self._is_leaving

    @property
    def holds(self) -> bool:
        """True while revoked partitions are not released."""
        with self._changed:
            return self._holds

    # The run's thread

    @property
    def newest(self) -> MemberAssignment | None:
        """Return the valid assignment; None during a rebalance."""
        with self._changed:
            return self._share

    @property
    def release_requested(self) -> frozenset[BrokerPartition]:
        """Return the held partitions that the group waits for."""
        with self._changed:
            return self._asked_back

    def is_unbroken(self, share: MemberAssignment) -> bool:
        """True if nothing of this assignment was released since, whatever its generation is now."""
        with self._changed:
            return (
                self._share is not None
                and self._share.member_id == share.member_id
                and share.generation in self._unbroken
            )

    def poke(self) -> float:
        """Ask the coordinator at once: the moment."""
        with self._changed:
            self._poked = time.monotonic()
            self._changed.notify_all()
            return self._poked

    def hold(self, holds: bool) -> None:
        """See `holds`."""
        with self._changed:
            self._holds = holds
            self._poked = time.monotonic()
            self._changed.notify_all()

    def leave(self) -> None:
        """See `is_leaving`."""
        with self._changed:
            self._is_leaving = True
            self._changed.notify_all()

    def wait_for_assignment(self, since: float, deadline: float) -> MemberAssignment | None:
        """Return the assignment confirmed by a request at or after `since`; None: not by the
        deadline. Raises why the membership ended.
        """
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                if self._share is not None and self._stands_since >= since:
                    return self._share
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)

    def is_current(self, share: MemberAssignment | None) -> bool:
        """True if this assignment is valid as far as known, and the session may be alive."""
        with self._changed:
            return (
                share is not None
                and self._share == share
                and not self._heartbeats.is_over(time.monotonic())
            )

    @property
    def trouble(self) -> EtlError | None:
        """Return the last error besides the group's own rebalances."""
        with self._changed:
            return self._trouble

    @property
    def statistics(self) -> RebalanceStatistics:
        """Cost of the membership so far."""
        with self._changed:
            return replace(
                self._statistics, heartbeat_age_s=self._heartbeats.age_s(time.monotonic())
            )


class CoordinatorConnection:
    """Connection to the coordinator, made with the first request. See `BrokerQuestions` for errors.

    bootstrap      brokers to ask for the coordinator, one after the other
    answers_in_s   timeout of an ordinary response, and of the connect
    longest_s      timeout of any response: a join waits for all members
    generation     broker type or release (`Broker.generation`); None: detected
    security       encryption and login
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
                "There is no broker to ask",
                action="Check source.bootstrap_servers, or the brokers in ZooKeeper",
            )
        self._bootstrap, self._group, self._generation = tuple(bootstrap), group, generation
        self._answers_in_s, self._longest_s, self._security = answers_in_s, longest_s, security
        self._open: BrokerQuestions | None = None

    @property
    def address(self) -> str | None:
        """Return the coordinator's address; None if unknown."""
        return None if self._open is None else self._open.address

    @property
    def broker(self) -> BrokerQuestions:
        """The coordinator itself; looked up where none is known."""
        if self._open is None:
            found = self._look_up().broker
            self._open = self._questions(found.host, found.port, self._longest_s)
        return self._open

    def ask(self, ask: Ask[Answer], *, within_s: float | None = None) -> Answer:
        """Return the coordinator's response, once; it is looked up first if unknown. `within_s`
        None: an ordinary response.
        """
        coordinator = self.broker
        with coordinator.ending_by(
            time.monotonic() + (self._answers_in_s if within_s is None else within_s)
        ):
            return coordinator.send(ask, may_repeat=False)

    def topics(self, names: Collection[str]) -> ClusterMetadata:
        """Return what the coordinator knows of these topics."""
        return self.ask(lambda dialect: dialect.metadata(names))

    def forget(self) -> None:
        """Close the connection: the next request looks the coordinator up again."""
        if self._open is not None:
            self._open.close()
        self._open = None

    def interrupt(self) -> None:
        """From another thread: a waiting call raises BrokerUnreachable."""
        if opened := self._open:
            opened.interrupt()

    def _look_up(self) -> CoordinatorResponse:
        silent: list[str] = []
        for host, port in self._bootstrap:
            try:
                with closing(self._questions(host, port, self._answers_in_s)) as broker:
                    found = broker.send(lambda dialect: dialect.coordinator(self._group))
            except BrokerUnreachable as error:
                silent.append(str(error))
                continue
            if found.refusal is not None:
                raise found.refusal.error(
                    f"name the coordinator of group {self._group}", broker=f"{host}:{port}"
                )
            return found
        raise BrokerUnreachable(
            f"No broker answers: {'; '.join(silent)}",
            action="Check that brokers run at these addresses",
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
