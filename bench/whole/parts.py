"""The measurements of a topic: all kinds in turn; growth with records and with cores; peaks of
memory. Each result is reported at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.whole.child import Child, Failed, Spent
from bench.whole.kinds import DRAIN, PEER, RUNS
from bench.whole.topics import Topic
from etl.testkit.cluster import EmbeddedCluster

AddResult = Callable[[Mapping[str, Any]], None]
"""Takes one result: it is printed, and kept on disk."""
_WARM_RECORDS = 1_000_000
LONGER = 20
"""The ratio of the long range to the short one in the measurement of memory."""


@dataclass(frozen=True, slots=True)
class PartOptions:
    """The options of the command line, and the servers."""

    cluster: EmbeddedCluster
    folder: Path
    kinds: Sequence[str]
    rounds: int
    codec: str
    fetches: str = "large"
    """Of Spark's source."""
    cold: int = 2
    """Rounds that warm processes, and are left out."""

    def only(self, kinds: Sequence[str]) -> list[str]:
        """Return the requested kinds among these."""
        return [kind for kind in kinds if kind in self.kinds]


class Warm:
    """Processes that stay: one with a Spark session of `cores`, one for each peer. They start when
    they are first needed.
    """

    def __init__(self, options: PartOptions, cores: int = 2) -> None:
        self._options, self._cores = options, cores
        self._children: dict[str, Child] = {}
        self._ends = contextlib.ExitStack()

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.close()

    def do(
        self, kind: str, topic: Topic, records: int | None = None, *, peaks: bool = False
    ) -> Mapping[str, Any]:
        """One job's result, or how it failed; a process that failed is started anew and warmed for
        the next job.
        """
        some = topic.workload.records if records is None else records
        about = {"workload": topic.workload.name, "kind": kind, "records": some}
        try:
            spent = self._done(kind, topic, some, peaks=peaks)
        except Failed as failed:
            self._begin_anew(kind, topic)
            return {**about, "failed": str(failed)}
        return {
            **about,
            **{name: value for name, value in asdict(spent).items() if name != "figures" and value},
            **spent.figures,
        }

    def warm(self, kinds: Sequence[str], topic: Topic) -> None:
        """Run each of them with fewer records, the requested number of times; errors are left to
        the measurement.
        """
        for _ in range(self._options.cold):
            for kind in kinds:
                with contextlib.suppress(Failed):
                    self._done(kind, topic, min(_WARM_RECORDS, topic.workload.records))

    def _begin_anew(self, kind: str, topic: Topic) -> None:
        """What the process had warm is what the next rounds are compared by."""
        if self._program(kind) in self._children:
            self._children.pop(self._program(kind)).end()
        self.warm(
            [other for other in self._options.kinds if self._program(other) == self._program(kind)],
            topic,
        )

    def _done(self, kind: str, topic: Topic, records: int, *, peaks: bool = False) -> Spent:
        workload = topic.workload
        return self._child(kind).do(
            peaks=peaks, kind=kind, topic=workload.topic, records=records, total=workload.records
        )

    def _program(self, kind: str) -> str:
        return kind if kind in (PEER, DRAIN) else "session"

    def _child(self, kind: str) -> Child:
        program = self._program(kind)
        if program not in self._children:
            folder = self._options.folder / f"{program}-{len(list(self._options.folder.iterdir()))}"
            folder.mkdir()
            bootstrap, zookeeper = (
                self._options.cluster.bootstrap,
                self._options.cluster.zookeeper_connect,
            )
            words = {
                "session": [
                    bootstrap,
                    zookeeper,
                    str(folder),
                    f"local[{self._cores}]",
                    self._options.codec,
                    self._options.fetches,
                ],
                PEER: [bootstrap, str(folder), self._options.codec],
                DRAIN: [bootstrap],
            }[program]
            self._children[program] = self._ends.enter_context(
                Child(f"bench.whole.{program}", folder, *words)
            )
        return self._children[program]


def compared(options: PartOptions, warm: Warm, topic: Topic, report: AddResult) -> None:
    """All kinds in turn, a round of each after the other; the first rounds read less, warm
    everything, and are left out.
    """
    warm.warm(options.kinds, topic)
    for number in range(options.rounds):
        for kind in options.kinds:
            report({"part": "compared", "round": number, **warm.do(kind, topic)})


def grown(
    options: PartOptions, warm: Warm, topic: Topic, sizes: Sequence[int], report: AddResult
) -> None:
    """The same with more and more of the topic's records, once all is warm."""
    kinds = options.only(["arrow", "spark-delta"])
    for kind in kinds:
        warm.do(kind, topic, sizes[0])
    for number in range(options.rounds):
        for records in sizes:
            for kind in kinds:
                report({"part": "records", "round": number, **warm.do(kind, topic, records)})


def on_cores(options: PartOptions, topic: Topic, records: int, report: AddResult) -> None:
    """The same with one core for Spark's tasks and with two; a session of its own each."""
    some, kinds = (
        min(records, topic.workload.records),
        options.only(["arrow", "dataframe", "spark-delta"]),
    )
    for cores in (1, 2):
        with Warm(options, cores) as session:
            for kind in kinds:
                session.do(kind, topic, min(_WARM_RECORDS, some))
            for number in range(options.rounds):
                for kind in kinds:
                    report(
                        {
                            "part": "cores",
                            "round": number,
                            "cores": cores,
                            **session.do(kind, topic, some),
                        }
                    )


def remembered(options: PartOptions, topic: Topic, kinds: Sequence[str], report: AddResult) -> None:
    """Peaks of memory, each of one run in new processes: of the whole topic, and of a range so much
    shorter.
    """
    for kind in options.only(kinds):
        for records in _lengths(kind, topic.workload.records):
            with Warm(options) as new:
                report({"part": "memory", **new.do(kind, topic, records, peaks=True)})


def _lengths(kind: str, records: int) -> Iterator[int]:
    if kind in (*RUNS, "reader"):
        yield records // LONGER
    yield records
