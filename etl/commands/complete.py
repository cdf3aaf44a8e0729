"""`etl complete`: whether the conf's logs are complete up to a time, so that a run up to that time
can begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etl.decide.reconcile import refuse_missing_topics
from etl.decide.run_requests import incomplete_logs
from etl.decide.set_offsets import paused_logs
from etl.errors import NotYetReadable
from etl.io.brokers.cluster import chosen_topics, names_of_topics
from etl.model.partitions import BrokerPartition, in_order
from etl.report.describe import at, counted
from etl.run.services import now_ms
from etl.run.shell import open_discovery
from etl.settings.choices import OnNoLeader
from etl.settings.sections import Settings

_NAMED = 5


@dataclass(frozen=True, slots=True)
class Complete:
    """What was found at one moment. Times are milliseconds since 1970."""

    until_ms: int
    at_ms: int
    grace_s: float
    logs: int
    incomplete: tuple[BrokerPartition, ...]
    unled: tuple[BrokerPartition, ...] = ()
    """Those of them that have no leader."""
    paused: tuple[BrokerPartition, ...] = ()
    """Beside all these: no run reads them, so nobody waits for them, and they are not complete
    either.
    """

    @property
    def says(self) -> str:
        """One sentence."""
        if not self.paused:
            return self._of_those_read
        return (
            f"{self._of_those_read}; {counted(len(self.paused), 'partition')} more paused, {self.paused[0]} first, and read by no run: "
            "`etl lag CONF` says how long retention leaves what waits there"
        )

    @property
    def _of_those_read(self) -> str:
        if not self.incomplete:
            return f"{counted(self.logs, 'partition')} complete up to {at(self.until_ms)}"
        named = ", ".join(f"{log.topic} {log.key}" for log in self.incomplete[:_NAMED])
        more = (
            f" and {len(self.incomplete) - _NAMED:,} more" if len(self.incomplete) > _NAMED else ""
        )
        return f"{len(self.incomplete):,} of {counted(self.logs, 'partition')} not complete up to {at(self.until_ms)}: {named}{more}"

    @property
    def refusal(self) -> NotYetReadable | None:
        """None where all are complete."""
        if not self.incomplete:
            return None
        counts_at = at(self.until_ms + round(self.grace_s * 1000))
        if self.unled:
            log = self.unled[0]
            check = f"{log.held_by}; to go on without it set source.on_no_leader: skip"
            return NotYetReadable(f"{self.says}; {log.topic} {log.key} {log.unled}", check=check)
        return NotYetReadable(
            self.says, check=f"the same again later; at {counts_at} all of them count as complete"
        )

    def as_json(self) -> dict[str, Any]:
        """The document of `etl complete`."""
        return {
            "until_at": at(self.until_ms),
            "at": at(self.at_ms),
            "grace_s": self.grace_s,
            "is_complete": not self.incomplete,
            "partitions": self.logs,
            "incomplete": [log.place for log in self.incomplete],
            "paused": [log.place for log in self.paused],
            "says": self.says,
        }


def complete(settings: Settings, *, until_ms: int, grace_s: float) -> Complete:
    """Ask the leaders of all logs but paused ones for the time; nothing is stored, moved or locked.
    The logs of Jafka and Kafka 0.7 go by the clock alone.

    Raises what asking brokers raises, and SettingsError for logs that cannot be searched by time,
    as `moments`.
    """
    source = settings.source
    with open_discovery(settings) as discovery, discovery.open_cluster() as cluster:
        topics = chosen_topics(
            discovery.describe(cluster, (), discovery.known_topics()), source.topics
        ).topics
        refuse_missing_topics(settings, topics, lambda: names_of_topics(cluster))
        there = [partition for topic in topics.values() for partition in topic.partitions]
        paused = paused_logs([one.log for one in there], discovery.pauses())
        partitions = [one for one in there if one.log not in paused]
        logs, is_waited_for = (
            [one.log for one in partitions],
            source.on_no_leader is OnNoLeader.FAIL and not source.is_physical,
        )
        unled = (
            tuple(in_order(one.log for one in partitions if one.leader is None))
            if is_waited_for
            else ()
        )
        now = now_ms()
        if source.is_physical or now >= until_ms + grace_s * 1000:
            first_at = dict[BrokerPartition, int | None].fromkeys(logs)
        else:
            first_at = cluster.first_at(dict.fromkeys(logs, until_ms), isolation=source.isolation)
    incomplete = incomplete_logs(
        first_at, until_ms=until_ms, now_ms=now, grace_s=grace_s, unled=unled
    )
    return Complete(until_ms, now, grace_s, len(logs), incomplete, unled, tuple(in_order(paused)))
