"""Runs as members of a group together with other consumers: nothing is lost, nothing is read by
two. In detail: `tests/groups`.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.brokers.groups import with_consumer_protocol
from tests.brokers.stage import JafkaStage, KafkaStage
from tests.groups.kinds import CONSUMER_PROTOCOL, OLD, Kind
from tests.groups.shared import sharing

JAFKA_KIND, KAFKA_KIND = OLD


@pytest.mark.parametrize(
    ("stage", "kind"),
    [
        pytest.param(
            kind.version,
            kind,
            id=kind.name,
            marks=[] if kind is JAFKA_KIND else [pytest.mark.groups],
        )
        for kind in (JAFKA_KIND, KAFKA_KIND, CONSUMER_PROTOCOL)
    ],
    indirect=["stage"],
)
def test_a_run_killed_among_foreign_consumers_is_finished_and_each_record_is_read_by_one(
    stage: KafkaStage | JafkaStage,
    kind: Kind,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    if kind is CONSUMER_PROTOCOL:
        with_consumer_protocol(stage.cluster)
    with ExitStack() as opened:
        shared = sharing(kind, stage, tmp_path, opened)
        shared.enter("a")
        with shared.held_at("handed-over") as run:
            run.kill()
        shared.send(8)
        assert "plan_resumed" in shared.ran().outcomes
        shared.others_read_the_rest()
        assert shared.count() > 8, (
            "the consumer read its assignment during our run, and every partition after it"
        )
        shared.exit("a")
        shared.send(8)
        assert "ingested" in shared.end().outcomes
