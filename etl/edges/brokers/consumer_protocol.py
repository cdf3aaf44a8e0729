"""The consumer protocol as one member lives it (KIP-848, Kafka 4.0 on): one heartbeat that joins,
is told what to own, and acknowledges.

The coordinator divides the logs, and gives one to its next owner only when the member that has it
says that it let go. So what a run still needs may be held: it is not acknowledged while
`MemberState.holds`, for as long as the rebalance timeout, behind which the coordinator takes the
member for gone. `step` is one wait and one question; `coordinator` calls it in a thread of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from etl.decide.group_assignment import Next, answered, reconciled
from etl.edges.brokers.coordinator_connection import CoordinatorConnection
from etl.edges.brokers.member_state import MemberState, MemberTerms
from etl.kafka.messages import LEAVES, WILL_BE_BACK, ConsumerHeartbeat, ConsumerHeartbeatAnswer
from etl.model.partitions import BY_COORDINATOR, BrokerPartition, Membership, Share

_Log = tuple[str, int]
"""Topic id and partition: a topic that is made again under its name is another one."""
_QUIET_HEARTBEATS = 6
"""Until an empty share is believed: others are told with a heartbeat, let go behind their next
poll, and say so with one more.
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
        """As last told."""
        self._names: dict[str, str] = {}
        """Topic id to name."""
        self._has_news = False
        """Whether we own other logs than the coordinator was told."""
        self._settles_at = float("-inf")
        """When an empty share is believed."""

    def step(self) -> None:
        """One wait, unless there is something to say, and one question."""
        if self._epoch == 0 or self._has_news or self._state.pause():
            self._reconcile()
            self._beat()

    def leave(self) -> None:
        """Be no member any more. A static one says that it will be back, and keeps its logs for as
        long as its session.
        """
        if self._epoch > 0:
            epoch = LEAVES if self._terms.instance_id is None else WILL_BE_BACK
            gone = self._heartbeat(epoch, None)
            self._connection.ask(lambda dialect: dialect.consumer_heartbeat(gone))

    def _beat(self) -> None:
        tells_all = self._epoch == 0 or self._has_news
        beat = self._heartbeat(self._epoch, self._by_topic() if tells_all else None)
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
                Share(
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
        """Own what is assigned, and hold what is not assigned any more where the run does."""
        found = reconciled(self._owned, self._named(self._target), holds=self._state.holds)
        self._state.ask_back(
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
        """Without logs of topics that nobody can name yet, or any more: those are not owned, and
        not acknowledged.
        """
        if not {topic_id for topic_id, _ in target} <= self._names.keys():
            told = self._connection.topics(self._terms.topics).topic_ids
            self._names.update({topic_id: name for name, topic_id in told.items()})
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
