"""Runs next to live members of their group, and our own members, on brokers of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from etl.io.brokers.member_state import MemberTerms
from etl.model.partitions import GroupProtocol
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import HOST
from tests.brokers.groups import Group, with_consumer_protocol
from tests.brokers.stage import JafkaStage, KafkaStage
from tests.brokers.writing import ForeignPipeline, sent
from tests.command_result import refused
from tests.fakes import member_contract
from tests.groups.kinds import CONSUMER_PROTOCOL, OLD, Kind
from tests.groups.shared import sharing
from tests.traffic.modern import grow_topic

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


@pytest.mark.groups
@pytest.mark.parametrize("stage", ["4.1.0"], indirect=True)
@pytest.mark.parametrize("protocol", GroupProtocol)
@pytest.mark.parametrize("storage", ["zookeeper", "kafka"])
def test_a_run_stops_for_a_live_member_of_either_protocol_and_continues_once_it_has_left(
    stage: KafkaStage,
    make_pipeline: Callable[..., ForeignPipeline],
    protocol: GroupProtocol,
    storage: str,
) -> None:
    with_consumer_protocol(stage.cluster)
    pipeline = make_pipeline(group={"offsets_storage": storage}, ledger={"lock_timeout_s": 0})
    sent(pipeline, 8)
    group = Group(stage, pipeline.topic, protocol, "range", pipeline.group)
    with group.joined() as (_, share):
        refused(
            pipeline.run(), 4, f"Live consumers are registered in the group: {share.member_id} at "
        )
        assert not pipeline.table.exists()
    assert "ingested" in pipeline.ran().outcomes


@pytest.fixture(
    scope="module",
    params=[
        ("2.8.2", GroupProtocol.CLASSIC),
        ("4.1.0", GroupProtocol.CLASSIC),
        ("4.1.0", GroupProtocol.CONSUMER),
    ],
    ids=str,
)
def release(request: pytest.FixtureRequest) -> Iterator[tuple[EmbeddedCluster, GroupProtocol]]:
    """A broker and a protocol; before 3.2 static leaders are not informed of their return."""
    version, protocol = request.param
    with EmbeddedCluster(version=version) as cluster:
        if protocol is GroupProtocol.CONSUMER:
            with_consumer_protocol(cluster)
        yield cluster, protocol


@pytest.mark.groups
class TestMembersOfOtherReleases(member_contract.MemberContract):
    @pytest.fixture
    def stage(self, release: tuple[EmbeddedCluster, GroupProtocol]) -> member_contract.Stage:
        cluster, protocol = release
        group = member_contract.new_group()
        cluster.create_topic(group, member_contract.PARTITIONS)
        terms = MemberTerms(
            group, (group,), session_timeout_s=6, rebalance_timeout_s=20, join_timeout_s=60
        )
        address = (HOST, cluster.brokers[0].port)
        return member_contract.Stage(
            [address], group, terms, protocol, grow=partial(grow_topic, cluster)
        )
