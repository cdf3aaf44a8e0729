"""Runs as members of Kafka's group while confluent-kafka's consumers come and go."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etl.model.partitions import GroupProtocol
from tests.brokers.groups import with_consumer_protocol
from tests.brokers.stage import KafkaStage, begin
from tests.system.driving import Pipeline
from tests.system.other_members import CLASSIC, OtherMember, another_member
from tests.traffic.rows import Row

RUNS = 8
_NOT_SETTLED = 4


@pytest.fixture(scope="module", params=["3.9.1", "4.1.0"])
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaStage]:
    with contextlib.ExitStack() as running:
        stage = begin(request.param, tmp_path_factory.mktemp("stage"), running)
        assert isinstance(stage, KafkaStage)
        if stage.release >= (4,):
            with_consumer_protocol(stage.cluster)
        yield stage


class Churn:
    """Members that are not ours: one that stays, and others that come and go all the time."""

    def __init__(self, pipeline: Pipeline, settings: dict[str, Any]) -> None:
        self._pipeline, self._settings, self._ends = pipeline, settings, threading.Event()
        self.members = list[OtherMember]()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def read(self) -> Counter[Row]:
        return sum((member.read for member in self.members), Counter[Row]())

    def __enter__(self) -> Churn:
        self._stays = contextlib.ExitStack()
        self.members.append(
            self._stays.enter_context(another_member(self._pipeline, **self._settings))
        )
        self.members[0].owns(4)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self._thread.join(120)
        self._stays.close()

    def _run(self) -> None:
        while not self._ends.wait(0.5):
            with another_member(self._pipeline, **self._settings) as member:
                self.members.append(member)
                self._ends.wait(2)


@pytest.mark.parametrize("protocol", GroupProtocol)
def test_while_members_come_and_go_each_record_is_read_by_one_of_us_and_by_one_alone(
    stage: KafkaStage,
    protocol: GroupProtocol,
    tmp_path: Path,
    unused_group: str,
) -> None:
    if protocol is GroupProtocol.CONSUMER and stage.release < (4,):
        pytest.skip("the consumer protocol is of 4.0 on")
    joined = {
        "mode": "join",
        "offsets_storage": "kafka",
        "join": {"protocol": protocol.value, "session_timeout_s": 6},
    }
    pipeline = Pipeline(
        stage.cluster,
        tmp_path,
        stage.new_topic(),
        unused_group,
        {
            **stage.conf,
            "table": {"writer": "auto"},
            "limits": {"local_below_bytes": 2**30},
            "group": joined,
            "ledger": {"lock_timeout_s": 0},
        },
    )
    theirs = dict(CLASSIC) if protocol is GroupProtocol.CLASSIC else {"group.protocol": "consumer"}
    outcomes = Counter[str]()
    pipeline.produce(80)
    with Churn(pipeline, theirs) as churn:
        for _ in range(RUNS):
            pipeline.produce(200)
            result = pipeline.run()
            assert result.code in (0, _NOT_SETTLED), result.err
            outcomes.update(result.outcomes if result.code == 0 else ["not settled"])
    pipeline.produce(80)
    assert pipeline.ran().outcomes[-1] == "ingested"
    union = pipeline.in_table() + churn.read
    assert union == pipeline.in_topic() and max(union.values()) == 1, outcomes
    assert pipeline.door("verify").code == 0
    assert outcomes["ingested"] > 1, outcomes
