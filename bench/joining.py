"""What it takes a run under `group.mode: join` to own very many partitions and hand them over,
with a real ZooKeeper.

    PYTHONPATH=. python bench/joining.py [--partitions 5000] [--rounds N] [--profile FILE]

The stage is that of `planning.py`. The second run is measured, a fresh process as any other: it
registers and claims all partitions of its group (`join_s`), reads the group's offsets and
everything else that a run looks at (`observe_s`), decides (`decide_s`), and stores its plan with
all offsets in one transaction (`hand_over_s`). `joined_and_handed_over_s` is all of it, by the
clock, from the first step of the join until ZooKeeper has the plan. `leave_s` is what giving
everything back takes at the end.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from bench.planning import LOGS_OF_A_TOPIC, RECORDS, NothingRead, many_brokers, register
from etl.commands.run import run
from etl.model.plans import CommitState, Plan
from etl.run.service_interfaces import Member, Services
from etl.settings.load import load_settings
from etl.testkit.cluster import ZooKeeper

COLUMNS = (
    "join_s",
    "observe_s",
    "decide_s",
    "hand_over_s",
    "joined_and_handed_over_s",
    "cpu_s",
    "leave_s",
    "peak_mib",
)


class Joined(NothingRead):
    """The same services, with a timed member."""

    def __init__(self, world: Services) -> None:
        super().__init__(world)
        self.began = self.began_cpu = self.took_s = self.took_cpu_s = 0.0

    def member(self) -> Member | None:
        """The run's own member; the time starts with its first step."""
        member: Any = self._world.member()
        join, leave = member.join, member.leave

        def joined() -> Any:
            self.began, self.began_cpu = time.monotonic(), time.process_time()
            with self._timed("join"):
                return join()

        def left() -> None:
            with self._timed("leave"):
                leave()

        member.join, member.leave = joined, left
        found: Member = member
        return found

    def store(self, plan: Plan) -> Any:
        """The offset commit, at the end of which the time ends."""
        with self._timed("store"):
            found = self._world.store(plan)
        self.took_s, self.took_cpu_s = (
            time.monotonic() - self.began,
            time.process_time() - self.began_cpu,
        )
        return found


def one_run(conf: Path, profile: str | None) -> dict[str, float]:
    """In this process: a run of that conf, and what it took."""
    worlds: list[Joined] = []

    def around(world: Services) -> Services:
        worlds.append(Joined(world))
        found: Services = worlds[-1]
        return found

    profiler = cProfile.Profile(time.process_time) if profile else None
    if profiler:
        profiler.enable()
    run(load_settings(conf), around=around)
    if profiler and profile:
        profiler.disable()
        profiler.dump_stats(profile)
    world = worlds[-1]
    assert world.plan is not None and world.plan.commit.state is CommitState.DONE
    found = world.seconds
    return {
        "join_s": found["join"],
        "observe_s": found["observe"],
        "hand_over_s": found["store"],
        "decide_s": world.took_s - found["join"] - found["observe"] - found["store"],
        "joined_and_handed_over_s": world.took_s,
        "cpu_s": world.took_cpu_s,
        "leave_s": found["leave"],
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def measured(partitions: int, *, profile: str | None = None) -> dict[str, float]:
    """The run after the first one, over this number of partitions, of topics of a hundred each."""
    topics = [f"topic-{number:04}" for number in range(max(1, partitions // LOGS_OF_A_TOPIC))]
    each = partitions // len(topics)
    with (
        tempfile.TemporaryDirectory(prefix="etl-bench-") as name,
        ZooKeeper(Path(name, "zookeeper")) as zookeeper,
        many_brokers(max(1, partitions // 100), len(topics), each) as (process, ports),
    ):
        register(zookeeper.connect, ports, topics, each)
        conf = Path(name, "conf.yaml")
        conf.write_text(
            yaml.safe_dump(
                {
                    "pipeline": "many",
                    "zookeeper": {"connect": zookeeper.connect},
                    "source": {"topics": ["topic-[0-9]+"], "starting_offsets": "earliest"},
                    "report": {"path": str(Path(name, "reports"))},
                    "table": {"path": str(Path(name, "table"))},
                    "group": {"id": "many", "mode": "join"},
                }
            )
        )
        in_a_process(conf, None)
        assert process.stdin and process.stdout
        print(RECORDS, file=process.stdin, flush=True)
        process.stdout.readline()
        return in_a_process(conf, profile)


def in_a_process(conf: Path, profile: str | None) -> dict[str, float]:
    """One run, in a fresh one."""
    words = [sys.executable, __file__, "--one", str(conf), *([profile] if profile else [])]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """A table: the median of each figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--partitions", default="5000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", help="where the second run's profile goes")
    arguments = parser.parse_args()
    print(f"{'partitions':>10}", *(f"{column:>{max(9, len(column))}}" for column in COLUMNS))
    for partitions in map(int, arguments.partitions.split(",")):
        rounds = [measured(partitions, profile=arguments.profile) for _ in range(arguments.rounds)]
        figures = (
            f"{statistics.median(one[column] for one in rounds):>{max(9, len(column))}.2f}"
            for column in COLUMNS
        )
        print(f"{partitions:>10}", *figures, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one_run(Path(sys.argv[2]), sys.argv[3] if sys.argv[3:] else None)))
    else:
        main()
