"""`etl pipelines`: look at the pipelines of a group, take one out of service, and say who may
change what one keeps.
"""

from __future__ import annotations

from typing import Annotated

import typer

from etl.cli.arguments import AsJson, Commands, Conf, Name, Reason, settings_of, table_settings_of
from etl.cli.output import show

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
    from etl.commands.pipelines import list_pipelines
    from etl.console.text import show_pipelines

    rows = list_pipelines(table_settings_of(conf), shows_all=shows_all)
    show(as_json, rows, lambda: show_pipelines(rows))


@pipelines.command("retire")
def pipelines_retire(
    conf: Conf, reason: Reason, name: Name = None, as_json: AsJson = False
) -> None:
    """Take a pipeline out of service: it loads no more, and others may read its topics. Nothing is
    deleted.
    """
    from etl.commands.pipelines import retire
    from etl.console.text import show_ruling

    ruling = retire(table_settings_of(conf), name, reason)
    show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)


@pipelines.command("resume")
def pipelines_resume(
    conf: Conf, reason: Reason, name: Name = None, as_json: AsJson = False
) -> None:
    """Take a retired pipeline into service again; it goes on from its own positions."""
    from etl.commands.pipelines import resume
    from etl.console.text import show_ruling

    ruling = resume(settings_of(conf), name, reason)
    show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)


@pipelines.command("set-acl")
def pipelines_set_acl(conf: Conf, as_json: AsJson = False) -> None:
    """Give what the pipeline keeps in ZooKeeper the ACL that zookeeper.acl asks for: a conf counts
    for new znodes alone.
    """
    from etl.commands.pipelines import set_acl
    from etl.console.text import show_ruling

    ruling = set_acl(settings_of(conf))
    show(as_json, ruling.document, lambda: show_ruling(ruling), is_done=True)
