"""The positions mirrored into a Kafka group (`mirror_group`) at the end of a run, for lag monitors
alone. Nothing goes by it, so no failure of it is one of the run: it is told.
"""

from __future__ import annotations

from etl.errors import EtlError
from etl.io.brokers.group_offsets import Writer, mirror_positions
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.session import ZooKeeper
from etl.report.describe import counted
from etl.report.run_report import Report
from etl.report.run_state import Outcome
from etl.run.discovery import Discovery
from etl.settings.sections import Settings


def mirror(settings: Settings, zookeeper: ZooKeeper, report: Report) -> None:
    """Also by a run that found nothing new: brokers forget the offsets of a group without members
    after a week.
    """
    if settings.mirror_group is None:
        return
    try:
        ledger = PlanLedger(zookeeper, settings.group, settings.pipeline).read_ledger()
        plan = ledger.newest
        if plan is None or ledger.applied is None or not plan.moves_offsets:
            return
        positions = {
            log: at
            for log, at in plan.positions.items()
            if settings.source.topics.admits(log.topic)
        }
        with Discovery(settings, zookeeper).open_cluster() as cluster:
            others = mirror_positions(
                cluster,
                settings.mirror_group,
                positions,
                writer=Writer(settings.group, settings.pipeline),
                taken=[Writer(*app_id.split("/", 3)[2:]) for app_id in plan.taken],
                number=plan.number,
            )
    except EtlError as error:
        what = f"group {settings.mirror_group} does not have the positions: {error.what}"
        report.add(Outcome.NOT_MIRRORED, f"{what}; check {error.check}" if error.check else what)
        return
    if others:
        log, word = next(iter(others.items()))
        what = f"group {settings.mirror_group} has offsets of somebody else in {counted(len(others), 'partition')}, the first {log}"
        said = f" ({word})" if word else ""
        report.add(
            Outcome.NOT_MIRRORED,
            f"{what}{said}: they stay as they are; name a group that nobody consumes or mirrors under",
        )
