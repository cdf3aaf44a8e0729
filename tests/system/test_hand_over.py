"""Plan, owner nodes and offsets in one transaction of a real ZooKeeper."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss

from etl.errors import Owned, SessionLost, SettingsError
from etl.io.zookeeper import group_offsets
from etl.io.zookeeper.group_offsets import ConsumerGroup, HandOver, OwnedOffsets
from etl.io.zookeeper.ledger import Check, DriverLock, PlanLedger
from etl.io.zookeeper.ledger_side_documents import write_mark
from etl.io.zookeeper.owners import Owners
from etl.io.zookeeper.session_requests import Outcome, ZooKeeper, outcomes
from etl.ledger.plan_document import with_id
from etl.ledger.znode_paths import GroupPaths, PipelinePaths
from etl.model.partitions import (
    NOTHING_COMMITTED,
    Committed,
    MemberAssignment,
    Membership,
    OffsetsStorage,
    RejectedCommit,
    TopicPartition,
)
from etl.model.plans import CommitState, OffsetRange, Plan, PlannedCommit
from etl.run.live_services import PlanStore
from tests.builders import plain_plan, plain_settings

LOGS = [TopicPartition("clicks", p) for p in range(3)]
PATHS = GroupPaths("g")
SETTINGS = plain_settings(group="g", pipeline="clicks")
ROOT = PipelinePaths("g", "clicks").root
OURS = 1
"""The version of owner nodes that we claimed; consumers' have 0."""


class Driver:
    """One driver at work that owns logs and hands plans over."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self.zookeeper = zookeeper
        self.ledger = PlanLedger(zookeeper, "g", "clicks")
        self.group = ConsumerGroup(zookeeper, "g")
        self.lock = DriverLock(zookeeper, "g", "clicks")
        self._commits = HandOver(zookeeper, "g", self.lock)

    def store(
        self, plan: Plan, *, meanwhile: Callable[[], object] = lambda: None
    ) -> RejectedCommit | None:
        """Hand the plan over; `meanwhile` is what others do at the last moment."""
        checks = [Check(PATHS.owner(partition), OURS) for partition in plan.offsets_to_commit]

        def write(parts: object) -> None:
            meanwhile()
            self.ledger.store_plan(plan, also=parts)  # type: ignore[arg-type]

        return self._commits.store(plan, checks, write)

    def plan(self, partitions: list[TopicPartition] = LOGS) -> Plan:
        """Ten offsets of each log, from where the group is."""
        committed = self.group.committed(partitions)
        seen = {partition: committed.get(partition, NOTHING_COMMITTED) for partition in partitions}
        starts = {partition: found.offset or 0 for partition, found in seen.items()}
        share = MemberAssignment("m", Membership.ZOOKEEPER, "range", None, frozenset(partitions))
        ranges = [OffsetRange(partition, start, start + 10) for partition, start in starts.items()]
        plan = plain_plan(
            ranges=tuple(ranges),
            expected_commits=seen,
            commit=PlannedCommit(CommitState.DONE, member=share),
            loaded_until={r.partition: r.until_offset for r in ranges},
        )
        return with_id(plan)


@pytest.fixture
def driver(zookeeper: ZooKeeper) -> Iterator[Driver]:
    driver = Driver(zookeeper)
    with (
        driver.lock.driving("run-1", wait_s=0),
        Owners(zookeeper, "g", "clicks").claiming(LOGS, "run-1"),
    ):
        yield driver


def offsets(driver: Driver) -> list[int | None]:
    found = driver.group.committed(LOGS)
    return [found.get(partition, NOTHING_COMMITTED).offset for partition in LOGS]


def let_go(zookeeper: ZooKeeper, partition: TopicPartition) -> None:
    zookeeper.client.delete(PATHS.owner(partition))


def own_as_a_consumer(zookeeper: ZooKeeper, partition: TopicPartition) -> None:
    let_go(zookeeper, partition)
    zookeeper.client.create(PATHS.owner(partition), b"g_consumer-1-0", ephemeral=True)


def test_a_plan_and_the_offsets_of_its_logs_are_stored_in_one_step(driver: Driver) -> None:
    driver.zookeeper.client.create(PATHS.offset(LOGS[0]), b"5", makepath=True)
    plan = driver.plan()
    assert driver.store(plan) is None
    assert driver.ledger.read_plan(1) == plan
    assert driver.group.committed(LOGS) == {
        partition: plan.moved(partition) for partition in LOGS
    } | {LOGS[0]: Committed(15, 1)}


def test_after_an_offset_commit_the_commit_of_its_plan_moves_nothing(driver: Driver) -> None:
    plan = driver.plan()
    driver.store(plan)
    others = driver.zookeeper.client.set(PATHS.offset(LOGS[1]), b"99")
    assert driver.group.commit(plan) == {}
    assert (offsets(driver), others.version) == ([10, 99, 10], 1)


def test_what_a_plan_handed_over_in_kafka_moves_no_offset_here(driver: Driver) -> None:
    """A person cut it down to the part that was taken."""
    share = MemberAssignment("m-1", Membership.COORDINATOR, "range", 1, frozenset(LOGS))
    commit = PlannedCommit(CommitState.DONE, OffsetsStorage.KAFKA, share)
    plan = with_id(replace(driver.plan(), commit=commit))
    store = PlanStore(
        SETTINGS.group.id, driver.zookeeper, driver.ledger, driver.lock, lambda partitions: ()
    )

    def write(parts: Any) -> None:
        driver.ledger.store_plan(plan, also=parts)

    assert store.write(plan, write, is_handed_over=True) is None
    assert driver.ledger.read_plan(1) == plan and offsets(driver) == [None] * 3


def test_what_became_of_a_hand_over_is_written_once_but_that_a_void_one_was_taken_all_the_same(
    driver: Driver,
) -> None:
    plan = driver.plan()
    stored = with_id(plan.with_commit_state(CommitState.IN_DOUBT))
    void = stored.with_commit_state(CommitState.REJECTED)
    handed_over = stored.with_commit_state(CommitState.DONE)
    driver.ledger.store_plan(stored)
    for known in (void, void, handed_over, handed_over):
        write_mark(driver.ledger, known)
        assert driver.ledger.read_plan(1) == known
    with pytest.raises(Owned, match="Another driver changed plan 1"):
        write_mark(driver.ledger, void)


@pytest.mark.parametrize(
    ("meanwhile", "message"),
    [
        (
            lambda z: own_as_a_consumer(z, LOGS[1]),
            "clicks 1 is no longer owned by this run: g_consumer-1-0 owns it",
        ),
        (lambda z: let_go(z, LOGS[2]), "clicks 2 is no longer owned by this run: it has no owner"),
        (
            lambda z: z.client.create(PATHS.offset(LOGS[0]), b"3"),
            "the offset of clicks 0 was moved since it was read: from None to 3",
        ),
        (
            lambda z: z.client.set(PATHS.offset(LOGS[1]), b"7"),
            "the offset of clicks 1 was moved since it was read: from 0 to 7",
        ),
        (
            lambda z: z.client.delete(PATHS.offset(LOGS[1])),
            "the offset of clicks 1 was moved since it was read: from 0 to None",
        ),
    ],
)
def test_where_others_came_before_nothing_is_stored_and_nothing_moves(
    driver: Driver, meanwhile: Callable[[ZooKeeper], object], message: str
) -> None:
    driver.zookeeper.client.create(PATHS.offset(LOGS[1]), b"0", makepath=True)
    plan, before = driver.plan(), offsets(driver)
    rejected = driver.store(plan, meanwhile=lambda: meanwhile(driver.zookeeper))
    assert rejected == RejectedCommit(message)
    after = offsets(driver)
    changed = [partition for partition in range(3) if after[partition] != before[partition]]
    assert changed in ([], [0], [1]) and 10 not in after
    assert driver.ledger.plan_numbers() == []


def test_of_two_plans_of_one_number_the_second_is_refused_and_is_not_called_void(
    driver: Driver,
) -> None:
    plan = driver.plan()
    other = with_id(plain_plan(uid=plan.origin.pipeline_id))
    with pytest.raises(Owned, match="stored or changed plan 1"):
        driver.store(plan, meanwhile=lambda: driver.ledger.store_plan(other))
    assert offsets(driver) == [None] * 3


def test_a_driver_that_lost_its_lock_hands_nothing_over_though_another_has_one_like_it(
    driver: Driver, connect: str
) -> None:
    """The other's znode has the version that ours had, and its owner nodes have, too."""
    plan = driver.plan()
    with ZooKeeper(connect) as other, contextlib.ExitStack() as at_work:

        def lose() -> None:
            [name] = driver.zookeeper.children(f"{ROOT}/drivers") or []
            driver.zookeeper.client.delete(f"{ROOT}/drivers/{name}")
            at_work.enter_context(DriverLock(other, "g", "clicks").driving("run-2", wait_s=0))

        with pytest.raises(SessionLost):
            driver.store(plan, meanwhile=lose)
        assert (driver.ledger.plan_numbers(), offsets(driver)) == ([], [None] * 3)
        with pytest.raises(SessionLost, match="This run lost the driver lock"):
            driver.store(plan)


def after_the_append(driver: Driver, partitions: list[TopicPartition] = LOGS) -> Plan:
    plan = driver.plan(partitions)
    return with_id(replace(plan, commit=plan.commit.after_append))


def move(driver: Driver, plan: Plan) -> dict[TopicPartition, Committed]:
    return OwnedOffsets(driver.zookeeper, "g", driver.group).move(plan, plan.offsets_to_move)


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda z: own_as_a_consumer(z, LOGS[1]),
        lambda z: let_go(z, LOGS[1]),
        lambda z: z.client.set(PATHS.offset(LOGS[1]), b"7"),
        lambda z: z.client.delete(PATHS.offset(LOGS[1])),
        lambda z: z.client.set(PATHS.offset(LOGS[1]), b"10"),
    ],
    ids=["owned", "offsets_stored", "moved", "removed", "moved to the same"],
)
def test_after_an_append_only_offsets_of_logs_that_are_still_ours_and_unchanged_since_the_plan_move(
    driver: Driver, meanwhile: Callable[[ZooKeeper], object]
) -> None:
    driver.zookeeper.client.create(PATHS.offset(LOGS[1]), b"5", makepath=True)
    driver.zookeeper.client.set(PATHS.offset(LOGS[1]), b"0")
    plan = after_the_append(driver)
    meanwhile(driver.zookeeper)
    now = offsets(driver)[1]
    assert move(driver, plan) == {
        partition: plan.moved(partition) for partition in LOGS if partition != LOGS[1]
    }
    assert offsets(driver) == [10, now, 10]


def test_after_an_append_with_a_lost_answer_an_offset_of_our_value_is_ours(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = after_the_append(driver)

    def unanswered(request: list[Any]) -> list[Outcome]:
        monkeypatch.undo()
        outcomes(request)
        return [ConnectionLoss() for _ in request]

    monkeypatch.setattr(group_offsets, "outcomes", unanswered)
    assert move(driver, plan) == {partition: plan.moved(partition) for partition in LOGS}
    assert move(driver, plan) == {}, "and nothing of it is done twice"


def test_five_thousand_partitions_are_handed_over_in_one_step(driver: Driver) -> None:
    partitions = [TopicPartition("clicks", p) for p in range(5_000)]
    with Owners(driver.zookeeper, "g", "clicks").claiming(partitions[3:], "run-1"):
        plan = driver.plan(partitions)
        assert driver.store(plan) is None
        assert driver.ledger.read_plan(1) == plan
        assert driver.group.committed(partitions) == {
            partition: Committed(10, 0) for partition in partitions
        }


def test_more_partitions_than_a_request_of_zookeeper_holds_are_refused_by_name(
    driver: Driver,
) -> None:
    partitions = [TopicPartition("clicks", p) for p in range(9_000)]
    message = "The offset commit of 9,000 partitions needs a request of"
    with pytest.raises(SettingsError, match=message) as caught:
        driver.store(driver.plan(partitions))
    assert (caught.value.exit_code, driver.ledger.plan_numbers()) == (2, [])
