"""Logs that another pipeline has loaded into the table until now."""

from __future__ import annotations

from collections.abc import Mapping

from etl.ledger.plan_document import with_id
from etl.model.partitions import Committed, TopicPartition
from etl.model.plans import OffsetRange
from etl.model.snapshot import OtherPipeline, Snapshot
from tests.builders import changed
from tests.fakes.outside import CLUSTER, Outside
from tests.fakes.stories import LOGS, SETTINGS, outside_of, run
from tests.fakes.world import FakeWorld

OLD = f"offset-range-etl/{CLUSTER}/old-group/clicks"
ENDED = {LOGS[0]: 5, LOGS[1]: 3, LOGS[2]: 4}


def old_pipeline(
    positions: Mapping[TopicPartition, int] = ENDED, **changes: object
) -> OtherPipeline:
    """The pipeline of another group that has loaded this table until now."""
    loaded = outside_of(*(1 for _ in LOGS))
    run(loaded)
    newest = loaded.newest_plan()
    assert newest is not None
    plan = changed(
        newest,
        number=4,
        loaded_until=dict(positions),
        expected_commits={partition: Committed() for partition in positions},
        ranges=tuple(
            OffsetRange(partition, 0, position) for partition, position in positions.items()
        ),
        log_starts={},
        leader_epochs={},
        record_epochs={},
        topic_ids={"clicks": "id-1"},
        incarnations={LOGS[0]: 1},
        **changes,
    )
    return OtherPipeline(OLD, 4, 9, with_id(plan))


def loaded_by_another(*ends: int, other: OtherPipeline | None = None) -> Outside:
    """Logs that another pipeline has loaded up to `ENDED`, and a ledger without its plans."""
    outside = outside_of(*ends)
    outside.table = []
    outside.others = (other or old_pipeline(),)
    outside.topic_ids = {"clicks": "id-1"}
    return outside


def snapshot_of(outside: Outside) -> Snapshot:
    return FakeWorld(outside, SETTINGS).observe()
