"""Commands that are watched: processes, libraries and connections."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.system.driving import ROOT, Pipeline

# Python reports each process that it starts, and each connection, to audit hooks (PEP 578).
_WATCHED = """
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
code = main([*sys.argv[1:], "--json"])
print(json.dumps({"code": code, "started": started, "loaded": [name for name in HEAVY if name in sys.modules], "connected": connected}))
"""


def watched(
    pipeline: Pipeline, *words: str, after: tuple[str, ...] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A command in a process of its own: its cost, and its document."""
    ran = subprocess.run(
        [sys.executable, "-c", _WATCHED, *words, str(pipeline.conf), *after],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    document, cost = ran.stdout.strip().rsplit("\n", 1)
    return json.loads(cost), json.loads(document)


def watched_run(pipeline: Pipeline) -> tuple[dict[str, Any], list[str]]:
    """A run: what it cost, and its outcomes."""
    cost, document = watched(pipeline, "run")
    return cost, [one["outcome"] for one in document["outcomes"]]
