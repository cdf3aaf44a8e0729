"""What becomes of a plan that is stored and not in the table: it is executed again, or another one
takes its place. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from etl.decisions.backfills.claiming import refuse_another_life
from etl.decisions.byte_positions.misplaced_offsets import refuse_inside_entries
from etl.decisions.handing_over import is_never_handed_over
from etl.decisions.identity.log_identity import refuse_other_logs
from etl.decisions.identity.made_again import refuse_left_made_again
from etl.decisions.open_hand_overs import refuse_untold, refuse_without_share
from etl.decisions.plan import reading_of
from etl.decisions.shape import shape_of_rows
from etl.decisions.start import starts_of
from etl.errors import BrokerUnreachable, NeedsDecision
from etl.model.partitions import uncounted
from etl.model.plans import LossReason, Plan, PlanKind
from etl.model.snapshot import Ledger, Replay, Snapshot, Supersede
from etl.settings.choices import OnNoLeader
from etl.settings.sections import Settings


def replay_or_supersede(
    state: Replay, snapshot: Snapshot, settings: Settings
) -> Replay | Supersede:
    """What becomes of a stored plan: it is replayed word for word, or superseded where policy lets
    it: its range has expired, or a log that it reads has no leader.

    A replay (`PlanKind.REPLAY`) that cannot bring back all of its rows is given up, whatever policy
    says: those that stand would be lost.

    Raises NeedsDecision when a topic was deleted or made again or the conf shapes rows in another
    way by now, OffsetInsideMessage when no message begins where it does, DataLoss and
    BrokerUnreachable when policy says `fail`.
    """
    plan = state.plan
    refuse_untold(plan, snapshot, settings)
    if is_never_handed_over(plan, snapshot, settings):
        refuse_without_share(plan, snapshot)
        return Supersede(plan, "it was stored, and the group's offsets were not moved with it")
    if plan.kind is PlanKind.REPLAY and (why := why_given_up(plan, snapshot)):
        return Supersede(plan, why)
    _refuse_gone_topics(plan, snapshot)
    refuse_another_life(snapshot, starts_of(plan))
    refuse_left_made_again(plan, snapshot)
    refuse_other_logs(plan, _of_ranges(plan, snapshot) if plan.is_executed_as_it_is else snapshot)
    refuse_inside_entries(starts_of(plan), snapshot, plan, is_left=True)
    _refuse_leaderless_ranges(plan, snapshot, settings)
    leaderless = sorted(snapshot.leaderless & {r.log for r in plan.ranges})
    if leaderless:
        more = f" (and {len(leaderless) - 1:,} more partitions)" if leaderless[1:] else ""
        log = leaderless[0]
        unled = f"the broker of {log} is away" if log.is_physical else f"{log} has no leader"
        if uncounted([log], snapshot.leaders):
            unled = f"the broker of {log} is there and counts fewer partitions now"
        return Supersede(plan, f"{unled}{more}: a later plan reads what it holds")
    for r in plan.ranges:
        extent = snapshot.extents.get(r.log)
        if extent and r.from_offset < extent.log_start_offset:
            reading_of(r.log, r.from_offset, snapshot, settings)  # raises under `fail`
            return Supersede(
                plan,
                f"{r.log}: its range starts at {r.from_offset}, and the log at {extent.log_start_offset} by now",
            )
    _refuse_another_shape(plan, settings)
    return state


def _of_ranges(plan: Plan, snapshot: Snapshot) -> Snapshot:
    """The snapshot with what the plan reads alone: what became of the other logs is decided once it
    is in the table.

    No other plan may take the place of one that is executed as it is, so a log that is another by
    now is left out of it, and accepted behind it.
    """
    logs, topics = {r.log for r in plan.ranges}, {r.log.topic for r in plan.ranges}
    return replace(
        snapshot,
        extents={log: extent for log, extent in snapshot.extents.items() if log in logs},
        topic_ids={topic: found for topic, found in snapshot.topic_ids.items() if topic in topics},
        creation_ids={
            topic: found for topic, found in snapshot.creation_ids.items() if topic in topics
        },
    )


GIVEN_UP = "the replay was given up, and its rows are as they were"


def why_given_up(plan: Plan, snapshot: Snapshot) -> str | None:
    """Why a replay cannot bring back all of its rows; None where nothing speaks against it."""
    gone = sorted(snapshot.gone_topics & {r.log.topic for r in plan.ranges})
    if gone:
        return f"{GIVEN_UP}: the brokers do not know the topic {gone[0]} any more"
    for r in plan.ranges:
        extent = snapshot.extents.get(r.log)
        if extent and r.from_offset < extent.log_start_offset:
            return f"{GIVEN_UP}: {r.log} was to be read from {r.from_offset}, and the log starts at {extent.log_start_offset} by now"
    return None


def topics_left_to_read(ledger: Ledger) -> set[str]:
    """Topics of a plan that is stored and not known to be executed; those that it gives up as
    deleted keep no run from executing it.
    """
    plan = ledger.newest
    if plan is None or ledger.applied is not None:
        return set()
    deleted = {loss.log.topic for loss in plan.losses if loss.why is LossReason.DELETED}
    return deleted | {r.log.topic for r in plan.ranges}


def refuse_to_give_up(plan: Plan, snapshot: Snapshot) -> None:
    """Refuse to replace a stored plan that reads what its logs no longer hold: that is for an
    operator to say.

    Raises NeedsDecision for a topic that was deleted or made again, LogTruncated.
    """
    if (
        plan.kind in (PlanKind.REPLAY, PlanKind.BACKFILL)
        or plan.is_executed_as_it_is
        or plan.handed_over is False
    ):
        return
    _refuse_gone_topics(plan, snapshot)
    refuse_other_logs(plan, _of_ranges(plan, snapshot))


def _refuse_gone_topics(plan: Plan, snapshot: Snapshot) -> None:
    gone = sorted(snapshot.gone_topics & {r.log.topic for r in plan.ranges})
    if gone:
        others = f" (and {len(gone) - 1:,} more topics)" if gone[1:] else ""
        what = f"plan {plan.number} is stored and not in the table, and the brokers do not know this topic of it any more{others}"
        ranges = [r for r in plan.ranges if r.log.topic in gone]
        count = f"{sum(r.size for r in ranges):,} {ranges[0].log.unit}s"
        first = f"the first of them {ranges[0].log} from {ranges[0].from_offset} to {ranges[0].until_offset}"
        check = (
            f"whether it was deleted: then {count} of plan {plan.number}, {first}, are lost. The plan without them, which records them as "
            f"lost, is: etl plans supersede CONF {plan.number} --reason ..."
        )
        raise NeedsDecision(what, topic=gone[0], check=check)


def _refuse_leaderless_ranges(plan: Plan, snapshot: Snapshot, settings: Settings) -> None:
    """Refuse a stored plan of which a log has no leader: it reads all of its logs or none. Raises
    BrokerUnreachable under `fail`.
    """
    logs = snapshot.leaderless & {r.log for r in plan.ranges}
    if logs and plan.is_executed_as_it_is:
        whose = "was handed over" if plan.handed_over else "a member of the group stored"
        what = f"the partition {min(logs).unled}, and plan {plan.number}, which {whose} and is not in the table, reads it"
        rests = (
            "nobody else of the group reads these offsets any more"
            if plan.handed_over
            else "a stored plan is executed as it is"
        )
        check = (
            f"{min(logs).held_by}: {rests}. If they are gone for good, the plan without them "
            f"is: etl plans supersede CONF {plan.number} --skip TOPIC:PARTITION:FROM-UNTIL --reason ..."
        )
        raise BrokerUnreachable(what, **min(logs).place, check=check)
    if logs and settings.source.on_no_leader is OnNoLeader.FAIL:
        what = f"the partition has no leader, and plan {plan.number}, which is stored and not in the table, reads it"
        check = (
            "the brokers that hold its replicas; under source.on_no_leader: skip a run puts a plan without it in its place, and what it "
            "holds is read once it has a leader again"
        )
        raise BrokerUnreachable(what, **min(logs).place, check=check)


def _refuse_another_shape(plan: Plan, settings: Settings) -> None:
    """Refuse a stored plan under settings that shape rows differently: they would not be its rows.
    Raises NeedsDecision.
    """
    if plan.shape != shape_of_rows(settings):
        what = f"plan {plan.number} is stored but not in the table, and the conf has changed what shapes its rows since"
        check = (
            f"`etl plans supersede CONF {plan.number} --reason ...`: the same offsets are then read as the conf says now, nothing is lost; "
            "or put source.isolation, transform and table.partition_by back for one run, then change them"
        )
        if plan.kind is PlanKind.REPLAY:
            check = (
                f"`etl plans supersede CONF {plan.number} --reason ...`: the rows stay as they are, and another `etl replay` makes them as "
                "the conf says now; or put source.isolation, transform and table.partition_by back for one run"
            )
        raise NeedsDecision(what, check=check)
