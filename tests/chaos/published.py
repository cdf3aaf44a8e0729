"""The published table: a page for people, with its figures in a JSON file, so that single rows can
be played again.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from etl.testkit.brokers import DEFAULT_VERSION
from etl.testkit.java_and_jars import spark_jars
from tests.chaos.stage import Case, CaseResult
from tests.chaos.writes import WRITES

_HEAD = """\
# What breaking it showed

Made by `make chaos` (`python -m tests.chaos{option}`), not by hand. {said}

Each case runs the real `etl run` as a process of its own on an embedded ZooKeeper, Kafka and a Delta table, does what the second column
says, and lets the next run do its work; in most of them a producer writes all the while. Then an independent check, which uses neither
`etl` nor its ledger, compares: kafka-python reads the topic, delta-rs reads the table, and every (partition, offset, hash of the value)
must be in both, once. "Missing" counts records without a row, "double" rows beyond the first of one offset.

Rows 28 and 29 play the kills of rows 1 to 8 and the two drivers of row 10 again: on two brokers of Jafka 3.0.6 and on two of Kafka 0.8.2.2.
No client library of today reads there, so the check reads the brokers' own files: those of Kafka by kafka-python's record parser, those
of Jafka by a parser of the check's own, where each (broker, partition, offset, index inside the entry, hash of the value) must be in both.
Row 30 is what Jafka alone does to a run, and a driver there that is paused past its session, as in row 9.

Row 31 kills `etl replay`. A transform marks the rows that it makes, so the table tells of each row if it is an old or a new one: outside of
the replayed interval all are old, and inside all are old or all are new, whatever was killed.

Rows 33 and 34 are runs that are members of their group in ZooKeeper (`group.mode: join`), many of them beside another consumer. What
that one read must not be in the table: the check takes it from the topic's records. Row 33 makes hand-overs void, row 34 kills at each
step, row 35 pauses logs, and rows 36 and 37 keep the group's offsets in Kafka and in both places, and look at them there, too. Row 38 is
rows 33 and 34 for members of Kafka's own group, beside consumers of confluent-kafka, which have read what they have committed. Row 39 is
members of either whose offsets move behind the append (`commit_when: after_append`): a record may be in the table and the other one's, too.
Row 41 gives up what a stored plan was to read of a topic that is deleted or recreated: the losses table must hold just that, once.
Row 42 lets a driver sleep past its session with a stored plan while its pipeline is taken over or retired and another one loads the same.
Row 43 begins in a table that holds rows of the topic already, behind them or in the next life: of the latter the check takes the new rows.

Played with {versions}.
Played when: {days}.
{unplayed}
**{cases} cases, {records:,} records, {rows:,} rows: {missing} missing, {double} double{left}.**

| # | what was done | what the table held after it | what the next run did | records | rows | missing | double |
| ---: | --- | --- | --- | ---: | ---: | ---: | ---: |
"""
FIGURES = ("records", "rows", "missing", "double")


class Results:
    """What came of cases, by their names, in one file: `played` adds one."""

    def __init__(self, kept: Path, cases: Sequence[Case], *, today: date | None = None) -> None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        self._today, self._kept = today or datetime.now(UTC).date(), kept
        known = json.loads(kept.read_text()) if kept.exists() else {}
        self._results: dict[str, Any] = {
            case.name: known[case.name] for case in cases if case.name in known
        }
        self._cases = cases

    def is_whole(self, case: Case) -> bool:
        """Whether there is a result of that case, and it did not fail."""
        return "checked" in self._results.get(case.name, {})

    def played(self, case: Case, reported: CaseResult | None, failure: str = "") -> None:
        """How a case went."""
        went = (
            {**asdict(reported), "checked": asdict(reported.checked)}
            if reported
            else {"failed": failure.splitlines()[0] if failure else "?"}
        )
        self._results[case.name] = {
            "row": case.row,
            "what": case.what,
            "on": self._today.isoformat(),
            **went,
        }

    def keep(self) -> None:
        """The file, in the order of the matrix."""
        self._kept.write_text(
            json.dumps(
                {c.name: self._results[c.name] for c in self._cases if c.name in self._results},
                indent=1,
            )
            + "\n"
        )


class Published(Results):
    """The results known so far; `write` writes both files."""

    def __init__(
        self,
        folder: Path,
        cases: Sequence[Case],
        writer: str = "spark",
        *,
        today: date | None = None,
    ) -> None:
        self._writer, page = writer, WRITES[writer].page
        super().__init__(folder / f"{page.lower()}.json", cases, today=today)
        self.page = folder / f"{page}.md"

    def write(self) -> None:
        """Both files, in the order of the matrix."""
        shown = [self._results[case.name] for case in self._cases if case.name in self._results]
        self.keep()
        sums = {
            figure: sum(one["checked"][figure] for one in shown if "checked" in one)
            for figure in FIGURES
        }
        failed, unplayed = (
            sum("failed" in one for one in shown),
            [case for case in self._cases if case.name not in self._results],
        )
        left = (f"; {failed} CASES FAILED" if failed else "") + (
            f"; {len(unplayed)} more were not played" if unplayed else ""
        )
        option = "" if self._writer == "spark" else f" --writer {self._writer}"
        head = _HEAD.format(
            option=option,
            said=WRITES[self._writer].said,
            versions=versions(),
            cases=len(shown),
            left=left,
            days=days(shown),
            unplayed=_not_played(unplayed, self._cases),
            **sums,
        )
        self.page.write_text(head + "".join(map(_line, shown)))


def _line(one: Mapping[str, Any]) -> str:
    if "failed" in one:
        return _row(one["row"], one["what"], f"FAILED: {one['failed']}", *[""] * 5)
    return _row(
        one["row"],
        one["what"],
        one["after"],
        one["next_run"],
        *(f"{one['checked'][figure]:,}" for figure in FIGURES),
    )


def days(shown: Sequence[Mapping[str, Any]]) -> str:
    """How many cases were played on which day (UTC)."""
    known = Counter(one["on"] for one in shown if "on" in one)
    on = [f"{day} {count}" for day, count in sorted(known.items())]
    unknown = len(shown) - known.total()
    return (
        ", ".join([*([f"before days were written down {unknown}"] if unknown else []), *on])
        or "never"
    )


def _not_played(unplayed: Sequence[Case], cases: Sequence[Case]) -> str:
    """How many cases of which row."""
    left, there = (Counter(case.row for case in some) for some in (unplayed, cases))
    rows = ", ".join(f"row {row} {count} of {there[row]}" for row, count in sorted(left.items()))
    return f"Not played: {rows}.\n" if rows else ""


def _row(*cells: Any) -> str:
    return (
        "| "
        + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells)
        + " |\n"
    )


def versions() -> str:
    """What it is played with."""
    zookeeper = next(
        jar.stem.removeprefix("zookeeper-")
        for jar in spark_jars("zookeeper-")
        if jar.stem[10:11].isdigit()
    )
    spark, delta, rust = map(importlib.metadata.version, ("pyspark", "delta-spark", "deltalake"))
    return (
        f"ZooKeeper {zookeeper}, Kafka {DEFAULT_VERSION}, Spark {spark}, Delta {delta}, and "
        f"delta-rs {rust}"
    )
