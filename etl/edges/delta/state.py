"""Where the table stands: which plan of ours it holds last, and what others did to it since.
delta-rs alone: no JVM starts for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from etl.edges.delta.features import refuse_expiring_ids
from etl.edges.delta.log import Commit, Shape, hash_of_commit, judge, open_log, walk_back
from etl.edges.delta.others import IsOurs, loads_of_others, none_of_ours
from etl.edges.delta.path import open_table, rust_path
from etl.edges.delta.shape import id_of, shape_of
from etl.edges.delta.stores import options_of
from etl.ledger.plan_document import parse_commit_metadata
from etl.model.plans import Plan
from etl.model.snapshot import Acknowledgement, CommitMetadata, ForeignCommit, Table

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow import fs


def read_table(
    path: str,
    app_id: str,
    *,
    known: int | None,
    is_ours: IsOurs = none_of_ours,
    plan: Plan | None = None,
    acknowledgement: Acknowledgement | None = None,
) -> Table | None:
    """Where the table stands; None when there is none.

    `known` is the Delta version of our last commit that the ledger knows. `foreign` covers every
    commit after it, so also those between it and a newer one of ours; without it, those after our
    newest. Commit files that clean-up removed are passed over. `is_ours` tells the topics that no
    other pipeline should load into this table. `plan` is the newest that we know: what the
    pipelines loaded whose place it took is ours, and where no commit is known others' loads are
    looked for from where it was made. Of the version that an operator's `acknowledgement` names the
    commit is looked at, too. Raises NotOurTable, TableUnreachable, PermissionRefused.
    """
    table = open_table(path)
    if table is None:
        return None
    found = _found(table, path, app_id, known, is_ours, plan)
    if acknowledgement is None or acknowledgement.delta_version is None:
        return found
    return replace(
        found, said_commit=hash_of_commit(open_log(rust_path(path)), acknowledgement.delta_version)
    )


def _found(
    table: DeltaTable,
    path: str,
    app_id: str,
    known: int | None,
    is_ours: IsOurs,
    plan: Plan | None,
) -> Table:
    refuse_expiring_ids(table, path)
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
    """Whether the table has a commit of this application id. Raises NotOurTable, TableUnreachable."""
    table = open_table(path)
    return table is not None and table.transaction_version(app_id) is not None


def commits_of_ours(path: str, app_id: str) -> Iterator[CommitMetadata]:
    """What our commits say of themselves, newest first, as far back as the table's log reaches and
    they carry their plan.
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
    """What the commit with `txn` `number` says of itself, and the commits after it (after `known`,
    where that is earlier), oldest first.

    `known` may be later than that commit: in a history of the table that was replaced by an old
    copy. Where the log no longer holds that commit, `known` alone counts.
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
    """What others did in these commits. The columns to compare with are those before the first of
    them.
    """
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
