"""Other producers: the console programs of each release, transactions, a client without jars."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from etl.testkit.brokers import JAFKA, RELEASES, release_jars
from etl.testkit.java_and_jars import Artifact, fetched, find_java
from tests.brokers.stage import PARTITIONS, KafkaStage
from tests.brokers.writing import ODD, ForeignPipeline, many

pytestmark = pytest.mark.brokers
KAFKA = [version for version in RELEASES if version != JAFKA]
_WITHIN_S = 120
_BY_NUMBER = ("none", "gzip", "snappy", "lz4")
_NOT_OF_THESE_PROGRAMS = tuple(
    "connect-api connect-runtime kafka-log4j-appender slf4j-log4j12 slf4j-reload4j".split()
)
"""Dependencies that kafka-tools has for other projects in it."""


def write_lines(stage: KafkaStage, topic: str, codec: str, lines: Sequence[bytes]) -> None:
    """The console producer: each line is a value, and there are no keys."""
    broker = "--bootstrap-server" if stage.release >= (2, 5) else "--broker-list"
    if stage.release < (4,):
        main = "kafka.tools.ConsoleProducer"
    else:
        main = "org.apache.kafka.tools.ConsoleProducer"
    options = [broker, stage.cluster.bootstrap, "--topic", topic, "--compression-codec", codec]
    _called(stage, main, [*options, "--request-required-acks", "1"], b"\n".join([*lines, b""]))


def write_random_values(
    stage: KafkaStage, topic: str, codec: str, count: int, bytes_each: int
) -> None:
    servers = stage.cluster.bootstrap
    if stage.release < (2,):
        options = ["--broker-list", servers, "--topics", topic, "--messages", count]
        packed = ["--message-size", bytes_each, "--compression-codec", _BY_NUMBER.index(codec)]
        _called(stage, "kafka.tools.ProducerPerformance", [*options, *packed])
        return
    options = ["--topic", topic, "--num-records", count, "--record-size", bytes_each]
    properties = [f"bootstrap.servers={servers}", f"compression.type={codec}", "acks=all"]
    options += ["--throughput", -1, "--producer-props", *properties]
    _called(stage, "org.apache.kafka.tools.ProducerPerformance", options)


def _called(stage: KafkaStage, main: str, options: Sequence[object], text: bytes = b"") -> None:
    classes = os.pathsep.join(map(str, [*release_jars(stage.version), *_tools(stage)]))
    java = [str(find_java()), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command = [*java, "-cp", classes, main, *map(str, options)]
    done = subprocess.run(command, input=text, capture_output=True, timeout=_WITHIN_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:] or done.stdout[-2000:]


def _tools(stage: KafkaStage) -> list[Path]:
    """What a broker does without, as far as it is called here."""
    if stage.release < (2,):
        return []
    wanted = Artifact("org.apache.kafka", "kafka-tools", stage.version)
    return fetched(f"kafka-tools-{stage.version}", [wanted], besides=lambda: _NOT_OF_THESE_PROGRAMS)


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
        servers = {"bootstrap.servers": stage.cluster.bootstrap}
        producer = Producer({**servers, "compression.type": codec, "linger.ms": 50})
        for key, value in (*ODD, *many(100, pipeline.produced)):
            producer.produce(pipeline.topic, value, key, number % PARTITIONS, on_delivery=delivered)
            pipeline.produced += 1
        assert producer.flush(60) == 0
    assert not failed
    pipeline.ran()
    assert pipeline.is_as_its_own_consumer_reads()
