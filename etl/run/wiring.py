"""Opens the real world of a run, or its brokers alone: connects to ZooKeeper, and closes everything
at the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from etl.io.brokers.cluster import Cluster
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.session import ZooKeeper
from etl.model.plans import Request
from etl.report.run_state import Phases, Stopwatch
from etl.run.context import RunContext
from etl.run.discovery import Discovery
from etl.run.live_world import LiveWorld
from etl.run.named_table import Making, Placed, placed
from etl.settings.sections import Settings


@contextlib.contextmanager
def open_world(
    settings: Settings,
    run_context: RunContext,
    *,
    name: str = "look",
    phases: Phases | None = None,
    request: Request | None = None,
) -> Iterator[LiveWorld]:
    """Connect to ZooKeeper; everything else is connected to when it is first asked, and all of it
    is closed at the end.

    `name` is the run's id: commits carry it, and Spark's log goes to a file of this name in the
    reports' folder. `phases` is told what the time goes to where the story of a run cannot know it.
    `request`: what the run is asked for beside its conf.
    """
    with _zookeeper(settings) as zookeeper:
        world = LiveWorld(settings, zookeeper, run_context, name, phases, request=request)
        try:
            yield world
        finally:
            world.close()


@contextlib.contextmanager
def open_cluster(settings: Settings) -> Iterator[Cluster]:
    """The brokers alone; ZooKeeper is connected to as well where it is what tells of them."""
    with contextlib.ExitStack() as closing:
        zookeeper = _zookeeper(settings)
        if settings.source.bootstrap is None:
            closing.enter_context(zookeeper)
        yield closing.enter_context(Discovery(settings, zookeeper).open_cluster())


@contextlib.contextmanager
def open_discovery(settings: Settings) -> Iterator[Discovery]:
    """What tells of the conf's topics and of who leads them: brokers, and ZooKeeper."""
    with _zookeeper(settings) as zookeeper:
        yield Discovery(settings, zookeeper)


def place_table(
    settings: Settings,
    run_context: RunContext,
    phases: Phases | None = None,
    *,
    name: str,
    making: Making | None = None,
) -> Placed:
    """The settings with the place of a named table, as the ledger has it or Spark tells it; as they
    are where they name a path.

    `name` and `making`: see `run.named_table.placed`, which raises for it.
    """
    if settings.table.is_placed:
        return Placed(settings)
    with _zookeeper(settings) as zookeeper:
        ledger = PlanLedger(zookeeper, settings.group, settings.pipeline)
        return placed(
            settings, ledger, run_context, phases or Stopwatch(), name=name, making=making
        )


def _zookeeper(settings: Settings) -> ZooKeeper:
    return ZooKeeper(
        settings.zookeeper.connect,
        session_timeout_s=settings.zookeeper.session_timeout_s,
        connect_timeout_s=settings.zookeeper.connect_timeout_s,
        access=settings.zookeeper.access,
    )
