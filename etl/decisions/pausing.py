"""What a pause means: which logs a run leaves alone, and what pausing and resuming make of the
pauses. Pure functions of values.

    what is met                                what becomes of it
    ----------------------------------------   -----------------------------------------------------------------------------
    a paused log, at the next plan             its position stays, it gets no range; a start that was never decided is kept
    a paused log of a stored plan              the plan is executed whole: it was decided before, and may be in the table
    the same, where another takes its place    the log is left out of that one
    a partition that is new in a paused topic  paused
    a paused log without a leader              left alone, whatever `source.on_no_leader` says
    a replay or backfill that names the log    loads it: who names offsets means them
    a paused log that is paused again          stays as it was: reason and time are the first ones
    one partition of a topic paused whole      is resumed with its topic only

A pause is kept until somebody resumes, over runs, drivers and rebalances (docs/adr/0026).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from etl.decisions.reconcile import where_we_stand
from etl.errors import SettingsError
from etl.model.partitions import FORM_OF_PARTITION, BrokerPartition, Named, PartitionOffsets
from etl.model.plans import Plan
from etl.model.snapshot import Pause, PipelineState, Replay, Snapshot
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Changed:
    """What is to be kept, and a sentence for each log that was named."""

    pauses: tuple[Pause, ...]
    says: tuple[str, ...]


def paused_logs(
    logs: Iterable[BrokerPartition], pauses: Iterable[Pause]
) -> dict[BrokerPartition, Pause]:
    """Those of the logs that are paused, and why: by a pause of their own, else by that of their
    topic.
    """
    said = {(one.topic, one.log): one for one in pauses}
    if not said:
        return {}
    found = ((log, said.get((log.topic, log)) or said.get((log.topic, None))) for log in logs)
    return {log: why for log, why in found if why}


def paused_unread(
    pauses: Iterable[Pause],
    extents: Mapping[BrokerPartition, PartitionOffsets],
    last: Plan | None,
) -> dict[BrokerPartition, tuple[int, int]]:
    """Of each paused log with something to read its oldest unread offset and its end; `last`: the
    plan in force.

    Logs whose messages have no time are left out: there is no oldest time to ask for.
    """
    positions = last.positions if last else {}
    spans = {
        log: (max(extents[log].log_start_offset, positions.get(log, 0)), extents[log].end_offset)
        for log in paused_logs(extents, pauses)
        if not log.is_physical
    }
    return {log: (start, end) for log, (start, end) in spans.items() if start < end}


def leave_paused(snapshot: Snapshot) -> Snapshot:
    """The snapshot without the logs that are paused; its `paused` are these, and why."""
    paused = paused_logs((*snapshot.extents, *snapshot.leaderless), snapshot.pauses)
    if not paused:
        return snapshot
    return replace(
        snapshot,
        extents={log: extent for log, extent in snapshot.extents.items() if log not in paused},
        extents_of_paused={
            log: extent for log, extent in snapshot.extents.items() if log in paused
        },
        leaderless=snapshot.leaderless - paused.keys(),
        paused=paused,
    )


def with_paused(snapshot: Snapshot) -> Snapshot:
    """The snapshot with the paused logs among the others again: for who names offsets, and means
    them.
    """
    return replace(
        snapshot,
        extents={**snapshot.extents, **snapshot.extents_of_paused},
        paused={},
        extents_of_paused={},
        leaderless=snapshot.leaderless
        | (snapshot.paused.keys() - snapshot.extents_of_paused.keys()),
    )


def standing(snapshot: Snapshot, settings: Settings) -> tuple[Snapshot, PipelineState]:
    """Where the pipeline stands, and what it goes on by: without paused logs, but where a stored
    plan is left, which is executed whole.

    Raises as `where_we_stand`.
    """
    rested = leave_paused(snapshot)
    state = where_we_stand(rested, settings)
    is_left = isinstance(state, Replay) and rested is not snapshot
    return (snapshot, where_we_stand(snapshot, settings)) if is_left else (rested, state)


def pausing(
    pauses: Sequence[Pause],
    named: Iterable[Named],
    known: Collection[BrokerPartition],
    *,
    reason: str,
    by: str,
    now_ms: int,
) -> Changed:
    """The pauses with those that are named. Raises SettingsError for a name of which no log is
    known.
    """
    kept, says = [*pauses], []
    for one in dict.fromkeys(named):
        before = _before(one, kept)
        if before:
            says.append(f"{one} is paused already{_as_whole(one, before)}: {before.reason}")
            continue
        refuse_unknown(one, known)
        kept.append(Pause(one.topic, one.log, reason, by, now_ms))
        says.append(f"{one} is paused: {reason}")
    return Changed(tuple(kept), tuple(says))


def resuming(
    pauses: Sequence[Pause], named: Iterable[Named], known: Collection[BrokerPartition]
) -> Changed:
    """The pauses without those that are named; a topic's name takes those of its partitions along.

    Raises SettingsError for a partition whose topic is paused as a whole, and for a name that
    neither is paused nor has a known log.
    """
    kept, says = [*pauses], []
    for one in dict.fromkeys(named):
        gone = [
            pause
            for pause in kept
            if pause.topic == one.topic and (one.log is None or pause.log == one.log)
        ]
        whole = next(
            (pause for pause in kept if one.log and pause.topic == one.topic and pause.log is None),
            None,
        )
        if whole:
            what = f"{one.topic} is paused as a whole, so {one} cannot be resumed by itself: {whole.reason}"
            check = f"resume {one.topic}, and pause those of its partitions that are to rest"
            raise SettingsError(what, key="LOG", check=check)
        if not gone:
            refuse_unknown(one, known)
            says.append(f"{one} is not paused: there is nothing to resume")
            continue
        kept = [pause for pause in kept if pause not in gone]
        says.append(f"{one} is resumed: the next plan reads on from its position")
    return Changed(tuple(kept), tuple(says))


def merged(
    ours: Sequence[Pause], theirs: Iterable[Pause], topics: Collection[str]
) -> tuple[Pause, ...]:
    """Our pauses, and those of a pipeline whose place we take, of the topics that we take over."""
    there = {(one.topic, one.log) for one in ours}
    return (
        *ours,
        *(one for one in theirs if one.topic in topics and (one.topic, one.log) not in there),
    )


def refuse_unknown(named: Named, known: Collection[BrokerPartition]) -> None:
    """Raises SettingsError where the name covers no log that is known."""
    if not any(named.covers(log) for log in known):
        what = (
            f"there is no partition {named} among the topics of the conf"
            if named.log
            else f"{named} is no topic of the conf"
        )
        raise SettingsError(
            what,
            key="LOG",
            check=f"`etl offsets show CONF`, which shows them all; {FORM_OF_PARTITION}",
        )


def _before(named: Named, pauses: Iterable[Pause]) -> Pause | None:
    found = [one for one in pauses if one.topic == named.topic and one.log in (None, named.log)]
    return max(found, key=lambda one: one.log is not None, default=None)


def _as_whole(named: Named, before: Pause) -> str:
    return f", with {named.topic} as a whole" if named.log and before.log is None else ""
