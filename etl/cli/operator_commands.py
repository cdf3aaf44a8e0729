"""Which arguments do `etl offsets`, `plans`, `topics`, `table`, `ledger` and `pipelines` take?

They show the state of a pipeline, and store decisions of operators that a run cannot make.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from etl.cli.common_options import (
    POSITION,
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
    approve,
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
    from etl.commands.operator_decisions import DecisionResult
    from etl.settings.choices import StartAt
    from etl.settings.source import BeforeEnd, Timestamp


def _show_decision(decision: DecisionResult, *, dry_run: bool, as_json: bool) -> None:
    """Print what a command decided, or in a dry run: would decide."""
    from etl.cli.screens import show_decision, show_dry_run

    if dry_run:
        document = {"dry_run": True, **decision.document}
        show(as_json, document, lambda: show_dry_run(decision))
        return
    show(as_json, decision.document, lambda: show_decision(decision), is_done=True)


offsets = Commands(rich_markup_mode=None, help="Where the pipeline stands.")


@offsets.command("show")
def offsets_show(conf: Conf, as_json: AsJson = False) -> None:
    """Show log start, log end, committed and loaded-until offsets."""
    from etl.cli.screens import show_offsets
    from etl.commands.lag import offsets

    found = offsets(table_settings_of(conf))
    show(as_json, {"partitions": found.rows}, lambda: show_offsets(found.rows))
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
    to: Annotated[
        str, typer.Option(metavar="POSITION", help=f"A{POSITION[1:]}.", show_default=False)
    ],
    reason: Reason,
    dry_run: DryRun = False,
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
    moves = {"moves": foreseen.as_json()}
    if (dry_run or foreseen.moves) and not approve(
        foreseen.summary, dry_run=dry_run, yes=yes, as_json=as_json, details=moves
    ):
        return
    decision = setting.offsets_set(settings, foreseen, reason)
    show(as_json, decision.document, lambda: show_decision(decision), is_done=True)


def parse_position(text: str, option: str) -> StartAt | Timestamp | BeforeEnd | int:
    """Parse a POSITION, also one relative to now (`-1h`) or to the log end (`-10000`).

    Raises SettingsError.
    """
    from etl.run.service_interfaces import now_ms
    from etl.settings.source import BeforeEnd, timestamp_of
    from etl.settings.until_and_run_key import parse_bound

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


plans = Commands(rich_markup_mode=None, help="Numbered batches.")


@plans.command("list")
def plans_list(conf: Conf, as_json: AsJson = False) -> None:
    """List the stored plans."""
    from etl.cli.screens import show_plans
    from etl.commands.plans import list_plans

    rows = list_plans(settings_of(conf))
    show(as_json, {"plans": rows}, lambda: show_plans(rows))


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
        typer.Option(metavar="RANGE", help="Record as lost: clicks:3:100-131; repeatable."),
    ] = None,
    assume_offsets_committed: Annotated[
        bool,
        typer.Option(
            "--assume-offsets-committed",
            help="Its in-doubt commit of offsets to the group is done.",
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Replace a stored plan that cannot finish."""
    from etl.commands import operator_decisions

    settings = table_settings_of(conf)
    effects = [f"Plan {number} is replaced, and the next run executes the new plan"]
    if skip:
        effects.append(f"These offsets are recorded as lost: {', '.join(skip)}")
    if assume_offsets_committed:
        effects.append(f"The offsets of plan {number} count as committed")
    confirm(effects, yes=yes, dry_run=dry_run, as_json=as_json)
    decision = operator_decisions.supersede(
        settings,
        number,
        reason,
        tuple(skip or ()),
        is_handed_over=assume_offsets_committed,
        dry_run=dry_run,
    )
    _show_decision(decision, dry_run=dry_run, as_json=as_json)


topics = Commands(rich_markup_mode=None, help="What is read.")


@topics.command("ready-to-load")
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
    """Stop reading partitions until they are resumed.

    Asks for no confirmation: `etl topics resume` undoes it.
    """
    from etl.cli.screens import show_decision
    from etl.commands import set_offsets as pausing

    decision = pausing.pause(settings_of(conf), partition, reason)
    show(as_json, decision.document, lambda: show_decision(decision), is_done=True)


@topics.command("resume")
def topics_resume(
    conf: Conf, partition: PartitionOption, reason: Reason, as_json: AsJson = False
) -> None:
    """Read paused partitions again.

    Asks for no confirmation: `etl topics pause` undoes it.
    """
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
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Continue with recreated topics or truncated partitions."""
    from etl.commands import operator_decisions

    settings = table_settings_of(conf)
    effect = f"The changes of {', '.join(partition)} are accepted, and the next run continues there"
    if truncated_at is not None:
        effect += f"; records below offset {truncated_at} count as unchanged"
    if not_recreated:
        effect += "; all records count as unchanged (if that is wrong, records are lost or doubled)"
    confirm([effect], yes=yes, dry_run=dry_run, as_json=as_json)
    decision = operator_decisions.accept_partitions(
        settings,
        tuple(partition),
        reason,
        at=truncated_at,
        is_same_log=not_recreated,
        dry_run=dry_run,
    )
    _show_decision(decision, dry_run=dry_run, as_json=as_json)


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
            help="Keep unused files this long, at least 7d. Default: 7d, or the table's property.",
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
    keep = None if retain is None else duration(retain, "--retain")
    if dry_run or not yes:
        foreseen = maintaining.preview_maintenance(settings, context, keep=keep)
        if dry_run:
            show(as_json, foreseen.as_json(), lambda: show_sentences(foreseen.summary))
            return
        confirm(foreseen.summary, yes=yes, as_json=as_json)
    done = maintaining.maintain(settings, context, keep=keep)
    show(as_json, done.as_json(), lambda: show_sentences(done.summary), is_done=True)


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
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Accept other writers' changes up to and including this version."""
    from etl.commands import operator_decisions

    settings = table_settings_of(conf)
    effect = f"Changes of other writers up to and including version {up_to_version} are accepted"
    if up_to_version == "none":
        effect = "It is accepted that the table is gone"
    confirm([effect], yes=yes, dry_run=dry_run, as_json=as_json)
    decision = operator_decisions.accept_table(settings, up_to_version, reason, dry_run=dry_run)
    _show_decision(decision, dry_run=dry_run, as_json=as_json)


@table.command("refresh-path")
def table_refresh_path(
    conf: Conf,
    create_empty: Annotated[
        bool,
        typer.Option("--create-empty", help="Create an empty table if there is none."),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Look the table's path up in its catalog and store it."""
    from etl.commands.operator_decisions import refresh_path

    settings, context = settings_of(conf), run_context(quiet=True, as_json=as_json)
    if settings.table.name is not None and not dry_run:
        effect = f"The path of table {settings.table.name} is looked up in its catalog and stored"
        if create_empty:
            effect += "; an empty table is created if there is none"
        confirm([effect], yes=yes, as_json=as_json)
    decision = refresh_path(settings, context, is_made=create_empty, dry_run=dry_run)
    _show_decision(decision, dry_run=dry_run, as_json=as_json)


ledger = Commands(rich_markup_mode=None, help="What the pipeline remembers.")


@ledger.command("restore")
def ledger_restore(
    conf: Conf,
    reason: Reason,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Restore ledger and committed offsets from the table, after ZooKeeper lost them."""
    from etl.cli.screens import show_decision
    from etl.commands import restore_ledger as restoring
    from etl.decide.restore_ledger import Lost

    settings, context = table_settings_of(conf), run_context(quiet=quiet)
    foreseen = restoring.preview_restore(settings, context)
    lost = {"restored": foreseen.lost.value}
    if (dry_run or foreseen.lost is not Lost.NOTHING) and not approve(
        foreseen.summary, dry_run=dry_run, yes=yes, as_json=as_json, details=lost
    ):
        return
    decision = restoring.restore(settings, foreseen, reason, context)
    show(as_json, decision.document, lambda: show_decision(decision), is_done=True)


@ledger.command("apply-acl")
def ledger_apply_acl(
    conf: Conf, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Apply zookeeper.acl to existing znodes."""
    from etl.commands.pipelines import set_acl

    settings = settings_of(conf)
    effect = (
        f"zookeeper.acl: {settings.zookeeper.acl.value} is applied to the existing znodes of "
        f"pipeline {settings.pipeline}"
    )
    confirm([effect], yes=yes, dry_run=dry_run, as_json=as_json)
    decision = set_acl(settings, dry_run=dry_run)
    _show_decision(decision, dry_run=dry_run, as_json=as_json)


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
    show(as_json, {"pipelines": rows}, lambda: show_pipelines(rows))


@pipelines.command("retire")
def pipelines_retire(
    conf: Conf, reason: Reason, name: Name = None, as_json: AsJson = False
) -> None:
    """Take a pipeline out of service; nothing is deleted.

    Asks for no confirmation: `etl pipelines resume` undoes it.
    """
    from etl.cli.screens import show_decision
    from etl.commands.pipelines import retire

    decision = retire(table_settings_of(conf), name, reason)
    show(as_json, decision.document, lambda: show_decision(decision), is_done=True)


@pipelines.command("resume")
def pipelines_resume(
    conf: Conf, reason: Reason, name: Name = None, as_json: AsJson = False
) -> None:
    """Take a retired pipeline into service.

    Asks for no confirmation: `etl pipelines retire` undoes it.
    """
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
            metavar="[[CLUSTER/]GROUP/]NAME",
            help="The pipeline that loaded into this table.",
            show_default=False,
        ),
    ],
    reason: Reason,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Continue where another pipeline of this table ended."""
    from etl.commands import inherit_pipeline

    settings = table_settings_of(conf)
    effect = (
        f"Pipeline {settings.pipeline} continues where {predecessor} ended, which is retired if "
        "this conf names all its topics"
    )
    confirm([effect], yes=yes, dry_run=dry_run, as_json=as_json)
    context = run_context(quiet=quiet)
    decision = inherit_pipeline.inherit_pipeline(
        settings, predecessor, reason, context, dry_run=dry_run
    )
    _show_decision(decision, dry_run=dry_run, as_json=as_json)
