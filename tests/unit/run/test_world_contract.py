"""The fake services of a run satisfy `world_contract`."""

from __future__ import annotations

import pytest

from etl.ledger.plan_document import parse_plan
from etl.model.partitions import TopicPartition
from etl.model.plans import Loss, Request
from tests.builders import plain_settings
from tests.fakes.fake_log import FakeLog, offset_of
from tests.fakes.outside import Outside
from tests.fakes.world import FakeWorld
from tests.fakes.world_contract import SIZES, WorldContract
from tests.fakes.znode_views import GROUP, PIPELINE

SETTINGS = plain_settings(pipeline=PIPELINE, group=GROUP)


class FakeStage:
    """`world_contract.Stage` in memory."""

    def __init__(self, broker_id: int | None = None) -> None:
        self.logs = tuple(
            TopicPartition("clicks", partition, broker_id) for partition in range(len(SIZES))
        )
        self._outside = Outside(
            {
                topic_partition: FakeLog(size)
                for topic_partition, size in zip(self.logs, SIZES, strict=True)
            }
        )

    def world(self, run_id: str = "run-1", request: Request | None = None) -> FakeWorld:
        return FakeWorld(self._outside, SETTINGS, run_id=run_id, request=request)

    def rows(self) -> list[tuple[TopicPartition, int]]:
        return sorted(
            (partition, offset_of(place)) for partition, place in self._outside.rows().elements()
        )

    def losses(self) -> list[Loss]:
        return sorted(loss for _, loss in self._outside.losses)

    def plans(self) -> dict[int, str]:
        return {
            number: parse_plan(payload, path="plans").id
            for number, payload in self._outside.plans.items()
        }

    def forget(self, number: int | None = None) -> None:
        for kept in (self._outside.plans, self._outside.applied):
            for one in [number] if number else list(kept):
                kept.pop(one, None)
        if number is None:
            self._outside.uid = None

    def expire(self, partition: TopicPartition, until: int) -> None:
        self._outside.logs[partition].log_start = until

    def replace_table(self) -> None:
        self._outside.table = []
        self._outside.table_id = "foreign"

    def clean_up_log(self) -> None:
        self._outside.forgotten_commits = True


@pytest.fixture
def stage() -> FakeStage:
    return FakeStage()


class TestTheFakeWorld(WorldContract):
    pass


class TestTheFakeWorldOfPhysicalLogs(WorldContract):
    """The same where a log is known by its broker, too."""

    @pytest.fixture
    def stage(self) -> FakeStage:
        return FakeStage(broker_id=7)
