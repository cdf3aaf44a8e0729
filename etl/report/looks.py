"""What a run saw when it looked: its first look and its last one, and how far the pipeline was at
each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from etl.decide.lag import Reached, lag_of, reached
from etl.model.partitions import BrokerPartition, OldestRecord
from etl.model.plans import Plan
from etl.model.snapshot import PipelineState, Reservation, Snapshot
from etl.report.incident import saw_as_json
from etl.report.lags import Lags, lags_at, unread_from
from etl.report.sentences import logs_of, told_extent
from etl.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look saw, and how far the pipeline was then; None: nobody knows, the run ended
    before it was decided.
    """

    snapshot: Snapshot
    reached: Reached | None = None
    settings: Settings | None = None

    def lag_of(self, log: BrokerPartition) -> int | None:
        if self.reached is None or self.settings is None:
            return None
        return lag_of(log, self.snapshot, self.reached, self.settings)


class Looks:
    """Of all looks of a run the first and the last."""

    def __init__(self) -> None:
        self._count = 0
        self._first: _Look | None = None
        self._last: _Look | None = None

    def saw(self, snapshot: Snapshot) -> None:
        """One more look."""
        self._count += 1
        self._last = _Look(snapshot)
        self._first = self._first or self._last

    @property
    def claim(self) -> Reservation | None:
        """What the pipeline claims, by the last look: a backfill's."""
        return self._last.snapshot.backfill if self._last else None

    def stands(self, state: PipelineState, settings: Settings) -> None:
        """Where the pipeline stood at that look."""
        if self._last:
            is_first = self._first is self._last
            self._last = replace(
                self._last, reached=reached(state, self._last.snapshot), settings=settings
            )
            self._first = self._last if is_first else self._first

    def reached(self, plan: Plan) -> None:
        """The plan is in the table since."""
        if self._last:
            self._last = replace(self._last, reached=Reached(plan, plan.positions))

    def lag_as_json(self) -> list[dict[str, Any]]:
        """Offsets between position and readable end per log, before and after."""
        first, last = self._first, self._last
        if not first or not last:
            return []
        return [
            {
                **log.place,
                **told_extent(last.snapshot, log),
                "before": first.lag_of(log),
                "after": last.lag_of(log),
            }
            for log in sorted(logs_of(last.snapshot))
        ]

    def unread(self) -> tuple[Snapshot, dict[BrokerPartition, int]] | None:
        """The last look, and of each log that lags behind it now its oldest unread offset; None
        before the first look.
        """
        last = self._last
        if last is None:
            return None
        return last.snapshot, unread_from(
            last.snapshot, last.reached, last.settings
        ) if last.settings else {}

    def lags(
        self, oldest: Mapping[BrokerPartition, OldestRecord], settings: Settings, *, now_ms: int
    ) -> Lags | None:
        """How far the table is behind the last look; `oldest`: see `lags_at`. None before the first
        look.
        """
        last = self._last
        return (
            lags_at(last.snapshot, last.reached, settings, oldest, now_ms=now_ms) if last else None
        )

    def as_json(self, settings: Settings | None) -> dict[str, Any] | None:
        """What was seen, to be decided again; None before the first look, and where nobody says by
        which settings.
        """
        if not self._first or not self._last or settings is None:
            return None
        return saw_as_json(self._first.snapshot, self._last.snapshot, self._count, settings)
