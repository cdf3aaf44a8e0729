"""What the ledger keeps beside plans, as bytes: what came of them, coverage, acknowledgements,
retirement.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from etl.model.partitions import BrokerPartition, in_order
from etl.model.plans import CommitResult, RangeResult, ReadByOthers, Vanished
from etl.model.snapshot import Acknowledgement, Coverage, ForeignCommit, Interval, Retirement
from etl.protocol.zookeeper import documents
from etl.protocol.zookeeper.asked import parse_keys, render_keys
from etl.protocol.zookeeper.documents import (
    FORMAT,
    canonical,
    flat,
    log_of,
    pairs,
    parse_logs,
    parsed,
    render_logs,
)

_GAP_BYTES = 40
"""What one gap costs at most: two offsets of 19 digits, each with a comma."""


def render_applied(applied: CommitResult) -> bytes:
    """The znode that says what came of a plan. Where all gaps do not fit, as many ranges as can be
    keep theirs.
    """
    document = applied_content(applied)
    left = (documents.WRITTEN_MAX_BYTES - len(canonical(document))) // _GAP_BYTES
    return zlib.compress(
        canonical(_applied_content(applied, _gaps_that_fit(applied.receipts, left))), 6
    )


def applied_content(applied: CommitResult) -> dict[str, Any]:
    """What came of a plan as it is stored, without the gaps and before it is compressed."""
    return _applied_content(applied, ((),) * len(applied.receipts))


def _gaps_that_fit(receipts: Sequence[RangeResult], left: int) -> list[tuple[tuple[int, int], ...]]:
    """The gaps of each receipt, all of them or none: some of a range's gaps prove no more than
    their number does.
    """
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
    """What came of a plan. Raises LedgersDisagree when the znode does not say."""
    return parsed(payload, path, applied_of)


def applied_of(document: dict[str, Any]) -> CommitResult:
    """What came of a plan, of the document that says it."""
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


def render_coverage(coverage: Coverage) -> bytes:
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


def parse_coverage(payload: bytes, *, path: str) -> Coverage:
    """Merged intervals. Raises LedgersDisagree when the znode does not hold them."""
    return parsed(payload, path, _coverage)


def _coverage(document: dict[str, Any]) -> Coverage:
    removals = tuple(ForeignCommit(*found) for found in document.get("removals", ()))
    vanished = tuple(
        Vanished(log_of(topic, key), *found) for topic, key, *found in document.get("vanished", ())
    )
    given_up = _parse_intervals(document["given_up"]) if "given_up" in document else {}
    return Coverage(
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
    said = {
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
    beside = {name: _acknowledgement(one) for name, one in acknowledgement.beside.items()}
    of_few = {"beside": beside, "rows_of": list(acknowledgement.rows_of)}
    return {**said, **{name: value for name, value in of_few.items() if value}}


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
    said = {
        "format": 1,
        "reason": retirement.reason,
        "at_ms": retirement.at_ms,
        "taken_over_by": retirement.taken_over_by,
    }
    return json.dumps(said, sort_keys=True).encode()


def parse_retirement(payload: bytes, *, path: str) -> Retirement:
    """Why a pipeline was taken out of service. Raises LedgersDisagree when the znode does not say."""
    return parsed(
        zlib.compress(payload),
        path,
        lambda found: Retirement(
            str(found["reason"]),
            int(found["at_ms"]),
            str(found["taken_over_by"]) if found.get("taken_over_by") else None,
        ),
    )
