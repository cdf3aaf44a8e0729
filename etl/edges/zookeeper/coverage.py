"""What plans leave in the ledger that are not kept any more: the intervals they loaded, in one
document.

What is folded into it, and when, is decided in `decide.loaded_intervals`; here it is read from the
ledger, and written back in one transaction with what it makes superfluous.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from etl.decide import loaded_intervals
from etl.decide.loaded_intervals import ancestry, fold, fold_all, note, prunable
from etl.decide.offsets import starts_of
from etl.decide.reservations import loaded_as_claimed
from etl.edges.zookeeper.ledger import PlanLedger
from etl.errors import Owned
from etl.ledger.documents import render_coverage
from etl.model.partitions import BrokerPartition
from etl.model.snapshot import Coverage, ForeignCommit, Reservation

_TRIES_MAX = 3
"""How often a change of the coverage is tried again that another driver came before."""


def read_all_coverage(
    ledger: PlanLedger, transaction_version: int | None = None, claim: Reservation | None = None
) -> Coverage:
    """All that the pipeline's recorded plans loaded, those that are kept among them, by
    `decide.loaded_intervals.fold_all`.

    `claim`: of a backfill that was given up, and may have given back some of that: without it, by
    `reservations.loaded_as_claimed`.
    """
    plans = [plan for number in ledger.plan_numbers() if (plan := ledger.read_plan(number))]
    recorded = [
        (plan, applied)
        for plan in plans
        if (applied := ledger.read_applied(plan.number)) and applied.plan_id == plan.id
    ]
    pruned = ledger.read_coverage()
    if claim:
        pruned, recorded = loaded_as_claimed(pruned, recorded, claim)
    return fold_all(pruned, recorded, transaction_version)


def note_removals(ledger: PlanLedger, removals: Sequence[ForeignCommit]) -> None:
    """Keep in the coverage that others removed rows, as policy allowed. Raises Owned where other
    drivers change it again and again.
    """
    for _ in range(_TRIES_MAX):
        before, version = ledger.read_coverage_at()
        after = note(before, removals)
        if after == before or ledger.documents.replace(
            ledger.paths.coverage, render_coverage(after), version=version
        ):
            return
    what = "other drivers changed the coverage while it was kept that others removed rows"
    raise Owned(what, znode=ledger.paths.coverage, check="nothing; run again")


def take_in(
    ledger: PlanLedger,
    theirs: Coverage | None,
    taken: Mapping[BrokerPartition, int],
    *,
    table_id: str,
    known: Collection[BrokerPartition],
    lives: Mapping[BrokerPartition, int],
) -> None:
    """Keep what another pipeline loaded, whose place this one takes. Raises Owned when somebody
    else changed the coverage meanwhile.
    """
    before, version = ledger.read_coverage_at()
    after = loaded_intervals.take_in(
        before, theirs, taken, table_id=table_id, known=known, lives=lives
    )
    if not ledger.documents.replace(ledger.paths.coverage, render_coverage(after), version=version):
        raise Owned(
            "another driver changed the coverage at this moment",
            znode=ledger.paths.coverage,
            check="nothing; say it again",
        )


def prune(ledger: PlanLedger) -> None:
    """Fold plans beyond those kept into coverage, in one transaction each, and drop pieces that no
    document names.

    Stops quietly where another driver did it meanwhile. Raises SessionLost: pieces that nobody
    names yet may then be another driver's.
    """
    ledger.zookeeper.require_session()
    for number in prunable(_plan_sizes(ledger)):
        plan = ledger.read_plan(number)
        applied = ledger.read_record_of(plan) if plan else None
        if not plan or not applied:
            return
        before, version = ledger.read_coverage_at()
        folded = fold(
            before,
            plan,
            applied,
            is_given_up=_is_given_up(ledger, number),
            reached=_reached(ledger) if plan.key_ends else {},
        )
        gone = (ledger.paths.plan(number), ledger.paths.applied(number))
        if not ledger.documents.replace(
            ledger.paths.coverage, render_coverage(folded), version=version, deleting=gone
        ):
            return
    pieces = ledger.documents.pieces()
    if pieces:  # asked before the documents: those of one that is written now are not among them
        ledger.documents.drop_pieces(pieces, but_of=_may_be_in_pieces(ledger))


def _reached(ledger: PlanLedger) -> Mapping[BrokerPartition, int]:
    """Up to where the table holds each log, as far as it is recorded."""
    newest = ledger.read_ledger()
    if newest.newest is None:
        return {}
    return newest.newest.positions if newest.applied else starts_of(newest.newest)


def _may_be_in_pieces(ledger: PlanLedger) -> list[str]:
    """Where the documents lie that grow with a pipeline: plans, what came of them, coverage, claims
    and pauses.
    """
    paths, recorded = ledger.paths, ledger.zookeeper.children(ledger.paths.applied_plans) or ()
    plans, records = (
        (paths.plan(n) for n in ledger.plan_numbers()),
        (f"{paths.applied_plans}/{n}" for n in recorded),
    )
    return [*plans, paths.coverage, paths.claim, paths.paused, *records]


def _is_given_up(ledger: PlanLedger, number: int) -> bool:
    """Whether later plans tell that an operator gave this one up; nobody did where no
    acknowledgement came after it.
    """
    acknowledgement = ledger.read_acknowledgement()
    if acknowledgement is None or acknowledgement.number < number:
        return False
    later = [plan for n in ledger.plan_numbers() if n >= number and (plan := ledger.read_plan(n))]
    versions = {plan.number: plan.table_transaction_version for plan in later}
    return number not in ancestry(versions, max(versions)).numbers


def _plan_sizes(ledger: PlanLedger) -> list[tuple[int, int]]:
    """(number, bytes) of each stored plan."""
    numbers = ledger.plan_numbers()
    sizes = ledger.documents.sizes([ledger.paths.plan(n) for n in numbers])
    return [(n, size) for n, size in zip(numbers, sizes, strict=True) if size is not None]
