"""Rows 11 and 12: ZooKeeper restarted, a session expired, an answer lost, the data directory
restored from an older copy or emptied.

The pipelines of these cases keep their ledger in a separate ZooKeeper, so that changes of it affect
the ledger alone; one case restarts a ZooKeeper that has both.
"""

from __future__ import annotations

import functools
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

from etl.commands import run
from etl.io.zookeeper.session_requests import ZooKeeper as Session
from etl.run.live_services import LiveServices
from etl.testkit.cluster import ZooKeeper
from etl.testkit.server_process import wait_until
from tests.chaos.cases_zombie import drivers_below
from tests.chaos.driver import Driver
from tests.chaos.stage import Case, CaseResult, Stage, held, summary_of
from tests.chaos.zookeeper_proxy import CREATE, CREATE2, MULTI, Chosen, Lost, ZooKeeperProxy
from tests.command_result import CommandResult
from tests.system.driving import Before, Pipeline
from tests.system.sessions import lose_session, session_at

_VERBS = ("observe", "store", "fetch", "append", "record", "commit", "tidy")
"""The calls in which a run's six verbs reach the outside."""
_DOWN_S = 1.5
_NOTICED_WITHIN_S = 30.0
_RECORDS = 200

Deed = Callable[[LiveServices], None]


@dataclass
class Apart:
    """A pipeline with its ledger in a separate ZooKeeper."""

    pipeline: Pipeline
    server: ZooKeeper

    def loaded(self) -> Apart:
        """One plan is in the table, and there is something new to read."""
        self.pipeline.produce(_RECORDS)
        self.pipeline.ran()
        self.pipeline.produce(_RECORDS)
        return self

    def offsets(self) -> dict[int, int]:
        """The committed offsets, as an old consumer would read them."""
        return self.pipeline.committed_at(f"{self.server.connect}/etl")

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

    def killed_before(self, verb: str) -> None:
        """A run in its own process that kills itself before that call."""
        with Driver(self.pipeline, sends=(signal.SIGKILL, verb)) as driver:
            result = driver.wait()
        assert result.code == -signal.SIGKILL, f"{summary_of(result)}\n{result.err}"


def apart(
    stage: Stage,
    *,
    through: Callable[[ZooKeeper], str] = lambda server: server.connect,
    partitions: int = 4,
) -> Apart:
    """A pipeline on the shared brokers with a ZooKeeper of its own, reached at the address that
    `through` gives.
    """
    server = stage.at_end.enter_context(ZooKeeper(stage.folder / "ledger"))
    zookeeper = {"connect": f"{through(server)}/etl", "session_timeout_s": 6}
    # a session that was not closed keeps the driver lock until its timeout, and its process is this
    # one
    waiting = {"lock_timeout_s": 30}
    pipeline = stage.pipeline(
        partitions,
        zookeeper=zookeeper,
        source={"bootstrap_servers": stage.cluster.bootstrap},
        ledger=waiting,
    )
    return Apart(pipeline, server)


# -- row 11
# --------------------------------------------------------------------------------------------------------------


def restarted(stage: Stage, *, verb: str) -> CaseResult:
    """The server goes away when the verb begins, and comes back while it is under way."""
    case = apart(stage).loaded()

    def down_for_a_while(world: LiveServices) -> None:
        case.server.kill()
        back = threading.Timer(_DOWN_S, case.server.start)
        back.start()
        stage.at_end.callback(back.join)

    return _disturbed(stage, case, verb, down_for_a_while)


def expired(stage: Stage, *, verb: str) -> CaseResult:
    """A client that knows its id and password ends the driver's session; the driver has noticed it
    when the verb begins.
    """
    case = apart(stage).loaded()
    return _disturbed(stage, case, verb, partial(end_session, case.server.connect))


def paused_past_its_session(stage: Stage) -> CaseResult:
    """The driver is stopped before it commits, its session expires by itself, and it wakes up."""
    case = apart(stage).loaded()
    with (
        stage.writing(case.pipeline),
        Driver(case.pipeline, sends=(signal.SIGSTOP, "commit")) as driver,
    ):
        driver.wait_until_paused()
        drivers = f"/etl/consumers/{case.pipeline.group}/etl/clicks/drivers"
        with session_at(case.server.connect) as client:
            assert wait_until(lambda: not drivers_below(client, drivers), _NOTICED_WITHIN_S), (
                "the session does not expire"
            )
        after = held(case.pipeline)
        driver.wake_all()
        result = driver.wait()
    assert result.code == 0 and "session_lost" in result.outcomes, (
        f"{summary_of(result)}\n{result.err}"
    )
    return finish_apart(stage, case, after, result)


def restarted_with_the_brokers(stage: Stage) -> CaseResult:
    """One ZooKeeper for brokers and ledger, restarted while the rows are appended."""
    cluster = stage.another_cluster()
    pipeline = stage.pipeline(cluster=cluster)
    case = Apart(pipeline, cluster.zookeeper).loaded()
    with stage.writing(pipeline):
        result = run_disturbed(pipeline, "append", lambda world: cluster.zookeeper.restart())
        after = held(pipeline)
    assert result.code in (0, 6), f"{summary_of(result)}\n{result.err}"
    del case
    return stage.finish(pipeline, after=after, next_run=f"the run itself: {summary_of(result)}")


def through_proxy(stage: Stage) -> tuple[Apart, ZooKeeperProxy]:
    """The same with a proxy in front of its ZooKeeper."""
    proxies: list[ZooKeeperProxy] = []

    def through(server: ZooKeeper) -> str:
        proxies.append(stage.at_end.enter_context(ZooKeeperProxy(server.port)))
        return proxies[0].connect

    return apart(stage, through=through), proxies[0]


def lost(
    stage: Stage, *, what: Lost, chosen: Chosen, first: bool = False, then: tuple[str, ...] = ()
) -> CaseResult:
    """The connection breaks in the middle of one request, once; `then` are the outcomes of which
    the next run has one.
    """
    case, proxy = through_proxy(stage)
    if first:
        case.pipeline.produce(_RECORDS)
    else:
        case.loaded()
    proxy.lose(what, chosen)
    with stage.writing(case.pipeline):
        result = case.pipeline.run()
        after = held(case.pipeline)
        assert proxy.happened.is_set(), "that request was not made"
        assert result.code in (0, 6), f"{summary_of(result)}\n{result.err}"
        next_run = case.pipeline.ran()
    assert not then or set(then) & set(next_run.outcomes), next_run.outcomes
    return finish_apart(
        stage,
        case,
        after,
        f"the run itself: {summary_of(result)}; the next: {summary_of(next_run)}",
    )


def end_session(connect: str, world: LiveServices) -> None:
    """Any client that knows a session's id and password can end it; its owner has noticed it when
    this returns.
    """
    session: Session = world.zookeeper
    lose_session(session, connect)
    assert wait_until(lambda: session.life.is_over, _NOTICED_WITHIN_S), (
        "the driver does not hear of its session's end"
    )


def is_multi(operation: int, frame: bytes) -> bool:
    """The transaction that moves offsets."""
    return operation == MULTI and b"/offsets/" in frame


def creates(what: bytes) -> Chosen:
    """The request that makes a znode below that one, alone or among others."""
    return lambda operation, frame: operation in (CREATE, CREATE2, MULTI) and what in frame


# -- row 12
# --------------------------------------------------------------------------------------------------------------


def older_copy(
    stage: Stage, *, taken_when_killed_before: str | None, runs_after: int = 2
) -> CaseResult:
    """The copy is made after a run, or after a run was killed; more runs follow, and then the copy
    is restored.
    """
    case = apart(stage).loaded()
    if taken_when_killed_before:
        case.killed_before(taken_when_killed_before)
    copy = case.copy()
    for _ in range(runs_after):
        case.pipeline.ran()
        case.pipeline.produce(_RECORDS)
    return _restored(stage, case, copy)


def emptied(stage: Stage, *, killed_before: str | None = None) -> CaseResult:
    """Everything in ZooKeeper is gone, after a run or where one was killed."""
    case = apart(stage).loaded()
    case.pipeline.ran()
    case.pipeline.produce(_RECORDS)
    if killed_before:
        case.killed_before(killed_before)
    return _restored(stage, case, None)


def _restored(stage: Stage, case: Apart, copy: Path | None) -> CaseResult:
    case.restore(copy)
    after = held(case.pipeline)
    with stage.writing(case.pipeline):
        result = case.pipeline.run()
    assert result.code == 0, f"{summary_of(result)}\n{result.err}"
    assert {"ledger_restored"} & set(result.outcomes), result.outcomes
    return finish_apart(stage, case, after, result)


# -- parts
# ---------------------------------------------------------------------------------------------------------------


def run_disturbed(
    pipeline: Pipeline, verb: str, deed: Deed, *, how: type[Before] = Before
) -> CommandResult:
    """The command, with that deed when the verb begins; by default the first time."""
    at_verb = how(verb, lambda: deed(at_verb.world))
    with mock.patch.object(run, "run", functools.partial(run.run, around=at_verb)):
        result = pipeline.run()
    assert at_verb.happened, f"the run did not come to {verb}: {summary_of(result)}\n{result.err}"
    return result


def _disturbed(stage: Stage, case: Apart, verb: str, deed: Deed) -> CaseResult:
    with stage.writing(case.pipeline):
        result = run_disturbed(case.pipeline, verb, deed)
        after = held(case.pipeline)
        assert result.code in (0, 6), f"{summary_of(result)}\n{result.err}"
        assert wait_until(case.server.is_ready, _NOTICED_WITHIN_S)
        next_run = case.pipeline.ran()
    return finish_apart(
        stage,
        case,
        after,
        f"the run itself: {summary_of(result)}; the next: {summary_of(next_run)}",
    )


def finish_apart(
    stage: Stage, case: Apart, after: str, next_run: CommandResult | str
) -> CaseResult:
    """The check, and that every offset is where the table's rows end."""
    reported = stage.finish(case.pipeline, after=after, next_run=next_run)
    ends: dict[int, int] = {}
    for partition, offset, _ in case.pipeline.in_table():
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    assert case.offsets() == ends, f"offsets {case.offsets()}, the table's rows end at {ends}"
    return reported


CASES: tuple[Case, ...] = (
    *(
        Case(
            11,
            f"zookeeper-restarted-during-{verb}",
            f"ZooKeeper killed when the run begins to {verb}, and back {_DOWN_S} s later",
            partial(restarted, verb=verb),
        )
        for verb in _VERBS
    ),
    Case(
        11,
        "zookeeper-restarted-with-the-brokers",
        "ZooKeeper of ledger and brokers restarted while rows are appended",
        restarted_with_the_brokers,
    ),
    *(
        Case(
            11,
            f"session-expired-before-{verb}",
            f"the driver's session expires before it begins to {verb}",
            partial(expired, verb=verb),
        )
        for verb in _VERBS
    ),
    Case(
        11,
        "paused-past-its-session",
        "the driver paused before it moves offsets until its session has expired, then it goes on",
        paused_past_its_session,
    ),
    Case(
        11,
        "answer-of-the-multi-lost",
        "connection cut after the server moved the offsets, before the answer came",
        partial(lost, what=Lost.ANSWER, chosen=is_multi),
    ),
    Case(
        11,
        "answer-of-the-first-multi-lost",
        "the same where the offsets' znodes are made",
        partial(lost, what=Lost.ANSWER, chosen=is_multi, first=True),
    ),
    Case(
        11,
        "multi-lost",
        "connection cut before the request that moves the offsets reached the server",
        partial(lost, what=Lost.REQUEST, chosen=is_multi, then=("plan_completed",)),
    ),
    Case(
        11,
        "answer-lost-when-the-plan-was-stored",
        "connection cut after the plan was stored, before the answer came",
        partial(lost, what=Lost.ANSWER, chosen=creates(b"/plans/")),
    ),
    Case(
        11,
        "answer-lost-when-the-lock-was-taken",
        "connection cut after the driver's lock was taken, before the answer came",
        partial(lost, what=Lost.ANSWER, chosen=creates(b"/drivers/")),
    ),
    Case(
        11,
        "plan-lost-on-its-way",
        "connection cut before the plan reached the server",
        partial(lost, what=Lost.REQUEST, chosen=creates(b"/plans/")),
    ),
    Case(
        12,
        "copy-from-before-the-plan",
        "ZooKeeper restored from a copy taken before the last two plans",
        partial(older_copy, taken_when_killed_before=None),
    ),
    Case(
        12,
        "copy-with-the-plan-stored",
        "ZooKeeper restored from a copy taken when a plan was stored and not yet executed",
        partial(older_copy, taken_when_killed_before="fetch"),
    ),
    Case(
        12,
        "copy-with-the-plan-committed",
        "ZooKeeper restored from a copy taken when a plan was in the table and not recorded",
        partial(older_copy, taken_when_killed_before="record"),
    ),
    Case(
        12,
        "copy-with-offsets-not-moved",
        "ZooKeeper restored from a copy taken when a plan was recorded and no offset moved",
        partial(older_copy, taken_when_killed_before="commit"),
    ),
    Case(12, "emptied", "everything in ZooKeeper deleted", emptied),
    Case(
        12,
        "emptied-with-a-plan-stored",
        "everything deleted where a plan was stored and not yet executed",
        partial(emptied, killed_before="fetch"),
    ),
    Case(
        12,
        "emptied-with-a-plan-committed",
        "everything deleted where a plan was in the table and not recorded",
        partial(emptied, killed_before="record"),
    ),
)
