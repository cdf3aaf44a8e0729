"""What a run decided from, as JSON and back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etl.ledger.plan_document import parse_plan, render_plan
from etl.model.partitions import (
    Broker,
    Committed,
    EpochEnd,
    Fingerprint,
    Leader,
    OffsetsStorage,
    OpenTransaction,
    PartitionOffsets,
    Retention,
    TopicPartition,
)
from etl.model.plans import CommitResult, HeldRows, Plan, Predecessor
from etl.model.snapshot import (
    Acknowledgement,
    Availability,
    CommitMetadata,
    ForeignCommit,
    GroupSnapshot,
    Ledger,
    OtherPipeline,
    PartitionSnapshot,
    Retirement,
    Snapshot,
    Table,
    TopicSnapshot,
)
from etl.report.incident import (
    read_plan,
    read_settings,
    read_snapshot,
    write_plan,
    write_settings,
    write_snapshot,
)
from etl.settings.load import parse_settings, settings_of_backfill
from etl.settings.sections import Settings
from tests.builders import plain_snapshot, with_facts
from tests.fakes.any_plans import (
    APPLIED,
    CLUSTERS,
    COMMITTED,
    KEPT,
    LOGS,
    NAMES,
    OFFSETS,
    TOPICS,
    plans,
)

SMALL = st.integers(0, 9)
WORDS = st.text(max_size=6)
LEADERS = st.builds(
    Leader,
    st.builds(Broker, SMALL, st.just("broker-7.example.org"), st.just(9092)),
    st.none() | SMALL,
)
FOREIGN = st.builds(
    ForeignCommit, SMALL, WORDS, WORDS, st.none() | st.builds(Predecessor, WORDS, SMALL)
)


def by_partition(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[TopicPartition, Any]]:
    return st.dictionaries(LOGS, values, max_size=3)


BOUNDARIES = st.none() | st.lists(OFFSETS, max_size=3).map(tuple)
EXTENTS = st.builds(PartitionOffsets, OFFSETS, OFFSETS, st.none() | OFFSETS, BOUNDARIES)
LEDGERS = st.builds(
    Ledger,
    NAMES,
    st.none() | plans(),
    st.none() | APPLIED,
    st.none() | SMALL,
    st.none() | SMALL,
    st.none()
    | st.builds(
        Acknowledgement,
        NAMES,
        st.none() | SMALL,
        SMALL,
        WORDS,
        OFFSETS,
        st.booleans(),
        NAMES,
        st.none() | SMALL,
        st.none() | st.booleans(),
        NAMES,
        NAMES,
    ),
    st.none() | st.builds(Retirement, WORDS, OFFSETS, NAMES),
)
TABLES = st.builds(
    Table,
    WORDS,
    SMALL,
    st.none() | SMALL,
    st.none()
    | st.builds(
        CommitMetadata,
        SMALL,
        WORDS,
        WORDS,
        SMALL,
        WORDS,
        document=st.none() | plans().map(render_plan),
        run_id=NAMES,
    ),
    st.lists(FOREIGN, max_size=2).map(tuple),
    st.lists(
        st.builds(OtherPipeline, WORDS, SMALL, st.none() | SMALL, st.none() | plans()), max_size=1
    ).map(tuple),
    st.frozensets(TOPICS, max_size=2),
    st.booleans(),
    NAMES,
)
PARTITIONS = by_partition(
    st.builds(
        PartitionSnapshot,
        availability=st.sampled_from(Availability),
        offsets=st.none() | EXTENTS,
        leader=st.none() | LEADERS,
        committed=st.none() | COMMITTED | KEPT,
        owner=NAMES,
        pause=st.none(),
        bytes_per_offset=st.none() | st.floats(0, 1e9),
        leader_epoch=st.none() | SMALL,
        epoch_end=st.none() | st.builds(EpochEnd, SMALL, SMALL, OFFSETS),
        start_at_time=st.none() | OFFSETS,
        retained_from=st.none() | OFFSETS,
        open_transaction=st.none()
        | st.builds(OpenTransaction, SMALL, OFFSETS, NAMES, st.none() | OFFSETS),
        fingerprints=st.lists(st.builds(Fingerprint, OFFSETS, SMALL, WORDS), max_size=2).map(tuple),
    )
)
RETENTIONS = st.builds(
    Retention, st.none() | SMALL, st.none() | SMALL, st.booleans(), st.booleans()
)
SNAPSHOTS = st.builds(
    Snapshot,
    cluster=CLUSTERS,
    partitions=PARTITIONS,
    topics=st.dictionaries(
        TOPICS,
        st.builds(TopicSnapshot, NAMES, NAMES, st.none() | RETENTIONS, st.booleans()),
        max_size=2,
    ),
    group=st.builds(
        GroupSnapshot,
        storage=st.sampled_from(OffsetsStorage),
        live_consumers=st.lists(WORDS, max_size=2).map(tuple),
        other_pipelines=st.dictionaries(WORDS, st.frozensets(TOPICS, max_size=2), max_size=2),
    ),
    ledger=LEDGERS,
    table=st.none() | TABLES,
    parallelism=st.none() | SMALL,
)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value, allow_nan=False))


def no_address(leader: Leader) -> Leader:
    return replace(leader, broker=Broker(leader.broker.id, "", 0))


def kept_of(plan: Plan) -> Plan:
    """The plan in the JSON document: all but the addresses of its brokers."""
    return replace(
        plan,
        ranges=tuple(replace(r, leader=r.leader and no_address(r.leader)) for r in plan.ranges),
    )


def kept_of_result(applied: CommitResult) -> CommitResult:
    return replace(
        applied,
        results=tuple(
            replace(result, gaps=(), gaps_complete=result.gaps_complete and not result.gaps)
            for result in applied.results
        ),
    )


def kept(snapshot: Snapshot) -> Snapshot:
    """The snapshot in the JSON document; the table's plan as a plan."""
    ledger, table = snapshot.ledger, snapshot.table
    ledger = replace(
        ledger,
        newest=ledger.newest and kept_of(ledger.newest),
        applied=ledger.applied and kept_of_result(ledger.applied),
    )
    if table:
        others = tuple(
            replace(other, plan=other.plan and kept_of(other.plan)) for other in table.others
        )
        table = replace(
            table, metadata=table.metadata and replace(table.metadata, document=None), others=others
        )
    return with_facts(
        snapshot,
        ledger=ledger,
        table=table,
        leaders={partition: no_address(leader) for partition, leader in snapshot.leaders.items()},
    )


def plan_in_table(snapshot: Snapshot) -> Plan | None:
    document = (
        snapshot.table.metadata.document if snapshot.table and snapshot.table.metadata else None
    )
    return kept_of(parse_plan(document, path="table")) if document else None


@settings(max_examples=30, deadline=None)
@given(plans())
def test_a_plan_comes_back_without_its_brokers_addresses(plan: Plan) -> None:
    assert read_plan(through_json(write_plan(plan))) == kept_of(plan)


@settings(max_examples=30, deadline=None)
@given(SNAPSHOTS)
def test_what_a_run_saw_comes_back_without_addresses_and_gaps(snapshot: Snapshot) -> None:
    document = write_snapshot(snapshot)
    back = read_snapshot(through_json(document))
    assert (kept(back), plan_in_table(back)) == (kept(snapshot), plan_in_table(snapshot))
    assert "broker-7.example.org" not in json.dumps(document)


@settings(max_examples=30, deadline=None)
@given(plans())
def test_the_tables_plan_is_written_once_if_the_ledger_has_it(plan: Plan) -> None:
    metadata = CommitMetadata(
        3, "app", plan.origin.pipeline_id, plan.number, plan.id, document=render_plan(plan)
    )
    snapshot = plain_snapshot(
        {}, ledger=Ledger(plan.origin.pipeline_id, plan), table=Table("t", 3, plan.number, metadata)
    )
    document = through_json(write_snapshot(snapshot))
    assert document["table"]["metadata"]["document"] == "the newest plan of the ledger"
    assert plan_in_table(read_snapshot(document)) == kept_of(plan)


def test_rows_in_a_table_of_unplanned_partitions_are_parsed_unchanged() -> None:
    held = (
        HeldRows(TopicPartition("clicks", 3), 1, 5, 9, 4),
        HeldRows(TopicPartition("views", 0), 0, 0, 1, 1),
    )
    snapshot = plain_snapshot({}, table=Table("t", 3, None, held=held))
    assert read_snapshot(through_json(write_snapshot(snapshot))) == snapshot


def test_a_look_names_each_field_once_and_not_once_for_each_log() -> None:
    partitions = [TopicPartition(topic, number) for topic in ("a", "b") for number in range(100)]
    leader = Leader(Broker(7, "broker-7.example.org", 9092), 3)
    snapshot = plain_snapshot(
        {partition: (0, 9) for partition in partitions},
        leaders=dict.fromkeys(partitions, leader),
        committed=dict.fromkeys(partitions, Committed(8, 3)),
    )
    document = write_snapshot(snapshot)
    text = json.dumps(document)
    assert [text.count(name) for name in ("end_offset", "broker", "version")] == [1, 1, 1]
    assert read_snapshot(through_json(document)).leaders == dict.fromkeys(
        partitions, no_address(leader)
    )


def test_an_unreadable_plan_stays_unreadable() -> None:
    metadata = CommitMetadata(3, "app", "u", 1, "id", document=b"\\x00")
    snapshot = plain_snapshot({}, table=Table("t", 3, 1, metadata))
    back = read_snapshot(through_json(write_snapshot(snapshot)))
    assert back.table and back.table.metadata and back.table.metadata.document == b"no plan"


CONF: dict[str, Any] = {
    "pipeline": "p",
    "zookeeper": {"connect": "secret-host:2181/chroot"},
    "source": {
        "bootstrap_servers": "secret-host:9092",
        "topics": ["clicks.*"],
        "exclude_topics": ["clicks-old"],
        "starting_offsets": "2026-01-31T12:00:00+01:00",
        "new_topics_starting_offsets": "latest",
        "on_data_loss": "skip",
        "assume_cluster_id": "c",
        "on_no_leader": "skip",
        "isolation_level": "read_uncommitted",
        "expiry_warning_s": 7,
        "assume_compacted": ["clicks-c"],
    },
    "table": {
        "path": "/warehouse/clicks",
        "partition_by": ["event_date"],
        "on_rows_removed": "record",
        "losses_path": "/secret-host",
    },
    "limits": {"max_records_per_plan": 5, "max_bytes_per_plan": 6, "target_task_bytes": 7},
    "transform": "m:f",
    "report": {"path": "/secret-host/reports"},
    "spark": {"spark.password": "secret-word"},
    "group": {
        "id": "g",
        "mode": "observe",
        "on_owned": "skip",
        "on_active_members": "skip",
        "on_offset_changed": "follow",
    },
    "ledger": {"lock_timeout_s": 3},
}
LEFT_OUT = {"defaults", "zookeeper", "report", "spark", "metrics", "openlineage"}
LEFT_OUT |= {"limits.local_below_bytes", "group.mirror_group"}
LEFT_OUT |= {
    f"source.{key}"
    for key in (
        "bootstrap_servers wait_for_leader_s fetch_max_bytes max_batch_bytes max_record_bytes "
        "request_timeout_s broker_version listener security"
    ).split()
}
LEFT_OUT |= {
    f"table.{key}"
    for key in (
        "writer compression store target_file_bytes auto_compact_min_files row_group_bytes "
        "write_buffer_bytes name losses_path"
    ).split()
}


def keys_of(settings: dict[str, Any]) -> set[str]:
    sections = {"source", "table", "group"} & settings.keys()
    inner = {f"{section}.{key}" for section in sections for key in settings[section]}
    return (settings.keys() - sections) | inner


@pytest.mark.parametrize("transform", [{}, {"transform": {"record_batch": "m:g"}}])
def test_settings_that_decide_are_parsed_unchanged_and_without_secrets(
    transform: dict[str, Any],
) -> None:
    conf = parse_settings({**CONF, **transform})
    document = through_json(write_settings(conf))
    assert write_settings(read_settings(document)) == document
    assert "secret" not in json.dumps(document)
    assert keys_of(document) == keys_of(conf.model_dump(by_alias=True)) - LEFT_OUT


def test_settings_of_a_backfill_come_back_under_its_name() -> None:
    conf = parse_settings({**CONF, "limits": {}})
    own = settings_of_backfill(conf, "old")
    found = read_settings(through_json(write_settings(own)))
    assert (found.pipeline, found.limits) == (own.pipeline, own.limits)
    assert found.source.starting_offsets == conf.source.starting_offsets


def _keys_in(section: Any, name: str) -> list[str]:
    fields = getattr(section, "model_fields", None)
    return [field.alias or key for key, field in fields.items()] if fields else [name]


def test_every_key_of_a_conf_is_either_kept_or_left_out_on_purpose() -> None:
    known = {
        f"{name}.{key}" if name in ("source", "table", "group") else name
        for name, field in Settings.model_fields.items()
        for key in _keys_in(field.annotation, name)
    }
    assert known - LEFT_OUT == keys_of(write_settings(parse_settings(CONF)))
