"""How the records of the ledger other than plans are read and written.

Lives here: loaded intervals of pruned plans, requests of backfills, results of offset commits
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
from etl.decide.run_requests import with_key
from etl.errors import Owned
from etl.io.zookeeper.ledger import PlanLedger
from etl.ledger.documents import Pauses, parse, render
from etl.ledger.plan_document import parse_plan, render_plan
from etl.model.partitions import TopicPartition
from etl.model.plans import CommitResult, CommitState, Plan, RunKeyRecord
from etl.model.snapshot import Backfill, ForeignCommit, LoadedIntervals, NamedTable, Pause

_TRIES_MAX = 3
"""Tries of a compare-and-set, if other drivers change the document at the same time."""


def read_all_loaded_intervals(
    ledger: PlanLedger, transaction_version: int | None = None
) -> LoadedIntervals:
    """Return what all plans with a recorded result loaded, pruned or stored.

    Plans and intervals are merged by `loaded_intervals.fold_all`.
    """
    # Plans are read before the intervals: pruning moves them in this direction.
    plans = read_plans_with_results(ledger)
    recorded = [(plan, applied) for plan, applied in plans if applied]
    return fold_all(ledger.read_loaded_intervals(), recorded, transaction_version)


def read_plans_with_results(ledger: PlanLedger) -> list[tuple[Plan, CommitResult | None]]:
    """Return the stored plans, ascending, each with its result; None if it is not recorded."""
    plans: list[tuple[Plan, CommitResult | None]] = []
    for plan in ledger.read_plans():
        plans.append((plan, ledger.read_record_of(plan)))
    return plans


def note_removals(ledger: PlanLedger, removals: Sequence[ForeignCommit]) -> None:
    """Record rows that other writers removed, as the policy permits.

    Raises Owned if other drivers change the loaded intervals at each of the tries.
    """
    path = ledger.paths.loaded
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
    taken: Mapping[TopicPartition, int],
    *,
    table_id: str,
    known: Collection[TopicPartition],
    lives: Mapping[TopicPartition, int],
) -> None:
    """Merge the loaded intervals of a predecessor into those of this pipeline.

    Raises Owned if another client changed the loaded intervals meanwhile.
    """
    before, version = ledger.read_loaded_intervals_with_version()
    after = loaded_intervals.inherit_intervals(
        before, theirs, taken, table_id=table_id, known=known, lives=lives
    )
    if not ledger.documents.replace(ledger.paths.loaded, render(after), version=version):
        raise Owned(
            "Another driver changed the loaded intervals at the same time",
            znode=ledger.paths.loaded,
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
        if not plan:
            return
        pruned = [ledger.paths.plan(number)]
        recorded = ledger.read_applied(number)
        if recorded:
            pruned.append(ledger.paths.applied(number))
        before, version = ledger.read_loaded_intervals_with_version()
        if recorded and recorded.is_of(plan):
            applied = recorded
            is_given_up = _is_given_up(ledger, number)
        else:
            applied = loaded_intervals.result_of_unknown_plan(plan)
            is_given_up = True
        reached = _loaded_until(ledger) if plan.request.unfinished else {}
        merged = fold(before, plan, applied, is_given_up=is_given_up, reached=reached)
        if not ledger.documents.replace(
            ledger.paths.loaded, render(merged), version=version, deleting=pruned
        ):
            return
    # Pieces are listed before documents are read: pieces written later are not in the list.
    pieces = ledger.documents.pieces()
    if pieces:
        ledger.documents.drop_pieces(pieces, referenced_at=_paths_of_documents(ledger))


def _loaded_until(ledger: PlanLedger) -> Mapping[TopicPartition, int]:
    """Return the loaded-until offset of each partition, as far as results are recorded."""
    found = ledger.read_ledger()
    if found.newest is None:
        return {}
    return found.newest.loaded_until if found.applied else starts_of(found.newest)


def _paths_of_documents(ledger: PlanLedger) -> list[str]:
    """Return the paths of all documents of the pipeline, in one znode or in pieces.

    They are children and grandchildren of its znode, so one that is added later is not forgotten.
    """
    paths = ledger.paths
    found = []
    for name in ledger.zookeeper.children(paths.root) or ():
        path = f"{paths.root}/{name}"
        if path in (paths.all_chunks, paths.drivers):
            continue
        found.append(path)
        for child in ledger.zookeeper.children(path) or ():
            found.append(f"{path}/{child}")
    return found


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


class BackfillStore:
    """The requests of a pipeline's backfills.

    Raises what `ZooKeeper` raises, and LedgersDisagree if a document is invalid.
    """

    def __init__(self, ledger: PlanLedger) -> None:
        self._ledger = ledger

    def read_all(self) -> list[Backfill]:
        """Return all requests by name, without those that are deleted meanwhile."""
        names = self._ledger.zookeeper.children(self._ledger.paths.backfills) or ()
        found = []
        for name in sorted(names):
            backfill = self.read(name)
            if backfill:
                found.append(backfill)
        return found

    def read(self, name: str) -> Backfill | None:
        """Return one request; None if there is no backfill of that name."""
        return self._read(name)[0]

    def create(self, backfill: Backfill) -> None:
        """Store a new request. Raises Owned if the name is used."""
        path = self._ledger.paths.backfill(backfill.name)
        self._ledger.zookeeper.ensure(self._ledger.paths.backfills)
        if self._ledger.documents.create(path, render(backfill)):
            return
        if self.read(backfill.name) != backfill:  # else only the answer was lost
            raise self._changed(path)

    def replace(self, before: Backfill, after: Backfill) -> None:
        """Store a changed request. Raises Owned if it is not as before any more."""
        path = self._ledger.paths.backfill(before.name)
        found, version = self._read(before.name)
        if found == after:
            return
        if found != before or not self._ledger.documents.replace(
            path, render(after), version=version
        ):
            raise self._changed(path)

    def delete(self, name: str) -> None:
        """Delete a request; nothing is done if there is none."""
        self._ledger.zookeeper.delete_tree(self._ledger.paths.backfill(name))

    def _read(self, name: str) -> tuple[Backfill | None, int | None]:
        path = self._ledger.paths.backfill(name)
        stored = self._ledger.documents.read(path)
        if stored is None:
            return None, None
        return parse(Backfill, stored[0], path=path), stored[1]

    def _changed(self, path: str) -> Owned:
        return Owned(
            "Another command changed this backfill at the same time",
            znode=path,
            action="Check with `etl backfills list CONF`, then run the command again",
        )


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

    Raises LedgersDisagree if the document is invalid.
    """
    path = ledger.paths.named_table
    stored = ledger.documents.read(path)
    return parse(NamedTable, stored[0], path=path) if stored else None


def write_named_table(ledger: PlanLedger, found: NamedTable) -> None:
    """Record the location of the table, over an earlier one.

    Raises Owned if another client writes at the same time.
    """
    path = ledger.paths.named_table
    ledger.zookeeper.ensure(ledger.paths.root)
    if not ledger.documents.put(path, render(found)):
        raise Owned(
            "Another driver resolved the table's name at the same time",
            znode=path,
            action="Run again",
        )


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
        ledger.paths.loaded,
        render(merged),
        version=version,
        absent=(ledger.paths.plan(after + 1),),
    ):
        raise Owned(
            "Another driver stored a plan or changed the loaded intervals "
            f"while run key {key.key} had no records to read",
            znode=ledger.paths.loaded,
            action="Run again",
        )
