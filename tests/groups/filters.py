"""What patterns match in Java, and here: a digit for each of `NAMES`."""

from __future__ import annotations

from collections.abc import Sequence

from etl.ledger.topic_filters import NotTranslated, java_pattern
from tests.brokers.foreign import Process
from tests.groups.random_patterns import NAMES

PER_REQUEST = 500


def in_java(java: Process, patterns: Sequence[str], question: str = "matches") -> list[str]:
    """ "refused" where it is no pattern; the question is `matches` or `finds`."""
    return [
        line[0]
        for line in java.ask(
            question, ",".join(NAMES), *(f"x{pattern.encode().hex()}" for pattern in patterns)
        )
    ]


def in_python(pattern: str, question: str = "matches") -> str | None:
    """None where it is refused here."""
    try:
        found = java_pattern(pattern)
    except NotTranslated:
        return None
    ask = found.search if question == "finds" else found.fullmatch
    return "".join("01"[ask(name) is not None] for name in NAMES)
