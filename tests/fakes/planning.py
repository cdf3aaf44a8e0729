"""Snapshots and the plan before, as a plan is decided from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from etl.decide.plan import plan_next
from etl.ledger.plan_document import with_id
from etl.model.partitions import Broker, Leader, TopicPartition
from etl.model.plans import Plan
from etl.model.snapshot import FirstRun, Snapshot, UpToDate
from etl.settings.sections import Settings
from tests.builders import changed, plain_plan, plain_settings, plain_snapshot

A, B, C = (TopicPartition("clicks", p) for p in range(3))
OTHER = TopicPartition("other", 0)
BROKER = Broker(0, "h", 9092)
NOW_MS = 1_700_000_000_000

LOGS = st.builds(TopicPartition, st.sampled_from(["clicks", "other"]), st.integers(0, 5), st.none())
EXTENT = st.tuples(st.integers(0, 50), st.integers(0, 300)).map(lambda e: (e[0], e[0] + e[1]))
EXTENTS = st.dictionaries(LOGS, EXTENT, min_size=1, max_size=8)
COSTS = st.dictionaries(LOGS, st.one_of(st.floats(0, 2000), st.just(0.0)), max_size=8)
CAPS = st.none() | st.integers(1, 400)
TURNS = st.integers(1, 1000)


def settings_of(
    limits: Mapping[str, Any] | None = None, table: Mapping[str, Any] | None = None, **source: Any
) -> Settings:
    group = {"id": "g"}
    if "on_offset_changed" in source:
        group["on_offset_changed"] = source.pop("on_offset_changed")
    if source.get("broker_type") == "jafka":
        source.setdefault("assume_cluster_id", "c")
    return plain_settings(
        pipeline="p",
        group=group,
        limits=limits or {},
        source={"topics": ["clicks", "oth.*"], **source},
        table={"path": "t", **(table or {})},
    )


SETTINGS = settings_of()


def snapshot_of(extents: Mapping[TopicPartition, tuple[int, int]], **changes: Any) -> Snapshot:
    return plain_snapshot(
        extents, **{"leaders": {partition: Leader(BROKER, 4) for partition in extents}, **changes}
    )


def last_plan(positions: Mapping[TopicPartition, int], **changes: Any) -> Plan:
    plan = plain_plan(4, loaded_until=dict(positions))
    return with_id(changed(plan, **changes))


def onward(positions: Mapping[TopicPartition, int], **changes: Any) -> UpToDate:
    return UpToDate(last_plan(positions, **changes), dict(positions))


def next_plan(
    snapshot: Snapshot, state: FirstRun | UpToDate = FirstRun(), settings: Settings = SETTINGS
) -> Plan | None:
    return plan_next(snapshot, state, settings, uid="u", now_ms=NOW_MS)


def planned(
    snapshot: Snapshot, state: FirstRun | UpToDate = FirstRun(), settings: Settings = SETTINGS
) -> Plan:
    plan = next_plan(snapshot, state, settings)
    assert plan is not None
    return plan


def offsets_of(plan: Plan) -> dict[TopicPartition, list[tuple[int, int]]]:
    found: dict[TopicPartition, list[tuple[int, int]]] = {}
    for r in plan.ranges:
        found.setdefault(r.partition, []).append((r.from_offset, r.until_offset))
    return found
