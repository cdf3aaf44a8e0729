"""Functions that a conf of these tests names: tokens, and a slow transform."""

from __future__ import annotations

import base64
import json
import os
import time

import pyarrow as pa

USER = "etl"
TOKEN_S = 5.0


def unsecured_token(lifetime_s: float = 3600.0, subject: str = USER) -> str:
    """An unsigned token, which the broker of these tests accepts."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": subject, "iat": now, "exp": now + lifetime_s})
    return ".".join(
        [
            *(
                base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
                for part in parts
            ),
            "",
        ]
    )


def token() -> str:
    """Return a token that is valid for an hour; count the calls in a file if a test sets one."""
    if counted := os.environ.get("TOKENS_ASKED"):
        with open(counted, "a", encoding="utf-8") as file:
            file.write("1")
    return unsecured_token()


def short_token() -> str:
    """One that holds for seconds."""
    token()
    return unsecured_token(TOKEN_S)


def failing() -> str:
    """Raise an error with its secret in the text."""
    raise ConnectionError("no answer to hunter2-of-all")


def empty() -> str:
    return ""


NOT_CALLABLE = "a text"


_MOST_S, _EACH_S = 21.0, 2.0
_begun: list[float] = []


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows, later; write to a file how long this process has worked."""
    if batch.num_rows:
        _begun.append(time.monotonic())
        if time.monotonic() - _begun[0] < _MOST_S:
            time.sleep(_EACH_S)
        with open(f"{os.environ['TOKENS_ASKED']}.took", "w", encoding="utf-8") as file:
            file.write(str(time.monotonic() - _begun[0]))
    return batch
