"""The content of a plan: by columns, and what lies near a log's position as the distance from it.
To a document and back.

Compressed, that makes a tenth of the plain form. Beside a leader's address is kept of which
generation it was found to be, so that nobody need find it out again; a reader that does not know
that column asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etl.model.partitions import (
    Broker,
    BrokerFamily,
    BrokerPartition,
    Committed,
    Leader,
    Membership,
    OffsetsStorage,
    Share,
    Tail,
    in_order,
)
from etl.model.plans import (
    NO_BOUNDS,
    HeldRows,
    Loss,
    LossReason,
    OffsetRange,
    Plan,
    PlanKind,
    ReadByOthers,
    RowsBefore,
    TookOver,
    Vanished,
)
from etl.protocol.zookeeper.asked import parse_bounds, render_bounds
from etl.protocol.zookeeper.documents import (
    FORMAT,
    flat,
    pairs,
    parse_logs,
    render_logs,
    sorted_items,
)

_LOSS_COLUMNS = {1: 3, 2: 4}
"""How much of a loss the earlier formats said."""


def content_of(plan: Plan, form: int = FORMAT) -> dict[str, Any]:
    """Everything that the plan says but its id, as that format says it."""
    logs = in_order(plan.positions)
    index = {log: i for i, log in enumerate(logs)}
    seen, positions = [plan.seen[log] for log in logs], [plan.positions[log] for log in logs]
    brokers = sorted({r.leader.broker for r in plan.ranges if r.leader})
    address = {broker: i for i, broker in enumerate(brokers)}
    losses = [
        [index[loss.log], loss.from_offset, loss.until_offset, loss.why.value, loss.log_epoch]
        for loss in plan.losses
    ]
    known: dict[str, Any] = (
        {}
        if form == 1
        else {
            "table_bit": plan.table_transaction_version,
            "kept": [
                None if start is None else at - start
                for at, start in zip(positions, map(plan.log_starts.get, logs), strict=True)
            ],
        }
    )
    if form > 2:
        known |= _since_format_3(plan, logs, index, brokers)
    return {
        **known,
        "format": form,
        "number": plan.number,
        "uid": plan.uid,
        "kind": plan.kind.value,
        "created_at_ms": plan.created_at_ms,
        "dialect": plan.dialect.value,
        "cluster": plan.cluster,
        "shape": plan.shape,
        "table_id": plan.table_id,
        "topic_ids": dict(plan.topic_ids),
        "previous": plan.previous,
        "supersedes": plan.supersedes,
        "reason": plan.reason,
        "moves_offsets": plan.moves_offsets,
        "run_key": plan.run_key,
        "logs": render_logs(logs),
        "positions": positions,
        "behind": [
            None if s.offset is None else at - s.offset
            for at, s in zip(positions, seen, strict=True)
        ],
        "seen_version": [s.version for s in seen],
        "leaders": [[b.id, b.host, b.port] for b in brokers],
        "ranges": {
            "log": [index[r.log] for r in plan.ranges],
            "size": [r.size for r in plan.ranges],
            "before": [plan.positions[r.log] - r.until_offset for r in plan.ranges],
            "leader": [address[r.leader.broker] if r.leader else None for r in plan.ranges],
            "epoch": [r.leader.epoch if r.leader else None for r in plan.ranges],
        },
        "losses": [loss[: _LOSS_COLUMNS.get(form)] for loss in losses],
    }


def _since_format_3(
    plan: Plan,
    logs: Sequence[BrokerPartition],
    index: Mapping[BrokerPartition, int],
    brokers: Sequence[Broker],
) -> dict[str, Any]:
    """What earlier formats do not say. What few plans have is left out where it is not there: it is
    in nobody's hash then.
    """
    away, ends = plan.pending_starts, sorted_items(plan.key_ends)
    open_ends = [log for log, until in ends if until is None]
    generations = {
        r.leader.broker: r.leader.broker.generation
        for r in plan.ranges
        if r.leader and r.leader.broker.generation
    }
    of_few = {
        "pending_starts": _pending_content(plan) if away else None,
        "took_over": [plan.took_over.app_id, plan.took_over.number] if plan.took_over else None,
        "heir_of": [[one.app_id, one.number] for one in plan.heir_of] or None,
        "table_version": plan.table_version,
        "cluster_id": plan.cluster_id,
        "creation_ids": dict(plan.creation_ids) or None,
        "generations": [generations.get(broker) for broker in brokers] if generations else None,
        "tails": [
            [index[log], plan.positions[log] - one.until_offset, one.size, one.digest]
            for log, one in sorted_items(plan.tails)
        ]
        or None,
        "log_topic_ids": [
            [index[log], topic_id] for log, topic_id in sorted_items(plan.log_topic_ids)
        ]
        or None,
        "bounds": render_bounds(plan.bounds) if plan.bounds != NO_BOUNDS else None,
        "key_ends": [
            [index[log], until - plan.positions[log]] for log, until in ends if until is not None
        ]
        if ends
        else None,
        "key_open": render_logs(open_ends) or None,
        **_of_storage(plan, logs),
        "stood": [[index[log], rows] for log, rows in sorted_items(plan.stood)] or None,
        "closes": plan.closes or None,
        "share": _share_content(plan.share, index) if plan.share else None,
        "handed_over": plan.handed_over,
        "void": plan.is_void or None,
        "read_by_others": [
            [index[one.log], one.from_offset, one.until_offset, one.log_epoch]
            for one in plan.read_by_others
        ]
        or None,
        "time_zone": plan.time_zone,
        "rows_before": _rows_before_content(plan.rows_before) if plan.rows_before else None,
    }
    return {
        "epochs": {
            "leader": list(map(plan.leader_epochs.get, logs)),
            "record": [flat(found) if found else [] for found in map(plan.record_epochs.get, logs)],
            "log": [epoch or 0 for epoch in map(plan.log_epochs.get, logs)],
        },
        "vanished": [
            [index[v.log], v.from_offset, v.until_offset, v.log_epoch] for v in plan.vanished
        ],
        **{name: value for name, value in of_few.items() if value is not None},
    }


def _of_storage(plan: Plan, logs: Sequence[BrokerPartition]) -> dict[str, Any]:
    """Where offsets are that are in Kafka, too, and what stood beside them: few plans wrote those
    of all logs.
    """
    if plan.offsets_in is OffsetsStorage.ZOOKEEPER:
        return {}
    seen = [plan.seen[log] for log in logs]
    words = sorted({found.word for found in seen if found.word is not None})
    number = {word: i for i, word in enumerate(words)}
    return {
        "offsets_in": plan.offsets_in.value,
        "words": words,
        "word": [None if found.word is None else number[found.word] for found in seen],
        "apart": [[i, *found.apart] for i, found in enumerate(seen) if found.apart] or None,
    }


def plan_of(document: dict[str, Any]) -> Plan:
    """The plan of a document, whatever its id says."""
    logs = parse_logs(document["logs"])
    generations = document.get("generations") or [None] * len(document["leaders"])
    brokers = [
        Broker(number, host, port, told)
        for (number, host, port), told in zip(document["leaders"], generations, strict=True)
    ]
    columns = document["ranges"]
    positions: list[int] = document["positions"]
    ranges = tuple(
        OffsetRange(
            logs[i],
            positions[i] - before - size,
            positions[i] - before,
            None if at is None else Leader(brokers[at], epoch),
        )
        for i, size, before, at, epoch in zip(
            *(columns[c] for c in ("log", "size", "before", "leader", "epoch")), strict=True
        )
    )
    words, apart = (
        document.get("words") or (),
        {i: (first, second) for i, first, second in document.get("apart") or ()},
    )
    beside = document.get("word") or [None] * len(logs)
    seen = {
        log: Committed(
            None if behind is None else position - behind,
            version,
            None if word is None else words[word],
            apart.get(i),
        )
        for i, (log, position, behind, version, word) in enumerate(
            zip(logs, positions, document["behind"], document["seen_version"], beside, strict=True)
        )
    }
    kept, epochs = document.get("kept") or [None] * len(logs), document.get("epochs") or {}
    return Plan(
        number=document["number"],
        uid=document["uid"],
        kind=PlanKind(document["kind"]),
        created_at_ms=document["created_at_ms"],
        dialect=BrokerFamily(document["dialect"]),
        cluster=document["cluster"],
        shape=document["shape"],
        table_id=document["table_id"],
        topic_ids=document["topic_ids"],
        previous=document["previous"],
        supersedes=document["supersedes"],
        reason=document["reason"],
        moves_offsets=document["moves_offsets"],
        run_key=document["run_key"],
        ranges=ranges,
        positions=dict(zip(logs, positions, strict=True)),
        seen=seen,
        id=document["id"],
        losses=tuple(
            _loss(logs[i], start, stop, *more) for i, start, stop, *more in document["losses"]
        ),
        table_transaction_version=document.get("table_bit", document["number"] - 1),
        log_starts={
            log: p - back
            for log, p, back in zip(logs, positions, kept, strict=True)
            if back is not None
        },
        leader_epochs=_known_of(logs, epochs.get("leader")),
        record_epochs=_lineages(logs, epochs.get("record") or []),
        log_epochs={
            log: epoch for log, epoch in _known_of(logs, epochs.get("log")).items() if epoch
        },
        pending_starts=_pending(document.get("pending_starts"), "at_ms"),
        pending_offsets=_pending_offsets(document.get("pending_starts")),
        vanished=tuple(
            Vanished(logs[i], start, stop, epoch)
            for i, start, stop, epoch in document.get("vanished", ())
        ),
        took_over=TookOver(*document["took_over"]) if document.get("took_over") else None,
        heir_of=tuple(TookOver(*one) for one in document.get("heir_of", ())),
        table_version=document.get("table_version"),
        tails={
            logs[i]: Tail(positions[i] - back, size, digest)
            for i, back, size, digest in document.get("tails", ())
        },
        log_topic_ids={logs[i]: topic_id for i, topic_id in document.get("log_topic_ids", ())},
        creation_ids=document.get("creation_ids", {}),
        cluster_id=document.get("cluster_id"),
        bounds=parse_bounds(document.get("bounds")),
        key_ends={
            **{logs[i]: positions[i] + further for i, further in document.get("key_ends", ())},
            **dict.fromkeys(parse_logs(document.get("key_open", {}))),
        },
        stood={logs[i]: rows for i, rows in document.get("stood", ())},
        closes=bool(document.get("closes")),
        offsets_in=OffsetsStorage(document.get("offsets_in", OffsetsStorage.ZOOKEEPER)),
        share=_share(document["share"], logs) if document.get("share") else None,
        handed_over=document.get("handed_over"),
        is_void=bool(document.get("void")),
        read_by_others=tuple(
            ReadByOthers(logs[i], *stretch) for i, *stretch in document.get("read_by_others", ())
        ),
        time_zone=document.get("time_zone"),
        rows_before=_rows_before(document["rows_before"]) if document.get("rows_before") else None,
    )


def _rows_before_content(before: RowsBefore) -> dict[str, Any]:
    """Their partitions need not be among those of the plan."""
    logs = in_order({one.log for one in before.held})
    index = {log: i for i, log in enumerate(logs)}
    rows = [
        [
            index[one.log],
            one.log_epoch,
            one.from_offset,
            one.until_offset - one.from_offset,
            one.rows,
            int(one.is_accepted),
        ]
        for one in before.held
    ]
    return {"table_id": before.table_id, "logs": render_logs(logs), "rows": rows}


def _rows_before(found: Mapping[str, Any]) -> RowsBefore:
    logs = parse_logs(found["logs"])
    return RowsBefore(
        found["table_id"],
        tuple(
            HeldRows(logs[i], life, start, start + size, rows, bool(accepted))
            for i, life, start, size, rows, accepted in found["rows"]
        ),
    )


def _share_content(share: Share, index: Mapping[BrokerPartition, int]) -> dict[str, Any]:
    return {
        "member_id": share.member_id,
        "membership": share.membership.value,
        "strategy": share.strategy,
        "generation": share.generation,
        "instance_id": share.instance_id,
        "logs": sorted(index[log] for log in share.logs),
    }


def _share(found: Mapping[str, Any], logs: Sequence[BrokerPartition]) -> Share:
    owned = frozenset(logs[i] for i in found["logs"])
    return Share(
        found["member_id"],
        Membership(found["membership"]),
        found["strategy"],
        found["generation"],
        owned,
        found["instance_id"],
    )


def _lineages(
    logs: list[BrokerPartition], column: list[list[int]]
) -> dict[BrokerPartition, tuple[tuple[int, int], ...]]:
    return (
        {log: pairs(flat) for log, flat in zip(logs, column, strict=True) if flat} if column else {}
    )


def _loss(
    log: BrokerPartition,
    start: int,
    stop: int,
    why: str = LossReason.EXPIRED.value,
    log_epoch: int = 0,
) -> Loss:
    return Loss(log, start, stop, LossReason(why), log_epoch)


def _pending_content(plan: Plan) -> dict[str, Any]:
    away = sorted_items(plan.pending_starts)
    content: dict[str, Any] = {
        "logs": render_logs(log for log, _ in away),
        "at_ms": [moment for _, moment in away],
    }
    if plan.pending_offsets:
        content["offsets"] = [plan.pending_offsets.get(log) for log, _ in away]
    return content


def _pending(found: Mapping[str, Any] | None, column: str) -> dict[BrokerPartition, int | None]:
    return dict(zip(parse_logs(found["logs"]), found[column], strict=True)) if found else {}


def _pending_offsets(found: Mapping[str, Any] | None) -> dict[BrokerPartition, int]:
    if not found or "offsets" not in found:
        return {}
    return {log: offset for log, offset in _pending(found, "offsets").items() if offset is not None}


def _known_of(
    logs: list[BrokerPartition], column: list[int | None] | None
) -> dict[BrokerPartition, int]:
    """A column of what is known of some of the logs."""
    return (
        {log: value for log, value in zip(logs, column, strict=True) if value is not None}
        if column
        else {}
    )
