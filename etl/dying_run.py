"""`python -m etl.dying_run CONF VERB`: an `etl run` that is killed by SIGKILL at the moment it would begin VERB.

For the demo and for tests: the real run with real edges, ended as a power cut would end it. VERB is a method of
`ingest.World`: store, fetch, append, record, commit or tidy.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from etl.ingest import World


class Dying:
    """A world that kills this process before the named call; every other call goes through."""

    def __init__(self, world: World, verb: str) -> None:
        self._world, self._verb = world, verb

    def __getattr__(self, name: str) -> Any:
        if name == self._verb:
            self.end()
        return getattr(self._world, name)

    def end(self) -> None:
        """The end."""
        os.kill(os.getpid(), signal.SIGKILL)


def main(conf: str, verb: str) -> None:
    """Run the pipeline of `conf` and die."""
    from etl import doors
    from etl.cli import surroundings
    from etl.settings import load_settings

    doors.run(load_settings(conf), surroundings(), around=lambda world: Dying(world, verb))


if __name__ == "__main__":
    main(*sys.argv[1:])
