"""How does an operator begin, resume, list and abandon backfills?

`etl backfill`: what a live pipeline never loaded is loaded beside it, in bounded plans; what
would be loaded is shown before.
"""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from etl.commands.replay import parse_bound
from etl.commands.run import reported
from etl.decide.backfill import Asked
from etl.decide.tasks import cost_of
from etl.errors import DataLoss, EtlError, LedgersDisagree, NeedsDecision, SettingsError
from etl.io.spark.session import translating_spark_errors
from etl.model.partitions import parse_named, parse_partition
from etl.report.describe import at, counted, told_loaded_as_well
from etl.report.lag import told_loaded_all_the_same
from etl.report.run_report import Report, of_the_whole
from etl.report.run_state import Doing, Stopwatch
from etl.run.backfill import Beginning, abandon, backfill, look_ahead
from etl.run.live import LiveServices
from etl.run.services import ALONE, RunContext, Services
from etl.run.shell import open_world
from etl.settings.load import settings_of_backfill
from etl.settings.sections import Settings


def parse_asked(
    from_: str,
    until: str,
    topic: str | None,
    partitions: tuple[str, ...],
    *,
    only_retained: bool = False,
    only_missing: bool = False,
) -> Asked:
    """What the options say. Raises SettingsError."""
    if partitions and topic is None:
        raise SettingsError(
            "a partition is one of a topic",
            key="--partition",
            check="--topic TOPIC --partition PARTITION",
        )
    whole = parse_named(topic) if topic is not None else None
    if whole and whole.log is not None:
        check = f"--topic {shlex.quote(whole.topic)} -p {whole.log.key}"
        raise SettingsError(f"{topic!r} is a partition, and no topic", key="--topic", check=check)
    each = {parse_partition(whole.topic, one) for one in partitions if whole}
    named = tuple(sorted(each, key=str)) or ((whole,) if whole else ())
    bounds = parse_bound(from_, key="--from"), parse_bound(until, key="--until")
    # so long before now is another moment an hour later: it is the same where it is said in the
    # same words
    words = [
        text.strip() if text.startswith("-") else str(b) if isinstance(b, int) else str(at(b.ms))
        for text, b in zip((from_, until), bounds, strict=True)
    ]
    of = f" of {', '.join(map(str, named))}" if named else ""
    kinds = [
        word
        for word, is_said in (
            ("what is missing", only_missing),
            ("what is retained", only_retained),
        )
        if is_said
    ]
    said = f"from {words[0]} until {words[1]}{of}" + (
        f", only {' and '.join(kinds)}" if kinds else ""
    )
    return Asked(named, *bounds, only_retained, said, only_missing)


@dataclass(frozen=True, slots=True)
class BackfillPreview:
    """What a backfill would do that is not begun yet."""

    beginning: Beginning
    table: str
    plan_bytes: int | None

    @property
    def estimated_bytes(self) -> int:
        """What the brokers will send, by their own sizes of the logs where they tell them."""
        sizes = self.beginning.snapshot.bytes_per_offset
        return round(
            sum(
                (until - start) * cost_of(log, sizes)
                for log, parts in self.beginning.claim.stretches.items()
                for start, until in parts
            )
        )

    @property
    def plans(self) -> int:
        """About so many."""
        return max(1, math.ceil(self.estimated_bytes / self.plan_bytes)) if self.plan_bytes else 1

    @property
    def says(self) -> str:
        """In one sentence."""
        claim = self.beginning.claim
        if not claim.stretches:
            return f"backfill {claim.name}: nothing is missing, all of it is loaded or claimed"
        unit = next(log.unit for log in claim.stretches)
        return (
            f"backfill {claim.name} loads {counted(claim.offsets, unit)} of {counted(len(claim.stretches), 'partition')} into "
            f"{self.table}, in about {counted(self.plans, 'plan')}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What else a person should know who agrees."""
        read = told_loaded_as_well(self.beginning.read_by_others)
        return (
            *read,
            *told_loaded_all_the_same(
                self.beginning.claim.stretches, self.beginning.snapshot.pauses
            ),
        )

    def as_json(self) -> dict[str, Any]:
        """The document of a dry run."""
        claim = self.beginning.claim
        return {
            "says": self.says,
            "notes": list(self.notes),
            "name": claim.name,
            "asked": claim.asked,
            "offsets": claim.offsets,
            "estimated_bytes": self.estimated_bytes,
            "estimated_plans": self.plans,
            "loads": [
                {**log.place, "from": start, "until": until}
                for log, parts in sorted(claim.stretches.items())
                for start, until in parts
            ],
        }


def preview_backfill(
    settings: Settings, name: str, asked: Asked, run_context: RunContext = ALONE
) -> BackfillPreview | None:
    """What it would load; nothing is stored. None: it is begun already. Raises as
    `etl.run.backfill`.
    """
    own, watch = settings_of_backfill(settings, name), Stopwatch()
    opened = open_world(settings, run_context, phases=watch)
    with run_context.progress(watch.doing), opened as live:
        if live.claims.beside.read_one(name):
            return None
        return BackfillPreview(
            look_ahead(live, settings, own, asked),
            settings.table.path,
            own.limits.max_bytes_per_run,
        )


def run_backfill(
    settings: Settings,
    name: str,
    asked: Asked | None,
    run_context: RunContext = ALONE,
    *,
    conf: str | None = None,
    around: Callable[[Services], Services] = lambda world: world,
) -> Report:
    """Begin the backfill unless it is begun, load all that is left of it, and report it as a run.
    `asked` None: it is begun.

    `around` may wrap the world of its plans (tests). Raises as `etl.run.backfill`.
    """
    own, begun = settings_of_backfill(settings, name), list[Report]()

    def story(world: LiveServices, report: Report) -> None:
        begun.append(report)
        live = LiveServices(settings, world.zookeeper, run_context, report.run_id)
        with _leading_out(name, lambda: world.claim() is not None):
            backfill(around(world), live, own, settings, report, asked)

    def progress(doing: Callable[[], Doing]) -> contextlib.AbstractContextManager[None]:
        return run_context.progress(lambda: of_the_whole(doing(), begun[-1]) if begun else doing())

    return reported(own, replace(run_context, progress=progress), story, conf=conf)


def abandon_backfill(
    settings: Settings, name: str, reason: str, run_context: RunContext = ALONE
) -> tuple[Report, str]:
    """Give it up, and what that came to in a sentence. Raises as `etl.run.backfill`."""
    own, said = settings_of_backfill(settings, name), list[str]()

    def story(world: LiveServices, report: Report) -> None:
        kept = abandon(world, own, report, reason)
        unit = next((log.unit for log in kept.stretches), "offset")
        said.append(
            f"backfill {name} is given up: {counted(kept.offsets, unit)} of it are in the table and stay its own; the rest is free"
        )

    with translating_spark_errors():
        report = reported(own, run_context, story)
    return report, said[-1]


@contextlib.contextmanager
def _leading_out(name: str, is_begun: Callable[[], bool]) -> Iterator[None]:
    """What a run of the pipeline itself would be told leads nowhere where plans are a backfill's."""
    try:
        yield
    except (NeedsDecision, DataLoss, LedgersDisagree, SettingsError) as error:
        if (not isinstance(error, SettingsError) or _SUPERSEDE in error.check) and is_begun():
            error.check = _check_of(error, name)
        raise


_SUPERSEDE = "plans supersede"


def _check_of(error: EtlError, name: str) -> str:
    give_up = f"`etl backfill abandon CONF --name {name} --reason ...` gives it up and keeps what it has loaded"
    if isinstance(
        error, SettingsError
    ):  # what stands before it is what a person can mend, here as there
        return f"{error.check.partition('; or give')[0]}; or {give_up}"
    if (
        not error.check or _SUPERSEDE in error.check or "accept-log" in error.check
    ):  # the pipeline's, once nothing is left of this
        return give_up
    return (
        error.check
        if "backfill abandon" in error.check or "--missing" in error.check
        else f"{error.check}; {give_up}"
    )
