"""A table is accepted for the pipeline and its backfills. A backfill that cannot be checked does
not block the others.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from etl.commands import operator_decisions
from etl.io.delta.recover_results import Recount
from etl.model.plans import NOT_COUNTED
from tests.fakes import fake_ledger, fake_table
from tests.fakes.backfill_stories import stored
from tests.fakes.stories import SETTINGS


def test_an_uncountable_plan_of_a_backfill_does_not_prevent_the_acceptance_of_a_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside = stored()
    assert outside.table
    outside.table = outside.table[:-1]
    old = outside.backfill("old")
    claim = fake_ledger.read_claim(old)
    assert claim

    class Uncounted:
        """Services of a backfill with a missing file in its table."""

        def __init__(self, settings: Any, *_: Any) -> None:
            self.settings, self.ledger = (
                settings,
                SimpleNamespace(read_ledger=lambda: fake_ledger.read_ledger(old)),
            )

        def read_table(self, _: Any) -> Any:
            return fake_table.read_table(old)

        def rows_of_today(self, plan: Any) -> Recount:
            return Recount((NOT_COUNTED,) * len(plan.ranges), "the file part-0.parquet is gone")

    monkeypatch.setattr(operator_decisions, "LiveServices", Uncounted)
    world: Any = SimpleNamespace(
        settings=SETTINGS,
        zookeeper=None,
        run_id="r",
        claims=SimpleNamespace(store=SimpleNamespace(read=lambda: [claim.claim])),
    )
    found = operator_decisions.accepted_with_backfills(
        world, fake_table.read_table(outside), reason="an older copy", at_ms=1
    )
    assert found.decisions == {} and found.undecided.keys() == {"old"}
    assert "; nothing is accepted for backfill old: It is unknown whether plan 3" in found.sentence
    assert (
        "the file part-0.parquet is gone. Correct that, and run this command again"
        in found.sentence
    )
