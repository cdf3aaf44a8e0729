"""The soak: thousands of interrupted runs a minute, on real ZooKeeper and Delta, without
brokers and without Spark.

It distributes stories to processes, and owns the clock and the output. `tests.soak.story` plays
them.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import shutil
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.pool import AsyncResult, Pool
from pathlib import Path

from etl.testkit.cluster import ZooKeeper
from tests.soak.memory import in_place_of_brokers_and_spark
from tests.soak.points import Deed
from tests.soak.story import MOMENTS_IN_A_STORY, RUNS_BEFORE, Sessions, Story, Tally


@dataclass(frozen=True, slots=True)
class Place:
    """What stories share: a ZooKeeper, its sessions, and a folder for their tables."""

    connect: str
    folder: Path
    sessions: Sessions


@dataclass(frozen=True, slots=True)
class StoryResult:
    """What became of one story."""

    tally: Tally
    failure: str | None = None
    """How to repeat it, its last events, and its error."""
    more: bool = False
    """There may be later moments than those tried."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One deed at every moment in turn: of a pipeline's first run, or of a later one."""

    deed: Deed
    first: bool


def play_random(place: Place, seed: int, index: int) -> StoryResult:
    """Story `index` of this seed."""
    return _play(
        place,
        Story(seed, str(index), place.sessions, place.connect, place.folder),
        Story.play,
        f"--story {index}",
    )


def play_moments(place: Place, seed: int, lane: Lane, first: int) -> StoryResult:
    """The lane's moments from `first` on, as many as one story has."""
    name = f"{lane.deed.value}-{'first' if lane.first else 'later'}-{first}"
    story = Story(seed, name, place.sessions, place.connect, place.folder)
    runs, moments = (0, 1) if lane.first else (RUNS_BEFORE, MOMENTS_IN_A_STORY)
    return _play(
        place,
        story,
        lambda s: s.play_moments(lane.deed, range(first, first + moments), runs_before=runs),
        "--every-moment",
    )


def play_every_moment(
    place: Place, seed: int, lane: Lane, *, start: int = 0, step: int = 1
) -> StoryResult:
    """The whole lane, or every `step`-th story of it from `start` on; ends at the first story that
    broke.
    """
    total, first, more = Tally(), start, True
    while more:
        reported = play_moments(place, seed, lane, first)
        total.add(reported.tally)
        if reported.failure:
            return StoryResult(total, reported.failure)
        first, more = first + step * (1 if lane.first else MOMENTS_IN_A_STORY), reported.more
    return StoryResult(total)


LANES = tuple(Lane(deed, first) for deed, first in itertools.product(Deed, (True, False)))


def _play(place: Place, story: Story, how: Callable[[Story], bool], again: str) -> StoryResult:
    try:
        more = how(story)
    except Exception:  # whatever it is, the seed that brought it up is what matters
        again = f"python -m tests.soak --seed {story.seed} {again}"
        return StoryResult(
            story.tally, "\n".join([again, *story.events[-40:], traceback.format_exc()])
        )
    shutil.rmtree(place.folder / story.name, ignore_errors=True)
    return StoryResult(story.tally, None, more)


_place: list[Place] = []
_replaced = contextlib.ExitStack()
"""Of a process of the pool, as long as it lives."""


def _begin(connect: str, folder: Path) -> None:
    _replaced.enter_context(in_place_of_brokers_and_spark())
    _place.append(Place(connect, folder, Sessions(connect)))


def _random_here(seed: int, index: int) -> StoryResult:
    return play_random(_place[0], seed, index)


def _lane_here(seed: int, lane: Lane) -> StoryResult:
    return play_every_moment(_place[0], seed, lane)


@contextlib.contextmanager
def _tellers(jobs: int) -> Iterator[Pool]:
    """Processes that play stories on one ZooKeeper. The directory stays only after an error."""
    folder = Path(tempfile.mkdtemp(prefix="etl-soak-"))
    with ZooKeeper() as server:
        pool = multiprocessing.get_context("spawn").Pool(jobs, _begin, (server.connect, folder))
        try:
            yield pool
        finally:
            pool.terminate()
            pool.join()
    if not any(folder.iterdir()):
        folder.rmdir()


def _told(
    pool: Pool, calls: Iterator[Callable[[Pool], AsyncResult[StoryResult]]], ahead: int
) -> tuple[Tally, str | None]:
    """Return the sum of all tallies, and the failure of the first broken story, the last one run."""
    total, under_way = Tally(), deque[AsyncResult[StoryResult]]()
    for call in itertools.chain(calls, itertools.repeat(None)):
        if call is not None:
            under_way.append(call(pool))
        while under_way and (call is None or len(under_way) > ahead):
            reported = under_way.popleft().get()
            total.add(reported.tally)
            if reported.failure:
                return total, reported.failure
        if call is None:
            break
    return total, None


def main(
    *, seed: int, minutes: float, story: int | None, every_moment: bool, jobs: int | None
) -> int:
    """Print the seed, play, and print the events. 1 if a story failed."""
    print(f"seed {seed}", flush=True)
    began, count = time.monotonic(), jobs or os.cpu_count() or 1
    stories: Sequence[int] = [story] if story is not None else range(10**9)
    in_time = itertools.takewhile(
        lambda _: story is not None or time.monotonic() < began + minutes * 60, stories
    )
    calls: Iterator[Callable[[Pool], AsyncResult[StoryResult]]]
    if every_moment:
        calls = (
            lambda pool, lane=lane: pool.apply_async(_lane_here, (seed, lane))  # type: ignore[misc]
            for lane in LANES
        )
    else:
        calls = (
            lambda pool, index=index: pool.apply_async(  # type: ignore[misc]
                _random_here, (seed, index)
            )
            for index in in_time
        )
    with _tellers(count) as pool:
        began = time.monotonic()
        total, failure = _told(pool, calls, 2 * count)
    print(summary(total, time.monotonic() - began))
    if failure:
        print(f"BROKEN: {failure}")
    else:
        print("missing 0, double 0")
    return 1 if failure else 0


def summary(total: Tally, passed_s: float) -> str:
    """What happened, as a table."""
    interrupted = sum(total.counts[deed.value] for deed in Deed)
    rate = f"{passed_s:.0f} s: {interrupted / passed_s * 60:,.0f} a minute"
    lines = [
        f"{interrupted:,} interrupted of {total.counts['runs']:,} runs in {rate}, at "
        f"{len(total.moments)} different moments"
    ]
    lines += [f"{total.counts['checks']:,} checks, {total.records:,} records in the tables"]
    lines += [
        f"  {count:>8,}  {name}" for name, count in sorted(total.counts.items()) if ":" in name
    ]
    lines += ["interrupted at"] + [
        f"  {count:>8,}  {moment}" for moment, count in total.moments.most_common()
    ]
    return "\n".join(lines)
