"""The short form of the soak: each moment of a run is once its last one, and some random
stories; see tests/soak.
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from etl.io.delta import append
from etl.testkit.cluster import ZooKeeper
from tests.soak.fast import Lane, Place, StoryResult, play_every_moment, play_random
from tests.soak.memory import in_place_of_brokers_and_spark
from tests.soak.points import Deed
from tests.soak.story import Sessions

SEEDS = (20_110, 4_711)
"""Fixed: `make soak` has new ones each time."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A ZooKeeper for these stories alone."""
    with (
        ZooKeeper(tmp_path_factory.mktemp("soak-zookeeper")) as server,
        in_place_of_brokers_and_spark(),
    ):
        sessions = Sessions(server.connect)
        yield Place(server.connect, tmp_path_factory.mktemp("soak"), sessions)
        sessions.close()


def is_whole(reported: StoryResult) -> bool:
    assert reported.failure is None, reported.failure
    return True


def test_a_first_run_may_be_killed_at_any_call_to_the_outside(place: Place) -> None:
    # every sixth one: `python -m tests.soak --every-moment` has them all
    reported = play_every_moment(place, SEEDS[0], Lane(Deed.KILL, first=True), step=6)
    assert is_whole(reported) and reported.tally.counts["kill"] > 10


def test_a_later_run_may_be_killed_at_any_call_to_the_outside(place: Place) -> None:
    reported = play_every_moment(place, SEEDS[0], Lane(Deed.KILL, first=False), step=6)
    assert is_whole(reported) and reported.tally.counts["kill"] > 8


@pytest.mark.parametrize("seed", [pytest.param(SEEDS[0], marks=pytest.mark.long), SEEDS[1]])
def test_kills_zombies_and_lost_answers_in_any_order_leave_each_record_once(
    place: Place, seed: int
) -> None:
    reported = play_random(place, seed, 0)
    assert is_whole(reported) and reported.tally.counts["runs"] > 20


@pytest.mark.long
def test_a_writer_that_does_not_look_before_it_commits_is_found_out(place: Place) -> None:
    with mock.patch.object(append, "holds", lambda plan, table, app_id: False):
        reported = play_every_moment(place, SEEDS[0], Lane(Deed.PAUSE, first=False))
    assert reported.failure is not None, "the soak finds nothing"
