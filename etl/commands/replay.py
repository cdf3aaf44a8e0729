"""How does an operator read rows again and replace them?

`etl replay` shows what would be replaced, then replaces it. With `--into PATH` the rows go to
another table, and the pipeline's table and ledger stay as they are: one commit creates that table,
or replaces its rows of the same offsets, so the command can be repeated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from etl.commands.run import new_run_id, reported
from etl.decide.loaded_intervals import spans_of
from etl.decide.next_step import NextStep, foreseen, next_step
from etl.decide.replay import Bound, ReplayRequest
from etl.decide.table_changes import name_of
from etl.decide.table_storage import settings_for
from etl.errors import SettingsError, VerificationFailed
from etl.io.delta.table import open_table
from etl.io.delta.table_state import other_pipelines
from etl.io.spark.session import translating_spark_errors
from etl.ledger.plan_document import with_id
from etl.model.partitions import cleanup_of, parse_named
from etl.model.plans import Plan
from etl.model.snapshot import Snapshot
from etl.report.lag import describe_paused_but_loaded
from etl.report.run_report import Report
from etl.report.run_state import Stopwatch
from etl.run.loaded_rows import PutInto
from etl.run.replay import is_left, next_replay, replay, zones_of_replaced
from etl.run.services import ALONE, RunContext, Services, now_ms
from etl.run.shell import open_services
from etl.settings.choices import check_place, lies_in, place_of
from etl.settings.load import parse_bound as parse_relative
from etl.settings.sections import Settings
from etl.settings.source import parse_timestamp, timestamp_of
from etl.settings.table import StoreSettings, TablePath, kind_of


@dataclass(frozen=True, slots=True)
class ReplayPreview:
    """What a replay would do."""

    plan: Plan
    """With the rows that stand, and without an id: it is not stored."""
    table: str
    compacted: tuple[str, ...] = ()
    """Those of its topics that are compacted: fewer rows may come than go."""
    left: Plan | None = None
    """A stored plan that is not in the table, executed first."""
    paused: tuple[str, ...] = ()
    """Paused partitions that are replayed all the same."""
    other_zones: tuple[str, ...] = ()
    """Where replaced rows have another time zone."""

    @property
    def says(self) -> str:
        """In one sentence."""
        go = sum(self.plan.stood.values())
        come = "those that the log has there"
        if not any(r.log.is_physical for r in self.plan.ranges):
            come = f"at most {sum(r.size for r in self.plan.ranges):,} come"
        if self.left:
            first = f"plan {self.left.number}, which is stored and not in the table, is executed first; then "
        else:
            first = ""
        more = " and those that it brings there" if self._is_brought_more() else ""
        return f"{first}{go:,} rows of {self.table}{more} go, and {come}, in one commit of plan {self.plan.number}"

    def _is_brought_more(self) -> bool:
        """True if the plan executed first loads some of these offsets."""
        left = self.left.advancing if self.left else ()
        return any(
            span.log == r.log and span.meets(r.from_offset, r.until_offset)
            for span in spans_of(self.plan)
            for r in left
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the operator who confirms."""
        return (
            *(
                f"the topic {topic} is compacted: of keys that were written again since, the older rows go and none come"
                for topic in self.compacted
            ),
            *self.paused,
            *self.other_zones,
        )

    def as_json(self) -> dict[str, Any]:
        """The document of a dry run."""
        return {
            "message": self.says,
            "notes": list(self.notes),
            "plan": self.plan.number,
            "first_executes": self.left.number if self.left else None,
            "rows_that_go": sum(self.plan.stood.values()),
            "replaces": [
                {
                    **span.log.place,
                    "from": span.from_offset,
                    "until": span.until_offset,
                    "rows_that_go": span.stood,
                    "rows_that_come_at_most": None
                    if span.log.is_physical
                    else span.until_offset - span.from_offset,
                }
                for span in spans_of(self.plan)
            ],
        }


def parse_wanted(
    partitions: tuple[str, ...], from_: str, until: str, *, only_retained: bool = False
) -> ReplayRequest:
    """Parse the options. Raises SettingsError."""
    return ReplayRequest(
        tuple(map(parse_named, partitions)),
        parse_bound(from_, key="--from"),
        parse_bound(until, key="--until"),
        only_retained,
    )


def parse_bound(text: str, *, key: str) -> Bound:
    """An offset, a time with its UTC offset, or so long before now (`-1h`). Raises SettingsError."""
    if text.isascii() and text.isdecimal():
        return int(text)
    if re.fullmatch(r"-[0-9]+[smhd]", text.strip(), re.ASCII):
        return timestamp_of(parse_relative(text, now_ms(), key=key).at_ms or 0)
    try:
        return parse_timestamp(text)
    except ValueError as error:
        action = "Pass a number, e.g. 1200, or a time with its UTC offset, e.g. 2026-01-31T00:00:00+00:00, or -1h (before now)"
        raise SettingsError(
            f"{text!r} is neither an offset nor a time: {error}", key=key, action=action
        ) from error


def preview_replay(
    settings: Settings, wanted: ReplayRequest, run_context: RunContext = ALONE
) -> ReplayPreview:
    """Return what `replay` would do; nothing is stored, read or replaced. Starts Spark to count
    existing rows. Raises as it does.
    """
    watch = Stopwatch()
    opened = open_services(settings, run_context, phases=watch)
    with run_context.progress(watch.doing), opened as services, translating_spark_errors():
        return preview_of(services, services.observe(wanted.offsets_of), settings, wanted)


def preview_of(
    services: Services, snapshot: Snapshot, settings: Settings, wanted: ReplayRequest
) -> ReplayPreview:
    """Return the same of a snapshot."""
    step, left = step_after_stored_plan(snapshot, settings)
    plan = next_replay(services, step, settings, wanted, None)
    plan = replace(plan, stood=services.rows_there(spans_of(plan)))
    topics = sorted({r.log.topic for r in plan.ranges})
    is_assumed, retention = settings.source.is_assumed_compacted, snapshot.retention
    compacted = tuple(
        topic
        for topic in topics
        if cleanup_of(retention.get(topic), said_to_be_compacted=is_assumed(topic)).is_compacted
    )
    paused = describe_paused_but_loaded({r.log for r in plan.ranges}, snapshot.pauses)
    zones = zones_of_replaced(services, plan, step.snapshot)
    return ReplayPreview(plan, settings.table.path, compacted, left, paused, zones)


def step_after_stored_plan(snapshot: Snapshot, settings: Settings) -> tuple[NextStep, Plan | None]:
    """Return the step that a replay is planned by, after the stored plan of an earlier run; and
    that plan. Raises what stops it.
    """
    step = next_step(snapshot, settings, now_ms=now_ms(), uid="unnamed")
    if not is_left(step):
        return step, None
    if step.refusal:
        raise step.refusal
    return next_step(foreseen(snapshot, step), settings, now_ms=now_ms(), uid="unnamed"), step.plan


def replay_rows(
    settings: Settings,
    wanted: ReplayRequest,
    run_context: RunContext = ALONE,
    *,
    reason: str | None = None,
    shown: Plan | None = None,
    conf: str | None = None,
    around: Callable[[Services], Services] = lambda services: services,
) -> Report:
    """Replace the wanted rows, exactly once, and report it as a run. `around` may wrap the services
    (tests). Raises as `etl.run.replay`.
    """
    return reported(
        settings,
        run_context,
        lambda services, report: replay(
            around(services), settings, report, wanted, reason, shown=shown
        ),
        conf=conf,
    )


_MADE_BY = "offset-range-etl replay"
_FREE = "Pass a path where nothing is, or a table that an earlier --into made"


@dataclass(frozen=True, slots=True)
class Copied:
    """What is in the other table."""

    table: str
    plan: Plan
    """The plan that was read; it is not stored."""
    counts: PutInto
    notes: tuple[str, ...] = ()
    """Notes on the rows."""

    @property
    def says(self) -> str:
        """In one sentence."""
        took = f"; they took the place of {self.counts.stood:,}" if self.counts.stood else ""
        noted = "".join(f"; {note}" for note in self.notes)
        return f"{self.counts.there:,} rows are in {self.table}, each once{took}{noted}"

    def as_json(self) -> dict[str, Any]:
        """The document of the command."""
        return {
            "message": self.says,
            "table": self.table,
            "rows": self.counts.there,
            "rows_that_went": self.counts.stood,
            "records_read": self.counts.read,
            "replaces": _offsets(self.plan),
        }


def replay_into(
    settings: Settings, wanted: ReplayRequest, path: str, run_context: RunContext = ALONE
) -> Copied:
    """Read the offsets again and replace their rows in the table at `path`, which is created if
    needed. Raises SettingsError for a table that a pipeline loads, VerificationFailed if rows and
    records differ in number, and as a replay.
    """
    path = _place(settings, path)
    reject_foreign_table(path)
    into = settings.model_copy(
        update={"table": settings.table.model_copy(update={"written_path": path, "name": None})}
    )
    watch, run_id = Stopwatch(), new_run_id()
    both = settings.model_copy(
        update={"spark": {**settings_for(path, settings.spark), **settings.spark}}
    )  # one session writes there
    opened = open_services(both, run_context, name=f"{run_id}-into", phases=watch)
    with run_context.progress(watch.doing), opened as services, translating_spark_errors():
        step, _ = step_after_stored_plan(services.observe(wanted.offsets_of), settings)
        plan = with_id(next_replay(services, step, settings, wanted, None))
        notes = zones_of_replaced(services, plan, step.snapshot)
        metadata = {
            "app": _MADE_BY,
            "pipeline": settings.pipeline,
            "group": settings.group.id,
            "run_id": run_id,
            "offsets": _offsets(plan),
        }
        counts = services.put_into(plan, step.snapshot, into, json.dumps(metadata))
    if settings.transform.function is None and counts.read not in (None, counts.there):
        message = f"{counts.read:,} records were read, and the table has {counts.there:,} rows of their offsets"
        raise VerificationFailed(
            message,
            path=path,
            action="Check who else writes to this table; then run this command again",
        )
    return Copied(path, plan, counts, notes)


def _place(settings: Settings, path: str) -> str:
    """Return the absolute path, relative to the working directory. Raises SettingsError for one
    inside another table's directory.
    """
    try:
        place = place_of(check_place(path))
    except ValueError as error:
        raise SettingsError(
            f"This names no place: {error}", key="--into", path=path, action=_FREE
        ) from error
    if place == settings.table.place:
        raise SettingsError(
            "This is the pipeline's own table",
            key="--into",
            action="Run it without --into, which replaces its rows by a plan",
        )
    for other, name in (
        (settings.table.path, "the table"),
        (settings.table.losses_at, "the losses table"),
    ):
        if lies_in(place, other) or lies_in(other, place):
            message = f"This and the folder of {name} lie one inside the other: VACUUM takes a table in another one for rubbish"
            raise SettingsError(message, key="--into", path=place, action=_FREE)
    # another store than the table's goes by each engine's own chain
    return TablePath(
        place,
        settings.table.store if kind_of(place) is kind_of(settings.table.path) else StoreSettings(),
    )


def reject_foreign_table(path: str) -> None:
    """Reject a table that others load: rows are replaced only in a table made by this command.
    Raises SettingsError.
    """
    loaders = other_pipelines(path, "")
    if loaders:
        message = f"Pipeline {name_of(loaders[0].app_id)} loads into this table, and would find rows that it does not know"
        raise SettingsError(message, key="--into", path=path, action=_FREE)
    table = open_table(path)
    if table is not None and not any(
        _MADE_BY in str(commit.get("userMetadata")) for commit in table.history()
    ):
        message = "There is a table that no earlier --into made, and its rows of these offsets would be replaced"
        raise SettingsError(message, key="--into", path=path, action=_FREE)


def _offsets(plan: Plan) -> list[dict[str, Any]]:
    return [
        {**span.log.place, "from": span.from_offset, "until": span.until_offset}
        for span in spans_of(plan)
    ]
