"""The processor time of Spark's JVM in a cold run of 10,000 records by Spark's writer, by step of
Delta's commit and by thread.

    PYTHONPATH=. python bench/cold_profile.py [--every MS]

The third run of a pipeline, as in `small_runs`. The flight recorder of its JVM dumps the threads
every 25 ms. Each dump has the processor time of each thread. The time of all threads between
two dumps is counted for the step of the driver's command at that time, so the compilers' time
belongs to the compiled steps; `threads` is the same time again, by thread. Dumps cost time
themselves: compare shares only.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.small_runs import PARTITIONS, RECORDS, RUNS, conf_of, produce
from etl.testkit.cluster import EmbeddedCluster

KIND = "etl run, spark"
_EVENTS = """<?xml version="1.0" encoding="UTF-8"?>
<configuration version="2.0">
  <event name="jdk.ThreadDump"><setting name="enabled">true</setting><setting name="period">{every} ms</setting></event>
</configuration>
"""
WHERE = {
    "the conflict check": "ConflictChecker",
    "Delta's state, for the newest plan's number in it": "Snapshot.computedState",
    "the checksum": "Checksum",
    "the rows into files, with their statistics": "TransactionalWrite.writeFiles",
    "the log: listing, reading, writing the commit": "delta.DeltaLog",
    "else of Delta's": "spark.sql.delta.",
    "the session": "SparkContext.<init>",
    "the session's catalog and extensions": "SparkSession",
    "else of the command's": "py4j.reflection",
}
"""The step of a command, by the frames of its stack; the first match counts."""
IDLE = "between commands: what Python does"
THREADS = {
    "the second compiler": "C2",
    "the first compiler": "C1",
    "the collector": "G",
    "tasks": "Executor task",
    "the driver's command": "Thread-",
    "the virtual machine": "VM",
    "the recorder": "JFR",
}
_THREAD = re.compile(r'^"([^"]+)" .*?\bcpu=([\d.]+)ms.*?\btid=(\w+)', re.MULTILINE)


def recorded(folder: Path, every_ms: int) -> Path:
    """Play three runs; what the third one's JVM recorded."""
    (folder / "events.jfc").write_text(_EVENTS.format(every=every_ms))
    record = folder / "run.jfr"
    with EmbeddedCluster() as cluster:
        cluster.create_topic("clicks", partitions=PARTITIONS)
        conf = conf_of(folder, cluster, "cold", RUNS[KIND])
        for number in range(3):
            produce(cluster, number * RECORDS)
            flight = {
                "JDK_JAVA_OPTIONS": f"-XX:StartFlightRecording=filename={record},settings={folder / 'events.jfc'}"
            }
            environment = {**os.environ, **(flight if number == 2 else {})}
            words = [sys.executable, "-m", "etl", "run", str(conf), "--quiet"]
            subprocess.run(
                words,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
            )
    return record


def dumps(record: Path) -> Iterator[str]:
    """Each dump's text."""
    with tempfile.TemporaryFile("w+") as text:
        subprocess.run(
            ["jfr", "print", "--events", "jdk.ThreadDump", str(record)], stdout=text, check=True
        )
        text.seek(0)
        lines: list[str] = []
        for line in text:
            if line.startswith("jdk.ThreadDump") and lines:
                yield "".join(lines)
                lines = []
            lines.append(line)
        yield "".join(lines)


def what_it_is_in(dump: str) -> str:
    """What the driver's command is in."""
    for thread in dump.split("\n\n"):
        if "py4j.ClientServerConnection.run" in thread and "py4j.reflection" in thread:
            return next(name for name, frame in WHERE.items() if frame in thread)
    return IDLE


def main(every_ms: int) -> None:
    """Print both tables."""
    spent, by_thread, had = Counter[str](), Counter[str](), dict[str, int]()
    with tempfile.TemporaryDirectory(prefix="etl-bench-") as name:
        for dump in dumps(recorded(Path(name), every_ms)):
            where = what_it_is_in(dump)
            for thread, milliseconds, number in _THREAD.findall(dump):
                more = round(float(milliseconds)) - had.get(number, 0)
                had[number] = round(float(milliseconds))
                spent[where] += more
                by_thread[
                    next(
                        (kind for kind, start in THREADS.items() if thread.startswith(start)),
                        "others",
                    )
                ] += more
    whole = sum(spent.values())
    for title, found in (("what it was in", spent), ("threads", by_thread)):
        print(f"{title:>52} {'CPU s':>8} {'of all':>7}")
        for kind, milliseconds in found.most_common():
            print(f"{kind:>52} {milliseconds / 1000:>8.2f} {milliseconds / whole:>7.0%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=25, metavar="MS")
    main(parser.parse_args().every)
