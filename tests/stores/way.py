"""A proxy to a store that fails on request: a process between a client and the store's server, with
rules.

It is a process, because delta-rs may hold Python's lock while it waits for an answer. The rules are
a file with a JSON list, read again for each request; other files count how often each rule applied,
and release held requests.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from etl.testkit.server_process import Server, answers

_KEPT, _LET_GO, _ANSWERED = "kept.json", "let-go", "answered.json"


@dataclass(frozen=True)
class Rule:
    """The first `times` requests with this method and this part in their path."""

    method: str
    part: str
    times: int
    fault: str
    """`slow`: 503 SlowDown without a request to the store; `away`, `denied`, `unknown`: the same
    with other codes; `lose`: the store executes it, and the connection ends without an answer;
    `late`: it is held, and then forwarded to the store; `late_answer`: its answer is held; `half`:
    the store gets half of its body, then nothing until it is released, and the connection ends.
    """


class FaultyWay(Server):
    """A proxy to a store with HTTP. `rules` apply from then on; at first there are none.

    `without`: a header that is removed from each request. Without If-None-Match it is a store
    that ignores the condition.
    """

    program = "tests.stores.faults"
    faults = frozenset({"slow", "away", "denied", "unknown", "lose", "late", "late_answer", "half"})
    commits_by, writes_by = "PUT", "PUT"
    """By which requests a file of the table's log, and one with rows, is there."""

    def __init__(self, store_port: int, folder: Path, *, without: str | None = None) -> None:
        super().__init__("way", folder)
        self._store_port = store_port
        self._without = [without] if without else []

    def command(self) -> list[str]:
        self.rules()
        return [
            sys.executable,
            "-m",
            self.program,
            str(self.port),
            str(self._store_port),
            str(self.folder / "rules.json"),
            *self._without,
        ]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

    def is_ready(self) -> bool:
        return answers(self.port)

    def rules(self, *rules: Rule) -> None:
        """These instead of those before; what these held is given up."""
        for name in (_KEPT, _LET_GO, _ANSWERED):
            (self.folder / name).unlink(missing_ok=True)
        _write(self.folder / "rules.json", [asdict(rule) for rule in rules])

    def let_go(self) -> None:
        (self.folder / _LET_GO).touch()

    @property
    def kept(self) -> list[int]:
        """How often each of the rules was."""
        return _numbers(self.folder / _KEPT)

    @property
    def answered(self) -> int:
        """How many of those that were held, and let go, have the store's answer."""
        return sum(_numbers(self.folder / _ANSWERED))

    @classmethod
    def commit(cls, fault: str, times: int = 1) -> Rule:
        return Rule(cls.commits_by, "_delta_log/0", times, fault)

    @classmethod
    def file(cls, fault: str, times: int = 1) -> Rule:
        return Rule(cls.writes_by, "part-", times, fault)


class RpcWay(FaultyWay):
    """A proxy to a name node of HDFS: rules match the name of a call, and text in it."""

    program = "tests.stores.rpc_faults"
    faults = frozenset({"lose", "late", "late_answer", "half"})
    commits_by, writes_by = "rename2", "complete"
    """A file of the log gets its name when it is whole; a file with rows is whole."""


class Kept:
    """The rules as the process on the way keeps them."""

    def __init__(self, rules: Path) -> None:
        self._rules, self._lock = rules, threading.Lock()

    def fault(self, is_meant: Any) -> str | None:
        """What befalls a request for which `is_meant(method, part)`; it is counted."""
        with self._lock:
            rules, path = json.loads(self._rules.read_text()), self._rules.with_name(_KEPT)
            kept = _numbers(path) or [0] * len(rules)
            for number, rule in enumerate(rules):
                if kept[number] < rule["times"] and is_meant(rule["method"], rule["part"]):
                    kept[number] += 1
                    _write(path, kept)
                    return str(rule["fault"])
        return None

    def is_let_go(self) -> bool:
        """Wait until it is; False: it is given up."""
        rules = self._rules.read_text()
        while not self._rules.with_name(_LET_GO).exists():
            if self._rules.read_text() != rules:
                return False
            time.sleep(0.01)
        return True

    def answered(self) -> None:
        """One more that was held has its answer."""
        with self._lock:
            path = self._rules.with_name(_ANSWERED)
            _write(path, [sum(_numbers(path)) + 1])


def _numbers(path: Path) -> list[int]:
    return cast("list[int]", json.loads(path.read_text())) if path.exists() else []


def _write(path: Path, document: Any) -> None:
    """Whole or not at all."""
    written = path.with_suffix(".new")
    written.write_text(json.dumps(document))
    written.rename(path)
