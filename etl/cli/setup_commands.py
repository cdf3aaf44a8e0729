"""Which arguments do the commands take that change no table?

init, schema, package, report, complete, intervals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etl.cli.common_options import (
    AsJson,
    Conf,
    print_json,
    say,
    settings_of,
    show,
    table_settings_of,
)

Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The file to write; conf/NAME.yaml by default. No file is written over.",
        show_default=False,
    ),
]

Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        show_default=False,
        help="A key of source, zookeeper or table to ask by, and to write: source.security.protocol=SSL. May be said several times.",
    ),
]


def init(
    table: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Where the rows go: a folder, or an object store's URL.",
            show_default=False,
        ),
    ],
    zookeeper: Annotated[
        str,
        typer.Option(
            metavar="CONNECT",
            help="host:port,host:port/chroot: where the brokers are registered; with --bootstrap where the ledger goes.",
            show_default=False,
        ),
    ] = "",
    bootstrap: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Brokers, where ZooKeeper does not have them (KRaft, all of 4.x).",
            show_default=False,
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC",
            help="A topic, or a regular expression; may be said several times.",
            show_default=False,
        ),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The pipeline's name; else that of the file or the topic.",
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The consumer group; etl-PIPELINE by default.", show_default=False
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A name for a cluster whose brokers tell no id.",
            show_default=False,
        ),
    ] = None,
    out: Out = None,
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """Ask the brokers and write a first conf, each key with why it is so."""
    from etl.cli.screens import show_first_conf
    from etl.commands.init import InitRequest, first_conf
    from etl.settings.load import parse_change

    said = tuple(map(parse_change, keys or ()))
    written = first_conf(
        InitRequest(
            zookeeper, bootstrap, tuple(topic or ()), table, out, pipeline, group, cluster, said
        )
    )
    show(as_json, written.as_json(), lambda: show_first_conf(written), is_done=True)


def schema(
    for_defaults: Annotated[
        bool, typer.Option("--defaults", help="That of a file of defaults.")
    ] = False,
) -> None:
    """Print the JSON Schema of a conf, by which editors know its keys."""
    from etl.settings.schema import conf_schema

    print_json(conf_schema(for_defaults=for_defaults))


def package(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where it is put.")] = Path("dist"),
    environment: Annotated[
        bool,
        typer.Option(
            "--environment",
            help="Pack the whole Python environment besides, for workers that have no libraries.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make what brings this package to a cluster's workers, and say the command for spark-submit."""
    from etl.cli.screens import show_package
    from etl.commands import package as packing

    made = packing.package(out, with_environment=environment)
    show(as_json, made.as_json(), lambda: show_package(made), is_done=True)


def report(
    conf: Conf,
    run_id: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="An earlier run, by its name as its report's file has it; the last one by default.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Where the page goes; beside the run's report by default.",
            show_default=False,
        ),
    ] = None,
    is_opened: Annotated[
        bool, typer.Option("--open", help="Show it in a browser, where there is a display.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The report of the last run as a page that stands alone, and where it is; nothing else is
    changed.
    """
    from etl.commands.report import has_display, open_in_browser, report_page

    page = report_page(settings_of(conf), run_id, out)
    show(as_json, page.as_json(), lambda: print(page.path), is_done=True)
    if is_opened and not (has_display() and open_in_browser(page.path)):
        say("there is no display here, or no browser: open the page where there is one")


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
    from etl.cli.screens import show_complete
    from etl.commands import lag as looking
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
    from etl.cli.screens import show_intervals
    from etl.commands import lag as looking
    from etl.decide.run_requests import interval_between, length

    found = looking.intervals(
        table_settings_of(conf), interval_between(from_time, until_time), length(every)
    )
    show(as_json, found.as_json(), lambda: show_intervals(found))
    if found.refusal:
        raise found.refusal
