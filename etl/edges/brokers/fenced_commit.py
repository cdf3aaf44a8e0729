"""Hands a stored plan over where the group keeps its offsets in Kafka: one commit, fenced by the
membership that the plan was made with.

One commit is one batch in the coordinator's log, so all of it is taken or nothing. It may be sent
again, since it says the same thing: as long as its membership stands nobody else commits these
logs. What is there tells whether it was taken when no answer came (`decide.group_commits`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from etl.decide.group_commits import HandOverOutcome, found_out
from etl.edges.brokers.cluster import Cluster
from etl.edges.brokers.kept_offsets import KeptOffsets, logs_there
from etl.edges.brokers.simple_consumer import SimpleConsumer
from etl.errors import CommitUnknown, Meaning, MembershipLost, Refusal, SettingsError
from etl.model.partitions import BrokerPartition, Share, Void
from etl.model.plans import Plan

_PAUSE_S = 0.2
_BATCH_BYTES = 950_000
"""Brokers take 1,000,012 of a batch unless they are told otherwise."""
_FINDS_OUT = "nothing; the next run finds out"
_GONE = "the brokers do not know the topics of its partitions any more"


class FencedCommit:
    """The hand-overs of one pipeline's plans. `tries_for_s`: how long an answer is asked for.
    Raises what the brokers do.
    """

    def __init__(self, kept: KeptOffsets, *, tries_for_s: float) -> None:
        self._kept, self._tries_for_s = kept, tries_for_s

    def hand_over(self, cluster: Cluster, plan: Plan, *, unsure: Callable[[], None]) -> Void | None:
        """Move the plan's offsets, all of them; why none was, where the membership is over.

        A topic that the coordinator does not know is asked for again: it may not have been told of
        it yet. `unsure` is called behind a commit of which an answer was lost: it may still be
        under way, until its membership ends. Raises CommitUnknown where none came in time,
        SettingsError for more logs than one batch holds, and what else the coordinator refuses
        with.
        """
        logs, share = plan.offsets_to_hand_over, plan.share
        if not logs or share is None:
            return None
        self._refuse_too_many(plan, logs)
        deadline, is_unsure, is_partly = time.monotonic() + self._tries_for_s, False, False
        try:
            while True:
                try:
                    told = cluster.first(lambda consumer: self._asked(consumer, plan, share))
                    unknown = _unknown_to_coordinator(told, plan)
                    if not unknown:
                        return None
                    if time.monotonic() > deadline:
                        return self._without(cluster, plan, unknown, is_unsure=is_unsure)
                    is_partly = True
                except CommitUnknown:
                    is_unsure = True
                    if time.monotonic() > deadline:
                        raise
                time.sleep(_PAUSE_S)
        except MembershipLost as lost:
            return self._found(cluster, plan, lost) if is_unsure or is_partly else Void(lost.what)
        finally:
            if is_unsure:
                unsure()

    def _found(self, cluster: Cluster, plan: Plan, lost: MembershipLost) -> Void | None:
        """What became of earlier tries of a commit whose membership is over. Raises CommitUnknown
        where that cannot be told at once.
        """
        found = found_out(plan, self._kept.committed(cluster, plan.offsets_to_hand_over))
        if found is HandOverOutcome.TAKEN:
            return None
        if found is HandOverOutcome.NOT_TAKEN:
            return Void(lost.what)
        raise CommitUnknown(lost.what, check=_FINDS_OUT, **lost.where) from lost

    def _without(
        self, cluster: Cluster, plan: Plan, unknown: Sequence[BrokerPartition], *, is_unsure: bool
    ) -> Void | None:
        """What a commit came to of which the coordinator does not know these topics: nobody else
        reads one that is gone either.
        """
        if there := logs_there(cluster, unknown):
            what = f"the group's coordinator does not know a topic that other brokers have, and commits nothing of {there[0]}"
            raise CommitUnknown(
                what,
                check="the coordinator's log; the next run finds out what was taken",
                **there[0].place,
            )
        if len(unknown) < len(plan.offsets_to_hand_over):
            return None
        if is_unsure:
            raise CommitUnknown(_GONE, check=_FINDS_OUT)
        return Void(_GONE)

    def _asked(
        self, consumer: SimpleConsumer, plan: Plan, share: Share
    ) -> Mapping[BrokerPartition, Refusal | None]:
        offsets = {log: plan.positions[log] for log in plan.offsets_to_hand_over}
        return consumer.commit_each(
            self._kept.group,
            offsets,
            metadata=self._kept.metadata(plan.word),
            generation=share.generation,
            member_id=share.member_id,
            instance_id=share.instance_id,
            is_sent_once=True,
        )

    def _refuse_too_many(self, plan: Plan, logs: tuple[BrokerPartition, ...]) -> None:
        size = sum(self._kept.bytes_of(log, plan.word) for log in logs)
        if size > _BATCH_BYTES:
            what = f"handing {len(logs):,} partitions over takes a commit of {size:,} bytes, and a coordinator takes a megabyte at once"
            check = "fewer topics in one conf, and the others in another one; or more members, so that our share is smaller"
            raise SettingsError(what, key="source.topics", check=check)


def _unknown_to_coordinator(
    told: Mapping[BrokerPartition, Refusal | None], plan: Plan
) -> list[BrokerPartition]:
    """The logs whose topics it does not know. Raises what a log is refused with otherwise."""
    for log, refusal in sorted(told.items()):
        if refusal is not None and refusal.meaning is not Meaning.UNKNOWN_TOPIC:
            raise refusal.error(
                f"hand plan {plan.number} over", **log.place, offset=plan.positions[log]
            )
    return sorted(log for log, refusal in told.items() if refusal is not None)
