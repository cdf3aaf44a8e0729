"""Backfills for a person: what one would load, and how far each is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etl.commands.backfill import BackfillPreview
from etl.console.text import screen, table
from etl.report.run_state import size_in_words, time_in_words


def show_backfill_preview(preview: BackfillPreview) -> None:
    """What a backfill would load."""
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
    """The backfills, a line each; below them who is at work, and why one was given up."""
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
                r["asked"],
            )
            for r in rows
        ],
    )
    for r in rows:
        for what in ("driver", "reason"):
            if r[what]:
                screen.print(f"{r['name']}: {r['state']}, {r[what]}", markup=False)


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
                None if one["delta_version"] is None else str(one["delta_version"]),
            )
            for one in document["plans"]
        ],
    )


def _key(row: Mapping[str, Any]) -> int | str:
    return f"{row['broker_id']}-{row['partition']}" if "broker_id" in row else int(row["partition"])
