"""How far has each partition been loaded, by offset and by time, and what is missing?

`etl lag`: how far the table is behind each partition; what it takes to know is asked of the
brokers.
"""

from __future__ import annotations

from collections.abc import Mapping

from etl.commands.offsets import how_far
from etl.io.brokers.times import read_oldest
from etl.model.partitions import BrokerPartition, OldestRecord
from etl.model.snapshot import Snapshot
from etl.report.lag import Lags, lags_at, unread_from
from etl.run.discovery import Discovery
from etl.run.live import LiveServices
from etl.run.services import ALONE, now_ms
from etl.run.shell import open_world
from etl.settings.sections import Settings


def lag(settings: Settings) -> Lags:
    """How far the table is behind; nothing is stored, moved or locked. Raises what looking at the
    world raises.
    """
    with open_world(settings, ALONE) as world:
        snapshot = world.observe()
        told = ask_oldest(world, snapshot, unread_of(snapshot, settings), settings)
        return lags_of(snapshot, settings, told, now_ms=now_ms())


def ask_oldest(
    world: LiveServices,
    snapshot: Snapshot,
    unread: Mapping[BrokerPartition, int],
    settings: Settings,
) -> Mapping[BrokerPartition, OldestRecord]:
    """The oldest unread record of each log that has one, of those whose messages have times. Raises
    what looking for brokers raises.
    """
    asked = {
        log: (oldest, snapshot.extents[log].end_offset)
        for log, oldest in unread.items()
        if not log.is_physical
    }
    if not asked:
        return {}
    with Discovery(settings, world.zookeeper).open_cluster() as cluster:
        return read_oldest(cluster, asked, snapshot.leaders, isolation=settings.source.isolation)


def unread_of(snapshot: Snapshot, settings: Settings) -> dict[BrokerPartition, int]:
    """Of each log that lags, its oldest offset that is not in the table."""
    return unread_from(snapshot, how_far(snapshot, settings)[0], settings)


def lags_of(
    snapshot: Snapshot,
    settings: Settings,
    told: Mapping[BrokerPartition, OldestRecord],
    *,
    now_ms: int,
) -> Lags:
    """The same of what was observed; `told`: the oldest unread records of logs that were asked for
    them.
    """
    so_far, refusal = how_far(snapshot, settings)
    return lags_at(snapshot, so_far, settings, told, now_ms=now_ms, refusal=refusal)
