"""Topics that were deleted and made again: whether a log's name still means what the pipeline has
read. Pure functions of values.

From Kafka 0.8 on a topic is one thing in its cluster, and its id tells (before 2.8 the creation of
its znode stands for one). A physical log (0.7 family) is its broker's alone: a topic may be made
again on one broker and be kept by another that was away, or that never let the topic go, so that
its znode stayed. There the id only says that something happened. So each physical log is decided
for itself: by the bytes that it holds before our position, and where those do not tell, by a
person. One whose broker is away stays undecided, whatever is decided of the topic's others; one of
which nothing was read need not be decided.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from etl.decisions.identity.tails import holds_what_was_read
from etl.errors import NeedsDecision, TopicMadeAgain
from etl.ledger.registrations import CREATION_ID
from etl.model.partitions import BrokerPartition, quoted_log, render_log
from etl.model.plans import Plan
from etl.model.snapshot import Snapshot

_NAMED = 20
"""How many logs one message names."""


def is_creation_id(topic_id: str) -> bool:
    """Whether it is only the creation of the topic's znode that stands for its id: brokers before
    2.8 have none.
    """
    return topic_id.startswith(CREATION_ID)


def topics_made_again(plan: Plan, snapshot: Snapshot) -> dict[str, str]:
    """The topics that are others as a whole, and their ids of now; those of physical logs are not
    among them.
    """
    physical = {log.topic for log in (*plan.positions, *plan.pending_starts) if log.is_physical}
    both = {
        topic: compared_ids(topic, plan, snapshot)
        for topic in sorted(plan.topic_ids.keys() - physical)
    }
    return {
        topic: snapshot.topic_ids[topic] for topic, ids in both.items() if ids and ids[0] != ids[1]
    }


def compared_ids(topic: str, plan: Plan, snapshot: Snapshot) -> tuple[str, str] | None:
    """A topic's id as the plan knows it, and as it is now: of one kind, as an id of another kind
    says nothing.

    The brokers' own where both sides have it: ZooKeeper's content may have been copied. Brokers
    begin to tell it when they are upgraded, and do not tell it where the conf calls them older than
    they are: then the creation of the znode. None where both sides know of no kind.
    """
    known, now = plan.topic_ids.get(topic), snapshot.topic_ids.get(topic)
    if known is None or now is None:
        return None
    if is_creation_id(known) == is_creation_id(now):
        return known, now
    created = known if is_creation_id(known) else plan.creation_ids.get(topic)
    created_now = now if is_creation_id(now) else snapshot.creation_ids.get(topic)
    return (created, created_now) if created and created_now else None


def kept_creations(topic_ids: Mapping[str, str], *known: Mapping[str, str]) -> dict[str, str]:
    """What a plan keeps beside the brokers' own ids of topics, of all that is `known`; what is
    named later counts.
    """
    merged = {topic: found for each in known for topic, found in each.items()}
    return {
        topic: found
        for topic, found in merged.items()
        if not is_creation_id(topic_ids.get(topic, CREATION_ID))
    }


def creations_to_compare(plan: Plan, snapshot: Snapshot) -> dict[str, str]:
    """The ids by which the topics of the plan's ranges were known when the run looked, where
    brokers tell none and tasks cannot compare.
    """
    ids = {
        r.log.topic: snapshot.topic_ids.get(r.log.topic, "")
        for r in plan.ranges
        if r.size and not r.log.is_physical
    }
    return {topic: found for topic, found in sorted(ids.items()) if is_creation_id(found)}


def refuse_made_again_since(
    plan: Plan, known: Mapping[str, str], now: Mapping[str, str], *, is_in_table: bool
) -> None:
    """Raises TopicMadeAgain where a topic of `known` has another id by now: the plan's offsets are
    others' then.

    One that is gone is told by its brokers.
    """
    again = [topic for topic, found in known.items() if now.get(topic, found) != found]
    if not again:
        return
    topic, others = again[0], f" (and {len(again) - 1} more topics)" if again[1:] else ""
    what = f"the topic was deleted and made again while it was read: its id is {now[topic]}, planned was {known[topic]}{others}"
    check = f"who did it; the next run says so too, then go on with the new one: {accept_command([topic])}"
    if is_in_table:
        what = f"{what}; plan {plan.number} is in the table, and some of its rows may be records of the new topic"
        check = (
            f"the plan's rows against the topic's records (etl plans show, etl peek), before anything else: {accept_command([topic])} "
            "reads the new topic from its start, and those that are in the table already come twice"
        )
    raise TopicMadeAgain(what, topic=topic, check=check)


def id_of(log: BrokerPartition, plan: Plan) -> str | None:
    """The id of its topic under which the log was decided."""
    return plan.log_topic_ids.get(log, plan.topic_ids.get(log.topic))


def undecided_logs(plan: Plan, snapshot: Snapshot) -> list[BrokerPartition]:
    """The physical logs of which something was read while their topic had another id, in order;
    also those that are away.
    """
    return sorted(
        log
        for log, position in plan.positions.items()
        if log.is_physical
        and position
        and snapshot.topic_ids.get(log.topic, id_of(log, plan)) != id_of(log, plan)
    )


def waiting_logs(plan: Plan, snapshot: Snapshot) -> list[BrokerPartition]:
    """Those of them that stop every run: their broker is there, nobody else reads them, and nobody
    paused them.
    """
    alone = {*snapshot.leaderless, *snapshot.extents_of_owned, *snapshot.paused}
    return [log for log in undecided_logs(plan, snapshot) if log not in alone]


def is_what_was_read(log: BrokerPartition, plan: Plan, snapshot: Snapshot) -> bool | None:
    """Whether a log that is there is the one that was; None where nothing tells.

    One that ends below the plan's position is another, and so is one that its broker does not have
    any more.
    """
    extent = snapshot.extents.get(log)
    if extent is None or extent.end_offset < plan.positions[log]:
        return False
    return holds_what_was_read(log, plan, snapshot)


def kept_ids(
    plan: Plan | None,
    decided: Iterable[BrokerPartition],
    positions: Iterable[BrokerPartition],
    topic_ids: Mapping[str, str],
) -> dict[BrokerPartition, str]:
    """What the next plan keeps: of logs that are not decided the ids under which they were, where
    those of `topic_ids` are others.
    """
    if plan is None:
        return {}
    left = set(positions).difference(decided)
    ids = {log: id_of(log, plan) for log in left if log.is_physical and plan.positions.get(log)}
    return {
        log: found
        for log, found in ids.items()
        if found is not None and found != topic_ids.get(log.topic)
    }


def refuse_topics_made_again(plan: Plan, snapshot: Snapshot) -> None:
    """Offsets of a log mean nothing on another one of the same name. Raises NeedsDecision, which
    names what leads out.
    """
    again = topics_made_again(plan, snapshot)
    for topic in again:
        known, found = compared_ids(topic, plan, snapshot) or ("", "")
        others = f" (and {len(again) - 1} more topics)" if again.keys() - {topic} else ""
        what = f"the topic was deleted and made again: its id is {found}, plan {plan.number} read {known}{others}"
        check = "who did it; to go on with the new one: " + accept_command([topic])
        if is_creation_id(found):
            check += (
                "; or, where ZooKeeper's content was copied to another ensemble and it is the same topic, add --same-log. Nothing "
                "tells which of the two it is: of another topic --same-log would leave out all records below our positions"
            )
        raise NeedsDecision(what, topic=topic, check=check)
    waiting = waiting_logs(plan, snapshot)
    if waiting:
        raise _undecided(waiting, plan, snapshot)


def gone_for_good(plan: Plan, snapshot: Snapshot) -> frozenset[str]:
    """The topics of which nothing is left that the plan was to read: deleted, or made again by the
    brokers' own ids. The creation of a znode may also tell of a ZooKeeper that was copied.
    """
    again = topics_made_again(plan, snapshot)
    return snapshot.gone_topics | {
        topic for topic, found in again.items() if not is_creation_id(found)
    }


def refuse_left_made_again(plan: Plan, snapshot: Snapshot) -> None:
    """The same of a plan that is executed as it is and not in the table, behind which alone the new
    topic may be accepted.

    Raises NeedsDecision for a topic of its ranges.
    """
    again = sorted(
        {r.log.topic for r in plan.ranges}.intersection(topics_made_again(plan, snapshot))
        if plan.is_executed_as_it_is
        else ()
    )
    for topic in again:
        known, found = compared_ids(topic, plan, snapshot) or ("", "")
        whose = "was handed over" if plan.handed_over else "a member of the group stored"
        what = (
            f"the topic was deleted and made again: its id is {found}, that of plan {plan.number}, which {whose} and is not in the "
            f"table, is {known}"
        )
        skips = (
            "--skip TOPIC:PARTITION:FROM-UNTIL with each of its ranges "
            if is_creation_id(found)
            else ""
        )
        check = (
            f"who did it: what the table lacks of that plan is gone then, and the plan without it is: etl plans supersede CONF "
            f"{plan.number} {skips}--reason ...; `etl run CONF` executes it, and then the new topic is gone on with: "
            f"{accept_command([topic])}"
        )
        raise NeedsDecision(what, topic=topic, check=check)


def _undecided(waiting: Sequence[BrokerPartition], plan: Plan, snapshot: Snapshot) -> NeedsDecision:
    log = waiting[0]
    more = f" (and {len(waiting) - 1:,} more partitions)" if waiting[1:] else ""
    what = (
        f"the topic was deleted and made again, and each of its brokers may have kept its log or lost it: the topic's id is "
        f"{snapshot.topic_ids[log.topic]}, plan {plan.number} read this partition under {id_of(log, plan)}{more}"
    )
    return NeedsDecision(what, **log.place, check=" ".join(ways_out(waiting, plan, snapshot)))


def ways_out(logs: Sequence[BrokerPartition], plan: Plan, snapshot: Snapshot) -> list[str]:
    """What there is to see of undecided logs, and the commands by which each is gone on with: a
    sentence for each kind.
    """
    told = {log: is_what_was_read(log, plan, snapshot) for log in logs}
    others, same, untold = (
        [log for log in logs if told[log] is found] for found in (False, True, None)
    )
    said = []
    if others:
        said.append(
            f"{named(others)}: the bytes that were read or planned are not there any more (where a broker kept its log, and its disk lost "
            "the end of it alone, name the partition and say with --at up to which offset it kept it)."
        )
    if same:
        said.append(f"{named(same)}: the bytes that were read or planned last are there.")
    if untold:
        names = [render_log(log) for log in untold[:_NAMED]]
        said.append(
            f"{named(untold)}: nothing tells, as what was read last is not kept any more; compare records with the table's (etl peek). "
            f"Where the broker lost its log: {accept_command(names)}; where it kept it: {accept_command(names, '--same-log')}."
        )
    if others or same:
        topics = sorted({log.topic for log in (*others, *same)})
        said.append(
            f"{'Then the others' if untold else 'To go on'}: {accept_command(topics)}, which reads logs that hold other bytes from their "
            "start and the others on from where they were."
        )
    return said


def named(logs: Sequence[BrokerPartition]) -> str:
    """The logs as an operator names them, the first of many."""
    more = f" and {len(logs) - _NAMED:,} more" if logs[_NAMED:] else ""
    return " ".join(map(quoted_log, logs[:_NAMED])) + more


def accept_command(names: Iterable[str], *options: str) -> str:
    """The command that leads out, as messages name it."""
    return (
        f"etl plans accept-log CONF {' '.join([*map(shlex.quote, names), *options])} --reason ..."
    )
