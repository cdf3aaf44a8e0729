"""Growth, memory, small runs and planning, as tables of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter

from tests.bench.whole.figures import (
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
from tests.bench.whole.kinds import KINDS

_RECORDS = """
## How it grows with records

The same in turn with more and more records of one topic ({workload}): seconds to the commit, and millions of records a second.

"""
_CORES = """
## How it grows with cores

The same with one core for Spark's tasks (`local[1]`) and with two, a new session each ({workload}, {records:,} records). The JVM's own
threads and the broker have both cores of the machine in either case.

"""
_MEMORY = """
## Memory

The most resident memory (VmHWM of /proc) of one run in new processes, {workload}, in MB: of the JVM, of the driver's Python, and of the
largest other Python process below it, a worker. Pages that processes share count for each. Settings are the defaults, and so is Spark's
(`spark.driver.memory` 1 GiB). *a worker, 20 times fewer* is the same of a range that is 20 times shorter.

"""
_SMALL = """
## Small runs

From the start of a process to its exit, each a cold process of its own: 10,000 new records, beside a program that does nothing but append
10,000 ready rows to a Delta table by Spark (`PYTHONPATH=. python tests/bench/small_runs.py`).

"""
_PLANNING = """
## Planning and committing

A real ZooKeeper, and brokers of another process that answer real bytes and hold no records, one for each hundred partitions. `first`: no
log has a position yet; `next`: each has one and 100 new records. Planning is from the first question until the plan is stored;
committing moves all offsets. Fetching and appending are left out (`tests/bench/planning.py`).

"""
_ENCRYPTED = """
## Through TLS

One connection to a process of its own that has its answers ready, plain and through TLS 1.3 in turn: a socket and `recv_into` and nothing
else (Python's own `ssl`), answers to fetches as a task takes them, and rows as Arrow batches (`tests/bench/encrypted.py`). CPU is of the
process that reads.

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
    yield head("", "one: s", "M records/s", "two: s", "M records/s", "faster by")
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
        yield head(
            "", "records", "JVM", "driver", "a worker", "a worker, 20 times fewer", "more by"
        )
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
    yield head("", "seconds", "of the bare process")
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
        "", "plain: MiB/s", "CPU s per GiB", "TLS: MiB/s", "CPU s per GiB", "of Python's own ssl"
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
