"""Runs that are members of a group beside high-level consumers from the jars of their release: nothing is lost, nothing is read by two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from etl.edges.zookeeper.membership import ZooKeeperMember
from etl.embedded.releases import JAFKA
from etl.embedded.server import wait_until
from etl.model.membership import Share
from tests.brokers.stage import PARTITIONS, JafkaStage, KafkaStage
from tests.brokers.writing import ForeignPipeline, in_table, sent

BACKOFF_MS, TRIES = 500, 4


@pytest.mark.groups
@pytest.mark.parametrize("stage", [JAFKA, "0.8.2.2"], indirect=True)
def test_a_run_and_a_consumer_that_is_not_ours_share_a_topic_and_each_record_is_read_by_one_of_them(
    stage: KafkaStage | JafkaStage, make_pipeline: Callable[..., ForeignPipeline], monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While our run owns its share records come to every partition: it reads its own, the consumer the others, and after us all."""
    pipeline = make_pipeline(ownership={"mode": "join", "backoff_s": 0.5})
    clients = stage.clients if isinstance(stage, JafkaStage) else stage.scala
    assert clients is not None
    written = sent(pipeline, 60)
    pipeline.ran()
    assert in_table(pipeline) == written
    clients.open("theirs", pipeline.group, pipeline.topic, backoff_ms=BACKOFF_MS, tries=TRIES)
    written += sent(pipeline, 40)
    assert wait_until(lambda: pipeline.in_zookeeper() == stage.ends(pipeline.topic), 60), "the consumer reads all while it is alone"
    settle, shares = ZooKeeperMember.join, list[Share]()

    def joined(member: ZooKeeperMember) -> Share:
        shares.append(settle(member))
        written.update(sent(pipeline, 40))
        return shares[-1]

    monkeypatch.setattr(ZooKeeperMember, "join", joined)
    assert "ingested" in pipeline.ran().outcomes
    assert 0 < len(shares[0].logs) < PARTITIONS
    assert wait_until(lambda: pipeline.in_zookeeper() == stage.ends(pipeline.topic), 60), "and the rest of it beside us"
    theirs = Counter(clients.close("theirs"))
    assert sum(theirs.values()) > 40
    assert "read by others" in pipeline.ran().outcomes
    ours = in_table(pipeline)
    assert ours + theirs == written and max((ours + theirs).values()) == 1
    said = pipeline.door("verify")
    assert said.code == 0 and "read by other members of the group" in said.out
