"""How does a driver live as a member of a group in Kafka?

A thread with a connection of its own joins, sends heartbeats and rejoins at each rebalance, so the
membership lives while the run waits for Spark. Each assignment has a generation; a commit with an
old one is rejected.

Classic protocol (Kafka 0.9 to 4.x): the leader assigns by the partition counts of that moment,
checks them now and then, and rejoins if they changed. A static member that returns within its
session gets its former assignment without a rebalance, and may have missed new topics. So it
compares:

    leader      a partition of the group's topics is unassigned     rejoins, which rebalances
    any member  it is assigned topics that it does not read         rejoins; a follower leaves
    follower    a topic of its own exists and is unassigned         and joins as a new member

Java's leader only watches from its return on (KIP-814) and misses earlier changes.

Consumer protocol (KIP-848, Kafka 4.0): one heartbeat joins, receives the assignment and
acknowledges it. The coordinator gives a partition to its next owner once the former one released
it, so what a run still needs is held (`MemberState.holds`), for the rebalance timeout at most.

The membership of a dead or sleeping driver is ended by a leave request with its member id: after
that the coordinator accepts none of its commits.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from threading import Thread

from etl.decide.group_assignment import (
    KEEPS_LOGS,
    STRATEGIES,
    GroupMember,
    Next,
    answered,
    assign_as_leader,
    find_unassigned,
    reconciled,
)
from etl.errors import (
    BrokerRefusal,
    CorruptData,
    EtlError,
    Meaning,
    MembershipLost,
    Owned,
    SettingsError,
    Unreachable,
)
from etl.io.brokers.member_state import CoordinatorConnection, MemberState, MemberTerms
from etl.kafka.messages import (
    LEAVES,
    WILL_BE_BACK,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    Joined,
    JoinRequest,
    MemberIdentity,
    Subscription,
)
from etl.model.partitions import (
    BY_COORDINATOR,
    BrokerPartition,
    GroupProtocol,
    MemberAssignment,
    Membership,
    RebalanceStatistics,
)
from etl.model.security import OPEN, Security

_Counts = Mapping[str, int]


class ClassicProtocol:
    """One member. Every method is called by the member's thread. Raises what ends the membership,
    or a try.
    """

    def __init__(
        self, terms: MemberTerms, connection: CoordinatorConnection, state: MemberState
    ) -> None:
        self._terms, self._connection, self._state = terms, connection, state
        self.member_id: str | None = None
        self._identity: MemberIdentity | None = None
        """While we are in a generation."""
        self._share: MemberAssignment | None = None
        self._owned: frozenset[BrokerPartition] = frozenset()
        self._generation: int | None = None
        """Its generation."""
        self._divided: tuple[frozenset[str], _Counts, float] | None = None
        """The group's topics as assigned by us as the leader, and when they are checked again."""
        self._may_come_back = terms.instance_id is not None
        """True until the first assignment: the group may know us from before."""
        self._refused_joins = 0
        self._is_due = False
        """True if the group waits for us to rejoin, and the assignment is held."""

    @property
    def may_be_interrupted(self) -> bool:
        """True if the coordinator can be told that we leave: after it returned a member id."""
        return self.member_id is not None

    def step(self) -> None:
        """One question or one wait."""
        if self._identity is None:
            self._join()
        elif self._state.pause():
            if self._has_other_partitions() or self._is_due and not self._state.holds:
                self._let_go_or_hold()
            else:
                self._beat(self._identity)

    def leave(self) -> None:
        """Leave the group. A static member stays for its session: the next process of its name gets
        its partitions.
        """
        if self.member_id is not None and self._terms.instance_id is None:
            gone = MemberIdentity(self._terms.group, self.member_id, None, -1)
            self._connection.ask(lambda dialect: dialect.leave_group(gone))

    def _join(self) -> None:
        terms, longest_s = self._terms, self._terms.rebalance_timeout_s + self._terms.answers_in_s
        lets_go = not KEEPS_LOGS.issuperset(terms.strategies)
        if lets_go:
            subscription = Subscription(terms.topics)
        else:
            subscription = Subscription(terms.topics, self._owned, self._generation)
        wanted = JoinRequest(
            terms.group,
            self.member_id,
            terms.instance_id,
            round(terms.session_timeout_s * 1000),
            round(terms.rebalance_timeout_s * 1000),
            dict.fromkeys(terms.strategies, subscription),
        )
        joined = self._connection.ask(
            lambda dialect: dialect.join_group(wanted), within_s=longest_s
        )
        if joined.refusal is not None:
            self._refused_joins += 1
            self._act(joined.refusal, "take a member", told_id=joined.member_id)
            return
        if joined.member_id is None:
            message = "The coordinator takes us as a member and gives no id"
            raise CorruptData(
                message, action="Check the broker's log", broker=self._connection.address
            )
        self._refused_joins, self.member_id = 0, joined.member_id
        self._state.note_join()
        self._sync(
            joined,
            MemberIdentity(terms.group, joined.member_id, terms.instance_id, joined.generation),
            lets_go,
        )

    def _sync(self, joined: Joined, identity: MemberIdentity, lets_go: bool) -> None:
        assigned: Mapping[str, Iterable[BrokerPartition]] = {}
        self._divided = None
        if joined.is_leader and not joined.skips_assignment:
            assigned = self._assign(joined)
        asked_at = time.monotonic()
        synced = self._connection.ask(
            lambda dialect: dialect.sync_group(identity, joined.strategy, assigned),
            within_s=self._terms.rebalance_timeout_s + self._terms.answers_in_s,
        )
        if synced.refusal is not None:
            self._act(synced.refusal, "tell what we are assigned")
            return
        if joined.skips_assignment or self._may_come_back and not joined.is_leader:
            if self._is_outdated(joined, synced.logs):
                self._join_anew(joined, identity, synced.logs)
                return
        self._may_come_back = False
        if strange := sorted(log for log in synced.logs if log.topic not in self._terms.topics):
            raise CorruptData(
                "The group's leader assigned us a log of a topic that we did not ask for",
                **strange[0].place,
                group=self._terms.group,
                action="Check which client leads the group",
            )
        revoked = self._owned - synced.logs
        self._owned, self._generation = synced.logs, joined.generation
        if revoked and not lets_go:
            return  # they are let go by joining again without them: only then does the leader give them to others
        self._identity = identity
        self._share = MemberAssignment(
            identity.member_id,
            Membership.COORDINATOR,
            joined.strategy,
            joined.generation,
            synced.logs,
            identity.instance_id,
        )
        # An empty share where logs move one by one may only be the first half: it is believed with
        # the next heartbeat.
        if synced.logs or lets_go:
            self._state.settle(self._share, asked_at)

    def _assign(self, joined: Joined) -> Mapping[str, Iterable[BrokerPartition]]:
        """Assign as the leader, and watch these topics from now on."""
        topics = frozenset(name for each in joined.members for name in each.subscription.topics)
        counts = self._watch(topics)
        return assign_as_leader(
            joined.strategy,
            [
                GroupMember(
                    each.member_id,
                    frozenset(told.topics),
                    each.instance_id,
                    told.owned,
                    told.generation,
                )
                for each in joined.members
                for told in (each.subscription,)
            ],
            counts,
        )

    def _watch(self, topics: frozenset[str]) -> _Counts:
        """Count the partitions of these topics, and compare with that from time to time."""
        counts = self._counts(topics)
        self._divided = topics, counts, time.monotonic() + self._terms.topics_max_age_s
        return counts

    def _is_outdated(self, joined: Joined, ours: frozenset[BrokerPartition]) -> bool:
        """True if what a static member came back to does not fit what exists and what it subscribes
        to. See the module.
        """
        own = frozenset(self._terms.topics)
        our_topics = frozenset(log.topic for log in ours)
        if not our_topics <= own:
            return True
        if our_topics == own and not joined.is_leader:
            return False
        assigned = self._assigned_in_group(joined, ours)
        if joined.is_leader:
            subscribed = frozenset(
                topic for each in joined.members for topic in each.subscription.topics
            )
            counts = self._watch(
                own | (subscribed or frozenset(log.topic for log in assigned or ()))
            )
            return assigned is not None and bool(find_unassigned(counts, assigned))
        return assigned is not None and not self._counts(own).keys() <= {
            log.topic for log in assigned
        }

    def _assigned_in_group(
        self, joined: Joined, ours: frozenset[BrokerPartition]
    ) -> frozenset[BrokerPartition] | None:
        """Return all assigned partitions. None during a rebalance, which assigns everything anew,
        and for a follower that does not know them, which leaves it to the leader.
        """
        if len(joined.members) == 1:
            return ours
        found = self._connection.ask(lambda dialect: dialect.members_of(self._terms.group))
        if (
            found.refusal is not None
        ):  # of a leader one rebalance too many costs less than a partition that nobody reads
            return frozenset() if joined.is_leader else None
        known = [logs for logs in found.members.values() if logs is not None]
        return frozenset[BrokerPartition]().union(*known) if known else None

    def _join_anew(
        self, joined: Joined, identity: MemberIdentity, ours: frozenset[BrokerPartition]
    ) -> None:
        """Rejoin with the next step to trigger a rebalance. The coordinator ignores the join of a
        follower with a known subscription, so a follower leaves first.
        """
        if joined.is_leader:
            self._owned = frozenset(log for log in ours if log.topic in self._terms.topics)
            self._generation = joined.generation
            return
        refusal = self._connection.ask(lambda dialect: dialect.leave_group(identity))
        if refusal is not None:
            self._act(refusal, "let a static member join anew")
            return
        self.member_id, self._may_come_back = None, False

    def _beat(self, identity: MemberIdentity) -> None:
        asked_at = self._state.note_send()
        refusal = self._connection.ask(
            lambda dialect: dialect.heartbeat(identity),
            within_s=min(self._terms.answers_in_s, self._terms.session_timeout_s),
        )
        if refusal is not None:
            self._act(refusal, "take a heartbeat")
            return
        self._state.note_answer()
        if self._share is not None:
            self._state.settle(self._share, asked_at)

    def _has_other_partitions(self) -> bool:
        """True if we lead and a topic has more partitions than we assigned: a rebalance is needed."""
        if self._divided is None or time.monotonic() < self._divided[2]:
            return False
        topics, before, _ = self._divided
        return self._watch(topics) != before

    def _counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Partitions of each topic that is there."""
        topics_found = self._connection.topics(sorted(set(topics))).topics
        return {
            name: len(topic.partitions) for name, topic in topics_found.items() if topic.partitions
        }

    def _act(self, refusal: BrokerRefusal, doing: str, *, told_id: str | None = None) -> None:
        means = answered(refusal)
        if self._identity is None and refusal.meaning is not Meaning.ID_REQUIRED:
            self._state.note_try()
        if means.is_lost:
            self._state.lose()
        if means.next is Next.GIVE_UP:
            raise refusal.error(doing, group=self._terms.group, broker=self._connection.address)
        if means.next is Next.JOIN_AGAIN and self._share is not None and not means.is_lost:
            self._state.note_answer()  # it knew us
            self._let_go_or_hold()
            return
        if means.next in (Next.JOIN_AGAIN, Next.ASK_AT_ONCE):
            self.member_id = (told_id or self.member_id) if means.keeps_id else None
            if means.is_lost:
                self._owned, self._generation = frozenset(), None
            self._let_go()
            if self._refused_joins > 1:
                self._state.pause(self._terms.backoff_s)
            return
        self._state.note_trouble(
            refusal.error(doing, group=self._terms.group, broker=self._connection.address)
        )
        if means.next is Next.LOOK_UP:
            self._connection.forget()
        self._state.pause(self._terms.backoff_s)

    def _let_go_or_hold(self) -> None:
        """Rejoin; a held assignment is released first. Until then heartbeats continue. A member
        without partitions rejoins at once.
        """
        self._is_due = self._state.holds and bool(self._owned)
        if self._is_due:
            self._state.request_release(self._owned)
        else:
            self._let_go()

    def _let_go(self) -> None:
        self._identity = self._share = None
        self._is_due = False
        self._state.let_go()


_Log = tuple[str, int]
"""Topic id and partition: a recreated topic is another one."""
_QUIET_HEARTBEATS = 6
"""Heartbeats until an empty assignment is believed: others learn by a heartbeat, release at their
next poll, and report with one more.
"""


class ConsumerProtocol:
    """One member. Every method is called by the member's thread. Raises what ends the membership,
    or a try.
    """

    may_be_interrupted = True
    """The member makes its id itself."""

    def __init__(
        self, terms: MemberTerms, connection: CoordinatorConnection, state: MemberState
    ) -> None:
        self._terms, self._connection, self._state = terms, connection, state
        self.member_id: str | None = str(uuid.uuid4())
        self._epoch = 0
        """0: no member yet."""
        self._owned: frozenset[_Log] = frozenset()
        self._target: frozenset[_Log] = frozenset()
        """As last received."""
        self._names: dict[str, str] = {}
        """Topic id to name."""
        self._has_news = False
        """True if we own other partitions than the coordinator knows."""
        self._settles_at = float("-inf")
        """When an empty assignment is believed."""

    def step(self) -> None:
        """Wait once, unless there is something to report, and send one heartbeat."""
        if self._epoch == 0 or self._has_news or self._state.pause():
            self._reconcile()
            self._beat()

    def leave(self) -> None:
        """Leave the group. A static member announces its return and keeps its partitions for its
        session.
        """
        if self._epoch > 0:
            epoch = LEAVES if self._terms.instance_id is None else WILL_BE_BACK
            gone = self._heartbeat(epoch, None)
            self._connection.ask(lambda dialect: dialect.consumer_heartbeat(gone))

    def _beat(self) -> None:
        reports_all = self._epoch == 0 or self._has_news
        beat = self._heartbeat(self._epoch, self._by_topic() if reports_all else None)
        asked_at = self._state.note_send()
        answer = self._connection.ask(
            lambda dialect: dialect.consumer_heartbeat(beat),
            within_s=min(self._terms.answers_in_s, self._terms.session_timeout_s),
        )
        if answer.refusal is not None:
            self._act(answer)
            return
        if self._epoch == 0:
            self._state.note_join()
            self._settles_at = asked_at + min(
                _QUIET_HEARTBEATS * answer.interval_ms / 1000, self._terms.join_timeout_s / 2
            )
        self._state.note_answer()
        self._state.beat_every(answer.interval_ms / 1000)
        self.member_id, self._epoch, self._has_news = (
            answer.member_id or self.member_id,
            answer.epoch,
            False,
        )
        if answer.assigned is not None:
            self._target = frozenset(
                (topic_id, number)
                for topic_id, numbers in answer.assigned.items()
                for number in numbers
            )
        self._reconcile()
        if not self._has_news and (self._owned or asked_at >= self._settles_at):
            logs = frozenset(
                BrokerPartition(self._names[topic_id], number) for topic_id, number in self._owned
            )
            self._state.settle(
                MemberAssignment(
                    self.member_id or "",
                    Membership.COORDINATOR,
                    BY_COORDINATOR,
                    self._epoch,
                    logs,
                    self._terms.instance_id,
                ),
                asked_at,
            )

    def _reconcile(self) -> None:
        """Own what is assigned, and hold what is revoked if the run needs it."""
        found = reconciled(self._owned, self._named(self._target), holds=self._state.holds)
        self._state.request_release(
            frozenset(
                BrokerPartition(self._names[topic_id], number) for topic_id, number in found.held
            )
        )
        if found.owned != self._owned:
            self._has_news = True
            if self._owned - found.owned:
                self._state.let_go()
        self._owned = found.owned

    def _named(self, target: frozenset[_Log]) -> frozenset[_Log]:
        """Return the target without topics whose name is unknown: they are not owned and not
        acknowledged.
        """
        if not {topic_id for topic_id, _ in target} <= self._names.keys():
            topic_ids = self._connection.topics(self._terms.topics).topic_ids
            self._names.update({topic_id: name for name, topic_id in topic_ids.items()})
        return frozenset(log for log in target if log[0] in self._names)

    def _by_topic(self) -> dict[str, frozenset[int]]:
        return {
            topic_id: frozenset(number for its, number in self._owned if its == topic_id)
            for topic_id, _ in self._owned
        }

    def _heartbeat(
        self, epoch: int, owned: Mapping[str, frozenset[int]] | None
    ) -> ConsumerHeartbeat:
        terms = self._terms
        return ConsumerHeartbeat(
            terms.group,
            self.member_id,
            epoch,
            terms.instance_id,
            round(terms.rebalance_timeout_s * 1000),
            terms.topics,
            owned,
        )

    def _act(self, answer: ConsumerHeartbeatAnswer) -> None:
        refusal = answer.refusal
        if refusal is None:
            return
        means = answered(refusal)
        if self._epoch == 0:
            self._state.note_try()
        if means.is_lost:
            self._state.lose()
        error = refusal.error(
            "take a heartbeat",
            group=self._terms.group,
            broker=self._connection.address,
            said=answer.said or None,
        )
        if means.next is Next.GIVE_UP:
            raise error
        if means.next is Next.JOIN_AGAIN:
            if self._epoch == 0:
                self._state.pause(self._terms.backoff_s)
            self.member_id = self.member_id if means.keeps_id else str(uuid.uuid4())
            self._epoch, self._owned, self._target, self._has_news = (
                0,
                frozenset(),
                frozenset(),
                False,
            )
            self._state.let_go()
            return
        self._state.note_trouble(error)
        if means.next is Next.LOOK_UP:
            self._connection.forget()
        self._state.pause(self._terms.backoff_s)


_PAUSE_S = 0.2
_NO_SUCH_GROUP = 69
"""GROUP_ID_NOT_FOUND of this protocol: the group has no members."""


def end_membership(
    connection: CoordinatorConnection, group: str, share: MemberAssignment, *, within_s: float
) -> None:
    """Leave as the member of this assignment; nothing without one. Raises BrokerUnreachable, and
    the coordinator's error.
    """
    deadline = time.monotonic() + within_s
    while refusal := _leave(connection, group, share):
        if refusal.meaning is Meaning.UNKNOWN_MEMBER or refusal.code == _NO_SUCH_GROUP:
            return
        if not refusal.is_retriable or time.monotonic() + _PAUSE_S > deadline:
            raise refusal.error(
                "end the membership of a run that is gone", group=group, broker=connection.address
            )
        connection.forget()
        time.sleep(_PAUSE_S)


def _leave(
    connection: CoordinatorConnection, group: str, share: MemberAssignment
) -> BrokerRefusal | None:
    if share.strategy == BY_COORDINATOR:
        beat = ConsumerHeartbeat(group, share.member_id, LEAVES, None, -1, (), None)
        return connection.ask(lambda dialect: dialect.consumer_heartbeat(beat)).refusal
    gone = MemberIdentity(group, share.member_id, None, -1)
    return connection.ask(lambda dialect: dialect.leave_group(gone))


_PROTOCOLS: Mapping[GroupProtocol, type[ClassicProtocol] | type[ConsumerProtocol]] = {
    GroupProtocol.CLASSIC: ClassicProtocol,
    GroupProtocol.CONSUMER: ConsumerProtocol,
}


class CoordinatedMember:
    """Membership of a run in a group with a coordinator (`etl.run.services.Member`).

        bootstrap    brokers to ask for the coordinator
        terms        how to join
        protocol     classic or consumer protocol
        generation   broker type or release (`Broker.generation`); None: detected
        security     encryption and login

    Used by one thread. `rejoin`, `follow` and `leave` end a `hold`.
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
        self._share: MemberAssignment | None = None
        self._past = RebalanceStatistics()

    def join(self) -> MemberAssignment:
        """Join, and wait until the group has settled; the assignment may be empty.

        Raises Owned if it does not settle within `join_timeout_s`; SettingsError if group, broker
        and terms do not fit; PermissionDenied; MembershipLost if another process is the static
        member of this name; BrokerUnreachable without a coordinator. Then the membership is over.
        """
        if unknown := [name for name in self._terms.strategies if name not in STRATEGIES]:
            raise SettingsError(
                f"How the strategy {unknown[0]} divides a group's logs is not known, and we may be the group's leader",
                action=f"Set group.join.assignment_strategy: {', '.join(STRATEGIES)}",
                group=self._terms.group,
            )
        if self._lives is None:
            self._lives = _Life(self._connection(), self._terms, self._protocol)
        return self._settled(self._lives, float("-inf"))

    def rejoin(self) -> MemberAssignment:
        """Return an assignment that is valid after this call: the same one if it still is. Raises
        as `join`.
        """
        if self._lives is None:
            return self.join()
        self._lives.state.hold(False)
        return self._settled(self._lives, self._lives.state.poke())

    def renew(self) -> MemberAssignment:
        """Return the same without releasing held partitions: revoked ones are part of it, and in
        `release_requested`. Consumer protocol only. Raises as `join`.
        """
        if self._lives is None:
            return self.join()
        return self._settled(self._lives, self._lives.state.poke())

    @property
    def is_member(self) -> bool:
        """True if it has joined, or tries to, and did not leave."""
        return self._lives is not None

    @property
    def is_current(self) -> bool:
        """True if the last assignment is valid as far as known: a hint, since only a commit's fence
        decides.
        """
        return self._lives is not None and self._lives.state.is_current(self._share)

    @property
    def newest(self) -> MemberAssignment | None:
        """Return the assignment of the last response, whether or not `join` or `rejoin` returned
        it.
        """
        return self._lives.state.newest if self._lives is not None else None

    def heard(self, *, within_s: float) -> MemberAssignment | None:
        """Return the assignment confirmed by a request that is sent now, holding what is held. None
        if there is none in time. Raises why the membership ended.
        """
        if self._lives is None:
            return None
        return self._lives.state.wait_for_assignment(
            self._lives.state.poke(), time.monotonic() + within_s
        )

    def unbroken(self, share: MemberAssignment, *, within_s: float) -> MemberAssignment | None:
        """Return an earlier assignment with today's epoch, if nothing of it was released since;
        None otherwise, or without an answer in time. Consumer protocol only: epochs change when
        others come and go.
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
    def release_requested(self) -> frozenset[BrokerPartition]:
        """Return the held partitions that the group waits for, released by `rejoin` or `leave`."""
        return self._lives.state.release_requested if self._lives is not None else frozenset()

    def hold(self) -> None:
        """From now on acknowledge no revocation until `release`, so that nobody else is assigned
        these partitions. Consumer protocol only: a classic group waits for all members and
        continues without missing ones. The coordinator waits for the rebalance timeout at most.
        """
        if self._lives is not None and self._protocol is GroupProtocol.CONSUMER:
            self._lives.state.hold(True)

    def release(self) -> None:
        """Release what was held. Never raises."""
        if self._lives is not None:
            self._lives.state.hold(False)

    def end(self, share: MemberAssignment) -> None:
        """End the membership of a dead driver's assignment, so that no commit of it can arrive.
        Raises BrokerUnreachable, and the coordinator's error.
        """
        connection = self._connection()
        try:
            end_membership(connection, self._terms.group, share, within_s=self._terms.answers_in_s)
        finally:
            connection.forget()

    def follow(self) -> None:
        """After the commit: release on request and take new assignments in the background. Never
        raises. What is held since the assignment (`MemberTerms.holds_assignment`) stays held.
        """
        if not self._terms.holds_assignment:
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
        """Cost of the membership so far."""
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

    def _settled(self, life: _Life, since: float) -> MemberAssignment:
        try:
            share = life.state.wait_for_assignment(
                since, time.monotonic() + self._terms.join_timeout_s
            )
        except BaseException:
            self.leave()
            raise
        if share is None:
            trouble = life.state.trouble
            self.leave()
            raise trouble or Owned(
                f"The group {self._terms.group} did not settle within {self._terms.join_timeout_s:g} s",
                action="Check the group's other members: a classic group waits for the longest of their rebalance timeouts (max.poll.interval.ms)",
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
