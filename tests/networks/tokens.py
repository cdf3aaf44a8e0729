"""Functions that give tokens, as a conf names them: found by tasks, too."""

from __future__ import annotations

import base64
import json
import os
import time

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
    """No token."""
    return ""


NOT_CALLABLE = "a text"
