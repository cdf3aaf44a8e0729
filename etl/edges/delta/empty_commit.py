"""A plan without ranges is a commit without files, by delta-rs where it can commit to the table's
features: no JVM starts for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etl.edges.delta.path import rust_path
from etl.edges.delta.shape import with_event_date_field
from etl.edges.delta.stores import options_of
from etl.edges.delta.taking import Takes
from etl.model.plans import Plan

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable

    from etl.edges.delta.writers import Destination


@dataclass(frozen=True, slots=True)
class EmptyCommit:
    """The writer of plans without ranges; where there is no table, the commit that creates it is
    the plan's.
    """

    columns: pyarrow.Schema
    """Those of a new table, without the built-in ones."""

    @property
    def name(self) -> str:
        """As reports call it."""
        return "delta-rs"

    @property
    def takes(self) -> Takes:
        """No rows."""
        return Takes.NOTHING

    @property
    def writes_files(self) -> bool:
        """No."""
        return False

    def commit(
        self, plan: Plan, rows: Any, table: DeltaTable | None, metadata: str, to: Destination
    ) -> None:
        """See `Writer`. There are no rows.

        delta-rs judges a conflict by the version of the table object it is given and takes a number
        that was used, or a lower one: so number and table id were looked at on that very object.
        """
        from deltalake import CommitProperties, DeltaTable, Transaction

        transaction = Transaction(to.app_id, plan.number, last_updated=int(time.time() * 1000))
        given: dict[str, Any] = {
            "custom_metadata": {"userMetadata": metadata},
            "app_transactions": [transaction],
        }
        if table is None:
            columns = with_event_date_field(self.columns, to.partition_by)
            # no second try: over a table that somebody else made meanwhile, delta-rs would commit
            # ours as its version 1
            DeltaTable.create(
                rust_path(to.path),
                columns,
                partition_by=list(to.partition_by),
                storage_options=options_of(to.path),
                commit_properties=CommitProperties(**given, max_commit_retries=0),
            )
        else:
            kept = table.metadata().partition_columns
            table.create_write_transaction(
                [],
                "append",
                table.schema(),
                partition_by=kept,
                commit_properties=CommitProperties(**given),
            )
