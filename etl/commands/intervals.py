"""`etl intervals`: which stretches of time between two moments are not whole in the table, by the
ledger and the brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from etl.audit.audit import AuditedLog, Expected
from etl.commands.expected_rows import loaded_plans, read_both_ledgers
from etl.commands.rows_beside import expected_of_all
from etl.decide.loaded_intervals import Excused, IncompleteStretch, excused, incomplete_stretches
from etl.decide.run_requests import TimeInterval, divided
from etl.decide.set_offsets import paused_logs
from etl.errors import BrokerUnreachable, SettingsError
from etl.io.brokers.cluster import Cluster
from etl.model.partitions import BrokerPartition, in_order
from etl.model.plans import Loss
from etl.report.describe import counted
from etl.report.lag import Resting, resting
from etl.run.discovery import Discovery
from etl.run.live import LiveServices
from etl.run.services import ALONE, now_ms
from etl.run.shell import open_world
from etl.settings.sections import Settings

LOGS_TOLD = 20


@dataclass(frozen=True, slots=True)
class Intervals:
    """What was asked for, and what of it is not whole."""

    asked: int
    incomplete: tuple[IncompleteStretch, ...]
    excused: Excused
    unled: tuple[BrokerPartition, ...] = ()
    """Logs without a leader: nobody tells what they hold at any time."""
    waiting: tuple[IncompleteStretch, ...] = ()
    """What of the intervals waits in paused logs: no run is to bring it before they are resumed,
    and the table does not hold it.
    """
    resting: tuple[Resting, ...] = ()
    """What is paused."""

    @property
    def says(self) -> str:
        """One sentence, and what it leaves out."""
        said = (
            f"{len(self.incomplete):,} of {counted(self.asked, 'interval')} not whole in the table"
        )
        if not self.incomplete:
            of = "those partitions that have a leader" if self.unled else "the logs"
            said = f"{counted(self.asked, 'interval')}: all that {of} hold of them is in the table"
        if self.excused.let_go:
            said += f", but {counted(self.excused.let_go, 'offset')} that were let go or given up, as the plans tell"
        if self.excused.before_start:
            more = counted(self.excused.before_start, "offset")
            said += (
                f"; {more} more lie before where this pipeline began, or began again after a cut"
            )
        if self.excused.read_by_others:
            said += f"; {counted(self.excused.read_by_others, 'offset')} more were read by other members of the group"
        if self.waiting:
            waits = sum(one.missing for one in self.waiting)
            said += f"; {counted(waits, 'offset')} more of {counted(len(self.waiting), 'interval')} wait in paused partitions: "
            said += "; ".join(one.says for one in self.resting)
        return said + (
            f"; {self._named} without a leader, and nobody can tell of them" if self.unled else ""
        )

    @property
    def _named(self) -> str:
        return f"{self.unled[0]}" + (
            f" and {len(self.unled) - 1:,} more partitions are" if len(self.unled) > 1 else " is"
        )

    @property
    def refusal(self) -> BrokerUnreachable | None:
        """None where every log could be asked."""
        if not self.unled:
            return None
        return BrokerUnreachable(
            self.says,
            **self.unled[0].place,
            check=f"{self.unled[0].held_by}; the same again once they are back",
        )

    def as_json(self) -> dict[str, Any]:
        """The document of `etl intervals`. Of each interval the first partitions are named."""
        unled = [log.place for log in self.unled]
        told = {
            "let_go": self.excused.let_go,
            "before_start": self.excused.before_start,
            "read_by_others": self.excused.read_by_others,
            "without_leader": unled,
            "paused": [one.as_json() for one in self.resting],
        }
        return {
            "intervals": self.asked,
            "says": self.says,
            **told,
            "incomplete": list(map(_described, self.incomplete)),
            "waiting_in_paused": list(map(_described, self.waiting)),
        }


def _described(one: IncompleteStretch) -> dict[str, Any]:
    return {
        **one.interval.as_json(),
        "missing": one.missing,
        "gone": one.gone,
        "partitions": len(one.logs),
        "logs": [
            {
                **lost.log.place,
                "from": lost.from_offset,
                "until": lost.until_offset,
                "missing": lost.count,
                "gone": lost.gone,
            }
            for lost in one.logs[:LOGS_TOLD]
        ],
    }


def intervals(settings: Settings, whole: TimeInterval, every: timedelta) -> Intervals:
    """Compare what lies in the logs at each time with what the ledger has loaded; nothing is
    stored, moved or locked.

    Raises SettingsError for logs without times, and for too many intervals; what looking at both
    ledgers and at brokers raises.
    """
    if settings.source.is_physical:
        raise SettingsError(
            "messages of these brokers have no times, so nobody knows which interval they are of",
            key="source.dialect",
            check="`etl verify CONF` and `etl lag CONF`, which go by offsets",
        )
    asked = list(divided(whole, every))
    with open_world(settings, ALONE) as world:
        snapshot = world.observe()
        loaded = _loaded(world)
        with Discovery(settings, world.zookeeper).open_cluster() as cluster:
            bounds = _bounds(cluster, list(snapshot.extents), asked)
    starts = {log: extent.log_start_offset for log, extent in snapshot.extents.items()}
    newest = snapshot.ledger.newest
    of_now = {
        log: loaded.get(AuditedLog(log, newest.log_epochs.get(log, 0) if newest else 0), _NOTHING)
        for log in bounds
    }
    begins = {
        log: min(
            [start for start, _ in (*told.there, *told.let_go, *told.of_others)],
            default=newest.positions[log],
        )
        for log, told in of_now.items()
        if newest and log in newest.positions
    }
    settled = {
        log: [*told.there, *told.let_go, *told.of_others, (0, begins.get(log, 0))]
        for log, told in of_now.items()
    }
    there, let_go, of_others = ({log: told[at] for log, told in of_now.items()} for at in range(3))
    paused = paused_logs((*snapshot.extents, *snapshot.leaderless), snapshot.pauses)
    unled = in_order(
        {*snapshot.leaderless, *(snapshot.extents.keys() - bounds.keys())} - paused.keys()
    )
    read, rest = (
        {log: found for log, found in bounds.items() if (log in paused) is is_paused}
        for is_paused in (False, True)
    )
    incomplete, waiting = (
        tuple(incomplete_stretches(asked, some, settled, starts)) for some in (read, rest)
    )
    return Intervals(
        len(asked),
        incomplete,
        excused(bounds, there, let_go, begins, of_others),
        tuple(unled),
        waiting,
        resting(snapshot, now_ms=now_ms()),
    )


def _bounds(
    cluster: Cluster, logs: Sequence[BrokerPartition], asked: Sequence[TimeInterval]
) -> dict[BrokerPartition, list[int]]:
    """Of the logs that have a leader all the while: an offset for each time."""
    answers = [
        cluster.offsets_at(dict.fromkeys(logs, when))
        for when in (asked[0].start_ms, *(one.end_ms for one in asked))
    ]
    return {
        log: [answer[log] for answer in answers]
        for log in logs
        if all(log in answer for answer in answers)
    }


class _Told(NamedTuple):
    """What the ledger tells of one life of a log: the offsets that are in the table, and those of
    which nobody says so any more.
    """

    there: list[tuple[int, int]]
    let_go: list[tuple[int, int]]
    """They were let go, or may be there: who loads the latter may double them."""
    of_others: list[tuple[int, int]]
    """Other members of the group read them."""


_NOTHING = _Told([], [], [])


def _loaded(world: LiveServices) -> dict[AuditedLog, _Told]:
    told = read_both_ledgers(world)
    if told.table is None:
        return {}
    loaded, led = loaded_plans(world, told, told.table)
    of_all = expected_of_all(world, told, told.table, loaded, led)
    return {
        audited: _offsets(found, of_all.losses.get(audited, ()))
        for audited, found in of_all.rows.items()
    }


def _offsets(found: Expected, losses: Sequence[Loss] | set[Loss]) -> _Told:
    there = [
        *((r.from_offset, r.until_offset) for r, _ in found.applied),
        *((one.from_offset, one.until_offset) for one in found.coverage),
    ]
    given_up = [
        *((one.from_offset, one.until_offset) for one in found.given_up),
        *((r.from_offset, r.until_offset) for r, _ in found.elsewhere),
    ]
    return _Told(
        there,
        sorted([*given_up, *((loss.from_offset, loss.until_offset) for loss in losses)]),
        list(found.read_by_others),
    )
