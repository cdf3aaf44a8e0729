"""Growth, memory, small runs and planning, as tables of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter

from bench.whole.figures import (
    MISSING,
    Result,
    head,
    median,
    megabytes,
    ratio,
    row,
    seconds,
    speed,
    to_commit,
)
from bench.whole.kinds import KINDS

_RECORDS = """
## Growth with records

More and more records of one topic ({workload}): seconds to the commit, and million records per
second.

"""
_CORES = """
## Growth with cores

One core for Spark's tasks (`local[1]`) and two, each in a new session ({workload}, {records:,}
records). The JVM's own threads and the broker have both cores of the machine in both cases.

"""
_MEMORY = """
## Memory, {workload}

Peak resident memory (VmHWM) of one run in new processes, in MB: the JVM, the driver's Python, and
the largest Python worker. Shared pages count for each process. All settings are defaults
(`spark.driver.memory` 1 GiB). *A worker, 20 times fewer*: the same with a range that is 20 times
shorter.

"""
_SMALL = """
## Small runs

Seconds from the start of a new process to its exit, with 10,000 new records. For comparison: a
program that only appends 10,000 ready rows to a Delta table with Spark
(`PYTHONPATH=. python bench/small_runs.py`).

"""
_PLANNING = """
## Planning and committing

A real ZooKeeper, and simulated brokers in another process that answer with real bytes and hold no
records, one per hundred partitions. `first`: no partition has an offset yet. `next`: each has one,
and 100 new records. *Planning* ends when the plan is stored; *committing* commits all offsets.
Fetching and appending are not included (`bench/planning.py`).

"""
_ENCRYPTED = """
## TLS

One connection to a process that has its answers ready, without and with TLS 1.3: bytes (a socket
and `recv_into`, with Python's `ssl`), answers to fetches as a task reads them, and rows as Arrow
batches (`bench/encrypted.py`). CPU is that of the reading process.

"""


def _well(results: Sequence[Result]) -> list[Result]:
    return [one for one in results if "failed" not in one]


def _of(results: Sequence[Result], **wanted: object) -> list[Result]:
    return [one for one in results if all(one.get(name) == value for name, value in wanted.items())]


def _records(results: Sequence[Result]) -> Iterator[str]:
    results = _well(results)
    sizes = sorted({one["records"] for one in results})
    yield _RECORDS.format(workload=results[0]["workload"] if results else MISSING)
    yield head("", *(f"{size:,}" for size in sizes))
    for kind in KINDS:
        own = [_of(results, kind=kind, records=size) for size in sizes]
        if any(own):
            yield row(
                KINDS[kind],
                *(
                    f"{seconds(one, to_commit)} s, {speed(one, to_commit)}" if one else MISSING
                    for one in own
                ),
            )


def _cores(results: Sequence[Result]) -> Iterator[str]:
    results = _well(results)
    if not results:
        return
    yield _CORES.format(workload=results[0]["workload"], records=results[0]["records"])
    yield head("", "1 core: s", "M records/s", "2 cores: s", "M records/s", "speedup")
    for kind in KINDS:
        one, two = _of(results, kind=kind, cores=1), _of(results, kind=kind, cores=2)
        if one or two:
            yield row(
                KINDS[kind],
                seconds(one, to_commit),
                speed(one, to_commit),
                seconds(two, to_commit),
                speed(two, to_commit),
                ratio(one, two, to_commit),
            )


def _memory(results: Sequence[Result]) -> Iterator[str]:
    results = _well(results)
    for workload in dict.fromkeys(one["workload"] for one in results):
        yield _MEMORY.format(workload=workload)
        yield head("", "records", "JVM", "driver", "a worker", "a worker, 20 times fewer", "growth")
        for kind in KINDS:
            own = sorted(
                _of(results, workload=workload, kind=kind), key=lambda one: int(one["records"])
            )
            if own:
                yield row(
                    KINDS[kind],
                    f"{own[-1]['records']:,}",
                    *(_peak(own[-1:], name) for name in ("jvm", "driver", "worker")),
                    _peak(own[:-1], "worker"),
                    _more(own),
                )


def _peak(results: Sequence[Result], name: str) -> str:
    return megabytes(results, lambda one: one["peaks"].get(name))


def _more(own: Sequence[Result]) -> str:
    peaks = [one["peaks"].get("worker") for one in own]
    return f"{100 * (peaks[-1] / peaks[0] - 1):.0f} %" if len(peaks) > 1 and all(peaks) else MISSING


def _small(results: Sequence[Result]) -> Iterator[str]:
    results = _well(results)
    yield _SMALL
    yield head("", "seconds", "relative to the first")
    bare = [one for one in results if one["is_bare"]]
    for kind in dict.fromkeys(one["kind"] for one in (*bare, *results)):
        own = _of(results, kind=kind)
        yield row(kind, seconds(own), ratio(own, bare, lambda one: float(one["seconds"])))


def _planning(results: Sequence[Result]) -> Iterator[str]:
    yield _PLANNING
    yield head(
        "partitions",
        "run",
        "planning: s",
        "committing: s",
        "whole process: s",
        "CPU: s",
        "peak, MiB",
        "plan document, bytes",
    )
    for partitions, run in dict.fromkeys(
        (one["partitions"], one["kind"]) for one in _well(results)
    ):
        own = _of(_well(results), partitions=partitions, kind=run)
        figures = [
            f"{median(own, itemgetter(name)):.2f}"
            for name in ("plan_s", "commit_s", "process_s", "cpu_s")
        ]
        yield row(
            f"{partitions:,}",
            run,
            *figures,
            f"{own[0]['peak_mib']:.0f}",
            f"{own[0]['document_bytes']:,}",
        )


def _encrypted(results: Sequence[Result]) -> Iterator[str]:
    results, speed = _well(results), itemgetter("mib_s")
    yield _ENCRYPTED
    yield head(
        "",
        "plain: MiB/s",
        "CPU s per GiB",
        "TLS: MiB/s",
        "CPU s per GiB",
        "relative to Python's ssl",
    )
    bare = _of(results, kind="bytes", is_encrypted=True)
    for kind in dict.fromkeys(one["kind"] for one in results):
        plain, tls = (
            _of(results, kind=kind, is_encrypted=is_encrypted) for is_encrypted in (False, True)
        )
        figures = [
            figure
            for own in (plain, tls)
            for figure in (
                f"{median(own, speed):,.0f}" if own else MISSING,
                seconds(own, _cpu_of_gib),
            )
        ]
        yield row(kind, *figures, ratio(tls, bare, speed))


def _cpu_of_gib(one: Result) -> float:
    return float(one["cpu_s"]) / float(one["mib"]) * 1024


SHOWN: Mapping[str, Callable[[Sequence[Result]], Iterator[str]]] = {
    "records": _records,
    "cores": _cores,
    "memory": _memory,
    "small": _small,
    "planning": _planning,
    "encrypted": _encrypted,
}
"""By the part's name."""
