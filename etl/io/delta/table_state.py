"""Which plan does the table hold, and what did other pipelines load?

The result of an append is decided by reading the table again: Spark skips a used transaction
version silently, and an exception may come after the commit. Read by delta-rs, without a JVM.

Other pipelines are read from commit files as far as the log reaches. Before that only a checkpoint
knows them: the version of each application id (Delta protocol, "Checkpoints"), but no metadata, so
a pipeline may be known and its plan not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from etl.errors import LedgersDisagree, NeedsDecision, TableAppeared, TableUnreachable
from etl.io.delta.log import (
    Commit,
    Shape,
    adds_rows,
    hash_of_commit,
    judge,
    open_log,
    parse_commit,
    read_commit_file,
    walk_back,
)
from etl.io.delta.stores import behind, options_of, unreachable
from etl.io.delta.table import (
    id_of,
    open_table,
    reject_expiring_transaction_ids,
    rust_path,
    shape_of,
)
from etl.ledger.plan_document import parse_commit_metadata, parse_plan
from etl.model.partitions import BrokerPartition
from etl.model.plans import Plan, TookOver
from etl.model.snapshot import (
    Acknowledgement,
    CommitMetadata,
    ForeignCommit,
    OtherPipeline,
    Table,
    is_beside,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable


OURS = "offset-range-etl/"
"""Prefix of the application id of each pipeline; cluster, group and pipeline follow."""

_CHECKPOINT = re.compile(
    r"(?P<version>\d{20})\.checkpoint(\.\d{10}\.(?P<parts>\d{10})|\.[0-9a-fA-F-]{36})?\.(?P<kind>parquet|json)"
)

IsOurs = Callable[[str], bool]
"""True if the pipeline reads a topic of this name."""


def none_of_ours(topic: str) -> bool:
    """For callers that do not look for others' loads."""
    return False


def other_pipelines(path: str, app_id: str) -> tuple[OtherPipeline, ...]:
    """Return each other pipeline with a commit in the table, by its newest one, without our
    backfills. Raises TableUnreachable.
    """
    table = open_table(path)
    if table is None:
        return ()
    files = open_log(rust_path(path))
    try:
        there = _transactions(files, table.version()).items()
        wanted = {
            one: version
            for one, version in there
            if one.startswith(OURS) and not is_beside(one, app_id)
        }
    except OSError as error:
        raise unreachable(error, path, "read") from behind(error, path)
    found: dict[str, OtherPipeline] = {}
    for commit in walk_back(files, table.version()) if wanted else ():
        for one in commit.transactions.keys() & (wanted.keys() - found.keys()):
            found[one] = OtherPipeline(
                one, wanted[one], commit.version, plan_of(commit.user_metadata, commit.version)
            )
        if len(found) == len(wanted):
            break
    return tuple(
        found.get(one) or OtherPipeline(one, number) for one, number in sorted(wanted.items())
    )


def with_others(
    table: Table, path: str, app_id: str, topics: Collection[str], *, is_awaited: bool = False
) -> Table:
    """Return the table with its other pipelines, and, if it is unknown what they loaded, with those
    of `topics` that it has rows of. `is_awaited`: also whether it is theirs alone.
    """
    others = other_pipelines(path, app_id)
    checked = topics if any(one.plan is None for one in others) else ()
    held = frozenset(topic for topic in checked if holds_rows_of(path, topic))
    is_theirs = is_awaited and is_of_others_alone(path, app_id)
    return replace(table, others=others, topics_with_rows=held, is_of_others_alone=is_theirs)


def is_of_others_alone(path: str, app_id: str) -> bool:
    """True if each commit that ever added a row is another pipeline's; False if the log no longer
    reaches its first commit. A copy of our table has none of our commits and all of our rows.
    """
    table = open_table(path)
    if table is None:
        return False
    files = open_log(rust_path(path))
    for version in range(table.version(), -1, -1):
        content = read_commit_file(files, version)
        if content is None:
            return False
        by = {one for one in parse_commit(version, content).transactions if one.startswith(OURS)}
        if any(is_beside(one, app_id) for one in by) or not by and adds_rows(content):
            return False
    return True


def loaded_by(path: str, app_id: str) -> dict[BrokerPartition, list[tuple[int, int, int]]]:
    """Return what the plans of one pipeline loaded, as far as the log tells: incarnation, from,
    until.
    """
    table, found = open_table(path), dict[BrokerPartition, list[tuple[int, int, int]]]()
    for commit in walk_back(open_log(rust_path(path)), table.version()) if table else ():
        plan = (
            plan_of(commit.user_metadata, commit.version) if app_id in commit.transactions else None
        )
        for r in plan.ranges if plan else ():
            found.setdefault(r.log, []).append(
                (plan.log_epochs.get(r.log, 0) if plan else 0, r.from_offset, r.until_offset)
            )
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
    """Return unknown commits by which another pipeline loaded a topic of ours, or inherited from us
    or a predecessor.

    These are `since`; those above version `made_at`, if given; and for an inheriting plan all after
    the last one it took, and what other pipelines of `newest` (version of each) committed since
    they were inherited.
    """
    taken = plan.taken if plan else {}
    if plan and plan.took_over:
        since = _commits_after_inherited(files, version, plan.took_over, taken, newest)
    elif made_at is not None:
        since = [commit for commit in _down_to(files, version, made_at)][::-1]
    found = (_load(commit, app_id, taken, is_ours) for commit in since)
    return tuple(one for loads in found for one in loads)


def _down_to(files: fs.FileSystem, newest: int, version: int) -> Iterator[Commit]:
    for commit in walk_back(files, newest):
        if commit.version <= version:
            return
        yield commit


def _commits_after_inherited(
    files: fs.FileSystem,
    version: int,
    took_over: TookOver,
    taken: Mapping[str, int],
    newest: Mapping[str, int | None],
) -> list[Commit]:
    """The commits after the last one that was taken over, and below it those of pipelines that went
    on; oldest first.
    """
    later_than = {one for one, number in taken.items() if (newest.get(one) or 0) > number} | {
        took_over.app_id
    }
    later = []
    for commit in walk_back(files, version):
        later_than -= {
            one for one, number in commit.transactions.items() if number <= taken.get(one, -1)
        }
        if not later_than:
            break
        if took_over.app_id in later_than or later_than & commit.transactions.keys():
            later.append(commit)
    return later[::-1]


def _load(
    commit: Commit, app_id: str, taken: Mapping[str, int], is_ours: IsOurs
) -> Iterator[ForeignCommit]:
    for one in sorted(commit.transactions):
        if (
            not one.startswith(OURS)
            or is_beside(one, app_id)
            or commit.transactions[one] <= taken.get(one, -1)
        ):
            continue
        if any(
            is_beside(one, other) for other in taken.keys() - {one}
        ):  # what was backfilled beside a pipeline whose place was taken
            continue
        plan = plan_of(commit.user_metadata, commit.version)
        is_our_place = bool(plan and plan.took_over and {app_id, *taken} & plan.taken.keys())
        topics = (
            sorted(topic for topic in _loaded_topics(plan, is_our_place) if is_ours(topic))
            if plan
            else []
        )
        if topics:
            why = f"{'took over' if is_our_place else 'loaded'} topic {topics[0]}" + (
                f" and {len(topics) - 1:,} more of ours" if topics[1:] else ""
            )
            yield ForeignCommit(
                commit.version, commit.operation, why, TookOver(one, commit.transactions[one])
            )


def _loaded_topics(plan: Plan, is_our_place: bool) -> frozenset[str]:
    """The topics that a plan loads: those of its ranges, for a position may be old; but a plan that
    takes our place loads all of them.
    """
    return plan.topics if is_our_place else frozenset(r.log.topic for r in plan.ranges)


def plan_of(user_metadata: str | None, delta_version: int) -> Plan | None:
    """The plan that a commit of any pipeline of ours carries; None when it carries none that can be
    read.
    """
    metadata = parse_commit_metadata(user_metadata or "", delta_version)
    if metadata is None or metadata.document is None:
        return None
    try:
        return parse_plan(metadata.document, path=f"commit {delta_version} of the table")
    except (
        LedgersDisagree,
        NeedsDecision,
    ):  # damaged, or of a newer version: nobody knows what it loaded
        return None


def holds_rows_of(path: str, topic: str) -> bool:
    """True if the table has, or may have, a row of this topic."""
    from deltalake.exceptions import DeltaError
    from pyarrow import ArrowException, dataset

    table = open_table(path)
    if table is None:
        return False
    try:
        return bool(
            table.to_pyarrow_dataset()
            .head(1, columns=["topic"], filter=dataset.field("topic") == topic)
            .num_rows
        )
    except (
        DeltaError,
        ArrowException,
        OSError,
        KeyError,
    ):  # features that this reader lacks, or no such column
        return True


def _transactions(files: fs.FileSystem, newest: int) -> dict[str, int]:
    """The newest version of every application id."""
    version, names = _newest_checkpoint(files, newest)
    found: dict[str, int] = {}
    for at in range(newest, version, -1):
        content = read_commit_file(files, at)
        if content is None:
            break
        for app_id, number in parse_commit(at, content).transactions.items():
            found.setdefault(app_id, number)
    for name in names:
        for action in _txn_actions(files, name):
            found.setdefault(str(action["appId"]), int(action["version"]))
    return found


def _newest_checkpoint(files: fs.FileSystem, newest: int) -> tuple[int, list[str]]:
    """Version and files of the newest whole checkpoint; -1 where there is none."""
    there: dict[tuple[int, int], list[str]] = {}
    for info in files.get_file_info(fs.FileSelector("_delta_log", recursive=False)):
        found = _CHECKPOINT.fullmatch(info.base_name)
        if found and int(found["version"]) <= newest:
            there.setdefault((int(found["version"]), int(found["parts"] or 1)), []).append(
                info.path
            )
    whole = [(version, names) for (version, parts), names in there.items() if len(names) >= parts]
    return max(whole, default=(-1, []))


def _txn_actions(files: fs.FileSystem, name: str) -> Iterator[Mapping[str, Any]]:
    """The `txn` actions of one file of a checkpoint. Those of version 2 keep only files in
    sidecars, so these are all.
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
        if "txn" in file.schema_arrow.names:
            for row in (
                file.read(columns=["txn.appId", "txn.version"])
                .column("txn")
                .drop_null()
                .to_pylist()
            ):
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
    """Return the state of the table; None without one.

    `known`: Delta version of our last recorded commit. `foreign` covers each commit after it, also
    before a newer one of ours; without it, those after our newest. Expired commit files are
    skipped. `is_ours`: topics that no other pipeline should load. `plan`: our newest known plan;
    what its predecessors loaded is ours, and without a known commit others' loads are looked for
    from where it was made. The commit that `acknowledgement` names is read, too. Raises
    NotOurTable, TableUnreachable, PermissionDenied.
    """
    table = open_table(path)
    if table is None:
        return None
    found = _found(table, path, app_id, known, is_ours, plan)
    if acknowledgement is None or acknowledgement.delta_version is None:
        return found
    return replace(
        found,
        commit_in_log=hash_of_commit(open_log(rust_path(path)), acknowledgement.delta_version),
    )


def _found(
    table: DeltaTable,
    path: str,
    app_id: str,
    known: int | None,
    is_ours: IsOurs,
    plan: Plan | None,
) -> Table:
    reject_expiring_transaction_ids(table, path)
    version, in_table = table.version(), table.transaction_version(app_id)
    if in_table is None and plan is None:
        return Table(id_of(table), version, None)
    files, looked = (
        open_log(rust_path(path)),
        known if known is not None and known <= version else None,
    )
    metadata, since = (
        find_commit(files, version, app_id, in_table, looked)
        if in_table is not None
        else (None, [])
    )
    foreign = _foreign(since, app_id, path)
    made_at = (
        plan.table_version if plan and looked is None and plan.table_id == id_of(table) else None
    )
    newest = (
        {one: table.transaction_version(one) for one in plan.taken}
        if plan and plan.took_over
        else {}
    )
    loads = loads_of_others(
        files, version, app_id, is_ours, plan=plan, since=since, made_at=made_at, newest=newest
    )
    return Table(id_of(table), version, in_table, metadata, foreign + loads)


def holds_commits(path: str, app_id: str) -> bool:
    """True if the table has a commit of this application id. Raises NotOurTable, TableUnreachable."""
    table = open_table(path)
    return table is not None and table.transaction_version(app_id) is not None


def commits_of_ours(path: str, app_id: str) -> Iterator[CommitMetadata]:
    """Return the metadata of our commits, newest first, as far as the log reaches and they carry
    their plan.
    """
    table = open_table(path)
    for commit in walk_back(open_log(rust_path(path)), table.version()) if table else ():
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
    """Return the metadata of the commit with `txn` `number`, and the commits after it (after
    `known`, if earlier), oldest first. `known` may be later than that commit, in a history that an
    older copy replaced. If the log lost that commit, `known` alone counts.
    """
    metadata, reached, since = None, None, list[Commit]()
    for commit in walk_back(files, newest):
        if commit.transactions.get(app_id) == number:
            reached, metadata = commit.version, _metadata_of(commit, app_id)
        if reached is not None and (known is None or commit.version <= known):
            break
        since.append(commit)
    after = -1 if known is None else known if reached is None else min(known, reached)
    return metadata, [commit for commit in since[::-1] if commit.version > after]


def _metadata_of(commit: Commit, app_id: str) -> CommitMetadata | None:
    metadata = parse_commit_metadata(commit.user_metadata or "", commit.version)
    return metadata if metadata and metadata.app_id == app_id else None


def _foreign(since: Sequence[Commit], app_id: str, path: str) -> tuple[ForeignCommit, ...]:
    """Return what others did in these commits, compared with the columns before the first of them."""
    redefined = any(commit.shape and app_id not in commit.transactions for commit in since)
    before = _shape_at(since[0].version - 1, path) if redefined else None
    return tuple(found for commit in since if (found := judge(commit, app_id, before)))


def _shape_at(version: int, path: str) -> Shape | None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    with suppress(DeltaError, OSError):  # the log may no longer reach back to that version
        if version >= 0:
            return shape_of(
                DeltaTable(rust_path(path), storage_options=options_of(path), version=version)
            )
    return None


class Result(str, Enum):
    """The result of an append, by the table."""

    APPLIED = "applied"
    """The table holds this very plan, whoever executed it."""
    APPLIED_BY_ANOTHER = "applied by another run"
    """The table holds another plan under this number."""
    NOT_APPLIED = "not applied"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a read-back."""

    result: Result
    metadata: CommitMetadata | None = None
    """The commit that carries the plan's number; None when there is none, or the log no longer
    holds it.
    """
    table: Table | None = None
    """The table as it is now, with what others did to it."""

    @property
    def delta_version(self) -> int | None:
        """The Delta version that holds the plan's rows."""
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
    """Return what became of `plan`, by the table alone: whether it holds its number, and under
    which plan's id. Raises LedgersDisagree for another table than the plan was made for.
    """
    table = read_table(
        path, app_id, known=known, is_ours=is_ours, plan=plan, acknowledgement=acknowledgement
    )
    if table and plan.table_id and table.id != plan.table_id:
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
    ours = metadata is not None and metadata.plan_id == plan.id
    return Outcome(Result.APPLIED if ours else Result.APPLIED_BY_ANOTHER, metadata, table)


def holds(plan: Plan, table: DeltaTable | None, app_id: str) -> bool:
    """True if the table has this number already. Raises LedgersDisagree for another table than the
    plan was made for, TableUnreachable if that one is gone: a writer would create a new one.
    """
    if table is None:
        if plan.table_id is not None:
            message = f"Plan {plan.number} was made for the table with id {plan.table_id}, and no table is there any more"
            raise TableUnreachable(
                message,
                action="Check whether its folder was moved, or its disk is not mounted; nothing was written",
            )
        return False
    in_table, found = table.transaction_version(app_id), id_of(table)
    if in_table is not None and in_table >= plan.number:
        return True
    if found != plan.table_id and (plan.table_id is not None or in_table is None):
        raise another_table(plan, found, table.table_uri)
    return False


def another_table(plan: Plan, found: str, path: str) -> LedgersDisagree:
    """Another table lies there than the plan was made for."""
    check = "Check who replaced the table, and which of the two is right"
    if plan.table_id is None:
        message = f"Plan {plan.number} was made when there was no table, at this path there is one with id {found} by now"
        return TableAppeared(message, path=path, action=check)
    message = f"Plan {plan.number} was made for the table with id {plan.table_id}, at this path there is one with id {found}"
    return LedgersDisagree(message, path=path, action=check)
