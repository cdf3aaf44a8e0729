"""`group.offsets_storage: kafka` and `dual` on real servers: committed offsets at the coordinator,
compared before they change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from etl.commands.run import run
from etl.errors import Owned
from etl.io.zookeeper.group_offsets import ConsumerGroup
from etl.settings.load import load_settings
from tests.command_result import refused
from tests.system.driving import Before, BrokenOff, Pipeline, break_off, broken_off_before
from tests.system.live_consumers import committed_by_another, consuming, forget_group, offsets_of

pytestmark = pytest.mark.without_spark

PARTITIONS = range(4)


@pytest.fixture
def kept(make_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """A pipeline with offsets in Kafka that has loaded 20 records of each partition."""
    pipeline = make_pipeline(group={"offsets_storage": "kafka"})
    pipeline.produce(80)
    assert pipeline.ran().outcomes == ["ingested"]
    return pipeline


def offsets(pipeline: Pipeline) -> dict[int, int]:
    return {
        partition: offset for partition, (offset, _) in offsets_of(pipeline, pipeline.group).items()
    }


def all_at(offset: int) -> dict[int, int]:
    return dict.fromkeys(PARTITIONS, offset)


def test_offsets_are_committed_in_kafka_only_with_our_metadata_and_a_crash_before_them_is_repaired(
    kept: Pipeline,
) -> None:
    words = {word for _, word in offsets_of(kept, kept.group).values()}
    assert (
        len(words) == 1
        and words.pop().startswith("etl:clicks:1:")
        and offsets(kept) == all_at(20)
        and kept.committed() == {}
    )
    kept.produce(80)
    broken_off_before("commit", kept)
    assert offsets(kept) == all_at(20)
    kept.produce(80)
    assert kept.ran().outcomes == ["plan_completed", "ingested"]
    assert offsets(kept) == all_at(60) and kept.is_whole()
    assert {row["committed"] for row in kept.door("offsets", "show").document["partitions"]} == {60}
    assert kept.door("doctor").code == 0 and kept.door("offsets", "diff").code == 0


@pytest.mark.long
def test_a_moved_offset_stops_a_run_or_is_followed_and_is_restored_from_the_table(
    kept: Pipeline,
) -> None:
    committed_by_another(kept, {1: 7})
    kept.produce(80)
    refused(kept.run(), 5, "Another client moved a committed offset: it is 7, ours is 20")
    assert kept.door("ledger", "restore", after=["--reason", "seen", "--yes"]).code == 0
    assert kept.ran().code == 0 and kept.is_whole() and offsets(kept) == all_at(40)
    with pytest.raises(BaseException, match="it is 3, ours is"):  # in the middle of a run
        kept.produce(80)
        run(
            load_settings(kept.conf),
            around=Before("commit", lambda: committed_by_another(kept, {2: 3})),
        )
    assert offsets(kept) == {**all_at(40), 2: 3}, "none of the plan's was moved over it"
    assert kept.door("ledger", "restore", after=["--reason", "seen", "--yes"]).code == 0
    group = {**kept.settings["group"], "on_offset_changed": "follow"}
    kept.settings = {**kept.settings, "group": group}
    assert kept.ran().code == 0 and kept.is_whole() and offsets(kept) == all_at(60)


@pytest.mark.long
def test_a_group_that_kafka_forgot_continues_at_its_loaded_until_offsets_and_reports_it(
    kept: Pipeline,
) -> None:
    kept.produce(80)
    kept.ran()
    forget_group(kept)
    kept.settings = {**kept.settings, "source": {"starting_offsets": "latest"}}
    kept.produce(80)
    result = kept.ran()
    assert result.outcomes == ["plan_completed", "plan_completed", "ingested"]
    assert "Kafka dropped the group's offsets of 4 partitions" in str(result.document["outcomes"])
    assert offsets(kept) == all_at(60) and kept.is_whole()


@pytest.mark.long
def test_a_consumer_that_joins_during_a_run_keeps_its_offsets_and_the_next_run_moves_ours(
    kept: Pipeline,
) -> None:
    kept.produce(80)
    with contextlib.ExitStack() as consumers:
        joined = consuming(kept, kept.group, partitions=4)
        with pytest.raises(Owned, match="has live members in Kafka"):
            run(
                load_settings(kept.conf),
                around=Before("commit", lambda: consumers.enter_context(joined)),
            )
        assert offsets(kept) == all_at(20) and kept.is_whole()
    assert kept.ran().outcomes == ["plan_completed", "up_to_date"]
    assert offsets(kept) == all_at(40)


@pytest.mark.long
def test_offsets_in_both_places_go_from_one_to_the_other_and_neither_is_set_back_unseen(
    make_pipeline: Callable[..., Pipeline],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = make_pipeline()
    pipeline.produce(80)
    pipeline.ran()
    pipeline.settings = {"group": {"offsets_storage": "dual"}}
    pipeline.produce(80)
    assert pipeline.ran().outcomes == ["plan_completed", "ingested"]
    assert offsets(pipeline) == pipeline.committed() == all_at(40)
    pipeline.produce(80)
    with monkeypatch.context() as patched, pytest.raises(BrokenOff):
        patched.setattr(ConsumerGroup, "commit", lambda *given: break_off())
        run(load_settings(pipeline.conf))
    assert (offsets(pipeline), pipeline.committed()) == (all_at(60), all_at(40)), (
        "a crash between the two"
    )
    assert pipeline.ran().outcomes == ["plan_completed", "up_to_date"]
    assert offsets(pipeline) == pipeline.committed() == all_at(60)
    committed_by_another(pipeline, {0: 50})
    refused(pipeline.run(), 5, "it is 50, ours is 60")
    assert pipeline.door("offsets", "diff").code != 0
    assert pipeline.door("ledger", "restore", after=["--reason", "seen", "--yes"]).code == 0
    pipeline.ran()
    pipeline.settings = {"group": {"offsets_storage": "kafka"}}
    pipeline.produce(80)
    assert pipeline.ran().outcomes == ["ingested"]
    assert (offsets(pipeline), pipeline.committed()) == (
        all_at(80),
        all_at(60),
    ) and pipeline.is_whole()
