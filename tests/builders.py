"""A plan, a snapshot and settings with default values: a test changes only its subject."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from etl.model.partitions import (
    BrokerFamily,
    ClusterIdentity,
    Isolation,
    PartitionOffsets,
    TopicPartition,
)
from etl.model.plans import (
    BackfillPayload,
    PendingPartition,
    Plan,
    PlanKind,
    PlannedPartition,
    PlanOrigin,
    ReplayPayload,
    TopicIdentity,
)
from etl.model.snapshot import (
    Availability,
    GroupSnapshot,
    Ledger,
    PartitionSnapshot,
    Snapshot,
    TopicSnapshot,
)
from etl.reader.fetch_options import FetchOptions
from etl.settings.load import parse_settings
from etl.settings.secrets import Section
from etl.settings.sections import Settings


def kafka_named(name: str, id: str | None = None) -> ClusterIdentity:
    return ClusterIdentity(BrokerFamily.KAFKA, name, id)


def plain_plan(number: int = 1, **changes: Any) -> Plan:
    """A plan without ranges and id (`with_id`), that observed no committed offset."""
    plan = Plan(
        number=number,
        origin=PlanOrigin(pipeline_id="u", created_at_ms=1),
        kind=PlanKind.INGEST,
        cluster=kafka_named("c"),
        shape="s",
        ranges=(),
        partitions={},
    )
    return changed(plan, **changes)


SHORT_NAMES = {
    "uid": ("origin", "pipeline_id"),
    "created_at_ms": ("origin", "created_at_ms"),
    "previous": ("origin", "previous"),
    "supersedes": ("origin", "supersedes"),
    "reason": ("origin", "reason"),
    "time_zone": ("origin", "time_zone"),
    "run_key": ("request", "run_key"),
    "bounds": ("request", "bounds"),
    "key_ends": ("request", "unfinished"),
    "lost": ("losses", "lost"),
    "vanished": ("losses", "stale_rows"),
    "read_by_others": ("losses", "read_by_others"),
    "table_id": ("table", "id"),
    "table_version": ("table", "version"),
    "table_transaction_version": ("table", "transaction_version"),
    "rows_before": ("table", "rows_before"),
}
"""Keywords of `changed` for fields of a value inside a plan."""
FACTS_OF_PLANNED_PARTITIONS = {
    "expected_commits": "expected_commit",
    "incarnations": "incarnation",
    "log_starts": "log_start",
    "leader_epochs": "leader_epoch",
    "record_epochs": "record_epochs",
    "fingerprints": "fingerprint",
    "log_topic_ids": "topic_id",
}
"""Keywords of `changed` for a mapping of one fact by partition."""


def changed(plan: Plan, **changes: Any) -> Plan:
    """The plan with these fields, also by short names; `loaded_until` names all partitions."""
    for name in changes.keys() & SHORT_NAMES.keys():
        attribute, inner = SHORT_NAMES[name]
        before = changes.get(attribute, getattr(plan, attribute))
        changes[attribute] = replace(before, **{inner: changes.pop(name)})
    if "loaded_until" in changes:
        partitions = {}
        for partition, offset in changes.pop("loaded_until").items():
            planned = plan.partitions.get(partition, PlannedPartition(offset))
            partitions[partition] = replace(planned, loaded_until=offset)
        changes["partitions"] = partitions
    for name in FACTS_OF_PLANNED_PARTITIONS.keys() & changes.keys():
        partitions = dict(changes.get("partitions", plan.partitions))
        found = {
            partition: value
            for partition, value in changes.pop(name).items()
            if partition in partitions
        }
        _set(partitions, FACTS_OF_PLANNED_PARTITIONS[name], found, PlannedPartition(0))
        changes["partitions"] = partitions
    for name, fact in (("topic_ids", "id"), ("creation_ids", "creation_id")):
        if name in changes:
            topics = dict(changes.get("topics", plan.topics))
            _set(topics, fact, changes.pop(name), TopicIdentity())
            changes["topics"] = topics
    if "pending_starts" in changes:
        offsets = changes.pop("pending_offsets", {})
        pending = {}
        for partition, start_ms in changes.pop("pending_starts").items():
            pending[partition] = PendingPartition(start_ms, offsets.get(partition))
        changes["pending"] = pending
    if "replaced_rows" in changes:
        changes["payload"] = ReplayPayload(changes.pop("replaced_rows"))
    if "backfill" in changes:
        name = changes.pop("backfill")
        changes["payload"] = BackfillPayload(name) if name else None
    return replace(plan, **changes)


def log_topic_ids_of(plan: Plan) -> dict[TopicPartition, str]:
    """The topic ids of Jafka partitions that were decided under another one than the plan's."""
    return {
        partition: found.topic_id for partition, found in plan.partitions.items() if found.topic_id
    }


def log_starts_of(plan: Plan) -> dict[TopicPartition, int]:
    known = {}
    for partition, planned in plan.partitions.items():
        if planned.log_start is not None:
            known[partition] = planned.log_start
    return known


def pending_starts_of(plan: Plan) -> dict[TopicPartition, int | None]:
    """The start times of partitions that are not read yet."""
    return {partition: pending.start_ms for partition, pending in plan.pending.items()}


def pending_offsets_of(plan: Plan) -> dict[TopicPartition, int]:
    """The start offsets of partitions that are not read yet, if known."""
    known = {}
    for partition, pending in plan.pending.items():
        if pending.start_offset is not None:
            known[partition] = pending.start_offset
    return known


def plain_snapshot(extents: Mapping[TopicPartition, tuple[int, int]], **facts: Any) -> Snapshot:
    """A snapshot of these readable partitions, with no other facts than `facts`."""
    found = Snapshot(
        cluster=kafka_named("c"),
        partitions={},
        topics={},
        group=GroupSnapshot(),
        ledger=Ledger(),
        table=None,
    )
    offsets = {
        partition: PartitionOffsets(*partition_offsets)
        for partition, partition_offsets in extents.items()
    }
    return with_facts(found, extents=offsets, **facts)


FACTS_OF_PARTITIONS = {
    "leaders": "leader",
    "committed": "committed",
    "owners": "owner",
    "bytes_per_offset": "bytes_per_offset",
    "starts": "start_at_time",
    "leader_epochs": "leader_epoch",
    "epoch_ends": "epoch_end",
    "retained_from": "retained_from",
    "open_transactions": "open_transaction",
    "looked_at": "looked_at",
    "fingerprints": "fingerprints",
    "oldest_of_paused": "oldest_unread",
}
FACTS_OF_TOPICS = {"topic_ids": "id", "creation_ids": "creation_id", "retention": "retention"}
FACTS_OF_GROUP = {
    "offsets_in": "storage",
    "live_consumers": "live_consumers",
    "live_in_kafka": "kafka_members",
    "other_pipelines": "other_pipelines",
    "share": "assignment",
}


def with_facts(snapshot: Snapshot, **facts: Any) -> Snapshot:
    """Return the snapshot with these facts in place of what it has, each a field of the snapshot
    or a mapping of one fact by partition or topic: `committed={log: Committed(3)}`.

    extents            the offsets of the partitions that are read
    leaderless         the partitions without a leader
    extents_of_owned   the offsets of partitions that are left to others, which `owners` names
    missing_topics     topics that no longer exist
    pauses             the pauses in the ledger
    """
    partitions = dict(snapshot.partitions)
    availability = {
        "extents": Availability.READABLE,
        "leaderless": Availability.LEADERLESS,
        "extents_of_owned": Availability.OWNED,
    }
    for name in availability.keys() & facts.keys():
        _set_available(partitions, facts.pop(name), availability[name])
    for name in FACTS_OF_PARTITIONS.keys() & facts.keys():
        _set(partitions, FACTS_OF_PARTITIONS[name], facts.pop(name), PartitionSnapshot())
    topics = dict(snapshot.topics)
    for name in FACTS_OF_TOPICS.keys() & facts.keys():
        _set(topics, FACTS_OF_TOPICS[name], facts.pop(name), TopicSnapshot())
    if "missing_topics" in facts:
        missing = dict.fromkeys(facts.pop("missing_topics"), True)
        _set(topics, "is_missing", missing, TopicSnapshot())
    group = {}
    for name in FACTS_OF_GROUP.keys() & facts.keys():
        group[FACTS_OF_GROUP[name]] = facts.pop(name)
    ledger = facts.pop("ledger", snapshot.ledger)
    if "pauses" in facts:
        ledger = replace(ledger, pauses=facts.pop("pauses"))
    return replace(
        snapshot,
        partitions=partitions,
        topics=topics,
        group=replace(snapshot.group, **group),
        ledger=ledger,
        **facts,
    )


def _set_available(
    partitions: dict[TopicPartition, PartitionSnapshot], found: Any, availability: Availability
) -> None:
    """Give these partitions, and no others, that availability; `found` may have their offsets."""
    for topic_partition, partition in partitions.items():
        if partition.availability is availability and topic_partition not in found:
            gone = Availability.NOT_SELECTED
            partitions[topic_partition] = replace(partition, availability=gone, offsets=None)
    for topic_partition in found:
        offsets = found[topic_partition] if isinstance(found, Mapping) else None
        before = partitions.get(topic_partition, PartitionSnapshot())
        partitions[topic_partition] = replace(before, availability=availability, offsets=offsets)


def _set(values: dict[Any, Any], name: str, found: Mapping[Any, Any], empty: Any) -> None:
    """Set one field of all values: to what is found, else to what an empty value has."""
    for key, value in values.items():
        values[key] = replace(value, **{name: found.get(key, getattr(empty, name))})
    for key in found.keys() - values.keys():
        values[key] = replace(empty, **{name: found[key]})


def split_fetch_options(given: Mapping[str, Any]) -> tuple[FetchOptions, dict[str, Any]]:
    """Return those of `given` that are fields of `FetchOptions` as such, and the others."""
    names = FetchOptions.__dataclass_fields__.keys()
    chosen: dict[str, Any] = {"isolation": Isolation.READ_COMMITTED}
    others = {}
    for name, value in given.items():
        if name in names:
            chosen[name] = value
        else:
            others[name] = value
    return FetchOptions(**chosen), others


def plain_settings(**sections: Any) -> Settings:
    """The least conf, with `sections` over it: keys of a section are added to it."""
    document: dict[str, Any] = {
        "pipeline": "clicks",
        "group": {"id": "group"},
        "zookeeper": {"connect": "127.0.0.1:2181"},
        "source": {"topics": ["clicks"]},
        "table": {"path": "clicks"},
    }
    for name, value in sections.items():
        if name == "group" and isinstance(value, str):
            value = {"id": value}
        document[name] = (
            {**document.get(name, {}), **value} if isinstance(value, Mapping) else value
        )
    return parse_settings(document)


def with_keys(settings: Settings, **sections: Any) -> Settings:
    """Return the settings with other values of these keys, without validation:
    `with_keys(settings, group={"join": {"num_streams": 2}})`.
    """
    changed: Settings = _with_keys(settings, sections)
    return changed


def _with_keys(section: Any, keys: Mapping[str, Any]) -> Any:
    update = {}
    for name, value in keys.items():
        below = getattr(section, name)
        if isinstance(value, Mapping) and isinstance(below, Section):
            update[name] = _with_keys(below, value)
        else:
            update[name] = value
    return section.model_copy(update=update)


def conf_in(folder: Path, port: int) -> Path:
    """A conf with a broker and a ZooKeeper that are not there."""
    path = folder / "clicks.yaml"
    path.write_text(f"""
pipeline: clicks
group: group
zookeeper: {{connect: "127.0.0.1:1"}}
source: {{bootstrap_servers: "127.0.0.1:{port}", topics: [clicks]}}
table: {{path: clicks}}
""")
    return path
