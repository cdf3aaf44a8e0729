"""The table's side of a run: where it stands, one append per plan, and what became of it.

Owns the table's commit bit (`txn`; ADR 1) for both writers. Reading is delta-rs alone, so a run with nothing
new starts no JVM. Rows are written by Spark; a plan without ranges is a commit without files, by delta-rs where it can commit to the
table's features.

What became of an append is decided only by reading the table again, after every result: Spark skips a version at or below the
table's without a word, and an exception may come after the commit.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from etl.edges.delta.log import Commit, Shape, hash_of_commit, judge, open_log, walk_back
from etl.edges.delta.others import IsOurs, loads_of_others
from etl.edges.delta.path import (
    announce_first_write, is_conflict, is_obstacle, no_file_system, not_supported, open_table, rust_path, spark_path, unreachable,
)
from etl.edges.delta.shape import EVENT_DATE, id_of, refuse_unknown, shape_of, with_event_date_field
from etl.errors import LedgersDisagree, NotOurTable, TableAppeared, TableUnreachable, unmark
from etl.model.plans import Acknowledgement, Foreign, Plan, Stamp, Table
from etl.protocol.zookeeper.plan_documents import parse_stamp, render_stamp

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable
    from pyarrow import fs
    from pyspark.sql import DataFrame

_MICROS_PER_DAY = 86_400_000_000
_YEAR_1, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
_MICROS = "unix_micros(timestamp)"
_UTC_DATE = (
    f"case when {_MICROS} >= {_YEAR_1} and {_MICROS} < {_YEAR_10000} then "
    f"date_from_unix_date(cast(({_MICROS} - pmod({_MICROS}, {_MICROS_PER_DAY})) div {_MICROS_PER_DAY} as int)) end"
)
"""Integer arithmetic on the instant: `to_date` would follow the session's time zone. Other years are no date that every reader of a
table knows (`event_date=+55840-11-08` is none for delta-rs), and the arithmetic would leave the range of an int64 in the least of them.
"""
_RETENTION = "delta.setTransactionRetentionDuration"

StorageOptions = Mapping[str, str] | None


class Result(str, Enum):
    """What became of an append, as the table tells."""

    APPLIED = "applied"
    """The table holds this very plan, whoever executed it."""
    APPLIED_BY_ANOTHER = "applied by another run"
    """The table holds another plan under this number."""
    NOT_APPLIED = "not applied"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a read-back found."""

    result: Result
    stamp: Stamp | None = None
    """The commit that carries the plan's number; None when there is none, or the log no longer holds it."""
    table: Table | None = None
    """The table as it is now, with what others did to it."""

    @property
    def delta_version(self) -> int | None:
        """The Delta version that holds the plan's rows."""
        return self.stamp.delta_version if self.stamp else None


def read_table(
    path: str, app_id: str, *, known: int | None, is_ours: IsOurs = lambda topic: False, plan: Plan | None = None,
    word: Acknowledgement | None = None, storage_options: StorageOptions = None,
) -> Table | None:
    """Where the table stands; None when there is none.

    `known` is the Delta version of our last commit that the ledger knows. `foreign` covers every commit after it, so also those
    between it and a newer one of ours; without it, those after our newest. Commit files that clean-up removed are passed over.
    `is_ours` tells the topics that no other pipeline should load into this table. `plan` is the newest that we know: what the
    pipelines loaded whose place it took is ours, and where no commit is known others' loads are looked for from where it was made.
    Of the version that an operator's `word` names the commit is looked at, too. Raises NotOurTable, TableUnreachable, PermissionRefused.
    """
    table = open_table(path, storage_options)
    if table is None:
        return None
    found = _found(table, path, app_id, known, is_ours, plan, storage_options)
    if word is None or word.delta_version is None:
        return found
    return replace(found, said_commit=hash_of_commit(open_log(rust_path(path), storage_options), word.delta_version))


def _found(
    table: DeltaTable, path: str, app_id: str, known: int | None, is_ours: IsOurs, plan: Plan | None,
    storage_options: StorageOptions,
) -> Table:
    if _RETENTION in table.metadata().configuration:
        check = f"ALTER TABLE ... UNSET TBLPROPERTIES ('{_RETENTION}'): once an id has expired, a plan could be applied twice"
        raise NotOurTable(f"the table forgets transaction ids ({_RETENTION})", path=path, check=check)
    version, bit = table.version(), table.transaction_version(app_id)
    if bit is None and plan is None:
        return Table(id_of(table), version, None)
    files, looked = open_log(rust_path(path), storage_options), known if known is not None and known <= version else None
    stamp, since = _walk(files, version, app_id, bit, looked) if bit is not None else (None, [])
    foreign = _foreign(since, app_id, path, storage_options)
    made_at = plan.table_version if plan and looked is None and plan.table_id == id_of(table) else None
    newest = {one: table.transaction_version(one) for one in plan.taken} if plan and plan.took_over else {}
    loads = loads_of_others(files, version, app_id, is_ours, plan=plan, since=since, made_at=made_at, newest=newest)
    return Table(id_of(table), version, bit, stamp, foreign + loads)


def read_back(
    plan: Plan, *, app_id: str, path: str, known: int | None, is_ours: IsOurs = lambda topic: False,
    word: Acknowledgement | None = None, storage_options: StorageOptions = None,
) -> Outcome:
    """What became of `plan`, by the table alone: is its number in there, and under which plan's id.

    Raises LedgersDisagree when another table lies there than the plan was made for.
    """
    table = read_table(path, app_id, known=known, is_ours=is_ours, plan=plan, word=word, storage_options=storage_options)
    if table and plan.table_id and table.id != plan.table_id:
        raise _another_table(plan, table.id, path)
    if table is None or table.transaction_version is None or table.transaction_version < plan.number:
        return Outcome(Result.NOT_APPLIED, None, table)
    stamp = table.stamp
    if table.transaction_version > plan.number:
        stamp, _ = _walk(open_log(rust_path(path), storage_options), table.version, app_id, plan.number, None)
    ours = stamp is not None and stamp.plan_id == plan.id
    return Outcome(Result.APPLIED if ours else Result.APPLIED_BY_ANOTHER, stamp, table)


def stamps(path: str, app_id: str, *, storage_options: StorageOptions = None) -> Iterator[Stamp]:
    """What our commits say of themselves, newest first, as far back as the table's log reaches and they carry their plan."""
    table = open_table(path, storage_options)
    for commit in walk_back(open_log(rust_path(path), storage_options), table.version()) if table else ():
        if app_id in commit.transactions:
            stamp = _stamp(commit, app_id)
            if stamp is None or stamp.document is None:
                return
            yield stamp


def append(
    frame: DataFrame, plan: Plan, *, app_id: str, path: str, partition_by: Sequence[str], known: int | None,
    run_id: str | None = None, is_ours: IsOurs = lambda topic: False, word: Acknowledgement | None = None,
    storage_options: StorageOptions = None,
) -> Outcome:
    """Append `frame` as plan `plan.number`, at most once, and say what the table holds afterwards.

    Where the table already holds that number Spark is not even asked. When the plan is not in the table afterwards, what Spark
    raised is raised: the executor's own EtlError, TableUnreachable for a place that cannot be written, anything else as it is.
    Without an exception and without the plan the outcome is NOT_APPLIED: somebody replaced the table meanwhile.
    """
    stamp = render_stamp(plan, app_id, run_id)
    if _holds(plan, open_table(path, storage_options), app_id):
        return read_back(plan, app_id=app_id, path=path, known=known, is_ours=is_ours, word=word, storage_options=storage_options)
    announce_first_write(path)
    failure = None
    try:
        writer = with_event_date(frame, partition_by).write.format("delta").mode("append").partitionBy(*partition_by)
        writer.option("txnAppId", app_id).option("txnVersion", plan.number).option("userMetadata", stamp).save(spark_path(path))
    except Exception as error:  # whatever it is, the table decides first: the commit may have happened before it
        failure = error
    return _decide(failure, plan, app_id, path, known, is_ours, word, storage_options)


def append_empty(
    plan: Plan, *, app_id: str, path: str, schema: pyarrow.Schema, partition_by: Sequence[str], known: int | None,
    run_id: str | None = None, is_ours: IsOurs = lambda topic: False, word: Acknowledgement | None = None,
    storage_options: StorageOptions = None,
) -> Outcome:
    """Commit a plan without ranges, at most once; where there is no table, the commit that creates it is the plan's.

    delta-rs judges a conflict by the version of the table object it is given and takes a number that was used, or a lower one:
    so number and table id are looked at on that very object.
    """
    from deltalake import CommitProperties, DeltaTable, Transaction

    transaction = Transaction(app_id, plan.number, last_updated=int(time.time() * 1000))
    said = CommitProperties(custom_metadata={"userMetadata": render_stamp(plan, app_id, run_id)}, app_transactions=[transaction])
    table = open_table(path, storage_options)
    failure = None
    if not _holds(plan, table, app_id):
        try:
            if table is None:
                columns, place = with_event_date_field(schema, partition_by), rust_path(path)
                DeltaTable.create(
                    place, columns, partition_by=list(partition_by), storage_options=dict(storage_options or {}), commit_properties=said)
            else:
                kept = table.metadata().partition_columns
                table.create_write_transaction([], "append", table.schema(), partition_by=kept, commit_properties=said)
        except Exception as error:  # as in append
            failure = error
    return _decide(failure, plan, app_id, path, known, is_ours, word, storage_options)


def with_event_date(frame: DataFrame, partition_by: Sequence[str]) -> DataFrame:
    """Add the built-in column `event_date`, the UTC date of `timestamp`, when the partitioning names it and the rows lack it."""
    refuse_unknown(partition_by, frame.columns)
    if EVENT_DATE not in partition_by or EVENT_DATE in frame.columns:
        return frame
    from pyspark.sql import functions

    return frame.withColumn(EVENT_DATE, functions.expr(_UTC_DATE))


def _walk(files: fs.FileSystem, newest: int, app_id: str, number: int, known: int | None) -> tuple[Stamp | None, list[Commit]]:
    """The stamp of the commit whose `txn` is `number`, and the commits after it (after `known`, where that is earlier), oldest first.

    `known` may be later than that commit: in a history of the table that was replaced by an old copy. Where the log no longer holds
    that commit, `known` alone counts.
    """
    stamp, reached, since = None, None, list[Commit]()
    for commit in walk_back(files, newest):
        if commit.transactions.get(app_id) == number:
            reached, stamp = commit.version, _stamp(commit, app_id)
        if reached is not None and (known is None or commit.version <= known):
            break
        since.append(commit)
    after = -1 if known is None else known if reached is None else min(known, reached)
    return stamp, [commit for commit in since[::-1] if commit.version > after]


def _stamp(commit: Commit, app_id: str) -> Stamp | None:
    stamp = parse_stamp(commit.user_metadata or "", commit.version)
    return stamp if stamp and stamp.app_id == app_id else None


def _foreign(since: Sequence[Commit], app_id: str, path: str, storage_options: StorageOptions) -> tuple[Foreign, ...]:
    """What others did in these commits. The columns to compare with are those before the first of them."""
    redefined = any(commit.shape and app_id not in commit.transactions for commit in since)
    before = _shape_at(since[0].version - 1, path, storage_options) if redefined else None
    return tuple(found for commit in since if (found := judge(commit, app_id, before)))


def _shape_at(version: int, path: str, storage_options: StorageOptions) -> Shape | None:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    with suppress(DeltaError, OSError):  # the log may no longer reach back to that version
        if version >= 0:
            return shape_of(DeltaTable(rust_path(path), version=version, storage_options=dict(storage_options or {})))
    return None


def _holds(plan: Plan, table: DeltaTable | None, app_id: str) -> bool:
    """Whether the table has this number already. Raises LedgersDisagree when it is another table than the plan was made for."""
    if table is None:
        return False
    bit, found = table.transaction_version(app_id), id_of(table)
    if bit is not None and bit >= plan.number:
        return True
    if found != plan.table_id and (plan.table_id is not None or bit is None):
        raise _another_table(plan, found, table.table_uri)
    return False


def _another_table(plan: Plan, found: str, path: str) -> LedgersDisagree:
    check = "who replaced the table, and which of the two is right"
    if plan.table_id is None:
        what = f"plan {plan.number} was made when there was no table, at this path there is one with id {found} by now"
        return TableAppeared(what, path=path, check=check)
    what = f"plan {plan.number} was made for the table with id {plan.table_id}, at this path there is one with id {found}"
    return LedgersDisagree(what, path=path, check=check)


def _decide(
    failure: Exception | None, plan: Plan, app_id: str, path: str, known: int | None, is_ours: IsOurs, word: Acknowledgement | None,
    storage_options: StorageOptions,
) -> Outcome:
    outcome = read_back(plan, app_id=app_id, path=path, known=known, is_ours=is_ours, word=word, storage_options=storage_options)
    if outcome.result is not Result.NOT_APPLIED:
        return outcome
    if plan.table_id is None and outcome.table and outcome.table.transaction_version is None:
        raise _another_table(plan, outcome.table.id, path) from failure
    if failure is None:
        return outcome
    raise translate(failure, path) from failure


def translate(failure: Exception, path: str) -> Exception:
    """What an exception of Spark or delta-rs means: an executor's EtlError, a place that cannot be written, or itself."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    text = whole_text(failure)
    told = unmark(text)
    if told is None and (is_conflict(text) or isinstance(failure, CommitFailedError)):
        check = "who else writes to it (DESCRIBE HISTORY); nothing of ours was committed, the next run appends the same plan again"
        return TableUnreachable("somebody else changed the table while ours were written", path=path, check=check)
    if told is None and isinstance(failure, DeltaError):
        told = not_supported(failure, path)
    told = told or _refused_by_constraint(text, path) or no_file_system(text, path)
    is_of_a_function = any(said in text for said in _OF_PYTHON)  # a function may say of its own file what a table's folder says
    return told or (unreachable(failure, path, "written") if is_obstacle(text) and not is_of_a_function else failure)


_OF_PYTHON = ("org.apache.spark.api.python.PythonException", "thrown from the Python worker")
_CONSTRAINT = re.compile(r"\[DELTA_(?:VIOLATE_CONSTRAINT|NOT_NULL_CONSTRAINT)\w*\] ([^\n]*)")


def _refused_by_constraint(text: str, path: str) -> NotOurTable | None:
    found = _CONSTRAINT.search(text)
    if found is None:
        return None
    check = "the table's constraints (SHOW TBLPROPERTIES) against what the topic holds; the next run appends the same plan again"
    return NotOurTable(f"a constraint of the table refuses our rows: {found[1].strip()}", path=path, check=check)


def whole_text(failure: BaseException) -> str:
    """An exception's text with that of its causes: Spark puts the executor's traceback into one of them."""
    java: Any = getattr(failure, "java_exception", None)
    texts = [str(failure), str(java.toString()) if java is not None else ""]
    cause = java.getCause() if java is not None else None
    for _ in range(20):
        if cause is None:
            break
        texts.append(str(cause.toString()))
        cause = cause.getCause()
    return "\n".join(texts)
