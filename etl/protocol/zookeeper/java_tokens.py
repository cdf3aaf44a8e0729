"""The characters of one of Java's regular expressions, with what `\\Q...\\E` quotes told apart."""

from __future__ import annotations

from typing import NamedTuple


class Token(NamedTuple):
    """One character."""

    char: str
    is_quoted: bool = False
    """Between `\\Q` and `\\E`: it stands for itself."""


def tokens_of(text: str) -> list[Token]:
    """What quotes is gone, as Java itself begins: a quantifier behind an empty quote is for what
    stands before it.
    """
    found: list[Token] = []
    at = 0
    while at < len(text):
        if text.startswith("\\Q", at):
            quoted, end, _ = text[at + 2 :].partition("\\E")
            found.extend(Token(char, True) for char in quoted)
            at += 2 + len(quoted) + len(end)
        else:
            length = 2 if text[at] == "\\" else 1
            found.extend(map(Token, text[at : at + length]))
            at += length
    return found
