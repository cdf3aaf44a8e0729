"""Runs with `commit_when: after_append` on real servers: a commit belongs to the plan's membership
or is rejected; the rest is committed later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from etl.run.live_services import LiveServices
from tests.system.driving import Pipeline, broken_off_before
from tests.system.other_members import MEMBER, another_member, at_first

pytestmark = pytest.mark.without_spark
AFTER_APPEND: dict[str, Any] = {
    **MEMBER,
    "group": {**MEMBER["group"], "join": {"commit_when": "after_append"}},
}
IN_ZOOKEEPER: dict[str, Any] = {
    **{key: value for key, value in MEMBER.items() if key != "offsets"},
    "group": {"mode": "join", "join": {"commit_when": "after_append"}},
}


def loaded(pipeline: Pipeline, settings: dict[str, Any]) -> Pipeline:
    """One that has loaded 20 records of each of four partitions while it was alone."""
    pipeline.everywhere = settings
    pipeline.produce(80)
    assert pipeline.ran().outcomes == ["ingested"]
    return pipeline


@pytest.mark.long
def test_a_member_that_joins_before_the_commit_gets_partitions_and_the_run_succeeds_and_reports_it(
    make_pipeline: Callable[..., Pipeline],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = loaded(make_pipeline(), AFTER_APPEND)
    pipeline.produce(80)
    with another_member(pipeline) as other:
        other.owns(4)
        other.has_read(80)
    pipeline.produce(80)
    with contextlib.ExitStack() as others:
        at_first(
            LiveServices,
            "append",
            monkeypatch,
            lambda _: others.enter_context(another_member(pipeline)).owns(2),
            before=True,
        )
        assert pipeline.ran().outcomes == ["offsets_left_to_members", "ingested", "owner_changed"]
    ours = pipeline.in_table()
    assert max(ours.values()) == 1 and ours.total() == 160
    pipeline.produce(80)
    assert pipeline.ran().outcomes[-1] == "ingested"
    ours = pipeline.in_table()
    assert max(ours.values()) == 1 and ours.keys() | other.read.keys() == pipeline.in_topic().keys()
    assert pipeline.door("verify").code == 0


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        pytest.param(AFTER_APPEND, "commit", id="kafka commit"),
        *(
            pytest.param(settings, step, id=f"{place} {step}", marks=pytest.mark.long)
            for settings, place, step in (
                (AFTER_APPEND, "kafka", "append"),
                (IN_ZOOKEEPER, "zookeeper", "append"),
                (IN_ZOOKEEPER, "zookeeper", "commit"),
            )
        ),
    ],
)
def test_what_a_run_that_died_did_not_move_is_moved_by_the_next_one(
    make_pipeline: Callable[..., Pipeline],
    settings: dict[str, Any],
    step: str,
) -> None:
    pipeline = loaded(make_pipeline(), settings)
    pipeline.produce(80)
    broken_off_before(step, pipeline)
    result = pipeline.ran()
    assert "plan_completed" in result.outcomes and ("plan_resumed" in result.outcomes) is (
        step == "append"
    )
    assert pipeline.is_whole() and pipeline.door("verify").code == 0
