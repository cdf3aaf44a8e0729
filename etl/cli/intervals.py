"""What a schedule asks, before a run and after many: whether logs are complete up to a time, and
which intervals the table lacks.
"""

from __future__ import annotations

from typing import Annotated

import typer

from etl.cli.arguments import AsJson, Conf, settings_of, table_settings_of
from etl.cli.output import show

UntilTime = Annotated[
    str,
    typer.Option(
        "--until-time",
        metavar="TIME",
        help="Such as 2026-01-31T05:00:00+00:00, exclusive.",
        show_default=False,
    ),
]


def complete(
    conf: Conf,
    until_time: UntilTime,
    grace_s: Annotated[
        float,
        typer.Option(
            "--grace-s",
            min=0,
            help="So many seconds after that time a partition counts as complete without a record of it.",
        ),
    ] = 600,
    as_json: AsJson = False,
) -> None:
    """Say whether the logs are complete up to a time: exit code 0 if they are, 6 if not yet;
    nothing is changed.
    """
    from etl.commands import lag as looking
    from etl.console.text import show_complete
    from etl.decide.run_requests import milliseconds, moment

    found = looking.complete(
        settings_of(conf),
        until_ms=milliseconds(moment(until_time, "--until-time")),
        grace_s=grace_s,
    )
    show(as_json, found.as_json(), lambda: show_complete(found))
    if found.refusal:
        raise found.refusal


def intervals(
    conf: Conf,
    from_time: Annotated[
        str,
        typer.Option(
            "--from-time",
            metavar="TIME",
            help="Where the first interval begins.",
            show_default=False,
        ),
    ],
    until_time: UntilTime,
    every: Annotated[
        str, typer.Option(metavar="LENGTH", help="How long each one is: 90s, 15m, 1h, 7d.")
    ] = "1h",
    as_json: AsJson = False,
) -> None:
    """Say which intervals of time are not whole in the table, whatever a scheduler has run; nothing
    is changed.

    Exit code 6 where a partition without a leader could not be asked."""
    from etl.commands import lag as looking
    from etl.console.text import show_intervals
    from etl.decide.run_requests import interval_between, length

    found = looking.intervals(
        table_settings_of(conf), interval_between(from_time, until_time), length(every)
    )
    show(as_json, found.as_json(), lambda: show_intervals(found))
    if found.refusal:
        raise found.refusal
