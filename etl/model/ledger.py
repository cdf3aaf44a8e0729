"""What ZooKeeper holds of one pipeline: its newest plan and what came of it, what pruned plans
leave, and what operators said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from etl.model.bounds import KeptKey
from etl.model.logs import BrokerPartition
from etl.model.losses import ReadByOthers, Vanished
from etl.model.plans import Plan
from etl.model.receipts import Applied
from etl.model.table import ForeignCommit


@dataclass(frozen=True, slots=True)
class Interval:
    """A loaded interval [from, until) of one log, the rows that it gave, and why its other offsets
    gave none.
    """

    from_offset: int
    until_offset: int
    rows: int | None
    """None: nobody could count them."""
    control_records: int = 0
    aborted_records: int = 0
    compacted: int = 0
    log_epoch: int = 0
    unproven: int = 0
    """Offsets without a row where a transform may have dropped a record, and nobody knows; of a
    physical log all bytes of such ranges.
    """

    @property
    def unexplained(self) -> int:
        """Offsets without a row for which nobody knows any more why."""
        if self.rows is None:
            return 0
        explained = self.rows + self.control_records + self.aborted_records + self.compacted
        return max(0, self.until_offset - self.from_offset - explained)


@dataclass(frozen=True, slots=True)
class Coverage:
    """What pruned plans leave: the loaded intervals per log, merged."""

    through: int = 0
    """The number of the last plan folded in; a plan at or below it is never folded in again."""
    intervals: Mapping[BrokerPartition, tuple[Interval, ...]] = field(default_factory=dict)
    removals: tuple[ForeignCommit, ...] = ()
    """Commits of others that removed rows and that policy let pass."""
    table_id: str | None = None
    """The table that holds the intervals; None: not known, from before this was kept."""
    vanished: tuple[Vanished, ...] = ()
    """What resets said of rows whose records are gone."""
    given_up: Mapping[BrokerPartition, tuple[Interval, ...]] = field(default_factory=dict)
    """Loaded into a table, or a state of it, that an operator gave up: rows of it may be there or
    not.
    """
    held_through: int | None = None
    """The last folded plan that was not given up; None: that is `through`."""
    unproven_through: int = 0
    """The newest of the folded plans of which not everything can be proven; 0: there is none."""
    keys: tuple[KeptKey, ...] = ()
    """Run keys of folded plans, and of runs that had nothing to read, oldest first."""
    read_by_others: tuple[ReadByOthers, ...] = ()
    """What folded plans say that other members of the group read, by log, those that touch made
    one.
    """


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """An operator's decision: this table, as it is at this version, is the one to go on with."""

    table_id: str | None
    """None: there is no table, and the next plan makes one."""
    delta_version: int | None
    number: int
    """The newest plan when it was given; later plans need one of their own."""
    reason: str
    at_ms: int
    lacks_plan: bool = False
    """No row of plan `number` is in that table: neither ledger could tell, so the rows were looked
    for.
    """
    plan_id: str | None = None
    """The id of plan `number` when it was said; None in an acknowledgement from before this was
    kept, and so are the next two.
    """
    transaction_version: int | None = None
    """D when it was said, 0 for none."""
    was_recorded: bool | None = None
    """Whether it was recorded by then what came of plan `number`."""
    commit: str | None = None
    """The hash of that version's commit file; None where the table's log did not hold it, or from
    before this was kept.
    """
    place: str | None = None
    """Where that table, or none, was, as `settings.places.place_of` says it; None from before this
    was kept.
    """
    beside: Mapping[str, Acknowledgement] = field(default_factory=dict)
    """The same decision for each backfill that has loaded into that very table, by name: what it
    says is of the backfill's newest plan.
    """

    rows_of: tuple[str, ...] = ()
    """Topics whose rows in that table, written by somebody else, are of another cluster or another
    life of the topic.
    """

    def of_backfill(self, name: str) -> Acknowledgement:
        """As a backfill takes it: what others did to the table is accepted for all; of one that was
        begun since it says no more.
        """
        return self.beside.get(name) or replace(self, number=-1, beside={})


@dataclass(frozen=True, slots=True)
class Retirement:
    """An operator's decision: this pipeline loads no more."""

    reason: str
    at_ms: int
    taken_over_by: str | None = None
    """`GROUP/PIPELINE` that goes on in its place: this one's own positions are of the past."""


@dataclass(frozen=True, slots=True)
class Pause:
    """An operator's decision: a topic, or one log of it, keeps its position and gets no range until
    it is resumed.
    """

    topic: str
    log: BrokerPartition | None
    """None: all logs of the topic, those that come later, too."""
    reason: str
    by: str
    """Who said so: `user@host`."""
    since_ms: int

    def covers(self, log: BrokerPartition) -> bool:
        """Whether the log is paused by it."""
        return log.topic == self.topic and self.log in (None, log)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The numbered plans of one pipeline as ZooKeeper holds them."""

    uid: str | None = None
    """None: this pipeline never made a plan."""
    newest: Plan | None = None
    applied: Applied | None = None
    """What came of `newest`; None when it is not known yet."""
    known_version: int | None = None
    """The Delta version of the newest recorded commit, of `newest` or of the plan before it: who
    wrote what is known up to there.
    """
    newest_version: int | None = None
    """The version of `newest`'s znode: the expected side when the plan is superseded."""
    acknowledged: Acknowledgement | None = None
    """The last acknowledgement by an operator of what others did to the table."""
    retired: Retirement | None = None
    """Why this pipeline loads no more; None while it is in service."""
