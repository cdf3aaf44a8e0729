"""Which arguments do `etl init`, `package`, `report` and `conf` take?

They write files and change no table.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from etl.cli.common_options import (
    AsJson,
    Commands,
    Conf,
    print_note,
    printable,
    settings_of,
    show,
)
from etl.errors import SettingsError

if TYPE_CHECKING:
    from etl.settings.load import Change


Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        show_default=False,
        help="Set a conf key, to connect and in the conf; repeatable. VALUE is YAML.",
    ),
]


def init(
    zookeeper: Annotated[
        str,
        typer.Option(metavar="CONNECT", help="Connect string for the ledger.", show_default=False),
    ],
    topic: Annotated[
        list[str],
        typer.Option(metavar="TOPIC", help="Name or expression; repeatable.", show_default=False),
    ],
    table: Annotated[str, typer.Option(metavar="PATH", help="Path or URL.", show_default=False)],
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Default: the brokers in ZooKeeper; required where it has none (KRaft).",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Where to write. Default: conf/TOPIC.yaml.",
            show_default=False,
        ),
    ] = None,
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """Write a first conf from what the brokers report."""
    from etl.cli.screens import show_first_conf
    from etl.commands.init import InitRequest, write_first_conf
    from etl.settings.load import parse_change

    names: dict[str, str] = {}
    changes = []
    for change in map(parse_change, keys or ()):
        if change.key in _NAMES:
            names[_NAMES[change.key]] = _name(change)
        else:
            changes.append(change)
    request = InitRequest(
        zookeeper, bootstrap_servers, tuple(topic), table, output, keys=tuple(changes), **names
    )
    written = write_first_conf(request)
    show(as_json, written.as_json(), lambda: show_first_conf(written), is_done=True)


_NAMES = {
    "pipeline": "pipeline",
    "group": "group",
    "group.id": "group",
    "source.assume_cluster_id": "cluster",
}
"""Keys whose values `etl init` would otherwise choose."""


def _name(change: Change) -> str:
    if not isinstance(change.value, str):
        raise SettingsError(
            f"--set {change.key}: must be a string", key=change.key, action="Quote the value"
        )
    return change.value


conf = Commands(rich_markup_mode=None, help="Describe the keys of a conf.")


@conf.command("schema")
def conf_schema(
    defaults_file: Annotated[
        bool, typer.Option("--defaults-file", help="Of a file named by the key `defaults`.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the JSON Schema of a conf. It is JSON with and without --json."""
    from etl.settings import schema

    print(json.dumps(schema.conf_schema(for_defaults=defaults_file), indent=2))


@conf.callback()
def describe_conf() -> None:
    """Describe the keys of a conf."""


def package(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="PATH", help="Where to write.")
    ] = Path("dist"),
    include_dependencies: Annotated[
        bool,
        typer.Option("--include-dependencies", help="Pack the Python environment, too."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build the files for spark-submit on a cluster."""
    from etl.cli.screens import show_package
    from etl.commands import package as package_command

    files = package_command.package(output, with_environment=include_dependencies)
    show(as_json, files.as_json(), lambda: show_package(files), is_done=True)


def report(
    conf: Conf,
    run_id: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN_ID", help="Default: the last.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Where to write. Default: next to the run's report.",
            show_default=False,
        ),
    ] = None,
    is_opened: Annotated[bool, typer.Option("--open", help="Open in a browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the HTML report of a run."""
    from etl.commands.report import has_display, open_in_browser, report_page

    page = report_page(settings_of(conf), run_id, output)
    show(as_json, page.as_json(), lambda: print(printable(str(page.path))), is_done=True)
    if is_opened and not (has_display() and open_in_browser(page.path)):
        print_note("No display or no browser here: open the page on another machine")
