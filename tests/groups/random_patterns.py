"""Random topic filters, many of them broken, the same for the same number; names to try."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from etl.ledger.topic_filters import NotTranslated, java_pattern
from tests.brokers.foreign import Process

NAMES = (
    "a",
    "b",
    "ab",
    "abc",
    "aab",
    "abab",
    "ABC",
    "aB",
    "orders",
    "Orders",
    "orders-2",
    "orders_10",
    "t1",
    "t10",
    "t22",
    "a.b",
    "a.b.c",
    "x-y",
    "_",
    "-",
    ".",
    "0",
    "007",
    "Z",
    "zz",
    "page.views-2015_10",
    "c",
    "cab",
    "b1",
    "A1.b2-C3_d4",
)
_ATOMS = (
    "a",
    "b",
    "c",
    "ab",
    "orders",
    "t",
    "1",
    "0",
    ".",
    "_",
    "-",
    "Z",
    r"\d",
    r"\w",
    r"\D",
    r"\W",
    r"\s",
    r"\S",
    r"\.",
    r"\-",
    r"\_",
    r"\x61",
    r"\x{62}",
    r"\u0063",
    r"\056",
    r"\0141",
    r"\c!",
    r"\t",
    r"\p{Alpha}",
    r"\p{Lower}",
    r"\P{Upper}",
    r"\pL",
    r"\PN",
    r"\p{Lu}",
    r"\p{Punct}",
    r"\p{Pd}",
    r"\p{Alnum}",
    r"\p{XDigit}",
    r"\p{Graph}",
    r"\p{Space}",
    "[abc]",
    "[^abc]",
    "[a-f]",
    "[a-zA-Z0-9_]",
    "[^-._]",
    "[]a]",
    "[a-]",
    "[-a]",
    r"[\d.]",
    r"[\w&&a]",
    "[a[b]]",
    r"[^\D]",
    "[Z-a]",
    "[!-~]",
    r"[\x61-\x63]",
    r"[\Qa-z\E]",
    "[a^]",
    "[&a]",
    "[+-.]",
    r"\Qa.b\E",
    r"\Q\E",
    r"\Q.\E",
    r"\Qab",
    "^",
    "$",
    r"\b",
    r"\B",
    r"\A",
    r"\z",
    r"\Z",
    r"\G",
    "(?i)",
    "(?-i)",
    "(?s)",
    "(?m)",
    "(?d)",
    "(?x)",
    "(?u)",
    r"\1",
    r"\k<n>",
    r"\h",
    r"\R",
    r"\v",
    r"\e",
    r"\y",
    r"\E",
    "}",
    "]",
    "{",
    "é",
    "#",
    '"',
    r"\p{IsLatin}",
    r"\p{javaLowerCase}",
    "\\",
)
_QUANTIFIERS = (
    "",
    "",
    "",
    "",
    "*",
    "+",
    "?",
    "*?",
    "+?",
    "??",
    "{2}",
    "{0}",
    "{1}?",
    "++",
    "*+",
    "{2}{2}",
    "{1|3}",
    "{}",
    "**",
)
_BOUNDED = (
    "{1,}",
    "{2,}",
    "{1,2}",
    "{0,2}",
    "{0,}",
    "{2,3}?",
    "{0,0}",
    "{3,2}",
    "{,2}",
    "{1,2}+",
    "{1,2}{2}",
)
_GROUPS = (
    "(",
    "(",
    "(?:",
    "(?<n>",
    "(?=",
    "(?!",
    "(?<=",
    "(?<!",
    "(?>",
    "(?i:",
    "(?-i:",
    "(?im-s:",
    "(?P<n>",
)


def pattern_of(seed: int) -> str:
    """As a filter in ZooKeeper may have it: no quantifier with a comma."""
    return _alternatives(Random(seed), 3, _QUANTIFIERS)


def option_of(seed: int) -> str:
    """As an option of Spark's; without nested repetitions, which take Python too long."""
    return _alternatives(Random(seed), 1, (*_QUANTIFIERS, *_BOUNDED))


def _alternatives(random: Random, depth: int, quantifiers: Sequence[str]) -> str:
    return "|".join(
        _sequence(random, depth, quantifiers) for _ in range(random.choice((1, 1, 1, 2, 3)))
    )


def _sequence(random: Random, depth: int, quantifiers: Sequence[str]) -> str:
    return "".join(
        _piece(random, depth, quantifiers) for _ in range(random.choice((0, 1, 1, 2, 2, 3)))
    )


def _piece(random: Random, depth: int, quantifiers: Sequence[str]) -> str:
    if depth and random.random() < 0.3:
        closing = ")" if random.random() < 0.98 else ""
        return (
            random.choice(_GROUPS)
            + _alternatives(random, depth - 1, quantifiers)
            + closing
            + random.choice(quantifiers)
        )
    return random.choice(_ATOMS[:20] if random.random() < 0.5 else _ATOMS) + random.choice(
        quantifiers
    )


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
