"""Row 39: members with offset commits after the append (`group.join.commit_when: after_append`), in
ZooKeeper's group and in Kafka's own.

A member that takes a partition over before the commit reads the same records again, so a record may
be in the table and read by the other one; none is in the table twice, none is in neither, and in
the end the group's offsets are at the log ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tests.chaos import cases_coordinated, cases_member
from tests.chaos.cases_hand_over import joining
from tests.chaos.cases_zombie import wakes_at_verb
from tests.chaos.cases_zookeeper import run_disturbed
from tests.chaos.coordinators import both
from tests.chaos.others import JOIN, OtherConsumer
from tests.chaos.proxy import OFFSET_COMMIT
from tests.chaos.stage import Case, CaseResult, Stage, held, summary_of
from tests.chaos.zookeeper_proxy import MULTI, Lost
from tests.system.other_members import another_member

_BEHIND: Mapping[str, Any] = {**JOIN, "join": {"commit_when": "after_append"}}
_BEHIND_IN_KAFKA: Mapping[str, Any] = {
    **cases_coordinated.COORDINATED,
    "group": {
        **cases_coordinated.COORDINATED["group"],
        "join": {
            **cases_coordinated.COORDINATED["group"]["join"],
            "commit_when": "after_append",
        },
    },
}
_PARTITION, _THEIRS = 1, 20
_TAKEN = "owner_changed"


def taken(stage: Stage) -> CaseResult:
    """Between append and commit another consumer owns a partition of ours, reads on from the
    group's offset and lets go.
    """
    pipeline = joining(stage, loaded=True, group=_BEHIND)
    with OtherConsumer(pipeline) as other:

        def comes(world: object) -> None:
            other.claim(_PARTITION)
            other.read(_PARTITION, _THEIRS)
            other.let_go(_PARTITION)

        result = run_disturbed(pipeline, "commit", comes)
        assert result.code == 0 and _TAKEN in result.outcomes, f"{summary_of(result)}\n{result.err}"
        after = held(pipeline)
        pipeline.produce(400)
        next_run = pipeline.ran()
    proof = pipeline.door("verify")
    assert proof.code == 0, f"{summary_of(next_run)}\n{proof.err}{proof.out}"
    theirs = other.rows - pipeline.in_table()
    reported = stage.finish(
        pipeline,
        after=after,
        next_run=both(result, next_run),
        expected=pipeline.in_topic() - theirs,
    )
    ends = {
        partition: 1 + max(offset for p, offset, _ in pipeline.in_topic() if p == partition)
        for partition in range(4)
    }
    assert pipeline.committed() == ends, f"offsets {pipeline.committed()}, the logs end at {ends}"
    return reported


def taken_in_kafka(stage: Stage) -> CaseResult:
    """Between append and commit one more consumer joins: the commit is rejected, and the next run
    continues after the records that others read.
    """
    pipeline = stage.pipeline(**_BEHIND_IN_KAFKA)
    with (
        contextlib.ExitStack() as coming,
        cases_coordinated.other_member_reading(stage, pipeline, loaded=True) as theirs,
    ):

        def comes(world: object) -> None:
            theirs.append(coming.enter_context(another_member(pipeline)))
            theirs[-1].owns(1)

        result = run_disturbed(pipeline, "commit", comes)
        assert result.code == 0 and _TAKEN in result.outcomes, f"{summary_of(result)}\n{result.err}"
        coming.close()
        after, next_run = held(pipeline), pipeline.ran()
    return cases_coordinated.shared(stage, pipeline, theirs, after, both(result, next_run))


def is_commit(operation: int, frame: bytes) -> bool:
    """The request that commits offsets after the append."""
    return operation == MULTI and b"/offsets/" in frame


def _in_kafka(name: str, what: str, play: Callable[..., CaseResult], **given: Any) -> Case:
    return Case(
        39,
        f"behind the append, in Kafka: {name}",
        f"{_KAFKA}{what}",
        partial(play, settings=_BEHIND_IN_KAFKA, **given),
    )


_ZOOKEEPER, _KAFKA = "as a member that commits behind its append: ", "as such a member in Kafka: "
_STEPS = (
    ("store", "settled", "when it owns its share, before the plan is stored", "ingested"),
    ("claiming", "stored", "when the plan is stored, before the first fetch", "plan_resumed"),
    ("append", "before it writes", "before a file is written", "plan_resumed"),
    ("commit", "appended", "after the Delta commit, before an offset is moved", "plan_completed"),
    (
        "record",
        "moved",
        "when the offsets are moved, before that is written down",
        "plan_completed",
    ),
)

CASES: tuple[Case, ...] = (
    *(
        Case(
            39,
            f"behind the append: killed {name}",
            f"{_ZOOKEEPER}SIGKILL {when}",
            partial(cases_member.at_verb, verb=verb, loaded=True, group=_BEHIND),
        )
        for verb, name, when, _ in _STEPS
    ),
    *(
        Case(
            39,
            f"behind the append: killed as it moves offsets, {lost.value}",
            f"{_ZOOKEEPER}SIGKILL as it moves its offsets, {when}",
            partial(
                cases_member.at_request, seen=lambda: is_commit, lost=lost, stored=1, group=_BEHIND
            ),
        )
        for lost, when in (
            (Lost.REQUEST, "before the request reached the server"),
            (Lost.ANSWER, "after the server did it, before the answer came"),
        )
    ),
    Case(
        39,
        "behind the append: taken",
        f"{_ZOOKEEPER}before it moves its offsets another consumer owns a partition and "
        f"reads on in it",
        taken,
    ),
    Case(
        39,
        "behind the append: asleep",
        f"{_ZOOKEEPER}the driver is paused past its session before it moves its offsets, a "
        f"second one does the work, the first goes on",
        partial(wakes_at_verb, verb="commit", loaded=True, group=_BEHIND),
    ),
    *(
        _in_kafka(
            f"killed {name}",
            f"SIGKILL {when}",
            cases_coordinated.at_verb,
            verb=verb,
            then=then,
            loaded=True,
        )
        for verb, name, when, then in _STEPS
    ),
    _in_kafka(
        "killed as it commits",
        "SIGKILL after the coordinator took its commit, before the answer came",
        cases_coordinated.at_answer,
        api=OFFSET_COMMIT,
    ),
    Case(
        39,
        "behind the append, in Kafka: taken",
        f"{_KAFKA}before its commit one more consumer joins",
        taken_in_kafka,
    ),
    _in_kafka(
        "answer lost", "the answer of its commit is lost", cases_coordinated.answer_lost, times=1
    ),
    _in_kafka(
        "each answer lost",
        "each answer of its commit is lost",
        cases_coordinated.answer_lost,
        times=None,
    ),
    _in_kafka(
        "asleep",
        "the driver is paused past its sessions before its commit, a second one does the "
        "work, the first goes on",
        cases_coordinated.asleep,
        verb="commit",
        loaded=True,
    ),
    _in_kafka(
        "coordinator moved",
        "the broker that keeps the group is killed before the commit",
        cases_coordinated.coordinator_moved,
        verb="commit",
    ),
)
