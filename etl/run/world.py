"""Everything outside, as a run sees it: what `ingest` asks for, and what it may rely on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from etl.model.ledger import Ledger
from etl.model.logs import BrokerPartition
from etl.model.plans import Applied, Committed, Plan
from etl.model.snapshot import Snapshot
from etl.model.table import ForeignCommit, Table


class World(Protocol):
    """Everything outside, as a run sees it."""

    def observe(self) -> Snapshot:
        """Read all that the run will need to know."""

    def wait_for_owners(self, logs: Collection[BrokerPartition]) -> None:
        """Return when nobody owns these logs any more. Raises Owned when that takes too long."""

    def new_uid(self) -> str:
        """A random id for a pipeline that has none."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def store(self, plan: Plan) -> None:
        """Keep the plan before its first fetch, put-if-absent."""

    def supersede(self, plan: Plan, ledger: Ledger) -> None:
        """Put the plan in the place of the ledger's newest one, if that is still there."""

    def adopt(self, plan: Plan) -> Ledger:
        """Write the ledger anew from the table's commits, of which `plan` is the newest of ours; the ledger as it is then.

        What `plan` let go is written down first, as in `record`.
        """

    def read_ledger(self) -> Ledger:
        """The ledger as it is now."""

    def note_removals(self, removals: Collection[ForeignCommit]) -> None:
        """Keep that others removed rows, and that it was let pass."""

    def claiming(self, plan: Plan) -> AbstractContextManager[None]:
        """Inside, the logs that the plan reads are ours for all to see, and nobody's once it ends. Raises Owned; then none is ours."""

    def fetch(self, plan: Plan, snapshot: Snapshot) -> Any:
        """The rows of the plan's ranges, lazily."""

    def creation_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """What stands for the ids of these topics by now, as in `Snapshot.creation_ids`; without those that are gone."""

    def append(self, plan: Plan, rows: Any) -> tuple[Applied | None, Table | None]:
        """Append as plan N and read the table again; no Applied: it holds another plan under that number."""

    def record(self, plan: Plan, applied: Applied | None) -> None:
        """Write down what the plan in the table let go, once, and only then what came of it: a record says that both are done.

        Without `applied` nobody could tell what came of it, and no record is kept.
        """

    def recount(self, plan: Plan) -> Applied | None:
        """What came of a plan in the table whose record a crash prevented; None where the table does not hold this plan."""

    def commit(self, plan: Plan, logs: Collection[BrokerPartition] | None = None) -> Mapping[BrokerPartition, Committed]:
        """Move the offsets to the plan's positions by compare-and-set; those of `logs` only, where given."""

    def tidy(self) -> None:
        """Fold old plans into coverage."""
