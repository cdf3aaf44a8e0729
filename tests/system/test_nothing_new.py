"""What a scheduled run costs that finds nothing to read: processes that it starts, libraries that it loads, questions that it asks.

No clock is looked at: a machine may be busy. What takes the time is counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

from tests.fakes.broker import FETCH, LIST_OFFSETS, FakeBroker
from tests.system.driving import ROOT, Pipeline

# Python tells of each process that it starts, and of each connection, to whoever listens (PEP 578).
_WATCHED_RUN = """
import json, sys
HEAVY = ("pyspark", "py4j", "delta", "numba", "pandas")
started, connected = [], []
def watch(event, given):
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"):
        started.append(event)
    elif event == "socket.connect":
        connected.append(list(given[1]))
sys.addaudithook(watch)
from etl.cli import main
code = main(["run", sys.argv[1], "--json"])
print(json.dumps({"code": code, "started": started, "loaded": [name for name in HEAVY if name in sys.modules], "connected": connected}))
"""


def watched_run(pipeline: Pipeline) -> tuple[dict[str, Any], list[str]]:
    """A run in a process of its own, as a scheduler starts it: what it cost, and its outcomes."""
    ran = subprocess.run(
        [sys.executable, "-c", _WATCHED_RUN, str(pipeline.conf)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    document, cost = ran.stdout.strip().rsplit("\n", 1)
    found: dict[str, Any] = json.loads(cost)
    return found, [one["outcome"] for one in json.loads(document)["outcomes"]]


def test_a_run_with_nothing_new_starts_no_process_and_loads_neither_spark_nor_the_compiler(pipeline: Pipeline) -> None:
    pipeline.produce(40)
    pipeline.ran()
    every = {"table": {"writer": "auto"}, "transform": "os.path:join", "metrics_path": str(pipeline.folder / "etl.prom")}
    for settings in ({}, every):
        pipeline.settings = settings
        cost, outcomes = watched_run(pipeline)
        assert outcomes == ["nothing new"]
        assert (cost["code"], cost["started"], cost["loaded"]) == (0, [], [])


def test_a_run_with_nothing_new_asks_its_broker_each_question_once_over_one_connection_and_fetches_nothing(
    spoiled: tuple[Pipeline, FakeBroker],
) -> None:
    """Offsets are three questions: where logs start, where they end for us, and for everybody."""
    pipeline, broker = spoiled
    pipeline.ran()
    broker.requests.clear()
    cost, outcomes = watched_run(pipeline)
    assert outcomes == ["nothing new"]
    assert sum(port == broker.port for _, port in cost["connected"]) == 1
    asked = Counter(key for key, _ in broker.requests)
    assert asked.pop(LIST_OFFSETS) == 3
    assert set(asked.values()) == {1} and FETCH not in asked
