"""A plan, a snapshot and settings with default values: a test changes only its subject."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from etl.model.partitions import (
    NOTHING_COMMITTED,
    BrokerFamily,
    BrokerPartition,
    ClusterIdentity,
    PartitionOffsets,
)
from etl.model.plans import Plan, PlanKind, PlanOrigin
from etl.model.snapshot import Ledger, Snapshot
from etl.settings.load import parse_settings
from etl.settings.secrets import Section
from etl.settings.sections import Settings


def kafka_named(name: str, id: str | None = None) -> ClusterIdentity:
    """A cluster of Kafka."""
    return ClusterIdentity(BrokerFamily.KAFKA, name, id)


def plain_plan(number: int = 1, **changes: Any) -> Plan:
    """A plan without ranges, and without an id (`with_id` gives it one). It saw nothing committed
    for the logs of its positions.
    """
    plan = Plan(
        number=number,
        origin=PlanOrigin(pipeline_id="u", created_at_ms=1),
        kind=PlanKind.INGEST,
        cluster=kafka_named("c"),
        shape="s",
        ranges=(),
        loaded_until={},
        expected_commits={log: NOTHING_COMMITTED for log in changes.get("loaded_until", ())},
    )
    return changed(plan, **changes)


SHORT_NAMES = {
    "uid": ("origin", "pipeline_id"),
    "created_at_ms": ("origin", "created_at_ms"),
    "previous": ("origin", "previous"),
    "supersedes": ("origin", "supersedes"),
    "reason": ("origin", "reason"),
    "run_key": ("request", "run_key"),
    "bounds": ("request", "bounds"),
    "key_ends": ("request", "unfinished"),
    "lost": ("losses", "lost"),
    "vanished": ("losses", "stale_rows"),
    "read_by_others": ("losses", "read_by_others"),
    "table_id": ("table", "id"),
    "table_version": ("table", "version"),
    "table_transaction_version": ("table", "transaction_version"),
}
"""Keywords of `changed` for fields of a value inside a plan."""


def changed(plan: Plan, **changes: Any) -> Plan:
    """Return the plan with these fields, also by their short names."""
    for name in changes.keys() & SHORT_NAMES.keys():
        attribute, inner = SHORT_NAMES[name]
        before = changes.get(attribute, getattr(plan, attribute))
        changes[attribute] = replace(before, **{inner: changes.pop(name)})
    return replace(plan, **changes)


def plain_snapshot(extents: Mapping[BrokerPartition, tuple[int, int]], **changes: Any) -> Snapshot:
    """These logs, and nothing else anywhere."""
    found = Snapshot(
        cluster=kafka_named("c"),
        extents={log: PartitionOffsets(*extent) for log, extent in extents.items()},
        leaders={},
        leaderless=frozenset(),
        topic_ids={},
        bytes_per_offset={},
        committed={},
        starts={},
        owners={},
        live_consumers=(),
        ledger=Ledger(),
        table=None,
    )
    return replace(found, **changes)


def plain_settings(**sections: Any) -> Settings:
    """The least conf that there can be, with `sections` over it: a section's keys are added to it,
    anything else takes its place.
    """
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
    """A conf that names a broker of this machine, and a ZooKeeper that is not there: for commands
    that ask none.
    """
    path = folder / "clicks.yaml"
    path.write_text(f"""
pipeline: clicks
group: group
zookeeper: {{connect: "127.0.0.1:1"}}
source: {{bootstrap_servers: "127.0.0.1:{port}", topics: [clicks]}}
table: {{path: clicks}}
""")
    return path
