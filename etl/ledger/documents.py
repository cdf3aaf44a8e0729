"""How the documents of the ledger, other than plans, are rendered and parsed.

Lives here: the common frame of all documents (format number, size limit, compression, partitions),
commit results, loaded intervals, operator decisions, retirement, reservations of backfills,
locations of named tables, pauses, bounds and run keys.
Not here: plans (plan_document.py), znode paths (znode_paths.py), reading and writing znodes
(etl/io/zookeeper/).

There is one format. A document of a newer one is rejected, so that an old driver never misreads
a newer plan.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from etl.errors import LedgersDisagree, NeedsDecision
from etl.model.partitions import BrokerPartition, in_order, parse_partition_key
from etl.model.plans import (
    NO_BOUNDS,
    Bound,
    Bounds,
    CommitResult,
    RangeResult,
    ReadByOthers,
    RunKeyRecord,
    Vanished,
)
from etl.model.snapshot import (
    Acknowledgement,
    ForeignCommit,
    Interval,
    LoadedIntervals,
    NamedTable,
    Pause,
    Reservation,
    ReservationState,
    Retirement,
)

T = TypeVar("T")
V = TypeVar("V")
FORMAT = 3
"""The format of all documents."""
WRITTEN_MAX_BYTES = 64 * 2**20
"""Largest document that is written, in bytes before compression.

Any document that is written must be readable later. A larger plan is rejected; a larger commit
result is written without some of its gaps; loaded intervals merge the oldest ones.
"""
DOCUMENT_MAX_BYTES = 4 * WRITTEN_MAX_BYTES
"""Largest document that is parsed, in bytes after decompression.

It is more than what is written, so that a lower `WRITTEN_MAX_BYTES` makes no document unreadable.
"""


def parsed(payload: bytes, path: str, build: Callable[[dict[str, Any]], T]) -> T:
    """Parse a document by `build`. Raises LedgersDisagree if it is invalid, NeedsDecision if it is
    of a newer format.
    """
    try:
        document = json.loads(_inflate(payload))
        if document["format"] > FORMAT:
            raise NeedsDecision(
                f"The document has format {document['format']}, "
                f"but this version reads only format {FORMAT}",
                znode=path,
                action="Check that the newest version of offset-range-etl runs everywhere",
            )
        if document["format"] < FORMAT:
            raise ValueError(f"no version writes format {document['format']}")
        return build(document)
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        RecursionError,
        OverflowError,
        zlib.error,
    ) as error:
        message = f"A stored document is invalid: {type(error).__name__}: {error}"
        raise LedgersDisagree(
            message,
            znode=path,
            action="Check which client wrote that znode, "
            "and whether ZooKeeper was restored from a copy",
        ) from error


def _inflate(payload: bytes) -> bytes:
    """Decompress up to `DOCUMENT_MAX_BYTES`.

    Raises ValueError for a larger or incomplete document, and for bytes after its end.
    """
    inflating = zlib.decompressobj()
    text = inflating.decompress(payload, DOCUMENT_MAX_BYTES)
    if not inflating.eof:
        raise ValueError("the document is incomplete or far too large")
    if inflating.unused_data:
        raise ValueError("bytes follow the end of the document")
    return text


def canonical(document: Any) -> bytes:
    """Return the canonical JSON of a document: equal documents have equal bytes and hashes."""
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def render_logs(logs: Iterable[BrokerPartition]) -> dict[str, list[str]]:
    """Return partitions that are `in_order` by topic: `{topic: [key, ...]}`."""
    by_topic: dict[str, list[str]] = {}
    for log in logs:
        by_topic.setdefault(log.topic, []).append(log.key)
    return by_topic


def parse_logs(found: Mapping[str, list[str]]) -> list[BrokerPartition]:
    """Return the partitions that `render_logs` wrote, in order.

    Raises ValueError for an invalid partition key.
    """
    logs: list[BrokerPartition] = []
    for topic, keys in found.items():
        logs.extend(log_of(topic, key) for key in keys)
    return logs


def log_of(topic: str, key: str) -> BrokerPartition:
    """Return the partition of that key. Raises ValueError if the key is invalid."""
    log = parse_partition_key(topic, key)
    if log is None:
        raise ValueError(f"{key!r} is no partition key")
    return log


def sorted_items(by_log: Mapping[BrokerPartition, V]) -> list[tuple[BrokerPartition, V]]:
    """Return the items of a mapping in the order of its partitions: equal mappings, equal bytes."""
    return [(log, by_log[log]) for log in in_order(by_log)]


def render_columns(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    """Return rows by column, `{name: [value of each row]}`: similar values compress better."""
    columns = {}
    for i, name in enumerate(names):
        columns[name] = [row[i] for row in rows]
    return columns


def parse_columns(names: Sequence[str], document: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Return the rows that `render_columns` wrote.

    Raises KeyError if a column is missing, and ValueError if one is shorter than the others.
    """
    columns = [document[name] for name in names]
    return zip(*columns, strict=True)


def parse_rows(build: Callable[..., T], rows: Iterable[Sequence[Any]]) -> tuple[T, ...]:
    """Return one value for each row; its columns are the arguments of `build`."""
    return tuple(build(*columns) for columns in rows)


def flat(found: Iterable[tuple[int, int]]) -> list[int]:
    """Flatten pairs into one list, which is shorter as JSON."""
    numbers: list[int] = []
    for pair in found:
        numbers.extend(pair)
    return numbers


def pairs(found: list[int]) -> tuple[tuple[int, int], ...]:
    """Return the pairs that `flat` wrote."""
    return tuple(zip(found[::2], found[1::2], strict=True))


def render_bounds(bounds: Bounds) -> list[Any]:
    """Return start, end, and the number of partitions that had no record at or after the end."""
    return [_render_bound(bounds.start), _render_bound(bounds.until), bounds.open_logs]


def _render_bound(bound: Bound | None) -> list[Any] | None:
    if bound is None:
        return None
    return [bound.said, bound.at_ms, bound.back]


def parse_bounds(found: Sequence[Any] | None) -> Bounds:
    """Return the bounds that `render_bounds` wrote; `NO_BOUNDS` if the document has none."""
    if not found:
        return NO_BOUNDS
    start, until, open_logs = found
    return Bounds(_parse_bound(start), _parse_bound(until), open_logs)


def _parse_bound(found: Sequence[Any] | None) -> Bound | None:
    if not found:
        return None
    return Bound(*found)


def render_keys(keys: Iterable[RunKeyRecord]) -> list[list[Any]]:
    """Return the records of run keys of pruned plans as JSON values."""
    return [[record.key, record.number, record.said, record.is_empty] for record in keys]


def parse_keys(found: Iterable[Sequence[Any]]) -> tuple[RunKeyRecord, ...]:
    """Return the records that `render_keys` wrote."""
    return parse_rows(RunKeyRecord, found)


_RESULT_COLUMNS = (
    "rows",
    "fetched_bytes",
    "control_records",
    "aborted_records",
    "missing_offsets",
    "gaps",
    "gaps_complete",
    "last_epoch",
    "behind_transform",
    "epochs",
)
"""The columns of a plan's result: one row for each range."""
_GAP_BYTES = 40
"""Largest size of one gap: two offsets of 19 digits, each with a comma."""


def render_applied(applied: CommitResult) -> bytes:
    """Render a plan's result. If not all gaps fit, as many ranges as possible keep theirs."""
    size = len(canonical(applied_content(applied)))
    gaps_max = (WRITTEN_MAX_BYTES - size) // _GAP_BYTES
    document = _applied_content(applied, _gaps_that_fit(applied.receipts, gaps_max))
    return zlib.compress(canonical(document), 6)


def applied_content(applied: CommitResult) -> dict[str, Any]:
    """Return the stored content of a result, without gaps and uncompressed."""
    return _applied_content(applied, ((),) * len(applied.receipts))


def _gaps_that_fit(
    receipts: Sequence[RangeResult], gaps_max: int
) -> list[tuple[tuple[int, int], ...]]:
    """Return the gaps of each range: all of them, or none if they exceed `gaps_max` in total.

    A part of a range's gaps would prove no more than their number.
    """
    kept: list[tuple[tuple[int, int], ...]] = [()] * len(receipts)
    left = gaps_max
    for i in sorted(range(len(receipts)), key=lambda i: len(receipts[i].gaps)):
        left -= len(receipts[i].gaps)
        if left < 0:
            break
        kept[i] = receipts[i].gaps
    return kept


def _applied_content(
    applied: CommitResult, gaps: Sequence[tuple[tuple[int, int], ...]]
) -> dict[str, Any]:
    rows = []
    for receipt, written in zip(applied.receipts, gaps, strict=True):
        gaps_complete = receipt.gaps_complete and len(written) == len(receipt.gaps)
        rows.append(
            (
                receipt.rows,
                receipt.fetched_bytes,
                receipt.control_records,
                receipt.aborted_records,
                receipt.missing_offsets,
                flat(written),
                gaps_complete,
                receipt.last_epoch,
                receipt.behind_transform,
                flat(receipt.epochs),
            )
        )
    return {
        "format": FORMAT,
        "number": applied.number,
        "plan_id": applied.plan_id,
        "delta_version": applied.delta_version,
        "table_id": applied.table_id,
        **render_columns(_RESULT_COLUMNS, rows),
        "run_id": applied.run_id,
        "uncounted": applied.uncounted,
    }


def parse_applied(payload: bytes, *, path: str) -> CommitResult:
    """Parse a plan's result. Raises LedgersDisagree if it is invalid."""
    return parsed(payload, path, applied_of)


def applied_of(document: dict[str, Any]) -> CommitResult:
    """Return a plan's result from its document."""
    receipts = []
    rows_of_ranges = parse_columns(_RESULT_COLUMNS, document)
    for *counts, gaps, gaps_complete, last_epoch, behind_transform, epochs in rows_of_ranges:
        rows, fetched_bytes, control_records, aborted_records, missing_offsets = counts
        receipts.append(
            RangeResult(
                rows,
                fetched_bytes,
                control_records,
                aborted_records,
                missing_offsets,
                pairs(gaps),
                gaps_complete,
                last_epoch,
                behind_transform,
                pairs(epochs),
            )
        )
    return CommitResult(
        document["number"],
        document["plan_id"],
        document["delta_version"],
        document["table_id"],
        tuple(receipts),
        document["run_id"],
        document["uncounted"],
    )


def render_loaded_intervals(coverage: LoadedIntervals) -> bytes:
    """Render the loaded intervals of pruned plans."""
    removals = []
    for commit in coverage.removals:
        removals.append([commit.delta_version, commit.operation, commit.why])
    document = {
        "format": FORMAT,
        "through": coverage.through,
        **_intervals_content(coverage.intervals),
        "removals": removals,
        "table_id": coverage.table_id,
        "vanished": _render_offsets(coverage.vanished),
        "given_up": _intervals_content(coverage.given_up),
        "held_through": coverage.held_through,
        "unproven_through": coverage.unproven_through,
        "keys": render_keys(coverage.keys),
    }
    if coverage.read_by_others:
        document["read_by_others"] = _render_offsets(coverage.read_by_others)
    return zlib.compress(canonical(document), 6)


def _render_offsets(intervals: Iterable[Vanished | ReadByOthers]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for interval in intervals:
        log = interval.log
        offsets = [interval.from_offset, interval.until_offset]
        rows.append([log.topic, log.key, *offsets, interval.incarnation])
    return rows


def _intervals_content(
    intervals: Mapping[BrokerPartition, Sequence[Interval]],
) -> dict[str, Any]:
    logs = in_order(intervals)
    return {
        "logs": render_logs(logs),
        "intervals": [_render_intervals(intervals[log]) for log in logs],
    }


def _render_intervals(found: Iterable[Interval]) -> list[list[int | None]]:
    rows: list[list[int | None]] = []
    for interval in found:
        rows.append(
            [
                interval.from_offset,
                interval.until_offset,
                interval.rows,
                interval.control_records,
                interval.aborted_records,
                interval.compacted,
                interval.incarnation,
                interval.unproven,
            ]
        )
    return rows


def parse_loaded_intervals(payload: bytes, *, path: str) -> LoadedIntervals:
    """Parse loaded intervals of pruned plans. Raises LedgersDisagree if they are invalid."""
    return parsed(payload, path, _loaded_intervals)


def _loaded_intervals(document: dict[str, Any]) -> LoadedIntervals:
    removals = parse_rows(ForeignCommit, document["removals"])
    vanished = parse_rows(_vanished, document["vanished"])
    read_by_others = parse_rows(_read_by_others, document.get("read_by_others", ()))
    return LoadedIntervals(
        document["through"],
        _parse_intervals(document),
        removals,
        document["table_id"],
        vanished,
        _parse_intervals(document["given_up"]),
        document["held_through"],
        document["unproven_through"],
        parse_keys(document["keys"]),
        read_by_others,
    )


def _vanished(topic: str, key: str, *offsets: int) -> Vanished:
    return Vanished(log_of(topic, key), *offsets)


def _read_by_others(topic: str, key: str, *offsets: int) -> ReadByOthers:
    return ReadByOthers(log_of(topic, key), *offsets)


def _parse_intervals(document: dict[str, Any]) -> dict[BrokerPartition, tuple[Interval, ...]]:
    logs = parse_logs(document["logs"])
    intervals = {}
    for log, found in zip(logs, document["intervals"], strict=True):
        intervals[log] = parse_rows(Interval, found)
    return intervals


def render_acknowledgement(acknowledgement: Acknowledgement) -> bytes:
    """Render an operator's decision as uncompressed JSON."""
    return json.dumps(_acknowledgement_content(acknowledgement), sort_keys=True).encode()


def _acknowledgement_content(acknowledgement: Acknowledgement) -> dict[str, Any]:
    content: dict[str, Any] = {
        "format": FORMAT,
        "table_id": acknowledgement.table_id,
        "delta_version": acknowledgement.delta_version,
        "number": acknowledgement.number,
        "reason": acknowledgement.reason,
        "at_ms": acknowledgement.at_ms,
        "lacks_plan": acknowledgement.lacks_plan,
        "plan_id": acknowledgement.plan_id,
        "transaction_version": acknowledgement.transaction_version,
        "was_recorded": acknowledgement.was_recorded,
        "commit": acknowledgement.commit,
        "place": acknowledgement.place,
    }
    if acknowledgement.beside:
        decisions = {}
        for backfill, decision in acknowledgement.beside.items():
            decisions[backfill] = _acknowledgement_content(decision)
        content["beside"] = decisions
    if acknowledgement.rows_of:
        content["rows_of"] = list(acknowledgement.rows_of)
    return content


def parse_acknowledgement(payload: bytes, *, path: str) -> Acknowledgement:
    """Parse an operator's decision. Raises LedgersDisagree if it is invalid."""
    return parsed(zlib.compress(payload), path, _parse_acknowledgement)


def _parse_acknowledgement(found: dict[str, Any]) -> Acknowledgement:
    of_backfills = {}
    for backfill, decision in found.get("beside", {}).items():
        of_backfills[str(backfill)] = _parse_acknowledgement(decision)
    return Acknowledgement(
        found["table_id"],
        found["delta_version"],
        int(found["number"]),
        str(found["reason"]),
        int(found["at_ms"]),
        bool(found["lacks_plan"]),
        found["plan_id"],
        found["transaction_version"],
        found["was_recorded"],
        found["commit"],
        found["place"],
        of_backfills,
        tuple(map(str, found.get("rows_of", ()))),
    )


def render_retirement(retirement: Retirement) -> bytes:
    """Render a retirement as uncompressed JSON."""
    content = {
        "format": FORMAT,
        "reason": retirement.reason,
        "at_ms": retirement.at_ms,
        "taken_over_by": retirement.taken_over_by,
    }
    return json.dumps(content, sort_keys=True).encode()


def parse_retirement(payload: bytes, *, path: str) -> Retirement:
    """Parse a retirement. Raises LedgersDisagree if it is invalid."""
    return parsed(zlib.compress(payload), path, _retirement)


def _retirement(found: dict[str, Any]) -> Retirement:
    successor = None
    if found["taken_over_by"]:
        successor = str(found["taken_over_by"])
    return Retirement(str(found["reason"]), int(found["at_ms"]), successor)


def render_claim(claim: Reservation) -> bytes:
    """Render the reservation of a backfill."""
    logs = in_order(claim.stretches)
    document = {
        "format": FORMAT,
        "name": claim.name,
        "logs": render_logs(logs),
        "stretches": [claim.stretches[log] for log in logs],
        "incarnations": [claim.incarnation_of(log) for log in logs],
        "asked": claim.asked,
        "made_at_ms": claim.made_at_ms,
        "state": claim.state.value,
        "reason": claim.reason,
    }
    if claim.table_id:
        document["table_id"] = claim.table_id
    return zlib.compress(canonical(document), 6)


def parse_claim(payload: bytes, *, path: str) -> Reservation:
    """Parse the reservation of a backfill. Raises LedgersDisagree if it is invalid."""
    return parsed(payload, path, _reservation)


def _reservation(found: dict[str, Any]) -> Reservation:
    logs = parse_logs(found["logs"])
    intervals = {}
    for log, parts in zip(logs, found["stretches"], strict=True):
        intervals[log] = parse_rows(_offset_interval, parts)
    incarnations = {}
    for log, incarnation in zip(logs, found["incarnations"], strict=True):
        if incarnation:
            incarnations[log] = _offset(incarnation)
    reason = found["reason"]
    if reason is not None:
        reason = str(reason)
    table_id = None
    if found.get("table_id"):
        table_id = str(found["table_id"])
    return Reservation(
        str(found["name"]),
        intervals,
        incarnations,
        str(found["asked"]),
        int(found["made_at_ms"]),
        ReservationState(found["state"]),
        reason,
        table_id,
    )


def _offset_interval(start: object, until: object) -> tuple[int, int]:
    interval = _offset(start), _offset(until)
    if interval[0] >= interval[1]:
        raise ValueError(f"{start} to {until} is an empty interval")
    return interval


def _offset(found: object) -> int:
    if not isinstance(found, int) or found < 0:
        raise ValueError(f"{found!r} is no offset")
    return found


def render_named_table(found: NamedTable) -> bytes:
    """Render the location of a named table."""
    document = {
        "format": FORMAT,
        "name": found.name,
        "path": found.path,
        "table_id": found.table_id,
        "at_ms": found.at_ms,
        "catalog": found.catalog,
    }
    return zlib.compress(canonical(document), 6)


def parse_named_table(payload: bytes, *, path: str) -> NamedTable:
    """Parse the location of a named table.

    Raises LedgersDisagree if it is invalid, NeedsDecision if a newer version wrote it.
    """
    return parsed(payload, path, _named_table)


def _named_table(found: dict[str, Any]) -> NamedTable:
    name = found["name"]
    location = found["path"]
    table_id = found["table_id"]
    at_ms = found["at_ms"]
    catalog = found["catalog"]
    is_valid = isinstance(name, str) and isinstance(location, str) and isinstance(at_ms, int)
    if not is_valid or not name or not location:
        raise ValueError(f"{name!r} at {location!r} is no location of a table")
    if not (table_id is None or isinstance(table_id, str)):
        raise ValueError(f"{table_id!r} is no id of a table")
    if not (catalog is None or isinstance(catalog, str)):
        raise ValueError(f"{catalog!r} is no name of a catalog")
    return NamedTable(name, location, table_id, at_ms, catalog)


def render_pauses(pauses: Iterable[Pause]) -> bytes:
    """Render the pauses of a pipeline."""
    rows = []
    for pause in pauses:
        key = None
        if pause.log:
            key = pause.log.key
        rows.append([pause.topic, key, pause.reason, pause.by, pause.since_ms])
    return zlib.compress(canonical({"format": FORMAT, "pauses": rows}), 6)


def parse_pauses(payload: bytes, *, path: str) -> tuple[Pause, ...]:
    """Parse the pauses of a pipeline.

    Raises LedgersDisagree if they are invalid, NeedsDecision if a newer version wrote them.
    """
    return parsed(payload, path, _pauses)


def _pauses(found: dict[str, Any]) -> tuple[Pause, ...]:
    return parse_rows(_pause, found["pauses"])


def _pause(topic: Any, key: Any, reason: Any, by: Any, since_ms: Any) -> Pause:
    if not isinstance(topic, str) or not isinstance(since_ms, int):
        raise ValueError(f"{topic!r} since {since_ms!r} is no pause")
    log = None
    if key is not None:
        log = log_of(topic, key)
    return Pause(topic, log, str(reason), str(by), since_ms)
