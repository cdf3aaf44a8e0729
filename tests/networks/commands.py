"""Commands, programs and whole runs on a pipeline, as people run them."""

from __future__ import annotations

import subprocess

from etl import Consumer
from tests.system.driving import Pipeline

_WITHIN_S = 400


def command(pipeline: Pipeline, *words: str, code: int = 0) -> str:
    """Return standard error and output of `etl` with these words."""
    return finished(pipeline, "etl", *words, str(pipeline.conf), code=code)


def command_with(pipeline: Pipeline, words: tuple[str, ...], *options: str, code: int = 0) -> str:
    """The same with options after the conf."""
    return finished(pipeline, "etl", *words, str(pipeline.conf), *options, code=code)


def finished(pipeline: Pipeline, *words: str, code: int) -> str:
    """Return the output of a module that runs with these words and ends with this code."""
    child: subprocess.Popen[str] = pipeline.start(*words)
    out, err = child.communicate(timeout=_WITHIN_S)
    assert child.returncode == code, (words, out, err)
    assert code == 0 or "Traceback" not in err, err
    return err + out


def loads(pipeline: Pipeline) -> None:
    """Two runs, and what proves them right."""
    for _ in range(2):
        pipeline.produce(40)
        pipeline.ran()
    assert pipeline.is_whole()
    assert pipeline.door("verify").code == 0


def peeks(pipeline: Pipeline) -> None:
    result = pipeline.door("records", "show", after=["-p", f"{pipeline.topic}:0", "-n", "3"])
    assert result.code == 0 and len(result.document["records"]) == 3, result.err + result.out


def consume(consumer: Consumer, topic: str, records: int, *, partitions: int = 4) -> None:
    """Subscribed, it reads that many, and commits all of them."""
    consumer.subscribe([topic])
    found = 0
    for _ in range(200):
        found += sum(map(len, consumer.poll(1).values()))
        if found == records:
            break
    assert found == records
    consumer.commit()
    assert (
        sum(consumer.committed([(topic, partition) for partition in range(partitions)]).values())
        == records
    )
