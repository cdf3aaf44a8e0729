"""How a plan is written into a znode and into a Delta commit, and how its id is computed.

The id is the hash of the canonical content without leaders (an address changes), without the state
of the offset commit, and without the time zone, which decides no range.

The content is columnar, and numbers near the loaded-until offset of a partition are stored as
distances from it: compressed, that takes a tenth of the plain form. The broker type is stored with
a leader's address, so that it is detected once.

Lives here: plans, their ids, and the `userMetadata` of this program's Delta commits.
Not here: other documents and the common frame (documents.py), znode paths (znode_paths.py).
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from typing import Any, NamedTuple, TypeVar

from etl.errors import EtlError, SettingsError
from etl.ledger import documents
from etl.ledger.document_codec import flat, pairs, parse_partitions, render_partitions
from etl.ledger.documents import CODEC, FORMAT, canonical, parse, parsed, render
from etl.model.partitions import (
    Broker,
    BrokerFamily,
    ClusterIdentity,
    Committed,
    Fingerprint,
    Leader,
    MemberAssignment,
    Membership,
    OffsetsStorage,
    TopicPartition,
    in_order,
)
from etl.model.plans import (
    NO_BOUNDS,
    BackfillPayload,
    Bounds,
    CommitResult,
    CommitState,
    HeldRows,
    Loss,
    Losses,
    LossReason,
    OffsetRange,
    PendingPartition,
    Plan,
    PlanKind,
    PlannedCommit,
    PlannedPartition,
    PlannedRequest,
    PlanOrigin,
    Predecessor,
    RangeResult,
    ReadByOthers,
    ReplayPayload,
    RowsBefore,
    StaleRows,
    TableExpectation,
    topic_identities,
)
from etl.model.snapshot import CommitMetadata

V = TypeVar("V")
_RANGE_COLUMNS = ("log", "size", "before", "leader", "epoch")
"""Columns of the ranges of a plan."""
_KIND_TEXTS: Mapping[PlanKind, str] = {
    PlanKind.INGEST: "ingest",
    PlanKind.START: "start",
    PlanKind.RESET: "reset",
    PlanKind.SET: "set",
    PlanKind.TAKE_OVER: "take-over",
    PlanKind.REPLAY: "replay",
    PlanKind.BACKFILL: "backfill",
}
"""Kinds as plans store them. They are a part of the plan's id and never change; commands print
the values of `PlanKind`.
"""
_REASON_TEXTS: Mapping[LossReason, str] = {
    LossReason.EXPIRED: "expired",
    LossReason.MOVED: "offset moved",
    LossReason.MISSING: "missing from the log",
    LossReason.SKIPPED: "skipped by hand",
    LossReason.DELETED: "topic deleted",
    LossReason.RECREATED: "topic recreated",
    LossReason.TRUNCATED: "log truncated",
}
"""The same for reasons of losses; the losses table has the values of `LossReason`."""
_KINDS = {text: kind for kind, text in _KIND_TEXTS.items()}
_REASONS = {text: reason for reason, text in _REASON_TEXTS.items()}


def content_of(plan: Plan) -> dict[str, Any]:
    """Return the content of the plan without its id.

    Rare fields are left out if unset.
    """
    partitions = in_order(plan.partitions)
    all_planned = [plan.partitions[partition] for partition in partitions]
    index = _indexes(partitions)
    brokers = sorted({r.leader.broker for r in plan.ranges if r.leader})
    leaders = []
    for broker in brokers:
        leaders.append([broker.id, broker.host, broker.port])
    content: dict[str, Any] = {
        "format": FORMAT,
        "number": plan.number,
        "uid": plan.origin.pipeline_id,
        "kind": _KIND_TEXTS[plan.kind],
        "created_at_ms": plan.origin.created_at_ms,
        "dialect": plan.cluster.family.value,
        "cluster": plan.cluster.name,
        "shape": plan.shape,
        "table_id": plan.table.id,
        "topic_ids": dict(plan.topic_ids),
        "previous": plan.origin.previous,
        "supersedes": plan.origin.supersedes,
        "reason": plan.origin.reason,
        "run_key": plan.request.run_key,
        "logs": render_partitions(partitions),
        **_offset_columns(all_planned),
        "leaders": leaders,
        "ranges": _ranges_content(plan, index, all_planned, brokers),
        "losses": _losses_content(plan, index),
        "table_bit": plan.table.transaction_version,
        "epochs": _epochs_content(all_planned),
        "vanished": _intervals_content(plan.losses.stale_rows, index),
    }
    rare = {
        "table_version": plan.table.version,
        "cluster_id": plan.cluster.id,
        "creation_ids": dict(plan.creation_ids) or None,
        "generations": _generations_content(plan, brokers),
        "closes": plan.is_closing or None,
        "backfill": plan.backfill,
        "handed_over": plan.commit.state.is_committed,
        "void": plan.commit.state is CommitState.REJECTED or None,
        "time_zone": plan.origin.time_zone,
        **_inheritance_content(plan),
        **_partitions_content(plan, index, all_planned),
        **_key_content(plan, index),
        **_offsets_content(plan, all_planned),
    }
    if plan.pending:
        rare["pending_starts"] = _pending_content(plan)
    if plan.commit.member:
        rare["share"] = _assignment_content(plan.commit.member, index)
    if plan.table.rows_before:
        rare["rows_before"] = _rows_before_content(plan.table.rows_before)
    for name, value in rare.items():
        if value is not None:
            content[name] = value
    return content


def _indexes(values: Sequence[V]) -> dict[V, int]:
    """Return the index of each value, by which rows refer to it."""
    return {value: i for i, value in enumerate(values)}


def _sorted_items(by_partition: Mapping[TopicPartition, V]) -> list[tuple[TopicPartition, V]]:
    """Return the items of a mapping in the order of its partitions: equal mappings, equal bytes."""
    return [(partition, by_partition[partition]) for partition in in_order(by_partition)]


def _offset_columns(all_planned: Sequence[PlannedPartition]) -> dict[str, Any]:
    """Return the offsets of each partition, by column: similar values compress better."""
    return {
        "positions": [planned.loaded_until for planned in all_planned],
        "behind": [_distance(planned, planned.expected_commit.offset) for planned in all_planned],
        "seen_version": [planned.expected_commit.znode_version for planned in all_planned],
        "kept": [_distance(planned, planned.log_start) for planned in all_planned],
    }


def _distance(planned: PlannedPartition, offset: int | None) -> int | None:
    """Return how far the offset is below the loaded-until offset; None: unknown offset."""
    if offset is None:
        return None
    return planned.loaded_until - offset


def _ranges_content(
    plan: Plan,
    index: Mapping[TopicPartition, int],
    all_planned: Sequence[PlannedPartition],
    brokers: Sequence[Broker],
) -> dict[str, Any]:
    broker_index = _indexes(brokers)
    partitions = [index[r.partition] for r in plan.ranges]
    distances = []
    for i, offset_range in zip(partitions, plan.ranges, strict=True):
        distances.append(all_planned[i].loaded_until - offset_range.until_offset)
    leaders: list[int | None] = []
    leader_epochs: list[int | None] = []
    for offset_range in plan.ranges:
        leader = offset_range.leader
        if leader:
            leaders.append(broker_index[leader.broker])
            leader_epochs.append(leader.epoch)
        else:
            leaders.append(None)
            leader_epochs.append(None)
    return {
        "log": partitions,
        "size": [r.size for r in plan.ranges],
        "before": distances,
        "leader": leaders,
        "epoch": leader_epochs,
    }


def _losses_content(plan: Plan, index: Mapping[TopicPartition, int]) -> list[list[Any]]:
    rows = []
    for loss in plan.losses.lost:
        offsets = [loss.from_offset, loss.until_offset]
        rows.append([index[loss.partition], *offsets, _REASON_TEXTS[loss.why], loss.incarnation])
    return rows


def _epochs_content(all_planned: Sequence[PlannedPartition]) -> dict[str, Any]:
    return {
        "leader": [planned.leader_epoch for planned in all_planned],
        "record": [flat(planned.record_epochs) for planned in all_planned],
        "log": [planned.incarnation for planned in all_planned],
    }


def _intervals_content(
    intervals: Iterable[StaleRows | ReadByOthers], index: Mapping[TopicPartition, int]
) -> list[list[int]]:
    rows = []
    for interval in intervals:
        offsets = [interval.from_offset, interval.until_offset]
        rows.append([index[interval.partition], *offsets, interval.incarnation])
    return rows


def _generations_content(plan: Plan, brokers: Sequence[Broker]) -> list[Any] | None:
    """Return the broker type of each broker; None if no type is known."""
    generations = {}
    for offset_range in plan.ranges:
        leader = offset_range.leader
        if leader and leader.broker.broker_type:
            generations[leader.broker] = leader.broker.broker_type
    if not generations:
        return None
    return [generations.get(broker) for broker in brokers]


def _inheritance_content(plan: Plan) -> dict[str, Any]:
    """Return the predecessors whose place this pipeline took."""
    inherited = []
    for predecessor in plan.predecessors:
        inherited.append([predecessor.app_id, predecessor.number])
    content: dict[str, Any] = {"heir_of": inherited or None}
    if plan.inherits:
        content["took_over"] = [plan.inherits.app_id, plan.inherits.number]
    return content


def _partitions_content(
    plan: Plan, index: Mapping[TopicPartition, int], all_planned: Sequence[PlannedPartition]
) -> dict[str, Any]:
    """Return values that are known for few partitions."""
    fingerprints = []
    topic_ids = []
    for i, planned in enumerate(all_planned):
        tail = planned.fingerprint
        if tail:
            distance = planned.loaded_until - tail.until_offset
            fingerprints.append([i, distance, tail.size, tail.digest])
        if planned.topic_id is not None:
            topic_ids.append([i, planned.topic_id])
    return {
        "tails": fingerprints or None,
        "log_topic_ids": topic_ids or None,
        "stood": _render_known(plan.replaced_rows, index) or None,
        "read_by_others": _intervals_content(plan.losses.read_by_others, index) or None,
    }


def _render_known(
    values: Mapping[TopicPartition, Any], index: Mapping[TopicPartition, int]
) -> list[list[Any]]:
    return [[index[partition], value] for partition, value in _sorted_items(values)]


def _key_content(plan: Plan, index: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """Return the bounds of the run, and where its run key ends in each partition."""
    content: dict[str, Any] = {}
    if plan.request.bounds != NO_BOUNDS:
        content["bounds"] = CODEC.write_row(plan.request.bounds)
    if not plan.request.unfinished:
        return content
    ends = []
    open_partitions = []
    for partition, until in _sorted_items(plan.request.unfinished):
        if until is None:
            open_partitions.append(partition)
        else:
            ends.append([index[partition], until - plan.loaded_until[partition]])
    content["key_ends"] = ends
    content["key_open"] = render_partitions(open_partitions) or None
    return content


def _offsets_content(plan: Plan, all_planned: Sequence[PlannedPartition]) -> dict[str, Any]:
    """Return where the committed offsets are, and their metadata; nothing for ZooKeeper only."""
    if plan.commit.storage is OffsetsStorage.ZOOKEEPER:
        return {}
    seen = [planned.expected_commit for planned in all_planned]
    metadata = sorted({committed.metadata for committed in seen if committed.metadata is not None})
    index = _indexes(metadata)
    metadata_indexes: list[int | None] = []
    differing = []
    for i, committed in enumerate(seen):
        metadata_index = None
        if committed.metadata is not None:
            metadata_index = index[committed.metadata]
        metadata_indexes.append(metadata_index)
        if committed.differing:
            differing.append([i, *committed.differing])
    return {
        "offsets_in": plan.commit.storage.value,
        "words": metadata,
        "word": metadata_indexes,
        "apart": differing or None,
    }


def plan_of(document: dict[str, Any]) -> Plan:
    """Return the plan of a document. Its id is not verified."""
    partitions = parse_partitions(document["logs"])
    positions: list[int] = document["positions"]
    losses = []
    for i, start, stop, reason, incarnation in document["losses"]:
        losses.append(Loss(partitions[i], start, stop, _REASONS[reason], incarnation))
    vanished = []
    for i, start, stop, incarnation in document["vanished"]:
        vanished.append(StaleRows(partitions[i], start, stop, incarnation))
    read_by_others = []
    for i, *offsets in document.get("read_by_others", ()):
        read_by_others.append(ReadByOthers(partitions[i], *offsets))
    return Plan(
        number=document["number"],
        origin=PlanOrigin(
            pipeline_id=document["uid"],
            created_at_ms=document["created_at_ms"],
            previous=document["previous"],
            supersedes=document["supersedes"],
            reason=document["reason"],
            time_zone=document.get("time_zone"),
        ),
        kind=_KINDS[document["kind"]],
        cluster=ClusterIdentity(
            BrokerFamily(document["dialect"]), document["cluster"], document.get("cluster_id")
        ),
        shape=document["shape"],
        table=TableExpectation(
            id=document["table_id"],
            transaction_version=document["table_bit"],
            version=document.get("table_version"),
            rows_before=_rows_before(document.get("rows_before")),
        ),
        topics=topic_identities(document["topic_ids"], document.get("creation_ids", {})),
        request=PlannedRequest(
            run_key=document["run_key"],
            bounds=_bounds(document.get("bounds")),
            unfinished=_key_ends(document, partitions, positions),
        ),
        ranges=_ranges(document, partitions, positions),
        partitions=_planned_partitions(document, partitions, positions),
        pending=_pending(document.get("pending_starts")),
        id=document["id"],
        losses=Losses(
            lost=tuple(losses), stale_rows=tuple(vanished), read_by_others=tuple(read_by_others)
        ),
        inherits=_parse_inherited(document.get("took_over")),
        predecessors=tuple(starmap(Predecessor, document.get("heir_of", ()))),
        payload=_payload(document, partitions),
        is_closing=bool(document.get("closes")),
        commit=_planned_commit(document, partitions),
    )


def _planned_commit(
    document: Mapping[str, Any], partitions: Sequence[TopicPartition]
) -> PlannedCommit:
    member = _assignment(document.get("share"), partitions)
    is_committed = document.get("handed_over")
    if is_committed:
        state = CommitState.DONE
    elif document.get("void"):
        state = CommitState.REJECTED
    elif is_committed is False:
        state = CommitState.IN_DOUBT
    elif member:
        state = CommitState.AFTER_APPEND_AS_MEMBER
    else:
        state = CommitState.AFTER_APPEND
    storage = OffsetsStorage(document.get("offsets_in", OffsetsStorage.ZOOKEEPER))
    return PlannedCommit(state, storage, member)


def _parse_inherited(found: Sequence[Any] | None) -> Predecessor | None:
    if not found:
        return None
    return Predecessor(*found)


def _bounds(found: Sequence[Any] | None) -> Bounds:
    if not found:
        return NO_BOUNDS
    return CODEC.read_row(Bounds, found)


def _ranges(
    document: Mapping[str, Any], partitions: Sequence[TopicPartition], positions: Sequence[int]
) -> tuple[OffsetRange, ...]:
    generations = document.get("generations") or [None] * len(document["leaders"])
    brokers = []
    for (number, host, port), broker_type in zip(document["leaders"], generations, strict=True):
        brokers.append(Broker(number, host, port, broker_type))
    columns = [document["ranges"][name] for name in _RANGE_COLUMNS]
    leaders: dict[tuple[int, int | None], Leader] = {}  # shared by ranges
    ranges = []
    for i, size, before, broker, epoch in zip(*columns, strict=True):
        leader = None
        if broker is not None:
            leader = leaders.get((broker, epoch))
            if leader is None:
                leader = leaders[broker, epoch] = Leader(brokers[broker], epoch)
        until = positions[i] - before
        ranges.append(OffsetRange(partitions[i], until - size, until, leader))
    return tuple(ranges)


def _planned_partitions(
    document: Mapping[str, Any],
    topic_partitions: Sequence[TopicPartition],
    positions: Sequence[int],
) -> dict[TopicPartition, PlannedPartition]:
    committed = _committed_offsets(document, positions)
    epochs = document["epochs"]
    fingerprints = {}
    for i, distance, size, digest in document.get("tails", ()):
        fingerprints[i] = Fingerprint(positions[i] - distance, size, digest)
    topic_ids = dict(document.get("log_topic_ids", ()))
    columns = zip(
        topic_partitions,
        positions,
        committed,
        epochs["log"],
        document["kept"],
        epochs["leader"],
        epochs["record"],
        strict=True,
    )
    partitions = {}
    for i, (partition, position, commit, incarnation, distance, leader_epoch, numbers) in enumerate(
        columns
    ):
        log_start = None
        if distance is not None:
            log_start = position - distance
        partitions[partition] = PlannedPartition(
            position,
            commit,
            incarnation,
            log_start,
            leader_epoch,
            pairs(numbers),
            fingerprints.get(i),
            topic_ids.get(i),
        )
    return partitions


def _committed_offsets(document: Mapping[str, Any], positions: Sequence[int]) -> list[Committed]:
    texts = document.get("words") or ()
    text_numbers = document.get("word") or [None] * len(positions)
    differing = {}
    for i, first, second in document.get("apart") or ():
        differing[i] = first, second
    rows = zip(positions, document["behind"], document["seen_version"], text_numbers, strict=True)
    seen = []
    for i, (position, distance, version, text_number) in enumerate(rows):
        offset = None
        if distance is not None:
            offset = position - distance
        metadata = None
        if text_number is not None:
            metadata = texts[text_number]
        seen.append(Committed(offset, version, metadata, differing.get(i)))
    return seen


def _payload(
    document: Mapping[str, Any], partitions: Sequence[TopicPartition]
) -> ReplayPayload | BackfillPayload | None:
    if document.get("backfill") is not None:
        return BackfillPayload(document["backfill"])
    replaced_rows = {}
    for i, rows in document.get("stood", ()):
        replaced_rows[partitions[i]] = rows
    if replaced_rows:
        return ReplayPayload(replaced_rows)
    return None


def _key_ends(
    document: Mapping[str, Any], partitions: Sequence[TopicPartition], positions: Sequence[int]
) -> dict[TopicPartition, int | None]:
    ends: dict[TopicPartition, int | None] = {}
    for i, distance in document.get("key_ends", ()):
        ends[partitions[i]] = positions[i] + distance
    for partition in parse_partitions(document.get("key_open", {})):
        ends[partition] = None
    return ends


def _rows_before_content(before: RowsBefore) -> dict[str, Any]:
    """Return rows of the table that are older than the plan.

    Their partitions may be missing in the plan, so they have an index of their own.
    """
    partitions = in_order({held.partition for held in before.held})
    index = _indexes(partitions)
    rows = []
    for held in before.held:
        size = held.until_offset - held.from_offset
        is_accepted = int(held.is_accepted)
        rows.append(
            [
                index[held.partition],
                held.incarnation,
                held.from_offset,
                size,
                held.rows,
                is_accepted,
            ]
        )
    return {"table_id": before.table_id, "logs": render_partitions(partitions), "rows": rows}


def _rows_before(found: Mapping[str, Any] | None) -> RowsBefore | None:
    if not found:
        return None
    partitions = parse_partitions(found["logs"])
    held = []
    for i, incarnation, start, size, rows, is_accepted in found["rows"]:
        held.append(
            HeldRows(partitions[i], incarnation, start, start + size, rows, bool(is_accepted))
        )
    return RowsBefore(found["table_id"], tuple(held))


def _assignment_content(
    assignment: MemberAssignment, index: Mapping[TopicPartition, int]
) -> dict[str, Any]:
    return {
        "member_id": assignment.member_id,
        "membership": assignment.membership.value,
        "strategy": assignment.strategy,
        "generation": assignment.generation,
        "instance_id": assignment.instance_id,
        "logs": sorted(index[partition] for partition in assignment.partitions),
    }


def _assignment(
    found: Mapping[str, Any] | None, partitions: Sequence[TopicPartition]
) -> MemberAssignment | None:
    if not found:
        return None
    assigned = [partitions[i] for i in found["logs"]]
    return MemberAssignment(
        found["member_id"],
        Membership(found["membership"]),
        found["strategy"],
        found["generation"],
        frozenset(assigned),
        found["instance_id"],
    )


def _pending_content(plan: Plan) -> dict[str, Any]:
    partitions = in_order(plan.pending)
    pending = [plan.pending[partition] for partition in partitions]
    content: dict[str, Any] = {
        "logs": render_partitions(partitions),
        "at_ms": [found.start_ms for found in pending],
    }
    offsets = [found.start_offset for found in pending]
    if any(offset is not None for offset in offsets):
        content["offsets"] = offsets
    return content


def _pending(found: Mapping[str, Any] | None) -> dict[TopicPartition, PendingPartition]:
    if not found:
        return {}
    partitions = parse_partitions(found["logs"])
    offsets = found.get("offsets") or [None] * len(partitions)
    return dict(zip(partitions, map(PendingPartition, found["at_ms"], offsets), strict=True))


RANGES_MAX = 500_000
"""Most ranges of a plan.

The result of a plan with more could exceed `WRITTEN_MAX_BYTES` even without any gap.
"""
FEWER_TOPICS = (
    "Check that the expressions in source.topics match only the intended topics; "
    "source.exclude_topics leaves topics out"
)
_NOT_HASHED = ("leaders", "generations", "void", "time_zone")
"""Parts of the content that are not hashed."""
_RANGE_COLUMNS_NOT_HASHED = ("leader", "epoch")
"""Columns of the ranges that are not hashed."""


def with_id(plan: Plan) -> Plan:
    """Return the plan with its id."""
    parts = _parts(content_of(plan))
    identified = replace(plan, id=_hash(parts))
    _rendered.keep(identified, parts)  # the content has no id
    return identified


def id_of_document(document: Mapping[str, Any]) -> str:
    """Return the id that the plan of a stored document should have."""
    content = {name: part for name, part in document.items() if name != "id"}
    return _hash(_parts(content))


class _Parts(NamedTuple):
    """The canonical JSON text of each part of a plan's content, by name."""

    ranges: Mapping[str, str]
    others: Mapping[str, str]


class _RenderCache:
    """A cache of the last rendered plan.

    The content is needed for the id, the znode and the commit, and rendering it takes half a
    second for a large plan.
    """

    def __init__(self) -> None:
        self._last: tuple[Plan, _Parts] | None = None

    def parts_of(self, plan: Plan) -> _Parts:
        last = self._last  # read once: another thread may render another plan
        if last is not None and last[0] is plan:
            return last[1]
        return self.keep(plan, _parts(content_of(plan)))

    def keep(self, plan: Plan, parts: _Parts) -> _Parts:
        self._last = plan, parts
        return parts


_rendered = _RenderCache()


def _parts(content: dict[str, Any]) -> _Parts:
    ranges = content.pop("ranges")
    return _Parts(_canonical_texts(ranges), _canonical_texts(content))


def _canonical_texts(content: Mapping[str, Any]) -> dict[str, str]:
    return {name: canonical(part).decode() for name, part in content.items()}


def _hash(parts: _Parts) -> str:
    """Return 32 hex digits. Leaders and the state of the offset commit are not hashed."""
    ranges = _without(parts.ranges, _RANGE_COLUMNS_NOT_HASHED)
    content = _without(parts.others, _NOT_HASHED)
    # The commit state becomes True once the offsets are committed, and the plan keeps its id.
    if "handed_over" in content:
        content["handed_over"] = canonical(True).decode()
    content["ranges"] = _joined(ranges)
    return hashlib.sha256(_joined(content).encode()).hexdigest()[:32]


def _without(parts: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the parts that have none of these names."""
    return {name: part for name, part in parts.items() if name not in names}


def _joined(parts: Mapping[str, str]) -> str:
    """Return the canonical JSON text of an object with these parts."""
    members = [f'"{name}":{parts[name]}' for name in sorted(parts)]
    return "{" + ",".join(members) + "}"


def render_plan(plan: Plan) -> bytes:
    """Return the plan as it is stored in its znode.

    Raises SettingsError if the plan, or its result, is too large to be parsed again.
    """
    parts = _rendered.parts_of(plan)
    whole = {**parts.others, "ranges": _joined(parts.ranges), "id": canonical(plan.id).decode()}
    document = _joined(whole).encode()
    if len(document) > documents.WRITTEN_MAX_BYTES:
        raise SettingsError(
            f"The plan has {len(plan.loaded_until):,} partitions and needs {len(document):,} "
            f"bytes, more than {documents.WRITTEN_MAX_BYTES:,}",
            key="source.topics",
            action=FEWER_TOPICS,
        )
    if len(plan.ranges) > RANGES_MAX:
        raise SettingsError(
            f"The plan has {len(plan.ranges):,} ranges, more than {RANGES_MAX:,}",
            key="limits.target_task_bytes",
            action="Set limits.max_bytes_per_plan or limits.max_records_per_plan, so that one run "
            "reads less, or raise limits.target_task_bytes",
        )
    return zlib.compress(document, 6)


def plan_content(plan: Plan) -> dict[str, Any]:
    """Return the stored content of a plan before compression."""
    return {**content_of(plan), "id": plan.id}


def parse_plan(payload: bytes, *, path: str) -> Plan:
    """Parse the plan of a znode.

    Raises LedgersDisagree if it is invalid, or its content does not hash to its id.
    """
    return _parsed(payload, path)


@functools.lru_cache(maxsize=1)
def _parsed(payload: bytes, path: str) -> Plan:
    """Parse a plan, with a cache of the last one.

    A run reads the newest plan when it starts, and again before it stores the next one.
    """
    return parsed(payload, path, _plan)


def _plan(document: dict[str, Any]) -> Plan:
    plan = plan_of(document)
    if id_of_document(document) != plan.id:
        raise ValueError("the content does not hash to the plan id")
    return plan


METADATA_FULL_BYTES = 64 * 2**10
"""Largest metadata with a readable text; above it only the ids and the compressed plan remain."""
METADATA_MAX_BYTES = 8 * 2**20
"""Largest metadata. A run with more is rejected before the append.

A commit with 20 MB of metadata makes a table that Spark can never read again.
"""

_READABLE_PARTS = ("ranges", "positions")
_READABLE_PART_MIN_BYTES = len('["t", "0", 0]')
"""Smallest size of one range or offset in the readable text."""


def render_commit_metadata(plan: Plan, app_id: str, run_id: str | None = None) -> str:
    """Return the `userMetadata` of the commit by which run `run_id` appends `plan`.

    Raises SettingsError if it exceeds `METADATA_MAX_BYTES` even without the readable text.
    """
    metadata: dict[str, Any] = {
        "app": "offset-range-etl",
        "format": FORMAT,
        "app_id": app_id,
        "uid": plan.origin.pipeline_id,
        "number": plan.number,
        "plan_id": plan.id,
        "previous": plan.origin.previous,
        "kind": _KIND_TEXTS[plan.kind],
        "run_id": run_id,
        "plan_zlib": base64.b85encode(render_plan(plan)).decode("ascii"),
    }
    parts_count = len(plan.ranges) + len(plan.loaded_until)
    if _READABLE_PART_MIN_BYTES * parts_count <= METADATA_FULL_BYTES:
        full = json.dumps({**metadata, **_readable_parts(plan)})
        if len(full) <= METADATA_FULL_BYTES:
            return full
    short = json.dumps(metadata)
    if len(short) > METADATA_MAX_BYTES:
        raise SettingsError(
            f"The plan has {len(plan.loaded_until):,} partitions and needs {len(short):,} bytes of "
            f"commit metadata, more than {METADATA_MAX_BYTES:,}",
            key="source.topics",
            action=FEWER_TOPICS,
        )
    return short


def _readable_parts(plan: Plan) -> dict[str, Any]:
    ranges = [
        [r.partition.topic, r.partition.key, r.from_offset, r.until_offset] for r in plan.ranges
    ]
    positions = [
        [partition.topic, partition.key, offset]
        for partition, offset in _sorted_items(plan.loaded_until)
    ]
    return {"ranges": ranges, "positions": positions}


def with_results(metadata: str, plan: Plan, range_results: tuple[RangeResult, ...]) -> str:
    """Return the metadata with the plan's range results, so that rows need not be counted again.

    Above `METADATA_FULL_BYTES` the readable text is left out, above `METADATA_MAX_BYTES` the
    results.
    """
    content = json.loads(metadata)
    results = render(CommitResult(plan.number, plan.id, -1, "", range_results))
    content["receipts_zlib"] = base64.b85encode(results).decode("ascii")
    full = json.dumps(content)
    if len(full) <= METADATA_FULL_BYTES:
        return full
    short = json.dumps(_without(content, _READABLE_PARTS))
    if len(short) <= METADATA_MAX_BYTES:
        return short
    return metadata


def results_of(metadata: CommitMetadata) -> tuple[RangeResult, ...] | None:
    """Return the range results of a commit; None if it has none that can be parsed."""
    if metadata.results is None:
        return None
    try:
        applied = parse(CommitResult, metadata.results, path=f"commit {metadata.delta_version}")
    except EtlError:
        return None
    if applied.plan_id != metadata.plan_id:
        return None
    return applied.results


def reject_oversized_plan(plan: Plan) -> None:
    """Reject a plan that is too large for a commit or a znode. Raises SettingsError.

    Called before the plan is stored.
    """
    render_commit_metadata(plan, "")


def parse_commit_metadata(text: str, delta_version: int) -> CommitMetadata | None:
    """Parse the `userMetadata` of a commit; None if this program did not write it.

    The plan in it stays unparsed.
    """
    try:
        found = json.loads(text)
        if found.get("app") != "offset-range-etl":
            return None
        run_id = None
        if found.get("run_id"):
            run_id = str(found["run_id"])
        return CommitMetadata(
            delta_version,
            str(found["app_id"]),
            str(found["uid"]),
            int(found["number"]),
            str(found["plan_id"]),
            document=_decode_text(found.get("plan_zlib")),
            run_id=run_id,
            results=_decode_text(found.get("receipts_zlib")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _decode_text(text: str | None) -> bytes | None:
    if not text:
        return None
    return base64.b85decode(text)
