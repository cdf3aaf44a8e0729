"""What else writes to brokers: their console producers, transactions, and clients that are nobody's jar."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence

import pytest

from etl.embedded.java import find_java
from etl.embedded.releases import release_jars
from tests.brokers.stage import KafkaStage
from tests.brokers.writing import ODD, ForeignPipeline, many

pytestmark = pytest.mark.brokers
LINES = [b"line %d %s" % (number, b"abc" * (number % 30)) for number in range(500)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("stage", ["0.8.2.2", "0.9.0.1", "0.10.2.2", "0.11.0.3", "1.1.1", "2.8.2", "3.9.1"], indirect=True)
def test_lines_of_the_console_producer_are_rows(stage: KafkaStage, make_pipeline: Callable[..., ForeignPipeline], codec: str) -> None:
    pipeline = make_pipeline()
    options = ["--broker-list", stage.cluster.bootstrap, "--topic", pipeline.topic, "--compression-codec", codec]
    called(stage, "kafka.tools.ConsoleProducer", options, b"\n".join([*LINES, b""]))
    pipeline.produced = len(LINES)
    pipeline.ran()
    assert pipeline.is_as_its_own_consumer_reads()
    assert sorted(seen.value or b"" for seen in pipeline.in_table_seen()) == sorted(LINES)


@pytest.mark.parametrize("stage", ["0.11.0.3", "1.1.1", "2.8.2", "3.9.1", "4.1.0"], indirect=True)
def test_what_a_transaction_took_back_is_no_row(stage: KafkaStage, make_pipeline: Callable[..., ForeignPipeline]) -> None:
    pipeline = make_pipeline()
    for ending in ("commit", "abort", "commit"):
        records = many(20, pipeline.produced)
        stage.java.send(pipeline.topic, 1, records, "gzip", ending=ending)
        pipeline.produced += len(records) if ending == "commit" else 0
    pipeline.ran()
    assert pipeline.is_as_its_own_consumer_reads()
    assert pipeline.door("verify").code == 0


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("stage", ["2.8.2", "3.9.1", "4.1.0"], indirect=True)
def test_what_librdkafka_writes_is_a_row(stage: KafkaStage, make_pipeline: Callable[..., ForeignPipeline], codec: str) -> None:
    from confluent_kafka import Producer

    pipeline = make_pipeline()
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": stage.cluster.bootstrap, "compression.type": codec, "linger.ms": 50})
    for key, value in (*ODD, *many(100)):
        producer.produce(pipeline.topic, value, key, 2, on_delivery=lambda error, _: failed.append(error) if error else None)
        pipeline.produced += 1
    assert producer.flush(60) == 0
    assert not failed
    pipeline.ran()
    assert pipeline.is_as_its_own_consumer_reads()


def called(stage: KafkaStage, main: str, options: Sequence[str], text: bytes) -> None:
    """One of Kafka's own programs."""
    classes = ":".join(map(str, release_jars(stage.version)))
    command = [str(find_java()), "-Xmx256m", "-cp", classes, main, *options]
    done = subprocess.run(command, input=text, capture_output=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
