"""The other pipelines that have loaded into the same table: their application ids, the newest plan
of each, and what they loaded of ours.

Commit files tell both as far as the table's log reaches. What is older than that only a checkpoint
knows: it keeps the version of every application id (Delta protocol, "Checkpoints"), but no commit's
metadata, so that a pipeline may be known and its plan not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyarrow import fs

from etl.edges.delta.failures import unreachable
from etl.edges.delta.log import (
    Commit,
    adds_rows,
    open_log,
    parse_commit,
    read_commit_file,
    walk_back,
)
from etl.edges.delta.path import open_table, rust_path
from etl.edges.delta.store_failures import behind
from etl.errors import LedgersDisagree, NeedsDecision
from etl.ledger.plan_document import parse_commit_metadata, parse_plan
from etl.model.partitions import BrokerPartition
from etl.model.plans import Plan, TookOver
from etl.model.snapshot import ForeignCommit, OtherPipeline, Table, is_beside

OURS = "offset-range-etl/"
"""What the application id of every pipeline begins with; cluster, group and pipeline follow."""

_CHECKPOINT = re.compile(
    r"(?P<version>\d{20})\.checkpoint(\.\d{10}\.(?P<parts>\d{10})|\.[0-9a-fA-F-]{36})?\.(?P<kind>parquet|json)"
)

IsOurs = Callable[[str], bool]
"""Whether the pipeline reads a topic of this name."""


def none_of_ours(topic: str) -> bool:
    """Where nobody asks what others loaded."""
    return False


def other_pipelines(path: str, app_id: str) -> tuple[OtherPipeline, ...]:
    """Every pipeline but ours and what is beside it that the table has a commit of, by its newest
    one. Raises TableUnreachable.
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
    """The table with its other pipelines, and where it is not known what they loaded, with those of
    `topics` that it has rows of.

    `is_awaited`: whether it is theirs alone is asked, too.
    """
    others = other_pipelines(path, app_id)
    asked = topics if any(one.plan is None for one in others) else ()
    held = frozenset(topic for topic in asked if holds_rows_of(path, topic))
    is_theirs = is_awaited and is_of_others_alone(path, app_id)
    return replace(table, others=others, topics_with_rows=held, is_of_others_alone=is_theirs)


def is_of_others_alone(path: str, app_id: str) -> bool:
    """Whether every commit that ever added a row is another pipeline's; not where the log no longer
    reaches back to the first commit.

    A copy of a table of ours carries none of our commits, and all of our rows.
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
    """What the plans of one pipeline loaded, as far as the table's log tells: life of the log,
    from, until.
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
    """Commits that nobody has looked at by which another pipeline loaded a topic of ours, or took
    our place, or one that we took.

    Those are `since`; those above version `made_at`, where that is given; and for a plan that takes
    over all after the last one that it took, and what other pipelines of `newest` (the table's
    version of each) have committed since their place was taken.
    """
    taken = plan.taken if plan else {}
    if plan and plan.took_over:
        since = _after_the_taken(files, version, plan.took_over, taken, newest)
    elif made_at is not None:
        since = [commit for commit in _down_to(files, version, made_at)][::-1]
    found = (_load(commit, app_id, taken, is_ours) for commit in since)
    return tuple(one for loads in found for one in loads)


def _down_to(files: fs.FileSystem, newest: int, version: int) -> Iterator[Commit]:
    for commit in walk_back(files, newest):
        if commit.version <= version:
            return
        yield commit


def _after_the_taken(
    files: fs.FileSystem,
    version: int,
    took_over: TookOver,
    taken: Mapping[str, int],
    newest: Mapping[str, int | None],
) -> list[Commit]:
    """The commits after the last one that was taken over, and below it those of pipelines that went
    on; oldest first.
    """
    behind = {one for one, number in taken.items() if (newest.get(one) or 0) > number} | {
        took_over.app_id
    }
    later = []
    for commit in walk_back(files, version):
        behind -= {
            one for one, number in commit.transactions.items() if number <= taken.get(one, -1)
        }
        if not behind:
            break
        if took_over.app_id in behind or behind & commit.transactions.keys():
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
    """Whether the table has a row of this topic; also where nobody can tell."""
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
