"""`etl offsets`: look at offsets and positions, set them, restore them from the table, and leave
logs alone for a while.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from etl.cli.arguments import (
    AsJson,
    Commands,
    Conf,
    Reason,
    Yes,
    run_context,
    settings_of,
    table_settings_of,
)
from etl.cli.output import confirm, show
from etl.errors import SettingsError

if TYPE_CHECKING:
    from etl.commands.set_offsets import BeforeEnd
    from etl.settings.choices import StartAt
    from etl.settings.source import Timestamp

offsets = Commands(rich_markup_mode=None, help="Look at offsets and positions, and set them.")
WHERE = "earliest, latest, an offset, or a time with its UTC offset: 2026-01-31T00:00:00+00:00"


@offsets.command("show")
def offsets_show(conf: Conf, as_json: AsJson = False) -> None:
    """The committed offset of each partition beside the log and the pipeline's position."""
    from etl.commands.lag import offsets
    from etl.console.offsets import show_offsets

    found = offsets(table_settings_of(conf))
    show(as_json, found.rows, lambda: show_offsets(found.rows))
    if found.refusal:
        raise found.refusal


@offsets.command("diff")
def offsets_diff(
    conf: Conf,
    shows_all: Annotated[
        bool, typer.Option("--all", help="Also the partitions of which all three tell the same.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """ZooKeeper's offsets, the newest plan and the table side by side: where they differ, and what
    the next run does about it.
    """
    from etl.commands.restore_ledger import offsets_diff
    from etl.console.offsets import show_offsets_diff

    found = offsets_diff(table_settings_of(conf), shows_all=shows_all)
    show(as_json, found.document, lambda: show_offsets_diff(found.document))
    if found.refusal:
        raise found.refusal


@offsets.command("set")
def offsets_set(
    conf: Conf,
    log: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC[:PARTITION]", help="A topic, or one partition of it.", show_default=False
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help=f"{WHERE}; -1h: before now; -10000: offsets before the end of each partition.",
            show_default=False,
        ),
    ],
    reason: Reason,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Set positions: forwards past what is then told lost, or back over what was never loaded. The
    next run executes it.
    """
    from etl.commands import set_offsets as setting
    from etl.console.text import show_ruling
    from etl.model.partitions import parse_named

    settings, wanted = (
        table_settings_of(conf),
        setting.Wanted(parse_named(log), parse_position(to, "--to")),
    )
    foreseen = setting.look(settings, wanted)
    if foreseen.moves:
        confirm(foreseen.says, yes=yes, as_json=as_json)
    ruling = setting.offsets_set(settings, foreseen, reason)
    show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)


@offsets.command("restore")
def offsets_restore(
    conf: Conf,
    from_table: Annotated[
        bool,
        typer.Option(
            "--from-table", help="From what the table tells, which is what there is to go by."
        ),
    ],
    reason: Reason,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Positions and ledger from the table, where ZooKeeper lost them, an old copy was put back, or
    another client moved offsets.
    """
    from etl.commands import restore_ledger as restoring
    from etl.console.text import show_ruling
    from etl.decide.restore_ledger import Lost

    if not from_table:
        raise SettingsError(
            "nothing but the table tells where a pipeline was",
            key="--from-table",
            check="the same with --from-table",
        )
    settings, context = table_settings_of(conf), run_context()
    foreseen = restoring.look(settings, context)
    if foreseen.lost is not Lost.NOTHING:
        confirm(foreseen.says, yes=yes, as_json=as_json)
    ruling = restoring.restore(settings, foreseen, reason, context)
    show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)


Logs = Annotated[
    list[str],
    typer.Argument(
        metavar="LOG...",
        help="TOPIC, all its partitions and those to come; or TOPIC:PARTITION.",
        show_default=False,
    ),
]


@offsets.command("pause")
def offsets_pause(conf: Conf, logs: Logs, reason: Reason, as_json: AsJson = False) -> None:
    """Leave logs alone, from the next plan on: positions stay, nothing of them is read until they
    are resumed.
    """
    from etl.commands import set_offsets as pausing
    from etl.console.text import show_ruling

    ruling = pausing.pause(settings_of(conf), logs, reason)
    show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)


@offsets.command("resume")
def offsets_resume(conf: Conf, logs: Logs, reason: Reason, as_json: AsJson = False) -> None:
    """Read logs again that are paused: the next plan goes on from their positions."""
    from etl.commands import set_offsets as pausing
    from etl.console.text import show_ruling

    ruling = pausing.resume(settings_of(conf), logs, reason)
    show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)


def parse_position(text: str, option: str) -> StartAt | Timestamp | BeforeEnd | int:
    """The same as `parse_where`, and what is counted back from now or from a log's end. Raises
    SettingsError.
    """
    from etl.commands.set_offsets import BeforeEnd
    from etl.run.services import now_ms
    from etl.settings.load import parse_bound
    from etl.settings.source import timestamp_of

    if not re.fullmatch(r"-[0-9]+[smhd]?", text.strip(), re.ASCII):
        return parse_where(text, option)
    bound = parse_bound(text, now_ms(), key=option)
    if bound.at_ms is not None:
        return timestamp_of(bound.at_ms)
    return BeforeEnd(bound.back or 0)


def parse_where(text: str, option: str) -> StartAt | Timestamp | int:
    """What the option says of a place in a log. Raises SettingsError."""
    from etl.settings.choices import StartAt
    from etl.settings.source import parse_timestamp

    if re.fullmatch(r"[0-9]{1,19}", text):
        return int(text)
    if text in tuple(StartAt):
        return StartAt(text)
    try:
        return parse_timestamp(text)
    except ValueError as error:
        raise SettingsError(
            f"{option} {text!r} is no place in a log: {error}", check=WHERE
        ) from None
