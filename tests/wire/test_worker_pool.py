"""Worker processes of a run without Spark, with a fake broker."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyarrow import parquet

from etl.errors import CorruptData, ProcessLost, unmark
from etl.model.columns import COLUMNS, arrow_schema
from etl.model.partitions import Broker, Leader, TopicPartition
from etl.model.plans import FileOptions, OffsetRange, Written
from etl.reader import local_workers
from etl.reader.batch_transform import ArrowTransform
from etl.reader.local_workers import Failed, FilesOfWorkers, Order, Worker
from etl.reader.query_ranges import ReadOptions, Task
from etl.reader.run_task import TaskFailed
from etl.testkit.server_process import wait_until
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FETCH, FakeBroker, cut_to
from tests.fakes.worker_here import WorkerHere, reading_from, tasks_of

PARTITIONS = 5


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        for partition in range(PARTITIONS):
            running.append(
                "clicks",
                partition,
                encode(Batch(0, [Rec(delta, b"v%d" % delta) for delta in range(10)])),
            )
        yield running


PoolTasks = tuple[list[Task], ReadOptions]


@pytest.fixture
def pool_tasks(broker: FakeBroker) -> PoolTasks:
    leader = Leader(Broker(0, broker.host, broker.port), None)
    ranges = [
        OffsetRange(TopicPartition("clicks", partition), 0, 10, leader)
        for partition in range(PARTITIONS)
    ]
    return tasks_of(ranges, [[i] for i in range(PARTITIONS)]), reading_from(broker)


@pytest.fixture
def files(pool_tasks: PoolTasks) -> Iterator[FilesOfWorkers]:
    with contextlib.closing(FilesOfWorkers(*pool_tasks, None, workers=2)) as found:
        yield found


def processes(files: FilesOfWorkers) -> list[int]:
    return [worker._process.pid for worker in files._workers]


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_two_workers_do_five_tasks(files: FilesOfWorkers, tmp_path: Path) -> None:
    pids = processes(files)
    assert files.results.in_order(PARTITIONS) is None and files.results.last_came is None
    written = files.write(FileOptions(str(tmp_path), COLUMNS))
    assert len(pids) == 2 and [one.indices for one in written] == [(i,) for i in range(PARTITIONS)]
    assert [one.rows for one in written] == [10] * PARTITIONS
    found = files.results.in_order(PARTITIONS)
    assert found and [one.rows for one in found] == [10] * PARTITIONS and files.results.last_came
    rows = [
        row
        for one in written
        for file in one.files
        for row in parquet.read_table(tmp_path / file.path).to_pylist()
    ]
    assert sorted((row["partition"], row["offset"]) for row in rows) == [
        (p, o) for p in range(PARTITIONS) for o in range(10)
    ]
    assert not any(map(is_alive, pids)), "they end with the write"


def test_an_error_of_a_task_ends_the_others(
    files: FilesOfWorkers, broker: FakeBroker, tmp_path: Path
) -> None:
    spoiled = bytearray(encode(Batch(0, [Rec(delta, b"v") for delta in range(10)])))
    spoiled[-1] ^= 1
    broker.log("clicks", 3).batches[:] = [bytes(spoiled)]
    pids = processes(files)
    with pytest.raises(TaskFailed) as raised:
        files.write(FileOptions(str(tmp_path), COLUMNS))
    reported = unmark(str(raised.value))
    assert isinstance(reported, CorruptData) and reported.where["partition"] == 3
    assert not any(map(is_alive, pids))


def test_a_truncated_response_is_read_again_and_the_output_of_a_library_is_no_answer(
    pool_tasks: PoolTasks, broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printing = f"print('Tracing enabled', flush=True); {local_workers._PROGRAM}"
    monkeypatch.setattr(local_workers, "_PROGRAM", printing)
    broker.script[FETCH].append(cut_to(60))
    files = FilesOfWorkers(*pool_tasks, None, workers=1)
    written = files.write(FileOptions(str(tmp_path), COLUMNS))
    assert [one.rows for one in written] == [10] * PARTITIONS
    assert not broker.script[FETCH]


@pytest.mark.parametrize("kind", [Worker, WorkerHere])
def test_a_worker_with_the_imports_of_its_run_returns_rows_errors_and_tracebacks(
    pool_tasks: PoolTasks,
    broker: FakeBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Worker] | type[WorkerHere],
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)  # no module of the standard library is looked for here
    tasks, reading = pool_tasks
    spoiled = bytearray(encode(Batch(0, [Rec(delta, b"v") for delta in range(10)])))
    spoiled[-1] ^= 1
    broker.log("clicks", 3).batches[:] = [bytes(spoiled)]
    wanted, no_value = FileOptions(str(tmp_path), COLUMNS), cast(Any, "no value of the kind")
    with contextlib.ExitStack() as ending:
        worker = kind()
        ending.callback(worker.end)
        made = worker.answer(Order(tasks[0], 0, reading, wanted, None))
        assert isinstance(made, Written)
        assert (made.indices, made.rows, made.results[0].rows) == ((0,), 10, 10)
        assert [parquet.read_table(tmp_path / file.path).num_rows for file in made.files] == [10]
        refused = worker.answer(Order(tasks[3], 0, reading, wanted, None))
        assert (
            isinstance(refused, Failed)
            and refused.was_misread
            and isinstance(unmark(refused.text), CorruptData)
        )
        failed = worker.answer(Order(tasks[1], 0, reading, no_value, None))
        assert isinstance(failed, Failed) and not failed.was_misread
        assert "Traceback" in failed.text and "AttributeError" in failed.text


@pytest.mark.parametrize("kills", [1, 9])
def test_a_worker_that_is_killed_is_replaced_and_the_fourth_time_ends_the_run(
    files: FilesOfWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    left, real = [signal.SIGKILL] * kills, Worker.answer

    def answer(self: Worker, order: Order) -> object:
        if left:
            os.kill(self._process.pid, left.pop())
        return real(self, order)

    monkeypatch.setattr(Worker, "answer", answer)
    options = FileOptions(str(tmp_path), COLUMNS)
    if kills == 1:
        assert [one.rows for one in files.write(options)] == [10] * PARTITIONS
        return
    with pytest.raises(ProcessLost, match="A worker process was lost 4 times.*signal 9") as lost:
        files.write(options)
    assert "limits.local_below_bytes" in lost.value.action and lost.value.exit_code == 6


def test_the_output_of_a_worker_that_exits_is_reported(
    pool_tasks: PoolTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_workers, "_PROGRAM", "import sys; sys.exit('no module of that name')")
    tasks, reading = pool_tasks
    options = FileOptions(str(tmp_path), COLUMNS)
    text = "ended by itself: exit code 1; its output: no module of that name"
    with pytest.raises(ProcessLost, match=text) as lost:
        FilesOfWorkers(tasks, reading, None, workers=2).write(options)
    assert "transform.record_batch" not in lost.value.action
    transform = ArrowTransform("shaping:decoded", arrow_schema(), arrow_schema())
    with pytest.raises(ProcessLost) as lost:
        shaped = replace(reading, transform=transform)
        FilesOfWorkers(tasks, shaped, None, workers=2).write(options)
    assert "shaping:decoded (transform.record_batch), which runs in it" in lost.value.action


def test_workers_end_if_one_cannot_be_started(
    pool_tasks: PoolTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, popen = list[Any](), subprocess.Popen

    def once(*words: Any, **more: Any) -> Any:
        if started:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(popen(*words, **more))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", once)
    with pytest.raises(ProcessLost, match="cannot be started: Resource temporarily unavailable"):
        FilesOfWorkers(*pool_tasks, None, workers=2)
    assert not is_alive(started[0].pid)


def test_workers_do_not_outlive_a_run_that_is_killed() -> None:
    program = (
        "import os, sys, time\nfrom etl.reader.local_workers import Worker\n"
        "print(Worker()._process.pid, flush=True)\ntime.sleep(600)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert run.stdout
    pid = int(run.stdout.readline())
    assert is_alive(pid)
    run.kill()
    run.wait()
    run.stdout.close()
    assert wait_until(lambda: not is_alive(pid), 60)


def test_ctrl_c_in_a_terminal_is_the_runs_and_reaches_no_worker(files: FilesOfWorkers) -> None:
    assert [os.getpgid(pid) for pid in processes(files)] == processes(files), (
        "it goes to the run's process group"
    )


def test_closed_files_end_their_workers(files: FilesOfWorkers, tmp_path: Path) -> None:
    pids = processes(files)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(files.write, FileOptions(str(tmp_path), COLUMNS))
        files.close()
        assert writing.exception(60) is not None
    assert not any(map(is_alive, pids))


def test_a_worker_with_an_invalid_answer_is_ended(
    pool_tasks: PoolTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_workers, "_ENDING_S", 0.1)
    monkeypatch.setattr(
        local_workers,
        "_PROGRAM",
        "import os, sys, time; os.write(int(sys.argv[-1]), b'a greeting\\n'); time.sleep(600)",
    )
    again = FilesOfWorkers(*pool_tasks, None, workers=2)
    pids = processes(again)
    with pytest.raises(
        ProcessLost, match=r"A worker process gave an invalid answer, and was ended\."
    ):
        again.write(FileOptions(str(tmp_path), COLUMNS))
    assert not any(map(is_alive, pids))
