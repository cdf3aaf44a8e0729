"""The laws of run keys in every interleaving of a small model; `python -m tests.model.run_keys`
looks at more of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model import run_keys
from tests.model.run_keys import At, Driver, State, explore

QUIET = State(runs=2, others=0, crashes=0, losses=0, supersedes=0, prunes=0)
SMALL = QUIET._replace(crashes=1, supersedes=1)
PRUNED = QUIET._replace(others=1, prunes=1)
REPLACED = QUIET._replace(runs=1, others=1, supersedes=1, prunes=1)
RETRIED = QUIET._replace(runs=3, others=1)
LOST = QUIET._replace(losses=1, absences=0)


@pytest.mark.parametrize(
    ("start", "at_least"),
    [(SMALL, 15_000), (PRUNED, 25_000), (REPLACED, 10_000), (RETRIED, 20_000), (LOST, 20_000)],
)
def test_one_key_loads_one_thing_in_every_interleaving_of_two_drivers(
    start: State, at_least: int
) -> None:
    states, broken = explore(start)
    assert broken is None, broken
    assert states > at_least


def test_a_key_that_is_looked_for_before_the_newest_plan_is_read_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def keys(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
        yield from run_keys._keys(s, i, driver._replace(newest=s.plans[-1] if s.plans else None))

    monkeypatch.setitem(run_keys.DOES, At.KEYS, keys)
    assert explore(LOST)[1]


def test_a_key_without_a_plan_that_is_not_kept_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def remember(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
        del driver
        yield "it is not kept", run_keys._done(s, i)

    monkeypatch.setitem(run_keys.DOES, At.REMEMBER, remember)
    assert "stored a plan under K again" in (explore(RETRIED)[1] or "")


def test_a_plan_under_a_key_that_is_superseded_to_the_ends_of_now_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def supersede(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
        assert driver.plan is not None
        until = run_keys.pair(
            lambda log: s.ends[log] if s.is_there(log) else driver.plan.start[log]  # type: ignore[union-attr]
        )
        yield from run_keys._supersede(
            s, i, driver._replace(plan=driver.plan._replace(until=until))
        )

    monkeypatch.setitem(run_keys.DOES, At.SUPERSEDE, supersede)
    assert "goes beyond the bounds" in (explore(SMALL)[1] or "")


def test_a_log_that_was_away_and_that_the_key_forgets_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def left(bounds: tuple[int, ...], until: run_keys.Offsets) -> run_keys.Left:
        first, second = (
            None if bound == run_keys.UNKNOWN or bound <= until[log] else bound
            for log, bound in enumerate(bounds)
        )
        return first, second

    monkeypatch.setattr(run_keys, "_left", left)
    assert "ended before its bound" in (explore(QUIET)[1] or "")


def test_a_plan_in_the_place_of_another_that_forgets_the_log_that_is_away_by_now_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def supersede(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
        assert driver.plan is not None
        yield from run_keys._supersede(
            s, i, driver._replace(plan=driver.plan._replace(left=(None, None)))
        )

    monkeypatch.setitem(run_keys.DOES, At.SUPERSEDE, supersede)
    assert "ended before its bound" in (explore(SMALL)[1] or "")


def test_a_key_that_finds_no_more_in_a_log_that_is_back_and_is_not_kept_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def remember(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
        kept = run_keys._done(s._replace(list_has_key=driver.of_key is None), i)
        yield "of a key that has a plan nothing is kept", kept

    monkeypatch.setitem(run_keys.DOES, At.REMEMBER, remember)
    assert "stored a plan under K again" in (explore(RETRIED)[1] or "")
