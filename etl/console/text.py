"""What a person sees: values as a few lines and tables on a terminal. Nothing is computed here that
`--json` does not have too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from etl.commands.doctor import Diagnosis
from etl.commands.doctor_machine import Verdict
from etl.commands.lag import Complete, Intervals
from etl.commands.operator_decisions import Ruling
from etl.commands.plans import Preview
from etl.commands.replay import ReplayPreview
from etl.model.partitions import BrokerPartition
from etl.report.describe import counted
from etl.report.run_report import Report
from etl.report.run_state import Verb, size_in_words, time_in_words
from etl.report.verify import Proof

ROWS_SHOWN = 40

screen = Console(highlight=False, soft_wrap=True)


def show_report(report: Report) -> None:
    """What a run came to, in a few lines."""
    for outcome, sentence in report.outcomes:
        style = "bold red" if outcome.is_loud else "bold"
        screen.print(f"[{style}]{outcome.value}[/]: {sentence}", markup=True)
    if report.result:
        seconds = sum(report.seconds.values())
        moved = counted(report.offsets_committed, "offset")
        screen.print(
            f"{counted(report.records, 'record')}, {moved} moved, {seconds:.1f} s: "
            + ", ".join(
                f"{verb.value.replace('_', ' ')} {report.seconds[verb]:.1f}"
                for verb in Verb
                if verb in report.seconds
            )
        )


def show_preview(preview: Preview) -> None:
    """What the next run would do."""
    screen.print(preview.says)
    for sentence in (
        *preview.left,
        *preview.leaderless,
        *preview.paused,
        *preview.open_transactions,
        *map(str, preview.expires_soon),
        *preview.not_checked,
    ):
        screen.print(sentence, markup=False)
    for sentence in preview.let_go[:ROWS_SHOWN]:
        screen.print(sentence, style="bold red")
    if preview.ranges:
        told = preview.as_json()
        least, most = preview.tasks
        tasks = (
            counted(most, "task")
            if least == most
            else f"{least:,} to {counted(most, 'task')}, by the cluster's cores"
        )
        most_records = told["records_at_most"]  # byte positions tell of none
        records = "" if most_records is None else f"{counted(most_records, 'record')} at most, "
        screen.print(f"{records}about {size_in_words(told['estimated_bytes'])}, {tasks}")
        table(
            (
                "plan",
                "topic",
                "partition",
                "from",
                "until",
                "bytes" if most_records is None else "offsets",
                "leader",
            ),
            [
                (
                    r["plan"],
                    r["topic"],
                    key_of_row(r),
                    r["from"],
                    r["until"],
                    r["until"] - r["from"],
                    r["leader"],
                )
                for r in told["ranges"]
            ],
        )


def show_replay(preview: ReplayPreview) -> None:
    """What a replay would do."""
    screen.print(preview.says)
    for note in preview.notes:
        screen.print(note, style="bold red")
    table(
        ("topic", "partition", "from", "until", "rows that go", "come at most"),
        [
            (
                r["topic"],
                key_of_row(r),
                r["from"],
                r["until"],
                r["rows_that_go"],
                r["rows_that_come_at_most"],
            )
            for r in preview.as_json()["replaces"]
        ],
    )


def show_sentence(says: str) -> None:
    """What a command came to that is told in one sentence."""
    screen.print(says)


def show_ruling(ruling: Ruling) -> None:
    """What an operator decided."""
    screen.print(ruling.says)


def show_doctor(diagnosis: Diagnosis) -> None:
    """What was found, a line each, and below it what to do."""
    styles = {
        Verdict.OK: "green",
        Verdict.ADVICE: "yellow",
        Verdict.FAILED: "bold red",
        Verdict.NOT_CHECKED: "dim",
    }
    width = max((len(line.name) for line in diagnosis.lines), default=0)
    for line in diagnosis.lines:
        first, *more = _folded(line.found, width + 15)
        screen.print(f"{line.verdict.value:<11}  ", style=styles[line.verdict], end="")
        screen.print(f"{line.name:<{width}}  {first}", markup=False)
        for told in (*more, *(_folded(f"to do: {line.to_do}", width + 15) if line.to_do else ())):
            screen.print(" " * (width + 15) + told, markup=False)


def _folded(text: str, indent: int) -> list[str]:
    """The text in lines that fit a terminal behind the indent; one line where there is no terminal,
    so that it can be searched.
    """
    if not screen.is_terminal:
        return [text]
    return textwrap.wrap(
        text, max(screen.width - indent, 24), break_long_words=False, break_on_hyphens=False
    ) or [""]


def show_complete(found: Complete) -> None:
    """Whether a run up to that time can begin."""
    screen.print(found.says)


def show_intervals(found: Intervals) -> None:
    """The intervals that are not whole, and what no run will bring."""
    screen.print(found.says)
    table(
        ("from", "until", "partitions", "missing", "gone from the log"),
        [
            (
                one.interval.start.isoformat(),
                one.interval.end.isoformat(),
                len(one.logs),
                one.missing,
                one.gone,
            )
            for one in found.incomplete
        ],
    )
    if found.waiting:
        table(
            ("from", "until", "paused partitions", "waiting", "gone from the log"),
            [
                (
                    one.interval.start.isoformat(),
                    one.interval.end.isoformat(),
                    len(one.logs),
                    one.missing,
                    one.gone,
                )
                for one in found.waiting
            ],
        )


def show_proof(proof: Proof) -> None:
    """What the audit found."""
    told = proof.as_json()["logs"]
    table(
        ("topic", "partition", "expected", "in the table", "missing", "double", "unexpected"),
        [
            (
                r["topic"],
                key_of_row(r),
                r["expected_rows"],
                r["found_rows"],
                r["missing"],
                r["double_rows"],
                r["unexpected"],
            )
            for r in told
        ],
    )
    for r in [r for r in told if r["without_row"]["says"]][:ROWS_SHOWN]:
        screen.print(
            f"offsets without a row in {r['topic']} {key_of_row(r)}: {r['without_row']['says']}"
        )
    for note in proof.notes:
        screen.print(note)
    for sentence in proof.allowed[:ROWS_SHOWN]:
        screen.print(f"[bold red]rows are missing[/]: {sentence}", markup=True)
    if proof.is_right:
        left = (
            f"{proof.missing:,} were removed since, as allowed" if proof.missing else "none missing"
        )
        screen.print(
            f"[bold green]verified[/]: {proof.found_rows - proof.rows_before:,} records, each once, {left}",
            markup=True,
        )


def show_plans(rows: Sequence[Mapping[str, Any]]) -> None:
    """The stored plans, a line each."""
    has_keys = any(r.get("run_key") for r in rows)
    table(
        (
            "plan",
            "made",
            rows[-1]["unit"] if rows else "offsets",
            "rows",
            "version",
            "id",
            *(("run key",) if has_keys else ()),
        ),
        [
            (
                str(r["number"]),
                (r["created_at"] or "")[:16].replace("T", " "),
                r["offsets"],
                r["rows"],
                _named(r["delta_version"]),
                r["id"],
                *((r.get("run_key") or "",) if has_keys else ()),
            )
            for r in rows
        ],
    )


def key_of_row(row: Mapping[str, Any]) -> int | str:
    """A log among those of its topic; a number is shown as one."""
    return log_of_row(row).key if "broker_id" in row else int(row["partition"])


def log_of_row(row: Mapping[str, Any]) -> BrokerPartition:
    """The log of a row of a document."""
    return BrokerPartition(row["topic"], row["partition"], row.get("broker_id"))


def _named(number: int | None) -> str | None:
    """A number that is a name, so without commas."""
    return None if number is None else str(number)


def show_pipelines(rows: Sequence[Mapping[str, Any]]) -> None:
    """The pipelines, a line each; a table that is not the conf's goes by its id."""
    table(
        ("group", "pipeline", "state", "plan", "planned", "topics", "table"),
        [
            (
                r["group"],
                r["pipeline"],
                r["state"],
                _named(r["newest_plan"]),
                None if r["age_s"] is None else f"{time_in_words(r['age_s'])} ago",
                ", ".join(r["topics"]),
                r["table"] or r["table_id"],
            )
            for r in rows
        ],
    )
    for r in rows:
        for what in ("driver", "retired"):
            if r[what]:
                screen.print(f"{r['group']}/{r['pipeline']}: {r['state']}, {r[what]}", markup=False)
        for one in r["paused"]:
            where = (
                one["topic"] if one["partition"] is None else f"{one['topic']} {key_of_row(one)}"
            )
            screen.print(
                f"{r['group']}/{r['pipeline']}: {where} is paused: {one['reason']}", markup=False
            )
        for one in r["backfills"]:
            screen.print(
                f"{r['group']}/{r['pipeline']}: backfill {one['name']} is {one['state']}",
                markup=False,
            )


def show_plan(document: Mapping[str, Any]) -> None:
    """One plan."""
    version = document["delta_version"]
    state = (
        "its outcome is not recorded" if version is None else f"in the table at version {version}"
    )
    screen.print(f"plan {document['number']} ({document['kind']}), id {document['id']}, {state}")
    if document["run_key"]:
        left = "" if not document["left_of_run_key"] else ", whose end it does not reach"
        screen.print(f"made under run key {document['run_key']}{left}", markup=False)
    asked = [f"{word} {document[word]['said']}" for word in ("from", "until") if document[word]]
    if asked:
        screen.print(f"asked for {' '.join(asked)}", markup=False)
    if document["uncounted"]:
        screen.print(
            f"a crash took the count of its rows, and nobody can count them: {document['uncounted']}",
            markup=False,
        )
    if document["reason"]:
        screen.print(
            (f"supersedes {document['supersedes']}: " if document["supersedes"] else "")
            + document["reason"],
            markup=False,
        )
    for v in document["vanished"]:
        place = f"{v['topic']} {key_of_row(v)}, offsets {v['from']} to {v['until']} with log_epoch {v['log_epoch']}"
        screen.print(f"rows of {place}, are of records that are gone")
    table(
        ("topic", "partition", "from", "until", "rows", "fetched bytes", "missing offsets"),
        [
            (
                r["topic"],
                key_of_row(r),
                r["from"],
                r["until"],
                r.get("rows"),
                r.get("fetched_bytes"),
                r.get("missing_offsets"),
            )
            for r in document["ranges"]
        ],
    )


def table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns as wide as what is in them, numbers to the right. No cell is ever cut: a terminal
    shows the rest of a line below it.
    """
    cells = [
        [
            "-" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell)
            for cell in row
        ]
        for row in rows[:ROWS_SHOWN]
    ]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    right = [any(isinstance(row[i], int) for row in rows[:ROWS_SHOWN]) for i in range(len(names))]
    for line, style in ((names, "bold"), *((row, "") for row in cells)):
        shown = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        screen.print("  ".join(shown).rstrip(), style=style, markup=False)
    if len(rows) > ROWS_SHOWN:
        screen.print(f"... and {len(rows) - ROWS_SHOWN:,} more; --json has all of them")
