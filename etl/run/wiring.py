"""Opens the real world of a run: connects to ZooKeeper, and closes everything at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from etl.edges.zookeeper.session import ZooKeeper
from etl.report.phases import Phases
from etl.run.context import RunContext
from etl.run.live_world import LiveWorld
from etl.settings.sections import Settings


@contextlib.contextmanager
def open_world(
    settings: Settings, run_context: RunContext, *, name: str = "look", phases: Phases | None = None,
) -> Iterator[LiveWorld]:
    """Connect to ZooKeeper; everything else is connected to when it is first asked, and all of it is closed at the end.

    `name` is the run's id: commits carry it, and Spark's log goes to a file of this name in the reports' folder. `phases` is told
    what the time goes to where the story of a run cannot know it.
    """
    timeouts = {"session_timeout_s": settings.zookeeper.session_timeout_s, "connect_timeout_s": settings.zookeeper.connect_timeout_s}
    with ZooKeeper(settings.zookeeper.connect, **timeouts) as zookeeper:
        world = LiveWorld(settings, zookeeper, run_context, name, phases)
        try:
            yield world
        finally:
            world.close()
