"""Runs without effect on the group's other members."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from tests.brokers.compiling import number_of
from tests.brokers.groups import with_session
from tests.brokers.stage import PARTITIONS
from tests.groups.kinds import BY_JAVA, CONSUMER_PROTOCOL, Kind
from tests.groups.others import JavaConsumers
from tests.groups.shared import Shared

HALF = PARTITIONS // 2
RUNS = 5
MINUTES = float(os.environ.get("MINUTES", "15"))
"""How long a run is at work; how many runs come, one each minute."""
SESSION_S = 120
"""Of a group in which a run comes each minute."""
_WITH_STATIC = (2, 3)
Make = Callable[..., Shared]
with_static = pytest.mark.parametrize(
    "kind",
    [kind for kind in BY_JAVA if number_of(kind.version) >= _WITH_STATIC],
    ids=lambda kind: kind.name,
    indirect=True,
)
with_java = pytest.mark.parametrize("kind", BY_JAVA, ids=lambda kind: kind.name, indirect=True)


def changes(shared: Shared) -> int:
    """The number of rebalances of the other consumer."""
    assert isinstance(shared.others, JavaConsumers)
    return shared.others.clients.changes("a")


def run_again_and_again(shared: Shared, runs: int, pause_s: float) -> None:
    """The first run is noticed, and no other one is, which all find our half."""
    shared.enter("a")
    shared.are_owned()
    with shared.held_at("claimed") as run:
        run.release("claimed")
        assert run.wait().code == 0
    before, loaded = changes(shared), len(shared.in_table())
    for _ in range(runs):
        threading.Event().wait(pause_s)
        shared.send(20)
        shared.ran()
        assert len(shared.in_table()) == loaded + 20 * HALF // PARTITIONS
        loaded = len(shared.in_table())
    assert changes(shared) == before
    shared.others_read_the_rest()
    shared.end()


@with_static
def test_runs_of_a_static_member_have_its_half_each_time_and_others_never_notice_them(
    make: Make,
) -> None:
    run_again_and_again(make(instance_id="driver", session_timeout_s=45), RUNS, 0)


@pytest.mark.long
@with_static
def test_a_static_run_every_minute_is_never_noticed(kind: Kind, make: Make) -> None:
    shared = make(instance_id="driver", session_timeout_s=SESSION_S)
    if kind is CONSUMER_PROTOCOL:
        with_session(shared.pipeline.cluster, shared.pipeline.group, SESSION_S)
    run_again_and_again(shared, max(1, round(MINUTES)), 60)


@pytest.mark.long
@with_java
def test_a_quarter_of_an_hour_of_work_at_a_session_of_ten_seconds_is_no_rebalance(
    make: Make,
) -> None:
    shared = make(session_timeout_s=10)
    shared.enter("a")
    with shared.held_at("fetched") as run:
        shared.are_owned(a=HALF)
        before = changes(shared)
        threading.Event().wait(MINUTES * 60)
        assert run.process.poll() is None and changes(shared) == before
        run.release("fetched")
        result = run.wait()
    membership = result.document["statistics"]["membership"]
    assert (result.code, membership["rebalances"], membership["lost"]) == (0, 1, 0), result.out
    shared.end()
