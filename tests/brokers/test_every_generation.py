"""A pipeline on each release: foreign producers write, and the table has what the release's own
consumer reads.

And a member of ours next to that consumer: each follows the other's assignments.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from etl.errors import NotKafka, SettingsError
from etl.model.partitions import GroupProtocol
from tests.brokers.compiling import number_of
from tests.brokers.groups import Group
from tests.brokers.stage import JafkaStage, KafkaStage
from tests.brokers.writing import FETCH_BYTES, ForeignPipeline
from tests.system.driving import broken_off_before


def test_records_of_foreign_producers_are_in_the_table_once_also_after_a_crash(
    make_pipeline: Callable[..., ForeignPipeline],
) -> None:
    """Every codec, null and size; and a run that ends between its Delta commit and the offsets."""
    pipeline = make_pipeline(source={"fetch_max_bytes": FETCH_BYTES})
    pipeline.write_every_kind()
    assert pipeline.door("run", after=["--dry-run"]).code == 0
    pipeline.ran()
    assert pipeline.is_as_its_own_consumer_reads()
    pipeline.write_more()
    broken_off_before("commit", pipeline)
    pipeline.write_more()
    pipeline.ran()
    assert pipeline.is_as_its_own_consumer_reads()
    assert pipeline.door("verify").code == 0


@pytest.mark.brokers
def test_a_real_run_killed_after_its_delta_commit_leaves_each_record_once(
    make_pipeline: Callable[..., ForeignPipeline],
) -> None:
    pipeline = make_pipeline()
    pipeline.write_more()
    assert pipeline.killed_before("commit") == -signal.SIGKILL
    pipeline.write_more()
    pipeline.ran()
    assert pipeline.is_as_its_own_consumer_reads()
    assert pipeline.door("verify").code == 0


def test_the_consumers_of_a_release_follow_what_we_assign_and_we_what_they_do(
    stage: KafkaStage | JafkaStage,
) -> None:
    if isinstance(stage, JafkaStage) or stage.release < (0, 9):
        return  # these have no coordinator
    group = Group(stage, stage.new_topic(), GroupProtocol.CLASSIC, "range")
    with group.joined() as (first, share):
        assert share.partitions == group.logs
        with group.foreign():
            group.divided(first)
            first.leave()
            group.theirs(group.logs)
            with group.joined() as (second, _):
                group.divided(second)
    with group.joined() as (third, share):
        assert share.partitions == group.logs and third.statistics.lost == 0, (
            "the last member owns all partitions again"
        )


def test_what_a_release_has_no_group_protocol_for_is_refused_with_what_it_speaks(
    stage: KafkaStage | JafkaStage,
) -> None:
    topic = stage.new_topic()
    refused = SettingsError if isinstance(stage, KafkaStage) else NotKafka
    for protocol, least in ((GroupProtocol.CLASSIC, (0, 9)), (GroupProtocol.CONSUMER, (4,))):
        if isinstance(stage, KafkaStage) and number_of(stage.version) >= least:
            continue
        with pytest.raises(refused):
            Group(stage, topic, protocol, "range").member().join()  # type: ignore[arg-type]
