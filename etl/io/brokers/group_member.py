"""How does a driver live as a member of a group in Kafka?

Lives here: the two group protocols, and the thread of a member. Not here: the state that the
threads share (etl/io/brokers/member_state.py), assignment strategies and the meaning of error codes
(etl/decide/group_assignment.py), groups in ZooKeeper (etl/io/zookeeper/group_member.py).

A thread with a connection of its own joins, sends heartbeats and rejoins at each rebalance, so the
membership lives while the run waits for Spark. So an assignment may end between two lines of the
run. Each assignment has a generation; a commit with an old one is rejected.

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
that the coordinator accepts none of its commits. A new member alone would not fence it: in the
consumer protocol a sleeping member keeps its epoch until it learns of the next one.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Thread

from etl.decide.group_assignment import (
    KEEPS_LOGS,
    STRATEGIES,
    GroupMember,
    Next,
    assign_as_leader,
    find_unassigned,
    reaction_to,
    reconcile_assignment,
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
from etl.kafka.request_values import (
    LEAVES,
    LEAVES_TEMPORARILY,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    Joined,
    JoinRequest,
    MemberIdentity,
    Subscription,
)
from etl.model.partitions import (
    BY_COORDINATOR,
    GroupProtocol,
    MemberAssignment,
    Membership,
    RebalanceStatistics,
    TopicPartition,
)
from etl.model.security import OPEN, Security

_Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _WatchedTopics:
    """Topics that we watch for new partitions, as the leader of a classic group."""

    topics: frozenset[str]
    counts: _Counts
    """Partitions of each topic at the last check."""
    next_check: float
    """`time.monotonic` value."""


class ClassicProtocol:
    """One member, in the classic protocol.

    Every method is called by the member's thread. An error of the coordinator that ends the
    membership is raised; Unreachable is raised, too, and the thread tries again.
    """

    def __init__(
        self, terms: MemberTerms, connection: CoordinatorConnection, state: MemberState
    ) -> None:
        self._terms = terms
        self._connection = connection
        self._state = state
        self.member_id: str | None = None
        self._identity: MemberIdentity | None = None
        """While we are in a generation."""
        self._assignment: MemberAssignment | None = None
        self._owned: frozenset[TopicPartition] = frozenset()
        self._generation: int | None = None
        """The generation that assigned the owned partitions."""
        self._watched: _WatchedTopics | None = None
        """None: we are not the leader."""
        self._may_be_returning = terms.instance_id is not None
        """True until the first assignment: the group may know us as a static member."""
        self._rejected_joins = 0
        self._is_rejoin_due = False
        """True if the group waits for us to rejoin, and the assignment is held."""

    @property
    def may_be_interrupted(self) -> bool:
        """True if a leave request is possible: after the coordinator returned a member id."""
        return self.member_id is not None

    def step(self) -> None:
        """Send one request, or wait once."""
        if self._identity is None:
            self._join()
        elif self._state.pause():
            # The assignment may be released during the metadata request, so `holds` is read after
            # it.
            if self._has_other_partitions() or (self._is_rejoin_due and not self._state.holds):
                self._rejoin_unless_held()
            else:
                self._send_heartbeat(self._identity)

    def leave(self) -> None:
        """Leave the group.

        A static member stays for its session: the next process of its name gets its partitions.
        """
        if self.member_id is not None and self._terms.instance_id is None:
            leaving = MemberIdentity(self._terms.group, self.member_id, None, -1)
            self._connection.ask(lambda protocol: protocol.groups.leave_group(leaving))

    def _join(self) -> None:
        terms = self._terms
        is_eager = not KEEPS_LOGS.issuperset(terms.strategies)
        subscriptions = {}
        for strategy in terms.strategies:
            if strategy not in KEEPS_LOGS:
                subscriptions[strategy] = Subscription(terms.topics)
            elif is_eager:
                subscriptions[strategy] = Subscription(terms.topics, frozenset())
            else:
                owned = Subscription(terms.topics, self._owned, self._generation)
                subscriptions[strategy] = owned
        request = JoinRequest(
            terms.group,
            self.member_id,
            terms.instance_id,
            round(terms.session_timeout_s * 1000),
            round(terms.rebalance_timeout_s * 1000),
            subscriptions,
        )
        joined = self._connection.ask(
            lambda protocol: protocol.groups.join_group(request),
            within_s=terms.rebalance_timeout_s + terms.answers_in_s,
        )
        if joined.refusal is not None:
            self._rejected_joins += 1
            self._handle_error(joined.refusal, "accept a member", new_id=joined.member_id)
            return
        if joined.member_id is None:
            raise CorruptData(
                "The coordinator accepted us as a member without a member id",
                action="Check the broker's log",
                broker=self._connection.address,
            )
        self._rejected_joins = 0
        self.member_id = joined.member_id
        self._state.note_join()
        identity = MemberIdentity(
            terms.group, joined.member_id, terms.instance_id, joined.generation
        )
        self._sync(joined, identity, is_eager)

    def _sync(self, joined: Joined, identity: MemberIdentity, is_eager: bool) -> None:
        assigned: Mapping[str, Iterable[TopicPartition]] = {}
        self._watched = None
        if joined.is_leader and not joined.skips_assignment:
            assigned = self._assign(joined)
        sent_at = time.monotonic()
        synced = self._connection.ask(
            lambda protocol: protocol.groups.sync_group(identity, joined.strategy, assigned),
            within_s=self._terms.rebalance_timeout_s + self._terms.answers_in_s,
        )
        if synced.refusal is not None:
            self._handle_error(synced.refusal, "return our assignment")
            return
        is_returning_follower = self._may_be_returning and not joined.is_leader
        if joined.skips_assignment or is_returning_follower:
            if self._is_outdated(joined, synced.partitions):
                self._rejoin_to_rebalance(joined, identity, synced.partitions)
                return
        self._may_be_returning = False
        unexpected = sorted(
            partition
            for partition in synced.partitions
            if partition.topic not in self._terms.topics
        )
        if unexpected:
            raise CorruptData(
                "The group's leader assigned us a partition of a topic that we did not subscribe"
                " to",
                **unexpected[0].place,
                group=self._terms.group,
                action="Check which client leads the group",
            )
        revoked = self._owned - synced.partitions
        self._owned = synced.partitions
        self._generation = joined.generation
        if revoked and not is_eager:
            # The next step rejoins without them: only then does the leader assign them to others.
            return
        self._identity = identity
        self._assignment = MemberAssignment(
            identity.member_id,
            Membership.COORDINATOR,
            joined.strategy,
            joined.generation,
            synced.partitions,
            identity.instance_id,
        )
        # In a cooperative rebalance an empty assignment may only be the first half, until others
        # have released partitions: it is believed with the next heartbeat.
        if synced.partitions or is_eager:
            self._state.set_assignment(self._assignment, sent_at)

    def _assign(self, joined: Joined) -> Mapping[str, Iterable[TopicPartition]]:
        """Assign as the leader, and watch these topics from now on."""
        counts = self._watch(_subscribed_topics(joined))
        members: list[GroupMember] = []
        for each in joined.members:
            subscription = each.subscription
            members.append(
                GroupMember(
                    each.member_id,
                    frozenset(subscription.topics),
                    each.instance_id,
                    subscription.owned or frozenset(),
                    subscription.generation,
                )
            )
        return assign_as_leader(joined.strategy, members, counts)

    def _watch(self, topics: frozenset[str]) -> _Counts:
        """Count the partitions of these topics, and again from time to time."""
        counts = self._counts(topics)
        next_check = time.monotonic() + self._terms.topics_max_age_s
        self._watched = _WatchedTopics(topics, counts, next_check)
        return counts

    def _is_outdated(self, joined: Joined, ours: frozenset[TopicPartition]) -> bool:
        """True if the former assignment of a static member does not fit its topics any more.

        See the module's table.
        """
        subscribed = frozenset(self._terms.topics)
        our_topics = frozenset(partition.topic for partition in ours)
        if not our_topics <= subscribed:
            return True
        if our_topics == subscribed and not joined.is_leader:
            return False
        assigned = self._assigned_in_group(joined, ours)
        if joined.is_leader:
            topics_of_group = _subscribed_topics(joined)
            if not topics_of_group:
                topics_of_group = frozenset(partition.topic for partition in assigned or ())
            counts = self._watch(subscribed | topics_of_group)
            return assigned is not None and bool(find_unassigned(counts, assigned))
        if assigned is None:
            return False
        assigned_topics = {partition.topic for partition in assigned}
        return not self._counts(subscribed).keys() <= assigned_topics

    def _assigned_in_group(
        self, joined: Joined, ours: frozenset[TopicPartition]
    ) -> frozenset[TopicPartition] | None:
        """Return all assigned partitions of the group.

        None during a rebalance, which assigns all of them, and for a follower that does not know
        them, which leaves it to the leader.
        """
        if len(joined.members) == 1:
            return ours
        found = self._connection.ask(lambda protocol: protocol.groups.members_of(self._terms.group))
        if found.refusal is not None:
            # For a leader a superfluous rebalance costs less than a partition without a reader.
            return frozenset() if joined.is_leader else None
        known = [partitions for partitions in found.members.values() if partitions is not None]
        if not known:
            return None
        return frozenset[TopicPartition]().union(*known)

    def _rejoin_to_rebalance(
        self, joined: Joined, identity: MemberIdentity, ours: frozenset[TopicPartition]
    ) -> None:
        """Rejoin with the next step to trigger a rebalance.

        The coordinator ignores the join of a follower with a known subscription, so a follower
        leaves first.
        """
        if joined.is_leader:
            self._owned = frozenset(
                partition for partition in ours if partition.topic in self._terms.topics
            )
            self._generation = joined.generation
            return
        refusal = self._connection.ask(lambda protocol: protocol.groups.leave_group(identity))
        if refusal is not None:
            self._handle_error(refusal, "let a static member rejoin")
            return
        self.member_id = None
        self._may_be_returning = False

    def _send_heartbeat(self, identity: MemberIdentity) -> None:
        sent_at = self._state.note_send()
        refusal = self._connection.ask(
            lambda protocol: protocol.groups.heartbeat(identity),
            within_s=min(self._terms.answers_in_s, self._terms.session_timeout_s),
        )
        if refusal is not None:
            self._handle_error(refusal, "accept a heartbeat")
            return
        self._state.note_answer()
        if self._assignment is not None:
            self._state.set_assignment(self._assignment, sent_at)

    def _has_other_partitions(self) -> bool:
        """True if we lead, and partition counts changed since we assigned: a rebalance is due."""
        before = self._watched
        if before is None or time.monotonic() < before.next_check:
            return False
        return self._watch(before.topics) != before.counts

    def _counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of each existing topic."""
        topics_found = self._connection.topics(sorted(set(topics))).topics
        counts = {}
        for name, topic in topics_found.items():
            if topic.partitions:
                counts[name] = len(topic.partitions)
        return counts

    def _handle_error(
        self, refusal: BrokerRefusal, doing: str, *, new_id: str | None = None
    ) -> None:
        """Do what the coordinator's error code requires; raise it if it ends the membership.

        `new_id`: the member id in the response, if any.
        """
        meaning = reaction_to(refusal)
        if self._identity is None and refusal.meaning is not Meaning.ID_REQUIRED:
            self._state.note_try()
        if meaning.is_lost:
            self._state.count_loss()
        if meaning.next is Next.GIVE_UP:
            raise refusal.error(doing, group=self._terms.group, broker=self._connection.address)
        is_known = self._assignment is not None and not meaning.is_lost
        if meaning.next is Next.JOIN_AGAIN and is_known:
            # The coordinator still knows us: the answer counts as one to a heartbeat.
            self._state.note_answer()
            self._rejoin_unless_held()
            return
        if meaning.next in (Next.JOIN_AGAIN, Next.ASK_AT_ONCE):
            if not meaning.keeps_id:
                self.member_id = None
            elif new_id:
                self.member_id = new_id
            if meaning.is_lost:
                self._owned = frozenset()
                self._generation = None
            self._rejoin()
            if self._rejected_joins > 1:
                self._state.pause(self._terms.backoff_s)
            return
        self._state.note_error(
            refusal.error(doing, group=self._terms.group, broker=self._connection.address)
        )
        if meaning.next is Next.LOOK_UP:
            self._connection.forget()
        self._state.pause(self._terms.backoff_s)

    def _rejoin_unless_held(self) -> None:
        """Rejoin; with a held assignment after its release, and until then send heartbeats.

        A member without partitions rejoins at once.
        """
        self._is_rejoin_due = self._state.holds and bool(self._owned)
        if self._is_rejoin_due:
            self._state.request_release(self._owned)
        else:
            self._rejoin()

    def _rejoin(self) -> None:
        """End the assignment; the next step joins."""
        self._identity = None
        self._assignment = None
        self._is_rejoin_due = False
        self._state.end_assignment()


def _subscribed_topics(joined: Joined) -> frozenset[str]:
    topics: set[str] = set()
    for member in joined.members:
        topics.update(member.subscription.topics)
    return frozenset(topics)


_PartitionOfTopicId = tuple[str, int]
"""Topic id and partition: a recreated topic has another id."""
_HEARTBEATS_UNTIL_EMPTY = 6
"""Heartbeats until an empty assignment is believed.

Other members learn of us by a heartbeat, release at their next poll, and report with one more.
"""


class ConsumerProtocol:
    """One member, in the consumer protocol. Threads and errors as in `ClassicProtocol`."""

    may_be_interrupted = True
    """A leave request is always possible: the member creates its id itself."""

    def __init__(
        self, terms: MemberTerms, connection: CoordinatorConnection, state: MemberState
    ) -> None:
        self._terms = terms
        self._connection = connection
        self._state = state
        self.member_id: str | None = str(uuid.uuid4())
        self._epoch = 0
        """0: no member yet."""
        self._owned: frozenset[_PartitionOfTopicId] = frozenset()
        self._target: frozenset[_PartitionOfTopicId] = frozenset()
        """The assignment as last received."""
        self._names: dict[str, str] = {}
        """Topic id to name."""
        self._has_changes = False
        """True if we own other partitions than the coordinator knows."""
        self._empty_from = float("-inf")
        """From when on an empty assignment is believed (`time.monotonic`)."""

    def step(self) -> None:
        """Wait once, unless there is something to report, and send one heartbeat."""
        if self._epoch == 0 or self._has_changes or self._state.pause():
            self._reconcile()
            self._send_heartbeat()

    def leave(self) -> None:
        """Leave the group.

        A static member announces its return and keeps its partitions for its session.
        """
        if self._epoch > 0:
            epoch = LEAVES if self._terms.instance_id is None else LEAVES_TEMPORARILY
            leaving = self._heartbeat(epoch, None)
            self._connection.ask(lambda protocol: protocol.groups.consumer_heartbeat(leaving))

    def _send_heartbeat(self) -> None:
        owned: Mapping[str, frozenset[int]] | None = None
        if self._epoch == 0 or self._has_changes:
            owned = self._owned_by_topic_id()
        heartbeat = self._heartbeat(self._epoch, owned)
        sent_at = self._state.note_send()
        answer = self._connection.ask(
            lambda protocol: protocol.groups.consumer_heartbeat(heartbeat),
            within_s=min(self._terms.answers_in_s, self._terms.session_timeout_s),
        )
        if answer.refusal is not None:
            self._handle_error(answer)
            return
        interval_s = answer.interval_ms / 1000
        if self._epoch == 0:
            self._state.note_join()
            wait_s = min(_HEARTBEATS_UNTIL_EMPTY * interval_s, self._terms.join_timeout_s / 2)
            self._empty_from = sent_at + wait_s
        self._state.note_answer()
        self._state.set_heartbeat_interval(interval_s)
        self.member_id = answer.member_id or self.member_id
        self._epoch = answer.epoch
        self._has_changes = False
        if answer.assigned is not None:
            target: set[_PartitionOfTopicId] = set()
            for topic_id, numbers in answer.assigned.items():
                for number in numbers:
                    target.add((topic_id, number))
            self._target = frozenset(target)
        self._reconcile()
        if not self._has_changes and (self._owned or sent_at >= self._empty_from):
            assignment = MemberAssignment(
                self.member_id or "",
                Membership.COORDINATOR,
                BY_COORDINATOR,
                self._epoch,
                self._with_names(self._owned),
                self._terms.instance_id,
            )
            self._state.set_assignment(assignment, sent_at)

    def _reconcile(self) -> None:
        """Own the assigned partitions, and hold revoked ones that the run needs."""
        found = reconcile_assignment(
            self._owned, self._known(self._target), holds=self._state.holds
        )
        self._state.request_release(self._with_names(found.held))
        if found.owned != self._owned:
            self._has_changes = True
            if self._owned - found.owned:
                self._state.end_assignment()
        self._owned = found.owned

    def _known(self, target: frozenset[_PartitionOfTopicId]) -> frozenset[_PartitionOfTopicId]:
        """Return the partitions of topics with a known name.

        The others are not owned and not acknowledged.
        """
        if not {topic_id for topic_id, _ in target} <= self._names.keys():
            topic_ids = self._connection.topics(self._terms.topics).topic_ids
            for name, topic_id in topic_ids.items():
                self._names[topic_id] = name
        return frozenset(each for each in target if each[0] in self._names)

    def _with_names(self, owned: frozenset[_PartitionOfTopicId]) -> frozenset[TopicPartition]:
        partitions = set()
        for topic_id, number in owned:
            partitions.add(TopicPartition(self._names[topic_id], number))
        return frozenset(partitions)

    def _owned_by_topic_id(self) -> dict[str, frozenset[int]]:
        numbers: dict[str, set[int]] = {}
        for topic_id, number in self._owned:
            numbers.setdefault(topic_id, set()).add(number)
        return {topic_id: frozenset(of_topic) for topic_id, of_topic in numbers.items()}

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

    def _handle_error(self, answer: ConsumerHeartbeatAnswer) -> None:
        """Do what the coordinator's error code requires; raise it if it ends the membership."""
        refusal = answer.refusal
        if refusal is None:
            return
        meaning = reaction_to(refusal)
        if self._epoch == 0:
            self._state.note_try()
        if meaning.is_lost:
            self._state.count_loss()
        error = refusal.error(
            "accept a heartbeat",
            group=self._terms.group,
            broker=self._connection.address,
            said=answer.said or None,
        )
        if meaning.next is Next.GIVE_UP:
            raise error
        if meaning.next is Next.JOIN_AGAIN:
            if self._epoch == 0:
                self._state.pause(self._terms.backoff_s)
            if not meaning.keeps_id:
                self.member_id = str(uuid.uuid4())
            self._epoch = 0
            self._owned = frozenset()
            self._target = frozenset()
            self._has_changes = False
            self._state.end_assignment()
            return
        self._state.note_error(error)
        if meaning.next is Next.LOOK_UP:
            self._connection.forget()
        self._state.pause(self._terms.backoff_s)


_PAUSE_S = 0.2
_NO_SUCH_GROUP = 69
"""GROUP_ID_NOT_FOUND of this protocol: the group has no members."""


def end_membership(
    connection: CoordinatorConnection, group: str, assignment: MemberAssignment, *, within_s: float
) -> None:
    """Leave as the member of this assignment; nothing if the group does not know it.

    Raises BrokerUnreachable, and the coordinator's error.
    """
    deadline = time.monotonic() + within_s
    while True:
        refusal = _leave(connection, group, assignment)
        if refusal is None:
            return
        if refusal.meaning is Meaning.UNKNOWN_MEMBER or refusal.code == _NO_SUCH_GROUP:
            return
        if not refusal.is_retriable or time.monotonic() + _PAUSE_S > deadline:
            raise refusal.error(
                "end the membership of a run that is gone", group=group, broker=connection.address
            )
        connection.forget()
        time.sleep(_PAUSE_S)


def _leave(
    connection: CoordinatorConnection, group: str, assignment: MemberAssignment
) -> BrokerRefusal | None:
    if assignment.strategy == BY_COORDINATOR:
        heartbeat = ConsumerHeartbeat(group, assignment.member_id, LEAVES, None, -1, (), None)
        return connection.ask(
            lambda protocol: protocol.groups.consumer_heartbeat(heartbeat)
        ).refusal
    leaving = MemberIdentity(group, assignment.member_id, None, -1)
    return connection.ask(lambda protocol: protocol.groups.leave_group(leaving))


_PROTOCOLS: Mapping[GroupProtocol, type[ClassicProtocol] | type[ConsumerProtocol]] = {
    GroupProtocol.CLASSIC: ClassicProtocol,
    GroupProtocol.CONSUMER: ConsumerProtocol,
}


class CoordinatedMember:
    """Membership of a run in a group with a coordinator (`etl.run.service_interfaces.Member`).

        bootstrap    brokers that are requested for the coordinator
        terms        how to join
        protocol     classic or consumer protocol
        broker_type  broker type or release (`Broker.broker_type`); None: detected
        security     encryption and login

    Used by one thread. `rejoin`, `follow` and `leave` end a `hold`.
    """

    def __init__(
        self,
        bootstrap: Sequence[tuple[str, int]],
        terms: MemberTerms,
        *,
        protocol: GroupProtocol = GroupProtocol.CLASSIC,
        broker_type: str | None = None,
        security: Security = OPEN,
    ) -> None:
        self._bootstrap = tuple(bootstrap)
        self._terms = terms
        self._protocol = protocol
        self._broker_type = broker_type
        self._security = security
        self._running: _RunningMember | None = None
        self._assignment: MemberAssignment | None = None
        self._past_statistics = RebalanceStatistics()
        self._is_interrupted = False

    def join(self) -> MemberAssignment:
        """Join, and wait until the group has settled; the assignment may be empty.

        Raises Owned if it does not settle within `join_timeout_s`; SettingsError if group, broker
        and terms do not fit; PermissionDenied; MembershipLost if another process is the static
        member of this name; BrokerUnreachable without a coordinator. Then the membership is over.
        """
        unknown = [name for name in self._terms.strategies if name not in STRATEGIES]
        if unknown:
            raise SettingsError(
                f"Assignment strategy {unknown[0]} is not supported, and we may become the group's"
                " leader",
                action=f"Set group.join.assignment_strategy: {', '.join(STRATEGIES)}",
                group=self._terms.group,
            )
        if self._running is None:
            self._running = _RunningMember(self._connection(), self._terms, self._protocol)
        if self._is_interrupted:
            self._running.state.leave()
        return self._wait_for_assignment(self._running, float("-inf"))

    def rejoin(self) -> MemberAssignment:
        """Return an assignment that is valid after this call: the same one if it still is.

        Raises as `join`.
        """
        if self._running is None:
            return self.join()
        self._running.state.hold(False)
        return self._wait_for_assignment(self._running, self._running.state.request_heartbeat())

    def renew(self) -> MemberAssignment:
        """Return an assignment as `rejoin`, without releasing held partitions.

        Revoked partitions are part of it, and in `release_requested`. Consumer protocol only.
        Raises as `join`.
        """
        if self._running is None:
            return self.join()
        return self._wait_for_assignment(self._running, self._running.state.request_heartbeat())

    @property
    def is_member(self) -> bool:
        """True if it has joined, or tries to, and did not leave."""
        return self._running is not None

    @property
    def is_current(self) -> bool:
        """True if the last assignment is valid as far as known.

        Only a hint: the coordinator decides when it accepts or rejects a commit.
        """
        return self._running is not None and self._running.state.is_current(self._assignment)

    @property
    def newest(self) -> MemberAssignment | None:
        """Return the assignment of the last response, also if `join` did not return it yet."""
        if self._running is None:
            return None
        return self._running.state.newest

    def heard(self, *, within_s: float) -> MemberAssignment | None:
        """Return the assignment as confirmed by a request that is sent now; releases nothing.

        None if there is none in time. Raises the error that ended the membership.
        """
        if self._running is None:
            return None
        state = self._running.state
        return state.wait_for_assignment(state.request_heartbeat(), time.monotonic() + within_s)

    def unbroken(self, assignment: MemberAssignment, *, within_s: float) -> MemberAssignment | None:
        """Return an earlier assignment with its current epoch, if nothing of it was released since.

        None otherwise, or without an answer in time. Consumer protocol only: epochs change when
        other members join and leave.
        """
        running = self._running
        if running is None or self._protocol is not GroupProtocol.CONSUMER:
            return None
        if not running.state.is_retained(assignment):
            return None
        try:
            current = self.heard(within_s=within_s)
        except EtlError:
            # The membership has ended, and its assignment with it.
            return None
        if not running.state.is_retained(assignment):
            return None
        return current

    @property
    def release_requested(self) -> frozenset[TopicPartition]:
        """Return the held partitions that the group waits for, released by `rejoin` or `leave`."""
        if self._running is None:
            return frozenset()
        return self._running.state.release_requested

    def hold(self) -> None:
        """Acknowledge no revocation until `release`: other members do not get these partitions.

        Consumer protocol only: a classic group waits for all members and continues without missing
        ones. The coordinator waits for the rebalance timeout at most.
        """
        if self._running is not None and self._protocol is GroupProtocol.CONSUMER:
            self._running.state.hold(True)

    def release(self) -> None:
        """Release held partitions. Never raises."""
        if self._running is not None:
            self._running.state.hold(False)

    def end(self, assignment: MemberAssignment) -> None:
        """End the membership of a dead driver's assignment, so that no commit of it can arrive.

        Raises BrokerUnreachable, and the coordinator's error.
        """
        connection = self._connection()
        try:
            end_membership(
                connection, self._terms.group, assignment, within_s=self._terms.answers_in_s
            )
        finally:
            connection.forget()

    def follow(self) -> None:
        """After the commit: release on request, and accept new assignments in the background.

        Never raises. With `MemberTerms.holds_assignment` held partitions stay held.
        """
        if not self._terms.holds_assignment:
            self.release()

    def interrupt(self) -> None:
        """Make `join` or `rejoin`, in another thread, raise at once. Only `leave` follows."""
        self._is_interrupted = True
        running = self._running
        if running is not None:
            running.state.leave()

    def leave(self) -> None:
        """Leave the group; a static member keeps its partitions for its session. Never raises."""
        if self._running is not None:
            self._running.end()
            self._past_statistics = self.statistics
        self._running = None
        self._assignment = None

    @property
    def statistics(self) -> RebalanceStatistics:
        """Cost of the membership so far."""
        past = self._past_statistics
        if self._running is None:
            return past
        now = self._running.state.statistics
        return RebalanceStatistics(
            past.rebalances + now.rebalances,
            past.seconds + now.seconds,
            past.tries + now.tries,
            past.lost + now.lost,
            now.heartbeat_age_s,
        )

    def _wait_for_assignment(self, running: _RunningMember, since: float) -> MemberAssignment:
        """Return the assignment confirmed since then (`time.monotonic`); leave on any error."""
        timeout_s = self._terms.join_timeout_s
        try:
            assignment = running.state.wait_for_assignment(since, time.monotonic() + timeout_s)
        except BaseException:
            self.leave()
            raise
        if assignment is None:
            last_error = running.state.last_error
            self.leave()
            if last_error is not None:
                raise last_error
            raise Owned(
                f"The group {self._terms.group} did not settle within {timeout_s:g} s",
                action="Check the group's other members: a classic group waits for the longest of"
                " their rebalance timeouts (max.poll.interval.ms)",
            )
        self._assignment = assignment
        return assignment

    def _connection(self) -> CoordinatorConnection:
        longest_s = self._terms.rebalance_timeout_s + 2 * self._terms.answers_in_s
        return CoordinatorConnection(
            self._bootstrap,
            self._terms.group,
            answers_in_s=self._terms.answers_in_s,
            longest_s=longest_s,
            broker_type=self._broker_type,
            security=self._security,
        )


class _RunningMember:
    """One membership, from a join to a leave, and its thread."""

    def __init__(
        self, connection: CoordinatorConnection, terms: MemberTerms, protocol: GroupProtocol
    ) -> None:
        self.state = MemberState(terms)
        self._connection = connection
        self._terms = terms
        self._protocol = _PROTOCOLS[protocol](terms, connection, self.state)
        self._thread = Thread(target=self._run, name=f"member of {terms.group}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Leave, and wait for that as long as a response may take."""
        self.state.leave()
        if self._protocol.may_be_interrupted:
            self._connection.interrupt()
        self._thread.join(self._terms.answers_in_s)

    def _run(self) -> None:
        try:
            while not self.state.is_leaving:
                self._try_step()
        except Exception as error:
            # Any error is raised in the run's thread, which waits for an assignment.
            self.state.fail(error)
        # An unavailable coordinator removes the member when its session times out.
        with contextlib.suppress(EtlError):
            self._connection.forget()
            self._protocol.leave()
        self._connection.forget()

    def _try_step(self) -> None:
        try:
            self._protocol.step()
        except Unreachable as error:
            if isinstance(error, MembershipLost):
                raise
            self.state.note_error(error)
            self._connection.forget()
            self.state.pause(self._terms.backoff_s)
