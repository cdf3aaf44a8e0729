"""The offsets of a consumer group that brokers keep. (A pipeline's own are in ZooKeeper, and no broker is asked for those.)

Two places, as with the consumers of Kafka 0.8 and later: the group's coordinator keeps them in a topic of its own, and has to be looked up;
or any broker before 4.0 that has a ZooKeeper writes them there for us, where consumers of `offsets.storage=zookeeper` read them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing

from etl.edges.brokers.broker_questions import BrokerQuestions
from etl.edges.brokers.exchange import Answer
from etl.model.logs import Broker, BrokerPartition
from etl.protocol.messages import CommittedOffset, CommittedOffsets
from etl.protocol.refusal import Meaning, Refusal

_PAUSE_S = 0.2
_COMING = (Meaning.NOT_COORDINATOR, Meaning.NO_COORDINATOR_YET)


class GroupOffsets(BrokerQuestions):
    """What one broker can be asked of a group's offsets. Raises SettingsError where the generation has no such thing."""

    def find_coordinator(self, group: str) -> Broker:
        """The broker to ask for the offsets of `group`. Raises BrokerError where there is none yet when `timeout_s` has passed.

        The first question of this kind makes the topic `__consumer_offsets` where there never was a group.
        """
        return self._coordinator(group, time.monotonic() + self._timeout_s)

    def commit_offsets(self, group: str, offsets: Mapping[BrokerPartition, int], *, metadata: str = "", in_zookeeper: bool = False) -> None:
        """Store next offsets, and a word beside each: with the group's coordinator, or in ZooKeeper by this broker (OffsetCommit 0).

        A coordinator that moved or still loads is asked for again until `timeout_s` has passed. Offsets of live members, who are the only
        ones to commit, are refused. Raises for the first log refused.
        """
        def commit(broker: GroupOffsets) -> dict[BrokerPartition, Refusal | None]:
            return broker._ask(lambda dialect: dialect.commit_offsets(group, offsets, metadata=metadata, in_zookeeper=in_zookeeper))

        refusals = commit(self) if in_zookeeper else self._of_coordinator(group, commit, lambda told: set(told.values()))
        for log in sorted(offsets):
            if refusal := refusals.get(log):
                raise refusal.error(f"commit an offset of group {group}", **log.place, offset=offsets[log], broker=self.address)

    def fetch_offsets(
        self, group: str, logs: Collection[BrokerPartition], *, in_zookeeper: bool = False,
    ) -> dict[BrokerPartition, CommittedOffset]:
        """Next offsets as stored, and the word beside each: by the group's coordinator, or in ZooKeeper, read there by this broker.

        A coordinator that moved or still loads is asked for again until `timeout_s` has passed. Raises for the first log refused.
        """
        def ask(broker: GroupOffsets) -> CommittedOffsets:
            return broker._ask(lambda dialect: dialect.committed_offsets(group, logs, in_zookeeper=in_zookeeper))

        def refusals(told: CommittedOffsets) -> set[Refusal | None]:
            return {told.refusal, *(each.refusal for each in told.offsets.values())}

        found = ask(self) if in_zookeeper else self._of_coordinator(group, ask, refusals)
        if found.refusal:
            raise found.refusal.error(f"tell the offsets of group {group}", broker=self.address)
        for log, told in sorted(found.offsets.items()):
            if told.refusal:
                raise told.refusal.error(f"tell an offset of group {group}", **log.place, broker=self.address)
        return dict(found.offsets)

    def _of_coordinator(self, group: str, ask: Callable[[GroupOffsets], Answer],
                        refusals: Callable[[Answer], Collection[Refusal | None]]) -> Answer:
        """What the group's coordinator answers; looked up again while it is not one, or not one yet."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            answer = self._asked_at(self._coordinator(group, deadline), ask)
            is_coming = any(refusal and refusal.meaning in _COMING for refusal in refusals(answer))
            if not is_coming or time.monotonic() + _PAUSE_S > deadline:
                return answer
            time.sleep(_PAUSE_S)

    def _coordinator(self, group: str, deadline: float) -> Broker:
        """Asked for again while there is none yet, until the deadline (a `time.monotonic` moment)."""
        while True:
            told = self._ask(lambda dialect: dialect.coordinator(group))
            if told.refusal is None:
                return told.broker
            if told.refusal.meaning not in _COMING or time.monotonic() + _PAUSE_S > deadline:
                raise told.refusal.error(f"name the coordinator of group {group}", broker=self.address)
            time.sleep(_PAUSE_S)

    def _asked_at(self, broker: Broker, ask: Callable[[GroupOffsets], Answer]) -> Answer:
        if (broker.host, broker.port) == (self.host, self.port):
            return ask(self)
        with closing(GroupOffsets(broker.host, broker.port, timeout_s=self._timeout_s, generation=self.generation)) as coordinator:
            return ask(coordinator)
