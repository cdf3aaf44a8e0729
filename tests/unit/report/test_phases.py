"""Every moment of a run belongs to one verb: their seconds are the time that passed."""

from __future__ import annotations

import pytest

from etl.report.run_progress import Stopwatch, Verb


class Clock:
    """A clock that advances on request."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_time_of_a_nested_phase_is_subtracted() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    with watch.timed(Verb.CONNECT):
        clock.now += 1
        with watch.timed(Verb.PLAN):
            clock.now += 2
            with watch.timed(Verb.START_SPARK):
                clock.now += 4
            clock.now += 8
        clock.now += 16
    assert watch.seconds == {Verb.START_SPARK: 4, Verb.PLAN: 10, Verb.CONNECT: 17}


def test_seconds_of_a_verb_add_up_also_when_it_fails() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    for spent in (1, 2):
        with pytest.raises(ZeroDivisionError), watch.timed(Verb.COMMIT):
            clock.now += spent
            1 / 0  # noqa: B018
    assert watch.seconds == {Verb.COMMIT: 3}


def test_time_measured_afterwards_is_subtracted_from_the_open_phase() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    with watch.timed(Verb.CONNECT), watch.timed(Verb.APPEND):
        clock.now += 10
        watch.reckon(Verb.FIRST_JOB, 3)
        watch.reckon(Verb.FETCH, 5)
    assert watch.seconds == {Verb.FIRST_JOB: 3, Verb.FETCH: 5, Verb.APPEND: 2, Verb.CONNECT: 0}
