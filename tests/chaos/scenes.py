"""The situations of the crash matrix: what a run is and what goes on beside it when it is struck,
and the check that belongs to it.

Other consumers of the group read all the while, and what they committed is theirs: each record is
in the table or was read by one of them, and none is both. A member that commits after its append
may read again what others read, so there a record may be both, and never in the table twice.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.chaos.driver import owned, run_disturbed
from tests.chaos.others import JOIN, OtherConsumer
from tests.chaos.stage import CaseResult, Stage, ended, held, offsets_are_at_the_rows_ends
from tests.command_result import CommandResult
from tests.system.driving import Pipeline
from tests.system.live_consumers import offsets_of
from tests.system.other_members import OtherMember, another_member
from tests.traffic.rows import Row

RECORDS = 400
_OURS, _THEIRS = (0, 1), (2, 3)


class Scene:
    """A pipeline, and a producer that writes."""

    def __init__(self, stage: Stage, pipeline: Pipeline) -> None:
        self.stage, self.pipeline = stage, pipeline

    @contextlib.contextmanager
    def going_on(self, loaded: bool) -> Iterator[None]:
        """Something to read, and what goes on beside the runs. `loaded`: the table has a plan."""
        prepare(self.pipeline, loaded)
        with self.stage.writing(self.pipeline) as writer:
            writer.wait_for(20)
            yield

    def check_claims(self) -> None:
        """What must be so when a run is struck that has its partitions."""
        if "mode" in self.pipeline.settings.get("group", {}):
            assert owned(self.pipeline), "no owner was claimed"

    def struck_run(self) -> CommandResult:
        """A run in this process, while requests are lost."""
        return self.pipeline.run()

    def next_run(self) -> tuple[str, CommandResult]:
        """What the table holds before the next run, and the result of that run."""
        return held(self.pipeline), self.pipeline.ran()

    def finish(self, after: str, next_run: CommandResult | str) -> CaseResult:
        return self.stage.finish(self.pipeline, after, next_run)


class OffsetsInKafka(Scene):
    """Each committed offset is at the end of the table's rows, in every place that has it."""

    def finish(self, after: str, next_run: CommandResult | str) -> CaseResult:
        reported = super().finish(after, next_run)
        found = {
            p: offset for p, (offset, _) in offsets_of(self.pipeline, self.pipeline.group).items()
        }
        offsets_are_at_the_rows_ends(self.pipeline, found)
        if self.pipeline.settings["group"]["offsets_storage"] == "dual":
            offsets_are_at_the_rows_ends(self.pipeline, self.pipeline.committed())
        return reported


class BesideConsumer(Scene):
    """Another consumer in ZooKeeper has the second half of the partitions."""

    other: OtherConsumer

    @contextlib.contextmanager
    def going_on(self, loaded: bool) -> Iterator[None]:
        self.pipeline.produce(RECORDS)
        with OtherConsumer(self.pipeline) as self.other:
            self.other.register()
            self.other.claim(*_THEIRS)
            self.other.read(_THEIRS[0], 30)
            if loaded:
                self.pipeline.ran()
                self.pipeline.produce(RECORDS)
            with self.stage.writing(self.pipeline):
                yield
            self.other.leave()

    def check_claims(self) -> None:
        there = self.other.owned(), self.other.members()
        assert there[0] == [*_OURS, *_THEIRS] and len(there[1]) == 1, there

    def next_run(self) -> tuple[str, CommandResult]:
        """The other one reads before it and after it."""
        after = held(self.pipeline)
        self.other.read(_THEIRS[1], 50)
        next_run = self.pipeline.ran()
        self.other.read(_THEIRS[0], 20)
        there = self.other.owned(), self.other.members()
        assert there == ([*_THEIRS], []), there
        return after, next_run

    def finish(self, after: str, next_run: CommandResult | str) -> CaseResult:
        self.pipeline.produce(RECORDS)
        return shared(self.stage, self.pipeline, self.other.rows, after, next_run)


class BesideMember(Scene):
    """Another consumer in Kafka's group, which reads nothing while it owns all."""

    def __init__(self, stage: Stage, pipeline: Pipeline) -> None:
        super().__init__(stage, pipeline)
        self.others: list[OtherMember] = []

    @contextlib.contextmanager
    def going_on(self, loaded: bool) -> Iterator[None]:
        self.pipeline.produce(RECORDS)
        if loaded:
            self.pipeline.ran()
        with another_member(self.pipeline) as other:
            self.others.append(other)
            other.owns(4)
            with self.stage.writing(self.pipeline) as writer:
                other.has_read(1)
                other.rests_while_it_owns(4)
                writer.wait_for(40)
                yield

    def check_claims(self) -> None:
        """The coordinator knows the owners."""

    def struck_run(self) -> CommandResult:
        """New records come when its share is its own."""
        return run_disturbed(self.pipeline, "observe", lambda world: self.pipeline.produce(RECORDS))

    def finish(self, after: str, next_run: CommandResult | str) -> CaseResult:
        self.pipeline.produce(RECORDS)
        theirs = sum((other.read for other in self.others), Counter[Row]())
        assert max(theirs.values(), default=1) == 1, "they read a record twice"
        return shared(self.stage, self.pipeline, theirs, after, next_run)


def prepare(pipeline: Pipeline, loaded: bool, partitions: int = 4) -> None:
    """Records to read, after a first plan where `loaded`."""
    pipeline.produce(RECORDS, partitions=partitions)
    if loaded:
        pipeline.ran()
        pipeline.produce(RECORDS, partitions=partitions)


def shared(
    stage: Stage,
    pipeline: Pipeline,
    theirs: Counter[Row],
    after: str,
    next_run: CommandResult | str,
) -> CaseResult:
    """The check of a topic that others read, too, compared with `etl verify`."""
    pipeline.ran()
    ended(pipeline.door("verify"), 0)
    if pipeline.settings["group"].get("join", {}).get("commit_when") == "after_append":
        theirs = theirs - pipeline.in_table()
    return stage.finish(pipeline, after, next_run, expected=pipeline.in_topic() - theirs)


@dataclass(frozen=True, slots=True)
class Situation:
    """A kind of scene, and the settings of its pipeline."""

    kind: type[Scene]
    settings: Mapping[str, Any]


def _joining(**join: Any) -> Mapping[str, Any]:
    member = {"mode": "join", "offsets_storage": "kafka"}
    return {"group": {**member, "join": {"session_timeout_s": 6, **join}}}


AFTER_APPEND: Mapping[str, Any] = {"commit_when": "after_append"}
SITUATIONS: Mapping[str, Situation] = {
    "alone": Situation(Scene, {}),
    "claiming": Situation(Scene, {"group": {"mode": "claim"}}),
    "member": Situation(Scene, {"group": JOIN}),
    "member, after append": Situation(Scene, {"group": {**JOIN, "join": AFTER_APPEND}}),
    "beside": Situation(BesideConsumer, {"group": JOIN}),
    "beside, after append": Situation(BesideConsumer, {"group": {**JOIN, "join": AFTER_APPEND}}),
    "kafka": Situation(OffsetsInKafka, {"group": {"offsets_storage": "kafka"}}),
    "dual": Situation(OffsetsInKafka, {"group": {"offsets_storage": "dual"}}),
    "coordinated": Situation(BesideMember, _joining()),
    "coordinated, static": Situation(BesideMember, _joining(instance_id="loader-1")),
    "coordinated, after append": Situation(BesideMember, _joining(**AFTER_APPEND)),
}
