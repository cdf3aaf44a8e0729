"""How are the services of a run opened, and closed at its end?

Lives here: all services of a run, or its brokers alone; the path of a table that a catalog names.
Not here: what the services do (etl/run/live_services.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from etl.io.brokers.cluster_requests import Cluster
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.plans import Request
from etl.report.run_progress import Phases, Stopwatch
from etl.run.discovery import Discovery
from etl.run.live_services import LiveServices
from etl.run.run_context import RunContext
from etl.run.spark_on_demand import Making, Placed, placed
from etl.settings.sections import Settings


@contextlib.contextmanager
def open_services(
    settings: Settings,
    run_context: RunContext,
    *,
    name: str = "look",
    phases: Phases | None = None,
    request: Request | None = None,
) -> Iterator[LiveServices]:
    """Context manager: connect to ZooKeeper; other connections are opened when first used, and all
    are closed at the end.

    `name`: the run's id, in commits and in the name of Spark's log. `phases`: receives timings that
    `ingest` cannot know. `request`: run key and end of the run.
    """
    with _zookeeper(settings) as zookeeper:
        services = LiveServices(settings, zookeeper, run_context, name, phases, request=request)
        try:
            yield services
        finally:
            services.close()


@contextlib.contextmanager
def open_cluster(settings: Settings) -> Iterator[Cluster]:
    """Open the brokers, and ZooKeeper if it is their registry."""
    with contextlib.ExitStack() as closing:
        zookeeper = _zookeeper(settings)
        if settings.source.bootstrap_servers is None:
            closing.enter_context(zookeeper)
        yield closing.enter_context(Discovery(settings, zookeeper).open_cluster())


@contextlib.contextmanager
def open_discovery(settings: Settings) -> Iterator[Discovery]:
    """Open the source of the conf's topics and leaders: brokers, and ZooKeeper."""
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
    """Return the settings with a named table's location, from the ledger or Spark; unchanged for a
    path. `name`, `making`: see `run.spark_on_demand.placed`, which raises for it.
    """
    if settings.table.is_placed:
        return Placed(settings)
    with _zookeeper(settings) as zookeeper:
        ledger = PlanLedger(zookeeper, settings.group.id, settings.pipeline)
        return placed(
            settings, ledger, run_context, phases or Stopwatch(), name=name, making=making
        )


def _zookeeper(settings: Settings) -> ZooKeeper:
    return ZooKeeper(
        settings.zookeeper.connect,
        session_timeout_s=settings.zookeeper.session_timeout_s,
        connect_timeout_s=settings.zookeeper.session_timeout_s,
        access=settings.zookeeper.access,
    )
