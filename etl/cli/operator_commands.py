"""Which arguments do `etl offsets`, `plans`, `topics`, `table`, `ledger` and `pipelines` take?

They show the state of a pipeline, and store decisions of operators that a run cannot make.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from etl.cli.common_options import (
    AsJson,
    Commands,
    Conf,
    DryRun,
    Name,
    PartitionOption,
    Quiet,
    Reason,
    UntilRequired,
    Yes,
    confirm,
    run_context,
    settings_of,
    show,
    single,
    table_settings_of,
)
from etl.decide.run_requests import duration, point_in_time
from etl.errors import SettingsError

if TYPE_CHECKING:
    from etl.settings.choices import StartAt
    from etl.settings.source import BeforeEnd, Timestamp


offsets = Commands(rich_markup_mode=None, help="Where the pipeline stands.")
POSITION = "an offset, earliest, latest, or a time: 2026-01-31T13:00Z, or -1h (before now)"


@offsets.command("show")
def offsets_show(conf: Conf, as_json: AsJson = False) -> None:
    """Show log start, log end, committed and loaded-until offsets."""
    from etl.cli.screens import show_offsets
    from etl.commands.lag import offsets

    found = offsets(table_settings_of(conf))
    show(as_json, found.rows, lambda: show_offsets(found.rows))
    if found.refusal:
        raise found.refusal


@offsets.command("diff")
def offsets_diff(
    conf: Conf,
    all_partitions: Annotated[
        bool, typer.Option("--all-partitions", help="Also those that agree.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show where committed offsets, newest plan and table differ. Exit 5: needs a decision."""
    from etl.cli.screens import show_offsets_diff
    from etl.commands.restore_ledger import offsets_diff

    found = offsets_diff(table_settings_of(conf), shows_all=all_partitions)
    show(as_json, found.document, lambda: show_offsets_diff(found.document))
    if found.refusal:
        raise found.refusal


@offsets.command("set")
def offsets_set(
    conf: Conf,
    partition: PartitionOption,
    to: Annotated[str, typer.Option(metavar="POSITION", help=f"{POSITION}.", show_default=False)],
    reason: Reason,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Set where the next run continues: ahead (skipped offsets are lost) or back (over offsets
    never loaded). Exit 5: their rows are in the table.
    """
    from etl.cli.screens import show_decision
    from etl.commands import set_offsets as setting
    from etl.model.partitions import parse_named

    settings = table_settings_of(conf)
    request = setting.SetOffsetsRequest(parse_named(single(partition)), parse_position(to, "--to"))
    foreseen = setting.preview_offsets(settings, request)
    if foreseen.moves:
        confirm(foreseen.summary, yes=yes, as_json=as_json)
    decision = setting.offsets_set(settings, foreseen, reason)
    show(as_json, decision.document, lambda: show_decision(decision), is_done=True)


def parse_position(text: str, option: str) -> StartAt | Timestamp | BeforeEnd | int:
    """Parse a POSITION, also one relative to now (`-1h`) or to the log end (`-10000`).

    Raises SettingsError.
    """
    from etl.run.service_interfaces import now_ms
    from etl.settings.run_request import parse_bound
    from etl.settings.source import BeforeEnd, timestamp_of

    if found := re.fullmatch(r"-([0-9]{1,18})", text.strip(), re.ASCII):
        return BeforeEnd(int(found[1]))
    if re.fullmatch(r"-[0-9]+[smhd]", text.strip(), re.ASCII):
        return timestamp_of(parse_bound(text, now_ms(), key=option).at_ms or 0)
    return parse_where(text, option)


def parse_where(text: str, option: str) -> StartAt | Timestamp | int:
    """Parse an absolute POSITION. Raises SettingsError."""
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
            f"{option} {text!r} is not a position: {error}", action=f"Pass {POSITION}"
        ) from None


plans = Commands(rich_markup_mode=None, help="Numbered batches, stored before they are read.")


@plans.command("list")
def plans_list(conf: Conf, as_json: AsJson = False) -> None:
    """List the stored plans."""
    from etl.cli.screens import show_plans
    from etl.commands.plans import list_plans

    rows = list_plans(settings_of(conf))
    show(as_json, rows, lambda: show_plans(rows))


@plans.command("show")
def plans_show(
    conf: Conf,
    number: Annotated[
        int | None,
        typer.Argument(metavar="N", min=1, help="Number of the plan. Default: the newest."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a plan and its results."""
    from etl.cli import screens
    from etl.commands.plans import show_plan

    document = show_plan(settings_of(conf), number)
    show(as_json, document, lambda: screens.show_plan(document))


@plans.command("supersede")
def plans_supersede(
    conf: Conf,
    number: Annotated[int, typer.Argument(metavar="N", min=1, help="Number of the plan.")],
    reason: Reason,
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC:PARTITION:FROM-UNTIL", help="Record as lost; repeatable."),
    ] = None,
    assume_offsets_committed: Annotated[
        bool,
        typer.Option(
            "--assume-offsets-committed",
            help="Its in-doubt commit of offsets to the group is done.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Replace a stored plan that cannot finish."""
    from etl.cli.screens import show_decision
    from etl.commands import operator_decisions

    decision = operator_decisions.supersede(
        table_settings_of(conf),
        number,
        reason,
        tuple(skip or ()),
        is_handed_over=assume_offsets_committed,
    )
    show(as_json, decision.document, lambda: show_decision(decision), is_done=True)


topics = Commands(rich_markup_mode=None, help="What is read.")


@topics.command("ready")
def topics_ready(
    conf: Conf,
    until: UntilRequired,
    assume_ready_after: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="A partition without such a record is ready this long after --until.",
        ),
    ] = "10m",
    as_json: AsJson = False,
) -> None:
    """Check that each partition has a record at or after a time. Exit 8: not yet."""
    from etl.cli.screens import show_complete
    from etl.commands import lag as looking
    from etl.decide.run_requests import milliseconds
    from etl.run.service_interfaces import now_ms

    found = looking.check_topics_ready(
        settings_of(conf),
        until_ms=milliseconds(point_in_time(until, "--until", now_ms())),
        grace_s=duration(assume_ready_after, "--assume-ready-after").total_seconds(),
    )
    show(as_json, found.as_json(), lambda: show_complete(found))
    if found.refusal:
        raise found.refusal


@topics.command("pause")
def topics_pause(
    conf: Conf, partition: PartitionOption, reason: Reason, as_json: AsJson = False
) -> None:
    """Stop reading partitions until they are resumed."""
    from etl.cli.screens import show_decision
    from etl.commands import set_offsets as pausing

    decision = pausing.pause(settings_of(conf), partition, reason)
    show(as_json, decision.document, lambda: show_decision(decision), is_done=True)


@topics.command("resume")
def topics_resume(
    conf: Conf, partition: PartitionOption, reason: Reason, as_json: AsJson = False
) -> None:
    """Read paused partitions again."""
    from etl.cli.screens import show_decision
    from etl.commands import set_offsets as pausing

    decision = pausing.resume(settings_of(conf), partition, reason)
    show(as_json, decision.document, lambda: show_decision(decision), is_done=True)


@topics.command("accept-changes")
def topics_accept_changes(
    conf: Conf,
    partition: PartitionOption,
    reason: Reason,
    truncated_at: Annotated[
        int | None,
        typer.Option(min=0, metavar="OFFSET", help="Records below it are unchanged."),
    ] = None,
    not_recreated: Annotated[
        bool,
        typer.Option(
            "--not-recreated",
            help="All records are unchanged (if that is wrong, records are lost or doubled).",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Continue with recreated topics or truncated partitions."""
    from etl.cli.screens import show_decision
    from etl.commands import operator_decisions

    decision = operator_decisions.accept_partitions(
        table_settings_of(conf),
        tuple(partition),
        reason,
        at=truncated_at,
        is_same_log=not_recreated,
    )
    show(as_json, decision.document, lambda: show_decision(decision), is_done=True)


table = Commands(rich_markup_mode=None, help="Where rows are.")


@table.command("gaps")
def table_gaps(
    conf: Conf,
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Start.", show_default=False)
    ],
    until: UntilRequired,
    every: Annotated[str, typer.Option(metavar="DURATION", help="Their length.")] = "1h",
    as_json: AsJson = False,
) -> None:
    """List time intervals that are not fully loaded."""
    from etl.cli.screens import show_intervals
    from etl.commands import lag as looking
    from etl.decide.run_requests import interval_between
    from etl.run.service_interfaces import now_ms

    now = now_ms()
    whole = interval_between(
        point_in_time(start, "--from", now), point_in_time(until, "--until", now)
    )
    found = looking.find_table_gaps(table_settings_of(conf), whole, duration(every, "--every"))
    show(as_json, found.as_json(), lambda: show_intervals(found))
    if found.refusal:
        raise found.refusal


@table.command("compact")
def table_compact(
    conf: Conf, dry_run: DryRun = False, as_json: AsJson = False, quiet: Quiet = False
) -> None:
    """Combine small files (OPTIMIZE)."""
    from etl.cli.screens import show_sentences
    from etl.commands import maintain as compacting

    done = compacting.compact(
        table_settings_of(conf), run_context(quiet=quiet, as_json=as_json), dry_run=dry_run
    )
    show(as_json, done.as_json(), lambda: show_sentences(done.summary), is_done=not dry_run)


@table.command("maintain")
def table_maintain(
    conf: Conf,
    retain: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Keep unused files this long, in days. Default: 7d, or the table's property.",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Combine small files, delete unused ones (VACUUM), write a checkpoint, prune plans."""
    from etl.cli.screens import show_sentences
    from etl.commands import maintain as maintaining

    settings, context = table_settings_of(conf), run_context(quiet=quiet, as_json=as_json)
    keep = None if retain is None else _retention(retain)
    if dry_run or not yes:
        foreseen = maintaining.preview_maintenance(settings, context, keep=keep)
        if dry_run:
            show(as_json, foreseen.as_json(), lambda: show_sentences(foreseen.summary))
            return
        confirm(foreseen.summary, yes=yes, as_json=as_json)
    done = maintaining.maintain(settings, context, keep=keep)
    show(as_json, done.as_json(), lambda: show_sentences(done.summary), is_done=True)


def _retention(text: str) -> timedelta:
    keep = duration(text, "--retain")
    if keep < timedelta(days=1):
        raise SettingsError(
            f"--retain {text} is less than a day", key="--retain", action="Pass 1d or more"
        )
    return keep


@table.command("accept-changes")
def table_accept_changes(
    conf: Conf,
    up_to_version: Annotated[
        str,
        typer.Argument(
            metavar="UP_TO_VERSION", help="The table's version, or `none`: the table is gone."
        ),
    ],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Accept other writers' changes up to and including this version."""
    from etl.cli.screens import show_decision
    from etl.commands import operator_decisions

    decision = operator_decisions.accept_table(table_settings_of(conf), up_to_version, reason)
    show(as_json, decision.document, lambda: show_decision(decision), is_done=True)


@table.command("lookup-path")
def table_lookup_path(
    conf: Conf,
    create_empty: Annotated[
        bool,
        typer.Option("--create-empty", help="Create an empty table if there is none."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look the table's path up in its catalog and store it."""
    from etl.cli.screens import show_decision
    from etl.commands.operator_decisions import lookup_path

    context = run_context(quiet=True, as_json=as_json)
    decision = lookup_path(settings_of(conf), context, is_made=create_empty)
    show(as_json, decision.document, lambda: show_decision(decision), is_done=True)


ledger = Commands(rich_markup_mode=None, help="What the pipeline remembers.")


@ledger.command("restore")
def ledger_restore(conf: Conf, reason: Reason, yes: Yes = False, as_json: AsJson = False) -> None:
    """Restore ledger and committed offsets from the table, after ZooKeeper lost them."""
    from etl.cli.screens import show_decision
    from etl.commands import restore_ledger as restoring
    from etl.decide.restore_ledger import Lost

    settings, context = table_settings_of(conf), run_context()
    foreseen = restoring.preview_restore(settings, context)
    if foreseen.lost is not Lost.NOTHING:
        confirm(foreseen.summary, yes=yes, as_json=as_json)
    decision = restoring.restore(settings, foreseen, reason, context)
    show(as_json, decision.document, lambda: show_decision(decision), is_done=True)


@ledger.command("apply-acl")
def ledger_apply_acl(conf: Conf, as_json: AsJson = False) -> None:
    """Apply zookeeper.acl to existing znodes."""
    from etl.cli.screens import show_decision
    from etl.commands.pipelines import set_acl

    decision = set_acl(settings_of(conf))
    show(as_json, decision.document, lambda: show_decision(decision), is_done=True)


pipelines = Commands(rich_markup_mode=None, help="Who loads.")


@pipelines.command("list")
def pipelines_list(
    conf: Conf,
    all_groups: Annotated[bool, typer.Option("--all-groups", help="Of all groups.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the pipelines of the group."""
    from etl.cli.screens import show_pipelines
    from etl.commands.pipelines import list_pipelines

    rows = list_pipelines(table_settings_of(conf), shows_all=all_groups)
    show(as_json, rows, lambda: show_pipelines(rows))


@pipelines.command("retire")
def pipelines_retire(
    conf: Conf, reason: Reason, name: Name = None, as_json: AsJson = False
) -> None:
    """Take a pipeline out of service; nothing is deleted."""
    from etl.cli.screens import show_decision
    from etl.commands.pipelines import retire

    decision = retire(table_settings_of(conf), name, reason)
    show(as_json, decision.document, lambda: show_decision(decision), is_done=True)


@pipelines.command("resume")
def pipelines_resume(
    conf: Conf, reason: Reason, name: Name = None, as_json: AsJson = False
) -> None:
    """Take a retired pipeline into service."""
    from etl.cli.screens import show_decision
    from etl.commands.pipelines import resume

    decision = resume(settings_of(conf), name, reason)
    show(as_json, decision.document, lambda: show_decision(decision), is_done=True)


@pipelines.command("inherit")
def pipelines_inherit(
    conf: Conf,
    predecessor: Annotated[
        str,
        typer.Option(
            metavar="GROUP/NAME",
            help="The pipeline that loaded into this table.",
            show_default=False,
        ),
    ],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Continue where another pipeline of this table ended."""
    from etl.cli.screens import show_decision
    from etl.commands import inherit_pipeline

    settings = table_settings_of(conf)
    context = run_context()
    decision = inherit_pipeline.inherit_pipeline(settings, predecessor, reason, context)
    show(as_json, decision.document, lambda: show_decision(decision), is_done=True)
