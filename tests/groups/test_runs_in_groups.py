"""Our runs together with other consumers: each record is in our table or read by one of them,
whichever process is killed or paused.

Runs are processes, and are killed and stopped at each point of a member's life.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.brokers.stage import PARTITIONS, JafkaStage, KafkaStage
from tests.chaos.holding import Hold
from tests.groups.flow import Flow
from tests.groups.kinds import BY_JAVA, BY_LIBRDKAFKA, OLD
from tests.groups.run_at_points import IN_TWO_STEPS, POINTS
from tests.groups.shared import Shared

HALF = PARTITIONS // 2
RUNS = 10
Make = Callable[..., Shared]
in_each = pytest.mark.parametrize(
    "kind", [*OLD, *BY_JAVA], ids=lambda kind: kind.name, indirect=True
)
SOME_POINTS = ("claimed", *IN_TWO_STEPS, "handed-over", "fetched", "appended")
"""Librdkafka's consumers send the same requests as Java's, so these points are enough."""
KILLS = [
    *(
        pytest.param(kind, point, id=f"{kind.name} {point}")
        for kind in (*OLD, *BY_JAVA)
        for point in (*POINTS, *(() if kind.is_old else IN_TWO_STEPS))
    ),
    *(
        pytest.param(kind, point, id=f"{kind.name} {point}")
        for kind in BY_LIBRDKAFKA
        for point in SOME_POINTS
    ),
]
JAFKA_KIND, KAFKA_KIND = OLD
THEIR_ROUND_ROBIN = {"strategy": "roundrobin"}
OUR_ROUND_ROBIN = {"assignment_strategy": "roundrobin"}
WAYS: list[Any] = [
    *(pytest.param(kind, {}, {}, id=kind.name) for kind in (*OLD, *BY_JAVA, *BY_LIBRDKAFKA)),
    pytest.param(JAFKA_KIND, {"threads": 2}, {"num_streams": 3}, id="jafka-3.0.6 threads"),
    pytest.param(KAFKA_KIND, {"threads": 2}, {"num_streams": 3}, id="0.8.2.2 threads"),
    pytest.param(KAFKA_KIND, THEIR_ROUND_ROBIN, OUR_ROUND_ROBIN, id="0.8.2.2 roundrobin"),
    pytest.param(
        KAFKA_KIND,
        {**THEIR_ROUND_ROBIN, "threads": 2},
        {**OUR_ROUND_ROBIN, "num_streams": 2},
        id="0.8.2.2 roundrobin threads",
    ),
]


@pytest.mark.parametrize(("kind", "theirs", "ours"), WAYS, indirect=["kind"])
def test_with_members_that_join_and_leave_each_record_is_read_by_one(
    stage: JafkaStage | KafkaStage,
    make: Make,
    tmp_path: Path,
    theirs: Mapping[str, Any],
    ours: Mapping[str, Any],
) -> None:
    """Ten runs, and during each of them a consumer joins and leaves: thirty rebalances."""
    shared = make(others=theirs, **ours)
    shared.enter("a")
    rebalances = 0
    with Flow(stage, shared.pipeline.topic, tmp_path / "flow"):
        for number in range(RUNS):
            name = f"{'0z'[number // 2 % 2]}{number // 2}"
            moves = threading.Thread(
                target=shared.exit if number % 2 else shared.enter, args=[name]
            )
            with shared.running() as run:
                moves.start()
                result = run.wait()
                moves.join()
            assert result.code in (0, 4), (
                result.err
            )  # 4: the group changed at each of its hand-overs
            rebalances += (
                result.document["statistics"]["membership"]["rebalances"] if result.code == 0 else 0
            )
            shared.are_owned()
    assert rebalances >= RUNS
    shared.others_read_the_rest()
    shared.end()


@pytest.mark.parametrize(("kind", "point"), KILLS, indirect=["kind"])
def test_a_run_that_is_killed_at_a_point_is_finished_by_the_next_one_and_the_others_have_all_again(
    make: Make,
    tmp_path: Path,
    point: str,
) -> None:
    shared = make()
    shared.send(20)
    shared.enter("a")
    shared.others_read_the_rest()
    hold = Hold(tmp_path / "tasks", 0) if point == "fetching" else None
    with shared.held_at(point, hold=hold) as run:
        run.kill()
        if hold:
            hold.release()
        run.wait_until_gone()
    shared.send(8)
    decided(shared, point)
    shared.send(8)
    shared.are_owned()
    shared.others_read_the_rest()
    shared.end()


def decided(shared: Shared, point: str) -> None:
    """The next run; between commit and mark, if others read on, an operator decides."""
    result = shared.pipeline.run()
    if result.code == 5 and point in IN_TWO_STEPS:
        assert "The result of the offset commit of plan 1 is unknown" in result.err
        words = ["--assume-offsets-committed"] if point == "committed" else []
        ruled = shared.pipeline.door(
            "plans",
            "supersede",
            after=["1", *words, "--reason", "looked what the others read", "--yes"],
            json_too=False,
        )
        assert ruled.code == 0, ruled.err
        result = shared.pipeline.run()
    assert result.code == 0, result.err


@in_each
@pytest.mark.parametrize("point", ["registered", "claimed", "handed-over", "fetched"])
def test_a_killed_member_that_is_not_restarted_is_forgotten_with_its_session(
    make: Make, point: str
) -> None:
    shared = make()
    shared.enter("a")
    with shared.held_at(point) as run:
        if point != "registered":
            shared.has("a", HALF)
        run.kill()
        shared.are_owned()
    shared.send(8)
    shared.end()


@in_each
@pytest.mark.parametrize("point", ["claimed", "storing"])
def test_a_run_that_stood_still_for_longer_than_its_session_before_the_hand_over_begins_anew(
    make: Make, point: str
) -> None:
    shared = make()
    shared.enter("a")
    with shared.held_at(point) as run:
        shared.has("a", HALF)
        run.pause_all()
        shared.are_owned(a=PARTITIONS)
        shared.others_read_the_rest()
        run.wake_all()
        run.release(point)
        result = run.wait()
    # The group and ZooKeeper have the same session timeout: either session may end first.
    reported = {"session_lost", "rebalanced"} & set(result.outcomes)
    assert result.code == 0 and reported, result.out
    shared.end()


@in_each
@pytest.mark.parametrize("point", ["handed-over", "fetched", "appended", "recorded"])
def test_a_run_stopped_after_the_offset_commit_continues_and_reports_it(
    make: Make, point: str
) -> None:
    """After its result it sends no request, and may end before it notices."""
    shared = make()
    shared.enter("a")
    with shared.held_at(point) as run:
        shared.has("a", HALF)
        run.pause_all()
        shared.are_owned(a=PARTITIONS)
        run.wake_all()
        run.release(point)
        result = run.wait()
    is_told = {"session_lost", "membership_ended"} & set(result.outcomes)
    assert result.code == 0 and (is_told or point == "recorded"), result.out
    shared.end()
