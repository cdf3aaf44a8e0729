"""How is a plan written into a znode and into a table commit, and what is its id?

The id is the hash of the canonical content without leaders (an address changes), without the state
of the offset commit, and without the time zone, which decides no range.

The content is columnar, with numbers near a partition's position as distances from it; compressed
that is a tenth of the plain form. Beside a leader's address its broker type is kept, so that it is
detected once.

Lives here, too: the `userMetadata` of our Delta commits.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from etl.errors import EtlError, SettingsError
from etl.ledger import documents
from etl.ledger.documents import (
    FORMAT,
    canonical,
    flat,
    pairs,
    parse_applied,
    parse_bounds,
    parse_logs,
    parsed,
    render_applied,
    render_bounds,
    render_logs,
    sorted_items,
)
from etl.model.partitions import (
    Broker,
    BrokerFamily,
    BrokerPartition,
    Committed,
    Leader,
    MemberAssignment,
    Membership,
    OffsetsStorage,
    Tail,
    in_order,
)
from etl.model.plans import (
    NO_BOUNDS,
    CommitResult,
    HeldRows,
    Loss,
    LossReason,
    OffsetRange,
    Plan,
    PlanKind,
    RangeResult,
    ReadByOthers,
    RowsBefore,
    TookOver,
    Vanished,
)
from etl.model.snapshot import CommitMetadata

_LOSS_COLUMNS = {1: 3, 2: 4}
"""Columns of a loss in earlier formats."""


def content_of(plan: Plan, form: int = FORMAT) -> dict[str, Any]:
    """Return everything of the plan but its id, in that format."""
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
    """Return what earlier formats lack. Rare fields are left out if unset, and so of the hash."""
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
        "share": _assignment_content(plan.share, index) if plan.share else None,
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
    """Return where offsets are if not in ZooKeeper only, and their metadata."""
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
    """Return the plan of a document, whatever its id."""
    logs = parse_logs(document["logs"])
    generations = document.get("generations") or [None] * len(document["leaders"])
    brokers = [
        Broker(number, host, port, family)
        for (number, host, port), family in zip(document["leaders"], generations, strict=True)
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


def _assignment_content(
    share: MemberAssignment, index: Mapping[BrokerPartition, int]
) -> dict[str, Any]:
    return {
        "member_id": share.member_id,
        "membership": share.membership.value,
        "strategy": share.strategy,
        "generation": share.generation,
        "instance_id": share.instance_id,
        "logs": sorted(index[log] for log in share.logs),
    }


def _share(found: Mapping[str, Any], logs: Sequence[BrokerPartition]) -> MemberAssignment:
    owned = frozenset(logs[i] for i in found["logs"])
    return MemberAssignment(
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
    """Return a column of values known for some of the partitions."""
    return (
        {log: value for log, value in zip(logs, column, strict=True) if value is not None}
        if column
        else {}
    )


RANGES_MAX = 500_000
"""A plan with more ranges than this is refused: its record could outgrow `WRITTEN_MAX_BYTES`
without naming one gap.
"""
FEWER_TOPICS = (
    "Check that the expressions match what you mean; source.exclude_topics leaves topics out"
)
_NOT_HASHED = ("leaders", "generations", "void", "time_zone")
_LEADERS_OF_RANGES = ("leader", "epoch")
"""Parts of the content that are not hashed."""


def with_id(plan: Plan) -> Plan:
    """Return the plan with its id."""
    parts = _parts(content_of(plan))
    known = replace(plan, id=_hash(parts))
    _rendered.keep(known, parts)  # the id is no part of them
    return known


def plan_id(plan: Plan, form: int = FORMAT) -> str:
    """Return the hash of the canonical content in that format, without leaders and commit state: 32
    hex digits.
    """
    return _hash(_parts(content_of(plan, form)))


class _Parts(NamedTuple):
    """The canonical text of each part of a plan's content, by its name."""

    ranges: Mapping[str, str]
    others: Mapping[str, str]


class _Rendered:
    """Caches the last rendered plan: its content is needed for the id, the znode and the commit,
    and takes half a second for a large plan.
    """

    def __init__(self) -> None:
        self._last: tuple[Plan, _Parts] | None = None

    def of(self, plan: Plan) -> _Parts:
        last = self._last  # one look: another thread may render another plan
        if last is not None and last[0] is plan:
            return last[1]
        return self.keep(plan, _parts(content_of(plan)))

    def keep(self, plan: Plan, parts: _Parts) -> _Parts:
        self._last = plan, parts
        return parts


_rendered = _Rendered()


def _parts(content: dict[str, Any]) -> _Parts:
    ranges = content.pop("ranges")
    return _Parts(
        *(
            {name: canonical(part).decode() for name, part in found.items()}
            for found in (ranges, content)
        )
    )


def _hash(parts: _Parts) -> str:
    ranges = {name: text for name, text in parts.ranges.items() if name not in _LEADERS_OF_RANGES}
    content = {name: text for name, text in parts.others.items() if name not in _NOT_HASHED}
    if "handed_over" in content:
        content["handed_over"] = canonical(
            True
        ).decode()  # it becomes so, and the plan stays the same
    return hashlib.sha256(_joined({**content, "ranges": _joined(ranges)}).encode()).hexdigest()[:32]


def _joined(parts: Mapping[str, str]) -> str:
    """The canonical text of an object of these parts."""
    return "{" + ",".join(f'"{name}":{parts[name]}' for name in sorted(parts)) + "}"


def render_plan(plan: Plan) -> bytes:
    """The znode of a plan. Raises SettingsError for one so large that it, or what comes of it,
    could not be read again.
    """
    parts = _rendered.of(plan)
    document = _joined(
        {**parts.others, "ranges": _joined(parts.ranges), "id": canonical(plan.id).decode()}
    ).encode()
    if len(document) > documents.WRITTEN_MAX_BYTES:
        message = f"The plan knows {len(plan.positions):,} logs and would take {len(document):,} bytes of {documents.WRITTEN_MAX_BYTES:,}"
        raise SettingsError(message, key="source.topics", action=FEWER_TOPICS)
    if len(plan.ranges) > RANGES_MAX:
        message = f"The plan would have {len(plan.ranges):,} ranges of {RANGES_MAX:,}"
        action = "Set limits.max_bytes_per_plan or limits.max_records_per_plan, so that one run takes on less, or raise target_task_bytes"
        raise SettingsError(message, key="limits.target_task_bytes", action=action)
    return zlib.compress(document, 6)


def plan_content(plan: Plan) -> dict[str, Any]:
    """A plan as it is stored, before it is compressed."""
    return {**content_of(plan), "id": plan.id}


def parse_plan(payload: bytes, *, path: str) -> Plan:
    """The plan of a znode. Raises LedgersDisagree when it is not one, or its content does not hash
    to its id.
    """
    return _parsed(payload, path)


@functools.lru_cache(maxsize=1)
def _parsed(payload: bytes, path: str) -> Plan:
    """A run reads the newest plan as it begins, and again before it stores the next one: the same
    bytes are the same plan.
    """
    return parsed(payload, path, _plan)


def _plan(document: dict[str, Any]) -> Plan:
    plan = plan_of(document)
    if plan_id(plan, document["format"]) != plan.id:
        raise ValueError("its content does not hash to its id")
    return plan


METADATA_FULL_BYTES = 64 * 2**10
"""Above this the metadata keeps the ids and the compressed plan, and no text for people."""
METADATA_MAX_BYTES = 8 * 2**20
"""Above this a run refuses before the append: a commit with 20 MB of it makes a table that Spark
can never read again.
"""

_FOR_PEOPLE = ("ranges", "positions")
_LEAST_BYTES_OF_ONE = len('["t", "0", 0]')
"""Smallest part of a text for people."""


def render_commit_metadata(plan: Plan, app_id: str, run_id: str | None = None) -> str:
    """The `userMetadata` of the commit by which run `run_id` applies `plan`.

    Raises SettingsError when even the short form is larger than a table can bear.
    """
    known = {
        "app": "offset-range-etl",
        "format": FORMAT,
        "app_id": app_id,
        "uid": plan.uid,
        "number": plan.number,
        "plan_id": plan.id,
        "previous": plan.previous,
        "kind": plan.kind.value,
        "run_id": run_id,
    }
    known["plan_zlib"] = base64.b85encode(render_plan(plan)).decode("ascii")
    if _LEAST_BYTES_OF_ONE * (len(plan.ranges) + len(plan.positions)) <= METADATA_FULL_BYTES:
        full = json.dumps(
            {
                **known,
                "ranges": [
                    [r.log.topic, r.log.key, r.from_offset, r.until_offset] for r in plan.ranges
                ],
                "positions": [
                    [log.topic, log.key, offset] for log, offset in sorted_items(plan.positions)
                ],
            }
        )
        if len(full) <= METADATA_FULL_BYTES:
            return full
    short = json.dumps(known)
    if len(short) > METADATA_MAX_BYTES:
        message = f"The plan knows {len(plan.positions):,} logs, its commit metadata would take {len(short):,} bytes of {METADATA_MAX_BYTES:,}"
        raise SettingsError(message, key="source.topics", action=FEWER_TOPICS)
    return short


def with_results(metadata: str, plan: Plan, receipts: tuple[RangeResult, ...]) -> str:
    """Return the metadata with the plan's range results, so that rows need not be counted again.
    Above `METADATA_FULL_BYTES` the text for people is dropped, above `METADATA_MAX_BYTES` the
    results.
    """
    document = json.loads(metadata)
    document["receipts_zlib"] = base64.b85encode(
        render_applied(CommitResult(plan.number, plan.id, -1, "", receipts))
    ).decode("ascii")
    full = json.dumps(document)
    if len(full) <= METADATA_FULL_BYTES:
        return full
    short = json.dumps({key: value for key, value in document.items() if key not in _FOR_PEOPLE})
    return short if len(short) <= METADATA_MAX_BYTES else metadata


def results_of(metadata: CommitMetadata) -> tuple[RangeResult, ...] | None:
    """Return the range results of a commit; None if it has none that can be parsed."""
    if metadata.receipts is None:
        return None
    try:
        applied = parse_applied(metadata.receipts, path=f"commit {metadata.delta_version}")
    except EtlError:
        return None
    return applied.receipts if applied.plan_id == metadata.plan_id else None


def reject_oversized_plan(plan: Plan) -> None:
    """Reject a plan that no commit can carry, or that could not be parsed again. Raises
    SettingsError. Called before storing.
    """
    render_commit_metadata(plan, "")


def parse_commit_metadata(text: str, delta_version: int) -> CommitMetadata | None:
    """Parse `userMetadata` of a commit; None if it is not ours. Its plan is not parsed yet."""
    try:
        found = json.loads(text)
        if found.get("app") != "offset-range-etl":
            return None
        document, run_id, receipts = (
            found.get("plan_zlib"),
            found.get("run_id"),
            found.get("receipts_zlib"),
        )
        return CommitMetadata(
            delta_version,
            str(found["app_id"]),
            str(found["uid"]),
            int(found["number"]),
            str(found["plan_id"]),
            document=base64.b85decode(document) if document else None,
            run_id=str(run_id) if run_id else None,
            receipts=base64.b85decode(receipts) if receipts else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
