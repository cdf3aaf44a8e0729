"""The laws of run keys in every interleaving of a small model; `python -m tests.model.run_keys` looks at more of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model import run_keys
from tests.model.run_keys import At, Driver, State, explore

SMALL = State(runs=2, others=0, crashes=1, supersedes=1, prunes=0)
PRUNED = State(runs=1, others=1, crashes=0, supersedes=1, prunes=1)
RETRIED = State(runs=2, others=1, crashes=0, supersedes=0, losses=0, prunes=0)
LOST = State(runs=2, others=0, crashes=0, supersedes=0, losses=1, prunes=0)


@pytest.mark.parametrize(("start", "at_least"), [(SMALL, 10_000), (PRUNED, 30_000), (RETRIED, 700), (LOST, 3_000)])
def test_one_key_loads_one_thing_in_every_interleaving_of_two_drivers(start: State, at_least: int) -> None:
    states, broken = explore(start)
    assert broken is None, broken
    assert states > at_least


def test_a_key_that_is_looked_for_before_the_newest_plan_is_read_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
        yield from run_keys._keys(s, i, driver._replace(newest=s.plans[-1] if s.plans else None))

    monkeypatch.setitem(run_keys.DOES, At.KEYS, keys)
    assert explore(LOST)[1]


def test_a_key_without_a_plan_that_is_not_kept_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def remember(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
        del driver
        yield "it is not kept", run_keys._done(s, i)

    monkeypatch.setitem(run_keys.DOES, At.REMEMBER, remember)
    assert "stored a plan under K again" in (explore(RETRIED)[1] or "")


def test_a_plan_under_a_key_that_is_superseded_to_the_ends_of_now_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def supersede(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
        assert driver.plan is not None
        yield from run_keys._supersede(s, i, driver._replace(plan=driver.plan._replace(until=s.end)))

    monkeypatch.setitem(run_keys.DOES, At.SUPERSEDE, supersede)
    assert "goes beyond the bound" in (explore(SMALL)[1] or "")
