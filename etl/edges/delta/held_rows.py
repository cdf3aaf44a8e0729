"""Rows of topics that a table holds and that no pipeline of ours loaded: first and last offset of
each partition.

The statistics in the table's log come first. They exclude a file whose topics are others, and they
are enough for a file that holds one partition of one topic, as a streaming query writes them. The
key columns of all other files are read (`files`). No JVM starts for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from etl.edges.delta.features import features_of
from etl.edges.delta.file_statistics import TEXT_KEPT
from etl.edges.delta.files import (
    LOG_EPOCH,
    TableFiles,
    Uncountable,
    actions_of,
    added_of,
    key_columns,
)
from etl.edges.delta.log import open_log
from etl.edges.delta.others import other_pipelines
from etl.edges.delta.path import open_table, rust_path
from etl.errors import NeedsDecision
from etl.model.partitions import BrokerPartition
from etl.model.plans import HeldRows

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable

_DELETION_VECTORS = "deletionVectors"
_FILES_AT_ONCE = 4
_Counted = dict[tuple[Any, ...], tuple[int, int, int]]
"""By topic, broker, partition and life of the log: first and last offset, and the number of rows.
"""


def rows_of_nobody(
    path: str, topics: Collection[str], *, physical: bool, app_id: str = ""
) -> tuple[HeldRows, ...] | None:
    """Return the rows of `topics` that no pipeline of ours loaded into this table, in order.

    None: there is no table, it has no file, or its log no longer says what one of its pipelines
    loaded. Topics that another pipeline loaded have rules of their own (`other_pipelines`).
    `app_id`: this pipeline, if it has commits there and never knew these topics. Raises
    NeedsDecision if a file cannot be read, TableUnreachable.
    """
    table = open_table(path)
    if table is None or not table.get_add_actions().num_rows:
        return None
    loaded = frozenset[str]()
    for pipeline in other_pipelines(path, app_id):
        if pipeline.topics is None:
            return None
        loaded |= pipeline.topics
    return held_rows(table, path, frozenset(topics) - loaded, physical=physical)


def held_rows(
    table: DeltaTable, path: str, topics: Collection[str], *, physical: bool
) -> tuple[HeldRows, ...]:
    """Return the rows of `topics` in the table, whoever wrote them; none if the table lacks a
    column that names a record.
    """
    names = key_columns(table, physical=physical)
    if names is None or not topics:
        return ()
    found: _Counted = {}
    to_read, may_be_deleted = [], _DELETION_VECTORS in features_of(table)
    for action in actions_of(table):
        if not _may_hold(action, names, topics):
            continue
        one = _by_statistics(action, names)
        if one is None or may_be_deleted:
            to_read.append(action)
        else:
            _add(found, *one)
    if to_read:
        _read_files(table, path, to_read, names, found)
    held = (_held(key, counted) for key, counted in found.items() if key[0] in topics)
    return tuple(sorted(one for one in held if one is not None))


def _held(key: tuple[Any, ...], counted: tuple[int, int, int]) -> HeldRows | None:
    topic, broker_id, partition, life = key
    first, last, rows = counted
    if min(partition, life, first, broker_id or 0) < 0:
        return None  # the row names no record
    return HeldRows(BrokerPartition(topic, partition, broker_id), life, first, last + 1, rows)


def _may_hold(action: Mapping[str, Any], names: Mapping[str, str], topics: Collection[str]) -> bool:
    """False if the statistics exclude all topics. Long texts are cut in them, so bounds are
    compared and not equality.
    """
    if "topic" in action["partition"]:
        return action["partition"]["topic"] in topics
    low, high = action["min"].get(names["topic"]), action["max"].get(names["topic"])
    if low is None or high is None:
        return True
    return any(low.encode() <= topic.encode() <= high.encode() for topic in topics)


def _by_statistics(
    action: Mapping[str, Any], names: Mapping[str, str]
) -> tuple[tuple[Any, ...], tuple[int, int, int]] | None:
    """What the file holds if that is one partition of one topic, by its statistics; None if they do
    not say so.
    """
    bounds = {
        name: _bounds(action, name, physical)
        for name, physical in names.items()
        if name != "message_index"
    }
    rows, life = action.get("num_records"), bounds.get(LOG_EPOCH, (0, 0))
    if life is None and action["null_count"].get(names[LOG_EPOCH]) == rows:
        life = 0, 0
    if (
        rows is None
        or life is None
        or any(bounds[name] is None for name in bounds if name != LOG_EPOCH)
    ):
        return None
    one_value = {
        name: found for name, found in bounds.items() if found and name not in ("offset", LOG_EPOCH)
    }
    if (
        any(low != high for low, high in (*one_value.values(), life))
        or len(bounds["topic"][0]) >= TEXT_KEPT
    ):
        return None
    broker_id = one_value["broker_id"][0] if "broker_id" in one_value else None
    first, last = bounds["offset"]
    return (one_value["topic"][0], broker_id, one_value["partition"][0], life[0]), (
        first,
        last,
        rows,
    )


def _bounds(action: Mapping[str, Any], name: str, physical: str) -> Any:
    """Least and greatest value of a column without a null; None if they are not known."""
    if name in action["partition"]:
        value = action["partition"][name]
        return None if value is None else (value, value)
    low, high = action["min"].get(physical), action["max"].get(physical)
    if low is None or high is None or action["null_count"].get(physical) != 0:
        return None
    return low, high


def _read_files(
    table: DeltaTable,
    path: str,
    actions: Sequence[Mapping[str, Any]],
    names: Mapping[str, str],
    found: _Counted,
) -> None:
    """Count the rows of these files. Raises NeedsDecision for one that cannot be read."""
    if _DELETION_VECTORS in features_of(table):
        counted = _by_query_engine(table, names)
        if counted is not None:
            for group in counted:
                _add(found, *group)
            return
    folder = open_log(rust_path(path))
    each = [TableFiles(path, folder, [added_of(action, names)], names) for action in actions]
    try:
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            for groups in pool.map(_counted_in, each):
                for group in groups:
                    _add(found, *group)
    except Uncountable as why:
        what = f"the table has rows that no pipeline of ours loaded, and it is not known of which topics: {why}"
        check = "the table's files; or another table: table.path"
        raise NeedsDecision(what, path=path, check=check) from why


def _counted_in(files: TableFiles) -> list[tuple[tuple[Any, ...], tuple[int, int, int]]]:
    import pyarrow

    found: _Counted = {}
    for batch in files.rows():
        for group in _groups(pyarrow.Table.from_batches([batch])):
            _add(found, *group)
    return list(found.items())


def _groups(rows: pyarrow.Table) -> Iterator[tuple[tuple[Any, ...], tuple[int, int, int]]]:
    """First offset, last offset and rows of each partition and life of `rows`."""
    keys = [
        name for name in ("topic", "broker_id", "partition", LOG_EPOCH) if name in rows.column_names
    ]
    grouped = rows.group_by(keys).aggregate(
        [("offset", "min"), ("offset", "max"), ("offset", "count")]
    )
    for row in grouped.to_pylist():
        key = row["topic"], row.get("broker_id"), row["partition"], row[LOG_EPOCH]
        yield key, (row["offset_min"], row["offset_max"], row["offset_count"])


def _by_query_engine(
    table: DeltaTable, names: Mapping[str, str]
) -> Iterable[tuple[tuple[Any, ...], tuple[int, int, int]]] | None:
    """The same of the whole table without rows that deletion vectors mark; None if delta-rs cannot
    read the table.

    The query has no condition: delta-rs takes a bound that is missing for null, and passes the file
    over.
    """
    import pyarrow
    from deltalake import QueryBuilder

    life = f'coalesce("{LOG_EPOCH}", 0)' if LOG_EPOCH in names else "0"
    broker = ", broker_id" if "broker_id" in names else ""
    query = (
        f'select topic{broker}, partition, {life} as "life", min("offset") as "first", max("offset") as "last", count("offset") as "rows" '
        f"from held where partition is not null and topic is not null group by topic{broker}, partition, {life}"
    )
    try:
        rows = pyarrow.table(
            QueryBuilder().register("held", table).execute(query).read_all()
        ).to_pylist()
    except Exception:  # the query engine's failures have no class of their own; the files are read then, with rows that were deleted
        return None
    return [
        (
            (row["topic"], row.get("broker_id"), row["partition"], row["life"]),
            (row["first"], row["last"], row["rows"]),
        )
        for row in rows
        if row["rows"]
    ]


def _add(found: _Counted, key: tuple[Any, ...], counted: tuple[int, int, int]) -> None:
    first, last, rows = counted
    before = found.get(key)
    if before is not None:
        first, last, rows = min(first, before[0]), max(last, before[1]), rows + before[2]
    found[key] = first, last, rows
