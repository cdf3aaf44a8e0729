"""The results as a page: a table for each part, medians of the rounds, and how each is to be read."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.bench.whole.kinds import COMPARED_WITH, KINDS
from tests.bench.whole.workloads import WORKLOADS

Result = Mapping[str, Any]

_HEAD = """\
# How fast it is

Made by `make bench`, not by hand; `make bench-quick` measures a part of it in three minutes. The figures of each round are in
[benchmark.json](benchmark.json) beside this page. The command{s}:

{commands}

Measured at {measured_at} on {cores} cores ({processor}), {memory_gib} GiB of memory, {system}; the load before it
began was {load_at_start}. {versions}.

One broker, one ZooKeeper and all that is measured share this machine; what is read is in its page cache. Records are clicks in JSON,
no two alike, in two partitions, in the batches of librdkafka's producer. All tables have the same eight columns, in Parquet with the codec
{codec} (where it has levels, level 1 for everybody). GB and MB are millions and billions of bytes of the records' values, whatever the
topic's compression makes of them.
"""
_PARTS: dict[str, str] = {}


def rendered(content: Mapping[str, Any]) -> str:
    """The whole page."""
    return "".join(_pieces(content))


def _pieces(content: Mapping[str, Any]) -> Iterator[str]:
    commands = content["commands"]
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    yield _HEAD.format(
        s="s" if len(commands) > 1 else "", commands="\n".join(f"    {one}" for one in commands), measured_at=content["measured_at"],
        versions=versions, codec=content["codec"], **content["machine"])
    for part, shown in (("compared", _compared),):
        results = [one for one in content["results"] if one["part"] == part]
        if results:
            yield from shown(results)


def _compared(results: Sequence[Result]) -> Iterator[str]:
    yield "\n## Beside others\n"
    for name in [one for one in WORKLOADS if any(result["workload"] == one for result in results)]:
        yield from _workload(name, [one for one in results if one["workload"] == name])


def _workload(name: str, results: Sequence[Result]) -> Iterator[str]:
    whole = [one for one in results if "failed" not in one]
    yield f"\n### {name}: {results[0]['records']:,} records\n\n"
    yield _row("", "M records/s", "MB/s", "x Spark's", "all of it: s", "x Spark's", "CPU s per GB", "of Spark's", "table, MB")
    yield _row("---", *["---:"] * 8)
    kinds = {kind: [one for one in whole if one["kind"] == kind] for kind in KINDS}
    for kind, own in ((kind, own) for kind, own in kinds.items() if own):
        peer = kinds.get(COMPARED_WITH.get(kind, ""), [])
        yield _row(
            KINDS[kind], *_speeds(own, WORKLOADS[name].size), _ratio(peer, own, to_commit), f"{_median(own, all_of_it):.2f}",
            _ratio(peer, own, all_of_it), _cpu(own, WORKLOADS[name].size), _ratio(own, peer, lambda one: one["cpu"]), _size(own))
    for one in results:
        if "failed" in one:
            yield f"\n{KINDS[one['kind']]}, round {one['round']}: FAILED: {one['failed'].splitlines()[0]}\n"


def to_commit(one: Result) -> float:
    """Seconds from the stored plan, or from the beginning where there is none, to the commit, or to the end where there is none."""
    return float(one.get("to_commit", one["seconds"]))


def all_of_it(one: Result) -> float:
    """Seconds from beginning to end."""
    return float(one["seconds"])


def _speeds(own: Sequence[Result], size: int) -> tuple[str, str]:
    a_second = own[0]["records"] / _median(own, to_commit)
    return f"{a_second / 1e6:.2f}", f"{a_second * size / 1e6:.0f}"


def _cpu(own: Sequence[Result], size: int) -> str:
    return f"{_median(own, lambda one: one.get('cpu', 0)) * 1e9 / own[0]['records'] / size:.1f}"


def _size(own: Sequence[Result]) -> str:
    return f"{_median(own, lambda one: one['table_bytes']) / 1e6:.0f}" if "table_bytes" in own[0] else ""


def _ratio(above: Sequence[Result], below: Sequence[Result], of: Callable[[Result], float]) -> str:
    """Of the medians; nothing where one of both was not measured."""
    return f"{_median(above, of) / _median(below, of):.2f}" if above and below else ""


def _median(results: Sequence[Result], of: Callable[[Result], float]) -> float:
    return statistics.median(map(of, results))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"
