"""The results as a page: the machine and the versions, and a table for each part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from tests.bench.whole import page_others
from tests.bench.whole.figures import (
    Result,
    all_of_it,
    cpu,
    head,
    megabytes,
    per_gb,
    ratio,
    row,
    seconds,
    speed,
    to_commit,
)
from tests.bench.whole.kinds import COMPARED_WITH, KINDS, PEER, RUNS
from tests.bench.whole.workloads import WORKLOADS

_HEAD = """\
# How fast it is

Made by `make bench`, not by hand; `make bench-quick` measures a part of it in three minutes. The figures of each round are in
[benchmark.json](benchmark.json) beside this page. The command{s}:

{commands}

Measured at {measured_at} on {cores} cores ({processor}), {memory_gib} GiB of memory, {system}; the load before it
began was {load_at_start}. {versions}.

One broker, one ZooKeeper and all that is measured share this machine; what is read is in its page cache. Records are clicks in JSON,
no two alike, in two partitions, in the batches of librdkafka's producer. All tables have the same eight columns, in Parquet with the codec
{codec} (where it has levels, level 1 for everybody). GB and MB are billions and millions of bytes of the records' values, whatever the
topic's compression makes of them. Where there are several rounds, a figure is their median.
"""
_COMPARED = """
## Beside others

All kinds in turn, a round of each after the other, in processes that stay and are warm: one Spark session of two cores, with Spark's own
defaults for the JVM and for queries, does what is ours and what is Spark's.

- **Spark's Kafka source** has all eight columns and a task for each partition, as many as cores. It saves no offsets, and looks for none.
  Its fetches are as large as ours (`kafka.max.partition.fetch.bytes` 16 MiB, and `kafka.max.poll.records` 5000), unless the command says
  `--fetches default`, which are of 1 MiB. A query's consumers are dropped 5 s after it
  (`spark.kafka.consumer.cache.timeout`): kept for Spark's five minutes they fill the heap of a session that does one job after the other.
  Its release is 4.0.0, with kafka-clients 3.9.1: of 4.2.0 one jar was not to be had.
- **`etl run`** is the whole command: ZooKeeper, the plan, the commit, the offsets, the report. *to the commit* is from the stored plan (its
  znode's time) to the table's commit (its file's time), and the speeds are by that clock; of the others it is from their beginning to the
  table's commit, and where there is no table to the end.
- **confluent-kafka + deltalake** is one process: librdkafka fetches ahead on its own threads (its own queues of 64 MiB, no pause when they
  are full), Python takes 2,000 messages at a time and makes Arrow columns, delta-rs writes all in one streaming write. Per core it
  is compared by *CPU s per GB*.
- **the sockets** are the limit: our own Fetch requests, a thread for each partition; of what comes only the heads of batches are read.

*CPU* is of the process and all below it (JVM, Python workers), user and system; the broker's is not in it.
"""


def rendered(content: Mapping[str, Any]) -> str:
    """The whole page."""
    return "".join(_pieces(content))


def _pieces(content: Mapping[str, Any]) -> Iterator[str]:
    commands = content["commands"]
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    yield _HEAD.format(
        s="s" if len(commands) > 1 else "",
        commands="\n".join(f"    {one}" for one in commands),
        measured_at=content["measured_at"],
        versions=versions,
        codec=content["codec"],
        **content["machine"],
    )
    logs = {
        one["workload"]: one["log_bytes"] for one in content["results"] if one["part"] == "topics"
    }
    shown: Mapping[str, Callable[[Sequence[Result]], Iterator[str]]] = {
        "compared": partial(_compared, logs),
        **page_others.SHOWN,
    }
    for part, pieces in shown.items():
        results = [one for one in content["results"] if one["part"] == part]
        if results:
            yield from pieces(results)
    failed = [one for one in content["results"] if "failed" in one]
    if failed:
        yield "\n## What failed\n\n" + "".join(
            f"- {_about(one)}: {one['failed'].splitlines()[-1]}\n" for one in failed
        )


def _about(one: Result) -> str:
    return ", ".join(
        str(one[name])
        for name in ("part", "workload", "kind", "records", "cores", "partitions", "round")
        if name in one
    )


def _compared(logs: Mapping[str, int], results: Sequence[Result]) -> Iterator[str]:
    yield _COMPARED
    for name in WORKLOADS:
        own = [one for one in results if one["workload"] == name and "failed" not in one]
        if own:
            size = WORKLOADS[name].size
            yield (
                f"\n### {name}\n\n{own[0]['records']:,} records, "
                f"{own[0]['records'] * size / 1e6:,.0f} MB of values"
            )
            yield (
                f"; the topic's segments have {logs[name] / 1e6:,.0f} MB.\n\n"
                if name in logs
                else ".\n\n"
            )
            yield from _workload(
                size, {kind: [one for one in own if one["kind"] == kind] for kind in KINDS}
            )


def _workload(size: int, kinds: Mapping[str, Sequence[Result]]) -> Iterator[str]:
    yield head(
        "",
        "to the commit: s",
        "M records/s",
        "MB/s",
        "x Spark's",
        "all of it: s",
        "x Spark's",
        "CPU s per GB",
        "of Spark's",
        "of the peer's",
        "table, MB",
    )
    for kind, own in ((kind, own) for kind, own in kinds.items() if own):
        theirs = kinds[COMPARED_WITH[kind]] if kind in COMPARED_WITH else []
        peers = kinds[PEER] if kind in RUNS else []
        yield row(
            KINDS[kind],
            seconds(own, to_commit),
            speed(own, to_commit),
            speed(own, to_commit, size),
            ratio(theirs, own, to_commit),
            seconds(own),
            ratio(theirs, own, all_of_it),
            per_gb(own, size),
            ratio(own, theirs, cpu),
            ratio(own, peers, cpu),
            megabytes(own, lambda one: one.get("table_bytes")),
        )
