"""The cases of the crash matrix: their stage, and the check, which trusts neither the package nor
its ledger.

A case does something bad to a pipeline and lets the next run do its work. It passes if every
readable record of the topic, as other clients read it (`tests.traffic`), is a row of the table, as
delta-rs reads it, exactly once: same partition, same offset, same value. Cases are in the `cases_*`
modules of this directory, and all of them with their arguments in `matrix.yaml`; the interruptions
of a process of `etl run` are in `driver`.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import re
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from deltalake import DeltaTable
from kafka.errors import KafkaError

from etl.io.process import cores
from etl.testkit.cluster import EmbeddedCluster
from tests.chaos.holding import ARROW_TRANSFORM, TRANSFORM
from tests.command_result import CommandResult
from tests.stores.pipeline import StoredPipeline
from tests.stores.servers import StoreServer
from tests.stores.way import FaultyWay
from tests.system.driving import Pipeline
from tests.traffic.rows import Message, Row

_numbers = itertools.count(1)
_WRITE_EVERY_S = 0.2
_RECORDS_AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class Checked:
    """The figures of the independent check, all counted in records or rows."""

    records: int
    """Readable records of the topic, or the number that the table must have by the case."""
    rows: int
    missing: int
    double: int
    """Rows beyond the first of one place: (partition, offset), or as `Traffic.place` defines it."""
    unexpected: int
    """Rows that no record stands for, or with another value than their record's."""

    @property
    def is_whole(self) -> bool:
        return not (self.missing or self.double or self.unexpected)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case, as the results in docs/proof have it."""

    after: str
    """What the table held after the crash."""
    next_run: str
    """What the next run did: its exit code and its outcomes."""
    checked: Checked


@dataclass(frozen=True, slots=True)
class Case:
    row: int
    name: str
    what: str
    """The case in one sentence; its name where that is enough."""
    play: Callable[[Stage], CaseResult]
    """Raises AssertionError when a record is missing or double, or the case did not hit its moment.
    """
    short: bool = False
    """Also part of `make test`."""


class Stage:
    """`with Stage(cluster, folder) as stage: case.play(stage)`: the resources of one case, all of
    them released with it.

    `cluster` is shared by all cases and must not change; a case that breaks servers uses
    `another_cluster`. Runs in this process (`Pipeline.run` and similar) share the one Spark session
    that the creator of the stage has started.
    """

    def __init__(
        self,
        cluster: EmbeddedCluster,
        folder: Path,
        *,
        writer: str = "spark",
        store: StoreServer | None = None,
        way: FaultyWay | None = None,
    ) -> None:
        self.store, self.way = store, way
        self.cluster, self.writer, self.writes = cluster, writer, WRITES[writer]
        self.folder = folder
        self.at_end = ExitStack()
        """Whatever else must be ended with the case."""

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.at_end.close()

    def another_cluster(
        self, brokers: int = 1, *, properties: Mapping[str, str] | None = None
    ) -> EmbeddedCluster:
        """ZooKeeper and brokers of the case's own, to be broken at will."""
        folder = self.folder / f"cluster-{next(_numbers)}"
        self.at_end.callback(shutil.rmtree, folder, ignore_errors=True)
        return self.at_end.enter_context(
            EmbeddedCluster(brokers, folder=folder, properties=properties)
        )

    def pipeline(
        self,
        partitions: int = 4,
        config: Mapping[str, str] | None = None,
        *,
        cluster: EmbeddedCluster | None = None,
        replication_factor: int = 1,
        **settings: Any,
    ) -> Pipeline:
        """A pipeline on a fresh topic, with its own group, folder and table; `settings` are merged
        into its conf.

        `partitions` are those of all brokers together, also where each counts its own (Jafka).
        """
        on, name = cluster or self.cluster, f"crash-{next(_numbers)}"
        folder = self.folder / name
        folder.mkdir()
        made = Pipeline if self.store is None else partial(StoredPipeline, store=self.store)
        pipeline = made(
            on, folder, name, f"group-of-{name}", settings, everywhere=self.writes.settings
        )
        pipeline.traffic.create_topic(
            on, name, partitions, replication_factor=replication_factor, config=config
        )
        return pipeline

    @contextlib.contextmanager
    def writing(self, pipeline: Pipeline) -> Iterator[Writer]:
        """A producer that writes to the topic from a thread until the end of the block."""
        with Writer(pipeline) as writer:
            yield writer

    def finish(
        self,
        pipeline: Pipeline,
        after: str,
        next_run: CommandResult | str,
        expected: Counter[Row] | None = None,
    ) -> CaseResult:
        """One more run, with nothing in its way, and then the independent check.

        `expected` where the table must hold something else than what the topic holds now (expired,
        compacted, followed offsets). Raises AssertionError with the first missing, double and
        unexpected rows.
        """
        ended(pipeline.run(), 0)
        return case_result(after, next_run, checked(pipeline, expected))


def case_result(after: str, next_run: CommandResult | str, figures: Checked) -> CaseResult:
    """The result of a case whose last run is the next one."""
    return CaseResult(
        after, next_run if isinstance(next_run, str) else summary_of(next_run), figures
    )


class Writer:
    """A producer on a thread of its own. Brokers that are away for a while are waited for."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._end = threading.Event()
        self._thread = threading.Thread(
            target=self._write, name=f"writer of {pipeline.topic}", daemon=True
        )
        self._wrote = threading.Condition()
        self.sent = 0
        """Records handed to the client by now."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the producer does not end"

    def wait_for(self, more: int, within_s: float = 60) -> None:
        """Until that many more records were sent."""
        with self._wrote:
            wanted = self.sent + more
            assert self._wrote.wait_for(lambda: self.sent >= wanted, within_s), (
                "the producer does not come on"
            )

    def _write(self) -> None:
        with self._pipeline.traffic.sending(self._pipeline.cluster, self._pipeline.topic) as send:
            while not self._end.wait(_WRITE_EVERY_S):
                # the case may have taken the brokers away; what counts is what the topic holds in
                # the end
                with contextlib.suppress(KafkaError, OSError):
                    self._send(send)

    def _send(self, send: Callable[[Sequence[Message]], None]) -> None:
        numbers = range(self.sent, self.sent + _RECORDS_AT_ONCE)
        send(
            [
                (b"key-%d" % number, b'{"written": %d, "while": "it crashed"}' % number)
                for number in numbers
            ]
        )
        with self._wrote:
            self.sent = numbers.stop
            self._wrote.notify_all()


class Readable(Protocol):
    """A topic and a table, as others than the package read them; `Pipeline` is one."""

    def in_topic(self) -> Counter[Row]:
        """Every readable record of the topic."""

    def in_table(self) -> Counter[Row]:
        """Every row of the table."""


def checked(pipeline: Readable, expected: Counter[Row] | None = None) -> Checked:
    """The independent check. Raises AssertionError with the first rows that are wrong."""
    wanted, found = pipeline.in_topic() if expected is None else expected, pipeline.in_table()
    places = Counter[Row]()
    for (*place, _), count in found.items():
        places[tuple(place)] += count
    missing = sorted(row for row in wanted if row not in found)
    double = sorted(place for place, count in places.items() if count > 1)
    unexpected = sorted(row for row in found if row not in wanted)
    figures = Checked(
        sum(wanted.values()),
        sum(found.values()),
        len(missing),
        sum(places[place] - 1 for place in double),
        len(unexpected),
    )
    assert figures.is_whole, (
        f"{figures}; missing {missing[:5]}, double {double[:5]}, unexpected {unexpected[:5]}"
    )
    return figures


def summary_of(result: CommandResult) -> str:
    try:
        document = json.loads(result.out)
    except ValueError:
        return f"exit {result.code}"
    if result.code and "message" in document:
        return f"exit {result.code}: {_EACH_TIME_ANOTHER.sub('', document['message'])}"
    return (
        f"exit {result.code}: "
        f"{', '.join(one['outcome'] for one in document.get('outcomes', ())) or 'nothing'}"
    )


_EACH_TIME_ANOTHER = re.compile(r": run \S+, pid \d+ on [^\s;]+|/\S+/crash-\d+/")
"""Which run it was, and in which folder."""


def both(result: CommandResult, next_run: CommandResult) -> str:
    """What the disturbed run came to, and the next one."""
    return f"the run itself: {summary_of(result)}; the next: {summary_of(next_run)}"


def ended(result: CommandResult, *codes: int) -> CommandResult:
    assert result.code in codes, f"{summary_of(result)}\n{result.err}"
    return result


def stopped(result: CommandResult, code: int, *words: str) -> CommandResult:
    """Check that a run ended with this code and these words."""
    assert all(word in ended(result, code).out for word in words), result.out
    return result


def succeeded(result: CommandResult, *outcomes: str) -> CommandResult:
    """Check that a run succeeded with these outcomes, among others."""
    assert set(outcomes) <= set(ended(result, 0).outcomes), result.outcomes
    return result


def ends_of(rows: Counter[Row]) -> dict[int, int]:
    """The offset after the last row of each partition."""
    ends: dict[int, int] = {}
    for partition, offset, *_ in rows:
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    return ends


def offsets_are_at_the_rows_ends(pipeline: Pipeline, committed: Mapping[int, int]) -> None:
    """Check that each committed offset is where the table's rows end."""
    ends = ends_of(pipeline.in_table())
    assert committed == ends, f"offsets {committed}, the table's rows end at {ends}"


def complete_files(pipeline: Pipeline) -> set[str]:
    """The table's Parquet files that are written to their end, in a commit or not."""
    return {
        path
        for path in pipeline.table_files()
        if path.endswith(".parquet") and pipeline.table_file(path)[-4:] == b"PAR1"
    }


def commits(pipeline: Pipeline) -> int:
    return len(_log(pipeline))


def _log(pipeline: Pipeline) -> list[str]:
    return sorted(path for path in pipeline.table_files() if _COMMIT.fullmatch(path))


_COMMIT = re.compile(r"_delta_log/(\d{20})\.json")


def held(pipeline: Pipeline) -> str:
    """The table's newest plan, rows and version, by its files and log alone."""
    commits, files = (
        _log(pipeline),
        sum(path.endswith(".parquet") for path in pipeline.table_files()),
    )
    if not commits:
        return f"no commit, {files} files" if files else "nothing"
    plan, known = 0, set[str]()
    for commit in commits:
        actions = [json.loads(line) for line in pipeline.table_file(commit).decode().splitlines()]
        plan = max([plan, *(action["txn"]["version"] for action in actions if "txn" in action)])
        known |= {action["add"]["path"] for action in actions if "add" in action}
    rows = sum(pipeline.in_table().values())
    besides = f", {files - len(known)} files besides" if files > len(known) else ""
    return f"plan {plan}, {rows} rows, version {len(commits) - 1}{besides}"


def held_after(pipeline: Pipeline, result: CommandResult) -> str:
    """The same, and what the run came to that left it so."""
    return f"{held(pipeline)}; the run itself: {summary_of(result)}"


_Servers = TypeVar("_Servers", bound=AbstractContextManager[Any])
_kept: dict[str, tuple[AbstractContextManager[Any], ExitStack]] = {}


def kept(name: str, make: Callable[[Path], _Servers]) -> _Servers:
    """The running servers of this name, made by `make` if needed; any others are stopped."""
    if name not in _kept:
        _end()
        ends = ExitStack()
        folder = Path(tempfile.mkdtemp(prefix=f"etl-chaos-{name}-"))
        ends.callback(shutil.rmtree, folder, ignore_errors=True)
        made = make(folder / "servers")
        ends.enter_context(made)
        _kept[name] = made, ends
    servers: _Servers = _kept[name][0]  # type: ignore[assignment]  # the name stands for the kind
    return servers


@atexit.register
def _end() -> None:
    while _kept:
        _, (_, ends) = _kept.popitem()
        ends.close()


REASON = ("--reason", "a test", "--yes")


def decide(pipeline: Pipeline, command: str, *words: str) -> None:
    """Run a command with these words after its conf, a reason and a confirmation."""
    ended(pipeline.door(*command.split(), after=(*words, *REASON), json_too=False), 0)


def accept_table(pipeline: Pipeline) -> None:
    version = str(DeltaTable(str(pipeline.table)).version())
    decide(pipeline, "table accept-changes", version)


def inherit(heir: Pipeline, old: Pipeline) -> None:
    """The heir takes the place of another pipeline."""
    decide(heir, "pipelines inherit", "--predecessor", f"{old.group}/clicks")


_FOUR_TASKS = {"spark": {"spark.master": "local[4,4]"}}


@dataclass(frozen=True, slots=True)
class Writes:
    """One way of writing; the whole matrix is played with each."""

    results: str
    """The file in docs/proof with the result of each case."""
    title: str
    settings: Mapping[str, Any]
    tasks: int
    """How many tasks of a case that holds them are at work at once, a file each."""
    held: Mapping[str, Any]

    takes_spark: bool = True
    """Whether tasks are Spark's: without it many more plans end in the same time."""

    @property
    def passes_the_jvm(self) -> bool:
        return self.held.get("transform") == TRANSFORM


WRITES: Mapping[str, Writes] = {
    "spark": Writes(
        "crashes.json",
        "Spark",
        {"table": {"writer": "spark"}},
        4,
        {"transform": TRANSFORM, **_FOUR_TASKS},
    ),
    "arrow": Writes(
        "crashes_arrow.json",
        "Arrow, Spark's tasks",
        {"table": {"writer": "auto"}},
        4,
        {**_FOUR_TASKS, "transform": {"record_batch": ARROW_TRANSFORM}},
    ),
    "processes": Writes(
        "crashes_without_spark.json",
        "Arrow, no Spark",
        {"table": {"writer": "auto"}, "limits": {"local_below_bytes": 1 << 30}},
        cores(),
        {"transform": {"record_batch": ARROW_TRANSFORM}},
        takes_spark=False,
    ),
}
