"""What do the two threads of a member share, and how do they reach the coordinator?

Lives here: the shared state, and the connection to the coordinator. Not here: the group protocols
(etl/io/brokers/group_member.py).

The run's thread waits for an assignment, the member's thread sends requests to the coordinator. The
shared state is guarded by one lock and does no I/O; times are `time.monotonic` values. Any broker
names the coordinator, again after it moved. One thread sends; another may `interrupt` it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from threading import Condition

from etl.decide.group_assignment import Heartbeats, interval_of
from etl.errors import BrokerUnreachable, EtlError, SettingsError
from etl.io.brokers.exchange import Answer, Ask
from etl.io.brokers.simple_consumer import BrokerRequests
from etl.kafka.request_values import ClusterMetadata, CoordinatorResponse
from etl.model.partitions import MemberAssignment, RebalanceStatistics, TopicPartition
from etl.model.security import OPEN, Security


@dataclass(frozen=True, slots=True)
class MemberTerms:
    """How a member joins."""

    group: str
    topics: tuple[str, ...]
    strategies: tuple[str, ...] = ("range",)
    """Of the classic protocol, in order of preference: all members of a group need a common one."""
    instance_id: str | None = None
    """Id of a static member (from 2.3 on): it may leave and return within its session.

    It keeps its partitions, without a rebalance.
    """
    session_timeout_s: float = 45.0
    rebalance_timeout_s: float = 60.0
    """Time that the group waits for us to rejoin, or to release revoked partitions."""
    join_timeout_s: float = 60.0
    backoff_s: float = 0.2
    """Pause after a failed try."""
    answers_in_s: float = 10.0
    """Timeout of an ordinary response."""
    topics_max_age_s: float = 60.0
    """Interval at which a leader checks partition counts."""
    holds_assignment: bool = False
    """True if nothing is released before `rejoin` or `leave`, within the rebalance timeout."""


class MemberState:
    """State that the run's thread and the member's thread share."""

    def __init__(self, terms: MemberTerms) -> None:
        self._terms = terms
        self._changed = Condition()
        self._assignment: MemberAssignment | None = None
        self._retained_generations: set[int | None] = set()
        """Generations, or epochs, since a partition was last released."""
        self._confirmed_at = float("-inf")
        """When the last request was sent that confirmed the assignment.

        Not when its response arrived: a response may be outdated on arrival.
        """
        self._heartbeat_requested_at = float("-inf")
        self._error: Exception | None = None
        self._last_error: EtlError | None = None
        self._is_leaving = False
        self._holds = False
        self._release_requested: frozenset[TopicPartition] = frozenset()
        self._rebalance_began: float | None = time.monotonic()
        """Start of the current rebalance; None: there is none."""
        self._statistics = RebalanceStatistics()
        session_s = terms.session_timeout_s
        self._heartbeats = Heartbeats(
            interval_of(session_s), session_s, terms.backoff_s, begun=time.monotonic()
        )

    # The member's thread

    def end_assignment(self) -> None:
        """End the assignment; the member waits for another one."""
        with self._changed:
            self._assignment = None
            self._release_requested = frozenset()
            self._retained_generations.clear()
            if self._rebalance_began is None:
                self._rebalance_began = time.monotonic()
            self._changed.notify_all()

    def note_try(self) -> None:
        """Count a response that prevented an assignment."""
        with self._changed:
            self._statistics = replace(self._statistics, tries=self._statistics.tries + 1)

    def set_assignment(self, assignment: MemberAssignment, sent_at: float) -> None:
        """Set or confirm the assignment, by the response to a request sent at that time."""
        with self._changed:
            now = time.monotonic()
            if assignment != self._assignment:
                seconds = self._statistics.seconds
                if self._rebalance_began is not None:
                    seconds += now - self._rebalance_began
                self._statistics = replace(
                    self._statistics, rebalances=self._statistics.rebalances + 1, seconds=seconds
                )
            self._rebalance_began = None
            # A request from before the last release does not return the next assignment yet.
            if self._terms.holds_assignment and sent_at >= self._heartbeat_requested_at:
                self._holds = True
            self._assignment = assignment
            self._confirmed_at = sent_at
            self._last_error = None
            self._retained_generations.add(assignment.generation)
            self._changed.notify_all()

    def request_release(self, partitions: frozenset[TopicPartition]) -> None:
        """Note that the group waits for these partitions, which are held."""
        with self._changed:
            self._release_requested = partitions

    def count_loss(self) -> None:
        """Count an assignment that the coordinator ended."""
        with self._changed:
            if self._assignment is not None:
                self._statistics = replace(self._statistics, lost=self._statistics.lost + 1)

    def fail(self, error: Exception) -> None:
        """End the membership by an error that no retry helps against."""
        with self._changed:
            self._assignment = None
            self._error = error
            self._changed.notify_all()

    def note_error(self, error: EtlError) -> None:
        """Note a temporary error, to report if no assignment arrives in time."""
        with self._changed:
            self._last_error = error
            self._heartbeats = self._heartbeats.at_failure()

    def note_join(self) -> None:
        """Note that the coordinator accepted us as a member."""
        with self._changed:
            self._heartbeats = self._heartbeats.at_join(time.monotonic())

    def note_send(self) -> float:
        """Note that a heartbeat is sent now; return the time."""
        with self._changed:
            now = time.monotonic()
            self._heartbeats = self._heartbeats.at_send(now)
            return now

    def note_answer(self) -> None:
        """Note a response by which the coordinator knows us."""
        with self._changed:
            self._heartbeats = self._heartbeats.at_answer(time.monotonic())

    def set_heartbeat_interval(self, interval_s: float) -> None:
        """Set the coordinator's heartbeat interval, if it is shorter than ours."""
        with self._changed:
            shorter = min(interval_s, interval_of(self._terms.session_timeout_s))
            self._heartbeats = replace(self._heartbeats, interval_s=shorter)

    def pause(self, seconds: float | None = None) -> bool:
        """Wait so long; None: until the next heartbeat is due, or the run requests one.

        Return False if we are leaving.
        """
        with self._changed:
            now = time.monotonic()
            until = now + (self._heartbeats.wait_s(now) if seconds is None else seconds)
            while not self._is_leaving and (left := until - time.monotonic()) > 0:
                if seconds is None and self._heartbeat_requested_at > self._heartbeats.sent:
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
            return self._assignment

    @property
    def release_requested(self) -> frozenset[TopicPartition]:
        """Return the held partitions that the group waits for."""
        with self._changed:
            return self._release_requested

    def is_retained(self, assignment: MemberAssignment) -> bool:
        """True if nothing of this assignment was released since, in any later generation."""
        with self._changed:
            return (
                self._assignment is not None
                and self._assignment.member_id == assignment.member_id
                and assignment.generation in self._retained_generations
            )

    def request_heartbeat(self) -> float:
        """Have the member's thread send a heartbeat at once; return the time of the request."""
        with self._changed:
            self._heartbeat_requested_at = time.monotonic()
            self._changed.notify_all()
            return self._heartbeat_requested_at

    def hold(self, holds: bool) -> None:
        """Set `holds`, and request a heartbeat."""
        with self._changed:
            self._holds = holds
            self._heartbeat_requested_at = time.monotonic()
            self._changed.notify_all()

    def leave(self) -> None:
        """Set `is_leaving`."""
        with self._changed:
            self._is_leaving = True
            self._changed.notify_all()

    def wait_for_assignment(self, since: float, deadline: float) -> MemberAssignment | None:
        """Return the assignment confirmed by a request at or after `since`.

        None: not by the deadline, or we are leaving. Raises the error that ended the membership.
        """
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                if self._assignment is not None and self._confirmed_at >= since:
                    return self._assignment
                left = deadline - time.monotonic()
                if left <= 0 or self._is_leaving:
                    return None
                self._changed.wait(left)

    def is_current(self, assignment: MemberAssignment | None) -> bool:
        """True if this assignment is valid as far as known, and the session may be alive."""
        with self._changed:
            return (
                assignment is not None
                and self._assignment == assignment
                and not self._heartbeats.is_over(time.monotonic())
            )

    @property
    def last_error(self) -> EtlError | None:
        """Return the last temporary error; None after an assignment."""
        with self._changed:
            return self._last_error

    @property
    def statistics(self) -> RebalanceStatistics:
        """Cost of the membership so far."""
        with self._changed:
            return replace(
                self._statistics, heartbeat_age_s=self._heartbeats.age_s(time.monotonic())
            )


class CoordinatorConnection:
    """Connection to the coordinator, opened by the first request. Raises as `BrokerRequests`.

    bootstrap      brokers that are requested for the coordinator, one after the other
    answers_in_s   timeout of an ordinary response, and of the connect
    longest_s      timeout of any response: a join waits for all members
    broker_type    broker type or release (`Broker.broker_type`); None: detected
    security       encryption and login
    """

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        group: str,
        *,
        answers_in_s: float,
        longest_s: float,
        broker_type: str | None = None,
        security: Security = OPEN,
    ) -> None:
        if not bootstrap:
            raise SettingsError(
                "There is no broker to connect to",
                action="Check source.bootstrap_servers, or the brokers in ZooKeeper",
            )
        self._bootstrap = tuple(bootstrap)
        self._group = group
        self._answers_in_s = answers_in_s
        self._longest_s = longest_s
        self._broker_type = broker_type
        self._security = security
        self._open: BrokerRequests | None = None

    @property
    def address(self) -> str | None:
        """Return the coordinator's address; None if unknown."""
        if self._open is None:
            return None
        return self._open.address

    @property
    def broker(self) -> BrokerRequests:
        """Return the coordinator; find it if it is unknown."""
        if self._open is None:
            found = self._find_coordinator().broker
            self._open = self._connect(found.host, found.port, self._longest_s)
        return self._open

    def ask(self, ask: Ask[Answer], *, within_s: float | None = None) -> Answer:
        """Return the coordinator's response; the request is sent once.

        The coordinator is found first if it is unknown. `within_s` None: `answers_in_s`.
        """
        coordinator = self.broker
        timeout_s = self._answers_in_s if within_s is None else within_s
        with coordinator.ending_by(time.monotonic() + timeout_s):
            return coordinator.send(ask, may_repeat=False)

    def topics(self, names: Collection[str]) -> ClusterMetadata:
        """Return the coordinator's metadata of these topics."""
        return self.ask(lambda protocol: protocol.metadata(names))

    def forget(self) -> None:
        """Close the connection: the next request finds the coordinator again."""
        if self._open is not None:
            self._open.close()
        self._open = None

    def interrupt(self) -> None:
        """Make a call that waits in another thread raise BrokerUnreachable."""
        opened = self._open
        if opened:
            opened.interrupt()

    def _find_coordinator(self) -> CoordinatorResponse:
        failures: list[str] = []
        for host, port in self._bootstrap:
            try:
                with closing(self._connect(host, port, self._answers_in_s)) as broker:
                    found = broker.send(lambda protocol: protocol.groups.coordinator(self._group))
            except BrokerUnreachable as error:
                failures.append(f"{host}:{port}: {error.message}")
                continue
            if found.refusal is not None:
                raise found.refusal.error(
                    f"name the coordinator of group {self._group}", broker=f"{host}:{port}"
                )
            return found
        raise BrokerUnreachable(
            f"No broker answers: {'; '.join(failures)}",
            action="Check that brokers run at these addresses, which bootstrap_servers names or "
            "which are registered in ZooKeeper",
            brokers=", ".join(f"{host}:{port}" for host, port in self._bootstrap),
        )

    def _connect(self, host: str, port: int, timeout_s: float) -> BrokerRequests:
        return BrokerRequests(
            host,
            port,
            connect_timeout_s=self._answers_in_s,
            request_timeout_s=timeout_s,
            broker_type=self._broker_type,
            security=self._security,
        )
