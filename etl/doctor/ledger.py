"""Ledger against table: where the next run would find the pipeline."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from etl.decide.offsets import starts_of
from etl.decide.partition_identity import refuse_other_logs
from etl.decide.reconcile import plan_in_force
from etl.decide.set_offsets import standing_without_paused
from etl.doctor.check import Findings, Line, Verdict, advice, ok
from etl.errors import Owned
from etl.model.snapshot import (
    FirstRun,
    PipelineState,
    RebuildFromTable,
    Replay,
    Snapshot,
    Supersede,
    UpToDate,
)
from etl.report.describe import told_open
from etl.report.lag import told_paused
from etl.run.live import LiveServices
from etl.run.services import RunContext, now_ms
from etl.settings.sections import Settings

Foresee = Callable[[Snapshot, Settings], object]
"""Decides all that `etl plan` decides of a snapshot, and raises what it raises."""


def state(name: str, findings: Findings, *, foresee: Foresee) -> Iterator[Line]:
    """What a run would observe, what `reconcile` says of it, and where a run would stop that saw
    this.
    """
    silent = {
        leader.broker.id for leader in findings.metadata.leaders.values()
    } & findings.silent_brokers
    if silent:
        yield Line(
            name,
            Verdict.NOT_CHECKED,
            f"first broker {min(silent)}, which leads partitions of ours, see above",
        )
        return
    yield from judged(name, _observed(findings), findings.settings, foresee)


def judged(name: str, snapshot: Snapshot, settings: Settings, foresee: Foresee) -> Iterator[Line]:
    """The lines for what was observed. Raises what a run would raise; owners, and who else is of
    the group, are another check's affair.
    """
    yield from held_back("open transactions", snapshot)
    yield from rested("paused logs", snapshot)
    yield from unidentified("topic ids", snapshot)
    snapshot, found = standing_without_paused(snapshot, settings)
    reaches = starts_of(found.plan) if isinstance(found, Supersede) else None
    refuse_other_logs(plan_in_force(snapshot.ledger, snapshot.table), snapshot, reaches)
    alone = replace(snapshot, other_pipelines={}, ledger=replace(snapshot.ledger, retired=None))
    with contextlib.suppress(Owned):
        foresee(alone, settings)
    yield told(name, found)


def _observed(findings: Findings) -> Snapshot:
    settings = findings.settings
    patient = settings.model_copy(
        update={"source": settings.source.model_copy(update={"wait_for_leader_s": 0})}
    )
    world = LiveServices(patient, findings.zookeeper, RunContext(), "doctor")
    return world.observe()


def held_back(name: str, snapshot: Snapshot) -> Iterator[Line]:
    """A line for each topic that an open transaction holds back: a run reads up to there and says
    that all is done.
    """
    for sentence in told_open(snapshot):
        yield advice(
            name,
            sentence,
            "whether its producer lives (kafka-transactions.sh describe-producers); runs read on once it ends",
        )


def rested(name: str, snapshot: Snapshot) -> Iterator[Line]:
    """A line for what each command paused of a topic: no run reads it, and retention goes on."""
    for sentence in told_paused(snapshot, now_ms=now_ms()):
        yield advice(
            name,
            sentence,
            "`etl offsets resume CONF LOG... --reason ...`, before its records expire",
        )


def unidentified(name: str, snapshot: Snapshot) -> Iterator[Line]:
    """A line where nothing tells topics from others of their names; physical logs are known by
    their bytes.
    """
    topics = sorted(
        {log.topic for log in snapshot.extents if not log.is_physical} - snapshot.topic_ids.keys()
    )
    if topics:
        more = f" and {len(topics) - 1:,} more" if topics[1:] else ""
        what = f"the brokers tell no topic ids, and their ZooKeeper is not the conf's: nothing tells if {topics[0]}{more} is made again"
        yield advice(
            name,
            what,
            "zookeeper.connect: the ZooKeeper of these brokers, or know it when a topic is made again",
        )


def told(name: str, found: PipelineState) -> Line:
    """One line for the state of the pipeline."""
    if isinstance(found, FirstRun):
        return ok(
            name, "nothing was planned yet: the first run decides where each partition starts"
        )
    if isinstance(found, Replay):
        return ok(
            name,
            f"plan {found.plan.number} is stored and not in the table: the next run finishes it",
        )
    if isinstance(found, Supersede):
        return ok(
            name,
            f"plan {found.plan.number} cannot be finished, the next run puts another in its place: {found.reason}",
        )
    if isinstance(found, RebuildFromTable):
        what = f"the table holds plan {found.plan.number}, and ZooKeeper does not know it: the next run writes the ledger anew"
        return advice(
            name,
            what,
            "nothing here; find out whether ZooKeeper was emptied or restored from an old copy",
        )
    return _up_to_date(name, found)


def _up_to_date(name: str, found: UpToDate) -> Line:
    both = f"plan {found.last.number} is the newest in both"
    if found.followed:
        to_do = "which other consumer of this group runs; source.on_moved: follow takes its offsets"
        return advice(
            name, f"{both}; somebody else moved {len(found.followed)} committed offsets", to_do
        )
    if found.not_followed:
        to_do = "nothing, while their topics are not read: our positions stay, and a run decides once they are"
        what = f"somebody else moved {len(found.not_followed)} committed offsets of topics that are not read now"
        return advice(name, f"{both}; {what}", to_do)
    if found.uncommitted:
        return ok(
            name,
            f"{both}; {len(found.uncommitted)} of its offsets are not committed: the next run moves them",
        )
    return ok(name, f"{both}, and the offsets are its positions")
