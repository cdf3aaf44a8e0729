"""A ledger that was lost, or restored from an old copy: it is rebuilt from the table's commits,
whatever crashes meanwhile.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from etl.report.run_progress import Outcome
from tests.fakes.outside import Outside
from tests.fakes.stories import (
    OutsideOf,
    crash_at,
    grow,
    of_both_kinds,
    outcomes,
    outside_of,
    reject_broken,
    reject_unfinished,
    run,
)
from tests.fakes.world import Crash, When

LEDGER_STEPS = ["store uid", "adopt 1", "adopt 2", "adopt 3", "commit from 0", "commit from 2"]


def loaded_in_three_runs(outside: Outside) -> Outside:
    run(outside)
    for _ in range(2):
        grow(outside, 2, 1, 3)
        run(outside)
    return outside


@of_both_kinds
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_ledger_that_was_lost_or_restored_from_an_old_copy_is_rebuilt_from_the_tables_commits(
    outside_of: OutsideOf, kept: int
) -> None:
    outside = outside_of(5, 3, 4)
    copies = [Outside({})]
    for more in (0, 2, 1):
        grow(outside, more, more, more)
        run(outside)
        copies.append(
            replace(
                outside,
                plans=dict(outside.plans),
                applied=dict(outside.applied),
                offsets=dict(outside.offsets),
            )
        )
    old = copies[kept]
    outside.uid, outside.plans, outside.applied, outside.offsets = (
        old.uid,
        old.plans,
        old.applied,
        old.offsets,
    )
    grow(outside, 4, 0, 1)
    report = run(outside)
    assert outcomes(report) == [Outcome.LEDGER_RESTORED, Outcome.PLAN_COMPLETED, Outcome.INGESTED]
    assert sorted(outside.plans) == [1, 2, 3, 4]
    reject_unfinished(outside)


@of_both_kinds
@pytest.mark.parametrize("step", LEDGER_STEPS)
@pytest.mark.parametrize("when", When)
def test_a_crash_while_the_ledger_is_rebuilt_loses_and_doubles_nothing(
    outside_of: OutsideOf, step: str, when: When
) -> None:
    outside = loaded_in_three_runs(outside_of(5, 3, 4))
    outside.uid, outside.plans, outside.applied, outside.offsets = None, {}, {}, {}
    grow(outside, 1, 1, 1)
    with pytest.raises(Crash):
        run(outside, at=crash_at(step, when))
    reject_broken(outside)
    run(outside)
    reject_unfinished(outside)


def test_a_rebuilt_ledger_keeps_the_uid_of_the_table() -> None:
    outside = loaded_in_three_runs(outside_of(5, 3, 4))
    uid, outside.uid, outside.plans, outside.applied = outside.uid, None, {}, {}
    run(outside)
    assert outside.uid == uid is not None
