"""One member of a group of Kafka's own, whose coordinator says who owns which log: beside Kafka's
consumers of 0.9 to 4.x.

A thread of its own, with a connection of its own, joins, beats, and joins again at once whenever
the group divides its logs anew; so the membership lives while the run's thread waits for Spark.
Every share has a generation, and a commit with another one is refused: what a run read of the
group's offsets under a share that is over by then moves nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from threading import Thread

from etl.decide.group_assignment import STRATEGIES
from etl.edges.brokers.classic_protocol import ClassicProtocol
from etl.edges.brokers.consumer_protocol import ConsumerProtocol
from etl.edges.brokers.coordinator_connection import CoordinatorConnection
from etl.edges.brokers.evicting import end_membership
from etl.edges.brokers.member_state import MemberState, MemberTerms
from etl.errors import EtlError, MembershipLost, Owned, SettingsError, Unreachable
from etl.model.partitions import BrokerPartition, GroupProtocol, RebalanceStatistics, Share
from etl.model.security import OPEN, Security

_PROTOCOLS: Mapping[GroupProtocol, type[ClassicProtocol] | type[ConsumerProtocol]] = {
    GroupProtocol.CLASSIC: ClassicProtocol,
    GroupProtocol.CONSUMER: ConsumerProtocol,
}


class CoordinatedMember:
    """What a run asks of its membership (`etl.run.members.Member`), for one group with a
    coordinator.

    bootstrap    brokers that are asked who the coordinator is
    terms        as what it joins
    protocol     by which requests
    generation   how the brokers must be spoken to (`Broker.generation`); None: each tells it itself
    security     encryption and login of their listeners

    One thread calls it. `rejoin`, `follow` and `leave` end a `hold`.
    """

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        terms: MemberTerms,
        *,
        protocol: GroupProtocol = GroupProtocol.CLASSIC,
        generation: str | None = None,
        security: Security = OPEN,
    ) -> None:
        self._bootstrap, self._terms, self._protocol = tuple(bootstrap), terms, protocol
        self._generation, self._security = generation, security
        self._lives: _Life | None = None
        self._share: Share | None = None
        self._past = RebalanceStatistics()

    def join(self) -> Share:
        """Become a member, and wait until the group has settled; the share may be empty.

        Raises Owned where it does not settle within `join_timeout_s`; SettingsError where the
        group, the broker and the terms do not fit together; PermissionRefused; MembershipLost where
        another process is the static member of this name; BrokerUnreachable where the coordinator
        could not be asked. Then we are no member any more.
        """
        if unknown := [name for name in self._terms.strategies if name not in STRATEGIES]:
            raise SettingsError(
                f"how the strategy {unknown[0]} divides a group's logs is not known, and we may be the group's leader",
                check=f"ownership.strategy: {', '.join(STRATEGIES)}",
                group=self._terms.group,
            )
        if self._lives is None:
            self._lives = _Life(self._connection(), self._terms, self._protocol)
        return self._settled(self._lives, float("-inf"))

    def rejoin(self) -> Share:
        """A share that stood after this was called: the same one where nothing was wrong with it.
        Raises as `join`.
        """
        if self._lives is None:
            return self.join()
        self._lives.state.hold(False)
        return self._settled(self._lives, self._lives.state.poke())

    def renew(self) -> Share:
        """The same, and what is held stays so: what the group wants back meanwhile is part of it,
        and `asked_back`.

        Of the consumer protocol alone. Raises as `join`.
        """
        return (
            self.join()
            if self._lives is None
            else self._settled(self._lives, self._lives.state.poke())
        )

    @property
    def is_member(self) -> bool:
        """Whether it has joined, or tries to, and did not leave."""
        return self._lives is not None

    @property
    def is_current(self) -> bool:
        """Whether the last share still stands as far as anybody told us: a hint, for only the fence
        of a commit decides.
        """
        return self._lives is not None and self._lives.state.is_current(self._share)

    @property
    def newest(self) -> Share | None:
        """What stands by the last answer, whether it was taken by `join` or `rejoin` or not."""
        return self._lives.state.newest if self._lives is not None else None

    def heard(self, *, within_s: float) -> Share | None:
        """What stands by an answer to a question that is asked now; what is held stays so. None
        where nothing does in time.

        Raises what the membership ended with.
        """
        if self._lives is None:
            return None
        return self._lives.state.wait_for_share(
            self._lives.state.poke(), time.monotonic() + within_s
        )

    def unbroken(self, share: Share, *, within_s: float) -> Share | None:
        """An earlier share as its epoch is by now, where nothing of it was let go since; None where
        it was, or nobody answers in time.

        Of the consumer protocol alone: an epoch passes when others come and go; a generation is
        over with its share.
        """
        lives = self._lives
        if (
            lives is None
            or self._protocol is not GroupProtocol.CONSUMER
            or not lives.state.is_unbroken(share)
        ):
            return None
        with contextlib.suppress(EtlError):  # the membership has ended: nothing of it stands
            now = self.heard(within_s=within_s)
            return now if lives.state.is_unbroken(share) else None
        return None

    @property
    def asked_back(self) -> frozenset[BrokerPartition]:
        """What the group waits for us to let go of, where that is held: by `rejoin`, or by `leave`."""
        return self._lives.state.asked_back if self._lives is not None else frozenset()

    def hold(self) -> None:
        """From now on acknowledge nothing that is taken from us, so that nobody else gets it, until
        `release`.

        Of the consumer protocol alone: a classic group stands still until all its members have
        joined again, and goes on without those that do not. Longer than the rebalance timeout the
        coordinator does not wait.
        """
        if self._lives is not None and self._protocol is GroupProtocol.CONSUMER:
            self._lives.state.hold(True)

    def release(self) -> None:
        """Let go of what was held. Never raises."""
        if self._lives is not None:
            self._lives.state.hold(False)

    def end(self, share: Share) -> None:
        """End the membership behind a share of a driver that is gone, so that nothing that it
        committed comes any more.

        Raises BrokerUnreachable, and what the coordinator refuses with.
        """
        connection = self._connection()
        try:
            end_membership(connection, self._terms.group, share, within_s=self._terms.answers_in_s)
        finally:
            connection.forget()

    def follow(self) -> None:
        """Behind the hand-over: let go whenever that is asked for, and take the new share in the
        background. Never raises.

        What is held since the share was given (`MemberTerms.holds_shares`) stays so.
        """
        if not self._terms.holds_shares:
            self.release()

    def leave(self) -> None:
        """Be no member any more; a static one only goes away, and keeps its logs for as long as its
        session. Never raises.
        """
        if self._lives is not None:
            self._lives.end()
            self._past = self.statistics
        self._lives = self._share = None

    @property
    def statistics(self) -> RebalanceStatistics:
        """What it cost so far."""
        if self._lives is None:
            return self._past
        now, past = self._lives.state.statistics, self._past
        return RebalanceStatistics(
            past.rebalances + now.rebalances,
            past.seconds + now.seconds,
            past.tries + now.tries,
            past.lost + now.lost,
            now.heartbeat_age_s,
        )

    def _settled(self, life: _Life, since: float) -> Share:
        try:
            share = life.state.wait_for_share(since, time.monotonic() + self._terms.join_timeout_s)
        except BaseException:
            self.leave()
            raise
        if share is None:
            trouble = life.state.trouble
            self.leave()
            raise trouble or Owned(
                f"the group {self._terms.group} did not settle within {self._terms.join_timeout_s:g} s",
                check="the group's other members: a classic group waits for the longest of their rebalance timeouts (max.poll.interval.ms)",
            )
        self._share = share
        return share

    def _connection(self) -> CoordinatorConnection:
        longest_s = self._terms.rebalance_timeout_s + 2 * self._terms.answers_in_s
        return CoordinatorConnection(
            self._bootstrap,
            self._terms.group,
            answers_in_s=self._terms.answers_in_s,
            longest_s=longest_s,
            generation=self._generation,
            security=self._security,
        )


class _Life:
    """One membership, from a join to a leave, and its thread."""

    def __init__(
        self, connection: CoordinatorConnection, terms: MemberTerms, protocol: GroupProtocol
    ) -> None:
        self.state = MemberState(terms)
        self._connection, self._terms = connection, terms
        self._protocol = _PROTOCOLS[protocol](terms, connection, self.state)
        self._thread = Thread(target=self._run, name=f"member of {terms.group}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Leave, and wait for that as long as an answer may take."""
        self.state.leave()
        if self._protocol.may_be_interrupted:
            self._connection.interrupt()
        self._thread.join(self._terms.answers_in_s)

    def _run(self) -> None:
        try:
            while not self.state.is_leaving:
                self._try_step()
        except Exception as error:  # whatever it is, it is raised where the run waits for a share
            self.state.give_up(error)
        with contextlib.suppress(
            EtlError
        ):  # a coordinator that cannot be told finds out by itself when the session is over
            self._connection.forget()
            self._protocol.leave()
        self._connection.forget()

    def _try_step(self) -> None:
        try:
            self._protocol.step()
        except Unreachable as error:
            if isinstance(error, MembershipLost):
                raise
            self.state.note_trouble(error)
            self._connection.forget()
            self.state.pause(self._terms.backoff_s)
