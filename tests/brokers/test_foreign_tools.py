"""Other producers: the console programs of each release, transactions, and a client without any
jar.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from etl.testkit.brokers import JAFKA, RELEASES
from tests.brokers.stage import PARTITIONS, KafkaStage
from tests.brokers.tools import write_lines, write_random_values
from tests.brokers.writing import ODD, ForeignPipeline, many

pytestmark = pytest.mark.brokers
KAFKA = [version for version in RELEASES if version != JAFKA]


@pytest.mark.parametrize("stage", KAFKA, indirect=True)
def test_lines_of_the_console_producer_are_rows(
    stage: KafkaStage, make_pipeline: Callable[..., ForeignPipeline]
) -> None:
    pipeline = make_pipeline()
    lines = {
        codec: [b"%s line %d %s" % (codec.encode(), n, b"abc" * (n % 30)) for n in range(500)]
        for codec in stage.codecs
    }
    for codec, texts in lines.items():
        write_lines(stage, pipeline.topic, codec, texts)
        pipeline.produced += len(texts)
    pipeline.ran()
    assert pipeline.is_as_its_own_consumer_reads()
    assert sorted(seen.value or b"" for seen in pipeline.in_table_seen()) == sorted(
        line for texts in lines.values() for line in texts
    )


@pytest.mark.parametrize("stage", KAFKA, indirect=True)
def test_what_the_performance_producer_writes_is_a_row(
    stage: KafkaStage, make_pipeline: Callable[..., ForeignPipeline]
) -> None:
    pipeline = make_pipeline()
    for codec in stage.codecs:
        write_random_values(stage, pipeline.topic, codec, 2000, 100)
        pipeline.produced += 2000
    pipeline.ran()
    assert pipeline.is_as_its_own_consumer_reads()


@pytest.mark.parametrize("stage", KAFKA[KAFKA.index("0.11.0.3") :], indirect=True)
def test_what_a_transaction_took_back_is_no_row(
    stage: KafkaStage, make_pipeline: Callable[..., ForeignPipeline]
) -> None:
    pipeline = make_pipeline()
    for ending in ("commit", "abort", "commit"):
        records = many(20, pipeline.produced)
        stage.java.send(pipeline.topic, 1, records, "gzip", ending=ending)
        pipeline.produced += len(records) if ending == "commit" else 0
    pipeline.ran()
    assert pipeline.is_as_its_own_consumer_reads()
    assert pipeline.door("verify").code == 0


@pytest.mark.parametrize("stage", KAFKA[KAFKA.index("2.8.2") :], indirect=True)
def test_what_librdkafka_writes_is_a_row(
    stage: KafkaStage, make_pipeline: Callable[..., ForeignPipeline]
) -> None:
    from confluent_kafka import Producer

    pipeline = make_pipeline()
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for number, codec in enumerate(stage.codecs):
        producer = Producer(
            {
                "bootstrap.servers": stage.cluster.bootstrap,
                "compression.type": codec,
                "linger.ms": 50,
            }
        )
        for key, value in (*ODD, *many(100, pipeline.produced)):
            producer.produce(pipeline.topic, value, key, number % PARTITIONS, on_delivery=delivered)
            pipeline.produced += 1
        assert producer.flush(60) == 0
    assert not failed
    pipeline.ran()
    assert pipeline.is_as_its_own_consumer_reads()
