"""Our members in ZooKeeper together with a release's own consumers: one owner per partition."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from etl.decide.group_assignment import Timing
from etl.errors import Owned
from etl.io.zookeeper.owners import GroupMembers, Owners
from etl.ledger.znode_paths import GroupPaths
from etl.testkit.server_process import wait_until
from tests.brokers.stage import JafkaStage, KafkaStage
from tests.brokers.zookeeper_groups import BACKOFF_MS, SETTLES_S, Group, of_both_families

FEW = 2
"""Of the other consumers' attempts, to decide which one gives up."""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def group(stage: JafkaStage | KafkaStage, unused_group: str) -> Iterator[Group]:
    with contextlib.ExitStack() as opened:
        yield Group(stage, unused_group, opened)


@of_both_families
def test_old_consumers_count_us_in_and_share_anew_when_we_come_when_they_come_and_go_and_when_we_go(
    group: Group,
) -> None:
    group.open("a")
    assert group.has(a=4)
    member = group.member()
    share = member.join()
    assert group.has(a=2, etl=2)
    assert share.partitions == group.owned()["etl"] and share.member_id == member.id
    assert member.is_current
    member.follow()
    group.open("z")
    assert group.has(a=2, etl=1, z=1), (
        "a thread that sorts first has one more of what cannot be divided"
    )
    assert member.rejoin().partitions == group.owned()["etl"]
    member.follow()
    group.close("a")
    assert group.has(etl=2, z=2)
    member.leave()
    assert group.has(z=4)
    assert member.statistics.rebalances >= 3


@of_both_families
def test_consumers_that_gave_up_because_of_a_late_release_own_their_partitions_again(
    group: Group,
) -> None:
    """No event comes after that: the late member must notify them."""
    group.open("a", tries=FEW)
    member = group.member()
    member.join()
    assert group.has(a=2, etl=2)
    with pytest.raises(AssertionError, match="rebalance"):
        group.open("c", tries=FEW)  # it and `a` find us in their way at all their tries
    assert not member.is_current
    member.follow()
    assert group.has(a=2, c=1, etl=1)


@of_both_families
def test_a_consumer_that_a_claim_of_ours_stranded_is_called_when_it_ends(group: Group) -> None:
    """A run that is no member claims a partition between their release and claim."""
    group.open("a", tries=FEW)
    with group.registered("z"):
        assert group.has(a=2), "the partitions of the other registered consumer stay free"
        with Owners(group.session, group.name, "clicks").claiming([group.in_order[3]], "run-1"):
            group.deregister("z")
            assert group.has(etl=1), (
                "the consumer is to have all four, and lets go of all where one is owned"
            )
            threading.Event().wait(
                3 * FEW * BACKOFF_MS / 1000
            )  # it gives up meanwhile; if it has not yet, the end is the same
        assert group.has(a=4)


@pytest.mark.groups
@of_both_families
def test_no_partition_is_without_a_reader_for_twice_the_time_of_all_tries_of_the_others(
    group: Group,
) -> None:
    backoff_s, tries = 1.0, 4
    group.open("a", tries=tries, backoff_ms=round(backoff_s * 1000))
    member = group.member(Timing(SETTLES_S, 1.0, backoff_s))
    member.join()
    with pytest.raises(AssertionError, match="rebalance"):
        group.open("c", tries=tries, backoff_ms=round(backoff_s * 1000))
    member.follow()
    assert group.has(2 * tries * backoff_s, a=2, c=1, etl=1)


@pytest.mark.groups
@of_both_families
def test_who_does_not_settle_leaves_and_the_others_have_everything(group: Group) -> None:
    group.open("a")
    member = group.member(Timing(join_timeout_s=1, backoff_s=0.2, others_backoff_s=0.5))
    with group.registered("z") as z:
        assert group.has(a=2)
        z.client.create(
            GroupPaths(group.name).owner(group.in_order[2]),
            f"{group.name}_z-0".encode(),
            ephemeral=True,
        )
        with pytest.raises(
            Owned, match=f"did not settle within 1 s: The partition is owned by {group.name}_z-0"
        ) as caught:
            member.join()
        assert caught.value.exit_code == 4 and member.statistics.tries > 1
        assert sorted(GroupMembers(group.session, group.name).read()) == [
            f"{group.name}_a",
            f"{group.name}_z",
        ]
    assert group.has(a=4)


@contextlib.contextmanager
def process(group: Group, stop_at: str) -> Iterator[subprocess.Popen[str]]:
    """A member of ours that stands still at that point."""
    program = [sys.executable, "-m", "tests.groups.zookeeper_member"]
    words = [group.connect, group.name, group.topic, group.dialect.value, stop_at]
    with subprocess.Popen(
        [*program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def came_to(started: subprocess.Popen[str], point: str) -> None:
    """Read its lines up to that one."""
    assert started.stdout is not None
    for line in started.stdout:
        if line.startswith(point):
            return
    pytest.fail(f"it ended before it was {point}")


@pytest.mark.groups
@of_both_families
@pytest.mark.parametrize("point", ["registered", "claimed", "leaving"])
def test_what_a_killed_member_had_is_the_others_when_its_session_ends(
    group: Group, point: str
) -> None:
    group.open("a")
    with process(group, point) as started:
        if point == "leaving":
            came_to(started, "claimed")
            assert started.stdin is not None
            started.stdin.write("leave\n")
            started.stdin.flush()
        came_to(started, point)
        assert group.has(**({"a": 2, "etl": 2} if point == "claimed" else {"a": 2}))
        started.kill()
    assert group.has(a=4)


@pytest.mark.groups
@of_both_families
@pytest.mark.parametrize("point", ["registered", "claimed"])
def test_a_rerun_within_the_old_session_does_away_with_what_the_killed_one_left(
    group: Group, point: str
) -> None:
    group.open("a")
    with process(group, point) as started:
        came_to(started, point)
        started.kill()
    member = group.member(run_id="run-2")
    member.join()
    assert sorted(GroupMembers(group.session, group.name).read()) == sorted(
        [f"{group.name}_a", member.id]
    )
    assert group.has(a=2, etl=2)


@pytest.mark.groups
@of_both_families
def test_twenty_members_that_come_and_go_leave_each_log_with_one_owner(group: Group) -> None:
    member = group.member()
    member.join()
    member.follow()
    for number in range(10):
        group.open(f"{'az'[number % 2]}{number}")
        assert wait_until(lambda: sorted(group.counts().values()) == [2, 2], SETTLES_S), (
            group.counts()
        )
        group.close(f"{'az'[number % 2]}{number}")
        assert group.has(etl=4)
    assert member.ended is None
    assert member.statistics.rebalances >= 20
