"""Old high-level consumers, from the jars of their release, in one group with runs and streams."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from etl import Consumer, ConsumerConfig, ConsumerConnector
from etl import Group as StreamsGroup
from etl.testkit.brokers import JAFKA
from etl.testkit.server_process import wait_until
from tests.brokers.stage import PARTITIONS, JafkaStage, KafkaStage
from tests.brokers.writing import ForeignPipeline, in_table, many, sent
from tests.brokers.zookeeper_groups import SETTLES_S, Group, of_both_families
from tests.fakes.group_readers import GroupReader

of_old_consumers = pytest.mark.parametrize(
    "stage", [JAFKA, "0.8.2.2", "0.9.0.1", "0.10.2.2", "0.11.0.3", "1.1.1"], indirect=True
)


@pytest.mark.brokers
@of_old_consumers
def test_an_old_consumer_continues_at_our_offset_and_we_at_its_offset(
    stage: KafkaStage | JafkaStage,
    make_pipeline: Callable[..., ForeignPipeline],
) -> None:
    """They read the records that the group has not read yet; then the group has read to the end."""
    pipeline = make_pipeline(group={"on_offset_changed": "follow"})
    first = sent(pipeline, 60)
    by_them = joined(stage, pipeline, 25)
    pipeline.ran()
    ours = in_table(pipeline)
    assert by_them + ours == first
    second = sent(pipeline, 40)
    assert joined(stage, pipeline, 40) == second, "the old consumer begins where our run ended"
    assert pipeline.in_zookeeper() == stage.ends(pipeline.topic), "and nothing is left to read"
    third = sent(pipeline, 30)
    pipeline.ran()
    assert in_table(pipeline) - ours == third, "and our run where the old consumer ended"
    assert pipeline.door("verify").code == 0


@pytest.mark.brokers
@of_old_consumers
def test_a_wrapper_that_an_old_consumer_left_in_its_middle_is_read_by_the_rules_of_its_log(
    stage: KafkaStage | JafkaStage,
    make_pipeline: Callable[..., ForeignPipeline],
) -> None:
    """On Jafka a message inside a wrapper has no offset: the entry is begun anew."""
    pipeline = make_pipeline()
    packed = next(write for name, write in stage.writers.items() if name.endswith("gzip"))
    records = many(30)
    packed(pipeline.topic, 0, records)
    written = Counter(value for _, value in records)
    by_them = joined(stage, pipeline, 12)
    pipeline.ran()
    assert in_table(pipeline) == (written if isinstance(stage, JafkaStage) else written - by_them)
    assert pipeline.in_zookeeper() == stage.ends(pipeline.topic)


def joined(
    stage: KafkaStage | JafkaStage, pipeline: ForeignPipeline, count: int
) -> Counter[bytes | None]:
    """What an old consumer of the group reads before it commits and goes."""
    if isinstance(stage, JafkaStage):
        return Counter(stage.clients.join(pipeline.group, pipeline.topic, count))
    assert stage.scala is not None
    return Counter(seen.value for seen in stage.scala.join(pipeline.group, pipeline.topic, count))


@pytest.fixture
def group(stage: JafkaStage | KafkaStage, unused_group: str) -> Iterator[Group]:
    with contextlib.ExitStack() as opened:
        yield Group(stage, unused_group, opened)


class Streams:
    """A connector of one stream, and the thread that reads it."""

    def __init__(self, conf: ConsumerConfig, topic: str) -> None:
        self.values: list[bytes | None] = []
        self._connector = ConsumerConnector(conf)
        (stream,) = self._connector.create_message_streams({topic: 1})[topic]

        def run() -> None:
            for record in stream:
                self.values.append(record.value)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """All that was handed out is done with, for the thread waits for more."""
        self._connector.shutdown()
        self._thread.join(SETTLES_S)


@pytest.mark.groups
@of_both_families
def test_with_the_original_consumers_each_record_is_read_once_while_all_of_them_join_and_leave(
    group: Group, stage: JafkaStage | KafkaStage
) -> None:
    numbers, written = itertools.count(), Counter[bytes | None]()
    write = next(write for name, write in stage.writers.items() if name.endswith(("plain", "none")))

    def more() -> None:
        for partition in range(PARTITIONS):
            values = [b"%d" % next(numbers) for _ in range(25)]
            write(group.topic, partition, [(None, value) for value in values])
            written.update(values)

    where = {
        "zookeeper": group.connect,
        "broker_type": group.dialect.value,
        "auto_offset_reset": "earliest",
    }
    in_group = StreamsGroup(group.name, join_timeout_s=SETTLES_S)
    more()
    group.open("a")
    ours = GroupReader(Consumer(**where, group=in_group), [group.topic])  # type: ignore[arg-type]
    try:
        assert group.has(a=2, etl=2)
        more()
        group.open("z")
        assert group.has(a=2, etl=1, z=1)
        more()
        ours.end()
        assert group.has(a=2, z=2)
        more()
        by_itself = StreamsGroup(group.name, join_timeout_s=SETTLES_S, auto_commit_s=3600)
        config = ConsumerConfig(**where, group=by_itself)  # type: ignore[arg-type]
        streams = Streams(config, group.topic)
        try:
            assert group.has(a=2, etl=1, z=1)
            read = Counter[bytes | None](group.close("a"))
            read.update(group.close("z"))
            assert group.has(etl=4)
            more()
            read.update(ours.values)
            assert wait_until(
                lambda: sum(read.values()) + len(streams.values) >= sum(written.values()), SETTLES_S
            )
        finally:
            streams.end()
    finally:
        ours.end()
    read.update(streams.values)
    assert read == written
    assert not ours.lost_logs


@pytest.mark.groups
@of_both_families
def test_consumers_that_gave_up_without_polls_own_their_logs_again_with_the_next_poll(
    group: Group,
) -> None:
    """No event from outside comes after that: the late one calls them."""
    group.open("a", tries=2)
    in_group = StreamsGroup(group.name, join_timeout_s=SETTLES_S)
    with Consumer(
        zookeeper=group.connect,
        broker_type=group.dialect,
        auto_offset_reset="earliest",
        group=in_group,
    ) as consumer:
        consumer.subscribe([group.topic])
        assert wait_until(
            lambda: not consumer.poll(0.05) and group.counts() == {"a": 2, "etl": 2}, SETTLES_S
        )
        with pytest.raises(AssertionError, match="rebalance"):
            group.open("c", tries=2)  # it and `a` find us in their way at all their tries
        assert group.counts()["etl"] == 2
        assert wait_until(
            lambda: not consumer.poll(0.05) and group.counts() == {"a": 2, "c": 1, "etl": 1},
            SETTLES_S,
        )
