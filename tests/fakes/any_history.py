"""Random histories of one pipeline: everything that may happen to it, and what must hold.

The machine drives the real `ingest`, `backfill`, `replay` and the decisions of operator commands
over the fake services. Partitions grow, are truncated, recreated and cut off by retention; drivers
crash, lose their session or sleep at any moment while others work; other clients commit offsets;
operators set and skip offsets, pause, backfill and replay; another pipeline loads and replays its
own topic in the same table; older copies of ZooKeeper and of the table are put back.

After each rule no record is in the table twice, and no committed offset is ahead of a missing
record. A run without an error has loaded everything. An error may stop a run if there is a reason
for it. In the end, with the commands that errors advise, a run comes to
`up to date`; then nothing is missing but what was passed over or has expired, and plans state it.

Not among the rules: group members, Jafka, run keys and `etl pipelines inherit`; drivers that work
while a copy of ZooKeeper is put back; two copies put back without a complete run in between; and a
copy of ZooKeeper from before an operator accepted an older copy of the table.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import note
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from etl.commands.restore_ledger import restore_from_commits
from etl.decide.backfill import BackfillRequest
from etl.decide.next_step import plan_superseding
from etl.decide.partition_owners import leave_to_owners
from etl.decide.reconcile import where_we_stand
from etl.decide.replay import ReplayRequest
from etl.decide.restore_ledger import Lost, find_lost_part
from etl.decide.set_offsets import pausing, resuming
from etl.errors import BadOffset, DataLoss, EtlError, NeedsDecision, OffsetMoved
from etl.model.partitions import Named, TopicPartition, parse_named, render_partition
from etl.model.plans import Loss, LossReason, OffsetRange, PlanKind
from etl.model.snapshot import Resume, StoredBackfill, Supersede
from etl.report.run_progress import Outcome
from etl.run.ingest import ingest
from etl.run.replay import replay
from etl.settings.choices import OnOffsetChanged, StartAt
from etl.settings.sections import Settings
from tests.builders import pending_offsets_of, plain_plan
from tests.fakes.backfill_stories import accept_table, backfill_request, filled
from tests.fakes.fake_log import FakeLog
from tests.fakes.outside import CLUSTER, FakeCommit, Outside
from tests.fakes.record_oracle import RecordOracle
from tests.fakes.sleeping_driver import At, Driver, Fate
from tests.fakes.stories import accept, new_report, outcomes, set_to, settings_of
from tests.fakes.world import FakeWorld

LOGS = (TopicPartition("clicks", 0), TopicPartition("clicks", 1), TopicPartition("clicks-2", 0))
TOPICS = ("clicks", "clicks-2")
OTHER_APP_ID = f"offset-range-etl/{CLUSTER}/others/orders"
OTHER_LOG = TopicPartition("orders", 0)
SLEEPERS_MAX = 2
COMMANDS_MAX = 3
"""Commands that an error may need one after the other."""
EVENTS = (
    "grow",
    "truncate",
    "recreate",
    "expire",
    "another client",
    "set",
    "supersede",
    "restore table",
)
REPAIRS_MAX = 60
"""Runs and commands until the pipeline must be up to date: a plan has few of its records."""

partitions = st.sampled_from(LOGS)
counts = st.integers(1, 4)
offsets = st.integers(0, 12)
moments = st.integers(0, 28)
interrupted = st.tuples(st.sampled_from((Fate.CRASH, Fate.FAIL, Fate.SLEEP)), moments)
fates = st.one_of(st.just((Fate.NOTHING, 0)), interrupted)
backfills = st.sampled_from(("old", "older"))
Moment = tuple[Fate, int]
END: Moment = (Fate.NOTHING, 0)


def has_plan(machine: Pipeline) -> bool:
    return bool(machine.outside.plans)


def has_stored_plan(machine: Pipeline) -> bool:
    newest = machine.outside.newest_plan()
    return newest is not None and newest.number > machine.outside.transaction_version()


def _loaded_by_another(machine: Pipeline) -> int:
    """The offset until which the other pipeline has loaded its topic; 0: nothing."""
    commits = machine.outside.table or ()
    loaded = [one.plan.loaded_until for one in commits if one.app_id == OTHER_APP_ID]
    return max((positions[OTHER_LOG] for positions in loaded), default=0)


class Pipeline(RuleBasedStateMachine):
    """One pipeline, and everything that happens to it."""

    def __init__(self) -> None:
        super().__init__()
        self.outside = Outside({partition: FakeLog(end=4) for partition in LOGS})
        self.outside.topic_ids = {topic: f"{topic}-id-1" for topic in TOPICS}
        self.oracle = RecordOracle(self.outside)
        self.settings = settings_of()
        self.logs_per_request = 2
        self.sleepers: list[Driver] = []
        self.numbers = itertools.count(1)
        self.followed: dict[TopicPartition, int] = {}
        """Offsets of other clients that runs may continue from."""
        self.error: EtlError | None = None
        """The last error of a command that nothing happened to."""
        self.is_troubled = False
        """Whether something happened that may stop a run."""
        self.is_restored = False
        """Whether a copy was put back since the last complete run."""
        self.copies = [self.outside.zookeeper.persistent()]
        """Of ZooKeeper, since an operator last accepted a table; the first one is empty."""
        self.tables: list[list[FakeCommit]] = []

    @initialize(
        on_data_loss=st.sampled_from(("fail", "skip")),
        on_offset_changed=st.sampled_from(("fail", "follow")),
        starts=st.sampled_from(("earliest", "latest")),
        cap=st.sampled_from((None, 4)),
        logs_per_request=st.sampled_from((1, 2)),
        runs_first=st.booleans(),
    )
    def begin(
        self,
        on_data_loss: str,
        on_offset_changed: str,
        starts: str,
        cap: int | None,
        logs_per_request: int,
        runs_first: bool,
    ) -> None:
        self.settings = settings_of(
            on_data_loss=on_data_loss,
            on_offset_changed=on_offset_changed,
            starting_offsets=starts,
            limits={"max_records_per_plan": cap},
        )
        self.logs_per_request = logs_per_request
        if runs_first:
            self._run()
            self.tables.append(list(self.outside.table or ()))

    # -- partitions

    @rule(partition=partitions, count=counts, hole=st.booleans())
    def grow(self, partition: TopicPartition, count: int, hole: bool) -> None:
        """Records are produced; the first offset may be a marker without a record."""
        found = self.outside.logs[partition]
        if hole:
            found.missing.add(found.end)
        found.grow(count)

    @rule(partition=partitions, count=counts, again=st.integers(0, 6))
    def truncate(self, partition: TopicPartition, count: int, again: int) -> None:
        """Another leader lacks the last records, and takes new ones."""
        found = self.outside.logs[partition]
        at = max(found.log_start, found.end - count)
        if at == found.end:
            return
        found.cut(at)
        found.grow(again)
        self.oracle.truncated(partition, at)
        self.is_troubled = True

    @rule(topic=st.sampled_from(TOPICS), count=counts)
    def recreate(self, topic: str, count: int) -> None:
        for partition in LOGS:
            if partition.topic == topic:
                self.outside.logs[partition] = self.outside.logs[partition].recreated()
                self.outside.logs[partition].grow(count)
                self.oracle.truncated(partition, 0)
        self.outside.topic_ids[topic] = f"{topic}-id-{next(self.numbers) + 1}"
        self.is_troubled = True

    @rule(partition=partitions, count=counts)
    def expire(self, partition: TopicPartition, count: int) -> None:
        found = self.outside.logs[partition]
        start = min(found.end, found.log_start + count)
        self.oracle.expires(partition, start)
        found.log_start = start
        self.is_troubled = True

    # -- drivers

    @rule()
    def run(self) -> None:
        self._run()

    @rule(partition=partitions, count=counts)
    def grow_and_run(self, partition: TopicPartition, count: int) -> None:
        self.outside.logs[partition].grow(count)
        self._run()

    @rule(partition=partitions, count=counts, fate=interrupted)
    def grow_and_interrupt(self, partition: TopicPartition, count: int, fate: Moment) -> None:
        """A run with new records to which something happens."""
        self.outside.logs[partition].grow(count)
        self._run(fate)

    @rule(partition=partitions, count=counts, moment=moments)
    def crash_and_run(self, partition: TopicPartition, count: int, moment: int) -> None:
        """A run crashes, the partition grows, and the next run finishes what was left."""
        self.outside.logs[partition].grow(count)
        self._run((Fate.CRASH, moment))
        self.outside.logs[partition].grow(count)
        self._run()

    @rule(partition=partitions, count=counts, moment=moments, fate=fates)
    def overtake(self, partition: TopicPartition, count: int, moment: int, fate: Moment) -> None:
        """A run sleeps while another one works, and then goes on."""
        self.outside.logs[partition].grow(count)
        self._run((Fate.SLEEP, moment))
        slept = self.sleepers[-1:]
        self.outside.logs[partition].grow(count)
        self._run(fate)
        self._wake(slept)

    @rule(
        partition=partitions,
        count=counts,
        fate=st.tuples(st.sampled_from((Fate.CRASH, Fate.SLEEP)), moments),
        event=st.sampled_from(EVENTS),
    )
    def run_meanwhile(
        self, partition: TopicPartition, count: int, fate: Moment, event: str
    ) -> None:
        """A run crashes or sleeps, and something happens before the next one goes on."""
        self.outside.logs[partition].grow(count)
        self._run(fate)
        slept = self.sleepers[-1:] if fate[0] is Fate.SLEEP else []
        self._happens(event, partition, count)
        self._wake(slept)
        self._run()

    def _wake(self, drivers: list[Driver]) -> None:
        for driver in drivers:
            if driver in self.sleepers:
                self._go_on(driver, END)

    def _happens(self, event: str, partition: TopicPartition, count: int) -> None:
        if event == "truncate":
            self.truncate(partition, count, count)
        elif event == "recreate":
            self.recreate(partition.topic, count + 4)
        elif event == "expire":
            self.expire(
                partition,
                self.outside.logs[partition].end - self.outside.logs[partition].log_start - 1,
            )
        elif event == "another client":
            self.another_client_commits(partition, 0)
        elif event == "set" and has_plan(self):
            self.set_offsets(partition, 0, END)
        elif event == "supersede" and has_stored_plan(self):
            self.supersede((0, count), END)
        elif event == "restore table" and self.tables and not self.is_restored:
            self.restore_table(0)
        else:
            self.grow(partition, count, hole=False)

    @precondition(lambda self: self.sleepers)
    @rule(place=st.integers(0, SLEEPERS_MAX - 1), fate=fates)
    def wake(self, place: int, fate: Moment) -> None:
        self._go_on(self.sleepers[place % len(self.sleepers)], fate)

    def _run(self, fate: Moment = END) -> list[Outcome]:
        report = new_report()
        run_id = f"run-{next(self.numbers)}"
        per_request = self.logs_per_request
        now = self.settings

        def work(at: At) -> None:
            world = FakeWorld(
                self.outside,
                now,
                at,
                logs_per_request=per_request,
                run_id=run_id,
                reads_first=True,
            )
            ingest(world, now, report)

        driver = self._drive(run_id, work, fate)
        if driver.is_over and not driver.is_disturbed:
            assert driver.error is None or self.is_troubled, f"without a reason: {driver.error}"
            self.error = driver.error
            if driver.error is None:
                self._reject_incomplete(outcomes(report))
        return outcomes(report)

    def _reject_incomplete(self, reported: list[Outcome]) -> None:
        """Check what a run without an error promises: that nothing is missing."""
        committed = {
            partition: found.offset or 0 for partition, found in self.outside.committed().items()
        }
        paused = {one.partition for one in self.outside.pauses}
        read = [partition for partition in LOGS if partition not in paused]
        below = {partition: committed.get(partition, 0) for partition in LOGS}
        has_cap = self.settings.limits.max_records_per_plan is not None
        is_cut = has_cap and Outcome.LIMIT_REACHED in reported
        if not is_cut:
            for partition in read:
                below[partition] = self.outside.logs[partition].end
        for partition in self.oracle.unsettled.difference(read):
            below[partition] = 0
        self.oracle.reject_missing(below=below)
        self.oracle.observed(read)
        for partition in read:
            self.followed.pop(partition, None)
        if not paused and not is_cut:
            self.is_troubled = False
        self.is_restored = False

    def _drive(self, name: str, work: Callable[[At], None], fate: Moment) -> Driver:
        """A command begins; what became of it."""
        if fate[0] is Fate.SLEEP and len(self.sleepers) == SLEEPERS_MAX:
            fate = (Fate.CRASH, fate[1])
        driver = Driver(name, work)
        self.sleepers.append(driver)
        self._go_on(driver, fate)
        return driver

    def _go_on(self, driver: Driver, fate: Moment) -> None:
        self._expect_starts()
        driver.go_on(*fate)
        note(f"  {driver.name} is at: {driver.place}; {driver.error or ''}")
        if not driver.is_over:
            self.outside.owners.clear()
            return
        self.sleepers.remove(driver)

    def _kill_sleepers(self) -> None:
        for driver in self.sleepers:
            driver.go_on(Fate.CRASH)
        self.sleepers.clear()

    def _expect_starts(self) -> None:
        """The conf, and offsets that other clients committed, decide where partitions start."""
        newest = self.outside.newest_plan()
        known = newest.loaded_until if newest else {}
        starts_at_latest = self.settings.source.starting_offsets is StartAt.LATEST
        if newest is None and starts_at_latest and not self.outside.commits():
            self.oracle.excuse_all()
        for partition, found in self.outside.committed().items():
            if partition not in known:
                self.oracle.excuse_below(partition, found.offset or 0)
        for partition, offset in self.followed.items():
            self.oracle.pass_over(partition, 0, offset)
        # A start that was decided while the partition was paused stays, also after a truncation.
        plans = [commit.plan for _, commit in self.outside.commits()[-1:]]
        if newest:
            plans.append(newest)
        for plan in plans:
            for partition, offset in pending_offsets_of(plan).items():
                self.oracle.excuse_below(partition, offset)

    # -- other clients, operators, and servers

    @rule(partition=partitions, back=st.integers(0, 6))
    def another_client_commits(self, partition: TopicPartition, back: int) -> None:
        """Another member or tool of the group commits an offset."""
        offset = max(0, self.outside.logs[partition].end - back)
        self.outside.move_offset(partition, offset)
        follows = self.settings.group.on_offset_changed is OnOffsetChanged.FOLLOW
        newest = self.outside.newest_plan()
        if newest is None or partition not in newest.loaded_until:
            self.oracle.excuse_below(partition, offset)
        elif follows:
            self.followed[partition] = offset
        self._trouble(partition)

    @precondition(has_plan)
    @rule(partition=partitions, back=st.integers(0, 6), fate=fates)
    def set_offsets(self, partition: TopicPartition, back: int, fate: Moment) -> None:
        found = self.outside.logs[partition]
        to = max(found.log_start, found.end - back)
        targets: dict[str, Any] = {"abc"[LOGS.index(partition)]: to}
        passed_over = set(self.oracle.passed_over)
        self.oracle.pass_over(partition, 0, to)

        def work(at: At) -> None:
            set_to(self.outside, self.settings, at, **targets)

        driver = self._drive("set offsets", work, fate)
        if driver.is_over and driver.error and not driver.is_disturbed:
            self.oracle.passed_over = passed_over

    @rule(partition=partitions)
    def pause(self, partition: TopicPartition) -> None:
        named, now = [Named(partition.topic, partition)], self.outside.now_ms
        self.outside.pauses = pausing(
            self.outside.pauses, named, LOGS, reason="seen", by="kim@host", now_ms=now
        ).pauses

    @precondition(lambda self: self.outside.pauses)
    @rule()
    def resume(self) -> None:
        named = [Named(one.topic, one.partition) for one in self.outside.pauses[:1]]
        self.outside.pauses = resuming(self.outside.pauses, named, LOGS).pauses

    @precondition(has_stored_plan)
    @rule(skip=st.one_of(st.none(), st.tuples(st.integers(0, 2), counts)), fate=fates)
    def supersede(self, skip: tuple[int, int] | None, fate: Moment) -> None:
        """`etl plans supersede`, with the first offsets of one of its ranges left out or not."""
        skips: tuple[Loss, ...] = ()
        passed_over = set(self.oracle.passed_over)
        stored = self.outside.newest_plan()
        if skip and stored and stored.ranges:
            place, count = skip
            r = stored.ranges[place % len(stored.ranges)]
            until = min(r.until_offset, r.from_offset + count)
            skips = (Loss(r.partition, r.from_offset, until, LossReason.SKIPPED),)
            self.oracle.pass_over(r.partition, r.from_offset, until)
        settings = self.settings

        def work(at: At) -> None:
            world = FakeWorld(self.outside, settings, at)
            snapshot = leave_to_owners(world.observe(), settings)
            state = where_we_stand(snapshot, settings)
            newest = snapshot.ledger.newest
            if newest is None or not isinstance(state, (Resume, Supersede, StoredBackfill)):
                raise NeedsDecision("there is nothing to supersede")
            plan = plan_superseding(
                Supersede(newest, "seen", skips), snapshot, settings, now_ms=world.now_ms()
            )
            world.supersede(plan, snapshot.ledger)

        driver = self._drive("supersede", work, fate)
        if driver.is_over and driver.error and not driver.is_disturbed:
            self.oracle.passed_over = passed_over

    @precondition(has_plan)
    @rule(
        partition=partitions,
        start=offsets,
        count=counts,
        only_missing=st.booleans(),
        name=backfills,
        fate=fates,
    )
    def backfill(
        self,
        partition: TopicPartition,
        start: int,
        count: int,
        only_missing: bool,
        name: str,
        fate: Moment,
    ) -> None:
        """`etl backfills run` of an interval; of one that has begun: the rest."""
        found = self.outside.logs[partition]
        start = min(start, max(found.end - 1, 0))
        until = max(start + 1, min(start + count, found.end))
        request = backfill_request(
            start, until, render_partition(partition), only_missing=only_missing
        )
        self._backfill(name, None if name in self.outside.backfills else request, fate)

    def _backfill(self, name: str, request: BackfillRequest | None, fate: Moment) -> Driver:
        run_id = f"run-{next(self.numbers)}"
        settings = self.settings

        def work(at: At) -> None:
            filled(
                self.outside,
                request,
                at,
                name=name,
                settings=settings,
                run_id=run_id,
                reads_first=True,
            )

        return self._drive(f"backfill {name}", work, fate)

    @precondition(has_plan)
    @rule(partition=partitions, start=offsets, count=counts, moment=moments)
    def replace_backfill(
        self, partition: TopicPartition, start: int, count: int, moment: int
    ) -> None:
        """A backfill sleeps; it is deleted, another one loads its offsets, and it goes on."""
        self.backfill(partition, start, count, True, "old", (Fate.SLEEP, moment))
        slept = self.sleepers[-1:]
        if slept:
            self.outside.backfills.pop("old", None)
            self.backfill(partition, start, count, True, "older", END)
        self._wake(slept)

    @precondition(lambda self: self.outside.backfills)
    @rule(name=backfills)
    def delete_backfill(self, name: str) -> None:
        self.outside.backfills.pop(name, None)

    @precondition(has_plan)
    @rule(
        partition=partitions, start=offsets, count=counts, only_retained=st.booleans(), fate=fates
    )
    def replay(
        self, partition: TopicPartition, start: int, count: int, only_retained: bool, fate: Moment
    ) -> None:
        newest = self.outside.newest_plan()
        position = newest.loaded_until.get(partition, 0) if newest else 0
        start = min(start, max(position - 1, 0))
        count = min(count, position - start) or 1
        request = ReplayRequest(
            (parse_named(render_partition(partition)),), start, start + count, only_retained
        )
        run_id = f"run-{next(self.numbers)}"
        settings = self.settings

        def work(at: At) -> None:
            world = FakeWorld(self.outside, settings, at, run_id=run_id, reads_first=True)
            replay(world, settings, new_report(), request, "seen")

        self._drive("replay", work, fate)

    @precondition(lambda self: self.outside.commits())
    @rule(count=counts, replays=st.booleans())
    def another_pipeline(self, count: int, replays: bool) -> None:
        """Another pipeline of the table loads its own topic, and may replay it."""
        start = _loaded_by_another(self)
        self._commit_of_another(PlanKind.INGEST, start, start + count)
        if not replays:
            return
        table = []
        for commit in self.outside.table or ():
            if commit.app_id == OTHER_APP_ID:
                commit = replace(commit, replaced=frozenset(commit.rows))
            table.append(commit)
        self.outside.table = table
        self._commit_of_another(PlanKind.REPLAY, 0, start + count)

    def _commit_of_another(self, kind: PlanKind, start: int, until: int) -> None:
        number = 1 + sum(one.app_id == OTHER_APP_ID for one in self.outside.table or ())
        ranges = (OffsetRange(OTHER_LOG, start, until),)
        plan = plain_plan(number, kind=kind, ranges=ranges, loaded_until={OTHER_LOG: until})
        rows = tuple((OTHER_LOG, at) for at in range(start, until))
        commit = FakeCommit(plan, rows, "another run", OTHER_APP_ID)
        self.outside.table = [*(self.outside.table or ()), commit]

    @rule()
    def back_up(self) -> None:
        self.copies.append(self.outside.zookeeper.persistent())
        self.tables.append(list(self.outside.table or ()))

    @precondition(lambda self: not self.is_restored)
    @rule(place=st.integers(0, 3))
    def restore_zookeeper(self, place: int) -> None:
        """Restore an older copy of ZooKeeper. All runs end first, as docs/guides/exit-5.md demands."""
        self.copies = self.copies[: place + 1]
        self._kill_sleepers()
        self.outside.zookeeper.restore(self.copies[-1])
        self.oracle.expired.clear()
        self.is_restored = True
        self._trouble(*LOGS)

    @precondition(lambda self: self.tables and not self.is_restored)
    @rule(place=st.integers(0, 3))
    def restore_table(self, place: int) -> None:
        self.is_restored = True
        self.tables = self.tables[: place + 1]
        if self.outside.table is not None:
            self.outside.table = list(self.tables[-1])
        self._trouble(*LOGS)

    @precondition(lambda self: self.error)
    @rule()
    def follow_advice(self) -> None:
        """An operator does what the last error advised, if it still helps."""
        error, self.error = self.error, None
        try:
            if error:
                self._decide(error)
        except EtlError:
            pass

    def _trouble(self, *changed: TopicPartition) -> None:
        self.oracle.changed(changed)
        self.is_troubled = True

    # -- what must hold

    @invariant()
    def nothing_is_doubled_or_passed_over(self) -> None:
        self.oracle.reject_doubled()
        self.oracle.reject_passed_over()

    def teardown(self) -> None:
        """Sleeping drivers are gone. With what errors advise, the pipeline is up to date."""
        self._kill_sleepers()
        self.outside.owners.clear()
        self.outside.pauses = ()
        for _ in range(REPAIRS_MAX):
            self.error = None
            reported = self._run()
            if self.error is not None:
                self._repair(self.error)
            elif reported == [Outcome.UP_TO_DATE]:
                break
            self.nothing_is_doubled_or_passed_over()
        else:
            raise AssertionError(f"the pipeline does not come to an end: {self.error}")
        self.oracle.reject_missing()
        self.oracle.reject_unstated()

    def _repair(self, error: EtlError, *, depth: int = 0) -> None:
        """Do what the error advises; and first what the advised command's own error advises."""
        try:
            self._decide(error)
        except EtlError as refusal:
            if depth == COMMANDS_MAX:
                raise
            self._repair(refusal, depth=depth + 1)

    def _decide(self, error: EtlError) -> None:
        to_delete = re.search(r"etl backfills delete CONF (\S+)", error.action)
        named = re.search(r"etl topics accept-changes CONF -p (\S+?)[,;]? ", error.action)
        if isinstance(error, DataLoss):
            self.settings = _skipping(self.settings)
        elif to_delete:
            self.outside.backfills.pop(to_delete[1], None)
        elif named:
            self._accept(named[1])
        elif isinstance(error, BadOffset):
            partition = TopicPartition(error.where["topic"], error.where["partition"])
            self.outside.offsets.pop(partition, None)
        elif "etl table accept-changes CONF" in error.action:
            newest = self.outside.newest_plan()
            if newest is None:
                raise NeedsDecision("there is no plan yet", action="Run `etl run CONF`")
            self.oracle.excuse_given_up(newest.loaded_until)
            accept_table(self.outside, settings=self.settings)
            self.copies = [self.outside.zookeeper.persistent()]
        elif "etl ledger restore CONF" in error.action:
            restore_ledger(self.outside, self.settings)
        elif error.retriable or isinstance(error, OffsetMoved) or "etl run CONF" in error.action:
            self._run()
        else:
            raise AssertionError(f"no advice in: {error}")

    def _accept(self, name: str) -> None:
        """`etl topics accept-changes`, with the offset that brokers do not report."""
        try:
            accept(self.outside, name, settings=self.settings)
        except EtlError as error:
            partition, newest = parse_named(name).partition, self.outside.newest_plan()
            if "--truncated-at" not in error.action or partition is None or newest is None:
                raise
            at = min(self.oracle.cut_at[partition], newest.loaded_until[partition])
            accept(self.outside, name, at_offset=at, settings=self.settings)


def restore_ledger(outside: Outside, settings: Settings) -> None:
    """What `etl ledger restore` does, as long as the table's log has the plans."""
    world = FakeWorld(outside, settings)
    snapshot = leave_to_owners(world.observe(), settings)
    lost, _ = find_lost_part(snapshot, settings)
    if lost in (Lost.LEDGER, Lost.OFFSETS):
        restore_from_commits(world, snapshot, settings, "seen", "run-of-operator")


def _skipping(settings: Settings) -> Settings:
    source = settings.source.model_copy(update={"on_data_loss": "skip"})
    return settings.model_copy(update={"source": source})
