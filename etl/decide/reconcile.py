"""Where does the pipeline stand, by ZooKeeper and the table together?

N is the newest plan of the ledger, D the table's transaction version for this pipeline's
application id, and B the value of D when plan N was made. Plan N is in the table exactly if D >= N.

    ledger   table                             state of the pipeline
    ------   -------------------------------   --------------------------------------------------
    none     no table, or no D                 FirstRun
    N        D = B, plan N's own table         Resume: the stored plan is executed or superseded
    N        the same, plan N of a backfill    StoredBackfill: the next plan takes its number
    N        D = N, offsets at its positions   UpToDate
    N        D = N, offsets as N saw them      UpToDate, offsets still to commit
    N        D = N, an offset is larger        OffsetMoved, or UpToDate from there (`follow`)
    N        D = N, an offset is smaller/gone  OffsetMoved: following would load rows twice
    N        D >= N, an offset may be of a     OffsetMoved: following would skip records
             partition before its reset
    N        D = N, another plan's id          RebuildFromTable: ledger restored from an old copy
    N        D = N, id unknown, no result      LedgersDisagree: it may be another plan N
    N, none  D > N                             RebuildFromTable: ledger lost, or an old copy
    N, none  the same, commit not in the log   LedgersDisagree
    N        D = B, no table when N was made,  Supersede: the same number for the new table
             and rows of other pipelines only
    N        D < N otherwise, or no table      LedgersDisagree: dropped, cloned, expired, replaced
    N        the same, accepted by operator    UpToDate, Resume, or Supersede without N's rows
    any      another uid or table id           LedgersDisagree, unless inherited from that uid
    any      a topic that another pipeline     LedgersDisagree: its rows would be there twice
             loaded
    any      rows removed, table redefined by  LedgersDisagree, unless accepted, or a DELETE under
             others since our last commit      `on_rows_removed: record`; after D < N, see
                                               `reject_changed_table`

After LedgersDisagree nothing is read or written; an operator decides which side is right.

Lives here: this table, and the checks before a run plans: retired pipelines, another broker type,
topics of other pipelines, missing topics. Not here: committed offsets (etl/decide/offsets.py),
changes of the table by others (etl/decide/table_changes.py).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from etl.decide.member_offsets import commits_after_append, member_state, owned_partitions
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
from etl.decide.table_rules import with_table_name
from etl.errors import LedgersDisagree, NeedsDecision, SettingsError, TopicMissing
from etl.ledger.plan_document import parse_plan
from etl.model.partitions import (
    Committed,
    OffsetsStorage,
    TopicPartition,
    topics_of,
)
from etl.model.plans import Plan, PlanKind
from etl.model.snapshot import (
    FirstRun,
    Ledger,
    PipelineState,
    RebuildFromTable,
    Resume,
    Snapshot,
    StoredBackfill,
    Supersede,
    Table,
    UpToDate,
)
from etl.settings.choices import OnOffsetChanged, OnRowsRemoved
from etl.settings.sections import Settings

_HIVES_NULL = "__HIVE_DEFAULT_PARTITION__"
_TOPICS_NAMED = 5
"""Number of topics that one message names."""


def reject_retired(ledger: Ledger) -> None:
    """Reject a retired pipeline. Raises NeedsDecision."""
    if ledger.retired:
        message = f"This pipeline was retired: {ledger.retired.reason}"
        heir = ledger.retired.taken_over_by
        if heir:
            command = f"`etl pipelines inherit CONF --predecessor {heir} --reason ...`"
        else:
            command = "`etl pipelines resume CONF --reason ...`"
        action = f"Leave it retired if that is intended. Otherwise run {command}"
        raise NeedsDecision(message, action=action)


def reject_shared_topics(
    topics: Collection[str], others: Mapping[str, frozenset[str]], *, has_plans: bool
) -> None:
    """Reject topics of another pipeline of the group. Raises SettingsError.

    Offsets belong to the group, and both pipelines would commit them. `others`: the group's other
    pipelines with their topics; `has_plans`: this one may have loaded rows already.
    """
    for name, other_topics in sorted(others.items()):
        if shared := other_topics.intersection(topics):
            message = f"Pipeline {name} of the same group reads this topic too"
            action = (
                "Decide which of the two continues. If this one replaces the other in its table, "
                f"stop it, and run `etl pipelines inherit CONF --predecessor {name} --reason ...`. "
                f"With another table, `etl pipelines retire CONF {name} --reason ...` takes the "
                "other out of service"
            )
            if not has_plans:
                action += (
                    ". Or set another group.id for this pipeline, which has loaded nothing yet"
                )
            raise SettingsError(message, key="group.id", topic=min(shared), action=action)


def reject_other_broker_type(plan: Plan | None, settings: Settings) -> None:
    """Reject a conf with another broker type than the pipeline's newest plan.

    Offsets of the two types have different meanings, so it is called before brokers are queried.
    Raises SettingsError.
    """
    broker_type = settings.source.broker_type
    if plan is not None and plan.cluster.family is not broker_type:
        message = (
            f"This pipeline has loaded from {plan.cluster.family.value} brokers, "
            f"but source.broker_type is {broker_type.value}: offsets of one mean nothing on the "
            "other, and rows of both have different keys"
        )
        action = (
            "Check source.broker_type and zookeeper.connect. "
            "To load from brokers of another type, use another group or pipeline, and another table"
        )
        raise SettingsError(message, key="source.broker_type", action=action)


def reject_retired_or_shared(snapshot: Snapshot) -> None:
    """Reject a retired pipeline, and topics that another pipeline of the group reads.

    Raises NeedsDecision, SettingsError.
    """
    reject_retired(snapshot.ledger)
    topics = topics_of((*snapshot.readable, *snapshot.leaderless))
    reject_shared_topics(
        topics, snapshot.group.other_pipelines, has_plans=snapshot.ledger.newest is not None
    )


def reject_missing_topics(
    settings: Settings,
    topics: Iterable[str],
    of_cluster: Callable[[], Iterable[str]] = tuple,
    *,
    gone: Collection[str] = (),
    read: Collection[str] = (),
) -> None:
    """Reject a conf that names missing topics, or selects no topic at all.

    Raises TopicMissing, with similar topics of the cluster; SettingsError if `exclude_topics`
    excludes a requested topic. `gone`: missing topics of a stored plan, which
    etl/decide/plan_replacement.py rejects. `read`: topics that this pipeline has read. A name with
    a dot is an expression that must match a topic.
    """
    existing = {*topics, *gone}
    chosen = settings.source.topic_filter
    for name in chosen.names:
        if name in existing or any(re.fullmatch(name, topic) for topic in existing):
            continue
        if chosen.excludes(name):
            _reject_excluded([name])
        similar = difflib.get_close_matches(name, sorted(of_cluster()), n=_TOPICS_NAMED)
        if name in read:
            action = (
                "Check whether it was deleted, since this pipeline has read it. "
                "If so, take it out of the list: its rows stay in the table"
            )
        elif similar:
            action = f"Check its spelling: the cluster has {', '.join(similar)}"
        else:
            action = "Check its spelling, and that the conf points at the right cluster"
        raise TopicMissing("The topic is not there", topic=name, key="source.topics", action=action)
    if not existing:
        _reject_nothing_selected(settings, of_cluster)


def _reject_nothing_selected(settings: Settings, of_cluster: Callable[[], Iterable[str]]) -> None:
    """Raise the error for a conf that selects no topic of the cluster."""
    chosen = settings.source.topic_filter
    excluded = []
    for topic in sorted(of_cluster()):
        if chosen.selects(topic) and chosen.excludes(topic):
            excluded.append(topic)
    _reject_excluded(excluded)
    found = [name for name in sorted(of_cluster()) if not name.startswith("__")]
    action = "Check the expressions: each must match a whole topic name"
    if found:
        action += f". The cluster has {', '.join(found[:_TOPICS_NAMED])}"
        if len(found) > _TOPICS_NAMED:
            action += f" and {len(found) - _TOPICS_NAMED:,} more"
    message = f"No topic matches {list(settings.source.topics)}"
    raise TopicMissing(message, key="source.topics", action=action)


def _reject_excluded(excluded: Sequence[str]) -> None:
    """Reject topics that `source.topics` matches and `source.exclude_topics` excludes.

    They are topics that the conf names, or all that its expressions match. Raises SettingsError for
    the first; does nothing without any.
    """
    if excluded:
        message = "source.topics matches this topic, and source.exclude_topics excludes it"
        if len(excluded) > 1:
            message += f" (and {len(excluded) - 1:,} more)"
        action = "Check both lists: exclude_topics wins, and each expression matches a whole name"
        raise SettingsError(message, topic=excluded[0], key="source.exclude_topics", action=action)


def reject_null_partition_value(settings: Settings, topics: Iterable[str]) -> None:
    """Reject a topic name that means null as a Delta partition value. Raises SettingsError."""
    if "topic" in settings.table.partition_by and _HIVES_NULL in set(topics):
        message = "A table partitioned by topic has null for a topic of this name"
        action = (
            "Remove topic from table.partition_by. "
            "Or add this topic to source.exclude_topics: its records are then not loaded"
        )
        raise SettingsError(message, topic=_HIVES_NULL, key="table.partition_by", action=action)


def where_we_stand(snapshot: Snapshot, settings: Settings) -> PipelineState:
    """Return `reconcile` of a run's snapshot and conf.

    Raises as it does, and LedgersDisagree for topics that other pipelines of the table loaded. Both
    with the table's location.
    """
    with naming_table(settings):
        state = reconciled(snapshot, settings)
        reject_topics_of_other_pipelines(state, snapshot, settings)
        return state


def reconciled(snapshot: Snapshot, settings: Settings) -> PipelineState:
    """Return the state without regard to other pipelines of the table.

    Raises SettingsError for another broker type, and as `reconcile` does.
    """
    reject_other_broker_type(plan_in_force(snapshot.ledger, snapshot.table), settings)
    return reconcile(
        snapshot.ledger,
        snapshot.table,
        snapshot.committed,
        settings.group.on_offset_changed,
        settings.table.on_rows_removed,
        place=settings.table.place,
        ends=ends_of(snapshot),
        storage=snapshot.group.storage,
        owned=owned_partitions(snapshot, settings),
        moves_behind=commits_after_append(settings),
    )


@contextmanager
def naming_table(settings: Settings) -> Iterator[None]:
    """Add the table's location and name to errors.

    Ledger and table are both right if the conf points at another table than before.
    """
    try:
        yield
    except LedgersDisagree as error:
        error.where.setdefault("path", settings.table.path)
        error.action = with_table_name(error.action, settings.table.name)
        raise


def reconcile(
    ledger: Ledger,
    table: Table | None,
    committed: Mapping[TopicPartition, Committed],
    on_offset_changed: OnOffsetChanged,
    on_rows_removed: OnRowsRemoved = OnRowsRemoved.FAIL,
    *,
    place: str,
    ends: Ends,
    storage: OffsetsStorage = OffsetsStorage.ZOOKEEPER,
    owned: Collection[TopicPartition] | None = None,
    moves_behind: bool = False,
) -> PipelineState:
    """Decide the state of the pipeline; the cases are in the module's docstring.

    `place`: the table's location, also before it exists. `ends`: no offset is followed above them.
    `storage`: the places of committed offsets; `owned`, `moves_behind`: see `member_offsets`.
    Raises LedgersDisagree or OffsetMoved if an operator must decide, SettingsError for another
    storage.
    """
    reject_other_ledger(ledger, table)
    reject_changed_table(ledger, table, on_rows_removed, place=place)
    found = compare(ledger, table, place)
    stored = None
    if isinstance(found, StoredBackfill):
        # It moves no position: the offsets are compared as if it were in the table.
        stored = found.plan
        found = found.state
    if owned is not None:
        found = member_state(
            found, ledger.newest, committed, owned, ends, storage, moves_behind=moves_behind
        )
    elif isinstance(found, UpToDate):
        found = up_to_date(found.last, committed, on_offset_changed, ends, storage=storage)
    if stored and isinstance(found, UpToDate):
        return StoredBackfill(stored, found)
    if owned is not None or isinstance(found, UpToDate):
        return found
    if isinstance(found, RebuildFromTable):
        plan = as_if_stored_in(storage, found.plan)
        state = up_to_date_once_rebuilt(plan, ledger.newest, committed, on_offset_changed, ends)
        return replace(found, state=state)
    if not isinstance(found, FirstRun):
        reject_other_offsets_storage(found.plan, storage)
    return found


def reject_changed_table(
    ledger: Ledger, table: Table | None, on_rows_removed: OnRowsRemoved, *, place: str
) -> None:
    """Reject a table without a plan that was in the pipeline's table; then changes by others.

    In an earlier table, or an older copy, such changes may have been accepted long ago. Their error
    would advise to accept them again, which gives up the rows that the table lacks. Raises
    LedgersDisagree.
    """
    if table and _transaction_version(table) < _last_known_in_table(ledger):
        compare(ledger, table, place)
    reject_changes_by_others(table, ledger.acknowledged, on_rows_removed)


def _last_known_in_table(ledger: Ledger) -> int:
    """Return the number of the last plan that has been in the pipeline's table; 0 if none has.

    A plan without a recorded result names the plan before it.
    """
    plan = ledger.newest
    if plan is None:
        return 0
    if is_recorded(ledger, plan):
        return plan.number
    return plan.table.transaction_version or 0


def compare(ledger: Ledger, table: Table | None, place: str) -> PipelineState:
    """Return the state by ledger and table only: `UpToDate` is at its plan's loaded-until offsets.

    Committed offsets and changes by others are not read. Raises LedgersDisagree.
    """
    state = _compare(ledger, table, place)
    if isinstance(state, (Resume, Supersede)) and state.plan.kind is PlanKind.BACKFILL:
        return StoredBackfill(state.plan, UpToDate(state.plan, state.plan.loaded_until))
    return state


def _compare(ledger: Ledger, table: Table | None, place: str) -> PipelineState:
    plan = ledger.newest
    in_table = _transaction_version(table)
    reject_other_ledger(ledger, table)
    number = 0
    if plan:
        number = plan.number
    if table and _is_ahead(plan, table):
        return _restore_from(plan, in_table, table)
    if plan is None:
        return FirstRun()
    if is_accepted(ledger, plan, table, place):
        # Rows of Jafka do not show where to continue: there the operator's decision counts.
        if not plan.is_physical:
            _reject_unidentified(ledger, plan, table)
        return _state_once_accepted(ledger, plan, table, in_table)
    # Two pipelines may create one table at the same time. The table's log shows that all its rows
    # are of another one: a copy of this pipeline's table has its rows and none of its commits.
    if table and is_waiting_for_a_table(ledger, table) and table.is_of_others_alone:
        reason = (
            "there was no table when the plan was made, and the table made since has no rows "
            "of this pipeline"
        )
        return Supersede(plan, reason)
    _reject_another_table(ledger, plan, table, in_table)
    _reject_unidentified(ledger, plan, table)
    if in_table == number:
        return UpToDate(plan, plan.loaded_until)
    # Not number - 1: the two differ after an operator accepted a table without these commits.
    if in_table == plan.table.transaction_version:
        return Resume(plan)
    message = two_stories(number, in_table)
    if table is None:
        message = f"There is no table at this path, and ZooKeeper knows plan {number} as the newest"
    action = _accept_table_of(ledger, plan, table, in_table)
    raise LedgersDisagree(message, table_version=_version(table), action=action)


def plan_in_force(ledger: Ledger, table: Table | None) -> Plan | None:
    """Return the plan that the state is about: the ledger's newest, or the table's if it is right.

    None if none is known.
    """
    plan = ledger.newest
    if table is None or table.metadata is None:
        return plan
    metadata = table.metadata
    if not metadata.document:
        return plan
    is_another = plan is not None and _is_another_plan(plan, table)
    if not is_another and not _is_ahead(plan, table):
        return plan
    return parse_plan(metadata.document, path=f"commit {metadata.delta_version} of the table")


def _is_ahead(plan: Plan | None, table: Table) -> bool:
    """True if the table has a later plan than the ledger, or another one of the same number."""
    in_table = _transaction_version(table)
    if plan is None:
        return in_table > 0
    if in_table == plan.number:
        return _is_another_plan(plan, table)
    return in_table > plan.number


def _transaction_version(table: Table | None) -> int:
    if table is None:
        return 0
    return table.transaction_version or 0


def _version(table: Table | None) -> int | None:
    if table is None:
        return None
    return table.version


def _id(table: Table | None) -> str | None:
    if table is None:
        return None
    return table.id


_CHECK_LEDGER = (
    "Check that zookeeper.connect (with its chroot), group and pipeline are those that wrote this "
    "table, and that ZooKeeper was not emptied or restored from an old copy"
)


def _accept_table_of(ledger: Ledger, plan: Plan, table: Table | None, in_table: int) -> str:
    """Return what to do if the table may be another one than that of the ledger's newest plan."""
    missing_rows = None
    if ledger.applied and is_recorded(ledger, plan) and in_table < plan.number:
        missing_rows = ledger.applied.rows
    return _accept_table(table, plan, is_done=is_recorded(ledger, plan), missing_rows=missing_rows)


def _accept_table(
    table: Table | None, plan: Plan, *, is_done: bool = True, missing_rows: int | None = None
) -> str:
    """Return what to do if the table may be another one than the plan's.

    `is_done`: the plan was in a table. Otherwise its rows are searched in the accepted table, or
    another plan replaces it. `missing_rows`: rows of the plan, if the table does not name it;
    None: unknown.
    """
    version = "none"
    if table:
        version = str(table.version)
    accept = (
        "Check that table.path is the table that this pipeline wrote, and that it was not dropped, "
        "cloned or replaced. If it is right as it is, accept it: "
        f"etl table accept-changes CONF {version} --reason ..."
    )
    if is_done:
        at_most = ""
        if missing_rows:
            at_most = f" (at most {missing_rows:,})"
        return (
            f"{accept}; rows that it lacks of plan {plan.number}{at_most} and of the plans before "
            f"are then given up, and loading continues after them{_first_position(plan)}. "
            f"{LOAD_GIVEN_UP}"
        )
    earlier = ""
    if plan.number > 1:
        earlier = f". What it lacks of the plans before plan {plan.number} is given up"
    if table is None:
        return f"{accept}; another plan then replaces plan {plan.number}{earlier}"
    return (
        f"{accept}; the rows of plan {plan.number} are then searched in it: if it has some of "
        f"them, the plan counts as done; if it has none, another plan replaces it{earlier}"
    )


LOAD_GIVEN_UP = (
    "To load what is given up, as far as the brokers still have it, run after that `etl backfills "
    "run CONF NAME -p TOPIC:PARTITION --from OFFSET --until OFFSET --only-unloaded`"
)
"""The advice to load what an accepted table lacks."""


def _first_position(plan: Plan) -> str:
    """Return the loaded-until offset of the first partition, for a message."""
    if not plan.loaded_until:
        return ""
    partition = min(plan.loaded_until)
    text = f", in {partition} from offset {plan.loaded_until[partition]}"
    if len(plan.loaded_until) > 1:
        text += f" (and {len(plan.loaded_until) - 1:,} more)"
    return text


def _is_another_plan(plan: Plan, table: Table) -> bool:
    return bool(
        table.metadata
        and table.metadata.number == plan.number
        and table.metadata.plan_id != plan.id
    )


def _restore_from(newest: Plan | None, in_table: int, table: Table) -> RebuildFromTable:
    """Return the state if the table is ahead of the ledger: the table is right.

    Raises LedgersDisagree if the table's plan is unknown, or was not made for this table.
    """
    metadata = table.metadata
    number = 0
    if newest:
        number = newest.number
    if metadata is None or metadata.document is None:
        message = f"{two_stories(number, in_table)}, and the table's log no longer has that plan"
        action = _without_document(newest)
        raise LedgersDisagree(message, table_version=table.version, action=action)
    plan = parse_plan(metadata.document, path=f"commit {metadata.delta_version} of the table")
    identity = (plan.number, plan.id, plan.origin.pipeline_id)
    is_of_commit = identity == (metadata.number, metadata.plan_id, metadata.uid)
    if not is_of_commit or plan.table.id not in (None, table.id):
        version = metadata.delta_version
        message = f"Commit {version} of the table carries a plan that was not made for it"
        action = _accept_table(table, plan)
        raise LedgersDisagree(message, table_version=version, action=action)
    return RebuildFromTable(plan, UpToDate(plan, plan.loaded_until))


def is_unidentified(ledger: Ledger, table: Table | None) -> bool:
    """True if nothing shows that the table's plan of the newest number is the ledger's.

    The plan has no result, and the table's log no longer has the commit with the plan's id: a
    ledger that was restored from an old copy may have another plan of this number.
    """
    if table is None or table.metadata is not None or ledger.newest is None:
        return False
    plan = ledger.newest
    return table.transaction_version == plan.number and not is_recorded(ledger, plan)


def _reject_unidentified(ledger: Ledger, plan: Plan, table: Table | None) -> None:
    """Reject a plan that may be another one than the table's. Raises LedgersDisagree."""
    if table is None or not is_unidentified(ledger, table):
        return
    message = (
        f"The table has a plan {plan.number}. Whether it is the plan {plan.number} of ZooKeeper, "
        "which has no result, is unknown: the table's log no longer has the commit"
    )
    action = _without_document(plan)
    if plan.is_physical:
        action = (
            f"{_CHECK_LEDGER}. If it was restored, {BEGIN_ANEW}: {ROWS_DO_NOT_TELL}. If it was "
            f"not, accept the table: etl table accept-changes CONF {table.version} --reason ...; "
            f"plan {plan.number} then counts as done"
        )
    raise LedgersDisagree(message, table_version=table.version, action=action)


def _without_document(newest: Plan | None) -> str:
    """Return what to do if the table's newest plan is unknown. `newest`: the ledger's."""
    after_rows = "continue after the rows in the table: etl ledger restore CONF --reason ..."
    if newest is None:
        after_rows += f"; on Jafka, where {ROWS_DO_NOT_TELL}, {BEGIN_ANEW}"
    elif newest.is_physical:
        after_rows = f"{BEGIN_ANEW}: {ROWS_DO_NOT_TELL}"
    return f"{_CHECK_LEDGER}. Restore a newer copy of ZooKeeper, or {after_rows}"


def _state_once_accepted(
    ledger: Ledger, plan: Plan, table: Table | None, in_table: int
) -> Resume | Supersede | UpToDate:
    """Return the state after an operator accepted the table as it is, or that there is none.

    Raises LedgersDisagree if it is unknown whether the table has the rows of `plan`.
    """
    acknowledgement = ledger.acknowledged
    if in_table == plan.number or is_recorded(ledger, plan):
        return UpToDate(plan, plan.loaded_until)
    if in_table == plan.table.transaction_version and plan.table.id == _id(table):
        return Resume(plan)
    if table is None or (acknowledgement and acknowledgement.lacks_plan):
        if table is None:
            gone = "the table is gone"
        else:
            gone = "the table is another one, without a row of this plan"
        reason = ""
        if acknowledgement:
            reason = acknowledgement.reason
        return Supersede(plan, f"{gone}, and that was accepted: {reason}")
    message = (
        f"It is unknown whether plan {plan.number} is in the table at this path: "
        "the table has another history"
    )
    action = (
        "Check which table this is. To accept it and search it for the rows of the plan: "
        f"etl table accept-changes CONF {table.version} --reason ..."
    )
    raise LedgersDisagree(message, table_version=table.version, action=action)


def is_of_another_era(ledger: Ledger, table: Table | None) -> bool:
    """True if another ledger of the same name wrote the table and this one did not inherit it."""
    if table is None or table.metadata is None:
        return False
    metadata = table.metadata
    if ledger.uid in (None, metadata.uid):
        return False
    inherited = None
    if ledger.newest:
        inherited = ledger.newest.inherits
    if inherited is None:
        return True
    return inherited.app_id != metadata.app_id or inherited.number < metadata.number


def reject_other_ledger(ledger: Ledger, table: Table | None) -> None:
    """Reject a table of another ledger of the same name. Raises LedgersDisagree.

    Plans of two ledgers have the same numbers and different rows: no operator decision merges them.
    """
    if table is None or table.metadata is None or not is_of_another_era(ledger, table):
        return
    metadata = table.metadata
    message = (
        "The table was written by another pipeline of the same name "
        f"(its uid is {metadata.uid}, ours {ledger.uid})"
    )
    is_physical = ledger.newest is not None and ledger.newest.is_physical
    if metadata.document is None and is_physical:
        action = f"{_CHECK_LEDGER}. Check table.path. Otherwise {BEGIN_ANEW}: {ROWS_DO_NOT_TELL}"
    else:
        action = (
            f"{_CHECK_LEDGER}. Check table.path. To continue after the rows of this table, and "
            "after what this ledger's plans have loaded elsewhere, which is then given up here: "
            f"etl pipelines inherit CONF --predecessor {names_in_command(metadata.app_id)} "
            "--reason ..."
        )
    raise LedgersDisagree(message, table_version=metadata.delta_version, action=action)


def _reject_another_table(ledger: Ledger, plan: Plan, table: Table | None, in_table: int) -> None:
    """Reject a table that is not the plan's. Raises LedgersDisagree."""
    version = _version(table)
    action = _accept_table_of(ledger, plan, table, in_table)
    result = ledger.applied
    if result and result.number != plan.number:
        result = None
    recorded_id = plan.table.id
    if result:
        recorded_id = result.table_id
    if table and recorded_id and table.id != recorded_id:
        message = (
            f"The table at this path has id {table.id}, plan {plan.number} went to {recorded_id}"
        )
        raise LedgersDisagree(message, table_version=version, action=action)
    if result and plan.number > in_table:
        present = "there is no table"
        if table:
            present = "the table does not hold it"
        message = (
            f"Plan {plan.number} was in the table as version {result.delta_version}, now {present}"
        )
        raise LedgersDisagree(message, table_version=version, action=action)
    if in_table == plan.table.transaction_version and _id(table) != plan.table.id:
        if plan.table.id:
            message = f"Plan {plan.number} was made for a table, now there is none"
        else:
            message = (
                f"Plan {plan.number} was made when there was no table, "
                "now there is one that does not hold it"
            )
        raise LedgersDisagree(message, table_version=version, action=action)
