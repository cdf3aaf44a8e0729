"""Changes of topics and group offsets by other clients; none of the package's clients is used."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from deltalake import DeltaTable
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import KafkaError, TopicAlreadyExistsError

from etl.testkit.server_process import wait_until
from tests.chaos.stage import CaseResult, case_result, checked, ended
from tests.command_result import CommandResult
from tests.system.driving import Pipeline
from tests.traffic.rows import Row, hash_of

Gone = tuple[int, int, int, str]
"""Partition, from, until, why."""
_SOON_S = 90.0


@contextlib.contextmanager
def admin_of(pipeline: Pipeline) -> Iterator[KafkaAdminClient]:
    """An admin client of the brokers that run: it gives up at the first that does not."""
    running = [broker.bootstrap for broker in pipeline.cluster.brokers if broker.pid is not None]
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=running)) as admin:
        yield admin


def delete_records(pipeline: Pipeline, before: Mapping[int, int]) -> None:
    """Move the log start of some partitions, as retention does."""
    with admin_of(pipeline) as admin:
        admin.delete_records(
            {
                TopicPartition(pipeline.topic, partition): offset
                for partition, offset in before.items()
            }
        )


def configure(pipeline: Pipeline, settings: Mapping[str, str]) -> None:
    with admin_of(pipeline) as admin:
        admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, pipeline.topic, configs=dict(settings))]
        )


def delete_topic(pipeline: Pipeline) -> None:
    """Delete the topic, and return when clients no longer see it."""
    with admin_of(pipeline) as admin:
        admin.delete_topics([pipeline.topic])
        assert wait_until(lambda: pipeline.topic not in admin.list_topics(), _SOON_S), (
            "the topic does not go"
        )


def recreate_topic(pipeline: Pipeline) -> None:
    """Delete the topic and make another one of the same name."""
    delete_topic(pipeline)
    make_topic(pipeline)


def make_topic(pipeline: Pipeline, partitions: int = 4) -> None:
    """Another topic of the same name, as soon as the deleted one is gone."""

    def made() -> bool:
        try:
            pipeline.cluster.create_topic(pipeline.topic, partitions)
        except (
            TopicAlreadyExistsError
        ):  # marked for deletion: clients no longer see it, and it is not gone yet
            return False
        return True

    assert wait_until(made, _SOON_S), "the topic cannot be made again"


def partitions_of(pipeline: Pipeline) -> dict[int, tuple[int, int]]:
    """Leader (-1: none) and number of in-sync replicas of each partition, as the brokers report."""
    found: dict[int, tuple[int, int]] = {}

    def describe_topic() -> bool:
        with (
            contextlib.suppress(KafkaError),
            admin_of(pipeline) as admin,
        ):  # its broker may have died just now
            [topic] = admin.describe_topics([pipeline.topic])
            found.update(
                {
                    each["partition_index"]: (each["leader_id"], len(each["isr_nodes"]))
                    for each in topic["partitions"]
                }
            )
        return bool(found)

    assert wait_until(describe_topic, _SOON_S), "the brokers do not tell of the topic"
    return found


def leader_of(pipeline: Pipeline, partition: int) -> int:
    return partitions_of(pipeline)[partition][0]


def wait_for_all(pipeline: Pipeline, replicas: int) -> None:
    """Until every partition has its leader and all replicas in sync."""

    def is_so() -> bool:
        return all(
            leader >= 0 and in_sync == replicas
            for leader, in_sync in partitions_of(pipeline).values()
        )

    assert wait_until(is_so, _SOON_S), partitions_of(pipeline)


def log_starts(pipeline: Pipeline) -> dict[int, int]:
    with contextlib.closing(
        KafkaConsumer(
            bootstrap_servers=pipeline.cluster.bootstrap.split(","), enable_auto_commit=False
        )
    ) as consumer:
        partitions = [
            TopicPartition(pipeline.topic, partition)
            for partition in consumer.partitions_for_topic(pipeline.topic)
        ]
        return {
            topic_partition.partition: offset
            for topic_partition, offset in consumer.beginning_offsets(partitions).items()
        }


def set_offset(pipeline: Pipeline, partition: int, offset: int | None) -> None:
    """Overwrite an offset as an old consumer's commit does. None: its znode is deleted."""
    path = f"/consumers/{pipeline.group}/offsets/{pipeline.topic}/{partition}"
    with pipeline.zookeeper() as client:
        if offset is None:
            client.delete(path)
            return
        client.ensure_path(path)
        client.set(path, b"%d" % offset)


def between(
    rows: Counter[Row], partition: int, from_offset: int, until_offset: int
) -> Counter[Row]:
    """The rows of one partition from one offset to another, exclusive."""
    return Counter(
        {
            row: count
            for row, count in rows.items()
            if row[0] == partition and from_offset <= row[1] < until_offset
        }
    )


def let_go(pipeline: Pipeline) -> list[Gone]:
    """What the losses table holds, in order, by delta-rs."""
    path = f"{pipeline.table}_losses"
    if not DeltaTable.is_deltatable(path):
        return []
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    return sorted(
        (row["partition"], row["from_offset"], row["until_offset"], row["reason"]) for row in rows
    )


def check_losses(pipeline: Pipeline, gone: Sequence[Gone]) -> None:
    """Check that the losses table has exactly these offsets."""
    assert let_go(pipeline) == list(gone), let_go(pipeline)


def stored_plans(pipeline: Pipeline) -> list[int]:
    path = f"/consumers/{pipeline.group}/etl/clicks/plans"
    with pipeline.zookeeper() as client:
        return (
            sorted(int(name) for name in client.get_children(path)) if client.exists(path) else []
        )


def slow_down(pipeline: Pipeline, client_id: str, bytes_per_s: int | None) -> None:
    """Set a quota on a client's fetches (KIP-13) for brokers with ZooKeeper; None removes it."""
    config = {} if bytes_per_s is None else {"consumer_byte_rate": str(bytes_per_s)}
    with pipeline.zookeeper() as client:
        client.ensure_path(f"/config/clients/{client_id}")
        client.set(
            f"/config/clients/{client_id}", json.dumps({"version": 1, "config": config}).encode()
        )
        notice = json.dumps({"version": 2, "entity_path": f"clients/{client_id}"}).encode()
        client.create("/config/changes/config_change_", notice, sequence=True)


_LIFE = 1_000
"""Partition 3 in its second life is 1003."""


@dataclass
class Lives:
    """What the table holds, each row under the life of its log."""

    pipeline: Pipeline

    def in_topic(self) -> Counter[Row]:
        return self.pipeline.in_topic()

    def in_table(self) -> Counter[Row]:
        rows = (
            DeltaTable(str(self.pipeline.table))
            .to_pyarrow_table(columns=["partition", "offset", "value", "incarnation"])
            .to_pylist()
        )
        return Counter(
            (row["partition"] + _LIFE * row["incarnation"], row["offset"], hash_of(row["value"]))
            for row in rows
        )


def second_life(rows: Counter[Row], starts: Mapping[int, int]) -> Counter[Row]:
    """The topic's rows from these offsets on, as the second incarnation."""
    return Counter(
        {
            (p + _LIFE, offset, value): n
            for (p, offset, value), n in rows.items()
            if p in starts and offset >= starts[p]
        }
    )


def accepted(pipeline: Pipeline, *words: str) -> None:
    ended(pipeline.accept_log(*words), 0)


def finish(
    pipeline: Pipeline, after: str, next_run: CommandResult, expected: Counter[Row]
) -> CaseResult:
    """One more run, the package's own proof, and the check of every life."""
    ended(pipeline.run(), 0)
    ended(pipeline.door("verify"), 0)
    return case_result(after, next_run, checked(Lives(pipeline), expected))
