"""What stands between a client and a store, in a process of its own, and fails as it is told: 503, SlowDown, or an answer that is lost.

`python -m tests.stores.faults PORT STORE_PORT RULES`: RULES is a file with a JSON list of rules, read anew for each request; a file beside
it counts how often each was kept. In a process of its own, because delta-rs may hold Python's lock while it waits for an answer.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
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
    """`slow`: 503 SlowDown, and the store is not asked; `lose`: the store does it, and the connection ends without an answer."""


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
        """These instead of those before."""
        (self.folder / "kept.json").unlink(missing_ok=True)
        written = self.folder / "rules.new"
        written.write_text(json.dumps([asdict(rule) for rule in rules]))
        written.rename(self.folder / "rules.json")

    @property
    def kept(self) -> list[int]:
        """How often each of the rules was."""
        path = self.folder / "kept.json"
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
        store = http.client.HTTPConnection(HOST, self.store_port, timeout=60)
        store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "expect"):
                store.putheader(name, value)
        if "Content-Length" not in self.headers:
            store.putheader("Content-Length", str(len(body)))
        store.endheaders(body or None)
        found = store.getresponse()
        content = found.read()
        store.close()
        if fault == "lose":
            self.close_connection = True
            return
        self._answer(found.status, found.reason, [
            (name, value) for name, value in found.getheaders()
            if name.lower() not in ("transfer-encoding", "connection", "content-length")], content, found.getheader("Content-Length"))

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_PATCH = _pass_on

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
                    path.write_text(json.dumps(kept))
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
