"""Offsets of a pipeline at a coordinator without a membership: committed only where they are
unchanged, with metadata that identifies the writer.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from etl.errors import CommitUnknown, OffsetMoved, Owned, PermissionDenied, TopicMissing
from etl.io.brokers import group_offsets
from etl.io.brokers.cluster_requests import Cluster
from etl.io.brokers.group_offsets import StoredOffsets
from etl.model.partitions import NOTHING_COMMITTED, Committed, TopicPartition
from tests.fakes.broker import OFFSET_COMMIT, FakeBroker, hang_up

FIRST, SECOND = (TopicPartition("demo", number) for number in range(2))
OURS = f"12:{'a' * 32}"
KEPT = StoredOffsets("g", "clicks")


@pytest.fixture
def cluster(broker: FakeBroker) -> Iterator[Cluster]:
    with Cluster([(broker.host, broker.port)], timeout_s=1) as connected:
        yield connected


def to(offset: int) -> dict[TopicPartition, Committed]:
    return {FIRST: Committed(offset, None, OURS)}


def stored(broker: FakeBroker, partition: TopicPartition = FIRST) -> tuple[int, str] | None:
    return broker.world.committed.get(("g", partition.topic, partition.partition))


def store(broker: FakeBroker, offset: int, word: str, partition: TopicPartition = FIRST) -> None:
    broker.world.committed["g", partition.topic, partition.partition] = (offset, word)


def test_metadata_of_this_pipeline_is_its_plan(broker: FakeBroker, cluster: Cluster) -> None:
    assert KEPT.move(cluster, {FIRST: NOTHING_COMMITTED}, to(800)) == [FIRST]
    assert stored(broker) == (800, f"etl:clicks:{OURS}")
    assert KEPT.committed(cluster, [FIRST, SECOND]) == {FIRST: Committed(800, None, OURS)}
    assert StoredOffsets("g", "others").committed(cluster, [FIRST]) == {
        FIRST: Committed(800, None, f"etl:clicks:{OURS}")
    }
    store(broker, 800, "x" * 4096)
    word = KEPT.committed(cluster, [FIRST])[FIRST].metadata
    assert word is not None and len(word) == 64, "a long one is known by its digest"
    assert KEPT.committed(cluster, []) == {}


@pytest.mark.parametrize("there", [None, (500, "theirs"), (800, "another's")])
def test_an_offset_moves_from_the_observed_value(
    broker: FakeBroker, cluster: Cluster, there: tuple[int, str] | None
) -> None:
    if there:
        store(broker, *there)
    assert KEPT.move(cluster, {FIRST: Committed(500, None, "theirs")}, to(800)) == [FIRST]
    assert (stored(broker) or (None,))[0] == 800


def test_a_moved_offset_stops_the_commit(broker: FakeBroker, cluster: Cluster) -> None:
    store(broker, 500, "again", SECOND)
    after = {**to(800), SECOND: Committed(800, None, OURS)}
    with pytest.raises(OffsetMoved, match="it is 500, ours is 800"):
        KEPT.move(cluster, dict.fromkeys(after, Committed(500, None, "seen")), after)
    assert stored(broker) is None and stored(broker, SECOND) == (500, "again")


def test_a_lost_answer_is_known_by_its_metadata(broker: FakeBroker, cluster: Cluster) -> None:
    broker.script[OFFSET_COMMIT].append(hang_up)
    assert KEPT.move(cluster, {FIRST: NOTHING_COMMITTED}, to(800)) == [FIRST]
    assert [key for key, _ in broker.requests].count(OFFSET_COMMIT) == 1


@pytest.mark.parametrize(
    ("there", "raises"), [(None, CommitUnknown), ((300, "another's"), OffsetMoved)]
)
def test_a_lost_answer_without_its_offset_is_in_doubt(
    broker: FakeBroker, cluster: Cluster, there: tuple[int, str] | None, raises: type[Exception]
) -> None:
    def undone(connection: socket.socket, frame: bytes) -> None:
        broker.world.committed.clear()
        if there:
            store(broker, *there)
        connection.close()

    broker.script[OFFSET_COMMIT].append(undone)
    with pytest.raises(raises):
        KEPT.move(cluster, {FIRST: NOTHING_COMMITTED}, to(800))


def test_a_deleted_topic_is_left_out(broker: FakeBroker, cluster: Cluster) -> None:
    broker.world.refused_logs["demo", 1] = 3
    after = {**to(800), SECOND: Committed(800, None, OURS)}
    assert KEPT.move(cluster, dict.fromkeys(after, NOTHING_COMMITTED), after) == [FIRST]
    broker.world.refused_logs["demo", 1] = 29
    with pytest.raises(PermissionDenied):
        KEPT.move(cluster, dict.fromkeys(after, NOTHING_COMMITTED), after)


def test_a_rejected_partition_has_no_offset(broker: FakeBroker, cluster: Cluster) -> None:
    broker.log("demo", 0)
    store(broker, 500, "theirs")
    broker.world.untold_logs["demo", 1] = 3  # as 0.8.2 does where the topic is gone
    assert KEPT.committed(cluster, [FIRST, SECOND]) == {FIRST: Committed(500, None, "theirs")}
    assert KEPT.move(cluster, {FIRST: Committed(500, None, "theirs")}, to(800)) == [FIRST]
    broker.log("demo", 1)
    with pytest.raises(TopicMissing):
        KEPT.committed(cluster, [FIRST, SECOND])


def test_a_group_with_live_members_keeps_its_offsets(broker: FakeBroker, cluster: Cluster) -> None:
    broker.world.generation, broker.world.members = 4, {"m-1": b""}
    with pytest.raises(Owned, match="has live members in Kafka"):
        KEPT.move(cluster, {FIRST: NOTHING_COMMITTED}, to(800))
    assert stored(broker) is None


def test_many_offsets_take_several_commits(
    broker: FakeBroker, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_offsets, "_COMMIT_BYTES", 1_000)
    after = {TopicPartition("demo", number): Committed(800, None, OURS) for number in range(20)}
    moved = KEPT.move(cluster, dict.fromkeys(after, NOTHING_COMMITTED), after)
    assert sorted(moved) == sorted(after)
    assert len(broker.world.committed) == 20
    assert [key for key, _ in broker.requests].count(OFFSET_COMMIT) == 3
