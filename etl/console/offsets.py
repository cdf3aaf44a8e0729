"""How offsets look to a person: where they are, where they differ, and how far the table is behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etl.console.text import ROWS_SHOWN, key_of_row, log_of_row, screen, table
from etl.report.describe import counted, told_together
from etl.report.lag import Lags
from etl.report.run_state import size_in_words, time_in_words


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
    for sentence in told_together(
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
    for sentence in told_together(
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
        screen.print(f"a run that begins now stops: {document['stops']['what']}", markup=False)
    for sentence in document["not_looked_at"]:
        screen.print(sentence, markup=False)
    partitions = counted(document["partitions"], "partition")
    screen.print(
        f"{partitions}, {document['differing']:,} of them with a difference"
        if document["differing"]
        else f"{partitions} agree"
    )


def show_lag(lags: Lags) -> None:
    """How far the table is behind, a line for each partition, then in all, then what nobody tells."""
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
