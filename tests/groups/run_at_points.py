"""`python -m tests.groups.run_at_points FOLDER CONF`: an `etl run` that reports each point of its
membership, and waits there.

FOLDER has a file for each reached point, with a line for each time: the ZooKeeper session at that
time. If there is a file `hold-<point>`, the run waits at that point until `go-<point>` has as many
lines. After the offset commit one of its threads may reach `registered` again.
"""

from __future__ import annotations

import functools
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etl.io.brokers.group_member import ClassicProtocol, ConsumerProtocol, CoordinatedMember
from etl.io.brokers.member_state import MemberState
from etl.io.zookeeper.group_member import Rebalance, ZooKeeperMember
from etl.io.zookeeper.owners import GroupMembers
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.run.observe import GroupOffsets

_BEFORE_VERB = {
    "store": "storing",
    "hand_over": "stored",
    "claiming": "handed-over",
    "fetch": "fetching",
    "append": "fetched",
    "record": "appended",
    "commit": "recorded",
}
_BEFORE: tuple[tuple[type, str, str], ...] = (
    (Rebalance, "_claim", "registered"),
    (MemberState, "note_join", "registered"),
    (GroupMembers, "deregister", "leaving"),
    (ClassicProtocol, "leave", "leaving"),
    (ConsumerProtocol, "leave", "leaving"),
)
_BEHIND: tuple[tuple[type, str, str], ...] = (
    (ZooKeeperMember, "join", "claimed"),
    (CoordinatedMember, "join", "claimed"),
    (GroupOffsets, "hand_over", "committed"),
    (GroupOffsets, "commit_of_member", "moved"),
)
POINTS = (
    "registered",
    "claimed",
    "storing",
    "handed-over",
    "fetching",
    "fetched",
    "appended",
    "recorded",
    "leaving",
)
"""In their order; in ZooKeeper a plan is stored and its offsets are committed in one step."""
IN_TWO_STEPS = ("stored", "committed")
"""In Kafka: the plan is stored, then its offsets are committed."""
BEHIND_APPEND = (
    "registered",
    "claimed",
    "storing",
    "handed-over",
    "fetched",
    "recorded",
    "moved",
    "appended",
    "leaving",
)
"""In the order of a run that commits its offsets after the append."""


class Watched:
    """Services that report the next verb."""

    def __init__(self, world: Any, at: Callable[[str, str], None]) -> None:
        self._world, self._at = world, at

    def __getattr__(self, name: str) -> Any:
        if name in _BEFORE_VERB:
            self._at(_BEFORE_VERB[name], _session_of(self._world.zookeeper))
        return getattr(self._world, name)


def lines_of(file: Path) -> list[str]:
    """The lines of a mark that are written to their end."""
    if file.exists():
        return [
            line.rstrip("\n")
            for line in file.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]
    return []


def main(marks: str, conf: str) -> None:
    folder = Path(marks)

    def at(point: str, text: str = "") -> None:
        with (folder / point).open("a") as file:
            file.write(f"{text}\n")
        times = len(lines_of(folder / point))
        while (folder / f"hold-{point}").exists() and len(lines_of(folder / f"go-{point}")) < times:
            time.sleep(0.01)

    for kind, name, point in _BEFORE:
        setattr(kind, name, _before(getattr(kind, name), functools.partial(at, point)))
    for kind, name, point in _BEHIND:
        setattr(kind, name, _after(getattr(kind, name), functools.partial(at, point)))
    from etl.commands import run

    setattr(run, "run", functools.partial(run.run, around=lambda world: Watched(world, at)))
    sys.argv = ["etl", "run", conf, "--json"]
    runpy.run_module("etl", run_name="__main__")


def _before(call: Callable[..., Any], at: Callable[[], None]) -> Callable[..., Any]:
    def called(*given: Any, **named: Any) -> Any:
        at()
        return call(*given, **named)

    return called


def _after(call: Callable[..., Any], at: Callable[[str], None]) -> Callable[..., Any]:
    def called(it: Any, *given: Any, **named: Any) -> Any:
        found = call(it, *given, **named)
        at(_session_of(it._zookeeper) if isinstance(it, ZooKeeperMember) else "")
        return found

    return called


def _session_of(zookeeper: ZooKeeper) -> str:
    """As another client of ZooKeeper could take it over; empty once the session is lost."""
    if zookeeper.client.client_id is None:
        return ""
    session, password = zookeeper.client.client_id
    return f"{session} {password.hex()}"


if __name__ == "__main__":
    main(*sys.argv[1:])
