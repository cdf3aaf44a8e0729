"""Hands a stored plan over where the group keeps its offsets in Kafka: one commit, fenced by the membership that the plan was made with.

One commit is one batch in the coordinator's log, so all of it is taken or nothing. It may be sent again, since it says the same thing: as
long as its membership stands nobody else commits these logs. What is there tells whether it was taken when no answer came
(`decisions.open_hand_overs`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from etl.decisions.open_hand_overs import HandOver, found_out
from etl.edges.brokers.cluster import Cluster
from etl.edges.brokers.kept_offsets import KeptOffsets
from etl.edges.brokers.simple_consumer import SimpleConsumer
from etl.errors import CommitUnknown, MembershipLost, SettingsError
from etl.model.logs import BrokerPartition
from etl.model.membership import Share, Void
from etl.model.plans import Plan
from etl.protocol.refusal import Meaning, Refusal

_PAUSE_S = 0.2
_BATCH_BYTES = 950_000
"""Brokers take 1,000,012 of a batch unless they are told otherwise."""


class FencedCommit:
    """The hand-overs of one pipeline's plans. `tries_for_s`: how long an answer is asked for. Raises what the brokers do."""

    def __init__(self, kept: KeptOffsets, *, tries_for_s: float) -> None:
        self._kept, self._tries_for_s = kept, tries_for_s

    def hand_over(self, cluster: Cluster, plan: Plan, *, unsure: Callable[[], None]) -> Void | None:
        """Move the plan's offsets, all of them; why none was, where the membership is over.

        `unsure` is called behind one of which an answer was lost: it may still be under way, until its membership ends. Raises
        CommitUnknown where none came in time, SettingsError for more logs than one batch holds, and what else the coordinator refuses with.
        """
        logs, share = plan.offsets_to_hand_over, plan.share
        if not logs or share is None:
            return None
        self._refuse_too_many(plan, logs)
        deadline, is_unsure = time.monotonic() + self._tries_for_s, False
        try:
            while True:
                try:
                    told = cluster.first(lambda consumer: self._asked(consumer, plan, share))
                    return _taken(told, plan)
                except CommitUnknown:
                    is_unsure = True
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(_PAUSE_S)
        except MembershipLost as lost:
            if is_unsure and found_out(plan, self._kept.committed(cluster, logs)) is HandOver.TAKEN:
                return None
            if is_unsure and found_out(plan, self._kept.committed(cluster, logs)) is HandOver.UNTOLD:
                raise CommitUnknown(lost.what, check="nothing; the next run finds out", **lost.where) from lost
            return Void(lost.what)
        finally:
            if is_unsure:
                unsure()

    def _asked(self, consumer: SimpleConsumer, plan: Plan, share: Share) -> Mapping[BrokerPartition, Refusal | None]:
        offsets = {log: plan.positions[log] for log in plan.offsets_to_hand_over}
        return consumer.commit_each(
            self._kept.group, offsets, metadata=self._kept.metadata(plan.word), generation=share.generation, member_id=share.member_id,
            instance_id=share.instance_id, is_sent_once=True)

    def _refuse_too_many(self, plan: Plan, logs: tuple[BrokerPartition, ...]) -> None:
        size = sum(self._kept.bytes_of(log, plan.word) for log in logs)
        if size > _BATCH_BYTES:
            what = f"handing {len(logs):,} partitions over takes a commit of {size:,} bytes, and a coordinator takes a megabyte at once"
            check = "fewer topics in one conf, and the others in another one; or more members, so that our share is smaller"
            raise SettingsError(what, key="source.topics", check=check)


def _taken(told: Mapping[BrokerPartition, Refusal | None], plan: Plan) -> Void | None:
    """Raises what a log is refused with, but for one whose topic is gone: nobody else will read it either."""
    for log, refusal in sorted(told.items()):
        if refusal is not None and refusal.meaning is not Meaning.UNKNOWN_TOPIC:
            raise refusal.error(f"hand plan {plan.number} over", **log.place, offset=plan.positions[log])
    return Void("the brokers do not know the topics of its partitions any more") if all(told.values()) else None
