"""Plans whose hand-over was begun in Kafka, and of which nobody wrote down what became of it. Pure.

In Kafka a plan is stored, then one commit moves the group's offsets, with the plan's word beside
each, then the plan is marked. Whoever finds one that is not marked has ended the membership that it
was made with (`run.joining`), so that no commit of it comes any more, and
looks:

    the group's offsets of the plan's logs                       the commit
    ----------------------------------------------------------   -----------------------------------------------------------------------
    one of them has the plan's word                              was taken: it is one batch, all of it or nothing
    the same, and another one is as the plan saw it              was taken but for that one, which the coordinator refused by itself (no
                                                                 right to its topic): a person is asked
    one of them is as the plan saw it, word and all              was not taken
    all of them are before the plan's ends                       was not taken, and others read on from where they were
    others wrote over all of them, and beyond the plan's ends    nobody can tell: its offsets are ours, or others read them as well as what
                                                                 lies behind; a person is asked

A commit that was refused is written down as well: such a plan is void. Its word beside an offset
tells the contrary: the commit was taken behind what was thought to be the end of its membership (by
a coordinator that was none any more, or, before 2.5, that still waited for its replicas).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import Enum

from etl.decisions.handing_over import before, is_member
from etl.decisions.offsets_storage import refuse_another_storage
from etl.decisions.start import starts_of
from etl.errors import NeedsDecision, SettingsError
from etl.model.partitions import NOTHING_COMMITTED, BrokerPartition, Committed
from etl.model.plans import Plan, PlanKind
from etl.model.snapshot import Ledger, Snapshot
from etl.settings.sections import Settings


class HandOverOutcome(Enum):
    """What became of one."""

    TAKEN = "taken"
    IN_PART = "taken in part"
    NOT_TAKEN = "not taken"
    UNTOLD = "nobody can tell"


def is_left_open(ledger: Ledger) -> bool:
    """Whether the newest plan's hand-over was begun, and nobody wrote down what became of it."""
    return ledger.newest is not None and ledger.newest.is_open and ledger.applied is None


def found_out(plan: Plan, committed: Mapping[BrokerPartition, Committed]) -> HandOverOutcome:
    """What became of the hand-over of a plan that is not marked; see the module's table."""
    logs = plan.offsets_to_hand_over
    if not logs:
        return HandOverOutcome.NOT_TAKEN
    found = {log: committed.get(log, NOTHING_COMMITTED) for log in logs}
    is_as_seen = bool(not_taken_of(plan, committed))
    if any(there.word == plan.word for there in found.values()):
        return HandOverOutcome.IN_PART if is_as_seen else HandOverOutcome.TAKEN
    offsets = {log: there.offset for log, there in found.items() if there.offset is not None}
    if is_as_seen or plan.is_void:
        return HandOverOutcome.NOT_TAKEN
    if offsets and all(offset < plan.positions[log] for log, offset in offsets.items()):
        return HandOverOutcome.NOT_TAKEN
    return HandOverOutcome.UNTOLD


def with_hand_over_found_out(snapshot: Snapshot) -> Snapshot:
    """The snapshot in which a plan that was handed over says so, whoever died before writing it
    down.
    """
    ledger = snapshot.ledger
    plan = ledger.newest
    if (
        plan is None
        or plan.handed_over is not False
        or ledger.applied
        or found_out(plan, snapshot.committed) is not HandOverOutcome.TAKEN
    ):
        return snapshot
    return replace(
        snapshot, ledger=replace(ledger, newest=replace(plan, handed_over=True, is_void=False))
    )


def refuse_untold(plan: Plan, snapshot: Snapshot, settings: Settings) -> None:
    """Refuse a plan that is not known to be handed over where that is to be found out first, or
    cannot be.

    Raises SettingsError for runs that are no members any more, or look elsewhere, NeedsDecision
    where nobody can tell.
    """
    if plan.handed_over is not False:
        return
    if not is_member(settings):
        what = f"plan {plan.number} was stored by a member of the group, and nobody wrote down that it was handed over"
        check = "with ownership.mode: join, as it was, `etl run CONF` finds out and finishes it; change the key then"
        raise SettingsError(what, key="ownership.mode", check=check)
    if plan.is_open:
        refuse_another_storage(plan, snapshot.offsets_in)
    found = found_out(plan, snapshot.committed)
    if found is HandOverOutcome.IN_PART:
        refused = min(not_taken_of(plan, snapshot.committed))
        check = (
            "the brokers' ACLs for the topic (Read), and that the coordinator knows it; then `etl plans supersede CONF "
            f"{plan.number} --reason ...`: what was handed over is loaded, and a later plan reads the rest"
        )
        raise NeedsDecision(
            f"plan {plan.number} was handed over but for this partition",
            **refused.place,
            check=check,
        )
    if found is HandOverOutcome.UNTOLD:
        log = plan.offsets_to_hand_over[0]
        what = (
            f"nobody can tell whether plan {plan.number} was handed over: its run died at that very moment, and others have committed "
            "the group's offsets beyond its ends since"
        )
        check = (
            "what the group's other members read between the offsets in `etl plans show CONF "
            f"{plan.number}`, such as {starts_of(plan)[log]} to {plan.positions[log]} of {log}: if they read it, `etl plans supersede "
            f"CONF {plan.number} --reason ...` leaves it to them; if they did not, the same with --handed-over, and the next run loads it"
        )
        raise NeedsDecision(what, **log.place, check=check)


def refuse_without_share(plan: Plan, snapshot: Snapshot) -> None:
    """Refuse to replace a plan that was not handed over where nobody owns a log: that is for a run
    that does. Raises NeedsDecision.
    """
    if snapshot.share is None:
        what = f"plan {plan.number} is stored and was not handed over: a run that has joined the group puts another in its place"
        raise NeedsDecision(what, check="`etl run CONF`; then say this again")


def handed_over_without(
    plan: Plan, logs: Collection[BrokerPartition], reason: str, *, now_ms: int
) -> Plan:
    """The plan, without its id, that takes the place of one of which these logs were not handed
    over: they stay where they were.
    """
    stood = before(plan)
    ranges = tuple(r for r in plan.ranges if r.log not in logs)
    return replace(
        plan,
        kind=PlanKind.INGEST if ranges else PlanKind.START,
        created_at_ms=now_ms,
        ranges=ranges,
        supersedes=plan.id,
        reason=reason,
        positions={
            log: stood.positions[log] if log in logs else at for log, at in plan.positions.items()
        },
        losses=tuple(
            loss
            for loss in plan.losses
            if loss.log not in logs or loss.until_offset <= stood.positions[loss.log]
        ),
        read_by_others=tuple(hole for hole in plan.read_by_others if hole.log not in logs),
        share=replace(plan.share, logs=plan.share.logs - set(logs)) if plan.share else None,
        handed_over=True,
        is_void=False,
        id="",
    )


def not_taken_of(
    plan: Plan, committed: Mapping[BrokerPartition, Committed]
) -> frozenset[BrokerPartition]:
    """The logs of a hand-over whose offset is as the plan saw it."""
    return frozenset(
        log
        for log in plan.offsets_to_hand_over
        if committed.get(log, NOTHING_COMMITTED) == plan.seen[log]
    )
