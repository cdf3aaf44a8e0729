"""Our runs together with Kafka's own consumers: situations of a coordinator's groups."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from etl.testkit.server_process import wait_until
from tests.brokers.compiling import number_of
from tests.brokers.stage import PARTITIONS
from tests.brokers.writing import ForeignPipeline
from tests.groups.kinds import BY_JAVA
from tests.groups.others import JavaConsumers
from tests.groups.shared import WITHIN_S, Shared, end_session

HALF = PARTITIONS // 2
Make = Callable[..., Shared]
CLASSIC = [kind for kind in BY_JAVA if kind.join.get("protocol") is None]
with_static = pytest.mark.parametrize(
    "kind",
    [kind for kind in CLASSIC if number_of(kind.version) >= (2, 3)],
    ids=lambda kind: kind.name,
    indirect=True,
)
"""In the consumer protocol the name of a live member cannot be used again (111)."""
of_each = pytest.mark.parametrize("kind", BY_JAVA, ids=lambda kind: kind.name, indirect=True)
of_classic = pytest.mark.parametrize("kind", CLASSIC, ids=lambda kind: kind.name, indirect=True)


def java_of(shared: Shared) -> JavaConsumers:
    assert isinstance(shared.others, JavaConsumers)
    return shared.others


@contextlib.contextmanager
def under_our_name(shared: Shared, name: str) -> Iterator[None]:
    """A consumer that takes the place of our static member."""
    java = java_of(shared)
    java.clients.enter("thief", java.group, java.topic, **java.settings, group_instance_id=name)
    assert wait_until(lambda: len(java.clients.owns("thief")) == HALF, WITHIN_S), (
        "it owns the partitions that were ours"
    )
    yield
    shared.read += java.clients.exit("thief")


@of_each
def test_a_session_lost_before_each_commit_ends_the_run_with_exit_6_and_others_own_all(
    make: Make,
) -> None:
    """Its session with ZooKeeper, where its plans and its lock are."""
    shared = make()
    shared.enter("a")
    with shared.running("claimed", "storing") as run:
        for times in (1, 2, 3):
            run.comes_to("claimed", times)
            shared.send(8)
            run.release_once("claimed")
            end_session(shared.pipeline.cluster.zookeeper_connect, run.comes_to("storing", times))
            run.release_once("storing")
        result = run.wait()
    assert result.code == 6, result.out
    shared.are_owned()
    shared.others_read_the_rest()
    shared.end()


@with_static
def test_a_run_that_loses_its_instance_id_before_the_commit_ends_with_exit_6_and_moves_nothing(
    make: Make,
) -> None:
    shared = make(instance_id="driver")
    shared.enter("a")
    with shared.held_at("storing") as run:
        shared.has("a", HALF)
        with under_our_name(shared, "driver"):
            run.release("storing")
            result = run.wait()
            assert result.code == 6, result.err
    shared.send(8)
    shared.ran()
    shared.end()


@with_static
@pytest.mark.parametrize("point", ["handed-over", "fetched"])
def test_a_run_that_loses_its_instance_id_after_the_commit_continues_and_reports_it(
    make: Make, point: str
) -> None:
    shared = make(instance_id="driver")
    shared.enter("a")
    with shared.held_at(point) as run:
        shared.has("a", HALF)
        with under_our_name(shared, "driver"):
            run.comes_to("leaving")
            run.release(point)
            result = run.wait()
    assert result.code == 0 and "membership_ended" in result.outcomes, result.out
    shared.send(8)
    shared.end()


@of_classic
def test_a_run_among_consumers_with_another_strategy_ends_with_exit_2_and_they_continue(
    make: Make,
) -> None:
    shared = make(assignment_strategy="roundrobin")
    shared.enter("a")
    shared.are_owned()
    result = shared.pipeline.run()
    assert result.code == 2 and "(code 23)" in result.err, result.err
    shared.send(8)
    shared.others_read_the_rest()
    shared.exit("a")
    assert wait_until(lambda: shared.pipeline.run().code != 2, WITHIN_S), (
        "0.9.0.1's may stay in the group until its session is over"
    )
    shared.end()


def of_little_patience(pipeline: ForeignPipeline) -> ForeignPipeline:
    """The same one, which waits two seconds for its share."""
    group = pipeline.settings["group"]
    hurried = {**group, "join": {**group["join"], "join_timeout_s": 2}}
    return dataclasses.replace(pipeline, settings={**pipeline.settings, "group": hurried})


@of_classic
def test_a_run_that_waits_for_a_consumer_in_vain_ends_with_exit_4_and_leaves_the_group_to_it(
    make: Make,
) -> None:
    """A suspended member of a classic group prevents its reassignment."""
    shared = make()
    shared.enter("a")
    shared.are_owned()
    process = java_of(shared).clients.pid
    os.kill(process, signal.SIGSTOP)
    try:
        result = of_little_patience(shared.pipeline).run()
    finally:
        os.kill(process, signal.SIGCONT)
    assert result.code == 4 and "did not settle within 2 s" in result.err, result.err
    shared.send(8)
    shared.are_owned()
    shared.others_read_the_rest()
    shared.end()
