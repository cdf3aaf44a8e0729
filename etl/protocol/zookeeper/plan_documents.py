"""Plans as bytes, and all that the ledger keeps beside them: what came of them, coverage, acknowledgements, retirement.

A plan is stored by columns and compressed, and what lies near a log's position is stored as the distance from it: that
makes a tenth of the plain form. Its id is the hash of the canonical content without the leaders, because a leader is only
today's address. Beside a leader's address is kept of which generation it was found to be, so that nobody need find it out again; a
reader that does not know that column asks.

Whatever carries a newer format is refused, so that an old driver never misreads a new plan. Format 1 lacked what a plan
knows of the table's transaction version, of log starts and of why offsets were let go; formats before 3 lacked leader epochs, the
lives of logs, the starts that wait for their log, and what is not known of rows that were counted again. Their documents are still read.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from etl.errors import LedgersDisagree, NeedsDecision, SettingsError
from etl.model.bounds import NO_BOUNDS
from etl.model.ledger import Acknowledgement, Coverage, Interval, Retirement
from etl.model.logs import Broker, BrokerPartition, Dialect, Leader, Tail, in_order
from etl.model.losses import Loss, LossReason, Vanished
from etl.model.plans import Committed, OffsetRange, Plan, PlanKind, TookOver
from etl.model.receipts import Applied, Receipt
from etl.model.table import ForeignCommit
from etl.protocol.zookeeper.asked import parse_bounds, parse_keys, render_bounds, render_keys
from etl.protocol.zookeeper.payloads import parse_partition_key

T = TypeVar("T")
V = TypeVar("V")
FORMAT = 3
WRITTEN_MAX_BYTES = 64 * 2**20
"""No document is written that is larger before it is compressed: a plan is refused, a record leaves gaps out."""
DOCUMENT_MAX_BYTES = 4 * WRITTEN_MAX_BYTES
"""A decompressed document larger than this is not one of ours. Earlier versions bounded no record that they wrote."""
RANGES_MAX = 500_000
"""A plan with more ranges than this is refused: its record could outgrow `WRITTEN_MAX_BYTES` without naming one gap."""
_GAP_BYTES = 40
"""What one gap costs at most: two offsets of 19 digits, each with a comma."""
FEWER_TOPICS = "that the expressions match what you mean; source.topics.deny leaves topics out"


def with_id(plan: Plan) -> Plan:
    """The same plan with its id filled in."""
    return replace(plan, id=plan_id(plan))


def plan_id(plan: Plan, form: int = FORMAT) -> str:
    """Hash of the canonical content in that format, without the leaders: 32 hex digits."""
    content = _content(plan, form)
    del content["leaders"], content["ranges"]["leader"], content["ranges"]["epoch"]
    content.pop("generations", None)
    return hashlib.sha256(_canonical(content)).hexdigest()[:32]


def render_plan(plan: Plan) -> bytes:
    """The znode of a plan. Raises SettingsError for one so large that it, or what comes of it, could not be read again."""
    document = _canonical(plan_content(plan))
    if len(document) > WRITTEN_MAX_BYTES:
        what = f"the plan knows {len(plan.positions):,} logs and would take {len(document):,} bytes of {WRITTEN_MAX_BYTES:,}"
        raise SettingsError(what, key="source.topics", check=FEWER_TOPICS)
    if len(plan.ranges) > RANGES_MAX:
        what = f"the plan would have {len(plan.ranges):,} ranges of {RANGES_MAX:,}"
        check = "set limits.max_bytes_per_run or limits.max_records_per_run, so that one run takes on less, or raise target_task_bytes"
        raise SettingsError(what, key="limits.target_task_bytes", check=check)
    return zlib.compress(document, 6)


def plan_content(plan: Plan) -> dict[str, Any]:
    """A plan as it is stored, before it is compressed."""
    return {**_content(plan), "id": plan.id}


def parse_plan(payload: bytes, *, path: str) -> Plan:
    """The plan of a znode. Raises LedgersDisagree when it is not one, or its content does not hash to its id."""
    return _parsed(payload, path, _plan)


def render_applied(applied: Applied) -> bytes:
    """The znode that says what came of a plan. Where all gaps do not fit, as many ranges as can be keep theirs."""
    document = applied_content(applied)
    left = (WRITTEN_MAX_BYTES - len(_canonical(document))) // _GAP_BYTES
    return zlib.compress(_canonical(_applied_content(applied, _gaps_that_fit(applied.receipts, left))), 6)


def applied_content(applied: Applied) -> dict[str, Any]:
    """What came of a plan as it is stored, without the gaps and before it is compressed."""
    return _applied_content(applied, ((),) * len(applied.receipts))


def _gaps_that_fit(receipts: Sequence[Receipt], left: int) -> list[tuple[tuple[int, int], ...]]:
    """The gaps of each receipt, all of them or none: some of a range's gaps prove no more than their number does."""
    kept: list[tuple[tuple[int, int], ...]] = [()] * len(receipts)
    for i in sorted(range(len(receipts)), key=lambda i: len(receipts[i].gaps)):
        left -= len(receipts[i].gaps)
        if left < 0:
            break
        kept[i] = receipts[i].gaps
    return kept


def _applied_content(applied: Applied, gaps: Sequence[tuple[tuple[int, int], ...]]) -> dict[str, Any]:
    receipts = applied.receipts
    return {
        "format": FORMAT, "number": applied.number, "plan_id": applied.plan_id, "delta_version": applied.delta_version,
        "table_id": applied.table_id, "rows": [r.rows for r in receipts], "fetched_bytes": [r.fetched_bytes for r in receipts],
        "control_records": [r.control_records for r in receipts], "aborted_records": [r.aborted_records for r in receipts],
        "missing_offsets": [r.missing_offsets for r in receipts], "gaps": [[n for gap in some for n in gap] for some in gaps],
        "gaps_complete": [r.gaps_complete and len(some) == len(r.gaps) for r, some in zip(receipts, gaps, strict=True)],
        "run_id": applied.run_id, "last_epoch": [r.last_epoch for r in receipts],
        "epochs": [_flat(r.epochs) for r in receipts],
        "behind_transform": [r.behind_transform for r in receipts], "uncounted": applied.uncounted,
    }


def parse_applied(payload: bytes, *, path: str) -> Applied:
    """What came of a plan. Raises LedgersDisagree when the znode does not say."""
    return _parsed(payload, path, applied_of)


def render_coverage(coverage: Coverage) -> bytes:
    """The znode of merged intervals."""
    logs, left = in_order(coverage.intervals), in_order(coverage.given_up)
    removals = [[f.delta_version, f.operation, f.why] for f in coverage.removals]
    document = {
        "format": FORMAT, "through": coverage.through, "logs": _render_logs(logs), "removals": removals,
        "intervals": [_render_intervals(coverage.intervals[log]) for log in logs], "table_id": coverage.table_id,
        "vanished": [[v.log.topic, v.log.key, v.from_offset, v.until_offset, v.log_epoch] for v in coverage.vanished],
        "given_up": {"logs": _render_logs(left), "intervals": [_render_intervals(coverage.given_up[log]) for log in left]},
        "held_through": coverage.held_through, "unproven_through": coverage.unproven_through,
        "keys": render_keys(coverage.keys)}
    return zlib.compress(_canonical(document), 6)


def _render_intervals(found: Iterable[Interval]) -> list[list[int | None]]:
    return [
        [i.from_offset, i.until_offset, i.rows, i.control_records, i.aborted_records, i.compacted, i.log_epoch, i.unproven] for i in found]


def parse_coverage(payload: bytes, *, path: str) -> Coverage:
    """Merged intervals. Raises LedgersDisagree when the znode does not hold them."""
    return _parsed(payload, path, _coverage)


def render_acknowledgement(acknowledgement: Acknowledgement) -> bytes:
    """The znode of an acknowledgement, readable as it is."""
    return json.dumps({
        "format": FORMAT, "table_id": acknowledgement.table_id, "delta_version": acknowledgement.delta_version,
        "number": acknowledgement.number, "reason": acknowledgement.reason, "at_ms": acknowledgement.at_ms,
        "lacks_plan": acknowledgement.lacks_plan, "plan_id": acknowledgement.plan_id,
        "transaction_version": acknowledgement.transaction_version, "was_recorded": acknowledgement.was_recorded,
        "commit": acknowledgement.commit, "place": acknowledgement.place},
        sort_keys=True).encode()


def parse_acknowledgement(payload: bytes, *, path: str) -> Acknowledgement:
    """An acknowledgement. Raises LedgersDisagree when the znode does not hold one."""
    return _parsed(zlib.compress(payload), path, lambda found: Acknowledgement(
        found["table_id"], found["delta_version"], int(found["number"]), str(found["reason"]), int(found["at_ms"]),
        bool(found.get("lacks_plan")), found.get("plan_id"), found.get("transaction_version"), found.get("was_recorded"),
        found.get("commit"), found.get("place")))


def render_retirement(retirement: Retirement) -> bytes:
    """The znode of a pipeline that was taken out of service, readable as it is."""
    said = {"format": 1, "reason": retirement.reason, "at_ms": retirement.at_ms, "taken_over_by": retirement.taken_over_by}
    return json.dumps(said, sort_keys=True).encode()


def parse_retirement(payload: bytes, *, path: str) -> Retirement:
    """Why a pipeline was taken out of service. Raises LedgersDisagree when the znode does not say."""
    return _parsed(zlib.compress(payload), path, lambda found: Retirement(
        str(found["reason"]), int(found["at_ms"]), str(found["taken_over_by"]) if found.get("taken_over_by") else None))


_LOSS_COLUMNS = {1: 3, 2: 4}
"""How much of a loss the earlier formats said."""


def _content(plan: Plan, form: int = FORMAT) -> dict[str, Any]:
    logs = in_order(plan.positions)
    index = {log: i for i, log in enumerate(logs)}
    seen = [plan.seen[log] for log in logs]
    brokers = sorted({r.leader.broker for r in plan.ranges if r.leader})
    address = {broker: i for i, broker in enumerate(brokers)}
    losses = [[index[loss.log], loss.from_offset, loss.until_offset, loss.why.value, loss.log_epoch] for loss in plan.losses]
    known: dict[str, Any] = {} if form == 1 else {
        "table_bit": plan.table_transaction_version,
        "kept": [plan.positions[log] - plan.log_starts[log] if log in plan.log_starts else None for log in logs],
    }
    if form > 2:
        known["epochs"] = {
            "leader": [plan.leader_epochs.get(log) for log in logs], "record": [_flat(plan.record_epochs.get(log, ())) for log in logs],
            "log": [plan.log_epochs.get(log, 0) for log in logs]}
        if plan.pending_starts:
            away = sorted_items(plan.pending_starts)
            known["pending_starts"] = {"logs": _render_logs(log for log, _ in away), "at_ms": [moment for _, moment in away]}
        if plan.took_over:
            known["took_over"] = [plan.took_over.app_id, plan.took_over.number]
        if plan.heir_of:
            known["heir_of"] = [[one.app_id, one.number] for one in plan.heir_of]
        if plan.table_version is not None:
            known["table_version"] = plan.table_version
        generations = {r.leader.broker: r.leader.broker.generation for r in plan.ranges if r.leader and r.leader.broker.generation}
        if generations:
            known["generations"] = [generations.get(broker) for broker in brokers]
        if plan.tails:
            known["tails"] = [
                [index[log], plan.positions[log] - one.until_offset, one.size, one.digest] for log, one in sorted_items(plan.tails)]
        if plan.log_topic_ids:
            known["log_topic_ids"] = [[index[log], topic_id] for log, topic_id in sorted_items(plan.log_topic_ids)]
        if plan.creation_ids:
            known["creation_ids"] = dict(plan.creation_ids)
        if plan.cluster_id is not None:
            known["cluster_id"] = plan.cluster_id
        if plan.bounds != NO_BOUNDS:
            known["bounds"] = render_bounds(plan.bounds)
        if plan.key_ends:
            known["key_ends"] = [[index[log], until - plan.positions[log]] for log, until in sorted_items(plan.key_ends)]
        if plan.stood:
            known["stood"] = [[index[log], rows] for log, rows in sorted_items(plan.stood)]
        known["vanished"] = [[index[v.log], v.from_offset, v.until_offset, v.log_epoch] for v in plan.vanished]
    return {
        **known, "format": form, "number": plan.number, "uid": plan.uid, "kind": plan.kind.value, "created_at_ms": plan.created_at_ms,
        "dialect": plan.dialect.value, "cluster": plan.cluster, "shape": plan.shape, "table_id": plan.table_id,
        "topic_ids": dict(plan.topic_ids), "previous": plan.previous, "supersedes": plan.supersedes, "reason": plan.reason,
        "moves_offsets": plan.moves_offsets, "run_key": plan.run_key,
        "logs": _render_logs(logs), "positions": [plan.positions[log] for log in logs],
        "behind": [None if s.offset is None else plan.positions[log] - s.offset for log, s in zip(logs, seen, strict=True)],
        "seen_version": [s.version for s in seen],
        "leaders": [[b.id, b.host, b.port] for b in brokers],
        "ranges": {
            "log": [index[r.log] for r in plan.ranges], "size": [r.size for r in plan.ranges],
            "before": [plan.positions[r.log] - r.until_offset for r in plan.ranges],
            "leader": [address[r.leader.broker] if r.leader else None for r in plan.ranges],
            "epoch": [r.leader.epoch if r.leader else None for r in plan.ranges],
        },
        "losses": [loss[:_LOSS_COLUMNS.get(form)] for loss in losses],
    }


def _plan(document: dict[str, Any]) -> Plan:
    plan = plan_of(document)
    if plan_id(plan, document["format"]) != plan.id:
        raise ValueError("its content does not hash to its id")
    return plan


def plan_of(document: dict[str, Any]) -> Plan:
    """The plan of `plan_content`, whatever its id says."""
    logs = _parse_logs(document["logs"])
    generations = document.get("generations") or [None] * len(document["leaders"])
    brokers = [Broker(number, host, port, told) for (number, host, port), told in zip(document["leaders"], generations, strict=True)]
    columns = document["ranges"]
    positions: list[int] = document["positions"]
    ranges = tuple(
        OffsetRange(logs[i], positions[i] - before - size, positions[i] - before, None if at is None else Leader(brokers[at], epoch))
        for i, size, before, at, epoch in zip(*(columns[c] for c in ("log", "size", "before", "leader", "epoch")), strict=True)
    )
    seen = {
        log: Committed(None if behind is None else position - behind, version)
        for log, position, behind, version in zip(logs, positions, document["behind"], document["seen_version"], strict=True)
    }
    kept, epochs = document.get("kept") or [None] * len(logs), document.get("epochs") or {}
    return Plan(
        number=document["number"], uid=document["uid"], kind=PlanKind(document["kind"]), created_at_ms=document["created_at_ms"],
        dialect=Dialect(document["dialect"]), cluster=document["cluster"], shape=document["shape"], table_id=document["table_id"],
        topic_ids=document["topic_ids"], previous=document["previous"], supersedes=document["supersedes"], reason=document["reason"],
        moves_offsets=document["moves_offsets"], run_key=document["run_key"], ranges=ranges,
        positions=dict(zip(logs, positions, strict=True)), seen=seen,
        id=document["id"],
        losses=tuple(_loss(logs[i], start, stop, *more) for i, start, stop, *more in document["losses"]),
        table_transaction_version=document.get("table_bit", document["number"] - 1),
        log_starts={log: p - back for log, p, back in zip(logs, positions, kept, strict=True) if back is not None},
        leader_epochs=_known_of(logs, epochs.get("leader")), record_epochs=_lineages(logs, epochs.get("record") or []),
        log_epochs={log: epoch for log, epoch in _known_of(logs, epochs.get("log")).items() if epoch},
        pending_starts=_pending(document.get("pending_starts")),
        vanished=tuple(Vanished(logs[i], start, stop, epoch) for i, start, stop, epoch in document.get("vanished", ())),
        took_over=TookOver(*document["took_over"]) if document.get("took_over") else None,
        heir_of=tuple(TookOver(*one) for one in document.get("heir_of", ())), table_version=document.get("table_version"),
        tails={logs[i]: Tail(positions[i] - back, size, digest) for i, back, size, digest in document.get("tails", ())},
        log_topic_ids={logs[i]: topic_id for i, topic_id in document.get("log_topic_ids", ())},
        creation_ids=document.get("creation_ids", {}),
        cluster_id=document.get("cluster_id"), bounds=parse_bounds(document.get("bounds")),
        key_ends={logs[i]: positions[i] + further for i, further in document.get("key_ends", ())},
        stood={logs[i]: rows for i, rows in document.get("stood", ())},
    )


def _flat(pairs: Iterable[tuple[int, int]]) -> list[int]:
    return [number for pair in pairs for number in pair]


def _pairs(flat: list[int]) -> tuple[tuple[int, int], ...]:
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def _lineages(logs: list[BrokerPartition], column: list[list[int]]) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
    return {log: _pairs(flat) for log, flat in zip(logs, column, strict=True) if flat} if column else {}


def _loss(log: BrokerPartition, start: int, stop: int, why: str = LossReason.EXPIRED.value, log_epoch: int = 0) -> Loss:
    return Loss(log, start, stop, LossReason(why), log_epoch)


def _pending(found: Mapping[str, Any] | None) -> dict[BrokerPartition, int | None]:
    return dict(zip(_parse_logs(found["logs"]), found["at_ms"], strict=True)) if found else {}


def _known_of(logs: list[BrokerPartition], column: list[int | None] | None) -> dict[BrokerPartition, int]:
    """A column of what is known of some of the logs."""
    return {log: value for log, value in zip(logs, column, strict=True) if value is not None} if column else {}


def applied_of(document: dict[str, Any]) -> Applied:
    """What came of a plan, of the document that says it."""
    columns = ("rows", "fetched_bytes", "control_records", "aborted_records", "missing_offsets", "gaps", "gaps_complete")
    last = document.get("last_epoch") or [None] * len(document["rows"])
    epochs = document.get("epochs") or [[]] * len(document["rows"])
    behind = document.get("behind_transform") or [False] * len(document["rows"])
    receipts = tuple(
        Receipt(rows, fetched, control, aborted, missing, _pairs(gaps), complete, epoch, transformed, _pairs(of_batches))
        for rows, fetched, control, aborted, missing, gaps, complete, epoch, transformed, of_batches
        in zip(*(document[c] for c in columns), last, behind, epochs, strict=True)
    )
    return Applied(
        document["number"], document["plan_id"], document["delta_version"], document["table_id"], receipts, document.get("run_id"),
        document.get("uncounted"))


def _coverage(document: dict[str, Any]) -> Coverage:
    removals = tuple(ForeignCommit(*found) for found in document.get("removals", ()))
    vanished = tuple(Vanished(_log(topic, key), *found) for topic, key, *found in document.get("vanished", ()))
    given_up = _parse_intervals(document["given_up"]) if "given_up" in document else {}
    return Coverage(
        document["through"], _parse_intervals(document), removals, document.get("table_id"), vanished, given_up,
        document.get("held_through"), document.get("unproven_through", 0),
        parse_keys(document.get("keys", ())))


def _parse_intervals(document: dict[str, Any]) -> dict[BrokerPartition, tuple[Interval, ...]]:
    logs = _parse_logs(document["logs"])
    return {log: tuple(Interval(*i) for i in found) for log, found in zip(logs, document["intervals"], strict=True)}


def _parsed(payload: bytes, path: str, build: Callable[[dict[str, Any]], T]) -> T:
    try:
        document = json.loads(_inflate(payload))
        if document["format"] > FORMAT:
            what = f"the document has format {document['format']}, this version reads up to {FORMAT}"
            raise NeedsDecision(what, znode=path, check="that the newest version of offset-range-etl runs everywhere")
        return build(document)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError, zlib.error) as error:
        what = f"the znode does not hold what it should: {type(error).__name__}: {error}"
        raise LedgersDisagree(what, znode=path, check="who wrote that znode, and whether ZooKeeper was restored from a copy") from error


def _inflate(payload: bytes) -> bytes:
    """Decompress, never to more than a document of ours can be."""
    inflating = zlib.decompressobj()
    text = inflating.decompress(payload, DOCUMENT_MAX_BYTES)
    if not inflating.eof:
        raise ValueError("it is cut off or far too large")
    return text


def _render_logs(logs: Iterable[BrokerPartition]) -> dict[str, list[str]]:
    """Logs that are `in_order`, by topic: `{topic: [key, ...]}`."""
    found: dict[str, list[str]] = {}
    for log in logs:
        found.setdefault(log.topic, []).append(log.key)
    return found


def _parse_logs(found: Mapping[str, list[str]]) -> list[BrokerPartition]:
    return [_log(topic, key) for topic, keys in found.items() for key in keys]


def _log(topic: str, key: str) -> BrokerPartition:
    log = parse_partition_key(topic, key)
    if log is None:
        raise ValueError(f"{key!r} is no partition key")
    return log


def sorted_items(of_logs: Mapping[BrokerPartition, V]) -> list[tuple[BrokerPartition, V]]:
    return [(log, of_logs[log]) for log in in_order(of_logs)]


def _canonical(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
