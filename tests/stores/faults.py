"""What stands between a client and a store, in a process of its own, and fails as it is told: 503, SlowDown, an answer that is lost, a
request that comes late, or half of it.

`python -m tests.stores.faults PORT STORE_PORT RULES`: RULES is a file with a JSON list of rules, read anew for each request; files beside
it count how often each was kept, and let go what is held. In a process of its own, because delta-rs may hold Python's lock while it waits
for an answer.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

from etl.embedded.server import HOST, Server, answers

_SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@dataclass(frozen=True)
class Rule:
    """The first `times` requests with this method and this part in their path."""

    method: str
    part: str
    times: int
    fault: str
    """`slow`: 503 SlowDown, and the store is not asked; `lose`: the store does it, and the connection ends without an answer;
    `late`: it is held, and then goes on to the store; `late_answer`: its answer is; `half`: the store gets half of its body, then nothing
    until it is let go, and the connection ends."""


class FaultyWay(Server):
    """The way to a store. `rules` are kept from then on; none are at first."""

    def __init__(self, store_port: int, folder: Path) -> None:
        super().__init__("way", folder)
        self._store_port = store_port

    def command(self) -> list[str]:
        self.rules()
        return [sys.executable, "-m", "tests.stores.faults", str(self.port), str(self._store_port), str(self.folder / "rules.json")]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

    def is_ready(self) -> bool:
        return answers(self.port)

    def rules(self, *rules: Rule) -> None:
        """These instead of those before; what these held is given up."""
        for name in ("kept.json", "let-go", "ended.json"):
            (self.folder / name).unlink(missing_ok=True)
        written = self.folder / "rules.new"
        written.write_text(json.dumps([asdict(rule) for rule in rules]))
        written.rename(self.folder / "rules.json")

    def let_go(self) -> None:
        """What is held goes on."""
        (self.folder / "let-go").touch()

    @property
    def kept(self) -> list[int]:
        """How often each of the rules was."""
        return _numbers(self.folder / "kept.json")

    @property
    def answered(self) -> int:
        """How many of those that were held, and let go, have the store's answer."""
        return sum(_numbers(self.folder / "ended.json"))

    @staticmethod
    def commit(fault: str, times: int = 1) -> Rule:
        """The puts that make a commit."""
        return Rule("PUT", "_delta_log/0", times, fault)

    @staticmethod
    def file(fault: str, times: int = 1) -> Rule:
        """Those of a file with rows."""
        return Rule("PUT", "part-", times, fault)


def _numbers(path: Path) -> list[int]:
    return cast("list[int]", json.loads(path.read_text())) if path.exists() else []


class _Way(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store_port: int
    rules: Path
    lock = threading.Lock()

    def _pass_on(self) -> None:
        body = self._body()
        fault = self._fault()
        if fault == "slow":
            self._answer(503, "Slow Down", [("Content-Type", "application/xml")], _SLOW_DOWN)
            return
        if fault == "late" and not self._is_let_go():
            return
        store = http.client.HTTPConnection(HOST, self.store_port, timeout=60)
        store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "expect"):
                store.putheader(name, value)
        if "Content-Length" not in self.headers:
            store.putheader("Content-Length", str(len(body)))
        if fault == "half":
            store.endheaders(body[:len(body) // 2])
            self._is_let_go()
            store.close()
            self.close_connection = True
            return
        store.endheaders(body or None)
        found = store.getresponse()
        content = found.read()
        store.close()
        if fault == "late_answer" and not self._is_let_go():
            return
        if fault in ("late", "late_answer"):
            with self.lock:
                self.rules.with_name("ended.json").write_text("[1]")
        if fault == "lose":
            self.close_connection = True
            return
        self._answer(found.status, found.reason, [
            (name, value) for name, value in found.getheaders()
            if name.lower() not in ("transfer-encoding", "connection", "content-length")], content, found.getheader("Content-Length"))

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_PATCH = _pass_on

    def _is_let_go(self) -> bool:
        """Wait for it; whether it is not given up."""
        rules = self.rules.read_text()
        while not self.rules.with_name("let-go").exists():
            if self.rules.read_text() != rules:
                self.close_connection = True
                return False
            time.sleep(0.01)
        return True

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, reason: str, headers: list[tuple[str, str]], content: bytes, length: str | None = None) -> None:
        self.send_response_only(status, reason)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _fault(self) -> str | None:
        with self.lock:
            rules, path = json.loads(self.rules.read_text()), self.rules.with_name("kept.json")
            kept = json.loads(path.read_text()) if path.exists() else [0] * len(rules)
            for number, rule in enumerate(rules):
                if rule["method"] == self.command and rule["part"] in self.path and kept[number] < rule["times"]:
                    kept[number] += 1
                    written = path.with_suffix(".new")
                    written.write_text(json.dumps(kept))
                    written.rename(path)
                    return str(rule["fault"])
        return None

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def main(port: str, store_port: str, rules: str) -> None:
    """Serve until the process is ended."""
    _Way.store_port, _Way.rules = int(store_port), Path(rules)
    ThreadingHTTPServer((HOST, int(port)), _Way).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
