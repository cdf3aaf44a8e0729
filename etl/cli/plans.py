"""`etl plans`: look at the numbered plans of a pipeline, and decide where a run cannot."""

from __future__ import annotations

from typing import Annotated

import typer

from etl.cli.arguments import (
    AsJson,
    Commands,
    Conf,
    Reason,
    run_context,
    settings_of,
    table_settings_of,
)
from etl.cli.output import show

plans = Commands(
    rich_markup_mode=None,
    help="Look at the numbered plans of a pipeline, and decide where a run cannot.",
)


@plans.command("list")
def plans_list(conf: Conf, as_json: AsJson = False) -> None:
    """The stored plans, newest last."""
    from etl.commands.plans import list_plans
    from etl.console.text import show_plans

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
    from etl.commands.plans import show_plan
    from etl.console import text

    document = show_plan(settings_of(conf), number)
    show(as_json, document, lambda: text.show_plan(document))


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
    from etl.commands import operator_decisions
    from etl.console.text import show_ruling

    ruling = operator_decisions.supersede(
        table_settings_of(conf), number, reason, tuple(skip or ()), is_handed_over=handed_over
    )
    show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)


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
    from etl.commands import inherit_pipeline
    from etl.console.text import show_ruling

    ruling = inherit_pipeline.take_over(table_settings_of(conf), place, reason, run_context())
    show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)


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
    from etl.commands import operator_decisions
    from etl.console.text import show_ruling

    ruling = operator_decisions.acknowledge(table_settings_of(conf), version, reason)
    show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)


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
    from etl.commands import operator_decisions
    from etl.console.text import show_ruling

    ruling = operator_decisions.accept_log(
        table_settings_of(conf), tuple(logs), reason, at=at, is_same_log=same_log
    )
    show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)
