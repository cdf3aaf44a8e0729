"""The table's side: which plan it holds last, and what others did to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from etl.model.plans import HeldRows, Plan, TookOver


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """A commit that is not ours and that touched what we wrote."""

    delta_version: int
    operation: str
    why: str
    """What it did: `removed rows`, `redefined the table`."""
    by: TookOver | None = None
    """Of rows of a topic of ours that another pipeline loaded: its application id and the number of
    its plan.
    """


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """What one of our commits says of itself in `userMetadata`."""

    delta_version: int
    app_id: str
    uid: str
    number: int
    plan_id: str
    document: bytes | None = field(default=None, repr=False, kw_only=True)
    """The whole plan as `plan_documents.parse_plan` reads it; None when the commit does not carry
    it.
    """
    run_id: str | None = field(default=None, kw_only=True)
    """The run that appended it."""
    receipts: bytes | None = field(default=None, repr=False, kw_only=True)
    """What reading the plan's ranges came to, as `commit_metadata.receipts_of` reads it; None when
    the commit does not say.
    """


@dataclass(frozen=True, slots=True)
class OtherPipeline:
    """Another pipeline that has loaded into the same table, by its newest commit there."""

    app_id: str
    number: int
    delta_version: int | None = None
    """None: the table's log no longer holds that commit."""
    plan: Plan | None = None
    """None: nobody knows what it loaded."""

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics that it loaded, or decided where to start in; None when nobody knows.

        None of them, where it was closed before its first plan was in the table.
        """
        if self.plan and self.plan.closes and self.plan.previous is None and not self.plan.heir_of:
            return frozenset()
        return self.plan.topics if self.plan else None


@dataclass(frozen=True, slots=True)
class Table:
    """The table's side: which plan it holds last, and what others did to it since."""

    id: str
    version: int
    transaction_version: int | None
    """D: plan N was applied exactly if D >= N. None: no commit of ours."""
    metadata: CommitMetadata | None = None
    """The commit found by its `txn`; None when D is None or the log no longer holds that commit."""
    foreign: tuple[ForeignCommit, ...] = ()
    """Commits since the last one of ours that removed rows, redefined the table, or loaded a topic
    of ours.
    """
    others: tuple[OtherPipeline, ...] = ()
    """The other pipelines of the table; asked only where we would read a topic that we do not know.
    """
    topics_with_rows: frozenset[str] = frozenset()
    """Of the topics that we do not know, asked where it is not known what another pipeline loaded:
    those that the table has rows of.
    """
    is_of_others_alone: bool = False
    """No row of it can be ours: all that its commits ever added is other pipelines'. Asked only
    where the newest plan waits for a table.
    """
    said_commit: str | None = None
    """The hash of the commit file of the version of the last acknowledgement, as it is now; None
    when the log does not hold it.
    """
    held: tuple[HeldRows, ...] | None = None
    """Rows of topics that no pipeline has loaded; None: not asked. It is asked only if a topic is
    planned for the first time.
    """
