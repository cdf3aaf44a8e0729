"""The laws of numbered plans in every interleaving of a small model; `python -m tests.model` looks
at more of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.model import exactly_once
from tests.model.exactly_once import OVERTAKEN, SMALL, At, Driver, State, explore


def test_every_interleaving_of_two_drivers_keeps_every_law() -> None:
    states, broken = explore(SMALL)
    assert broken is None, broken
    assert states > 30_000


def test_a_run_that_looks_again_because_retention_overtook_its_plan_keeps_every_law() -> None:
    states, broken = explore(OVERTAKEN)
    assert broken is None, broken
    assert states > 5_000


def test_a_run_that_ends_with_the_plan_it_found_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
        for what, after in _as_it_is(s, i, driver):
            found = after.drivers[i]
            yield (
                what,
                exactly_once._put(after, i, found._replace(is_last=True))
                if found.at is At.APPEND
                else after,
            )

    _as_it_is: Any = exactly_once._look
    monkeypatch.setitem(exactly_once._DOES, At.LOOK, look)
    assert "a quiet run ends" in (explore(SMALL)[1] or "")


def test_a_writer_that_does_not_look_at_the_table_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
        return exactly_once._write(s, i, driver._replace(bit=s.table.bit))

    monkeypatch.setitem(exactly_once._DOES, At.WRITE, write)
    assert "the table holds" in (explore(SMALL)[1] or "")
