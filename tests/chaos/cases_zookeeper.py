"""Rows 11 and 12: ZooKeeper restarted, a session expired, the data directory restored from an older
copy or emptied.

The pipelines of these cases keep their ledger in a separate ZooKeeper, so that changes of it affect
the ledger alone; one case restarts a ZooKeeper that has both.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from etl.io.zookeeper.session_requests import ZooKeeper as Session
from etl.run.live_services import LiveServices
from etl.testkit.cluster import ZooKeeper
from etl.testkit.server_process import wait_until
from tests.chaos.driver import Deed, Driver, kill_before, run_disturbed
from tests.chaos.stage import (
    CaseResult,
    Stage,
    both,
    ended,
    held,
    offsets_are_at_the_rows_ends,
    stopped,
    summary_of,
)
from tests.chaos.ways import children
from tests.command_result import CommandResult
from tests.system.driving import Pipeline, lose_session, session_at

DOWN_S = 1.5
_NOTICED_WITHIN_S = 30.0
_RECORDS = 200


@dataclass
class Apart:
    """A pipeline with its ledger in a separate ZooKeeper, one plan, and records to read."""

    stage: Stage
    pipeline: Pipeline
    server: ZooKeeper

    def __post_init__(self) -> None:
        self.pipeline.produce(_RECORDS)
        self.pipeline.ran()
        self.pipeline.produce(_RECORDS)

    def copy(self) -> Path:
        """The data folder as it is, taken while the server is down."""
        kept = self.server.folder / f"copy-{time.monotonic_ns()}"
        self.server.stop()
        shutil.copytree(self.server.folder / "data", kept)
        self.server.start()
        return kept

    def restore(self, copy: Path | None) -> None:
        """The server continues with that copy, or empty."""
        self.server.stop()
        shutil.rmtree(self.server.folder / "data")
        if copy:
            shutil.copytree(copy, self.server.folder / "data")
        self.server.start()

    def disturbed(self, verb: str, deed: Deed) -> CaseResult:
        """A run with that deed when the verb begins."""
        with self.stage.writing(self.pipeline):
            result = ended(run_disturbed(self.pipeline, verb, deed), 0, 6)
            after = held(self.pipeline)
            assert wait_until(self.server.is_ready, _NOTICED_WITHIN_S)
            next_run = self.pipeline.ran()
        return self.finish(after, both(result, next_run))

    def run_after(self, copy: Path | None) -> CaseResult:
        """The next run restores the ledger from the table."""
        self.restore(copy)
        after = held(self.pipeline)
        with self.stage.writing(self.pipeline):
            result = stopped(self.pipeline.run(), 0, "ledger_restored")
        return self.finish(after, result)

    def finish(self, after: str, next_run: CommandResult | str) -> CaseResult:
        """The check, and that every offset is where the table's rows end."""
        reported = self.stage.finish(self.pipeline, after, next_run)
        committed = self.pipeline.committed_at(f"{self.server.connect}/etl")
        offsets_are_at_the_rows_ends(self.pipeline, committed)
        return reported


def apart(stage: Stage) -> Apart:
    """A pipeline on the shared brokers with a ZooKeeper of its own."""
    server = stage.at_end.enter_context(ZooKeeper(stage.folder / "ledger"))
    pipeline = stage.pipeline(
        zookeeper={"connect": f"{server.connect}/etl", "session_timeout_s": 6},
        source={"bootstrap_servers": stage.cluster.bootstrap},
        # a session that was not closed keeps the driver lock until its timeout, and its process is
        # this one
        ledger={"lock_timeout_s": 30},
    )
    return Apart(stage, pipeline, server)


def restarted(stage: Stage, *, verb: str) -> CaseResult:
    """The server goes away when the verb begins, and comes back while it is under way."""
    case = apart(stage)
    return case.disturbed(verb, lambda world: down_for_a_while(stage, case.server))


def down_for_a_while(stage: Stage, server: ZooKeeper) -> None:
    """Kill a server, and start it some time later."""
    server.kill()
    back = threading.Timer(DOWN_S, server.start)
    back.start()
    stage.at_end.callback(back.join)


def expired(stage: Stage, *, verb: str) -> CaseResult:
    """Another client ends the driver's session, and the driver has noticed it."""
    case = apart(stage)
    return case.disturbed(verb, partial(end_session, case.server.connect))


def paused_past_its_session(stage: Stage) -> CaseResult:
    """The driver is stopped before it commits, its session expires by itself, and it wakes up."""
    case = apart(stage)
    pipeline = case.pipeline
    with stage.writing(pipeline), Driver(pipeline, sends=(signal.SIGSTOP, "commit")) as driver:
        driver.wait_until_paused()
        drivers = f"/etl/consumers/{pipeline.group}/etl/clicks/drivers"
        with session_at(case.server.connect) as client:
            assert wait_until(lambda: not children(client, drivers), _NOTICED_WITHIN_S), (
                "the session does not expire"
            )
        after = held(pipeline)
        driver.wake_all()
        result = stopped(driver.wait(), 0, "session_lost")
    return case.finish(after, result)


def restarted_with_the_brokers(stage: Stage) -> CaseResult:
    """One ZooKeeper for brokers and ledger, restarted while the rows are appended."""
    cluster = stage.another_cluster()
    pipeline = Apart(stage, stage.pipeline(cluster=cluster), cluster.zookeeper).pipeline
    with stage.writing(pipeline):
        result = run_disturbed(pipeline, "append", lambda world: cluster.zookeeper.restart())
        after = held(pipeline)
    return stage.finish(pipeline, after, f"the run itself: {summary_of(ended(result, 0, 6))}")


def end_session(connect: str, world: LiveServices) -> None:
    """End a session by its id and password; its owner has noticed it at the end."""
    session: Session = world.zookeeper
    lose_session(session, connect)
    assert wait_until(lambda: session.life.is_over, _NOTICED_WITHIN_S), (
        "the driver does not hear of its session's end"
    )


def older_copy(stage: Stage, *, killed_before: str | None = None) -> CaseResult:
    """A copy is made after a run or a kill, more runs follow, then it is restored."""
    case = apart(stage)
    if killed_before:
        kill_before(case.pipeline, killed_before)
    copy = case.copy()
    for _ in range(2):
        case.pipeline.ran()
        case.pipeline.produce(_RECORDS)
    return case.run_after(copy)


def emptied(stage: Stage, *, killed_before: str | None = None) -> CaseResult:
    """Everything in ZooKeeper is gone, after a run or where one was killed."""
    case = apart(stage)
    case.pipeline.ran()
    case.pipeline.produce(_RECORDS)
    if killed_before:
        kill_before(case.pipeline, killed_before)
    return case.run_after(None)
