"""`python -m tests.stores.faults PORT STORE_PORT RULES [HEADER]`: the way to a store that speaks
HTTP, without that header of requests.

See `tests.stores.way`.
"""

from __future__ import annotations

import http.client
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from etl.testkit.server_process import HOST
from tests.stores.way import Kept

_ANSWERS = {
    "slow": (503, "Service Unavailable", "SlowDown"),
    "away": (503, "Service Unavailable", "ServiceUnavailable"),
    "denied": (403, "Forbidden", "AccessDenied"),
    "unknown": (501, "Not Implemented", "NotImplemented"),
}


class _Way(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store_port: int
    kept: Kept
    left_out: tuple[str, ...] = ("transfer-encoding", "connection", "expect")

    def _pass_on(self) -> None:
        body = self._body()
        fault = self.kept.fault(lambda method, part: method == self.command and part in self.path)
        if fault in _ANSWERS:
            status, reason, code = _ANSWERS[fault]
            text = (
                f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>Ask again "
                f"later.</Message></Error>"
            )
            self._answer(status, reason, [("Content-Type", "application/xml")], text.encode())
            return
        if fault == "late" and not self.kept.is_let_go():
            self.close_connection = True
            return
        store = http.client.HTTPConnection(HOST, self.store_port, timeout=60)
        store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in self.left_out:
                store.putheader(name, value)
        if "Content-Length" not in self.headers:
            store.putheader("Content-Length", str(len(body)))
        if fault == "half":
            store.endheaders(body[: len(body) // 2])
            self.kept.is_let_go()
            store.close()
            self.close_connection = True
            return
        store.endheaders(body or None)
        found = store.getresponse()
        content = found.read()
        store.close()
        if fault == "lose" or fault == "late_answer" and not self.kept.is_let_go():
            self.close_connection = True
            return
        if fault is not None:
            self.kept.answered()
        self._answer(
            found.status,
            found.reason,
            [
                (name, value)
                for name, value in found.getheaders()
                if name.lower() not in ("transfer-encoding", "connection", "content-length")
            ],
            content,
            found.getheader("Content-Length"),
        )

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

    def _answer(
        self,
        status: int,
        reason: str,
        headers: list[tuple[str, str]],
        content: bytes,
        length: str | None = None,
    ) -> None:
        self.send_response_only(status, reason)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header(
            "Content-Length", length if self.command == "HEAD" and length else str(len(content))
        )
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def main(port: str, store_port: str, rules: str, *headers: str) -> None:
    _Way.store_port, _Way.kept = int(store_port), Kept(Path(rules))
    _Way.left_out = (*_Way.left_out, *(header.lower() for header in headers))
    ThreadingHTTPServer((HOST, int(port)), _Way).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
