"""Row 43: a table has rows of the topic from before plan 1; the commands that lead out are killed,
and so is the run after them.
"""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass
from functools import partial

from deltalake import DeltaTable, write_deltalake

from etl.cli import main
from tests.chaos.driver import Driver
from tests.chaos.sources import stopped
from tests.chaos.stage import Case, CaseResult, Stage, checked, held, summary_of
from tests.system.driving import Pipeline
from tests.traffic.rows import Row, hash_of

_BEFORE = 240
_RESTORE = ("ledger", "restore"), ("--yes", "--reason", "a query wrote them")


@dataclass(frozen=True, slots=True)
class _NextLife:
    """The topic, and the rows of the table that were loaded in the second life of its logs."""

    pipeline: Pipeline

    def in_topic(self) -> Counter[Row]:
        return self.pipeline.in_topic()

    def in_table(self) -> Counter[Row]:
        columns = ["partition", "offset", "value", "incarnation"]
        rows = DeltaTable(str(self.pipeline.table)).to_pyarrow_table(columns=columns).to_pylist()
        return Counter(
            (row["partition"], row["offset"], hash_of(row["value"]))
            for row in rows
            if row["incarnation"] == 1
        )


def _on_a_table_with_rows(stage: Stage) -> Pipeline:
    """A new pipeline whose table has rows of another writer: the first records of the topic."""
    old = stage.pipeline()
    old.produce(_BEFORE)
    old.ran()
    heir = old.under("heir")
    heir.settings = {**old.settings, "table": {"path": str(heir.table)}}
    write_deltalake(str(heir.table), DeltaTable(str(old.table)).to_pyarrow_table())
    heir.produce(160)
    stopped(heir.run(), 5, "no plan of this pipeline loaded")
    return heir


def _say(heir: Pipeline, words: tuple[str, ...], arguments: tuple[str, ...], dies_at: str) -> None:
    typed = [*words, str(heir.conf), *arguments]
    if dies_at:
        child = heir.start("tests.chaos.dying_command", dies_at, *typed)
        _, err = child.communicate(timeout=180)
        assert child.returncode == -signal.SIGKILL, f"exit {child.returncode}\n{err}"
    assert main(typed) == 0


def _killed_before(heir: Pipeline, verb: str) -> str:
    if verb:
        with Driver(heir, sends=(signal.SIGKILL, verb)) as driver:
            result = driver.wait()
        assert result.code == -signal.SIGKILL, f"{summary_of(result)}\n{result.err}"
    return held(heir)


def behind_rows(stage: Stage, *, dies_at: str = "", verb: str = "") -> CaseResult:
    """The pipeline continues after the existing rows."""
    heir = _on_a_table_with_rows(stage)
    _say(heir, *_RESTORE, dies_at)
    after, next_run = _killed_before(heir, verb), heir.ran()
    assert heir.door("verify").code == 0
    return CaseResult(after, summary_of(next_run), checked(heir))


def next_life(stage: Stage, *, dies_at: str = "", verb: str = "") -> CaseResult:
    """An operator declares that the rows are other records; everything is loaded as the next
    incarnation of the partitions.
    """
    heir = _on_a_table_with_rows(stage)
    version = str(DeltaTable(str(heir.table)).version())
    _say(
        heir,
        ("table", "accept-changes"),
        (version, "--reason", "of another cluster", "--yes"),
        dies_at,
    )
    after, next_run = _killed_before(heir, verb), heir.ran()
    assert heir.door("verify").code == 0
    assert sum(heir.in_table().values()) == _BEFORE + heir.produced
    return CaseResult(after, summary_of(next_run), checked(_NextLife(heir)))


_BEHIND = "a table holds rows of the topic, the pipeline goes on behind them: SIGKILL "
_NEXT = "a table holds rows of the topic, which are said to be other records: SIGKILL "
_STORE, _WORD = (
    "etl.commands.restore_ledger:store_decided",
    "etl.io.zookeeper.ledger:PlanLedger.acknowledge",
)

CASES: tuple[Case, ...] = (
    Case(
        43,
        "behind rows, command killed before its plan",
        _BEHIND + "before the plan is stored",
        partial(behind_rows, dies_at=_STORE),
    ),
    Case(
        43,
        "behind rows, command killed after its plan",
        _BEHIND + "after the plan is stored",
        partial(behind_rows, dies_at=f"after:{_STORE}"),
    ),
    *(
        Case(
            43,
            f"behind rows, run killed: {verb}",
            f"{_BEHIND}of the run before {verb}",
            partial(behind_rows, verb=verb),
        )
        for verb in ("observe", "fetch", "append", "record", "commit")
    ),
    Case(
        43,
        "rows of another log, command killed before its word",
        _NEXT + "before the word is kept",
        partial(next_life, dies_at=_WORD),
    ),
    Case(
        43,
        "rows of another log, command killed after its word",
        _NEXT + "after the word is kept",
        partial(next_life, dies_at=f"after:{_WORD}"),
    ),
    *(
        Case(
            43,
            f"rows of another log, run killed: {verb}",
            f"{_NEXT}of the run before {verb}",
            partial(next_life, verb=verb),
        )
        for verb in ("store", "append", "record", "commit")
    ),
)
