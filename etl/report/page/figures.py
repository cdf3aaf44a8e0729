"""The run in one sentence, a word and six figures: what somebody reads who reads nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etl.report.page.markup import Html, tag
from etl.report.page.partitions import LogRead
from etl.report.page.words import UNKNOWN, number, seconds, size
from etl.report.run_state import Outcome, State
from etl.report.words import counted, of_known


def standing(report: Mapping[str, Any]) -> tuple[str, str]:
    """How the run stands: the tone of it (good, warn, bad), and in a word or three."""
    told = {one["outcome"] for one in report["outcomes"]}
    if report["state"] == State.RUNNING.value:
        return "warn", "Not ended"
    if report["state"] == State.FAILED.value:
        return "bad", "Failed"
    if Outcome.RECORDS_LOST.value in told:
        return "warn", "Done, records lost"
    is_loud = any(one.is_loud and one.value in told for one in Outcome)
    return ("warn", "Done, with warnings") if is_loud else ("good", "Done")


def says_in_short(report: Mapping[str, Any], logs: Sequence[LogRead]) -> str:
    """What came of it, in a sentence or two."""
    if report["state"] == State.RUNNING.value:
        where = f" It is process {report['pid']} on {report['host']}." if report["host"] else ""
        return f"This run has not come to its end: it is still at work, or it was killed. The next run finishes what it left.{where}"
    loaded = f"{counted(report['records'], 'record')} loaded in {seconds(report['seconds_in_all'])}"
    if report["state"] == State.FAILED.value:
        return (
            f"The run ended early. {loaded} before that."
            if report["records"]
            else "The run ended early, and loaded nothing."
        )
    came = f"{loaded}." if report["records"] else "There was nothing new to load."
    has_lost = any(one["outcome"] == Outcome.RECORDS_LOST.value for one in report["outcomes"])
    lost = "Records were lost, as policy allows. " if has_lost else ""
    return f"{came} {lost}{_left(logs)}".strip()


def _left(logs: Sequence[LogRead]) -> str:
    unknown, behind = sum(log.after is None for log in logs), [log for log in logs if log.after]
    if behind:
        return f"{counted(len(behind), 'partition')} still had something to read when it ended."
    if unknown:
        return f"How far the table is behind {counted(unknown, 'partition')} is not known."
    return "The table holds everything that could be read when the run began." if logs else ""


def figures(report: Mapping[str, Any], logs: Sequence[LogRead], unit: str) -> Html:
    """Records, bytes, throughput, time, lag, partitions."""
    lag = size if unit == "bytes" else number
    before, after = (
        of_known(sum, (log.before for log in logs)),
        of_known(sum, (log.after for log in logs)),
    )
    read = sum(log.is_read for log in logs)
    was = (
        "of what could be read"
        if before is None
        else f"{lag(before)} before" + (", in offsets" if unit == "offsets" else "")
    )
    rows = (
        ("Records", number(report["records"]), None),
        ("Fetched", size(report["bytes"]) if read else UNKNOWN, "from the brokers"),
        ("Throughput", number(report["records_per_second"]), "records/s of the whole run"),
        ("Time", seconds(report["seconds_in_all"]), None),
        ("Lag after the run", lag(after), was),
        ("Partitions read", number(read), f"of {number(len(logs))}"),
    )
    return tag(
        "dl",
        *(
            tag("div", tag("dt", name), tag("dd", value, tag("small", note) if note else None))
            for name, value, note in rows
        ),
        class_="tiles",
    )
