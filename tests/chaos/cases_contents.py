"""Row 18: logs with gaps, transactions in every state, partitions that are nearly empty."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from kafka import KafkaProducer

from etl.testkit.server_process import wait_until
from tests.chaos.driver import kill_before
from tests.chaos.sources import configure
from tests.chaos.stage import CaseResult, Stage, held, stopped
from tests.system.driving import Pipeline, broken_off_before

_COMPACTING = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "100",
    "min.compaction.lag.ms": "0",
}
_NO_MORE = {
    "min.compaction.lag.ms": str(2**62),
    "max.compaction.lag.ms": str(2**63 - 1),
    "segment.ms": str(2**62),
}
_KEYS = 10


@contextlib.contextmanager
def transactional(pipeline: Pipeline, number: int = 1) -> Iterator[KafkaProducer]:
    """A producer that leaves its transaction open when the block ends."""
    with KafkaProducer(
        bootstrap_servers=pipeline.cluster.bootstrap,
        transactional_id=f"{number}-for-{pipeline.topic}",
    ) as producer:
        producer.init_transactions()
        yield producer


def send(
    producer: KafkaProducer, pipeline: Pipeline, what: str, count: int, partition: int = 0
) -> None:
    sent = [
        producer.send(pipeline.topic, b"%s %d" % (what.encode(), n), partition=partition)
        for n in range(count)
    ]
    producer.flush()
    for one in sent:
        one.get(30)


def transaction(
    producer: KafkaProducer,
    pipeline: Pipeline,
    what: str,
    count: int,
    end: Callable[[], object],
    partition: int = 0,
) -> None:
    producer.begin_transaction()
    send(producer, pipeline, what, count, partition)
    end()


def compacted(stage: Stage, *, between: bool = False) -> CaseResult:
    """Compaction before the plan, or between the plan and its fetch."""
    pipeline = stage.pipeline(partitions=2, config={} if between else _COMPACTING)
    with KafkaProducer(bootstrap_servers=pipeline.cluster.bootstrap) as producer:
        for number in range(600):
            value, key = b"value %d" % number, b"key %d" % (number % _KEYS)
            producer.send(pipeline.topic, value, key=key, partition=number % 2)
        producer.flush()
        if between:
            kill_before(pipeline, "fetch")
            configure(pipeline, _COMPACTING)

        def is_compacted() -> bool:
            # another record, some time later, ends the segment that may be compacted
            for partition in range(2):
                producer.send(pipeline.topic, b"later", key=b"later", partition=partition).get(30)
            return sum(pipeline.in_topic().values()) < 100

        assert wait_until(is_compacted, 90), sum(pipeline.in_topic().values())
    configure(pipeline, _NO_MORE)
    after = held(pipeline)
    result = stopped(pipeline.run(), 0, "plan_resumed" if between else "ingested")
    pipeline.produce(80, partitions=2)
    pipeline.ran()
    return stage.finish(pipeline, after, result)


def transactions(stage: Stage) -> CaseResult:
    """Committed, aborted and open ones, of two producers in turn, and plain records between them."""
    pipeline = stage.pipeline(partitions=2)
    with (
        transactional(pipeline) as one,
        transactional(pipeline, 2) as two,
        KafkaProducer(bootstrap_servers=pipeline.cluster.bootstrap) as plain,
    ):
        transaction(one, pipeline, "kept", 30, one.commit_transaction)
        one.begin_transaction()
        two.begin_transaction()
        for turn in range(3):
            send(one, pipeline, f"dropped {turn}", 10)
            send(plain, pipeline, f"plain {turn}", 5)
            send(two, pipeline, f"kept too {turn}", 10)
        one.abort_transaction()
        two.commit_transaction()
        transaction(one, pipeline, "dropped", 20, one.abort_transaction, partition=1)
        one.begin_transaction()
        send(one, pipeline, "open", 20)
        send(plain, pipeline, "behind the open one", 10)
        broken_off_before("commit", pipeline)
        after = held(pipeline)
        result = stopped(pipeline.run(), 0, "plan_completed")
        one.commit_transaction()
        two.begin_transaction()
        send(two, pipeline, "open and then dropped", 10)
        pipeline.ran()
        two.abort_transaction()
    return stage.finish(pipeline, after, result)


def open_transaction(stage: Stage, *, commits: bool) -> CaseResult:
    """The range ends at the last stable offset: later records wait until the transaction ends."""
    pipeline = stage.pipeline(partitions=1)
    with (
        transactional(pipeline) as producer,
        KafkaProducer(bootstrap_servers=pipeline.cluster.bootstrap) as plain,
    ):
        send(plain, pipeline, "before", 20)
        producer.begin_transaction()
        send(producer, pipeline, "open", 20)
        send(plain, pipeline, "behind", 20)
        assert pipeline.ran().document["plan"]["ranges"][0]["until"] == 20
        after = held(pipeline)
        assert pipeline.ran().outcomes == ["open_transaction", "up_to_date"]
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    return stage.finish(pipeline, after, stopped(pipeline.run(), 0, "ingested"))


def ends_inside_an_aborted_one(stage: Stage) -> CaseResult:
    """Caps end three ranges inside one aborted transaction, among records of others."""
    pipeline = stage.pipeline(partitions=1, limits={"max_records_per_plan": 25})
    with (
        transactional(pipeline) as producer,
        KafkaProducer(bootstrap_servers=pipeline.cluster.bootstrap) as plain,
    ):
        send(plain, pipeline, "before", 10)
        producer.begin_transaction()
        for turn in range(3):
            send(producer, pipeline, f"dropped {turn}", 20)
            send(plain, pipeline, f"plain {turn}", 5)
        producer.abort_transaction()
        transaction(producer, pipeline, "kept", 10, producer.commit_transaction)
    after = kill_before(pipeline, "fetch")
    result = stopped(pipeline.run(), 0, "plan_resumed")
    for _ in range(4):
        pipeline.ran()
    return stage.finish(pipeline, after, result)


def ends_with_markers(stage: Stage) -> CaseResult:
    """Ranges that end with transaction markers, and a next range with nothing else."""
    pipeline = stage.pipeline(partitions=1)
    with transactional(pipeline) as producer:
        transaction(producer, pipeline, "kept", 10, producer.commit_transaction)
        pipeline.ran()
        transaction(producer, pipeline, "dropped", 10, producer.abort_transaction)
        after = kill_before(pipeline, "fetch")
        result = stopped(pipeline.run(), 0, "plan_resumed")
        assert pipeline.committed() == {0: 22}
        transaction(producer, pipeline, "kept", 1, producer.commit_transaction)
        pipeline.ran()
    return stage.finish(pipeline, after, result)


def nearly_nothing(stage: Stage, *, records: int) -> CaseResult:
    """A topic of many partitions of which one has a record or none has; then each gets one."""
    pipeline = stage.pipeline(partitions=12)
    with KafkaProducer(bootstrap_servers=pipeline.cluster.bootstrap) as producer:
        for number in range(records):
            producer.send(pipeline.topic, b"one", partition=7 + number).get(30)
        after = kill_before(pipeline, "fetch")
        result = stopped(pipeline.run(), 0, "plan_resumed")
        pipeline.ran()
        for partition in range(12):
            producer.send(pipeline.topic, b"one more", partition=partition).get(30)
    pipeline.ran()
    return stage.finish(pipeline, after, result)
