"""What does a person see of a command's result?

Lines and tables on standard output. `--json` prints all of it; a screen may leave out details.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from etl.cli.common_options import printable
from etl.model.partitions import TopicPartition, render_partition
from etl.model.plans import PlanKind
from etl.report.describe import counted, describe_by_topic
from etl.report.run_progress import Verb, size_in_words, time_in_words

if TYPE_CHECKING:
    from etl.commands.backfill import BackfillPreview
    from etl.commands.doctor import Diagnosis
    from etl.commands.init import FirstConf
    from etl.commands.lag import TableGaps, TopicsReady
    from etl.commands.operator_decisions import DecisionResult
    from etl.commands.package import Package
    from etl.commands.plans import Preview
    from etl.commands.replay import ReplayPreview
    from etl.commands.run import ConfRun, FolderRun
    from etl.report.lag import Lags
    from etl.report.run_report import Report
    from etl.report.verify import Proof


ROWS_SHOWN = 40

screen = Console(highlight=False, soft_wrap=True)


def print_line(*parts: str | tuple[str, str]) -> None:
    """Print one line on standard output; see `line_of`."""
    screen.print(line_of(*parts))


def line_of(*parts: str | tuple[str, str]) -> Text:
    """Return a line of texts, or of (text, style).

    Texts have no markup, and their control characters are escaped: reasons, keys and names are
    written by others.
    """
    line = Text()
    for part in parts:
        text, style = (part, "") if isinstance(part, str) else part
        line.append(printable(text), style)
    return line


def table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print columns with natural widths, numbers to the right. Cells are never truncated."""
    shown_rows = rows[:ROWS_SHOWN]
    lines = [list(names)]
    for row in shown_rows:
        lines.append([_cell(value) for value in row])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    is_number = []
    for number in range(len(names)):
        is_number.append(any(isinstance(row[number], int) for row in shown_rows))

    for index, line in enumerate(lines):
        cells = []
        for cell, width, to_right in zip(line, widths, is_number, strict=True):
            aligned = cell.ljust(width)
            if to_right:
                aligned = cell.rjust(width)
            cells.append(aligned)
        style = "bold" if index == 0 else ""
        print_line(("  ".join(cells).rstrip(), style))
    if len(rows) > ROWS_SHOWN:
        print_line(f"... and {len(rows) - ROWS_SHOWN:,} more; --json has all of them")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return printable(str(value))


def show_sentences(sentences: Iterable[str]) -> None:
    """Print a line for each sentence."""
    for sentence in sentences:
        print_line(sentence)


def show_summary(summary: str) -> None:
    """Print a result of one sentence, or of one in each line."""
    show_sentences(summary.split("\n"))


def key_of_row(row: Mapping[str, Any]) -> int | str:
    """Return the partition of a row of a document: a number, or `1-3` of Jafka."""
    if "broker_id" in row:
        return partition_of_row(row).key
    return int(row["partition"])


def partition_of_row(row: Mapping[str, Any]) -> TopicPartition:
    """Return the partition of a row of a document."""
    return TopicPartition(row["topic"], row["partition"], row.get("broker_id"))


def _identifier(number: int | None) -> str | None:
    """Return a number as text, so that it is printed without thousands separators."""
    if number is None:
        return None
    return str(number)


def _time_or_none(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return time_in_words(seconds)


def _size_or_none(size: int | None) -> str | None:
    if size is None:
        return None
    return size_in_words(size)


# -------------------------------------------------------------------------------------------- runs


def show_report(report: Report) -> None:
    """Print the result of a run."""
    for outcome, sentence in report.outcomes:
        style = "bold red" if outcome.is_loud else "bold"
        print_line((outcome.value, style), f": {sentence}")
    if not report.result:
        return
    phases = []
    for verb in Verb:
        if verb in report.seconds:
            phases.append(f"{verb.value.replace('_', ' ')} {report.seconds[verb]:.1f}")
    records = counted(report.records, "record")
    offsets = counted(report.offsets_committed, "offset")
    seconds = sum(report.seconds.values())
    print_line(f"{records}, {offsets} committed, {seconds:.1f} s: {', '.join(phases)}")


def show_preview(preview: Preview) -> None:
    """Print what the next run would do."""
    print_line(preview.summary)
    show_sentences(preview.left)
    show_sentences(preview.leaderless)
    show_sentences(preview.paused)
    show_sentences(preview.open_transactions)
    show_sentences(map(str, preview.expires_soon))
    show_sentences(preview.not_checked)
    for sentence in preview.let_go[:ROWS_SHOWN]:
        print_line((sentence, "bold red"))
    if preview.ranges:
        _show_planned_ranges(preview)


def _show_planned_ranges(preview: Preview) -> None:
    document = preview.as_json()
    least, most = preview.tasks
    tasks = counted(most, "task")
    if least != most:
        tasks = f"{least:,} to {tasks}, by the cluster's cores"
    records = ""
    unit = "bytes"  # offsets of Jafka are byte positions, which do not count records
    max_records = document["records_at_most"]
    if max_records is not None:
        records = f"{counted(max_records, 'record')} at most, "
        unit = "offsets"
    print_line(f"{records}about {size_in_words(document['estimated_bytes'])}, {tasks}")

    rows = []
    for planned in document["ranges"]:
        size = planned["until"] - planned["from"]
        row = (
            planned["plan"],
            planned["topic"],
            key_of_row(planned),
            planned["from"],
            planned["until"],
            size,
            planned["leader"],
        )
        rows.append(row)
    table(("plan", "topic", "partition", "from", "until", unit, "leader"), rows)


def show_one_run(run: ConfRun) -> None:
    """Print the result of one conf of a directory; its error was printed before."""
    report = run.report or {}
    for outcome in report.get("outcomes", ()):
        print_line(f"  {outcome['outcome']}: {outcome['message']}")


def show_folder_run(found: FolderRun) -> None:
    """Print the results of all confs, a line each."""
    rows = []
    for run in found.runs:
        report = run.report or {}
        if run.error:
            result = run.error.message.splitlines()[0]
        else:
            result = ", ".join(outcome["outcome"] for outcome in report.get("outcomes", ()))
        figures = (
            report.get("records_read"),
            report.get("rows_written"),
            report.get("total_seconds"),
        )
        rows.append((run.conf, run.exit_code, *figures, result))
    table(("conf", "exit code", "records", "rows", "seconds", "result"), rows)


def show_replay(preview: ReplayPreview) -> None:
    """Print what a replay would do."""
    print_line(preview.summary)
    for note in preview.notes:
        print_line((note, "bold red"))
    rows = []
    for replaced in preview.as_json()["replaces"]:
        row = (
            replaced["topic"],
            key_of_row(replaced),
            replaced["from"],
            replaced["until"],
            replaced["rows_that_go"],
            replaced["rows_that_come_at_most"],
        )
        rows.append(row)
    table(("topic", "partition", "from", "until", "rows removed", "rows added at most"), rows)


# --------------------------------------------------------------------------------------- backfills


def show_backfill_preview(preview: BackfillPreview) -> None:
    """Print what a backfill would load."""
    print_line(preview.summary)
    for note in preview.notes:
        print_line((note, "bold red"))
    document = preview.as_json()
    if not document["loads"]:
        return
    print_line(f"about {size_in_words(document['estimated_bytes'])}")
    rows = []
    for load in document["loads"]:
        count = load["until"] - load["from"]
        rows.append((load["topic"], key_of_row(load), load["from"], load["until"], count))
    table(("topic", "partition", "from", "until", "offsets"), rows)


def show_backfills(documents: Sequence[Mapping[str, Any]]) -> None:
    """Print the backfills, a line each; then active drivers."""
    rows = []
    for backfill in documents:
        row = (
            backfill["name"],
            backfill["state"],
            backfill["loaded"],
            backfill["offsets"],
            backfill["left"],
            _time_or_none(backfill["seconds_left"]),
            _identifier(backfill["newest_plan"]),
            backfill["request"],
        )
        rows.append(row)
    table(("name", "state", "loaded", "of", "left", "done in", "plan", "request"), rows)
    for backfill in documents:
        if backfill["driver"]:
            sentence = f"{backfill['name']}: {backfill['state']}, {backfill['driver']}"
            print_line(sentence)


def show_backfill_whole(document: Mapping[str, Any]) -> None:
    """Print one backfill, its interval of each partition, and its plans."""
    show_backfills([document])
    intervals = []
    for interval in document["intervals"]:
        bounds = (interval["from"], interval["until"], interval["left"])
        intervals.append((interval["topic"], key_of_row(interval), *bounds))
    table(("topic", "partition", "from", "until", "left"), intervals)
    plans = []
    for plan in document["plans"]:
        row = (
            str(plan["number"]),
            _minute(plan["made_at"]),
            plan["offsets"],
            plan["rows"],
            _identifier(plan["table_version"]),
        )
        plans.append(row)
    table(("plan", "stored", "offsets", "rows", "version"), plans)


def _minute(timestamp: str | None) -> str:
    """Shorten an ISO 8601 time to minutes."""
    return (timestamp or "")[:16].replace("T", " ")


# ------------------------------------------------------------------------------- checks and proofs


def show_doctor(diagnosis: Diagnosis) -> None:
    """Print the checks, a line each, and what to do."""
    from etl.commands.doctor_machine import Verdict

    styles = {
        Verdict.OK: "green",
        Verdict.ADVICE: "yellow",
        Verdict.FAILED: "bold red",
        Verdict.NOT_CHECKED: "dim",
    }
    width = max((len(line.name) for line in diagnosis.lines), default=0)
    indent = width + 15
    for line in diagnosis.lines:
        first, *more = _wrapped(line.found, indent)
        if line.to_do:
            more += _wrapped(f"To do: {line.to_do}", indent)
        verdict = (f"{line.verdict.value:<11}  ", styles[line.verdict])
        print_line(verdict, f"{line.name:<{width}}  {first}")
        for text in more:
            print_line(" " * indent + text)


def _wrapped(text: str, indent: int) -> list[str]:
    """Wrap a text to the terminal's width after the indent. Without a terminal it stays one line,
    so that it can be searched.
    """
    if not screen.is_terminal:
        return [" ".join(text.split("\n"))]
    width = max(screen.width - indent, 24)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return lines or [""]


def show_proof(proof: Proof) -> None:
    """Print the result of `etl verify`."""
    partitions = proof.as_json()["partitions"]
    names = ["topic", "partition", "expected", "in the table", "missing", "double", "unexpected"]
    has_doubt = any(topic_partition["not_provable"] for topic_partition in partitions)
    if has_doubt:
        names.append("not provable")
    rows = []
    for topic_partition in partitions:
        row = [
            topic_partition["topic"],
            key_of_row(topic_partition),
            topic_partition["expected_rows"],
            topic_partition["found_rows"],
            topic_partition["missing"],
            topic_partition["double_rows"],
            topic_partition["unexpected"],
        ]
        if has_doubt:
            row.append(topic_partition["not_provable"])
        rows.append(row)
    table(names, rows)

    explained = [
        topic_partition
        for topic_partition in partitions
        if topic_partition["without_row"]["message"]
    ]
    for topic_partition in explained[:ROWS_SHOWN]:
        partition = f"{topic_partition['topic']} {key_of_row(topic_partition)}"
        print_line(
            f"Offsets without a row in {partition}: {topic_partition['without_row']['message']}"
        )
    for note in (*proof.notes, *proof.transformed):
        print_line(note)
    for sentence in proof.allowed[:ROWS_SHOWN]:
        print_line(("rows are missing", "bold red"), f": {sentence}")
    if proof.is_right:
        missing = "none missing"
        if proof.missing:
            missing = f"{proof.missing:,} were removed since, as allowed"
        records = proof.found_rows - proof.rows_before
        left_out = ""
        if proof.left_out:
            left_out = f", {proof.left_out:,} left out by the transform"
        summary = f": {records:,} records, each once, {missing}{left_out}"
        print_line(("verified", "bold green"), summary)


def show_complete(found: TopicsReady) -> None:
    """Print whether the partitions are complete up to a time."""
    print_line(found.summary)


def show_intervals(found: TableGaps) -> None:
    """Print the intervals that are not fully loaded, and those that wait in paused partitions."""
    print_line(found.summary)
    if found.incomplete:
        incomplete = [_gap_row(gap) for gap in found.incomplete]
        table(("from", "until", "partitions", "missing", "deleted in Kafka"), incomplete)
    if found.waiting:
        waiting = [_gap_row(gap) for gap in found.waiting]
        table(("from", "until", "paused partitions", "waiting", "deleted in Kafka"), waiting)


def _gap_row(gap: Any) -> tuple[Any, ...]:
    start = gap.interval.start.isoformat()
    end = gap.interval.end.isoformat()
    return (start, end, len(gap.partitions), gap.missing, gap.gone)


def show_lag(lags: Lags) -> None:
    """Print the lag, a line per partition, then totals, then what is unknown."""
    is_physical = any(partition.partition.is_physical for partition in lags.partitions)
    rows = []
    for partition in lags.partitions:
        key: int | str = partition.partition.partition
        if is_physical:
            key = partition.partition.key
        row = (
            partition.partition.topic,
            key,
            partition.position,
            partition.offsets["log_end"],
            partition.lag,
            _size_or_none(partition.estimated_bytes),
            _time_or_none(partition.behind_s),
            _time_or_none(partition.headroom.seconds_left),
        )
        rows.append(row)
    lag = "lag in bytes" if is_physical else "lag"
    names = ("topic", "partition", "loaded until", "log end", lag, "about", "behind", "expires in")
    table(names, rows)
    print_line(_lag_totals(lags.totals))
    show_sentences(lags.paused[:ROWS_SHOWN])
    show_sentences(lags.open_transactions)
    show_sentences(lags.unknown[:ROWS_SHOWN])


def _lag_totals(totals: Mapping[str, Any]) -> str:
    parts = []
    records = totals["records_at_most"]
    if records is not None:
        parts.append(f"{counted(records, 'record')} at most")
    size = _size_or_none(totals["estimated_bytes"])
    if size:
        parts.append(f"about {size}")
    else:
        parts.append("of unknown size")
    text = f"Total: {', '.join(parts)}"
    if totals["behind_s"] is not None:
        text += f"; {time_in_words(totals['behind_s'])} behind"
    if totals["headroom_s"] is not None:
        text += f"; the first may expire in {time_in_words(totals['headroom_s'])}"
    return text


# --------------------------------------------------------------------------- plans and the ledger


def show_decision(decision: DecisionResult) -> None:
    """Print an operator's decision."""
    show_summary(decision.summary)


def show_dry_run(decision: DecisionResult) -> None:
    """Print what a command would report, had it changed something."""
    print_line("Nothing is changed. Without --dry-run the command would report:")
    show_decision(decision)


def show_plans(documents: Sequence[Mapping[str, Any]]) -> None:
    """Print the stored plans, a line each."""
    unit = "offsets"
    if documents:
        unit = documents[-1]["unit"]
    names = ["plan", "kind", "stored", unit, "rows", "version"]
    has_keys = any(plan.get("run_key") for plan in documents)
    if has_keys:
        names.append("run key")
    rows = []
    for plan in documents:
        row = [
            str(plan["number"]),
            _kind_of(plan),
            _minute(plan["created_at"]),
            plan["offsets"],
            plan["rows"],
            _identifier(plan["table_version"]),
        ]
        if has_keys:
            row.append(plan.get("run_key") or "")
        rows.append(row)
    table(names, rows)


def show_plan(document: Mapping[str, Any]) -> None:
    """Print one plan, its partitions and its losses."""
    version = document["table_version"]
    state = f"table version {version}"
    if version is None:
        state = "its result is not recorded"
    print_line(
        f"Plan {document['number']}: {_kind_of(document)}, stored {document['created_at']}, {state}"
    )
    request = _request_of_plan(document)
    if request:
        print_line(request)
    if document["uncounted"]:
        print_line(f"Its rows are not counted: {document['uncounted']}")
    if document["reason"]:
        reason = document["reason"]
        if document["supersedes"]:
            reason = f"supersedes {document['supersedes']}: {reason}"
        print_line(reason)
    for rows in document["vanished"]:
        print_line(
            f"Rows of {_partition_of(rows)}, offsets {rows['from']} to {rows['until']} with "
            f"incarnation {rows['incarnation']}, are of records that Kafka lost"
        )
    _show_partitions_of_plan(document)
    for loss in document["losses"]:
        interval = f"{_partition_of(loss)}:{loss['from']}-{loss['until']}"
        print_line(f"Lost: {interval} ({loss['reason']})")


def _kind_of(plan: Mapping[str, Any]) -> str:
    """Return the kind of a plan; a plan of kind start that replaced another one gave it up."""
    kind = str(plan["kind"])
    if kind == PlanKind.START.value and plan["supersedes"]:
        return "given up"
    return kind


def _request_of_plan(document: Mapping[str, Any]) -> str:
    """Return run key and bounds of a plan in one line; empty without any."""
    parts = []
    if document["run_key"]:
        run_key = f"Run key {document['run_key']}"
        if document["left_of_run_key"]:
            run_key += " (the plan does not reach its end)"
        parts.append(run_key)
    for bound in ("from", "until"):
        if document[bound]:
            parts.append(f"{bound} {document[bound]['said']}")
    return ", ".join(parts)


def _partition_of(row: Mapping[str, Any]) -> str:
    """Return the partition of a row of a document as commands name it: `clicks:3`."""
    return render_partition(partition_of_row(row))


def _show_partitions_of_plan(document: Mapping[str, Any]) -> None:
    """Print a line for each range, and for each partition without one."""
    loaded_until = {partition_of_row(row): row["loaded_until"] for row in document["partitions"]}
    rows = list(document["ranges"])  # of a replay or a backfill several of one partition
    planned = {partition_of_row(row) for row in rows}
    rows += [row for row in document["partitions"] if partition_of_row(row) not in planned]
    lines = []
    for row in sorted(rows, key=lambda row: (partition_of_row(row), row.get("from", 0))):
        partition = partition_of_row(row)
        line = (
            render_partition(partition),
            row.get("from"),
            row.get("until"),
            row.get("records"),
            row.get("rows"),
            loaded_until.get(partition),
            row.get("fetched_bytes"),
            row.get("missing_offsets"),
        )
        lines.append(line)
    names = (
        "partition",
        "from",
        "until",
        "records",
        "rows",
        "loaded until",
        "fetched bytes",
        "missing offsets",
    )
    table(names, lines)


def show_pipelines(documents: Sequence[Mapping[str, Any]]) -> None:
    """Print the pipelines, a line each. A table that is not the conf's is shown by its id."""
    rows = []
    for pipeline in documents:
        planned = None
        if pipeline["age_s"] is not None:
            planned = f"{time_in_words(pipeline['age_s'])} ago"
        row = (
            pipeline["group"],
            pipeline["pipeline"],
            pipeline["state"],
            _identifier(pipeline["newest_plan"]),
            planned,
            ", ".join(pipeline["topics"]),
            pipeline["table"] or pipeline["table_id"],
        )
        rows.append(row)
    table(("group", "pipeline", "state", "plan", "planned", "topics", "table"), rows)
    for pipeline in documents:
        name = f"{pipeline['group']}/{pipeline['pipeline']}"
        for field in ("driver", "retired"):
            if pipeline[field]:
                print_line(f"{name}: {pipeline['state']}, {pipeline[field]}")
        for pause in pipeline["paused"]:
            paused = pause["topic"]
            if pause["partition"] is not None:
                paused = f"{paused} {key_of_row(pause)}"
            print_line(f"{name}: {paused} is paused: {pause['reason']}")
        for backfill in pipeline["backfills"]:
            sentence = f"{name}: backfill {backfill['name']} is {backfill['state']}"
            print_line(sentence)


def show_offsets(documents: Sequence[Mapping[str, Any]]) -> None:
    """Print the offsets per partition, then pauses."""
    rows = []
    paused = {}
    has_brokers = False
    for partition in documents:
        has_brokers = has_brokers or "broker_id" in partition
        row = (
            partition["topic"],
            key_of_row(partition),
            partition["log_start"],
            partition["log_end"],
            partition["committed"],
            partition["loaded_until"],
            partition["lag"],
        )
        rows.append(row)
        pause = partition["paused"]
        if pause:
            sentence = f"paused since {pause['since_at']} by {pause['by']}: {pause['reason']}"
            paused[partition_of_row(partition)] = sentence
    lag = "lag in bytes" if has_brokers else "lag"
    names = ("topic", "partition", "log start", "log end", "committed", "loaded until", lag)
    table(names, rows)
    show_sentences(describe_by_topic(paused))


def show_offsets_diff(document: Mapping[str, Any]) -> None:
    """Print committed offsets, newest plan and table of each partition, what a difference means,
    and what the next run does.
    """
    plan = document["plan"]
    plan_sentence = "ZooKeeper has no plan of this pipeline"
    if plan:
        plan_sentence = f"Plan {plan['number']}, id {plan['id']}: {plan['stands']}"
    print_line(plan_sentence)
    print_line(_newest_commit(document["table"]))
    rows = document["rows"]
    if rows:
        cells = []
        for row in rows:
            sides = (row["committed"], row["plan"], row["table"], row["difference"])
            cells.append((row["topic"], key_of_row(row), *sides))
        table(("topic", "partition", "committed", "plan", "table", "difference"), cells)
    meanings = {}
    for row in rows:
        if row["next_run"]:
            meanings[partition_of_row(row)] = f"{row['means']}; the next run {row['next_run']}"
    show_sentences(describe_by_topic(meanings))
    stops = document["stops"]
    if stops and stops["retriable"]:  # any other error is the command's own
        print_line(f"A run that starts now stops: {stops['message']}")
    show_sentences(document["not_looked_at"])
    partitions = counted(document["partitions"], "partition")
    if document["differing"]:
        print_line(f"{partitions}, {document['differing']:,} of them with a difference")
    else:
        print_line(f"{partitions} agree")


def _newest_commit(in_table: Mapping[str, Any] | None) -> str:
    if not in_table:
        return "The table does not exist"
    sentence = f"The table, version {in_table['version']}, has"
    number = in_table["transaction_version"]
    if not number:
        return f"{sentence} no plan of this pipeline"
    if in_table["plan_id"]:
        return f"{sentence} plan {number}, id {in_table['plan_id']}"
    return f"{sentence} plan {number}; its log no longer has the id"


# ------------------------------------------------------------------------------------------- setup


def show_first_conf(written: FirstConf) -> None:
    """Print the keys of a new conf with reasons, and the next command."""
    for key in written.chosen:
        line = f"{key.key}: {key.value}"
        if key.why:
            line += f"  ({key.why})"
        print_line(line)
    print_line(f"Written: {written.path}. Next: `etl doctor {written.path}`")


def show_package(files: Package) -> None:
    """Print the files, and the command that uses them, quoted for a shell."""
    print_line(f"Written: {files.environment or files.zip}, and {files.job}")
    print_line(files.needs)
    print_line(f"  {files.command}")
