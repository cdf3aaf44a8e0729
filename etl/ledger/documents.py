"""How are the documents of the ledger, other than plans, rendered and parsed?

Lives here: the common frame of all documents (format number, size limit, compression, partitions),
commit results, loaded intervals, operator decisions, retirement, reservations of backfills,
locations of named tables, pauses, bounds and run keys.

A document of a newer format is rejected, so that an old driver never misreads a newer plan.
Documents of formats 1 and 2 lack table versions, log starts, leader epochs, incarnations, pending
starts and the reasons of lost offsets; they are still read.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
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
WRITTEN_MAX_BYTES = 64 * 2**20
"""No document is written that is larger before it is compressed: a plan is refused, a record leaves
gaps out.
"""
DOCUMENT_MAX_BYTES = 4 * WRITTEN_MAX_BYTES
"""A decompressed document larger than this is not one of ours. Earlier versions bounded no record
that they wrote.
"""


def parsed(payload: bytes, path: str, build: Callable[[dict[str, Any]], T]) -> T:
    """Parse a document by `build`. Raises LedgersDisagree if it is invalid, NeedsDecision if it is
    of a newer format.
    """
    try:
        document = json.loads(_inflate(payload))
        if document["format"] > FORMAT:
            message = (
                f"The document has format {document['format']}, this version reads up to {FORMAT}"
            )
            raise NeedsDecision(
                message,
                znode=path,
                action="Check that the newest version of offset-range-etl runs everywhere",
            )
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
        message = f"The znode does not hold what it should: {type(error).__name__}: {error}"
        raise LedgersDisagree(
            message,
            znode=path,
            action="Check who wrote that znode, and whether ZooKeeper was restored from a copy",
        ) from error


def _inflate(payload: bytes) -> bytes:
    """Decompress, never to more than a document of ours can be."""
    inflating = zlib.decompressobj()
    text = inflating.decompress(payload, DOCUMENT_MAX_BYTES)
    if not inflating.eof:
        raise ValueError("it is cut off or far too large")
    return text


def canonical(document: Any) -> bytes:
    """The one way to write a document down, so that its hash is one, too."""
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def render_logs(logs: Iterable[BrokerPartition]) -> dict[str, list[str]]:
    """Logs that are `in_order`, by topic: `{topic: [key, ...]}`."""
    found: dict[str, list[str]] = {}
    for log in logs:
        found.setdefault(log.topic, []).append(log.key)
    return found


def parse_logs(found: Mapping[str, list[str]]) -> list[BrokerPartition]:
    """The logs that `render_logs` wrote, in order. Raises ValueError for a key of none."""
    return [log_of(topic, key) for topic, keys in found.items() for key in keys]


def log_of(topic: str, key: str) -> BrokerPartition:
    """The log of that key. Raises ValueError where it is of none."""
    log = parse_partition_key(topic, key)
    if log is None:
        raise ValueError(f"{key!r} is no partition key")
    return log


def sorted_items(of_logs: Mapping[BrokerPartition, V]) -> list[tuple[BrokerPartition, V]]:
    """The items of a mapping in the order of its logs, so that equal mappings are written alike."""
    return [(log, of_logs[log]) for log in in_order(of_logs)]


def flat(found: Iterable[tuple[int, int]]) -> list[int]:
    """Flatten pairs into one list, which is shorter as JSON."""
    return [number for pair in found for number in pair]


def pairs(found: list[int]) -> tuple[tuple[int, int], ...]:
    """The pairs that `flat` wrote."""
    return tuple(zip(found[::2], found[1::2], strict=True))


def render_bounds(bounds: Bounds) -> list[Any]:
    """Both ends, and in how many logs no record was as late as the second."""
    return [
        *(
            bound and [bound.said, bound.at_ms, bound.back]
            for bound in (bounds.start, bounds.until)
        ),
        bounds.open_logs,
    ]


def parse_bounds(found: Sequence[Any] | None) -> Bounds:
    """The bounds that `render_bounds` wrote; none where a document has none."""
    if not found:
        return NO_BOUNDS
    start, until, open_logs = found
    return Bounds(Bound(*start) if start else None, Bound(*until) if until else None, open_logs)


def render_keys(keys: Iterable[RunKeyRecord]) -> list[list[Any]]:
    """Run keys that no stored plan has any more."""
    return [[one.key, one.number, one.said, one.is_empty] for one in keys]


def parse_keys(found: Iterable[Sequence[Any]]) -> tuple[RunKeyRecord, ...]:
    """The keys that `render_keys` wrote."""
    return tuple(RunKeyRecord(*one) for one in found)


_GAP_BYTES = 40
"""Largest size of one gap: two offsets of 19 digits, each with a comma."""


def render_applied(applied: CommitResult) -> bytes:
    """Render a plan's result. If not all gaps fit, as many ranges as possible keep theirs."""
    document = applied_content(applied)
    left = (WRITTEN_MAX_BYTES - len(canonical(document))) // _GAP_BYTES
    return zlib.compress(
        canonical(_applied_content(applied, _gaps_that_fit(applied.receipts, left))), 6
    )


def applied_content(applied: CommitResult) -> dict[str, Any]:
    """Return the stored content of a result, without gaps and uncompressed."""
    return _applied_content(applied, ((),) * len(applied.receipts))


def _gaps_that_fit(receipts: Sequence[RangeResult], left: int) -> list[tuple[tuple[int, int], ...]]:
    """Return the gaps of each range, all or none: some of them prove no more than their number."""
    kept: list[tuple[tuple[int, int], ...]] = [()] * len(receipts)
    for i in sorted(range(len(receipts)), key=lambda i: len(receipts[i].gaps)):
        left -= len(receipts[i].gaps)
        if left < 0:
            break
        kept[i] = receipts[i].gaps
    return kept


def _applied_content(
    applied: CommitResult, gaps: Sequence[tuple[tuple[int, int], ...]]
) -> dict[str, Any]:
    receipts = applied.receipts
    return {
        "format": FORMAT,
        "number": applied.number,
        "plan_id": applied.plan_id,
        "delta_version": applied.delta_version,
        "table_id": applied.table_id,
        "rows": [r.rows for r in receipts],
        "fetched_bytes": [r.fetched_bytes for r in receipts],
        "control_records": [r.control_records for r in receipts],
        "aborted_records": [r.aborted_records for r in receipts],
        "missing_offsets": [r.missing_offsets for r in receipts],
        "gaps": [[n for gap in some for n in gap] for some in gaps],
        "gaps_complete": [
            r.gaps_complete and len(some) == len(r.gaps)
            for r, some in zip(receipts, gaps, strict=True)
        ],
        "run_id": applied.run_id,
        "last_epoch": [r.last_epoch for r in receipts],
        "epochs": [flat(r.epochs) for r in receipts],
        "behind_transform": [r.behind_transform for r in receipts],
        "uncounted": applied.uncounted,
    }


def parse_applied(payload: bytes, *, path: str) -> CommitResult:
    """Parse a plan's result. Raises LedgersDisagree if it is invalid."""
    return parsed(payload, path, applied_of)


def applied_of(document: dict[str, Any]) -> CommitResult:
    """Return a plan's result from its document."""
    columns = (
        "rows",
        "fetched_bytes",
        "control_records",
        "aborted_records",
        "missing_offsets",
        "gaps",
        "gaps_complete",
    )
    last = document.get("last_epoch") or [None] * len(document["rows"])
    epochs = document.get("epochs") or [[]] * len(document["rows"])
    behind = document.get("behind_transform") or [False] * len(document["rows"])
    receipts = tuple(
        RangeResult(
            rows,
            fetched,
            control,
            aborted,
            missing,
            pairs(gaps),
            complete,
            epoch,
            transformed,
            pairs(of_batches),
        )
        for rows, fetched, control, aborted, missing, gaps, complete, epoch, transformed, of_batches in zip(
            *(document[c] for c in columns), last, behind, epochs, strict=True
        )
    )
    return CommitResult(
        document["number"],
        document["plan_id"],
        document["delta_version"],
        document["table_id"],
        receipts,
        document.get("run_id"),
        document.get("uncounted"),
    )


def render_loaded_intervals(coverage: LoadedIntervals) -> bytes:
    """The znode of merged intervals."""
    logs, left = in_order(coverage.intervals), in_order(coverage.given_up)
    removals = [[f.delta_version, f.operation, f.why] for f in coverage.removals]
    document = {
        "format": FORMAT,
        "through": coverage.through,
        "logs": render_logs(logs),
        "removals": removals,
        "intervals": [_render_intervals(coverage.intervals[log]) for log in logs],
        "table_id": coverage.table_id,
        "vanished": [
            [v.log.topic, v.log.key, v.from_offset, v.until_offset, v.log_epoch]
            for v in coverage.vanished
        ],
        "given_up": {
            "logs": render_logs(left),
            "intervals": [_render_intervals(coverage.given_up[log]) for log in left],
        },
        "held_through": coverage.held_through,
        "unproven_through": coverage.unproven_through,
        "keys": render_keys(coverage.keys),
    }
    if coverage.read_by_others:
        document["read_by_others"] = [
            [one.log.topic, one.log.key, one.from_offset, one.until_offset, one.log_epoch]
            for one in coverage.read_by_others
        ]
    return zlib.compress(canonical(document), 6)


def _render_intervals(found: Iterable[Interval]) -> list[list[int | None]]:
    return [
        [
            i.from_offset,
            i.until_offset,
            i.rows,
            i.control_records,
            i.aborted_records,
            i.compacted,
            i.log_epoch,
            i.unproven,
        ]
        for i in found
    ]


def parse_loaded_intervals(payload: bytes, *, path: str) -> LoadedIntervals:
    """Merged intervals. Raises LedgersDisagree when the znode does not hold them."""
    return parsed(payload, path, _coverage)


def _coverage(document: dict[str, Any]) -> LoadedIntervals:
    removals = tuple(ForeignCommit(*found) for found in document.get("removals", ()))
    vanished = tuple(
        Vanished(log_of(topic, key), *found) for topic, key, *found in document.get("vanished", ())
    )
    given_up = _parse_intervals(document["given_up"]) if "given_up" in document else {}
    return LoadedIntervals(
        document["through"],
        _parse_intervals(document),
        removals,
        document.get("table_id"),
        vanished,
        given_up,
        document.get("held_through"),
        document.get("unproven_through", 0),
        parse_keys(document.get("keys", ())),
        tuple(
            ReadByOthers(log_of(topic, key), *found)
            for topic, key, *found in document.get("read_by_others", ())
        ),
    )


def _parse_intervals(document: dict[str, Any]) -> dict[BrokerPartition, tuple[Interval, ...]]:
    logs = parse_logs(document["logs"])
    return {
        log: tuple(Interval(*i) for i in found)
        for log, found in zip(logs, document["intervals"], strict=True)
    }


def render_acknowledgement(acknowledgement: Acknowledgement) -> bytes:
    """The znode of an acknowledgement, readable as it is."""
    return json.dumps(_acknowledgement(acknowledgement), sort_keys=True).encode()


def _acknowledgement(acknowledgement: Acknowledgement) -> dict[str, Any]:
    document = {
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
    of_backfills = {name: _acknowledgement(one) for name, one in acknowledgement.beside.items()}
    of_few = {"beside": of_backfills, "rows_of": list(acknowledgement.rows_of)}
    return {**document, **{name: value for name, value in of_few.items() if value}}


def parse_acknowledgement(payload: bytes, *, path: str) -> Acknowledgement:
    """An acknowledgement. Raises LedgersDisagree when the znode does not hold one."""
    return parsed(zlib.compress(payload), path, _parse_acknowledgement)


def _parse_acknowledgement(found: dict[str, Any]) -> Acknowledgement:
    return Acknowledgement(
        found["table_id"],
        found["delta_version"],
        int(found["number"]),
        str(found["reason"]),
        int(found["at_ms"]),
        bool(found.get("lacks_plan")),
        found.get("plan_id"),
        found.get("transaction_version"),
        found.get("was_recorded"),
        found.get("commit"),
        found.get("place"),
        {str(name): _parse_acknowledgement(one) for name, one in found.get("beside", {}).items()},
        tuple(map(str, found.get("rows_of", ()))),
    )


def render_retirement(retirement: Retirement) -> bytes:
    """The znode of a pipeline that was taken out of service, readable as it is."""
    document = {
        "format": 1,
        "reason": retirement.reason,
        "at_ms": retirement.at_ms,
        "taken_over_by": retirement.taken_over_by,
    }
    return json.dumps(document, sort_keys=True).encode()


def parse_retirement(payload: bytes, *, path: str) -> Retirement:
    """Parse a retirement. Raises LedgersDisagree if it is invalid."""
    return parsed(
        zlib.compress(payload),
        path,
        lambda found: Retirement(
            str(found["reason"]),
            int(found["at_ms"]),
            str(found["taken_over_by"]) if found.get("taken_over_by") else None,
        ),
    )


CLAIM_FORMAT = 1


def render_claim(claim: Reservation) -> bytes:
    """The znode of a claim."""
    logs = in_order(claim.stretches)
    document = {
        "format": CLAIM_FORMAT,
        "name": claim.name,
        "logs": render_logs(logs),
        "stretches": [claim.stretches[log] for log in logs],
        "log_epochs": [claim.incarnation_of(log) for log in logs],
        "asked": claim.asked,
        "made_at_ms": claim.made_at_ms,
        "state": claim.state.value,
        "reason": claim.reason,
        **({"table_id": claim.table_id} if claim.table_id else {}),
    }
    return zlib.compress(canonical(document), 6)


def parse_claim(payload: bytes, *, path: str) -> Reservation:
    """The claim of a znode. Raises LedgersDisagree when it is none."""
    return parsed(payload, path, _claim)


def _claim(found: dict[str, Any]) -> Reservation:
    logs = parse_logs(found["logs"])
    stretches = {
        log: tuple((_offset(start), _offset(until)) for start, until in parts)
        for log, parts in zip(logs, found["stretches"], strict=True)
    }
    if any(start >= until for parts in stretches.values() for start, until in parts):
        raise ValueError("a stretch of it is none")
    lives = {
        log: _offset(life) for log, life in zip(logs, found["log_epochs"], strict=True) if life
    }
    return Reservation(
        str(found["name"]),
        stretches,
        lives,
        str(found["asked"]),
        int(found["made_at_ms"]),
        ReservationState(found["state"]),
        None if found["reason"] is None else str(found["reason"]),
        str(found["table_id"]) if found.get("table_id") else None,
    )


def _offset(found: object) -> int:
    if not isinstance(found, int) or found < 0:
        raise ValueError(f"{found!r} is no offset")
    return found


def render_named_table(found: NamedTable) -> bytes:
    """The znode of a named table."""
    content = {
        "name": found.name,
        "path": found.path,
        "table_id": found.table_id,
        "at_ms": found.at_ms,
        "catalog": found.catalog,
    }
    document = {"format": FORMAT, **content}
    return zlib.compress(canonical(document), 6)


def parse_named_table(payload: bytes, *, path: str) -> NamedTable:
    """Parse a table's location. Raises LedgersDisagree if it is invalid, NeedsDecision if a newer
    version wrote it.
    """
    return parsed(payload, path, _named_table)


def _named_table(found: dict[str, Any]) -> NamedTable:
    name, place, table_id, at_ms = found["name"], found["path"], found["table_id"], found["at_ms"]
    if not (
        isinstance(name, str)
        and isinstance(place, str)
        and name
        and place
        and isinstance(at_ms, int)
    ):
        raise ValueError(f"{name!r} at {place!r} is no place of a table")
    if not (table_id is None or isinstance(table_id, str)):
        raise ValueError(f"{table_id!r} is no id of a table")
    catalog = found.get("catalog")
    if not (catalog is None or isinstance(catalog, str)):
        raise ValueError(f"{catalog!r} names no catalog")
    return NamedTable(name, place, table_id, at_ms, catalog)


def render_pauses(pauses: Iterable[Pause]) -> bytes:
    """The znode of a pipeline's pauses."""
    rows = [
        [one.topic, one.log.key if one.log else None, one.reason, one.by, one.since_ms]
        for one in pauses
    ]
    return zlib.compress(canonical({"format": FORMAT, "pauses": rows}), 6)


def parse_pauses(payload: bytes, *, path: str) -> tuple[Pause, ...]:
    """The pauses of a znode. Raises LedgersDisagree where it has none, NeedsDecision where a newer
    version wrote it.
    """
    return parsed(payload, path, lambda found: tuple(_pause(*row) for row in found["pauses"]))


def _pause(topic: Any, key: Any, reason: Any, by: Any, since_ms: Any) -> Pause:
    if not isinstance(topic, str) or not isinstance(since_ms, int):
        raise ValueError(f"{topic!r} since {since_ms!r} is no pause")
    return Pause(topic, None if key is None else log_of(topic, key), str(reason), str(by), since_ms)
