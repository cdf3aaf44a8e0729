"""Losses, backfills and replays of a table in a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from tests.networks.commands import command, command_with
from tests.stores.pipeline import StoredPipeline
from tests.stores.servers import StoreServer

pytestmark = [pytest.mark.networks]


@pytest.fixture
def pipeline(store: StoreServer, make_stored: Callable[..., StoredPipeline]) -> StoredPipeline:
    """A pipeline without Spark on a topic with 100 records in each of two partitions."""
    made = make_stored(store, settings={"spark": {"spark.master": "local[2]"}})
    made.produce(200, partitions=2)
    return made


def losses(pipeline: StoredPipeline) -> list[tuple[Any, ...]]:
    """The rows of the losses table, as delta-rs reads it."""
    rows = pipeline.opened(f"{pipeline.url}_losses").to_pyarrow_table().to_pylist()
    return [
        tuple(
            row[name]
            for name in (
                "topic",
                "partition",
                "from_offset",
                "until_offset",
                "reason",
                "plan_number",
            )
        )
        for row in rows
    ]


def test_what_a_killed_run_let_go_is_in_the_losses_table_of_the_store_once_and_verify_counts_it(
    pipeline: StoredPipeline,
) -> None:
    pipeline.settings["source"] = {"on_data_loss": "skip"}
    command(pipeline, "run")
    pipeline.produce(200, partitions=2)
    with KafkaAdminClient(bootstrap_servers=pipeline.cluster.bootstrap) as admin:
        admin.delete_records({TopicPartition(pipeline.topic, 1): 150})
    assert pipeline.killed_before("record") != 0
    command_with(pipeline, ("run",), "--fail-on-loss", code=3)
    assert losses(pipeline) == [(pipeline.topic, 1, 100, 150, "expired", 2)]
    command(pipeline, "run")
    assert len(losses(pipeline)) == 1
    command(pipeline, "verify")
    assert sum(pipeline.in_table().values()) == 350


def test_a_backfill_and_a_replay_write_a_store_and_each_row_is_there_once(
    pipeline: StoredPipeline,
) -> None:
    pipeline.settings["source"] = {"starting_offsets": "latest"}
    command(pipeline, "run")
    pipeline.produce(100, partitions=2)
    command(pipeline, "run")
    assert sum(pipeline.in_table().values()) == 100
    command_with(pipeline, ("backfills", "run"), "old", "--from", "0", "--until", "100", "--yes")
    assert pipeline.is_whole()
    command_with(
        pipeline,
        ("replay",),
        "--partition",
        pipeline.topic,
        "--from",
        "100",
        "--until",
        "130",
        "--yes",
        "--reason",
        "seen",
    )
    assert pipeline.is_whole()
    command(pipeline, "verify")
