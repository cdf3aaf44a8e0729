"""How far has each partition been loaded, by offset and by time, and what is missing?

`etl lag`, `etl offsets show`, `etl topics ready` (can a run up to a time begin?) and `etl table gaps`
(which time intervals are incomplete in the table?).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from etl.audit.audit import AuditedLog, Expected
from etl.commands.expected_rows import expected_of_all, loaded_plans, read_both_ledgers
from etl.decide.lag import Reached, lag_of, reached
from etl.decide.loaded_intervals import Excused, TableGap, excused, find_gaps
from etl.decide.reconcile import compare, naming_table, reject_missing_topics, where_we_stand
from etl.decide.run_requests import TimeInterval, divided, incomplete_logs
from etl.decide.set_offsets import paused_logs
from etl.errors import (
    BrokerUnreachable,
    EtlError,
    LedgersDisagree,
    NeedsDecision,
    NotReady,
    NotYetReadable,
    OffsetMoved,
    SettingsError,
)
from etl.io.brokers.cluster import Cluster, chosen_topics, names_of_topics
from etl.io.brokers.times import read_oldest
from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition, OldestRecord, in_order
from etl.model.plans import Loss
from etl.model.snapshot import Snapshot
from etl.report.describe import at, counted, describe_partition_offsets, logs_of
from etl.report.lag import Lags, Resting, describe_pause, lags_at, resting, unread_from
from etl.run.discovery import Discovery
from etl.run.live import LiveServices
from etl.run.services import ALONE, now_ms
from etl.run.shell import open_discovery, open_services
from etl.settings.choices import OnNoLeader
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets of each partition, and why positions are unknown."""

    rows: list[dict[str, Any]]
    refusal: NeedsDecision | None = None
    """The error of a run: if ledgers disagree, no row has position or lag; changed partitions have
    no lag.
    """


def offsets(settings: Settings) -> Offsets:
    """Committed offset, position and lag of each partition."""
    with open_services(settings, ALONE) as services:
        return offsets_of(services.observe(), settings)


def offsets_of(snapshot: Snapshot, settings: Settings) -> Offsets:
    """Return the same of a snapshot."""
    so_far, refusal = how_far(snapshot, settings)
    paused = paused_logs(logs_of(snapshot), snapshot.pauses)
    rows = [
        {
            **log.place,
            **describe_partition_offsets(snapshot, log),
            **_boundaries(snapshot, log),
            "committed": snapshot.committed.get(log, NOTHING_COMMITTED).offset,
            "loaded_until": so_far.positions.get(log) if so_far else None,
            "lag": lag_of(log, snapshot, so_far, settings) if so_far else None,
            "paused": describe_pause(paused.get(log)),
        }
        for log in sorted(logs_of(snapshot))
    ]
    return Offsets(rows, refusal)


def how_far(snapshot: Snapshot, settings: Settings) -> tuple[Reached | None, NeedsDecision | None]:
    """Return what the table holds, None if the ledgers disagree; and the error of a run if
    something is unknown.
    """
    try:
        with naming_table(settings):
            so_far = reached(
                compare(snapshot.ledger, snapshot.table, settings.table.place), snapshot
            )
    except LedgersDisagree as error:
        return None, error
    with contextlib.suppress(
        LedgersDisagree, OffsetMoved
    ):  # then a run begins no plan, and what is in the table is known all the same
        so_far = reached(where_we_stand(snapshot, settings), snapshot)
    return so_far, so_far.refusal


def _boundaries(snapshot: Snapshot, log: BrokerPartition) -> dict[str, list[int]]:
    """Return where a Jafka partition may be cut: starts of segments and the readable end."""
    extent = snapshot.extents.get(log)
    if extent is None or extent.boundaries is None:
        return {}
    return {"boundaries": list(extent.boundaries)}


def lag(settings: Settings) -> Lags:
    """Return the table's lag; nothing is stored, moved or locked. Raises what a snapshot raises."""
    with open_services(settings, ALONE) as services:
        snapshot = services.observe()
        oldest = ask_oldest(services, snapshot, unread_of(snapshot, settings), settings)
        return lags_of(snapshot, settings, oldest, now_ms=now_ms())


def ask_oldest(
    services: LiveServices,
    snapshot: Snapshot,
    unread: Mapping[BrokerPartition, int],
    settings: Settings,
) -> Mapping[BrokerPartition, OldestRecord]:
    """Return the oldest unread record of each partition that has one with a timestamp. Raises as
    finding brokers does.
    """
    wanted = {
        log: (oldest, snapshot.extents[log].end_offset)
        for log, oldest in unread.items()
        if not log.is_physical
    }
    if not wanted:
        return {}
    with Discovery(settings, services.zookeeper).open_cluster() as cluster:
        return read_oldest(
            cluster, wanted, snapshot.leaders, isolation=settings.source.isolation_level
        )


def unread_of(snapshot: Snapshot, settings: Settings) -> dict[BrokerPartition, int]:
    """Return the first unread offset of each partition that lags."""
    return unread_from(snapshot, how_far(snapshot, settings)[0], settings)


def lags_of(
    snapshot: Snapshot,
    settings: Settings,
    oldest: Mapping[BrokerPartition, OldestRecord],
    *,
    now_ms: int,
) -> Lags:
    """Return the lag of a snapshot; `oldest`: the oldest unread records."""
    so_far, refusal = how_far(snapshot, settings)
    return lags_at(snapshot, so_far, settings, oldest, now_ms=now_ms, refusal=refusal)


_NAMED = 5


@dataclass(frozen=True, slots=True)
class Complete:
    """The result at one moment. Times are ms since 1970."""

    until_ms: int
    at_ms: int
    grace_s: float
    logs: int
    incomplete: tuple[BrokerPartition, ...]
    unled: tuple[BrokerPartition, ...] = ()
    """Those of them that have no leader."""
    paused: tuple[BrokerPartition, ...] = ()
    """Paused partitions: no run reads them, so nobody waits for them, and they are not complete."""

    @property
    def summary(self) -> str:
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
        if len(self.incomplete) > _NAMED:
            more = f" and {len(self.incomplete) - _NAMED:,} more"
        else:
            more = ""
        return f"{len(self.incomplete):,} of {counted(self.logs, 'partition')} not complete up to {at(self.until_ms)}: {named}{more}"

    @property
    def refusal(self) -> EtlError | None:
        """None where all are complete."""
        if not self.incomplete:
            return None
        counts_at = at(self.until_ms + round(self.grace_s * 1000))
        if self.unled:
            log = self.unled[0]
            action = f"{log.held_by}; or set source.on_no_leader: skip to load the other partitions"
            return NotYetReadable(
                f"{self.summary}; {log.topic} {log.key} {log.unled}", action=action
            )
        return NotReady(
            self.summary,
            action=f"Run this command again later; at {counts_at} all of them count as complete",
        )

    def as_json(self) -> dict[str, Any]:
        """The document of `etl topics ready`."""
        return {
            "until_at": at(self.until_ms),
            "at": at(self.at_ms),
            "grace_s": self.grace_s,
            "ready": not self.incomplete,
            "partitions": self.logs,
            "incomplete": [log.place for log in self.incomplete],
            "paused": [log.place for log in self.paused],
            "message": self.summary,
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
            discovery.describe(cluster, (), discovery.known_topics()), source.topic_filter
        ).topics
        reject_missing_topics(settings, topics, lambda: names_of_topics(cluster))
        there = [partition for topic in topics.values() for partition in topic.partitions]
        paused = paused_logs([one.log for one in there], discovery.pauses())
        partitions = [one for one in there if one.log not in paused]
        logs, is_waited_for = (
            [one.log for one in partitions],
            source.on_no_leader is OnNoLeader.FAIL and not source.is_physical,
        )
        if is_waited_for:
            unled = tuple(in_order(one.log for one in partitions if one.leader is None))
        else:
            unled = ()
        now = now_ms()
        if source.is_physical or now >= until_ms + grace_s * 1000:
            first_at = dict[BrokerPartition, int | None].fromkeys(logs)
        else:
            first_at = cluster.first_at(
                dict.fromkeys(logs, until_ms), isolation=source.isolation_level
            )
    incomplete = incomplete_logs(
        first_at, until_ms=until_ms, now_ms=now, grace_s=grace_s, unled=unled
    )
    return Complete(until_ms, now, grace_s, len(logs), incomplete, unled, tuple(in_order(paused)))


LOGS_TOLD = 20


@dataclass(frozen=True, slots=True)
class Intervals:
    """The request, and the incomplete intervals."""

    asked: int
    incomplete: tuple[TableGap, ...]
    excused: Excused
    unled: tuple[BrokerPartition, ...] = ()
    """Partitions without a leader, whose offsets at a time are unknown."""
    waiting: tuple[TableGap, ...] = ()
    """Offsets of the intervals in paused partitions, which the table does not hold."""
    resting: tuple[Resting, ...] = ()
    """Paused partitions."""

    @property
    def summary(self) -> str:
        """One sentence, and what it leaves out."""
        sentence = (
            f"{len(self.incomplete):,} of {counted(self.asked, 'interval')} not whole in the table"
        )
        if not self.incomplete:
            of = "those partitions that have a leader" if self.unled else "the logs"
            sentence = (
                f"{counted(self.asked, 'interval')}: all that {of} hold of them is in the table"
            )
        if self.excused.let_go:
            sentence += f", but {counted(self.excused.let_go, 'offset')} that were let go or given up, as the plans tell"
        if self.excused.before_start:
            more = counted(self.excused.before_start, "offset")
            sentence += (
                f"; {more} more lie before where this pipeline began, or began again after a cut"
            )
        if self.excused.read_by_others:
            sentence += f"; {counted(self.excused.read_by_others, 'offset')} more were read by other members of the group"
        if self.waiting:
            waits = sum(one.missing for one in self.waiting)
            sentence += f"; {counted(waits, 'offset')} more of {counted(len(self.waiting), 'interval')} wait in paused partitions: "
            sentence += "; ".join(one.summary for one in self.resting)
        return sentence + (
            f"; {self._named} without a leader, and nobody can tell of them" if self.unled else ""
        )

    @property
    def _named(self) -> str:
        return f"{self.unled[0]}" + (
            f" and {len(self.unled) - 1:,} more partitions are" if len(self.unled) > 1 else " is"
        )

    @property
    def refusal(self) -> EtlError | None:
        """Return None if all intervals are loaded, and each partition could be asked."""
        if self.unled:
            return BrokerUnreachable(
                self.summary,
                **self.unled[0].place,
                action=f"{self.unled[0].held_by}, then run this command again",
            )
        if self.incomplete:
            return NotReady(self.summary, action="Run `etl run CONF`, which loads what is missing")
        return None

    def as_json(self) -> dict[str, Any]:
        """The document of `etl table gaps`. Of each interval the first partitions are named."""
        unled = [log.place for log in self.unled]
        excused = {
            "let_go": self.excused.let_go,
            "before_start": self.excused.before_start,
            "read_by_others": self.excused.read_by_others,
            "without_leader": unled,
            "paused": [one.as_json() for one in self.resting],
        }
        return {
            "intervals": self.asked,
            "message": self.summary,
            **excused,
            "incomplete": list(map(_described, self.incomplete)),
            "waiting_in_paused": list(map(_described, self.waiting)),
        }


def _described(one: TableGap) -> dict[str, Any]:
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
    """Compare offsets at each time with what the ledger has loaded; nothing is stored, moved or
    locked. Raises SettingsError for partitions without times and for too many intervals, and what
    reading ledgers and brokers raises.
    """
    if settings.source.is_physical:
        raise SettingsError(
            "Messages of these brokers have no times, so nobody knows which interval they are of",
            key="source.broker_type",
            action="Run `etl verify CONF` and `etl lag CONF`, which go by offsets",
        )
    requested = list(divided(whole, every))
    with open_services(settings, ALONE) as services:
        snapshot = services.observe()
        loaded = _loaded(services)
        with Discovery(settings, services.zookeeper).open_cluster() as cluster:
            bounds = _bounds(cluster, list(snapshot.extents), requested)
    starts = {log: extent.log_start_offset for log, extent in snapshot.extents.items()}
    newest = snapshot.ledger.newest
    of_now = {
        log: loaded.get(AuditedLog(log, newest.incarnations.get(log, 0) if newest else 0), _NOTHING)
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
        tuple(find_gaps(requested, some, settled, starts)) for some in (read, rest)
    )
    return Intervals(
        len(requested),
        incomplete,
        excused(bounds, there, let_go, begins, of_others),
        tuple(unled),
        waiting,
        resting(snapshot, now_ms=now_ms()),
    )


def _bounds(
    cluster: Cluster, logs: Sequence[BrokerPartition], requested: Sequence[TimeInterval]
) -> dict[BrokerPartition, list[int]]:
    """Return an offset for each time, of partitions with a leader."""
    answers = [
        cluster.offsets_at(dict.fromkeys(logs, when))
        for when in (requested[0].start_ms, *(one.end_ms for one in requested))
    ]
    return {
        log: [answer[log] for answer in answers]
        for log in logs
        if all(log in answer for answer in answers)
    }


class _Told(NamedTuple):
    """What the ledger says of one incarnation: offsets in the table, and those of which it is
    unknown.
    """

    there: list[tuple[int, int]]
    let_go: list[tuple[int, int]]
    """They were let go, or may be there: who loads the latter may double them."""
    of_others: list[tuple[int, int]]
    """Other members of the group read them."""


_NOTHING = _Told([], [], [])


def _loaded(services: LiveServices) -> dict[AuditedLog, _Told]:
    ledgers = read_both_ledgers(services)
    if ledgers.table is None:
        return {}
    loaded, led = loaded_plans(services, ledgers, ledgers.table)
    of_all = expected_of_all(services, ledgers, ledgers.table, loaded, led)
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
