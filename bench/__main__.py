"""`make bench`: runs compared with Spark's own Kafka source and with others. Writes speed.md and
benchmark.json.

`python -m bench [--quick] [--workloads 100B-none,1kB-lz4] [--kinds arrow,spark-delta]
[--parts compared] [--records N] [--rounds N]`

Real ZooKeeper, Kafka, Spark and Delta on this machine. Both files are written after each result, so
that nothing measured is lost.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.whole.apart import encrypted, planning, small
from bench.whole.document import PAGE, Document, render_again
from bench.whole.kinds import KINDS, ORDER, PEER, RUNS, SESSION
from bench.whole.parts import (
    AddResult,
    PartOptions,
    Warm,
    compared,
    grown,
    on_cores,
    remembered,
)
from bench.whole.topics import Topic, filled
from bench.whole.workloads import QUICK, QUICK_RECORDS, WORKLOADS, Workload
from etl.testkit.cluster import EmbeddedCluster

ROOT = Path(__file__).parents[1]
OF_TOPICS = ("compared", "records", "cores", "memory")
PARTS = (*OF_TOPICS, "small", "planning", "encrypted")
QUICK_PARTS = ("compared", "memory", "small")
QUICK_MEMORY = ("arrow",)
_GROWTH = (1, 2, 4, 8)
"""Tenths of the topic's records."""
_ON_CORES = 2_000_000
_OF_ONE = "100B-none"
"""The workload of growth and memory; if it is not requested, the first one."""
_BESIDES = "1kB-lz4"
"""The second workload of our runs' memory."""


def main(words: Sequence[str] | None = None) -> int:
    """Measure the requested parts; return 1 if one of them failed."""
    words = sys.argv[1:] if words is None else words
    arguments = _parser().parse_args(words)
    if arguments.render:
        render_again(arguments.to)
        return 0
    output = _Output(
        Document(arguments.to, words, codec=arguments.codec, goes_on=arguments.go_on).add_result
    )
    parts = arguments.parts or (QUICK_PARTS if arguments.quick else PARTS)
    if set(parts) & set(OF_TOPICS):
        with (
            tempfile.TemporaryDirectory(prefix="etl-bench-") as name,
            EmbeddedCluster(folder=Path(name, "cluster")) as cluster,
        ):
            rounds, cold = (2, 1) if arguments.quick else (3, 2)
            what = PartOptions(
                cluster,
                Path(name),
                arguments.kinds or ORDER,
                arguments.rounds or rounds,
                arguments.codec,
                arguments.fetches,
                cold,
            )
            _topics(
                what,
                _workloads(arguments),
                parts,
                QUICK_MEMORY if arguments.quick else [*SESSION, PEER],
                output,
            )
    if "small" in parts:
        output.tried(
            "small",
            lambda: small(
                arguments.rounds or (1 if arguments.quick else 3),
                output.add_result,
                cold=0 if arguments.quick else 1,
            ),
        )
    if "planning" in parts:
        output.tried("planning", lambda: planning(arguments.partitions, output.add_result))
    if "encrypted" in parts:
        output.tried("encrypted", lambda: encrypted(arguments.rounds or 3, output.add_result))
    print(f"the tables are in {arguments.to / PAGE}")
    return 1 if output.failed else 0


def _workloads(options: argparse.Namespace) -> list[Workload]:
    records = options.records or (QUICK_RECORDS if options.quick else None)
    return [
        WORKLOADS[name].of(records)
        for name in options.workloads or (QUICK if options.quick else WORKLOADS)
    ]


def _topics(
    options: PartOptions,
    workloads: Sequence[Workload],
    parts: Sequence[str],
    remembering: Sequence[str],
    output: _Output,
) -> None:
    with Warm(options) as warm:
        for workload in workloads:
            output.tried(
                workload.name,
                partial(
                    _topic,
                    options,
                    warm,
                    workload,
                    workloads,
                    parts,
                    remembering,
                    output.add_result,
                ),
            )


def _topic(
    options: PartOptions,
    warm: Warm,
    workload: Workload,
    workloads: Sequence[Workload],
    parts: Sequence[str],
    remembering: Sequence[str],
    report: AddResult,
) -> None:
    with filled(options.cluster, workload) as topic:
        report(
            {
                "part": "topics",
                "workload": workload.name,
                "records": workload.records,
                "log_bytes": topic.log_bytes,
            }
        )
        if "compared" in parts:
            compared(options, warm, topic, report)
        if "records" in parts and _is_measured(workload, workloads):
            grown(
                options,
                warm,
                topic,
                [workload.of(workload.records * tenths // 10).records for tenths in _GROWTH],
                report,
            )
        for part in parts:
            _in_new_processes(part, options, topic, workloads, remembering, report)


def _in_new_processes(
    part: str,
    options: PartOptions,
    topic: Topic,
    workloads: Sequence[Workload],
    remembering: Sequence[str],
    report: AddResult,
) -> None:
    if part == "cores" and _is_measured(topic.workload, workloads):
        on_cores(options, topic, _ON_CORES, report)
    if part == "memory" and _is_measured(topic.workload, workloads):
        remembered(options, topic, remembering, report)
    elif part == "memory" and topic.workload.name == _BESIDES:
        remembered(options, topic, list(RUNS), report)


def _is_measured(workload: Workload, workloads: Sequence[Workload]) -> bool:
    """Whether it is the one for parts that need one workload."""
    names = [one.name for one in workloads]
    return workload.name == (_OF_ONE if _OF_ONE in names else names[0])


class _Output:
    """Prints each result besides, and remembers whether one failed."""

    def __init__(self, add_result: AddResult) -> None:
        self._add_result, self._began, self.failed = add_result, time.monotonic(), False

    def tried(self, what: str, measure: Callable[[], None]) -> None:
        """Do it; that it fails is a result, and the rest is measured."""
        try:
            measure()
        except Exception as error:
            traceback.print_exc()
            self.add_result({"part": what, "failed": f"{type(error).__name__}: {error}"})

    def add_result(self, result: Mapping[str, Any]) -> None:
        """Take one in."""
        self._add_result(result)
        self.failed |= "failed" in result
        numbers = {
            name: f"{value:.2f}"
            for name, value in result.items()
            if name in ("seconds", "to_commit", "cpu")
        }
        about = [
            str(result[name])
            for name in ("part", "workload", "kind", "records", "cores")
            if name in result
        ]
        print(
            f"{time.monotonic() - self._began:6.0f} s",
            *about,
            *(f"{name}={value}" for name, value in numbers.items()),
            result.get("failed", ""),
            flush=True,
        )


def _named(known: Sequence[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(known)}")
        return found

    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure, and write the tables."
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few records of one workload, the most telling parts: under three minutes",
    )
    parser.add_argument(
        "--workloads",
        type=_named(list(WORKLOADS)),
        help="100B-none,1kB-lz4: some of " + ", ".join(WORKLOADS),
    )
    parser.add_argument(
        "--kinds", type=_named(list(KINDS)), help="arrow,spark-delta: some of " + ", ".join(KINDS)
    )
    parser.add_argument("--parts", type=_named(PARTS), help="compared: some of " + ", ".join(PARTS))
    parser.add_argument("--records", type=int, help="of each workload, instead of what it has")
    parser.add_argument(
        "--rounds", type=int, help="of each, after the warm-up (default: 3; with --quick 2)"
    )
    parser.add_argument(
        "--partitions",
        type=lambda text: [int(one) for one in text.split(",")],
        default=[1_000, 10_000, 100_000],
        help="of --parts planning: 10000",
    )
    parser.add_argument(
        "--codec",
        default="zstd",
        choices=["uncompressed", "snappy", "lz4", "zstd"],
        help="of all tables' files",
    )
    parser.add_argument(
        "--fetches",
        default="large",
        choices=["large", "default"],
        help="of Spark's source: as large as ours, or its own",
    )
    parser.add_argument(
        "--go-on",
        action="store_true",
        help="keep the results in the files that this run does not measure",
    )
    parser.add_argument(
        "--render",
        action="store_true",
        help="measure nothing: the page anew from the results that are there",
    )
    parser.add_argument(
        "--to",
        type=Path,
        default=ROOT / "build" / "bench",
        help="the folder of both files (default: build/bench)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
