"""Which plan does the table contain, and what did other pipelines load?

Lives here: the state of the table for a run, the result of an append, the commits of other
pipelines. Not here: the parsing of commit files (etl/io/delta/log.py).

The result of an append is decided by reading the table again: Spark silently skips a used
transaction version, and an exception can come after the commit. delta-rs reads, without a JVM.

Other pipelines are read from commit files as far as the log reaches. Before that only a checkpoint
has them: the version of each application id (Delta protocol, "Checkpoints"), but no metadata, so a
pipeline may be known and its plan not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from etl.decide.table_changes import APP_ID_PREFIX, IsOurs
from etl.errors import LedgersDisagree, TableAppeared, TableUnreachable
from etl.io.delta.log import (
    Commit,
    Shape,
    adds_rows,
    hash_of_commit,
    judge,
    open_log,
    parse_commit,
    plan_of,
    read_commit_file,
    walk_back,
)
from etl.io.delta.stores import options_of, public_cause, unreachable
from etl.io.delta.table_shape import (
    id_of,
    open_table,
    reject_expiring_transaction_ids,
    rust_path,
    shape_of,
)
from etl.ledger.plan_document import parse_commit_metadata
from etl.model.partitions import TopicPartition
from etl.model.plans import Plan, Predecessor
from etl.model.snapshot import (
    Acknowledgement,
    CommitMetadata,
    ForeignCommit,
    OtherPipeline,
    Table,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable


_CHECKPOINT = re.compile(
    r"(?P<version>\d{20})\.checkpoint"
    r"(\.\d{10}\.(?P<parts>\d{10})|\.[0-9a-fA-F-]{36})?"
    r"\.(?P<kind>parquet|json)"
)


def none_of_ours(topic: str) -> bool:
    """Return False: for callers that do not check what other pipelines loaded."""
    return False


def other_pipelines(path: str, app_id: str) -> tuple[OtherPipeline, ...]:
    """Return each other pipeline with a commit in the table, by its newest commit.

    A pipeline under another name has an empty ledger: only the table shows that topics which the
    ledger does not know are loaded already. Raises TableUnreachable.
    """
    table = open_table(path)
    if table is None:
        return ()
    files = open_log(rust_path(path))
    try:
        transactions = _transactions(files, table.version())
    except OSError as error:
        raise unreachable(error, path, "read") from public_cause(error, path)
    wanted = {}
    for other, number in transactions.items():
        if other.startswith(APP_ID_PREFIX) and other != app_id:
            wanted[other] = number
    if not wanted:
        return ()
    found: dict[str, OtherPipeline] = {}
    for commit in walk_back(files, table.version()):
        for other in commit.transactions.keys() & (wanted.keys() - found.keys()):
            plan = plan_of(commit.user_metadata, commit.version)
            found[other] = OtherPipeline(other, wanted[other], commit.version, plan)
        if len(found) == len(wanted):
            break
    others = []
    for other, number in sorted(wanted.items()):
        others.append(found.get(other) or OtherPipeline(other, number))
    return tuple(others)


def with_others(
    table: Table, path: str, app_id: str, topics: Collection[str], *, is_awaited: bool = False
) -> Table:
    """Return the table with its other pipelines.

    If the plan of one is unknown: also with those of `topics` that the table has rows of.
    `is_awaited`: also with the answer of `is_of_others_alone`.
    """
    others = other_pipelines(path, app_id)
    held = set()
    if any(other.plan is None for other in others):
        for topic in topics:
            if holds_rows_of(path, topic):
                held.add(topic)
    is_theirs = is_awaited and is_of_others_alone(path, app_id)
    return replace(
        table, others=others, topics_with_rows=frozenset(held), is_of_others_alone=is_theirs
    )


def is_of_others_alone(path: str, app_id: str) -> bool:
    """Return True if each commit that ever added a row is another pipeline's.

    False if the log no longer reaches its first commit. The log decides, not the rows: a copy of
    this pipeline's table has all of its rows and none of its commits.
    """
    table = open_table(path)
    if table is None:
        return False
    files = open_log(rust_path(path))
    for version in range(table.version(), -1, -1):
        content = read_commit_file(files, version)
        if content is None:
            return False
        transactions = parse_commit(version, content).transactions
        is_of_pipeline = False
        for name in transactions:
            if not name.startswith(APP_ID_PREFIX):
                continue
            if name == app_id:
                return False
            is_of_pipeline = True
        if not is_of_pipeline and adds_rows(content):
            return False
    return True


def loaded_by(path: str, app_id: str) -> dict[TopicPartition, list[tuple[int, int, int]]]:
    """Return the offsets that the plans of one pipeline loaded, as far as the log reaches.

    Each is (incarnation, from offset, until offset).
    """
    found: dict[TopicPartition, list[tuple[int, int, int]]] = {}
    table = open_table(path)
    if table is None:
        return found
    for commit in walk_back(open_log(rust_path(path)), table.version()):
        plan = None
        if app_id in commit.transactions:
            plan = plan_of(commit.user_metadata, commit.version)
        if plan is None:
            continue
        for r in plan.ranges:
            loaded = (plan.incarnations.get(r.partition, 0), r.from_offset, r.until_offset)
            found.setdefault(r.partition, []).append(loaded)
    return found


def loads_of_others(
    files: fs.FileSystem,
    version: int,
    app_id: str,
    is_ours: IsOurs,
    *,
    plan: Plan | None,
    since: Sequence[Commit],
    made_at: int | None,
    newest: Mapping[str, int | None],
) -> tuple[ForeignCommit, ...]:
    """Return the commits by which another pipeline loaded this pipeline's topics, or inherited it.

    Delta lets appends of two application ids pass each other, so nothing else finds them. The
    commits checked are `since`; instead, those above version `made_at`, if given; and for an
    inheriting plan all commits after the last one that it inherited, and those of other pipelines
    of `newest` (version of each) after they were inherited. Inheriting from a predecessor counts.
    """
    taken = plan.predecessor_numbers if plan else {}
    if plan and plan.inherits:
        since = _commits_after_inherited(files, version, plan.inherits, taken, newest)
    elif made_at is not None:
        since = list(_down_to(files, version, made_at))[::-1]
    loads: list[ForeignCommit] = []
    for commit in since:
        loads += _load(commit, app_id, taken, is_ours)
    return tuple(loads)


def _down_to(files: fs.FileSystem, newest: int, version: int) -> Iterator[Commit]:
    for commit in walk_back(files, newest):
        if commit.version <= version:
            return
        yield commit


def _commits_after_inherited(
    files: fs.FileSystem,
    version: int,
    inherits: Predecessor,
    taken: Mapping[str, int],
    newest: Mapping[str, int | None],
) -> list[Commit]:
    """Return the commits after the last inherited one, oldest first.

    With them: earlier commits of inherited pipelines that continued after they were inherited.
    """
    continued = {inherits.app_id}
    for predecessor, number in taken.items():
        if (newest.get(predecessor) or 0) > number:
            continued.add(predecessor)
    later = []
    for commit in walk_back(files, version):
        for name, number in commit.transactions.items():
            if number <= taken.get(name, -1):
                continued.discard(name)
        if not continued:
            break
        if inherits.app_id in continued or continued & commit.transactions.keys():
            later.append(commit)
    return later[::-1]


def _load(
    commit: Commit, app_id: str, taken: Mapping[str, int], is_ours: IsOurs
) -> Iterator[ForeignCommit]:
    for other, number in sorted(commit.transactions.items()):
        if not other.startswith(APP_ID_PREFIX) or other == app_id:
            continue
        if number <= taken.get(other, -1):
            continue
        plan = plan_of(commit.user_metadata, commit.version)
        if plan is None:
            continue
        inherits_from_us = bool(
            plan.inherits and {app_id, *taken} & plan.predecessor_numbers.keys()
        )
        topics = sorted(filter(is_ours, _loaded_topics(plan, inherits_from_us)))
        if not topics:
            continue
        verb = "took over" if inherits_from_us else "loaded"
        why = f"{verb} topic {topics[0]}"
        if len(topics) > 1:
            why += f" and {len(topics) - 1:,} more of ours"
        yield ForeignCommit(commit.version, commit.operation, why, Predecessor(other, number))


def _loaded_topics(plan: Plan, inherits_from_us: bool) -> frozenset[str]:
    """Return the topics that a plan loads.

    These are the topics of its ranges, as its offsets of other topics may be old. A plan that
    inherits this pipeline loads all its topics.
    """
    if inherits_from_us:
        return plan.known_topics
    return frozenset(r.partition.topic for r in plan.ranges)


def holds_rows_of(path: str, topic: str) -> bool:
    """Return True if the table has, or may have, a row of this topic."""
    from deltalake.exceptions import DeltaError
    from pyarrow import ArrowException, dataset

    table = open_table(path)
    if table is None:
        return False
    is_of_topic = dataset.field("topic") == topic
    try:
        rows = table.to_pyarrow_dataset().head(1, columns=["topic"], filter=is_of_topic)
        return bool(rows.num_rows)
    except (DeltaError, ArrowException, OSError, KeyError):
        return True  # this reader lacks a feature of the table, or there is no such column


def _transactions(files: fs.FileSystem, newest: int) -> dict[str, int]:
    """Return the newest version of every application id."""
    checkpoint, names = _newest_checkpoint(files, newest)
    found: dict[str, int] = {}
    for version in range(newest, checkpoint, -1):
        content = read_commit_file(files, version)
        if content is None:
            break
        for app_id, number in parse_commit(version, content).transactions.items():
            found.setdefault(app_id, number)
    for name in names:
        for action in _txn_actions(files, name):
            found.setdefault(str(action["appId"]), int(action["version"]))
    return found


def _newest_checkpoint(files: fs.FileSystem, newest: int) -> tuple[int, list[str]]:
    """Return version and files of the newest complete checkpoint; -1 if there is none."""
    by_version: dict[tuple[int, int], list[str]] = {}
    for info in files.get_file_info(fs.FileSelector("_delta_log", recursive=False)):
        found = _CHECKPOINT.fullmatch(info.base_name)
        if found and int(found["version"]) <= newest:
            key = int(found["version"]), int(found["parts"] or 1)
            by_version.setdefault(key, []).append(info.path)
    complete = []
    for (version, parts), names in by_version.items():
        if len(names) >= parts:
            complete.append((version, names))
    return max(complete, default=(-1, []))


def _txn_actions(files: fs.FileSystem, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the `txn` actions of one file of a checkpoint.

    In checkpoints of version 2 the sidecars contain only file actions, so these are all.
    """
    if name.endswith(".json"):
        with files.open_input_stream(name) as stream:
            for line in bytes(stream.read()).splitlines():
                action = json.loads(line) if line.strip() else {}
                if "txn" in action:
                    yield action["txn"]
        return
    from pyarrow import parquet

    with parquet.ParquetFile(name, filesystem=files) as file:
        if "txn" not in file.schema_arrow.names:
            return
        actions = file.read(columns=["txn.appId", "txn.version"]).column("txn")
        for row in actions.drop_null().to_pylist():
            if row["appId"] is not None:
                yield row


def read_table(
    path: str,
    app_id: str,
    *,
    known: int | None,
    is_ours: IsOurs = none_of_ours,
    plan: Plan | None = None,
    acknowledgement: Acknowledgement | None = None,
) -> Table | None:
    """Return the state of the table; None without a table.

    `known`: Delta version of this pipeline's last recorded commit. `foreign` covers each commit
    after it, also before a newer one of this pipeline; without it, those after its newest. Expired
    commit files are skipped.
    `is_ours`: topics that no other pipeline should load.
    `plan`: this pipeline's newest known plan. What its predecessors loaded is not foreign. Without
    a known commit, loads of other pipelines are searched from the table version of the plan.
    `acknowledgement`: the commit that it names is read, too.

    Raises NotOurTable, TableUnreachable, PermissionDenied.
    """
    table = open_table(path)
    if table is None:
        return None
    found = _state_of(table, path, app_id, known, is_ours, plan)
    if acknowledgement is None or acknowledgement.delta_version is None:
        return found
    digest = hash_of_commit(open_log(rust_path(path)), acknowledgement.delta_version)
    return replace(found, commit_in_log=digest)


def _state_of(
    table: DeltaTable,
    path: str,
    app_id: str,
    known: int | None,
    is_ours: IsOurs,
    plan: Plan | None,
) -> Table:
    reject_expiring_transaction_ids(table, path)
    table_id, version = id_of(table), table.version()
    in_table = table.transaction_version(app_id)
    files = open_log(rust_path(path))
    if in_table is None:
        read_commit_file(files, version)  # raises if it is empty: our first commit may be lost
    if in_table is None and plan is None:
        return Table(table_id, version, None)
    if known is not None and known > version:
        known = None

    metadata = None
    since: list[Commit] = []
    if in_table is not None:
        metadata, since = find_commit(files, version, app_id, in_table, known)
    # RESTORE, DELETE and an overwrite keep the transaction version: only the commits since ours
    # show that rows are gone. The table is read before and after an append.
    inherited = plan.predecessor_numbers if plan else {}
    foreign = _foreign(since, app_id, path, is_ours, inherited)

    # A first plan has no recorded commit to start from: of two pipelines that begin together only
    # the earlier one would see the other. So the search starts at the table version of the plan.
    made_at = None
    if plan and known is None and plan.table.id == table_id:
        made_at = plan.table.version
    newest: dict[str, int | None] = {}
    if plan and plan.inherits:
        newest = {other: table.transaction_version(other) for other in plan.predecessor_numbers}
    loads = loads_of_others(
        files, version, app_id, is_ours, plan=plan, since=since, made_at=made_at, newest=newest
    )
    # A replay of another pipeline is a load of its topics, and may remove rows of ours.
    loaded_at = {load.delta_version for load in loads}
    removals = [found for found in foreign if found.delta_version not in loaded_at]
    changes = sorted((*removals, *loads), key=lambda change: change.delta_version)
    return Table(table_id, version, in_table, metadata, tuple(changes))


def holds_commits(path: str, app_id: str) -> bool:
    """Return True if the table has a commit of this application id.

    Raises NotOurTable, TableUnreachable.
    """
    table = open_table(path)
    return table is not None and table.transaction_version(app_id) is not None


def commits_of_ours(path: str, app_id: str) -> Iterator[CommitMetadata]:
    """Yield the metadata of this pipeline's commits, newest first.

    Ends where the log ends, or with the first commit without a plan.
    """
    table = open_table(path)
    if table is None:
        return
    for commit in walk_back(open_log(rust_path(path)), table.version()):
        if app_id in commit.transactions:
            metadata = _metadata_of(commit, app_id)
            if metadata is None or metadata.document is None:
                return
            yield metadata


def find_commit(
    files: fs.FileSystem,
    newest: int,
    app_id: str,
    number: int,
    known: int | None,
) -> tuple[CommitMetadata | None, list[Commit]]:
    """Return the metadata of the commit with `txn` `number`, and the later commits, oldest first.

    Later than `known`, if that is earlier. `known` may be later than the commit, in a history that
    an older copy replaced. If the log no longer has the commit, `known` alone counts.
    """
    metadata = None
    reached = None
    since: list[Commit] = []
    for commit in walk_back(files, newest):
        if commit.transactions.get(app_id) == number:
            reached = commit.version
            metadata = _metadata_of(commit, app_id)
        if reached is not None and (known is None or commit.version <= known):
            break
        since.append(commit)
    after = -1
    if known is not None:
        after = known if reached is None else min(known, reached)
    return metadata, [commit for commit in since[::-1] if commit.version > after]


def _metadata_of(commit: Commit, app_id: str) -> CommitMetadata | None:
    metadata = parse_commit_metadata(commit.user_metadata or "", commit.version)
    return metadata if metadata and metadata.app_id == app_id else None


def _foreign(
    since: Sequence[Commit],
    app_id: str,
    path: str,
    is_ours: IsOurs,
    inherited: Mapping[str, int],
) -> tuple[ForeignCommit, ...]:
    """Return the harmful commits of other writers.

    Columns are compared with those before the first of these commits.
    """
    redefined = any(commit.shape and app_id not in commit.transactions for commit in since)
    before = _shape_at(since[0].version - 1, path) if redefined else None
    harmful = []
    for commit in since:
        found = judge(commit, app_id, before, is_ours, inherited)
        if found:
            harmful.append(found)
    return tuple(harmful)


def _shape_at(version: int, path: str) -> Shape | None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    if version < 0:
        return None
    options = options_of(path)
    try:
        return shape_of(DeltaTable(rust_path(path), storage_options=options, version=version))
    except (DeltaError, OSError):  # the log may no longer reach back to that version
        return None


class Result(str, Enum):
    """The result of an append, by the table."""

    APPLIED = "applied"
    """The table contains this very plan, executed by any run."""
    APPLIED_BY_ANOTHER = "applied by another run"
    """The table contains another plan under this number."""
    NOT_APPLIED = "not applied"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a read-back."""

    result: Result
    metadata: CommitMetadata | None = None
    """The commit with the plan's number; None without one, or if the log no longer has it."""
    table: Table | None = None
    """The present state of the table, with the commits of other writers."""

    @property
    def delta_version(self) -> int | None:
        """Return the Delta version that contains the plan's rows."""
        return self.metadata.delta_version if self.metadata else None


def read_back(
    plan: Plan,
    *,
    app_id: str,
    path: str,
    known: int | None,
    is_ours: IsOurs = none_of_ours,
    acknowledgement: Acknowledgement | None = None,
) -> Outcome:
    """Return the result of the plan's append, by the table alone.

    The table shows whether it contains the plan's number, and with which plan id. Raises
    LedgersDisagree for another table than the plan was made for.
    """
    table = read_table(
        path, app_id, known=known, is_ours=is_ours, plan=plan, acknowledgement=acknowledgement
    )
    if table and plan.table.id and table.id != plan.table.id:
        raise another_table(plan, table.id, path)
    if (
        table is None
        or table.transaction_version is None
        or table.transaction_version < plan.number
    ):
        return Outcome(Result.NOT_APPLIED, None, table)
    metadata = table.metadata
    if table.transaction_version > plan.number:
        metadata, _ = find_commit(
            open_log(rust_path(path)), table.version, app_id, plan.number, None
        )
    result = Result.APPLIED_BY_ANOTHER
    if metadata is not None and metadata.plan_id == plan.id:
        result = Result.APPLIED
    return Outcome(result, metadata, table)


def holds(plan: Plan, table: DeltaTable | None, app_id: str) -> bool:
    """Return True if the table contains this plan number already.

    Raises LedgersDisagree for another table than the plan was made for, or an older copy of it that
    lacks earlier plans; TableUnreachable if it is gone: a writer would create a new one.
    """
    if table is None:
        if plan.table.id is None:
            return False
        message = (
            f"Plan {plan.number} was made for the table with id {plan.table.id}, "
            "and there is no table any more"
        )
        action = (
            "Check whether its folder was moved, or its disk is not mounted; nothing was written"
        )
        raise TableUnreachable(message, action=action)
    in_table = table.transaction_version(app_id)
    if in_table is not None and in_table >= plan.number:
        return True
    found = id_of(table)
    if found != plan.table.id and (plan.table.id is not None or in_table is None):
        raise another_table(plan, found, table.table_uri)
    # Appended to an older copy, the plan would hide that the copy lacks the plans before it.
    if (in_table or 0) < plan.table.transaction_version:
        raise LedgersDisagree(
            f"The table had plan {plan.table.transaction_version} when plan {plan.number} was "
            f"made; now its newest plan is {in_table or 'none'}, as in an older copy",
            path=table.table_uri,
            table_version=table.version(),
            action="Check whether an older copy of the table was put back. Nothing was written, "
            "and the next run names what the table lacks",
        )
    return False


def another_table(plan: Plan, found: str, path: str) -> LedgersDisagree:
    """Return the error for another table at the path than the plan was made for."""
    action = "Check who replaced the table, and which of the two is right"
    if plan.table.id is None:
        message = (
            f"Plan {plan.number} was made when there was no table; "
            f"now the path has a table with id {found}"
        )
        return TableAppeared(message, path=path, action=action)
    message = (
        f"Plan {plan.number} was made for the table with id {plan.table.id}; "
        f"now the path has a table with id {found}"
    )
    return LedgersDisagree(message, path=path, action=action)
