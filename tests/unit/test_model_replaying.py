"""The laws of replays in every interleaving of a small model; `python -m tests.model.replaying`
looks at more of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model import replaying
from tests.model.replaying import COPIED, SMALL, At, Commit, Driver, Plan, State, explore


def test_every_interleaving_of_replays_and_runs_keeps_every_law() -> None:
    states, broken = explore(SMALL)
    assert broken is None, broken
    assert states > 30_000


def test_a_ledger_that_is_put_back_from_before_a_replay_keeps_every_law() -> None:
    states, broken = explore(COPIED)
    assert broken is None, broken
    assert states > 5_000


def test_rows_that_are_taken_out_before_others_come_are_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
        plan = driver.plan
        assert plan is not None
        removed = (
            Commit(plan._replace(number=s.table[-1].plan.number), plan.until) if s.table else None
        )
        if plan.is_replay and removed not in s.table:
            yield (
                "rows are taken out",
                s._replace(table=(*s.table, *((removed,) if removed else ()))),
            )
        else:
            yield from replaying._write(s, i, driver)

    monkeypatch.setitem(replaying.DOES, At.WRITE, write)
    assert "is in the table 0 times" in (explore(SMALL)[1] or "")


def test_a_reader_that_gives_what_retention_left_of_an_interval_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def append(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
        yield from replaying._append(s._replace(log_start=0), i, driver)

    def write(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
        for what, after in replaying._write(s, i, driver):
            came = tuple(
                one._replace(came_from=max(s.log_start, one.plan.start))
                if one.plan == driver.plan and one not in s.table and one.plan.is_replay
                else one
                for one in after.table
            )
            yield what, after._replace(table=came, log_start=s.log_start)

    monkeypatch.setitem(replaying.DOES, At.APPEND, append)
    monkeypatch.setitem(replaying.DOES, At.WRITE, write)
    assert "is in the table 0 times" in (explore(SMALL)[1] or "")


def test_a_plan_in_the_place_of_a_replay_that_begins_where_that_did_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def instead(s: State, old: Plan) -> Plan:
        return Plan(old.number, old.start, s.end, s.end, s.left.id)

    monkeypatch.setattr(replaying, "_instead", instead)
    assert "a quiet run ends" in (explore(SMALL)[1] or "")


def test_a_replay_that_leaves_the_position_where_its_interval_ends_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plan(s: State, i: int, driver: Driver) -> Iterator[tuple[str, State]]:
        assert driver.plan is not None
        if driver.plan.is_replay:
            wrong = driver.plan._replace(position=driver.plan.until - 1)
        else:
            wrong = driver.plan
        yield from replaying._plan(s, i, driver._replace(plan=wrong))

    monkeypatch.setitem(replaying.DOES, At.PLAN, plan)
    assert explore(SMALL)[1] is not None
