"""A member of ours in a process: it joins, prints its owned partitions, follows the group, and
leaves on request.

    python -m tests.groups.zookeeper_member CONNECT GROUP TOPIC DIALECT STOP-AT

It prints a line for each point, `registered`, `claimed 0,1`, `leaving`; at STOP-AT, if it is one of
them, it waits for ever, so that it can be killed there. `leave` on its standard input makes it
leave, and end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from etl.decide.group_assignment import Timing
from etl.io.zookeeper.group_member import MemberOptions, ZooKeeperMember
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.partitions import BrokerFamily

SESSION_S = 6.0


def main(connect: str, group: str, topic: str, dialect: str, stop_at: str) -> None:
    """Wait until standard input has `leave`."""

    def at(point: str, more: str = "") -> None:
        print(point, more, flush=True)
        while point == stop_at:
            time.sleep(600)

    with ZooKeeper(connect, session_timeout_s=SESSION_S) as session:
        options = MemberOptions(
            BrokerFamily(dialect), frozenset({topic}), timing=Timing(60, 0.5, 0.5)
        )
        member = ZooKeeperMember(session, group, "clicks", "run-1", options)
        rebalance: Any = member._rebalance
        before(rebalance._do, "claim", lambda: at("registered"))
        share = member.join()
        at("claimed", ",".join(sorted(partition.key for partition in share.partitions)))
        member.follow()
        sys.stdin.readline()
        members = rebalance._members
        deregister = members.deregister

        def pausing(name: str) -> None:
            at("leaving")
            deregister(name)

        members.deregister = pausing
        member.leave()
        print("left", flush=True)


def before(steps: dict[Any, Callable[[], Any]], name: str, call: Callable[[], None]) -> None:
    """Call before the step of that name is taken for the first time."""
    step = next(step for step in steps if step.name.lower() == name)
    taken = steps[step]

    def once() -> Any:
        steps[step] = taken
        call()
        return taken()

    steps[step] = once


if __name__ == "__main__":
    main(*sys.argv[1:])
