"""`etl intervals`: which stretches of time between two moments are not whole in the table, by the ledger and the brokers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from etl.audit.findings import AuditedLog, Expected
from etl.commands.expected_rows import expected_rows, loaded_plans, read_both_ledgers
from etl.decisions.missing_intervals import IncompleteStretch, incomplete_stretches
from etl.decisions.time_intervals import TimeInterval, divided
from etl.edges.brokers.cluster import Cluster
from etl.errors import SettingsError
from etl.model.logs import BrokerPartition
from etl.model.losses import Loss
from etl.report.words import counted
from etl.run.context import ALONE
from etl.run.live_world import LiveWorld
from etl.run.wiring import open_discovery, open_world
from etl.settings.sections import Settings

ASKED_MAX = 10_000
"""Each end of an interval is a question to every leader."""
LOGS_TOLD = 20


@dataclass(frozen=True, slots=True)
class Intervals:
    """What was asked for, and what of it is not whole."""

    asked: int
    incomplete: tuple[IncompleteStretch, ...]

    @property
    def says(self) -> str:
        """One sentence."""
        if not self.incomplete:
            return f"{counted(self.asked, 'interval')}: all that the logs hold of them is in the table"
        return f"{len(self.incomplete):,} of {counted(self.asked, 'interval')} not whole in the table"

    def as_json(self) -> dict[str, Any]:
        """The document of `etl intervals`. Of each interval the first partitions are named."""
        return {"intervals": self.asked, "says": self.says, "incomplete": [
            {**one.interval.as_json(), "missing": one.missing, "gone": one.gone, "partitions": len(one.logs), "logs": [
                {**lost.log.place, "from": lost.from_offset, "until": lost.until_offset, "missing": lost.count, "gone": lost.gone}
                for lost in one.logs[:LOGS_TOLD]]} for one in self.incomplete]}


def intervals(settings: Settings, whole: TimeInterval, every: timedelta) -> Intervals:
    """Compare what lies in the logs at each time with what the ledger has loaded; nothing is stored, moved or locked.

    Raises SettingsError for logs without times, and for too many intervals; what looking at both ledgers and at brokers raises.
    """
    if settings.source.is_physical:
        raise SettingsError("messages of these brokers have no times, so nobody knows which interval they are of",
                            key="source.dialect", check="`etl verify CONF` and `etl lag CONF`, which go by offsets")
    asked = list(divided(whole, every))
    if len(asked) > ASKED_MAX:
        raise SettingsError(f"these are {len(asked):,} intervals, and {ASKED_MAX:,} at most are asked for", check="--every, or shorter")
    with open_world(settings, ALONE) as world:
        snapshot = world.observe()
        loaded = _loaded(world)
    with open_discovery(settings) as discovery, discovery.open_cluster() as cluster:
        bounds = _bounds(cluster, list(snapshot.extents), asked)
    starts = {log: extent.log_start_offset for log, extent in snapshot.extents.items()}
    epochs = snapshot.ledger.newest.log_epochs if snapshot.ledger.newest else {}
    of_now = {log: loaded.get(AuditedLog(log, epochs.get(log, 0)), []) for log in bounds}
    return Intervals(len(asked), tuple(incomplete_stretches(asked, bounds, of_now, starts)))


def _bounds(cluster: Cluster, logs: Sequence[BrokerPartition], asked: Sequence[TimeInterval]) -> dict[BrokerPartition, list[int]]:
    """Of the logs that have a leader all the while: an offset for each time."""
    answers = [cluster.offsets_at(dict.fromkeys(logs, when)) for when in (asked[0].start_ms, *(one.end_ms for one in asked))]
    return {log: [answer[log] for answer in answers] for log in logs if all(log in answer for answer in answers)}


def _loaded(world: LiveWorld) -> dict[AuditedLog, list[tuple[int, int]]]:
    """Of each life of a log the offsets that are in the table, were let go, or may be there: who loads the latter may double them."""
    told = read_both_ledgers(world)
    if told.table is None:
        return {}
    loaded, led = loaded_plans(world, told, told.table)
    expected, losses, _ = expected_rows(world, told, told.table, loaded, led)
    return {audited: _offsets(found, losses.get(audited, ())) for audited, found in expected.items()}


def _offsets(found: Expected, losses: Sequence[Loss] | set[Loss]) -> list[tuple[int, int]]:
    return [*((r.from_offset, r.until_offset) for r, _ in found.applied),
            *((one.from_offset, one.until_offset) for one in (*found.coverage, *found.given_up, *losses))]
