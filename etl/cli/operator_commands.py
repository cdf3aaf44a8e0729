"""Which arguments do `etl offsets`, `etl plans` and `etl pipelines` take?

`etl offsets`: look at offsets and positions, set them, restore them from the table, and leave
logs alone for a while.

`etl plans`: look at the numbered plans of a pipeline, and decide where a run cannot.

`etl pipelines`: look at the pipelines of a group, take one out of service, and say who may
change what one keeps.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from etl.cli.common_options import (
    AsJson,
    Commands,
    Conf,
    Name,
    Reason,
    Yes,
    confirm,
    run_context,
    settings_of,
    show,
    table_settings_of,
)
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
    from etl.cli.screens import show_offsets
    from etl.commands.lag import offsets

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
    from etl.cli.screens import show_offsets_diff
    from etl.commands.restore_ledger import offsets_diff

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
    from etl.cli.screens import show_decision
    from etl.commands import set_offsets as setting
    from etl.model.partitions import parse_named

    settings, wanted = (
        table_settings_of(conf),
        setting.SetOffsetsRequest(parse_named(log), parse_position(to, "--to")),
    )
    foreseen = setting.look(settings, wanted)
    if foreseen.moves:
        confirm(foreseen.says, yes=yes, as_json=as_json)
    ruling = setting.offsets_set(settings, foreseen, reason)
    show(as_json, ruling.document, lambda: show_decision(ruling), is_done=True)


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
    from etl.cli.screens import show_decision
    from etl.commands import restore_ledger as restoring
    from etl.decide.restore_ledger import Lost

    if not from_table:
        raise SettingsError(
            "nothing but the table tells where a pipeline was",
            key="--from-table",
            action="the same with --from-table",
        )
    settings, context = table_settings_of(conf), run_context()
    foreseen = restoring.look(settings, context)
    if foreseen.lost is not Lost.NOTHING:
        confirm(foreseen.says, yes=yes, as_json=as_json)
    ruling = restoring.restore(settings, foreseen, reason, context)
    show(as_json, ruling.document, lambda: show_decision(ruling), is_done=True)


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
    from etl.cli.screens import show_decision
    from etl.commands import set_offsets as pausing

    ruling = pausing.pause(settings_of(conf), logs, reason)
    show(as_json, ruling.document, lambda: show_decision(ruling), is_done=True)


@offsets.command("resume")
def offsets_resume(conf: Conf, logs: Logs, reason: Reason, as_json: AsJson = False) -> None:
    """Read logs again that are paused: the next plan goes on from their positions."""
    from etl.cli.screens import show_decision
    from etl.commands import set_offsets as pausing

    ruling = pausing.resume(settings_of(conf), logs, reason)
    show(as_json, ruling.document, lambda: show_decision(ruling), is_done=True)


def parse_position(text: str, option: str) -> StartAt | Timestamp | BeforeEnd | int:
    """As `parse_where`, and positions counted back from now or from the end. Raises SettingsError."""
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
    """Parse a position option. Raises SettingsError."""
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
            f"{option} {text!r} is no place in a log: {error}", action=WHERE
        ) from None


plans = Commands(
    rich_markup_mode=None,
    help="Look at the numbered plans of a pipeline, and decide where a run cannot.",
)


@plans.command("list")
def plans_list(conf: Conf, as_json: AsJson = False) -> None:
    """The stored plans, newest last."""
    from etl.cli.screens import show_plans
    from etl.commands.plans import list_plans

    rows = list_plans(settings_of(conf))
    show(as_json, rows, lambda: show_plans(rows))


@plans.command("show")
def plans_show(
    conf: Conf,
    number: Annotated[
        int | None,
        typer.Argument(metavar="N", min=1, help="Number of the plan; the newest by default."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """One plan with its ranges, positions and receipts."""
    from etl.cli import screens
    from etl.commands.plans import show_plan

    document = show_plan(settings_of(conf), number)
    show(as_json, document, lambda: screens.show_plan(document))


@plans.command("supersede")
def plans_supersede(
    conf: Conf,
    number: Annotated[
        int,
        typer.Argument(
            metavar="N", min=1, help="Number of the plan that is stored and not in the table."
        ),
    ],
    reason: Reason,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC:PARTITION:FROM-UNTIL",
            help="Offsets that the new plan leaves out and records as lost.",
        ),
    ] = None,
    handed_over: Annotated[
        bool,
        typer.Option(
            "--handed-over",
            help="Of a plan of a member of the group, of which nobody can tell: no other member read its offsets.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Give up a plan that cannot be finished: another one takes its number, and the next run
    executes it.
    """
    from etl.cli.screens import show_decision
    from etl.commands import operator_decisions

    ruling = operator_decisions.supersede(
        table_settings_of(conf), number, reason, tuple(skip or ()), is_handed_over=handed_over
    )
    show(as_json, ruling.document, lambda: show_decision(ruling), is_done=True)


@plans.command("take-over")
def plans_take_over(
    conf: Conf,
    place: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="GROUP/PIPELINE",
            help="The pipeline that loaded into this table until now.",
        ),
    ],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Take the place of another pipeline in this table (a group or pipeline renamed): go on where
    it ended, and load nothing twice.
    """
    from etl.cli.screens import show_decision
    from etl.commands import inherit_pipeline

    ruling = inherit_pipeline.take_over(table_settings_of(conf), place, reason, run_context())
    show(as_json, ruling.document, lambda: show_decision(ruling), is_done=True)


@plans.command("acknowledge")
def plans_acknowledge(
    conf: Conf,
    version: Annotated[
        str,
        typer.Argument(
            metavar="VERSION", help="The table's version as you saw it, or none when it is gone."
        ),
    ],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Accept the table as it is, whatever others did to it, and go on from ZooKeeper's positions."""
    from etl.cli.screens import show_decision
    from etl.commands import operator_decisions

    ruling = operator_decisions.acknowledge(table_settings_of(conf), version, reason)
    show(as_json, ruling.document, lambda: show_decision(ruling), is_done=True)


@plans.command("accept-log")
def plans_accept_log(
    conf: Conf,
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...", help="TOPIC or TOPIC:PARTITION, as the message names them."
        ),
    ],
    reason: Reason,
    at: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="OFFSET",
            help="Where one cut partition goes on, if its brokers cannot tell where it was cut.",
        ),
    ] = None,
    same_log: Annotated[
        bool,
        typer.Option(
            "--same-log",
            help="They are what they were: ZooKeeper's content was copied to another ensemble, or this broker (Jafka) kept its "
            "log. Of a log that is another all records below our position would never be loaded.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Go on with logs that were cut, or whose topics were made again; rows of records that are gone
    stay, and are named.
    """
    from etl.cli.screens import show_decision
    from etl.commands import operator_decisions

    ruling = operator_decisions.accept_log(
        table_settings_of(conf), tuple(logs), reason, at=at, is_same_log=same_log
    )
    show(as_json, ruling.document, lambda: show_decision(ruling), is_done=True)


pipelines = Commands(
    rich_markup_mode=None,
    help="Look at the pipelines of a group, take one out of service, and set who may change what one keeps.",
)


@pipelines.command("list")
def pipelines_list(
    conf: Conf,
    shows_all: Annotated[
        bool, typer.Option("--all", help="Those of every group of this ZooKeeper.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The pipelines of the conf's group: state, newest plan and its age, who drives it, topics and
    table.
    """
    from etl.cli.screens import show_pipelines
    from etl.commands.pipelines import list_pipelines

    rows = list_pipelines(table_settings_of(conf), shows_all=shows_all)
    show(as_json, rows, lambda: show_pipelines(rows))


@pipelines.command("retire")
def pipelines_retire(
    conf: Conf, reason: Reason, name: Name = None, as_json: AsJson = False
) -> None:
    """Take a pipeline out of service: it loads no more, and others may read its topics. Nothing is
    deleted.
    """
    from etl.cli.screens import show_decision
    from etl.commands.pipelines import retire

    ruling = retire(table_settings_of(conf), name, reason)
    show(as_json, ruling.document, lambda: show_decision(ruling), is_done=True)


@pipelines.command("resume")
def pipelines_resume(
    conf: Conf, reason: Reason, name: Name = None, as_json: AsJson = False
) -> None:
    """Take a retired pipeline into service again; it goes on from its own positions."""
    from etl.cli.screens import show_decision
    from etl.commands.pipelines import resume

    ruling = resume(settings_of(conf), name, reason)
    show(as_json, ruling.document, lambda: show_decision(ruling), is_done=True)


@pipelines.command("set-acl")
def pipelines_set_acl(conf: Conf, as_json: AsJson = False) -> None:
    """Give what the pipeline keeps in ZooKeeper the ACL that zookeeper.acl asks for: a conf counts
    for new znodes alone.
    """
    from etl.cli.screens import show_decision
    from etl.commands.pipelines import set_acl

    ruling = set_acl(settings_of(conf))
    show(as_json, ruling.document, lambda: show_decision(ruling), is_done=True)
