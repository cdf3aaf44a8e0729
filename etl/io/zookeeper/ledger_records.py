"""What else does the ledger keep, beside plans?

Loaded intervals of pruned plans, reservations of backfills, results of offset commits in Kafka, the
location of a named table, pauses, and run keys. When intervals are merged is decided in
etl/decide/loaded_intervals.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from etl.decide import loaded_intervals
from etl.decide.loaded_intervals import ancestry, fold, fold_all, note, prunable
from etl.decide.offsets import starts_of
from etl.decide.reservations import loaded_as_claimed
from etl.decide.run_requests import with_key
from etl.errors import Owned
from etl.io.zookeeper.ledger import PlanLedger, Write
from etl.io.zookeeper.session import ZooKeeper
from etl.ledger.documents import (
    parse_claim,
    parse_named_table,
    parse_pauses,
    render_claim,
    render_loaded_intervals,
    render_named_table,
    render_pauses,
)
from etl.ledger.paths import GroupPaths, PipelinePaths
from etl.ledger.plan_document import parse_plan, render_plan
from etl.model.partitions import BrokerPartition
from etl.model.plans import Plan, RunKeyRecord
from etl.model.snapshot import (
    NO_CLAIMS,
    Claimed,
    ForeignCommit,
    LoadedIntervals,
    NamedTable,
    Pause,
    Reservation,
    Reservations,
    backfill_pipeline,
    live_and_name,
)

_TRIES_MAX = 3
"""Tries of a change of the loaded intervals, if other drivers change them."""


def read_all_loaded_intervals(
    ledger: PlanLedger, transaction_version: int | None = None, claim: Reservation | None = None
) -> LoadedIntervals:
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
    pruned = ledger.read_loaded_intervals()
    if claim:
        pruned, recorded = loaded_as_claimed(pruned, recorded, claim)
    return fold_all(pruned, recorded, transaction_version)


def note_removals(ledger: PlanLedger, removals: Sequence[ForeignCommit]) -> None:
    """Record rows removed by others with permission. Raises Owned if other drivers change the
    intervals again and again.
    """
    for _ in range(_TRIES_MAX):
        before, version = ledger.read_loaded_intervals_with_version()
        after = note(before, removals)
        if after == before or ledger.documents.replace(
            ledger.paths.coverage, render_loaded_intervals(after), version=version
        ):
            return
    message = "Other drivers changed the coverage while it was kept that others removed rows"
    raise Owned(message, znode=ledger.paths.coverage, action="Run again")


def take_in(
    ledger: PlanLedger,
    theirs: LoadedIntervals | None,
    taken: Mapping[BrokerPartition, int],
    *,
    table_id: str,
    known: Collection[BrokerPartition],
    lives: Mapping[BrokerPartition, int],
) -> None:
    """Record what a predecessor loaded. Raises Owned if another client changed the intervals
    meanwhile.
    """
    before, version = ledger.read_loaded_intervals_with_version()
    after = loaded_intervals.take_in(
        before, theirs, taken, table_id=table_id, known=known, lives=lives
    )
    if not ledger.documents.replace(
        ledger.paths.coverage, render_loaded_intervals(after), version=version
    ):
        raise Owned(
            "Another driver changed the coverage at this moment",
            znode=ledger.paths.coverage,
            action="Run this command again",
        )


def prune(ledger: PlanLedger) -> None:
    """Merge old plans into loaded intervals, one transaction each, and delete unreferenced pieces.
    Ends quietly if another driver did it meanwhile. Raises SessionLost: unreferenced pieces may
    then be another driver's.
    """
    ledger.zookeeper.require_session()
    for number in prunable(_plan_sizes(ledger)):
        plan = ledger.read_plan(number)
        applied = ledger.read_record_of(plan) if plan else None
        if not plan or not applied:
            return
        before, version = ledger.read_loaded_intervals_with_version()
        folded = fold(
            before,
            plan,
            applied,
            is_given_up=_is_given_up(ledger, number),
            reached=_reached(ledger) if plan.key_ends else {},
        )
        gone = (ledger.paths.plan(number), ledger.paths.applied(number))
        if not ledger.documents.replace(
            ledger.paths.coverage, render_loaded_intervals(folded), version=version, deleting=gone
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
    """Return the paths of documents that grow: plans, results, loaded intervals, reservations,
    pauses.
    """
    paths, recorded = ledger.paths, ledger.zookeeper.children(ledger.paths.applied_plans) or ()
    plans, records = (
        (paths.plan(n) for n in ledger.plan_numbers()),
        (f"{paths.applied_plans}/{n}" for n in recorded),
    )
    return [*plans, paths.coverage, paths.claim, paths.paused, *records]


def _is_given_up(ledger: PlanLedger, number: int) -> bool:
    """True if later plans show that an operator gave this one up; False without a later decision."""
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


class ClaimsBeside:
    """The claims of one live pipeline's backfills. Raises what `ZooKeeper` raises, and
    LedgersDisagree on documents that are not ours.
    """

    def __init__(self, zookeeper: ZooKeeper, group: str, live: str) -> None:
        self._zookeeper, self._group, self._live = zookeeper, group, live
        self._fence = PipelinePaths(group, live).fence

    def ledger_of(self, name: str) -> PlanLedger:
        """The plans of a backfill."""
        return PlanLedger(self._zookeeper, self._group, backfill_pipeline(self._live, name))

    def read(self) -> Reservations:
        """Read the reservation lock, and then all reservations. A follower that lags returns old
        versions of both, and nothing can be written over them.
        """
        found = self._zookeeper.read(self._fence)
        if found is None:
            return NO_CLAIMS
        prefix = backfill_pipeline(self._live, "")
        names = sorted(self._zookeeper.children(GroupPaths(self._group).pipelines) or ())
        claimed = (
            self.read_one(name.removeprefix(prefix)) for name in names if name.startswith(prefix)
        )
        return Reservations(found[1], tuple(one for one in claimed if one))

    def read_one(self, name: str) -> Claimed | None:
        """Return one reservation; None if no backfill of that name began."""
        ledger = self.ledger_of(name)
        found = ledger.documents.read(ledger.paths.claim)
        return Claimed(parse_claim(found[0], path=ledger.paths.claim), found[1]) if found else None

    def begin(self, claim: Reservation, plan: Plan, fence: int | None) -> None:
        """Store a reservation and its first plan, if the lock still has that version. Raises Owned."""
        self.ledger_of(claim.name).store_plan(
            plan, also=[self.write_of(claim, None), self.reservation_lock_write(fence)]
        )

    def settle(self, claim: Reservation, version: int) -> None:
        """Write a reservation again, of which no plan is stored any more. Raises Owned if another
        client did meanwhile.
        """
        write = self.write_of(claim, version)
        if not self._zookeeper.replace(write.path, write.payload, version=version):
            raise Owned(
                "Somebody else changed the backfill at this moment",
                znode=write.path,
                action="Run this command again",
            )

    def write_of(self, claim: Reservation, version: int | None) -> Write:
        """Return the reservation as a part of a transaction."""
        ledger = self.ledger_of(claim.name)
        return Write(ledger.paths.claim, ledger.documents.head(render_claim(claim)), version)

    def reservation_lock_write(self, version: int | None) -> Write:
        """Return the lock as a part of a transaction that reserves."""
        return Write(self._fence, b"", version)


_TRIES = 3


def write_mark(ledger: PlanLedger, plan: Plan) -> None:
    """Record whether this stored plan's commit succeeded or was rejected, unless it is recorded.
    Raises Owned if another plan replaced it, or another driver recorded something else.
    """
    path = ledger.paths.plan(plan.number)
    for _ in range(_TRIES):
        stored = ledger.documents.read(path)
        there = parse_plan(stored[0], path=path) if stored else None
        if stored is None or there is None or there.id != plan.id or not _goes(there, plan):
            break
        if _mark(there) == _mark(plan) or ledger.documents.replace(
            path, render_plan(plan), version=stored[1]
        ):
            return
    raise Owned(
        f"Another driver changed plan {plan.number} at this moment",
        znode=path,
        action="The next run continues from there",
    )


def _goes(there: Plan, plan: Plan) -> bool:
    """True if the record may change: a success stays, a rejection may become a success."""
    return there.is_open or _mark(there) == _mark(plan) or bool(there.is_void and plan.handed_over)


def _mark(plan: Plan) -> tuple[bool | None, bool]:
    return plan.handed_over, plan.is_void


def read_named_table(ledger: PlanLedger) -> NamedTable | None:
    """Return the recorded location; None without one. A backfill uses its pipeline's. Raises
    LedgersDisagree.
    """
    live = _of_live(ledger)
    stored = live.documents.read(live.paths.named_table)
    return parse_named_table(stored[0], path=live.paths.named_table) if stored else None


def write_named_table(ledger: PlanLedger, found: NamedTable) -> None:
    """Record a location, over an earlier one; the driver lock has created the znode above. Raises
    Owned if another client wrote meanwhile.
    """
    live = _of_live(ledger)
    live.zookeeper.ensure(live.paths.root)
    if not live.documents.put(live.paths.named_table, render_named_table(found)):
        raise Owned(
            "Somebody else resolved the table's name at this moment",
            znode=live.paths.named_table,
            action="Run again",
        )


def _of_live(ledger: PlanLedger) -> PlanLedger:
    live, backfill = live_and_name(ledger.pipeline)
    return ledger.beside(live) if backfill else ledger


def read_pauses(ledger: PlanLedger) -> tuple[Pause, ...]:
    """Return the pauses. Raises LedgersDisagree if the document is invalid."""
    return read_pauses_at(ledger)[0]


def read_pauses_at(ledger: PlanLedger) -> tuple[tuple[Pause, ...], int | None]:
    """Return the same with the version of its znode; None: no znode."""
    path = ledger.paths.paused
    stored = ledger.documents.read(path)
    return (parse_pauses(stored[0], path=path), stored[1]) if stored else ((), None)


def write_pauses(ledger: PlanLedger, pauses: Iterable[Pause], version: int | None) -> None:
    """Write these pauses over those of that version. Raises Owned if another client wrote
    meanwhile; repeated, it succeeds.
    """
    path, payload = ledger.paths.paused, render_pauses(pauses)
    ledger.zookeeper.require_session()
    if not ledger.documents.replace(path, payload, version=version):
        raise Owned(
            "Somebody else paused or resumed at this moment",
            znode=path,
            action="Run this command again",
        )


def find_key(ledger: PlanLedger, key: str, newest: int) -> tuple[Plan | None, RunKeyRecord | None]:
    """Return the newest plan of the key before plan `newest`, which the caller has read, and the
    record in the loaded intervals. Plans are read first, since pruning moves keys from there. A key
    whose plan left a partition out may be in both: it is done.
    """
    numbers = [number for number in reversed(ledger.plan_numbers()) if number < newest]
    plans = (ledger.read_plan(number) for number in numbers)
    found = next((plan for plan in plans if plan and plan.run_key == key), None)
    return found, next((one for one in ledger.read_loaded_intervals().keys if one.key == key), None)


def remember(ledger: PlanLedger, key: RunKeyRecord, *, behind: int) -> None:
    """Record a key with nothing more to read, in one transaction with a check that plan `behind` is
    still the newest. Raises Owned if a plan was stored since, or another client changed the
    intervals.
    """
    ledger.zookeeper.require_session()
    coverage, version = ledger.read_loaded_intervals_with_version()
    ledger.zookeeper.ensure(ledger.paths.plans)
    kept = render_loaded_intervals(replace(coverage, keys=with_key(coverage.keys, key)))
    if not ledger.documents.replace(
        ledger.paths.coverage, kept, version=version, absent=(ledger.paths.plan(behind + 1),)
    ):
        message = f"Another driver stored a plan or changed the coverage while run key {key.key} had nothing to read"
        raise Owned(message, znode=ledger.paths.coverage, action="Run again")
