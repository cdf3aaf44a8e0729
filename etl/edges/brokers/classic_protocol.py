"""The classic protocol as one member lives it (Kafka 0.9 to 4.x): join, sync, beat, and join again
when the group divides its logs anew.

`step` is one question or one wait; `coordinator` calls it in a thread of its own until the member
leaves. What an answer means is `coordinated`'s. The leader divides the logs by partition counts of
that moment, looks at them from time to time, and joins again when they changed: nobody else would.

A static member that comes back within its session causes no rebalance, and gets the assignment that
the group had. Topics and partitions that were added while it was away are in no assignment, and a
leader that was away did not see them come. So it compares the assignment with what exists:

    leader      some partition of the group's topics is assigned to nobody    joins again: a leader's join is a rebalance
    any member  it is assigned topics that it no longer subscribes to         a leader joins again; a follower leaves, and
    follower    a topic of its own exists and is assigned to nobody           joins as a new member: that is a rebalance

Java's leader only watches from its return on (KIP-814), and misses what came before. Partitions
that are added to a topic which the group has assigned are the leader's to find.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from etl.decide.group_assignment import (
    KEEPS_LOGS,
    GroupMember,
    Next,
    answered,
    assign_as_leader,
    find_unassigned,
)
from etl.edges.brokers.coordinator_connection import CoordinatorConnection
from etl.edges.brokers.member_state import MemberState, MemberTerms
from etl.errors import CorruptData, Meaning, Refusal
from etl.kafka.messages import Joined, JoinRequest, MemberIdentity, Subscription
from etl.model.partitions import BrokerPartition, Membership, Share

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
        self._share: Share | None = None
        self._owned: frozenset[BrokerPartition] = frozenset()
        self._generation: int | None = None
        """Of which that is."""
        self._divided: tuple[frozenset[str], _Counts, float] | None = None
        """The group's topics, by what we divided them as the leader, and when that is looked at
        again.
        """
        self._may_come_back = terms.instance_id is not None
        """Whether the group may know us from before: until it has told us what we are assigned for
        the first time.
        """
        self._refused_joins = 0
        self._is_due = False
        """Whether the group waits for us to join again, and the share is held."""

    @property
    def may_be_interrupted(self) -> bool:
        """Whether the coordinator could still be told that we leave: not before it said who we are."""
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
        """Be no member any more. A static one stays for as long as its session: whoever comes back
        under its name has its logs.
        """
        if self.member_id is not None and self._terms.instance_id is None:
            gone = MemberIdentity(self._terms.group, self.member_id, None, -1)
            self._connection.ask(lambda dialect: dialect.leave_group(gone))

    def _join(self) -> None:
        terms, longest_s = self._terms, self._terms.rebalance_timeout_s + self._terms.answers_in_s
        lets_go = not KEEPS_LOGS.issuperset(terms.strategies)
        told = (
            Subscription(terms.topics)
            if lets_go
            else Subscription(terms.topics, self._owned, self._generation)
        )
        wanted = JoinRequest(
            terms.group,
            self.member_id,
            terms.instance_id,
            round(terms.session_timeout_s * 1000),
            round(terms.rebalance_timeout_s * 1000),
            dict.fromkeys(terms.strategies, told),
        )
        joined = self._connection.ask(
            lambda dialect: dialect.join_group(wanted), within_s=longest_s
        )
        if joined.refusal is not None:
            self._refused_joins += 1
            self._act(joined.refusal, "take a member", told_id=joined.member_id)
            return
        if joined.member_id is None:
            what = "the coordinator takes us as a member and gives no id"
            raise CorruptData(what, check="the broker's log", broker=self._connection.address)
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
                "the group's leader assigned us a log of a topic that we did not ask for",
                **strange[0].place,
                group=self._terms.group,
                check="which client leads the group",
            )
        revoked = self._owned - synced.logs
        self._owned, self._generation = synced.logs, joined.generation
        if revoked and not lets_go:
            return  # they are let go by joining again without them: only then does the leader give them to others
        self._identity = identity
        self._share = Share(
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
        """As the leader, and watch these topics from now on."""
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
        """What all members have together. None while the group divides its logs anew: then
        everything is divided again; and for a follower where that is not known, which leaves it to
        the leader."""
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
        """With the next step, so that the group divides its logs anew. The coordinator ignores the
        join of a follower whose subscription it knows already, so that one leaves first."""
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
        """Whether we lead, and a topic has more partitions than we divided: then the group divides
        its logs anew.
        """
        if self._divided is None or time.monotonic() < self._divided[2]:
            return False
        topics, before, _ = self._divided
        return self._watch(topics) != before

    def _counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Partitions of each topic that is there."""
        told = self._connection.topics(sorted(set(topics))).topics
        return {name: len(topic.partitions) for name, topic in told.items() if topic.partitions}

    def _act(self, refusal: Refusal, doing: str, *, told_id: str | None = None) -> None:
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
        """Join again; where the share is held, once that is over. Until then heartbeats say that we
        live. Who owns nothing holds nothing, and is asked for nothing back: it joins at once."""
        self._is_due = self._state.holds and bool(self._owned)
        if self._is_due:
            self._state.ask_back(self._owned)
        else:
            self._let_go()

    def _let_go(self) -> None:
        self._identity = self._share = None
        self._is_due = False
        self._state.let_go()
