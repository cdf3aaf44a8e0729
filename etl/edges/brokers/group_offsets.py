"""The offsets of a consumer group that brokers keep.

Two places, as with the consumers of Kafka 0.8 and later: the group's coordinator keeps them in a
topic of its own, and has to be looked up; or any broker before 4.0 that has a ZooKeeper writes them
there for us, where consumers of `offsets.storage=zookeeper` read them.

    a commit that                                                       raises
    -----------------------------------------------------------------   --------------------------------------------------------------------
    comes from outside (no member), while the group has members         Owned: nothing was stored
    names a member that the group does not know, or whose generation    MembershipLost: nothing was stored
    or epoch has passed, or comes while the group divides its logs
    got no answer, or one that leaves it open                           CommitUnknown: it may be stored, now or a moment later; read it back
    is refused otherwise                                                what the code means, for the first log refused
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing

from etl.edges.brokers.broker_questions import BrokerQuestions
from etl.edges.brokers.exchange import Answer
from etl.errors import (
    BrokerError,
    BrokerUnreachable,
    CommitUnknown,
    EtlError,
    Meaning,
    MembershipLost,
    Owned,
    Refusal,
)
from etl.kafka.messages import (
    CommittedOffset,
    CommittedOffsets,
    GroupMember,
    OffsetsCommit,
    OffsetsQuestion,
    reject_negative,
)
from etl.model.partitions import Broker, BrokerPartition

_PAUSE_S = 0.2
_COMING = (Meaning.NOT_COORDINATOR, Meaning.NO_COORDINATOR_YET, Meaning.UNSTABLE)
_FENCED = (
    Meaning.OLD_GENERATION,
    Meaning.UNKNOWN_MEMBER,
    Meaning.FENCED,
    Meaning.FENCED_EPOCH,
    Meaning.STALE_EPOCH,
    Meaning.REBALANCING,
)
_OPEN = "nobody knows whether the offsets are stored"
_READ_IT_BACK = "what the group has stored: the commit may have happened"


class GroupOffsets(BrokerQuestions):
    """What one broker can be asked of a group's offsets. Raises SettingsError where the generation
    has no such thing.

    As a member asks who names `member_id` and `generation`, with KIP-848 the member's epoch;
    without them it is from outside of any.
    """

    def find_coordinator(self, group: str) -> Broker:
        """The broker to ask for the offsets of `group`. Raises BrokerError where there is none yet
        when `timeout_s` has passed.

        The first question of this kind makes the topic `__consumer_offsets` where there never was a
        group.
        """
        return self._coordinator(group, time.monotonic() + self._timeout_s)

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[BrokerPartition, int],
        *,
        metadata: str = "",
        generation: int | None = None,
        member_id: str = "",
        instance_id: str | None = None,
        leader_epochs: Mapping[BrokerPartition, int] | None = None,
        topic_ids: Mapping[str, str] | None = None,
        in_zookeeper: bool = False,
    ) -> None:
        """Store next offsets, and a word beside each: with the group's coordinator, or in ZooKeeper
        by this broker (OffsetCommit 0).

        A coordinator that moved or still loads is looked up and asked again until `timeout_s` has
        passed. Raises as the table above says.
        """
        refusals = self.commit_each(
            group,
            offsets,
            metadata=metadata,
            generation=generation,
            member_id=member_id,
            instance_id=instance_id,
            leader_epochs=leader_epochs,
            topic_ids=topic_ids,
            in_zookeeper=in_zookeeper,
        )
        refused = {log: refusal for log, refusal in sorted(refusals.items()) if refusal}
        for log, refusal in refused.items():
            others = (
                f" (and {len(refused) - 1:,} of {len(offsets):,} more were refused)"
                if len(refused) > 1
                else ""
            )
            raise refusal.error(
                f"commit an offset of group {group}{others}",
                **log.place,
                offset=offsets[log],
                broker=self.address,
            )

    def commit_each(
        self,
        group: str,
        offsets: Mapping[BrokerPartition, int],
        *,
        metadata: str = "",
        generation: int | None = None,
        member_id: str = "",
        instance_id: str | None = None,
        leader_epochs: Mapping[BrokerPartition, int] | None = None,
        topic_ids: Mapping[str, str] | None = None,
        in_zookeeper: bool = False,
        is_sent_once: bool = False,
    ) -> dict[BrokerPartition, Refusal | None]:
        """As `commit_offsets`; what one log alone is refused with is told of that log, None for
        those that are stored.

        Raises ValueError for a negative offset, generation or leader epoch: stored, -1 is read as
        "no offset", and as a generation it is that of a commit from outside.

        `is_sent_once`: a connection that broke is CommitUnknown for a member, too, whose commit
        would else be sent again. So is what a coordinator refuses after one that moved: the batch
        of the first commit may be in the log that it has read.
        """
        reject_negative(generation=generation)
        for log, offset in offsets.items():
            if offset < 0:
                reject_negative(**{f"the offset of {log.topic}-{log.key}": offset})
        for epoch in (leader_epochs or {}).values():
            reject_negative(leader_epoch=epoch)
        member = None if generation is None else GroupMember(member_id, generation, instance_id)
        wanted = OffsetsCommit(
            group, offsets, metadata, member, leader_epochs or {}, topic_ids or {}
        )
        answers = list[dict[BrokerPartition, Refusal | None]]()

        def commit(broker: GroupOffsets) -> dict[BrokerPartition, Refusal | None]:
            # Only a member's commit may be sent twice: behind another one, somebody else's offset
            # may lie between the two.
            try:
                may_repeat = member is not None and not is_sent_once
                told = broker._ask(
                    lambda dialect: dialect.commit_offsets(wanted, in_zookeeper=in_zookeeper),
                    may_repeat=may_repeat,
                )
            except BrokerUnreachable as error:
                raise _unknown(group, error) from error
            answers.append(told)
            return told

        try:
            told = (
                commit(self)
                if in_zookeeper
                else self._of_coordinator(group, commit, lambda told: set(told.values()))
            )
            self._refuse_unsettled(wanted, told)
        except (MembershipLost, BrokerUnreachable) as error:
            earlier = answers if isinstance(error, BrokerUnreachable) else answers[:-1]
            if is_sent_once and earlier:
                raise _unknown(group, error) from error
            raise
        return told

    def fetch_offsets(
        self,
        group: str,
        logs: Collection[BrokerPartition],
        *,
        generation: int | None = None,
        member_id: str = "",
        require_stable: bool = False,
        topic_ids: Mapping[str, str] | None = None,
        in_zookeeper: bool = False,
    ) -> dict[BrokerPartition, CommittedOffset]:
        """Next offsets as stored, and the word beside each: by the group's coordinator, or in
        ZooKeeper, read there by this broker.

        `require_stable`: one that an open transaction is about to replace is waited for, by brokers
        from 2.5 on. A coordinator that moved or still loads is asked for again; both until
        `timeout_s` has passed. Raises for the first log refused, and MembershipLost; ValueError for
        a negative generation.
        """
        reject_negative(generation=generation)
        member = None if generation is None else GroupMember(member_id, generation)
        question = OffsetsQuestion(group, tuple(logs), member, require_stable, topic_ids or {})

        def ask(broker: GroupOffsets) -> CommittedOffsets:
            return broker._ask(
                lambda dialect: dialect.committed_offsets(question, in_zookeeper=in_zookeeper)
            )

        def refusals(told: CommittedOffsets) -> set[Refusal | None]:
            return {told.refusal, *(each.refusal for each in told.offsets.values())}

        found = ask(self) if in_zookeeper else self._of_coordinator(group, ask, refusals)
        if found.refusal:
            if member and found.refusal.meaning in _FENCED:
                raise self._lost(group, found.refusal)
            raise found.refusal.error(f"tell the offsets of group {group}", broker=self.address)
        for log, told in sorted(found.offsets.items()):
            if told.refusal:
                raise told.refusal.error(
                    f"tell an offset of group {group}", **log.place, broker=self.address
                )
        return dict(found.offsets)

    def _refuse_unsettled(
        self, wanted: OffsetsCommit, told: Mapping[BrokerPartition, Refusal | None]
    ) -> None:
        """Raises for what a coordinator says of the whole commit, in the place of each log; see the
        module's table.
        """
        meant = {refusal.meaning: refusal for refusal in told.values() if refusal}
        fenced = next((meant[meaning] for meaning in _FENCED if meaning in meant), None)
        if fenced and wanted.member:
            raise self._lost(wanted.group, fenced)
        if fenced:
            what = f"group {wanted.group} has live members in Kafka, and they alone commit its offsets: {fenced.name} (code {fenced.code})"
            raise Owned(
                what,
                check="which consumers of this group run: kafka-consumer-groups.sh --describe --members",
                broker=self.address,
            )
        for refusal in meant.values():
            if refusal.is_retriable and refusal.kind is BrokerError:
                what = f"{_OPEN} of group {wanted.group}: {refusal.name} (code {refusal.code})"
                raise CommitUnknown(
                    what, check=f"{refusal.check}; {_READ_IT_BACK}", broker=self.address
                )

    def _lost(self, group: str, refusal: Refusal) -> MembershipLost:
        what = f"the coordinator of group {group} does not take us for its member any more: {refusal.name} (code {refusal.code})"
        return MembershipLost(what, check=refusal.check, broker=self.address)

    def _of_coordinator(
        self,
        group: str,
        ask: Callable[[GroupOffsets], Answer],
        refusals: Callable[[Answer], Collection[Refusal | None]],
    ) -> Answer:
        """What the group's coordinator answers; looked up again while it is not one, or not one
        yet, or does not answer.

        Brokers name one that died until they have noticed.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            coordinator = self._coordinator(group, deadline)
            try:
                answer = self._asked_at(coordinator, ask)
                is_coming = any(
                    refusal and refusal.meaning in _COMING for refusal in refusals(answer)
                )
                if not is_coming or time.monotonic() + _PAUSE_S > deadline:
                    return answer
            except BrokerUnreachable:
                if self._is(coordinator) or time.monotonic() + _PAUSE_S > deadline:
                    raise
            time.sleep(_PAUSE_S)

    def _coordinator(self, group: str, deadline: float) -> Broker:
        """Asked for again while there is none yet, until the deadline (a `time.monotonic` moment)."""
        while True:
            told = self._ask(lambda dialect: dialect.coordinator(group))
            if told.refusal is None:
                return told.broker
            if told.refusal.meaning not in _COMING or time.monotonic() + _PAUSE_S > deadline:
                raise told.refusal.error(
                    f"name the coordinator of group {group}", broker=self.address
                )
            time.sleep(_PAUSE_S)

    def _asked_at(self, broker: Broker, ask: Callable[[GroupOffsets], Answer]) -> Answer:
        if self._is(broker):
            return ask(self)
        with closing(
            GroupOffsets(
                broker.host,
                broker.port,
                timeout_s=self._timeout_s,
                generation=self.generation,
                security=self.security,
            )
        ) as coordinator:
            return ask(coordinator)

    def _is(self, broker: Broker) -> bool:
        return (broker.host, broker.port) == (self.host, self.port)


def _unknown(group: str, error: EtlError) -> CommitUnknown:
    return CommitUnknown(
        f"{_OPEN} of group {group}: {error.what}", check=_READ_IT_BACK, **error.where
    )
