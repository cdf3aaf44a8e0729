"""Truncated partitions and a recreated topic inside of the reservation of a backfill, on current
brokers, up to the proof.

The table keeps the rows of every incarnation of a partition, each once: an independent client has
counted the first incarnation before it was gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from etl.testkit.cluster import EmbeddedCluster
from tests.chaos.cases_brokers import wait_for_all
from tests.chaos.cases_cut_logs import unclean
from tests.chaos.lives import Lives, second_life
from tests.chaos.sources import recreate_topic
from tests.command_result import refused
from tests.system.driving import Pipeline, backfill_broken_off_before
from tests.traffic.rows import Row

pytestmark = pytest.mark.long

NAME = ("old",)
ALL = range(4)
UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


@pytest.fixture
def replicated(tmp_path: Path, spark: SparkSession, unused_group: str) -> Iterator[Pipeline]:
    """A pipeline on two brokers that starts at the ends of its partitions. Leaders move only on
    request of the test.
    """
    with EmbeddedCluster(
        2, folder=tmp_path / "cluster", properties={"auto.leader.rebalance.enable": "false"}
    ) as cluster:
        cluster.create_topic("clicks", len(ALL), replication_factor=2, config=UNCLEAN)
        yield Pipeline(
            cluster, tmp_path, "clicks", unused_group, {"source": {"starting_offsets": "latest"}}
        )


def is_led_through(pipeline: Pipeline, message: str, *accepting: Sequence[str]) -> bool:
    """Follow the advice of each step: the backfill is given up before the partition is accepted;
    then the pipeline continues.

    `accepting`: the arguments of each `accept-changes` that is needed.
    """
    first, *others = accepting
    refused(pipeline.run(), 5, message, "accept-changes")
    what = "Backfill old has not loaded all offsets that it has reserved of this partition"
    refused(pipeline.accept_log(*first), 5, what, "etl backfills delete CONF old")
    refused(pipeline.door("backfills", "run", after=NAME), 5, "etl backfills delete CONF old")
    given_up = pipeline.door(
        "backfills", "delete", after=(*NAME, "--reason", "the log was cut", "--yes")
    )
    assert given_up.code == 0, given_up.err
    for words in (first, *others):
        refused(pipeline.run(), 5, message, "accept-changes")
        accepted = pipeline.accept_log(*words)
        assert accepted.code == 0, accepted.err
    return "topic_changes_accepted" in pipeline.ran().outcomes


def are_all_there(pipeline: Pipeline, first: Counter[Row], starts: Mapping[int, int]) -> bool:
    """Each record of both incarnations once, by other clients; `verify` agrees, and no further run
    adds any.
    """
    pipeline.produce(80)
    pipeline.ran()
    assert Lives(pipeline).in_table() == first + second_life(pipeline.in_topic(), starts)
    proof = pipeline.door("verify")
    assert proof.code == 0, proof.err
    assert {log["incarnation"] for log in proof.document["logs"]} == {0, 1}
    return pipeline.ran().outcomes == ["up_to_date"]


@pytest.mark.parametrize(("verb", "plan", "more"), [("fetch", 3, 400), ("record", 2, 0)])
def test_a_log_truncated_by_an_unclean_election_inside_a_reservation_has_every_record_once(
    replicated: Pipeline, verb: str, plan: int, more: int
) -> None:
    pipeline, (kept, after) = replicated, replicated.cluster.brokers
    wait_for_all(pipeline, 2)
    pipeline.produce(240)
    after.stop()
    wait_for_all(pipeline, 1)
    pipeline.produce(240)
    pipeline.ran()
    pipeline.produce(80)
    pipeline.ran()
    pipeline.settings["limits"] = {"max_records_per_plan": 160}
    backfill_broken_off_before(verb, pipeline, "old", "0", "120", plan=plan)
    whole = pipeline.in_topic()
    unclean(pipeline, kept, after, more)
    del pipeline.settings["limits"]
    # the pipeline has read no record from before the truncation, so no epoch shows its offset
    at = [(f"{pipeline.topic}:{partition}", "--truncated-at", "60") for partition in ALL]
    assert is_led_through(
        pipeline, "truncated at offset 60 or below, and records up to 140 were read", *at
    )
    first = Counter({row: n for row, n in whole.items() if row[1] < 80 or row[1] >= 120})
    assert are_all_there(pipeline, first, dict.fromkeys(ALL, 60))
    refused(
        pipeline.door("backfills", "run", after=("rest", "--from", "0", "--until", "60", "--yes")),
        5,
        "truncated or recreated",
    )


@pytest.mark.parametrize(("verb", "plan"), [("fetch", 2), ("append", 1)])
def test_a_topic_recreated_under_a_reservation_is_read_on_and_every_record_is_there_once(
    late: Pipeline, verb: str, plan: int
) -> None:
    backfill_broken_off_before(verb, late, "old", "0", "100", plan=plan)
    whole, ends = late.in_topic(), late.committed()
    recreate_topic(late)
    late.produce(240)
    del late.settings["limits"]
    assert is_led_through(late, "deleted and recreated", [late.topic])
    loaded = 40 * (plan - 1)
    first = Counter(
        {row: n for row, n in whole.items() if row[1] < loaded or 100 <= row[1] < ends[row[0]]}
    )
    assert are_all_there(late, first, dict.fromkeys(ALL, 0))
