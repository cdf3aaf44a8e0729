"""How does an operator read rows again and replace them?

`etl replay` shows what would be replaced, then replaces it. With `--into PATH` the rows go to
another table, and the pipeline's table and ledger stay as they are: one commit creates that table,
or replaces its rows of the same offsets, so the command can be repeated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from etl.commands.run import new_run_id, reported
from etl.decide.loaded_intervals import spans_of
from etl.decide.next_step import NextStep, next_step, snapshot_after
from etl.decide.replay import Bound, ReplayRequest
from etl.decide.table_changes import name_of
from etl.decide.table_storage import settings_for
from etl.errors import SettingsError, VerificationFailed
from etl.io.delta.loaded_plans import other_pipelines
from etl.io.delta.table_shape import open_table
from etl.io.spark.session import translating_spark_errors
from etl.ledger.plan_document import with_id
from etl.model.partitions import cleanup_of, parse_named
from etl.model.plans import Plan
from etl.model.snapshot import Snapshot
from etl.report.lag import describe_paused_but_loaded
from etl.report.run_progress import Stopwatch
from etl.report.run_report import Report
from etl.run.loaded_rows import PutInto
from etl.run.open_services import open_services
from etl.run.replay import (
    StoredReplay,
    is_left,
    next_replay,
    replay,
    with_replaced_rows,
    zones_of_replaced,
)
from etl.run.run_context import ALONE, RunContext
from etl.run.service_interfaces import Services, now_ms
from etl.settings.choices import check_place, lies_in, place_of
from etl.settings.sections import Settings
from etl.settings.source import parse_timestamp, timestamp_of
from etl.settings.table import StoreSettings, TablePath, kind_of
from etl.settings.until_and_run_key import parse_bound as parse_relative


@dataclass(frozen=True, slots=True)
class ReplayPreview:
    """What a replay would do."""

    plan: Plan
    """The plan, with the number of existing rows and without an id: it is not stored."""
    table: str
    compacted: tuple[str, ...] = ()
    """Compacted topics: the replay may write fewer rows than it removes."""
    left: Plan | None = None
    """A stored plan that is not in the table, executed first."""
    paused: tuple[str, ...] = ()
    """Paused partitions that are replayed all the same."""
    other_zones: tuple[str, ...] = ()
    """Where replaced rows have another time zone."""

    @property
    def summary(self) -> str:
        """Summarize the replay in one sentence."""
        go = sum(self.plan.replaced_rows.values())
        come = "those that the log has there"
        if not any(r.partition.is_physical for r in self.plan.ranges):
            come = f"at most {sum(r.size for r in self.plan.ranges):,} come"
        first = ""
        if self.left:
            first = (
                f"plan {self.left.number}, which is stored and not in the table, is executed "
                "first; then "
            )
        more = " and those that it brings there" if self._stored_plan_adds_rows() else ""
        return (
            f"{first}{go:,} rows of {self.table}{more} go, and {come}, in one commit of plan "
            f"{self.plan.number}"
        )

    def _stored_plan_adds_rows(self) -> bool:
        """True if the plan executed first loads some of these offsets."""
        if self.left is None:
            return False
        for span in spans_of(self.plan):
            for r in self.left.advancing:
                if span.partition == r.partition and span.meets(r.from_offset, r.until_offset):
                    return True
        return False

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the operator who confirms."""
        compacted = []
        for topic in self.compacted:
            compacted.append(
                f"the topic {topic} is compacted: of keys that were written again since, "
                "the older rows go and none come"
            )
        return (*compacted, *self.paused, *self.other_zones)

    def as_json(self) -> dict[str, Any]:
        """Return the document of a dry run."""
        replaces = []
        for span in spans_of(self.plan):
            max_rows = None
            if not span.partition.is_physical:
                max_rows = span.until_offset - span.from_offset
            replaces.append(
                {
                    **span.partition.place,
                    "from": span.from_offset,
                    "until": span.until_offset,
                    "rows_that_go": span.replaced_rows,
                    "rows_that_come_at_most": max_rows,
                }
            )
        return {
            "message": self.summary,
            "notes": list(self.notes),
            "plan": self.plan.number,
            "first_executes": self.left.number if self.left else None,
            "rows_that_go": sum(self.plan.replaced_rows.values()),
            "replaces": replaces,
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
    """Parse an offset, a time with UTC offset, or a duration before now (`-1h`).

    Raises SettingsError.
    """
    if text.isascii() and text.isdecimal():
        return int(text)
    if re.fullmatch(r"-[0-9]+[smhd]", text.strip(), re.ASCII):
        return timestamp_of(parse_relative(text, now_ms(), key=key).at_ms or 0)
    try:
        return parse_timestamp(text)
    except ValueError as error:
        action = (
            "Pass a number, e.g. 1200, or a time with its UTC offset, e.g. "
            "2026-01-31T00:00:00+00:00, or -1h (before now)"
        )
        raise SettingsError(
            f"{text!r} is neither an offset nor a time: {error}", key=key, action=action
        ) from error


def preview_replay(
    settings: Settings, wanted: ReplayRequest, run_context: RunContext = ALONE
) -> ReplayPreview:
    """Return what `replay` would do; nothing is stored or replaced.

    Counts existing rows, see `LoadedRows.rows_in`. Raises as `replay`.
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
    plan = with_replaced_rows(services, step, plan)
    partitions = {r.partition for r in plan.ranges}
    topics = {partition.topic for partition in partitions}
    compacted = []
    for topic in sorted(topics):
        is_assumed = settings.source.is_assumed_compacted(topic)
        cleanup = cleanup_of(snapshot.topic(topic).retention, said_to_be_compacted=is_assumed)
        if cleanup.is_compacted:
            compacted.append(topic)
    paused = describe_paused_but_loaded(partitions, snapshot.ledger.pauses)
    zones = zones_of_replaced(services, plan, step.snapshot)
    return ReplayPreview(plan, settings.table.path, tuple(compacted), left, paused, zones)


def step_after_stored_plan(snapshot: Snapshot, settings: Settings) -> tuple[NextStep, Plan | None]:
    """Return the step after the stored plan of an earlier run, and that plan.

    A replay is planned by that step. Raises the error that stops the stored plan.
    """
    step = next_step(snapshot, settings, now_ms=now_ms(), uid="unnamed")
    if not is_left(step):
        return step, None
    if step.refusal:
        raise step.refusal
    return next_step(
        snapshot_after(snapshot, step), settings, now_ms=now_ms(), uid="unnamed"
    ), step.plan


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
    """Replace the wanted rows, exactly once, and report it as a run.

    `around` may wrap the services (tests). Raises as `etl.run.replay`.
    """
    own = StoredReplay()
    return reported(
        settings,
        run_context,
        lambda services, report: replay(
            around(services), settings, report, wanted, reason, shown=shown, own=own
        ),
        conf=conf,
    )


_MADE_BY = "offset-range-etl replay"
_FREE = "Pass an unused path, or a table that an earlier --into made"


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of `etl replay --into PATH`."""

    table: str
    plan: Plan
    """The plan that was read; it is not stored."""
    counts: PutInto
    notes: tuple[str, ...] = ()
    """Notes on the rows."""

    @property
    def summary(self) -> str:
        """Summarize the result in one sentence."""
        sentence = f"{self.counts.there:,} rows are in {self.table}, each once"
        if self.counts.replaced_rows:
            sentence += f"; they took the place of {self.counts.replaced_rows:,}"
        if self.counts.read not in (None, self.counts.there):
            sentence += f"; {self.counts.read:,} records were read"
        return "; ".join([sentence, *self.notes])

    def as_json(self) -> dict[str, Any]:
        """Return the document of the command."""
        return {
            "message": self.summary,
            "table": self.table,
            "rows": self.counts.there,
            "rows_that_went": self.counts.replaced_rows,
            "records_read": self.counts.read,
            "replaces": _offsets(self.plan),
        }


def replay_into(
    settings: Settings, wanted: ReplayRequest, path: str, run_context: RunContext = ALONE
) -> Copied:
    """Read the offsets again and replace their rows in the table at `path`.

    The table is created if needed. Raises SettingsError for a table that a pipeline loads,
    VerificationFailed if the numbers of rows and records differ, and as a replay.
    """
    path = _place(settings, path)
    reject_foreign_table(path, settings.group.id, settings.pipeline)
    table = settings.table.model_copy(update={"written_path": path, "name": None})
    into = settings.model_copy(update={"table": table})
    watch = Stopwatch()
    run_id = new_run_id()
    # One session reads the pipeline's table and writes the other one.
    spark = {**settings_for(path, settings.spark), **settings.spark}
    both = settings.model_copy(update={"spark": spark})
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
        counts = services.loaded.put_into(plan, step.snapshot, into, json.dumps(metadata))
    if settings.transform.function is None and counts.read not in (None, counts.there):
        message = (
            f"{counts.read:,} records were read, and the table has {counts.there:,} rows of their "
            "offsets"
        )
        raise VerificationFailed(
            message,
            path=path,
            action="Check who else writes to this table; then run this command again",
        )
    return Copied(path, plan, counts, notes)


def _place(settings: Settings, path: str) -> str:
    """Return the absolute path; a relative one starts at the working directory.

    Raises SettingsError for a path inside another table's directory.
    """
    try:
        place = place_of(check_place(path))
    except ValueError as error:
        raise SettingsError(
            f"The path is invalid: {error}", key="--into", path=path, action=_FREE
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
            message = (
                f"This path and that of {name} are one inside the other: VACUUM would delete the "
                "files of the inner table"
            )
            raise SettingsError(message, key="--into", path=place, action=_FREE)
    # The conf has credentials of one store; for another kind each engine uses its own.
    store = StoreSettings()
    if kind_of(place) is kind_of(settings.table.path):
        store = settings.table.store
    return TablePath(place, store)


def reject_foreign_table(path: str, group: str, pipeline: str) -> None:
    """Reject a table that this command did not make for this pipeline. Raises SettingsError.

    Offsets of another pipeline may be of another cluster: equal ones are other records.
    """
    loaders = other_pipelines(path, "")
    if loaders:
        message = (
            f"Pipeline {name_of(loaders[0].app_id)} loads into this table, and would find rows "
            "that it does not know"
        )
        raise SettingsError(message, key="--into", path=path, action=_FREE)
    table = open_table(path)
    if table is None:
        return
    makers = _makers(table.history())
    if not makers:
        message = (
            "There is a table that no earlier --into made, and its rows of these offsets would be "
            "replaced"
        )
        raise SettingsError(message, key="--into", path=path, action=_FREE)
    for other_group, other_pipeline in sorted(makers - {(group, pipeline)}):
        message = (
            f"The table has rows that --into read for pipeline {other_pipeline} of group "
            f"{other_group}, and those of equal offsets would be replaced"
        )
        raise SettingsError(message, key="--into", path=path, action=_FREE)


def _makers(history: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return group and pipeline of each replay in the table."""
    makers = set()
    for commit in history:
        try:
            metadata = json.loads(commit.get("userMetadata") or "")
        except ValueError:
            continue
        if isinstance(metadata, dict) and metadata.get("app") == _MADE_BY:
            makers.add((str(metadata.get("group")), str(metadata.get("pipeline"))))
    return makers


def _offsets(plan: Plan) -> list[dict[str, Any]]:
    offsets = []
    for span in spans_of(plan):
        offsets.append(
            {**span.partition.place, "from": span.from_offset, "until": span.until_offset}
        )
    return offsets
