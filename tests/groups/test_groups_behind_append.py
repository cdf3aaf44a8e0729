"""Our runs together with other consumers, with offset commits after the append: the guarantees and
their limits.

Nothing is lost, and our table has each record once. But a member that takes a partition over during
our work begins at the start of our plan, and reads the same records. With KIP-848 a partition is
held until the commit, so no member does that within the rebalance timeout.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from etl.testkit.server_process import wait_until
from tests.brokers.stage import PARTITIONS, JafkaStage, KafkaStage
from tests.groups.flow import Flow
from tests.groups.kinds import BY_JAVA, BY_LIBRDKAFKA, CONSUMER_PROTOCOL, OLD, Kind
from tests.groups.run_at_points import BEHIND_APPEND
from tests.groups.shared import WITHIN_S, Shared

HALF = PARTITIONS // 2
EACH = 40 // PARTITIONS
"""Records that are written into each partition while a run is held."""
RUNS = 6
LONGER_S = 300
"""Than any run takes here, on whatever machine."""
Make = Callable[..., Shared]
LETTING_GO = [*OLD, *(kind for kind in BY_JAVA if kind.name in ("3.9.1 range", "4.1.0 range"))]
"""Kinds of groups in which a member lets go at once."""
KINDS = [*LETTING_GO, CONSUMER_PROTOCOL]
COOPERATIVE = [kind for kind in BY_JAVA if kind.name.endswith("cooperative-sticky")]
in_any_of_all = pytest.mark.parametrize(
    "kind", [*KINDS, *COOPERATIVE, *BY_LIBRDKAFKA], ids=lambda kind: kind.name, indirect=True
)
in_those_that_let_go = pytest.mark.parametrize(
    "kind", LETTING_GO, ids=lambda kind: kind.name, indirect=True
)
in_one_that_waits = pytest.mark.parametrize(
    "kind", [CONSUMER_PROTOCOL], ids=lambda kind: kind.name, indirect=True
)
KILLS = [
    pytest.param(kind, point, id=f"{kind.name} {point}")
    for kind in KINDS
    for point in BEHIND_APPEND
]


@pytest.fixture
def after_append(make: Make) -> Make:
    return lambda **given: make(commit_when="after_append", **given)


@in_any_of_all
def test_with_members_that_join_and_leave_nothing_is_lost_and_the_table_has_each_record_once(
    kind: Kind,
    stage: JafkaStage | KafkaStage,
    after_append: Make,
    tmp_path: Path,
) -> None:
    shared = after_append(
        **({"rebalance_timeout_s": LONGER_S} if kind is CONSUMER_PROTOCOL else {})
    )
    shared.enter("a")
    with Flow(stage, shared.pipeline.topic, tmp_path / "flow"):
        for number in range(RUNS):
            moves = threading.Thread(
                target=shared.exit if number % 2 else shared.enter, args=[f"z{number // 2}"]
            )
            with shared.running() as run:
                moves.start()
                result = run.wait()
                moves.join()
            assert result.code in (0, 4), result.err
            shared.are_owned()
    shared.others_read_the_rest()
    twice = shared.end_after_append()
    assert kind is not CONSUMER_PROTOCOL or not twice, twice


def one_of_ours_is_read_by_another(shared: Shared) -> None:
    """Of four members each is to own one log, and we own two."""
    shared.exit("a")
    for name in ("x", "y", "z"):
        shared.enter(name)
    others = (PARTITIONS - HALF) * EACH
    assert wait_until(lambda: len(shared.read) + shared.count() > others, WITHIN_S), (
        "more than there is in the logs that were never ours"
    )


def a_run_is_overtaken(shared: Shared) -> None:
    """During its work another member reads the same records; the run succeeds and reports it."""
    shared.enter("a")
    with shared.held_at("fetched") as run:
        shared.has("a", HALF)
        one_of_ours_is_read_by_another(shared)
        run.release("fetched")
        result = run.wait()
    assert result.code == 0 and "owner_changed" in result.outcomes, result.err + result.out


@in_those_that_let_go
def test_a_consumer_that_joins_during_the_run_reads_the_same_and_the_run_succeeds_and_reports_it(
    after_append: Make,
) -> None:
    shared = after_append()
    a_run_is_overtaken(shared)
    doctor = shared.pipeline.door("doctor")
    assert doctor.code == 0, doctor.out + doctor.err
    shared.send(8)
    shared.ran()
    assert shared.end_after_append()


@in_one_that_waits
def test_while_the_group_waits_no_other_reads_our_records_and_the_commit_has_the_present_epoch(
    after_append: Make,
) -> None:
    shared = after_append(rebalance_timeout_s=LONGER_S)
    shared.enter("a")
    with shared.held_at("fetched") as run:
        shared.has("a", HALF)
        shared.enter("y")
        shared.enter("z")
        assert wait_until(lambda: sorted(shared.others.owned().values()) == [1, 1], WITHIN_S), (
            "one of the three waits for us"
        )
        shared.exit("y")
        run.release("fetched")
        result = run.wait()
    assert result.code == 0 and "owner_changed" not in result.outcomes, result.err + result.out
    assert result.document["offsets_committed"] == HALF
    shared.others_read_the_rest()
    assert not shared.end_after_append()


@in_one_that_waits
def test_after_the_rebalance_timeout_the_group_does_not_wait_and_the_run_succeeds_and_reports_it(
    after_append: Make,
) -> None:
    shared = after_append(rebalance_timeout_s=5)
    a_run_is_overtaken(shared)
    assert shared.end_after_append()


@pytest.mark.parametrize(("kind", "point"), KILLS, indirect=["kind"])
def test_a_run_that_is_killed_at_a_point_loses_nothing_and_the_next_one_finishes_it(
    after_append: Make, point: str
) -> None:
    shared = after_append()
    shared.send(20)
    shared.enter("a")
    shared.others_read_the_rest()
    with shared.held_at(point) as run:
        run.kill()
        run.wait_until_gone()
    shared.send(8)
    shared.ran()
    shared.send(8)
    shared.are_owned()
    shared.others_read_the_rest()
    shared.end_after_append()
