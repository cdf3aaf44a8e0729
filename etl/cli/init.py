"""`etl init` and `etl schema`: a first conf, and what an editor must know of one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etl.cli.arguments import AsJson
from etl.cli.output import print_json, show

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
    from etl.commands.init import Asked, first_conf
    from etl.console.several import show_first_conf
    from etl.settings.load import parse_change

    said = tuple(map(parse_change, keys or ()))
    written = first_conf(
        Asked(zookeeper, bootstrap, tuple(topic or ()), table, out, pipeline, group, cluster, said)
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
