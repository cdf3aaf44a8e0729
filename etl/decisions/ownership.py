"""What owners and live consumers found in ZooKeeper mean for a run: refused, waited for, or left
alone. Pure functions of values.

    who is there                  policy                      what the run does
    a live consumer               on_live_group: fail         Owned; one of Kafka's own group of this name is one, too
    a live consumer               on_live_group: unowned      takes what nobody owns, as under on_owned: skip
    an owner of what we read      on_owned: fail              Owned
    an owner of what we read      on_owned: wait              waits once, looks again, and then as under fail
    an owner of what we read      on_owned: skip              leaves the log out of a new plan; its position stays
    an owner of a stored plan's   skip, unowned               Owned: a stored plan is executed as it is, or not at all
    a driver of this pipeline     any                         nothing: whoever holds the driver's lock takes its nodes over
    other members of the group    mode: join                  has what they own left to them; of its own share it asks nobody
    members of the other group    mode: join, and fail        Owned: nobody divides anything with them
    of this name

How a log is claimed and an owner waited for is in `edges.zookeeper.owners`. Old consumers know
neither our plans nor our commits (docs/adr/0005).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from etl.decisions.handing_over import is_left_to_execute, is_member
from etl.decisions.open_hand_overs import is_left_open
from etl.errors import Owned
from etl.kafka.messages import is_of_instance
from etl.ledger.registrations import consumer_id, consumer_of, parse_owner, thread_id
from etl.model.partitions import BrokerPartition, KafkaGroup, Membership
from etl.model.plans import Plan
from etl.model.snapshot import Snapshot
from etl.settings.choices import OnLiveGroup, OnOwned
from etl.settings.sections import OwnershipSettings, Settings

_NAMED = 3
UNASSIGNED = "no known member of the group"
"""Instead of an owner: the group divided its partitions before this one was there, or divides them
now.
"""
_ANOTHER = "another member of the group"


def foreign_owners(
    owners: Mapping[BrokerPartition, str], settings: Settings
) -> dict[BrokerPartition, str]:
    """The owners that are no drivers of this very pipeline."""
    return {log: owner for log, owner in owners.items() if not _is_ours(owner, settings)}


def foreign_consumers(consumers: Iterable[str], settings: Settings) -> tuple[str, ...]:
    """Those of the group's consumers, by their ids, that are no drivers of this very pipeline."""
    return tuple(
        consumer for consumer in consumers if not _is_ours(thread_id(consumer, 0), settings)
    )


def members_as_owners(
    group: KafkaGroup, logs: Collection[BrokerPartition]
) -> dict[BrokerPartition, str]:
    """What the members of Kafka's group read of these logs: all of them where nobody knows what a
    member reads.
    """
    return {
        log: member
        for member, theirs in group.members.items()
        for log in logs
        if theirs is None or log in theirs
    }


def owners_to_wait_for(snapshot: Snapshot, settings: Settings) -> dict[BrokerPartition, str]:
    """The owners that policy says to wait for, and what they own; none where waiting would change
    nothing.
    """
    if (
        is_member(settings)
        or on_owned(settings.ownership) is not OnOwned.WAIT
        or _is_refused(snapshot, settings)
    ):
        return {}
    return foreign_owners(snapshot.owners, settings)


def leave_to_owners(snapshot: Snapshot, settings: Settings) -> Snapshot:
    """The snapshot without the logs that are left to somebody else; its `owners` are who they are
    left to.

    Raises Owned, naming the consumer or the owner, where policy says `fail` and where waiting did
    not help.
    """
    if is_member(settings) and (
        snapshot.share
        or is_left_to_execute(snapshot.ledger, settings)
        or is_left_open(snapshot.ledger)
    ):
        _refuse_members_elsewhere(snapshot, settings.ownership)
        return _without(snapshot, _of_others(snapshot, settings))
    if _is_refused(snapshot, settings):
        what = f"live consumers are registered in the group: {', '.join(foreign_consumers(snapshot.live_consumers, settings)[:_NAMED])}"
        check = "that they are stopped; a crashed one leaves after its session timeout"
        raise Owned(what, check=check)
    left = foreign_owners(snapshot.owners, settings)
    if left and on_owned(settings.ownership) is not OnOwned.SKIP:
        raise owned_by(left)
    return _without(snapshot, left)


def _refuse_members_elsewhere(snapshot: Snapshot, ownership: OwnershipSettings) -> None:
    """Nobody divides anything with them: they would read what our share is, too."""
    if snapshot.share is None or ownership.on_live_group is not OnLiveGroup.FAIL:
        return
    in_zookeeper = [one for one in snapshot.live_consumers if one not in snapshot.live_in_kafka]
    if snapshot.share.membership is Membership.ZOOKEEPER and snapshot.live_in_kafka:
        what = f"consumers are alive in Kafka's own group of this name: {', '.join(snapshot.live_in_kafka[:_NAMED])}"
        raise Owned(
            what,
            check="that they are stopped: membership: zookeeper shares with consumers that are registered in ZooKeeper alone",
        )
    if snapshot.share.membership is Membership.COORDINATOR and in_zookeeper:
        what = f"consumers of the group are registered in ZooKeeper: {', '.join(in_zookeeper[:_NAMED])}"
        raise Owned(
            what,
            check="that they are stopped: membership: coordinator shares with members of Kafka's own group alone",
        )


def _of_others(snapshot: Snapshot, settings: Settings) -> dict[BrokerPartition, str]:
    """What is not of our share, and not of a plan that is executed whoever owns its logs by now."""
    plan = snapshot.ledger.newest if is_left_to_execute(snapshot.ledger, settings) else None
    ours = {
        *(snapshot.share.logs if snapshot.share else ()),
        *(r.log for r in (plan.ranges if plan else ())),
    }
    others = (log for log in (*snapshot.extents, *snapshot.leaderless) if log not in ours)
    unknown = owner_not_known(snapshot, settings)
    return {log: snapshot.owners.get(log, unknown) for log in others}


def owner_not_known(snapshot: Snapshot, settings: Settings) -> str:
    """Who owns a partition that is not of our share and of which no owner is known.

    Members of ZooKeeper's groups divide by what they see, and own a partition a moment before its
    znode says so. The assignments of Kafka's own members are known.
    """
    in_zookeeper = [one for one in snapshot.live_consumers if one not in snapshot.live_in_kafka]
    is_shared = settings.membership is Membership.ZOOKEEPER and foreign_consumers(
        in_zookeeper, settings
    )
    return _ANOTHER if is_shared else UNASSIGNED


def _without(snapshot: Snapshot, left: Mapping[BrokerPartition, str]) -> Snapshot:
    extents = {log: extent for log, extent in snapshot.extents.items() if log not in left}
    owners = {
        log: owner
        for log, owner in left.items()
        if log in snapshot.extents or log in snapshot.leaderless
    }
    return replace(
        snapshot,
        extents=extents,
        extents_of_owned={log: extent for log, extent in snapshot.extents.items() if log in left},
        leaderless=snapshot.leaderless - left.keys(),
        owners=owners,
    )


def refuse_owned_ranges(plan: Plan, snapshot: Snapshot) -> None:
    """Refuse a stored plan that reads a log that was left to its owner: a stored plan is never cut.
    Raises Owned.

    One that was handed over is executed whoever owns its logs by now, and a member puts another in
    the place of one that was not.
    """
    if plan.handed_over or snapshot.share:
        return
    left = {r.log: snapshot.owners[r.log] for r in plan.ranges if r.log in snapshot.owners}
    if left:
        raise owned_by(left, first=f"plan {plan.number} is stored and must be executed first; ")


def on_owned(ownership: OwnershipSettings) -> OnOwned:
    """What becomes of owned logs. Who takes what nobody owns, leaves the rest: under
    `on_live_group: unowned` they are skipped.
    """
    return OnOwned.SKIP if ownership.on_live_group is OnLiveGroup.UNOWNED else ownership.on_owned


def _is_refused(snapshot: Snapshot, settings: Settings) -> bool:
    return settings.ownership.on_live_group is OnLiveGroup.FAIL and bool(
        foreign_consumers(snapshot.live_consumers, settings)
    )


def _is_ours(owner: str, settings: Settings) -> bool:
    found, name = parse_owner(settings.group, owner), settings.ownership.member_id
    if found is not None:
        return found.pipeline == settings.pipeline
    if not is_member(settings) or name is None:
        return False
    if (
        settings.membership is Membership.COORDINATOR
    ):  # a static member stays in its group between runs
        return is_of_instance(owner.partition(" at ")[0], name)
    return consumer_of(owner) == consumer_id(settings.group, name)


def owned_by(owners: Mapping[BrokerPartition, str], *, waited: str = "", first: str = "") -> Owned:
    """The error that names the first of these logs and its owner. `waited` ends the sentence,
    `first` begins what to check.
    """
    log, owner = min(owners.items())
    if owner == UNASSIGNED:
        what = f"the partition is assigned to {owner}{waited}"
        return Owned(
            what,
            **log.place,
            check=f"{first}say it again once the group has divided its partitions anew",
        )
    more = f" (and {len(owners) - 1:,} more partitions have owners)" if len(owners) > 1 else ""
    return Owned(
        f"the partition is owned by {owner}{more}{waited}",
        **log.place,
        check=f"{first}that this consumer is stopped",
    )
