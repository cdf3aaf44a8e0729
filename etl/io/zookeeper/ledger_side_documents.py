"""How the records of the ledger other than plans are read and written.

Lives here: loaded intervals of pruned plans, reservations of backfills, results of offset commits
in Kafka, the location of a named table, pauses, and run keys.
Not here: when intervals are merged (etl/decide/loaded_intervals.py), documents and plans
(ledger.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from etl.decide import loaded_intervals
from etl.decide.loaded_intervals import add_removals, ancestry, fold, fold_all, prunable
from etl.decide.offsets import starts_of
from etl.decide.reservations import ledger_without_released
from etl.decide.run_requests import with_key
from etl.errors import Owned
from etl.io.zookeeper.ledger import PlanLedger, Write
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger.documents import Pauses, parse, render
from etl.ledger.plan_document import parse_plan, render_plan
from etl.ledger.znode_paths import GroupPaths, PipelinePaths
from etl.model.partitions import BrokerPartition
from etl.model.plans import CommitState, Plan, RunKeyRecord
from etl.model.snapshot import (
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
"""Tries of a compare-and-set, if other drivers change the document at the same time."""


def read_all_loaded_intervals(
    ledger: PlanLedger, transaction_version: int | None = None, claim: Reservation | None = None
) -> LoadedIntervals:
    """Return what all plans with a recorded result loaded, pruned or stored.

    Plans and intervals are merged by `loaded_intervals.fold_all`. `claim`: the reservation of a
    backfill that was deleted. It may have released loaded intervals, which are then left out by
    `reservations.ledger_without_released`.
    """
    # Plans are read before the intervals: pruning moves them in this direction.
    recorded = []
    plans = [ledger.read_plan(number) for number in ledger.plan_numbers()]
    for plan in plans:
        if plan is None:
            continue
        applied = ledger.read_applied(plan.number)
        if applied and applied.plan_id == plan.id:
            recorded.append((plan, applied))
    pruned = ledger.read_loaded_intervals()
    if claim:
        pruned, recorded = ledger_without_released(pruned, recorded, claim)
    return fold_all(pruned, recorded, transaction_version)


def note_removals(ledger: PlanLedger, removals: Sequence[ForeignCommit]) -> None:
    """Record rows that other writers removed, as the policy permits.

    Raises Owned if other drivers change the loaded intervals at each of the tries.
    """
    path = ledger.paths.coverage
    for _ in range(_TRIES_MAX):
        before, version = ledger.read_loaded_intervals_with_version()
        after = add_removals(before, removals)
        if after == before:
            return
        if ledger.documents.replace(path, render(after), version=version):
            return
    raise Owned(
        "Other drivers changed the loaded intervals while removed rows were recorded",
        znode=path,
        action="Run again",
    )


def take_in(
    ledger: PlanLedger,
    theirs: LoadedIntervals | None,
    taken: Mapping[BrokerPartition, int],
    *,
    table_id: str,
    known: Collection[BrokerPartition],
    lives: Mapping[BrokerPartition, int],
) -> None:
    """Merge the loaded intervals of a predecessor into those of this pipeline.

    Raises Owned if another client changed the loaded intervals meanwhile.
    """
    before, version = ledger.read_loaded_intervals_with_version()
    after = loaded_intervals.inherit_intervals(
        before, theirs, taken, table_id=table_id, known=known, lives=lives
    )
    if not ledger.documents.replace(ledger.paths.coverage, render(after), version=version):
        raise Owned(
            "Another driver changed the loaded intervals at the same time",
            znode=ledger.paths.coverage,
            action="Run the command again",
        )


def prune(ledger: PlanLedger) -> None:
    """Merge old plans into the loaded intervals, one transaction each; delete unreferenced pieces.

    Returns early if another driver prunes at the same time. Raises SessionLost, since unreferenced
    pieces may then belong to a document that another driver is writing.
    """
    ledger.zookeeper.require_session()
    for number in prunable(_plan_sizes(ledger)):
        plan = ledger.read_plan(number)
        applied = ledger.read_record_of(plan) if plan else None
        if not plan or not applied:
            return
        before, version = ledger.read_loaded_intervals_with_version()
        is_given_up = _is_given_up(ledger, number)
        reached = _loaded_until(ledger) if plan.request.unfinished else {}
        merged = fold(before, plan, applied, is_given_up=is_given_up, reached=reached)
        pruned = (ledger.paths.plan(number), ledger.paths.applied(number))
        if not ledger.documents.replace(
            ledger.paths.coverage, render(merged), version=version, deleting=pruned
        ):
            return
    # Pieces are listed before documents are read: pieces written later are not in the list.
    pieces = ledger.documents.pieces()
    if pieces:
        ledger.documents.drop_pieces(pieces, referenced_at=_paths_with_pieces(ledger))


def _loaded_until(ledger: PlanLedger) -> Mapping[BrokerPartition, int]:
    """Return the loaded-until offset of each partition, as far as results are recorded."""
    found = ledger.read_ledger()
    if found.newest is None:
        return {}
    return found.newest.positions if found.applied else starts_of(found.newest)


def _paths_with_pieces(ledger: PlanLedger) -> list[str]:
    """Return the paths of all documents that can be in pieces, since they grow."""
    paths = ledger.paths
    results = ledger.zookeeper.children(paths.applied_plans) or ()
    return [
        *(paths.plan(number) for number in ledger.plan_numbers()),
        paths.coverage,
        paths.claim,
        paths.paused,
        *(f"{paths.applied_plans}/{number}" for number in results),
    ]


def _is_given_up(ledger: PlanLedger, number: int) -> bool:
    """Return True if an operator gave this plan up, according to later plans.

    False if no operator decision is later than the plan.
    """
    acknowledgement = ledger.read_acknowledgement()
    if acknowledgement is None or acknowledgement.number < number:
        return False
    versions = {}
    for later in ledger.plan_numbers():
        plan = ledger.read_plan(later) if later >= number else None
        if plan:
            versions[plan.number] = plan.table.transaction_version
    return number not in ancestry(versions, max(versions)).numbers


def _plan_sizes(ledger: PlanLedger) -> list[tuple[int, int]]:
    """Return (number, bytes) of each stored plan."""
    numbers = ledger.plan_numbers()
    paths = [ledger.paths.plan(number) for number in numbers]
    sizes = []
    for number, size in zip(numbers, ledger.documents.sizes(paths), strict=True):
        if size is not None:
            sizes.append((number, size))
    return sizes


class ReservationStore:
    """The reservations of the backfills of one live pipeline.

    Each change is a compare-and-set, together with the plan that it belongs to. Raises what
    `ZooKeeper` raises, and LedgersDisagree if a document is invalid.
    """

    def __init__(self, zookeeper: ZooKeeper, group: str, live: str) -> None:
        self._zookeeper = zookeeper
        self._group = group
        self._live = live
        self._lock = PipelinePaths(group, live).fence

    def ledger_of(self, name: str) -> PlanLedger:
        """Return the ledger of a backfill."""
        return PlanLedger(self._zookeeper, self._group, backfill_pipeline(self._live, name))

    def read(self) -> Reservations:
        """Return all reservations and the version of the reservation lock, which is read first.

        A follower that lags returns old versions of both, and writes over old versions fail.
        Reservations outlive a lock that somebody deleted with the live pipeline's znodes.
        """
        found = self._zookeeper.read(self._lock)
        lock_version = None
        if found:
            lock_version = found[1]
        prefix = backfill_pipeline(self._live, "")
        reservations = []
        for name in sorted(self._zookeeper.children(GroupPaths(self._group).pipelines) or ()):
            if not name.startswith(prefix):
                continue
            claimed = self.read_one(name.removeprefix(prefix))
            if claimed:
                reservations.append(claimed)
        return Reservations(lock_version, tuple(reservations))

    def read_one(self, name: str) -> Claimed | None:
        """Return one reservation; None if there is no backfill of that name."""
        ledger = self.ledger_of(name)
        found = ledger.documents.read(ledger.paths.claim)
        if found is None:
            return None
        payload, version = found
        return Claimed(parse(Reservation, payload, path=ledger.paths.claim), version)

    def begin(self, claim: Reservation, plan: Plan, fence: int | None) -> None:
        """Store a new reservation and its first plan. Raises Owned.

        `fence`: the expected version of the reservation lock; None: it does not exist.
        """
        self.ledger_of(claim.name).store_plan(
            plan, also=[self.write_of(claim, None), self.reservation_lock_write(fence)]
        )

    def settle(self, claim: Reservation, version: int) -> None:
        """Overwrite a reservation that has no stored plan any more.

        Raises Owned if another client changed it meanwhile.
        """
        write = self.write_of(claim, version)
        if not self._zookeeper.replace(write.path, write.payload, version=version):
            raise Owned(
                "Another driver changed the backfill at the same time",
                znode=write.path,
                action="Run the command again",
            )

    def write_of(self, claim: Reservation, version: int | None) -> Write:
        """Return the reservation as a part of a transaction."""
        ledger = self.ledger_of(claim.name)
        return Write(ledger.paths.claim, ledger.documents.head(render(claim)), version)

    def reservation_lock_write(self, version: int | None) -> Write:
        """Return the lock as a part of a transaction that reserves."""
        return Write(self._lock, b"", version)


def write_mark(ledger: PlanLedger, plan: Plan) -> None:
    """Record whether the offset commit of this stored plan succeeded or was rejected.

    Does nothing if the same is recorded already. Raises Owned if another plan replaced it, or
    another driver recorded a different result.
    """
    path = ledger.paths.plan(plan.number)
    for _ in range(_TRIES_MAX):
        found = ledger.documents.read(path)
        if found is None:
            break
        payload, version = found
        stored = parse_plan(payload, path=path)
        if stored.id != plan.id or not _may_change(stored, plan):
            break
        if stored.commit.state is plan.commit.state:
            return
        if ledger.documents.replace(path, render_plan(plan), version=version):
            return
    raise Owned(
        f"Another driver changed plan {plan.number} at the same time",
        znode=path,
        action="Run again; the next run continues from the stored plan",
    )


def _may_change(stored: Plan, plan: Plan) -> bool:
    """Return True if the recorded result may become that of `plan`.

    A success stays; a rejection may become a success.
    """
    before = stored.commit.state
    after = plan.commit.state
    if before is CommitState.REJECTED and after is CommitState.DONE:
        return True
    return before is CommitState.IN_DOUBT or before is after


def read_named_table(ledger: PlanLedger) -> NamedTable | None:
    """Return the recorded location of the table; None without one.

    A backfill uses that of its pipeline. Raises LedgersDisagree if the document is invalid.
    """
    live = _live_ledger(ledger)
    stored = live.documents.read(live.paths.named_table)
    return parse(NamedTable, stored[0], path=live.paths.named_table) if stored else None


def write_named_table(ledger: PlanLedger, found: NamedTable) -> None:
    """Record the location of the table, over an earlier one.

    Raises Owned if another client writes at the same time.
    """
    live = _live_ledger(ledger)
    live.zookeeper.ensure(live.paths.root)
    if not live.documents.put(live.paths.named_table, render(found)):
        raise Owned(
            "Another driver resolved the table's name at the same time",
            znode=live.paths.named_table,
            action="Run again",
        )


def _live_ledger(ledger: PlanLedger) -> PlanLedger:
    live, backfill = live_and_name(ledger.pipeline)
    return ledger.ledger_of(live) if backfill else ledger


def read_pauses(ledger: PlanLedger) -> tuple[Pause, ...]:
    """Return the pauses. Raises LedgersDisagree if the document is invalid."""
    return read_pauses_at(ledger)[0]


def read_pauses_at(ledger: PlanLedger) -> tuple[tuple[Pause, ...], int | None]:
    """Return the pauses and the version of their znode; None: no znode."""
    path = ledger.paths.paused
    stored = ledger.documents.read(path)
    if stored is None:
        return (), None
    return parse(Pauses, stored[0], path=path).pauses, stored[1]


def write_pauses(ledger: PlanLedger, pauses: Iterable[Pause], version: int | None) -> None:
    """Write these pauses over those of that version.

    Raises Owned if another client wrote meanwhile; a repeated command then succeeds.
    """
    path = ledger.paths.paused
    payload = render(Pauses(tuple(pauses)))
    ledger.zookeeper.require_session()
    if not ledger.documents.replace(path, payload, version=version):
        raise Owned(
            "Another operator paused or resumed partitions at the same time",
            znode=path,
            action="Run the command again",
        )


def find_key(ledger: PlanLedger, key: str, newest: int) -> tuple[Plan | None, RunKeyRecord | None]:
    """Return the newest plan of a run key before plan `newest`, and its record of a pruned plan.

    The caller has read plan `newest`. A key whose plan left a partition out may be in both: then
    it is done.
    """
    # Plans are read before the loaded intervals, since pruning moves keys from there. In another
    # order the same key could be applied twice.
    found = None
    for number in reversed(ledger.plan_numbers()):
        plan = ledger.read_plan(number) if number < newest else None
        if plan and plan.request.run_key == key:
            found = plan
            break
    for record in ledger.read_loaded_intervals().keys:
        if record.key == key:
            return found, record
    return found, None


def remember(ledger: PlanLedger, key: RunKeyRecord, *, after: int) -> None:
    """Record a run key that has no more records to read.

    The transaction checks that plan `after` is still the newest. Raises Owned if a plan was
    stored since, or another client changed the loaded intervals.
    """
    ledger.zookeeper.require_session()
    before, version = ledger.read_loaded_intervals_with_version()
    ledger.zookeeper.ensure(ledger.paths.plans)
    merged = replace(before, keys=with_key(before.keys, key))
    if not ledger.documents.replace(
        ledger.paths.coverage,
        render(merged),
        version=version,
        absent=(ledger.paths.plan(after + 1),),
    ):
        raise Owned(
            "Another driver stored a plan or changed the loaded intervals "
            f"while run key {key.key} had no records to read",
            znode=ledger.paths.coverage,
            action="Run again",
        )
