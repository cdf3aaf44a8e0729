"""Runs whose coordinator rejects them: exit codes, and no registration stays. Every code is in
tests/wire/test_members_of_a_coordinator.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FIND_COORDINATOR
from tests.fakes.coordinator import CONSUMER, JOIN, FakeCoordinator
from tests.system.driving import Pipeline

pytestmark = pytest.mark.without_spark
CLASSIC, CONSUMERS = "classic", "consumer"
Made = Callable[[str], Pipeline]


@pytest.fixture
def broker() -> Iterator[FakeCoordinator]:
    with FakeCoordinator() as broker:
        yield broker


@pytest.fixture
def made(broker: FakeCoordinator, make_pipeline: Callable[..., Pipeline]) -> Made:
    """A pipeline that joins by this protocol."""

    def make(protocol: str) -> Pipeline:
        pipeline = make_pipeline(
            source={"bootstrap_servers": f"{broker.host}:{broker.port}", "request_timeout_s": 3},
            group={
                "offsets_storage": "kafka",
                "mode": "join",
                "join": {"protocol": protocol, "join_timeout_s": 10},
            },
        )
        broker.append(
            pipeline.topic,
            0,
            encode(Batch(0, [Rec(delta, b"value-%d" % delta) for delta in range(10)])),
        )
        broker.world.topic_ids[pipeline.topic] = UUID(int=1)
        return pipeline

    return make


def refuse(broker: FakeCoordinator, api: int, *codes: int) -> None:
    (broker.world.group_refusals if api == FIND_COORDINATOR else broker.refusals)[api].extend(codes)


@pytest.mark.parametrize(
    ("protocol", "api", "code"), [(CLASSIC, JOIN, 27), (CONSUMERS, CONSUMER, 110)], ids=str
)
def test_what_may_pass_is_waited_for_and_the_run_loads(
    broker: FakeCoordinator, made: Made, protocol: str, api: int, code: int
) -> None:
    pipeline = made(protocol)
    refuse(broker, api, code, code)
    assert "ingested" in pipeline.ran().outcomes
    assert sum(pipeline.in_table().values()) == 10
    assert not broker.group.members and not broker.consumers


@pytest.mark.parametrize(
    ("protocol", "api", "code", "exit_code"),
    [
        (CLASSIC, JOIN, 23, 2),
        (CLASSIC, JOIN, 26, 2),
        (CLASSIC, JOIN, 30, 2),
        (CLASSIC, JOIN, 82, 6),
        (CLASSIC, FIND_COORDINATOR, 30, 2),
        (CONSUMERS, CONSUMER, 42, 1),
        (CONSUMERS, CONSUMER, 112, 2),
    ],
    ids=str,
)
def test_permanent_errors_are_reported_with_their_exit_code_and_no_registration_of_ours_stays(
    broker: FakeCoordinator, made: Made, protocol: str, api: int, code: int, exit_code: int
) -> None:
    pipeline = made(protocol)
    refuse(broker, api, code)
    result = pipeline.run()
    assert result.code == exit_code and f"(code {code})" in result.err, result.err
    assert not pipeline.table.exists() and not broker.group.members and not broker.consumers
