"""Where a run reads and moves its group's offsets, by `group.offsets_storage`; and which confs and
brokers cannot.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from etl.errors import SettingsError
from etl.io.brokers.cluster_requests import Cluster
from etl.ledger.plan_document import with_id
from etl.model.partitions import (
    BY_COORDINATOR,
    Committed,
    MemberAssignment,
    Membership,
    OffsetsStorage,
    TopicPartition,
)
from etl.model.plans import CommitState, PlannedCommit
from etl.run.observe import GroupOffsets
from tests.builders import plain_plan, plain_settings
from tests.fakes.broker import OFFSET_COMMIT, FakeBroker

LOG = TopicPartition("demo", 0)
KAFKA, DUAL = {"offsets_storage": "kafka"}, {"offsets_storage": "dual"}
JAFKA = {"broker_type": "jafka", "assume_cluster_id": "c"}


def offsets_on(broker: FakeBroker, storage: str) -> GroupOffsets:
    """Services of a run with these brokers and no ZooKeeper: any access to it fails."""
    discovery = SimpleNamespace(
        open_cluster=lambda: Cluster([(broker.host, broker.port)], timeout_s=5)
    )
    return GroupOffsets(
        plain_settings(group={"offsets_storage": storage}), cast(Any, None), cast(Any, discovery)
    )


def test_offsets_in_kafka_are_read_and_moved_without_zookeeper() -> None:
    with FakeBroker() as broker:
        offsets = offsets_on(broker, "kafka")
        assert offsets.committed([LOG]) == {}
        plan = with_id(
            plain_plan(loaded_until={LOG: 42}, commit=PlannedCommit(storage=OffsetsStorage.KAFKA))
        )
        assert (
            offsets.commit(plan)
            == offsets.committed([LOG])
            == {LOG: Committed(42, None, plan.commit_metadata)}
        )
        assert broker.world.committed["group", "demo", 0] == (42, f"etl:clicks:1:{plan.id}")
        assert offsets.commit(plan, ()) == {}


@pytest.mark.parametrize(
    ("epochs", "is_moved"),
    [((7,), True), ((5, 7), True), ((5, 5), False), ((None,), False)],
    ids=str,
)
def test_after_an_append_the_membership_of_the_plan_commits(
    epochs: tuple[int | None, ...], is_moved: bool
) -> None:
    with FakeBroker() as broker:
        broker.world.generation, broker.world.members, left = 7, {"m-1": b""}, [*epochs]

        def unbroken(share: MemberAssignment) -> MemberAssignment | None:
            epoch = left.pop(0)
            return None if epoch is None else replace(share, generation=epoch)

        share = MemberAssignment("m-1", Membership.COORDINATOR, BY_COORDINATOR, 3, frozenset({LOG}))
        state = CommitState.AFTER_APPEND_AS_MEMBER
        commit = PlannedCommit(state, OffsetsStorage.KAFKA, share)
        plan = with_id(plain_plan(loaded_until={LOG: 42}, commit=commit))
        moved = offsets_on(broker, "kafka").commit_of_member(
            plan, None, share=lambda: None, unbroken=unbroken, unsure=lambda: None
        )
        assert moved == ({LOG: plan.moved(LOG)} if is_moved else {}) and not left
        assert broker.world.committed == (
            {("group", "demo", 0): (42, f"etl:clicks:1:{plan.id}")} if is_moved else {}
        )


@pytest.mark.parametrize("storage", ["kafka", "dual"])
def test_brokers_without_offsets_are_refused(storage: str) -> None:
    with (
        FakeBroker(versions={OFFSET_COMMIT: (0, 0)}) as broker,
        pytest.raises(SettingsError) as refused,
    ):
        offsets_on(broker, storage).committed([LOG])
    assert (
        refused.value.where == {"key": "group.offsets_storage"}
        and "by its API versions" in refused.value.message
    )
    assert "from 0.8.2 on" in refused.value.action


@pytest.mark.parametrize(
    ("sections", "what"),
    [
        ({"group": KAFKA, "source": JAFKA}, "these brokers store no offsets of groups;"),
        ({"group": {**DUAL, "on_active_members": "skip"}}, "not go with on_active_members: skip"),
        ({"group": {**KAFKA, "mirror_group": "group"}}, "the pipeline's own group"),
        ({"group": {"offsets_storage": "both"}}, "zookeeper, kafka or dual"),
    ],
)
def test_an_impossible_storage_names_its_key(sections: dict[str, Any], what: str) -> None:
    with pytest.raises(SettingsError) as refused:
        plain_settings(**sections)
    assert what in str(refused.value)
