"""Backfills under older copies of ZooKeeper and in a table made anew, in every interleaving of a
small model; `python -m tests.model.backfilling_copies` looks at more of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model import backfilling_copies
from tests.model.backfilling_copies import (
    FORGOTTEN,
    REPLACED,
    REPLAYED,
    Accepted,
    Plan,
    State,
    explore,
)

COPIED = State(fills=2, runs=0)
SET_BACK = State(fills=1, given_up=0, sets=1)
DROPPED = FORGOTTEN._replace(restores=0, drops=1, runs=1, given_up=0)
AWAY = FORGOTTEN._replace(restores=0, absences=1)
_MADE = REPLACED.zk.ledgers[-1]
UNRECORDED = REPLACED._replace(
    zk=REPLACED.zk._replace(
        ledgers=(*REPLACED.zk.ledgers[:-1], _MADE._replace(is_recorded=False)),
        accepted=Accepted(0, _MADE.plan, False),
    )
)
"""The absence of the table was accepted once more, before the plan was appended that creates one.
"""


@pytest.mark.parametrize(
    ("start", "at_least"),
    [
        pytest.param(COPIED, 2_000, id="names that are used again"),
        pytest.param(FORGOTTEN, 10_000, id="a forgotten driver"),
        pytest.param(SET_BACK, 8_000, id="a position that is set back"),
        pytest.param(DROPPED, 10_000, id="a table that is made anew"),
        pytest.param(REPLACED, 10_000, id="a disk that is away"),
        pytest.param(REPLAYED, 20_000, id="a replay of what went with the table before"),
        pytest.param(UNRECORDED, 10_000, id="a disk that is away, and a plan without a record"),
    ],
)
def test_no_offset_is_loaded_twice_whatever_copy_of_zookeeper_and_whichever_table_is_there(
    start: State, at_least: int
) -> None:
    states, broken = explore(start)
    assert broken is None, broken
    assert states > at_least


def of_positions_alone(plan: Plan) -> bool:
    return plan.moves


def never(*_: Any) -> bool:
    return False


def always(*_: Any) -> bool:
    return True


def of_any_moment(s: State) -> bool:
    return s.zk.accepted is not None and s.zk.accepted.table == s.seen.id


TWICE, LACKS, STUCK = (
    "in the table twice",
    "the table lacks some of it",
    "neither whole nor given up",
)


@pytest.mark.parametrize(
    ("start", "rules", "broken"),
    [
        pytest.param(COPIED, {"drivers_end": never}, TWICE, id="drivers outlive the copy"),
        pytest.param(
            FORGOTTEN,
            {"is_closed": never},
            TWICE,
            id="the claim is believed more than the plan that closes",
        ),
        pytest.param(
            FORGOTTEN,
            {"is_settled_by": always},
            TWICE,
            id="given back though the plan that closes came too late",
        ),
        pytest.param(COPIED, {"has_rows": never}, TWICE, id="rows are not checked"),
        pytest.param(
            SET_BACK, {"is_older": never}, TWICE, id="begun by a ledger older than the table"
        ),
        pytest.param(
            COPIED, {"is_used": never, "is_shut_out": never}, STUCK, id="a name is used again"
        ),
        pytest.param(
            COPIED,
            {"is_used": never, "is_of_another_era": never},
            LACKS,
            id="plans of another ledger of the name",
        ),
        pytest.param(DROPPED, {"may_append": always}, LACKS, id="appended to another table"),
        pytest.param(DROPPED, {"is_of_table": always}, STUCK, id="gone on with in another table"),
        pytest.param(
            AWAY, {"is_gone": always}, TWICE, id="given back where the table is only away"
        ),
        pytest.param(
            REPLACED,
            {"is_gone": of_any_moment},
            TWICE,
            id="the absence of a table is accepted for a later table",
        ),
        pytest.param(
            REPLAYED,
            {"updates_reservation_lock": of_positions_alone},
            TWICE,
            id="a replay without the fence",
        ),
        pytest.param(REPLAYED, {"_is_held": never}, TWICE, id="claims are not checked"),
        pytest.param(
            UNRECORDED,
            {"is_gone": backfilling_copies.is_accepted},
            TWICE,
            id="the absence of a table is accepted before a table exists",
        ),
    ],
)
def test_each_rule_of_copies_and_tables_is_missed_where_it_is_taken_away(
    start: State,
    rules: dict[str, Any],
    broken: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for rule, instead in rules.items():
        monkeypatch.setattr(backfilling_copies, rule, instead)
    assert broken in (explore(start)[1] or "")
