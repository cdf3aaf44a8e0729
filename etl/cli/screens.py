"""What does a person see of a command's result?

Lines and tables; `--json` has all of it, too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from etl.commands.doctor_machine import Verdict
from etl.model.partitions import BrokerPartition
from etl.report.describe import counted, describe_by_topic
from etl.report.run_state import Verb, size_in_words, time_in_words

if TYPE_CHECKING:
    from etl.commands.backfill import BackfillPreview
    from etl.commands.doctor import Diagnosis
    from etl.commands.init import FirstConf
    from etl.commands.lag import Complete, Intervals
    from etl.commands.operator_decisions import Ruling
    from etl.commands.package import Package
    from etl.commands.plans import Preview
    from etl.commands.replay import ReplayPreview
    from etl.commands.run import ConfRun, FolderRun
    from etl.report.lag import Lags
    from etl.report.run_report import Report
    from etl.report.verify import Proof


ROWS_SHOWN = 40

screen = Console(highlight=False, soft_wrap=True)


def show_report(report: Report) -> None:
    """Print the result of a run."""
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
    """Print what the next run would do."""
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
    """Print what a replay would do."""
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
    """Print a result of one sentence."""
    screen.print(says)


def show_decision(ruling: Ruling) -> None:
    """Print an operator's decision."""
    screen.print(ruling.says)


def show_doctor(diagnosis: Diagnosis) -> None:
    """Print the checks, a line each, and what to do."""
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
    """Wrap a text to the terminal's width after the indent; one line without a terminal, so that it
    can be searched.
    """
    if not screen.is_terminal:
        return [text]
    return textwrap.wrap(
        text, max(screen.width - indent, 24), break_long_words=False, break_on_hyphens=False
    ) or [""]


def show_complete(found: Complete) -> None:
    """Print whether a run up to that time can begin."""
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
    """Print the audit."""
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
    for r in [r for r in told if r["without_row"]["message"]][:ROWS_SHOWN]:
        screen.print(
            f"offsets without a row in {r['topic']} {key_of_row(r)}: {r['without_row']['message']}"
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
                _named(r["table_version"]),
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
        for field in ("driver", "retired"):
            if r[field]:
                screen.print(
                    f"{r['group']}/{r['pipeline']}: {r['state']}, {r[field]}", markup=False
                )
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
    version = document["table_version"]
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
    """Print columns with natural widths, numbers to the right. Cells are never truncated."""
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


def show_backfill_preview(preview: BackfillPreview) -> None:
    """Print what a backfill would load."""
    screen.print(preview.says)
    for note in preview.notes:
        screen.print(note, style="bold red")
    told = preview.as_json()
    if told["loads"]:
        screen.print(f"about {size_in_words(told['estimated_bytes'])}")
        table(
            ("topic", "partition", "from", "until", "offsets"),
            [
                (one["topic"], _key(one), one["from"], one["until"], one["until"] - one["from"])
                for one in told["loads"]
            ],
        )


def show_backfills(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the backfills, a line each; then active drivers and reasons of abandoned ones."""
    table(
        ("name", "state", "loaded", "of", "left", "done in", "plan", "asked for"),
        [
            (
                r["name"],
                r["state"],
                r["loaded"],
                r["offsets"],
                r["left"],
                None if r["seconds_left"] is None else time_in_words(r["seconds_left"]),
                None if r["newest_plan"] is None else str(r["newest_plan"]),
                r["request"],
            )
            for r in rows
        ],
    )
    for r in rows:
        for field in ("driver", "reason"):
            if r[field]:
                screen.print(f"{r['name']}: {r['state']}, {r[field]}", markup=False)


def show_backfill_whole(document: Mapping[str, Any]) -> None:
    """One backfill, what it claims of each partition, and its plans."""
    show_backfills([document])
    table(
        ("topic", "partition", "from", "until", "left"),
        [
            (one["topic"], _key(one), one["from"], one["until"], one["left"])
            for one in document["stretches"]
        ],
    )
    table(
        ("plan", "made", "offsets", "rows", "version"),
        [
            (
                str(one["number"]),
                (one["made_at"] or "")[:16].replace("T", " "),
                one["offsets"],
                one["rows"],
                None if one["table_version"] is None else str(one["table_version"]),
            )
            for one in document["plans"]
        ],
    )


def _key(row: Mapping[str, Any]) -> int | str:
    return f"{row['broker_id']}-{row['partition']}" if "broker_id" in row else int(row["partition"])


def show_offsets(rows: Sequence[Mapping[str, Any]]) -> None:
    """Offsets per partition."""
    lag = "lag in bytes" if any("broker_id" in r for r in rows) else "lag"
    table(
        ("topic", "partition", "log start", "log end", "committed", "in the table", lag),
        [
            (
                r["topic"],
                key_of_row(r),
                r["log_start"],
                r["log_end"],
                r["committed"],
                r["position"],
                r["lag"],
            )
            for r in rows
        ],
    )
    for sentence in describe_by_topic(
        {log_of_row(r): _paused(r["paused"]) for r in rows if r["paused"]}
    ):
        screen.print(sentence, markup=False)


def _paused(told: Mapping[str, Any]) -> str:
    return f"paused since {told['since_at']} by {told['by']}: {told['reason']}"


def show_offsets_diff(document: Mapping[str, Any]) -> None:
    """The three sides of each partition, what the differences mean, and what the next run does."""
    plan, in_delta, rows = document["plan"], document["table"], document["rows"]
    screen.print(
        f"plan {plan['number']}, id {plan['id']}: {plan['stands']}"
        if plan
        else "ZooKeeper knows no plan of this pipeline"
    )
    holds = in_delta and in_delta["transaction_version"]
    by = (
        f", id {in_delta['plan_id']}"
        if holds and in_delta["plan_id"]
        else "; its log no longer says which"
    )
    held = f"plan {holds}{by}" if holds else "no plan of ours"
    screen.print(
        f"the table at version {in_delta['version']} holds {held}"
        if in_delta
        else "there is no table"
    )
    if rows:
        table(
            ("topic", "partition", "committed", "plan", "table", "difference"),
            [
                (r["topic"], key_of_row(r), r["committed"], r["plan"], r["table"], r["difference"])
                for r in rows
            ],
        )
    for sentence in describe_by_topic(
        {
            log_of_row(r): f"{r['means']}; the next run {r['next_run']}"
            for r in rows
            if r["next_run"]
        }
    ):
        screen.print(sentence, markup=False)
    if (
        document["stops"] and document["stops"]["retriable"]
    ):  # any other is told as the command's error
        screen.print(f"a run that begins now stops: {document['stops']['message']}", markup=False)
    for sentence in document["not_looked_at"]:
        screen.print(sentence, markup=False)
    partitions = counted(document["partitions"], "partition")
    screen.print(
        f"{partitions}, {document['differing']:,} of them with a difference"
        if document["differing"]
        else f"{partitions} agree"
    )


def show_lag(lags: Lags) -> None:
    """Print the lag, a line per partition, then totals, then what is unknown."""
    totals = lags.totals
    is_physical = any(one.log.is_physical for one in lags.logs)
    table(
        (
            "topic",
            "partition",
            "position",
            "log end",
            "lag in bytes" if is_physical else "lag",
            "about",
            "behind",
            "may expire in",
        ),
        [
            (
                one.log.topic,
                one.log.key if is_physical else one.log.partition,
                one.position,
                one.extent["log_end"],
                one.lag,
                *_estimates(one.estimated_bytes, one.behind_s, one.headroom.seconds),
            )
            for one in lags.logs
        ],
    )
    size, behind, left = _estimates(
        totals["estimated_bytes"], totals["behind_s"], totals["headroom_s"]
    )
    records = (
        ""
        if totals["records_at_most"] is None
        else f"{counted(totals['records_at_most'], 'record')} at most, "
    )
    told = f"in all {records}{f'about {size}' if size else 'of a size that nobody tells'}"
    screen.print(
        "; ".join(
            (
                told,
                *([f"behind by {behind}"] if behind else ()),
                *([f"the first may expire in {left}"] if left else ()),
            )
        )
    )
    for sentence in (
        *lags.paused[:ROWS_SHOWN],
        *lags.open_transactions,
        *lags.unknown[:ROWS_SHOWN],
    ):
        screen.print(sentence, markup=False)


def _estimates(size: int | None, *seconds: float | None) -> tuple[str | None, ...]:
    """A size and durations in words."""
    return (
        None if size is None else size_in_words(size),
        *(None if each is None else time_in_words(each) for each in seconds),
    )


def show_one_run(run: ConfRun) -> None:
    """Print the result of one conf of a directory; its error was printed before."""
    for one in (run.report or {}).get("outcomes", ()):
        screen.print(f"  {one['outcome']}: {one['message']}", markup=False)


def show_folder_run(found: FolderRun) -> None:
    """All of them, a line each."""
    table(
        ("conf", "exit code", "records", "seconds", "came to"),
        [
            (
                run.conf,
                run.exit_code,
                (run.report or {}).get("records"),
                (run.report or {}).get("total_seconds"),
                run.error.message.splitlines()[0]
                if run.error
                else ", ".join(one["outcome"] for one in (run.report or {}).get("outcomes", ())),
            )
            for run in found.runs
        ],
    )


def show_first_conf(written: FirstConf) -> None:
    """Print what was written and why, and what to do next."""
    for one in written.chosen:
        screen.print(
            f"{one.key}: {one.value}" + (f"  ({one.why})" if one.why else ""), markup=False
        )
    screen.print(f"written: {written.path}; next: `etl doctor {written.path}`", markup=False)


def show_sentences(says: Sequence[str]) -> None:
    """Print a result of several sentences."""
    for sentence in says:
        screen.print(sentence, markup=False)


def show_package(made: Package) -> None:
    """Print what was made, and the command that uses it, quoted for a shell."""
    screen.print(f"written: {made.environment or made.zip}, and {made.job}", markup=False)
    screen.print(made.needs, markup=False)
    screen.print(f"  {made.command}", markup=False)
