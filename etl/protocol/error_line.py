"""An error as a line of text, by which it comes out of an executor: Spark hands on nothing but the
traceback.
"""

from __future__ import annotations

import json
from typing import Any

from etl.errors import EtlError, rebuild

_MARK = "etl-error:"


def mark(error: EtlError) -> str:
    """One line that carries `error` through a Spark traceback; `unmark` finds it again."""
    return (
        _MARK
        + json.dumps([type(error).__name__, error.what, error.check, error.where], default=str)
        + "\n"
    )


def unmark(text: str) -> EtlError | None:
    """The first error that `mark` put into `text`, or None."""
    at = text.find(_MARK)
    while at >= 0:
        at += len(_MARK)
        try:
            (name, what, check, where), _ = json.JSONDecoder().raw_decode(text, at)
            return rebuild(name, what, check, where)
        except (ValueError, TypeError, RecursionError):
            at = text.find(_MARK, at)  # other text that happens to hold the marker
    return None


def whole_text(failure: BaseException) -> str:
    """An exception's text with that of its causes: Spark puts the executor's traceback into one of
    them.
    """
    java: Any = getattr(failure, "java_exception", None)
    texts = [str(failure), str(java.toString()) if java is not None else ""]
    cause = java.getCause() if java is not None else None
    for _ in range(20):
        if cause is None:
            break
        texts.append(str(cause.toString()))
        cause = cause.getCause()
    return "\n".join(texts)
