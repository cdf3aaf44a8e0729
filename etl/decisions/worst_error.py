"""Which of several errors is the worst: what a person mends first, and what the whole ends with."""

from __future__ import annotations

from collections.abc import Iterable

from etl.errors import EtlError

_WORST_FIRST = (1, 2, 5, 3, 6, 7, 4, 130)
"""What no retry mends before what one may mend. A wrong setting (2) comes before a decision (5),
because it may be all that there is to the disagreement; a loss that was allowed (3) behind both;
ZooKeeper and brokers (6) before the table (7), as a run meets them; and last what passes with
nobody doing anything, an owner (4), and what somebody stopped."""


def worst_of(errors: Iterable[EtlError]) -> EtlError | None:
    """Of several the one to mend first; None of none."""
    return min(errors, key=lambda error: _WORST_FIRST.index(error.exit_code), default=None)
