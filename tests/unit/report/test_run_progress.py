"""Progress, speed, remaining time and phases of a run."""

from __future__ import annotations

import pytest

from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange, RangeResult
from etl.report.run_progress import (
    AttemptProgress,
    Pace,
    ReadSoFar,
    Stopwatch,
    TaskProgress,
    Verb,
    format_progress,
    size_in_words,
    time_in_words,
)

RANGES = [OffsetRange(TopicPartition("clicks", p), 0, 100) for p in range(4)]
TASKS = [(0, 2), (1,), (3,)]
FULL = RangeResult(rows=90, fetched_bytes=900, missing_offsets=10)


def reached_at(offsets: int, records: int) -> ReadSoFar:
    return ReadSoFar(0, 4, offsets, 400, records, 0)


def test_the_pace_is_that_of_late() -> None:
    pace = Pace()
    for second in range(0, 101):
        pace.see(
            second,
            reached_at(0 if second < 60 else second - 60, 0 if second < 60 else 10 * (second - 60)),
        )
    assert pace.records_per_second == 10
    assert pace.seconds_left == 400 - 40


def test_one_line_has_progress_speed_and_remaining_time() -> None:
    pace = Pace()
    pace.see(0, reached_at(0, 0))
    pace.see(2, reached_at(100, 2_469_134))
    reached = ReadSoFar(1, 4, 100, 400, 2_469_134, 1_500_000)
    assert (
        format_progress(reached, pace)
        == "25%, 2,469,134 records, 1.5 MB, 1,234,567 records/s, about 6 s left"
    )
    assert format_progress(reached) == "25%, 2,469,134 records, 1.5 MB"


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 KB"),
        (45e6, "45 MB"),
        (2e9, "2.0 GB"),
        (3.2e15, "3,200.0 TB"),
    ],
)
def test_sizes_are_formatted_with_units(size: float, words: str) -> None:
    assert size_in_words(size) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1:00 min"), (125, "2:05 min"), (12_000, "3:20 h")],
)
def test_durations_are_formatted_with_units(seconds: float, words: str) -> None:
    assert time_in_words(seconds) == words


class Clock:
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


FIRST_HALF = AttemptProgress(0, 50, 40, 400)
SECOND_TRY = AttemptProgress(1, 10, 10, 100)
ALL_OF_A_TASK = {0: AttemptProgress(0, 150, 1, 1), 1: AttemptProgress(0, 20, 20, 200)}


@pytest.mark.parametrize(
    ("results", "reported", "reached"),
    [
        ({}, {}, ReadSoFar(0, 4, 0, 400, 0, 0)),
        ({}, {0: FIRST_HALF, 3: SECOND_TRY}, ReadSoFar(0, 4, 60, 400, 50, 500)),
        ({0: FULL}, ALL_OF_A_TASK, ReadSoFar(1, 4, 170, 400, 21, 201)),
        ({0: FULL, 2: FULL}, ALL_OF_A_TASK, ReadSoFar(2, 4, 220, 400, 200, 2000)),
        (dict.fromkeys(range(4), FULL), {}, ReadSoFar(4, 4, 400, 400, 360, 3600)),
    ],
    ids=["nothing", "reports of tasks", "one of two results", "a whole task", "results alone"],
)
def test_a_finished_task_counts_by_its_range_results_and_the_others_by_their_reports(
    results: dict[int, RangeResult],
    reported: dict[int, AttemptProgress],
    reached: ReadSoFar,
) -> None:
    assert TaskProgress(RANGES, TASKS).reached(results, reported) == reached


@pytest.mark.parametrize(
    ("moments", "speed", "left"),
    [
        ([], None, None),
        ([(0, 0), (1.9, 100)], None, None),
        ([(second, 100) for second in range(5)], 0, None),
        (list(enumerate([0, 100, 200, 20, 40, 60])), 20, 17),
    ],
    ids=["nothing", "a single moment", "it stands still", "a task begins anew"],
)
def test_a_speed_needs_some_seconds_and_is_never_negative(
    moments: list[tuple[float, int]], speed: float | None, left: float | None
) -> None:
    pace = Pace()
    for second, offsets in moments:
        pace.see(second, reached_at(offsets, offsets))
    assert (pace.records_per_second, pace.seconds_left) == (speed, left)
