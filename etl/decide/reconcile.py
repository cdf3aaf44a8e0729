"""Where does the pipeline stand, by ZooKeeper and the table together?

N is the newest plan of the ledger, D the table's transaction version for our application id, B the
D that plan N saw when it was made: plan N was applied exactly if D >= N.

    ledger   table                             state of the pipeline
    ------   -------------------------------   --------------------------------------------------
    none     no table, or no D                 FirstRun
    N        D = B, plan N's own table         Replay: the stored plan is executed or superseded
    N        D = N, offsets at its positions   UpToDate
    N        D = N, offsets as N saw them      UpToDate, offsets still to commit
    N        D = N, an offset is larger        OffsetMoved, or UpToDate from there (`follow`)
    N        D = N, an offset is smaller/gone  OffsetMoved: following would load rows twice
    N        D >= N, an offset may be of a     OffsetMoved: following would skip records
             partition before its reset
    N        D = N, another plan's id          RebuildFromTable: ledger restored from an old copy
    N, none  D > N                             RebuildFromTable: ledger lost, or an old copy
    N, none  the same, commit not in the log   LedgersDisagree
    N        D = B, no table when N was made,  Supersede: the same number for the new table
             and rows of other pipelines only
    N        D < N otherwise, or no table      LedgersDisagree: dropped, cloned, expired, replaced
    N        the same, accepted by operator    UpToDate, Replay, or Supersede without N's rows
    any      another uid or table id           LedgersDisagree, unless inherited from that uid
    any      a topic that another pipeline     LedgersDisagree: its rows would be there twice
             loaded
    any      rows removed, table redefined by  LedgersDisagree, unless accepted, or a DELETE under
             others since our last commit      `on_rows_removed: record`

After LedgersDisagree nothing was read or written; an operator decides which side is right.

Lives here, too: what a run rejects before it plans: retired pipelines, another broker type, topics
of other pipelines, missing topics.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from etl.decide.group_commits import commits_after_append, owned_logs, standing_of_member
from etl.decide.offsets import (
    Ends,
    as_if_stored_in,
    ends_of,
    reject_other_offsets_storage,
    two_stories,
    up_to_date,
    up_to_date_once_rebuilt,
)
from etl.decide.table_changes import (
    BEGIN_ANEW,
    ROWS_DO_NOT_TELL,
    is_accepted,
    is_recorded,
    is_waiting_for_a_table,
    names_in_command,
    reject_changes_by_others,
    reject_topics_of_other_pipelines,
)
from etl.decide.table_rules import by_its_name
from etl.errors import LedgersDisagree, NeedsDecision, SettingsError, TopicMissing
from etl.ledger.plan_document import parse_plan
from etl.model.partitions import BrokerPartition, Committed, OffsetsStorage
from etl.model.plans import Plan
from etl.model.snapshot import (
    FirstRun,
    Ledger,
    PipelineState,
    RebuildFromTable,
    Replay,
    Snapshot,
    Supersede,
    Table,
    UpToDate,
)
from etl.settings.choices import OnOffsetChanged, OnRowsRemoved
from etl.settings.sections import Settings
from etl.settings.source import TopicFilter

_HIVES_NULL = "__HIVE_DEFAULT_PARTITION__"
_A_NAME = re.compile(r"[A-Za-z0-9._-]+")
"""An expression that a person means as a name, though its dots match any character."""
_TOPICS_NAMED = 5
"""How many topics one message names."""


def reject_retired(ledger: Ledger) -> None:
    """Reject a retired pipeline. Raises NeedsDecision."""
    if ledger.retired:
        message = f"This pipeline was retired: {ledger.retired.reason}"
        taker = ledger.retired.taken_over_by
        if taker:
            back = f"`etl pipelines inherit CONF --predecessor {taker} --reason ...`"
        else:
            back = "`etl pipelines resume CONF --reason ...`"
        raise NeedsDecision(message, action=f"Ignore this if it is meant; else {back}")


def reject_shared_topics(
    topics: Collection[str], others: Mapping[str, frozenset[str]], *, has_plans: bool
) -> None:
    """Reject topics of another pipeline of the group: offsets are the group's, and both would move
    them. Raises SettingsError.

    `others`: the group's other pipelines with their topics; `has_plans`: this one may have loaded
    rows already.
    """
    for name, theirs in sorted(others.items()):
        if shared := theirs.intersection(topics):
            message = f"Pipeline {name} of the same group reads this topic too"
            action = f"Check which of the two is to continue: `etl pipelines retire CONF {name} --reason ...` takes the other out of service"
            if not has_plans:
                action += ". Or use another group for this pipeline, which has loaded nothing yet"
            raise SettingsError(message, key="group", topic=min(shared), action=action)


def reject_other_broker_type(plan: Plan | None, settings: Settings) -> None:
    """Reject a conf with another broker type than the pipeline's newest plan, since offsets mean
    something else there. Raises SettingsError.
    """
    if plan is not None and plan.dialect is not settings.source.broker_type:
        message = (
            f"This pipeline has loaded from {plan.dialect.value} brokers, and the conf says {settings.source.broker_type.value}: offsets of "
            "one mean nothing on the other, and rows of both have other keys"
        )
        action = "Check source.broker_type and zookeeper.connect; what other brokers hold takes a group or a pipeline, and a table, of its own"
        raise SettingsError(message, key="source.broker_type", action=action)


def reject_retired_or_shared(snapshot: Snapshot) -> None:
    """Raises NeedsDecision for a retired pipeline, SettingsError for topics that another one of the
    group reads.
    """
    reject_retired(snapshot.ledger)
    topics = {log.topic for log in (*snapshot.extents, *snapshot.leaderless)}
    reject_shared_topics(
        topics, snapshot.other_pipelines, has_plans=snapshot.ledger.newest is not None
    )


def reject_missing_topics(
    settings: Settings,
    topics: Iterable[str],
    of_cluster: Callable[[], Iterable[str]] = tuple,
    *,
    gone: Collection[str] = (),
    read: Collection[str] = (),
) -> None:
    """Reject a conf whose topics do not exist. Raises TopicMissing, with similar topics of the
    cluster.

    `gone`: missing topics of a stored plan, which etl/decide/replacement.py rejects. `read`: topics
    that this pipeline knows. A name with a dot is an expression that must match a topic.
    SettingsError if `exclude_topics` excludes a requested one.
    """
    there = {*topics, *gone}
    chosen = settings.source.topic_filter
    for name in filter(_A_NAME.fullmatch, chosen.topics):
        if not any(re.fullmatch(name, topic) for topic in there):
            if any(re.fullmatch(expression, name) for expression in chosen.exclude_topics):
                _reject_excluded([name])
            like = difflib.get_close_matches(name, sorted(of_cluster()), n=_TOPICS_NAMED)
            if name in read:
                action = (
                    "Check whether it was deleted, since this pipeline has read it: then take it out of "
                    "the list; its rows stay in the table"
                )
            elif like:
                action = f"Check its spelling: the cluster has {', '.join(like)}"
            else:
                action = "Check its spelling, and the cluster the conf points at"
            raise TopicMissing(
                "The topic is not there", topic=name, key="source.topics", action=action
            )
    if not there:
        selected = TopicFilter(chosen.topics)
        excluded = []
        for topic in sorted(of_cluster()):
            if selected.admits(topic) and not chosen.admits(topic):
                excluded.append(topic)
        _reject_excluded(excluded)
        found = sorted(name for name in of_cluster() if not name.startswith("__"))
        more = f" and {len(found) - _TOPICS_NAMED:,} more" if len(found) > _TOPICS_NAMED else ""
        named = f"; the cluster has {', '.join(found[:_TOPICS_NAMED])}{more}" if found else ""
        message = f"No topic matches {list(settings.source.topics)}"
        raise TopicMissing(
            message,
            key="source.topics",
            action=f"Check the expressions: each must match a whole topic name{named}",
        )


def _reject_excluded(excluded: Sequence[str]) -> None:
    """Reject topics that the conf both selects and excludes, if no other topic is left. Raises
    SettingsError for the first.
    """
    if excluded:
        more = f" (and {len(excluded) - 1:,} more)" if excluded[1:] else ""
        message = f"source.topics matches this topic, and source.exclude_topics excludes it{more}"
        action = "Check both lists: exclude_topics wins, and each expression matches a whole name"
        raise SettingsError(message, topic=excluded[0], key="source.exclude_topics", action=action)


def reject_null_partition_value(settings: Settings, topics: Iterable[str]) -> None:
    """Reject a topic name that means null as a Delta partition value. Raises SettingsError."""
    if "topic" in settings.table.partition_by and _HIVES_NULL in set(topics):
        message = "A table partitioned by topic has null for a topic of this name"
        action = "Remove topic from table.partition_by; or add this topic to source.exclude_topics, and its records are not loaded"
        raise SettingsError(message, topic=_HIVES_NULL, key="table.partition_by", action=action)


def where_we_stand(snapshot: Snapshot, settings: Settings) -> PipelineState:
    """Return `reconcile` of a run's snapshot and conf. Raises as it does, with the table's
    location.
    """
    with naming_table(settings):
        reject_topics_of_other_pipelines(state := reconciled(snapshot, settings), snapshot)
        return state


def reconciled(snapshot: Snapshot, settings: Settings) -> PipelineState:
    """Return the same without regard to other pipelines of the table. Raises SettingsError for
    another broker type.
    """
    reject_other_broker_type(plan_in_force(snapshot.ledger, snapshot.table), settings)
    facts = (
        snapshot.ledger,
        snapshot.table,
        snapshot.committed,
        settings.group.on_offset_changed,
        settings.table.on_rows_removed,
    )
    owned, storage, is_after_append = (
        owned_logs(snapshot, settings),
        snapshot.offsets_in,
        commits_after_append(settings),
    )
    return reconcile(
        *facts,
        place=settings.table.place,
        ends=ends_of(snapshot),
        storage=storage,
        owned=owned,
        moves_behind=is_after_append,
    )


@contextmanager
def naming_table(settings: Settings) -> Iterator[None]:
    """Add the table's location and name to errors: both sides are right if the conf points at
    another table than before.
    """
    try:
        yield
    except LedgersDisagree as error:
        error.where.setdefault("path", settings.table.path)
        error.action = by_its_name(error.action, settings.table.name)
        raise


def reconcile(
    ledger: Ledger,
    table: Table | None,
    committed: Mapping[BrokerPartition, Committed],
    on_offset_changed: OnOffsetChanged,
    on_rows_removed: OnRowsRemoved = OnRowsRemoved.FAIL,
    *,
    place: str,
    ends: Ends,
    storage: OffsetsStorage = OffsetsStorage.ZOOKEEPER,
    owned: Collection[BrokerPartition] | None = None,
    moves_behind: bool = False,
) -> PipelineState:
    """Decide where the pipeline stands; the cases are in the module's docstring.

    `place`: where the table is, or would be. No offset is followed beyond its log's end (`ends`).
    `storage`: where offsets are; `owned`, `moves_behind`: see `group_commits`. Raises
    LedgersDisagree or OffsetMoved if an operator must decide, SettingsError for another storage.
    """
    reject_other_ledger(ledger, table)
    reject_changes_by_others(table, ledger.acknowledged, on_rows_removed)
    found = compare(ledger, table, place)
    if owned is not None:
        return standing_of_member(
            found, ledger.newest, committed, owned, ends, storage, moves_behind=moves_behind
        )
    if isinstance(found, UpToDate):
        return up_to_date(as_if_stored_in(storage, found.last), committed, on_offset_changed, ends)
    if isinstance(found, RebuildFromTable):
        return replace(
            found,
            state=up_to_date_once_rebuilt(
                as_if_stored_in(storage, found.plan),
                ledger.newest,
                committed,
                on_offset_changed,
                ends,
            ),
        )
    if not isinstance(found, FirstRun):
        reject_other_offsets_storage(found.plan, storage)
    return found


def compare(ledger: Ledger, table: Table | None, place: str) -> PipelineState:
    """Return the state by ledger and table only: `UpToDate` is at its plan's positions; committed
    offsets and changes by others are not read. Raises LedgersDisagree.
    """
    plan, in_table = ledger.newest, (table.transaction_version or 0) if table else 0
    reject_other_ledger(ledger, table)
    number = plan.number if plan else 0
    if table and (
        in_table > number or (plan and in_table == number and _is_another_plan(plan, table))
    ):
        return _adopt(plan, in_table, table)
    if plan is None:
        return FirstRun()
    if is_accepted(ledger, plan, table, place):
        return _go_on(ledger, plan, table, in_table)
    if table and is_waiting_for_a_table(ledger, table) and table.is_of_others_alone:
        return Supersede(
            plan,
            "the table was made since, without a row of ours, and the plan when there was none",
        )
    _reject_another_table(ledger, plan, table, in_table)
    if in_table == number:
        return UpToDate(plan, plan.positions)
    if in_table == plan.table_transaction_version:
        return Replay(plan)
    action = _which_table(table, plan, is_done=is_recorded(ledger, plan))
    raise LedgersDisagree(
        two_stories(number, in_table), table_version=table.version if table else None, action=action
    )


def plan_in_force(ledger: Ledger, table: Table | None) -> Plan | None:
    """Return the plan that the state will be about: the ledger's newest, or the table's if that one
    is right; None if none is known.
    """
    plan, metadata = ledger.newest, table.metadata if table else None
    newer = table is not None and (table.transaction_version or 0) > (plan.number if plan else 0)
    if (
        table
        and metadata
        and metadata.document
        and (newer or (plan and _is_another_plan(plan, table)))
    ):
        return parse_plan(metadata.document, path=f"commit {metadata.delta_version} of the table")
    return plan


_WHICH_LEDGER = (
    "Check that zookeeper.connect (with its chroot), group and pipeline are those that wrote this table, "
    "and that ZooKeeper was not emptied or restored from an old copy"
)


def _which_table(table: Table | None, plan: Plan, *, is_done: bool = True) -> str:
    """`is_done`: the plan was in a table; else it is looked for in the one that is accepted, or
    another takes its place.
    """
    accept = (
        "Check that table.path is the table that this pipeline wrote, and that it was not dropped, cloned or replaced. If it is "
        f"right as it is, accept it: etl table accept-changes CONF {table.version if table else 'none'} --reason ...; "
    )
    if is_done:
        return f"{accept}what it lacks of the plans until now is then given up, and loading goes on behind them{_from(plan)}"
    if plan.number > 1:
        earlier = f"; what it lacks of the plans before plan {plan.number} is given up"
    else:
        earlier = ""
    if table is None:
        return f"{accept}another plan then takes the place of plan {plan.number}{earlier}"
    looked = f"the rows of plan {plan.number} are then looked for in it: with some of them it counts as done, without any another plan"
    return f"{accept}{looked} takes its place{earlier}"


def _from(plan: Plan) -> str:
    for log, position in sorted(plan.positions.items())[:1]:
        others = f" (and {len(plan.positions) - 1:,} more)" if len(plan.positions) > 1 else ""
        return f", in {log} from offset {position}{others}"
    return ""


def _is_another_plan(plan: Plan, table: Table) -> bool:
    return bool(
        table.metadata
        and table.metadata.number == plan.number
        and table.metadata.plan_id != plan.id
    )


def _adopt(newest: Plan | None, in_table: int, table: Table) -> RebuildFromTable:
    """The table is right."""
    metadata, number = table.metadata, newest.number if newest else 0
    if metadata is None or metadata.document is None:
        message = (
            two_stories(number, in_table)
            + ", and the table's log no longer says what that plan was"
        )
        raise LedgersDisagree(message, table_version=table.version, action=_forgotten(newest))
    plan = parse_plan(metadata.document, path=f"commit {metadata.delta_version} of the table")
    if (plan.number, plan.id, plan.uid) != (
        metadata.number,
        metadata.plan_id,
        metadata.uid,
    ) or plan.table_id not in (None, table.id):
        message = (
            f"Commit {metadata.delta_version} of the table carries a plan that was not made for it"
        )
        raise LedgersDisagree(
            message, table_version=metadata.delta_version, action=_which_table(table, plan)
        )
    return RebuildFromTable(plan, UpToDate(plan, plan.positions))


def _forgotten(newest: Plan | None) -> str:
    """Return what to do if the table's newest plan is unknown. `newest`: the ledger's."""
    behind_the_rows = "continue after the rows in the table: etl ledger restore CONF --reason ..."
    if newest is None:
        behind_the_rows += f"; on Jafka, where {ROWS_DO_NOT_TELL}, {BEGIN_ANEW}"
    elif newest.is_physical:
        behind_the_rows = f"{BEGIN_ANEW}: {ROWS_DO_NOT_TELL}"
    return f"{_WHICH_LEDGER}; restore a newer copy of ZooKeeper, or {behind_the_rows}"


def _go_on(
    ledger: Ledger, plan: Plan, table: Table | None, in_table: int
) -> Replay | Supersede | UpToDate:
    """The state where an operator accepted the table as it is, or that there is none, after `plan`."""
    acknowledgement = ledger.acknowledged
    if in_table == plan.number or is_recorded(ledger, plan):
        return UpToDate(plan, plan.positions)
    if in_table == plan.table_transaction_version and plan.table_id == (
        table.id if table else None
    ):
        return Replay(plan)
    if table is None or (acknowledgement and acknowledgement.lacks_plan):
        if table is None:
            gone = "the table is gone"
        else:
            gone = "the table is another one, without a row of this plan"
        return Supersede(
            plan,
            f"{gone}, and that was accepted: {acknowledgement.reason if acknowledgement else ''}",
        )
    message = f"Nobody knows whether plan {plan.number} is in the table at this path: it has another history"
    action = f"Check which table this is; to accept it, and have its rows looked at: etl table accept-changes CONF {table.version} --reason ..."
    raise LedgersDisagree(message, table_version=table.version, action=action)


def is_of_another_era(ledger: Ledger, table: Table | None) -> bool:
    """True if another ledger of the same name wrote the table, and this one has not inherited it."""
    metadata, plan = table.metadata if table else None, ledger.newest
    if metadata is None or ledger.uid in (None, metadata.uid):
        return False
    taken = plan.took_over if plan else None
    return taken is None or taken.app_id != metadata.app_id or taken.number < metadata.number


def reject_other_ledger(ledger: Ledger, table: Table | None) -> None:
    """Plans of two ledgers have the same numbers and mean other rows: no acknowledgement makes them
    one. Raises LedgersDisagree.
    """
    metadata = table.metadata if table else None
    if metadata and is_of_another_era(ledger, table):
        message = f"The table was written by another pipeline of the same name (its uid is {metadata.uid}, ours {ledger.uid})"
        is_forgotten = metadata.document is None and bool(
            ledger.newest and ledger.newest.is_physical
        )
        if is_forgotten:
            action = f"{_WHICH_LEDGER}, or table.path; else {BEGIN_ANEW}: {ROWS_DO_NOT_TELL}"
        else:
            action = (
                f"{_WHICH_LEDGER}, or table.path; to go on behind the rows that this table holds, and behind what this ledger's plans have "
                f"loaded elsewhere, which is then given up here: etl pipelines inherit CONF --predecessor "
                f"{names_in_command(metadata.app_id)} --reason ..."
            )
        raise LedgersDisagree(message, table_version=metadata.delta_version, action=action)


def _reject_another_table(ledger: Ledger, plan: Plan, table: Table | None, in_table: int) -> None:
    applied = ledger.applied
    action = _which_table(table, plan, is_done=is_recorded(ledger, plan))
    recorded = applied.table_id if applied and applied.number == plan.number else plan.table_id
    if table and recorded and table.id != recorded:
        message = f"The table at this path has id {table.id}, plan {plan.number} went to {recorded}"
        raise LedgersDisagree(message, table_version=table.version, action=action)
    if applied and applied.number == plan.number > in_table:
        message = (
            f"Plan {plan.number} was in the table as version {applied.delta_version}, now "
            + ("the table does not hold it" if table else "there is no table")
        )
        raise LedgersDisagree(
            message, table_version=table.version if table else None, action=action
        )
    if (
        in_table == plan.table_transaction_version
        and (table.id if table else None) != plan.table_id
    ):
        message = f"Plan {plan.number} was made " + (
            "for a table, now there is none"
            if plan.table_id
            else ("when there was no table, now there is one that does not hold it")
        )
        raise LedgersDisagree(
            message, table_version=table.version if table else None, action=action
        )
