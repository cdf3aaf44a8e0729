"""Kafka's own programs for the console, each from the jars of the release that it writes to."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from etl.testkit.brokers import release_jars
from etl.testkit.java_and_jars import Artifact, fetched, find_java
from tests.brokers.stage import KafkaStage

_WITHIN_S = 120
_BY_NUMBER = ("none", "gzip", "snappy", "lz4")
_NOT_OF_THESE_PROGRAMS = (
    "connect-api",
    "connect-runtime",
    "kafka-log4j-appender",
    "slf4j-log4j12",
    "slf4j-reload4j",
)
"""Dependencies that kafka-tools has for other projects in it."""


def write_lines(stage: KafkaStage, topic: str, codec: str, lines: Sequence[bytes]) -> None:
    """The console producer: each line is a value, and there are no keys."""
    broker = "--bootstrap-server" if stage.release >= (2, 5) else "--broker-list"
    if stage.release < (4,):
        main = "kafka.tools.ConsoleProducer"
    else:
        main = "org.apache.kafka.tools.ConsoleProducer"
    options = [
        broker,
        stage.cluster.bootstrap,
        "--topic",
        topic,
        "--compression-codec",
        codec,
        "--request-required-acks",
        "1",
    ]
    _called(stage, main, options, b"\n".join([*lines, b""]))


def write_random_values(
    stage: KafkaStage, topic: str, codec: str, count: int, bytes_each: int
) -> None:
    """The producer that measures."""
    if stage.release < (2,):
        options = [
            "--broker-list",
            stage.cluster.bootstrap,
            "--topics",
            topic,
            "--messages",
            count,
            "--message-size",
            bytes_each,
        ]
        _called(
            stage,
            "kafka.tools.ProducerPerformance",
            [*options, "--compression-codec", _BY_NUMBER.index(codec)],
        )
        return
    options = [
        "--topic",
        topic,
        "--num-records",
        count,
        "--record-size",
        bytes_each,
        "--throughput",
        -1,
    ]
    properties = [
        f"bootstrap.servers={stage.cluster.bootstrap}",
        f"compression.type={codec}",
        "acks=all",
    ]
    _called(
        stage,
        "org.apache.kafka.tools.ProducerPerformance",
        [*options, "--producer-props", *properties],
    )


def _called(stage: KafkaStage, main: str, options: Sequence[object], text: bytes = b"") -> None:
    classes = os.pathsep.join(map(str, [*release_jars(stage.version), *_tools(stage)]))
    command = [
        str(find_java()),
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        classes,
        main,
        *map(str, options),
    ]
    done = subprocess.run(command, input=text, capture_output=True, timeout=_WITHIN_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:] or done.stdout[-2000:]


def _tools(stage: KafkaStage) -> list[Path]:
    """What a broker does without, as far as it is called here."""
    if stage.release < (2,):
        return []
    wanted = Artifact("org.apache.kafka", "kafka-tools", stage.version)
    return fetched(f"kafka-tools-{stage.version}", [wanted], besides=lambda: _NOT_OF_THESE_PROGRAMS)
