"""What a run took: messages and bytes by topic, requests by broker, commits, and what membership
cost. Values to JSON and samples.

Topics and brokers can be many: the `MOST` largest are told by name, all others together, so that
sums are right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from etl.model.partitions import RebalanceStatistics
from etl.model.plans import ByBroker, together
from etl.report.run_state import Executed

MOST, OTHERS = 1000, "(others)"
HELP: Mapping[str, str] = {
    "run_topic_rows": "Rows that the plans of the last run gave of the topic, as far as they were counted.",
    "run_topic_fetched_bytes": "Bytes that the brokers sent for them.",
    "run_broker_requests": "Requests that the broker answered in the last run; by the driver, or by tasks whose rows are in the table.",
    "run_broker_request_seconds": "How long the driver, or tasks, waited for the broker.",
    "run_broker_sent_bytes": "Bytes that were sent to the broker.",
    "run_broker_received_bytes": "Bytes that came from the broker.",
    "run_table_commits": "Commits of the table that the last run saw done.",
    "run_rebalances": "How often the last run took a share of its group.",
    "run_rebalance_seconds": "How long that took.",
    "run_rebalance_tries": "How often other members were in the way of it.",
    "run_memberships_lost": "How often the membership ended without the run's wish.",
    "run_heartbeat_age_seconds": "How long before its end the run last heard that it is a member.",
}
_Counts = dict[str, float]
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of one run, as far as it is."""

    plans: Sequence[Executed] = ()
    asked_by_driver: ByBroker = field(default_factory=dict)
    offsets_committed: int = 0
    membership: RebalanceStatistics | None = None
    """None: the run is no member of its group."""

    @property
    def topics(self) -> dict[str, _Counts]:
        """Messages and bytes by topic, largest first."""
        found: dict[str, _Counts] = {}
        for one in self.plans:
            for r, receipt in zip(
                one.plan.ranges, one.applied.receipts if one.applied else (), strict=False
            ):
                counts = found.setdefault(r.log.topic, {"messages": 0, "bytes": 0})
                counts["messages"] += receipt.rows or 0
                counts["bytes"] += receipt.fetched_bytes or 0
        return _largest(found, "bytes")

    @property
    def brokers(self) -> dict[str, dict[str, _Counts]]:
        """Requests by who asked, `driver` or `tasks`, and broker, those first that were waited for
        longest.
        """
        of_tasks = together(
            dict(receipt.requests)
            for one in self.plans
            if one.applied
            for receipt in one.applied.receipts
        )
        return {
            who: _largest(
                {broker: asdict(requests) for broker, requests in asked.items()}, "seconds"
            )
            for who, asked in (("driver", self.asked_by_driver), ("tasks", of_tasks))
        }

    @property
    def table_commits(self) -> int:
        """Plans of which the run saw that the table has them."""
        return sum(one.applied is not None for one in self.plans)

    def as_json(self) -> dict[str, Any]:
        """The statistics in a report."""
        return {
            "topics": [{"topic": topic, **counts} for topic, counts in self.topics.items()],
            "brokers": [
                {
                    "asked_by": who,
                    "broker": broker,
                    **{**counts, "seconds": round(counts["seconds"], 6)},
                }
                for who, found in self.brokers.items()
                for broker, counts in found.items()
            ],
            "commits": {"table": self.table_commits, "offsets": self.offsets_committed},
            "membership": asdict(self.membership) if self.membership else None,
        }

    def samples(self) -> Iterator[tuple[str, Labels, float]]:
        """The same for Prometheus: name, labels, value."""
        for topic, counts in self.topics.items():
            yield "run_topic_rows", (("topic", topic),), counts["messages"]
            yield "run_topic_fetched_bytes", (("topic", topic),), counts["bytes"]
        for who, found in self.brokers.items():
            for broker, counts in found.items():
                labels = (("asked_by", who), ("broker", broker))
                yield "run_broker_requests", labels, counts["answers"]
                yield "run_broker_request_seconds", labels, counts["seconds"]
                yield "run_broker_sent_bytes", labels, counts["sent_bytes"]
                yield "run_broker_received_bytes", labels, counts["received_bytes"]
        yield "run_table_commits", (), self.table_commits
        yield from _of_membership(self.membership)


def _of_membership(told: RebalanceStatistics | None) -> Iterator[tuple[str, Labels, float]]:
    if told is None:
        return
    values = {
        "run_rebalances": told.rebalances,
        "run_rebalance_seconds": told.seconds,
        "run_rebalance_tries": told.tries,
        "run_memberships_lost": told.lost,
        "run_heartbeat_age_seconds": told.heartbeat_age_s,
    }
    yield from ((name, (), value) for name, value in values.items() if value is not None)


def _largest(found: Mapping[str, _Counts], by: str) -> dict[str, _Counts]:
    names = sorted(found, key=lambda name: (-found[name][by], name))
    kept = {name: found[name] for name in names[:MOST]}
    if left := names[MOST:]:
        kept[OTHERS] = _summed(found[name] for name in left)
    return kept


def _summed(several: Iterable[_Counts]) -> _Counts:
    total: _Counts = {}
    for one in several:
        for name, value in one.items():
            total[name] = total.get(name, 0) + value
    return total
