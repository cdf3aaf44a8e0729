"""The laws of offsets without compare-and-set in every interleaving of a small model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model import committing_in_kafka as model
from tests.model.committing_in_kafka import At, Driver, Left, Offset, Plan, State, explore

SMALL = Left(runs=3, crashes=1, others=1, drops=0, end=2)
FORGOTTEN = Left(runs=2, crashes=1, others=0, drops=1, end=2)


@pytest.mark.parametrize(("left", "least"), [(SMALL, 5_000), (FORGOTTEN, 1_000)])
def test_every_interleaving_of_reading_and_writing_keeps_every_law(left: Left, least: int) -> None:
    states, broken = explore(left)
    assert broken is None, broken
    assert states > least


def test_a_driver_that_writes_without_reading_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
        yield (
            f"{i} reads and writes later",
            model._put(s, i, driver._replace(at=At.WRITE, read=s.offset)),
        )

    monkeypatch.setitem(model._DOES, At.READ, read)
    assert "was read, and written over" in (explore(SMALL)[1] or "")


def test_a_late_write_of_our_own_that_counted_as_another_clients_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_ours_to_move(plan: Plan, found: Offset) -> bool:
        return found == plan.seen or found.at is None

    monkeypatch.setattr(model, "is_ours_to_move", is_ours_to_move)
    assert "a quiet run ends" in (
        explore(Left(runs=4, crashes=0, others=0, drops=0, end=3))[1] or ""
    )


def test_a_run_that_starts_anew_where_the_group_was_forgotten_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
        is_done = bool(s.plans) and s.plans[-1] in s.applied
        yield from (
            model._next(s, i, 0) if is_done and s.offset.at is None else _as_it_is(s, i, driver)
        )

    _as_it_is = model._look
    monkeypatch.setitem(model._DOES, At.LOOK, look)
    assert "the table holds" in (explore(FORGOTTEN)[1] or "")
