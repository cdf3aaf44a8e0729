"""A topic that runs share with other consumers, and the law: each record is read by one."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from etl.testkit.server_process import wait_until
from tests.brokers.foreign import Seen
from tests.brokers.stage import PARTITIONS, JafkaStage, KafkaStage
from tests.brokers.writing import ForeignPipeline, sent
from tests.chaos.driver import Driver
from tests.chaos.holding import ARROW_TRANSFORM, Hold
from tests.command_result import CommandResult
from tests.groups.kinds import SESSION_S, Kind
from tests.groups.others import Others
from tests.groups.run_at_points import lines_of
from tests.system.driving import session_at

WITHIN_S = 60
JOINED: Mapping[str, Any] = {
    "zookeeper": {"session_timeout_s": SESSION_S},
    "table": {"writer": "auto"},
    "limits": {"local_below_bytes": 1 << 30},
    "group": {"mode": "join"},
    "ledger": {"lock_timeout_s": 30},
    "transform": {"record_batch": ARROW_TRANSFORM},
}
"""The conf of a run as a member, without Spark, with tasks that the test can hold."""
Place = tuple[int, int, int, int]
_numbers = itertools.count(1)


class Run(Driver):
    """`etl run` as a process, which waits at the points that are held; see `run_at_points`."""

    def __init__(self, pipeline: ForeignPipeline, *held: str, hold: Hold | None = None) -> None:
        super().__init__(pipeline, hold=hold)
        self._marks = pipeline.folder / f"marks-{next(_numbers)}"
        self._marks.mkdir()
        for point in held:
            (self._marks / f"hold-{point}").touch()
        self._words = ["tests.groups.run_at_points", str(self._marks), str(pipeline.conf)]

    def comes_to(self, point: str, times: int = 1) -> str:
        """Wait until it was there so often; the ZooKeeper session of the last time."""
        mark = self._marks / point
        self.wait_for(point, lambda: len(lines_of(mark)) >= times)
        return lines_of(mark)[-1]

    def release(self, point: str) -> None:
        (self._marks / f"hold-{point}").unlink()

    def release_once(self, point: str) -> None:
        """Hold it there again when it comes back."""
        with (self._marks / f"go-{point}").open("a") as file:
            file.write("\n")


@dataclass
class Shared:
    """`with Shared(...) as shared`: all members leave at the end."""

    pipeline: ForeignPipeline
    others: Others
    read: list[Seen] = field(default_factory=list)
    """What those read and committed that exited."""
    inside: set[str] = field(default_factory=set)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*self.inside]:
            self.exit(name)

    def enter(self, name: str) -> None:
        self.inside.add(name)
        self.others.enter(name)

    def exit(self, name: str) -> None:
        self.inside.remove(name)
        self.read += self.others.exit(name)

    def send(self, count: int) -> None:
        sent(self.pipeline, count)

    def running(self, *held: str, hold: Hold | None = None) -> Run:
        return Run(self.pipeline, *held, hold=hold)

    @contextlib.contextmanager
    def held_at(self, point: str, *later: str, hold: Hold | None = None) -> Iterator[Run]:
        """A run at a point with 40 records to read; `hold`: its tasks instead."""
        first = "registered" if point == "registered" else "claimed"
        held = {first} if hold else {first, point}
        with self.running(*held, *later, hold=hold) as run:
            run.comes_to(first)
            self.send(40)
            if first != point:
                run.release(first)
            if hold:
                run.wait_for("a task at work", lambda: bool(hold.workers()))
            else:
                run.comes_to(point)
            yield run

    def ran(self) -> CommandResult:
        return self.pipeline.ran()

    def in_table(self) -> list[Seen]:
        return (
            self.pipeline.in_table_seen() if (self.pipeline.table / "_delta_log").exists() else []
        )

    def others_read_the_rest(self) -> None:
        """Wait until all records are in our table or read by others."""
        rest = (
            len(self.pipeline.stage.read(self.pipeline.topic))
            - len(self.in_table())
            - len(self.read)
        )
        assert wait_until(lambda: self.count() >= rest, WITHIN_S), f"{self.count()} of {rest}"

    def count(self) -> int:
        """How many records those inside have read by now."""
        return sum(self.others.count(name) for name in self.inside)

    def are_owned(self, within_s: float = WITHIN_S, **owners: int) -> None:
        """Wait for these numbers of owned partitions; without names: all by the present members."""

        def are_so() -> bool:
            found = self.others.owned()
            if owners:
                return found == owners
            return found.keys() == self.inside and sum(found.values()) == PARTITIONS

        assert wait_until(are_so, within_s), self.others.owned()

    def has(self, name: str, count: int) -> None:
        """Wait until that one knows that it owns so many."""
        assert wait_until(lambda: self.others.owned().get(name) == count, WITHIN_S), (
            self.others.owned()
        )

    def end(self) -> CommandResult:
        """All leave, a last run (with these arguments) reads the unread rest, and the law holds."""
        last, ours, theirs, written = self._all_of_it()
        both = ours + theirs
        assert both == written, (
            f"lost {sorted(written - both)[:9]}, read by two {sorted(both - written)[:9]}"
        )
        return last

    def end_after_append(self) -> Counter[Place]:
        """As `end`, with commits after the append: records in both are listed in the reports."""
        _, ours, theirs, written = self._all_of_it()
        assert max((*ours.values(), *theirs.values())) == 1
        assert ours | theirs == written, f"lost {sorted(written - (ours | theirs))[:9]}"
        reports = [
            json.loads(path.read_text())
            for path in (self.pipeline.folder / "reports").glob("*.json")
        ]
        reported = {
            outcome["outcome"] for report in reports for outcome in report.get("outcomes", ())
        }
        twice = ours & theirs
        assert not twice or reported & {"duplicate_reads", "owner_changed"}, reported
        return twice

    def _all_of_it(self) -> tuple[CommandResult, Counter[Place], Counter[Place], Counter[Place]]:
        """All leave; a last run, `etl verify`, and the records that are ours, theirs, written."""
        for name in [*self.inside]:
            self.exit(name)
        last = self.ran()
        ours, theirs = Counter(map(place, self.in_table())), Counter(map(place, self.read))
        written = Counter(map(place, self.pipeline.stage.read(self.pipeline.topic)))
        assert max(written.values()) == 1
        proof = self.pipeline.door("verify")
        assert proof.code == 0, proof.err + proof.out
        return last, ours, theirs, written


def place(seen: Seen) -> Place:
    """Where a record is in its topic."""
    return seen.broker, seen.partition, seen.offset, seen.index


def end_session(connect: str, session: str) -> None:
    """End another client's session, as its server does when it hears nothing of it for so long."""
    number, password = session.split()
    with session_at(connect, client_id=(int(number), bytes.fromhex(password))):
        pass


def sharing(
    kind: Kind,
    stage: JafkaStage | KafkaStage,
    folder: Path,
    opened: ExitStack,
    *,
    others: Mapping[str, Any] | None = None,
    **join: Any,
) -> Shared:
    """A new topic and group with `others`; `join` is our conf's `group.join`."""
    number = next(_numbers)
    topic, group = stage.new_topic(), f"shared-{number}-{time.time_ns()}"
    home = folder / f"pipeline-{number}"
    home.mkdir()
    conf = {
        **JOINED,
        **stage.conf,
        "group": {
            **JOINED["group"],
            "offsets_storage": kind.offsets_storage,
            "join": {**kind.join, **join},
        },
    }
    pipeline = ForeignPipeline(stage.cluster, home, topic, group, conf, stage=stage)
    return opened.enter_context(
        Shared(pipeline, kind.others(stage, group, topic, opened, **others or {}))
    )
