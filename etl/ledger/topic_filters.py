r"""Which topics match a Java regular expression of a consumer's filter?

Filters of other group members and of Spark's users are Java expressions. Only legal topic names are
matched (`LEGAL`), as a whole or in part. So a character class becomes the set of its characters
that a name may have, and `(?i)` doubles letters:

    as in Python         literals, `.`, `|`, groups, `* + ?`, `{n}`, `{n,}`, `{n,m}`, greedy and
                         reluctant, `^ $ \A \z \Z \b \B`, lookahead, lookbehind of one length
    as a set             `[...]` with ranges and `^`, `\d \w \s` and their negations, `\p{...}` of
                         POSIX and general categories, `\Q...\E`, `\x41`, `\x{41}`, `\u0041`,
                         `\056`, `\cX`, the flags i, d, m and s, also inside the pattern
    rejected by name     `{0}`, back references, possessive quantifiers and `(?>...)` (releases of
                         Python 3.11 differ), nested classes and `&&` (releases of Java differ),
                         the flags x, u and U, `\G \R \X \N \h \v`, other classes of `\p`, a
                         quantifier after a quantifier, an anchor or a lookaround
"""

from __future__ import annotations

import re
import string
import unicodedata
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from etl.model.partitions import INTERNAL_TOPICS

LEGAL = frozenset(string.ascii_letters + string.digits + "._-")
"""Characters of topic names."""

_DIGITS, _WORDS, _BLANKS = (
    frozenset(string.digits),
    frozenset(string.ascii_letters + string.digits + "_"),
    frozenset(" \t\n\x0b\f\r"),
)
PREDEFINED = {
    "d": _DIGITS,
    "w": _WORDS,
    "s": _BLANKS,
    "D": LEGAL - _DIGITS,
    "W": LEGAL - _WORDS,
    "S": LEGAL,
}
"""By the letter after the backslash."""
_CASED = {"Lower": frozenset(string.ascii_lowercase), "Upper": frozenset(string.ascii_uppercase)}
_POSIX = {
    **_CASED,
    "Digit": _DIGITS,
    "Alpha": frozenset(string.ascii_letters),
    "Alnum": frozenset(string.ascii_letters + string.digits),
    "Punct": frozenset(string.punctuation),
    "Graph": LEGAL,
    "Print": LEGAL,
    "ASCII": LEGAL,
    "Blank": frozenset(" \t"),
    "Space": _BLANKS,
    "XDigit": frozenset(string.hexdigits),
    "Cntrl": frozenset(map(chr, range(32))),
}
_CATEGORIES = frozenset(
    "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp "
    "C Cc Cf".split()
)
_CASED_CATEGORIES = frozenset({"Lu", "Ll", "Lt"})


class NotTranslated(ValueError):
    """The part of a pattern that cannot be translated, or is invalid."""


def by_property(name: str, *, ignores_case: bool) -> frozenset[str]:
    r"""Return the characters of `\p{name}`. Raises NotTranslated."""
    if name not in _POSIX and name not in _CATEGORIES:
        raise NotTranslated(f"the class \\p{{{name}}}")
    if ignores_case and (name in _CASED or name in _CASED_CATEGORIES):
        raise NotTranslated(
            f"the class \\p{{{name}}} under the flag i, which Javas read in two ways"
        )
    return _POSIX.get(name) or frozenset(
        char for char in LEGAL if unicodedata.category(char).startswith(name)
    )


def other_cases(chars: frozenset[str]) -> frozenset[str]:
    """With the other case of each letter, as the flag i alone has it: of ASCII."""
    return chars | {char.swapcase() for char in chars if char.isascii()}


def written(chars: frozenset[str]) -> str:
    """A class of Python's; where none of the characters is legal, one that matches nothing, as long
    as another.
    """
    legal = "".join(sorted(chars & LEGAL))
    return f"[{re.escape(legal)}]" if legal else "(?:(?!)[a])"


class Token(NamedTuple):
    """One character."""

    char: str
    is_quoted: bool = False
    """Between `\\Q` and `\\E`: it stands for itself."""


def tokens_of(text: str) -> list[Token]:
    """Return the tokens. Empty quotes vanish, as in Java: a quantifier after one applies to what
    precedes it.
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


_ASCII = frozenset(map(chr, range(128)))
_DEEPEST = 50
_MOST_DIGITS = 9
_LARGEST = 0x10FFFF
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_ANCHORS = {"A": r"\A", "z": r"\Z", "Z": r"\Z", "b": r"\b", "B": r"\B"}
_LOOKAROUNDS = ("=", "!", "<=", "<!")
_NAME = re.compile(r"<([a-zA-Z][a-zA-Z0-9]*)>")
_FLAGS = re.compile(r"([idmsuxU]*)(-[idmsuxU]*)?([:)])")
_NUMBERED = re.compile(
    r"0([0-3]?[0-7]{1,2})|x([0-9a-fA-F]{2})|x{([0-9a-fA-F]{1,8})}|u([0-9a-fA-F]{4})"
)
_PROPERTY = re.compile(r"{([a-zA-Z]+)}|([A-Z])")
_COUNT = re.compile(r"{([0-9]+)(?:(,)([0-9]*))?}")


@lru_cache(maxsize=256)
def java_pattern(text: str) -> re.Pattern[str]:
    """The pattern that matches all of a legal name where Java's `matches()` is true, and is found
    in it where its `find()` is.

    Raises NotTranslated.
    """
    parser = _Parser(tokens_of(text))
    translated = parser.alternatives()
    if not parser.is_done:
        raise NotTranslated("a ) that closes nothing")
    try:
        return re.compile(translated, re.ASCII)
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        raise NotTranslated(str(error)) from error


class _Parser:
    """A walk through a pattern's tokens that writes the translation as it goes."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._plain = "".join("\0" if token.is_quoted else token.char for token in tokens)
        """The tokens as text, to search; quoted characters belong to no construct."""
        self._at = 0
        self._ignores_case = False
        self._names: set[str] = set()

    @property
    def is_done(self) -> bool:
        return self._at == len(self._tokens)

    def alternatives(self, depth: int = 0) -> str:
        """Up to the end of the group, or of the pattern. The flags that it turns on end with it.
        Raises NotTranslated.
        """
        if depth > _DEEPEST:
            raise NotTranslated(f"groups nested more than {_DEEPEST} deep")
        outside = self._ignores_case
        found = [self._sequence(depth)]
        while self._took("|"):
            found.append(self._sequence(depth))
        self._ignores_case = outside
        return "|".join(found)

    def _sequence(self, depth: int) -> str:
        found = []
        while not self.is_done and self._plain[self._at] not in "|)":
            found.append(self._piece(depth))
        return "".join(found)

    def _piece(self, depth: int) -> str:
        char = self._next()
        match "" if char.is_quoted else char.char:
            case "(":
                return self._group(depth + 1)
            case "[":
                return self._repeated(written(self._class()))
            case ".":
                return self._repeated(written(LEGAL))
            case "^":
                return self._unrepeated(r"\A", "an anchor")
            case "$":
                return self._unrepeated(r"\Z", "an anchor")
            case "*" | "+" | "?" | "{":
                raise NotTranslated(f"{char.char} behind nothing that can be repeated")
            case "\\":
                return self._escape()
        return self._repeated(written(self._cases(frozenset(char.char))))

    def _escape(self) -> str:
        anchor = _ANCHORS.get(self._plain[self._at : self._at + 1])
        if anchor is None:
            found = self._escaped()
            return self._repeated(
                written(self._cases(frozenset(found)) if isinstance(found, str) else found)
            )
        self._at += 1
        return self._unrepeated(anchor, "an anchor")

    def _group(self, depth: int) -> str:
        """Parse a group after its parenthesis."""
        around, outside = "", self._ignores_case
        if self._took("?"):
            around = next((sign for sign in _LOOKAROUNDS if self._took(sign)), "")
            if not around and self._kind_is_flags():
                return ""
        inside = self.alternatives(depth)
        self._ignores_case = outside
        if not self._took(")"):
            raise NotTranslated("a ( that is not closed")
        if around:
            return self._unrepeated(f"(?{around}{inside})", "a lookaround")
        return self._repeated(f"(?:{inside})")

    def _kind_is_flags(self) -> bool:
        """Read what makes a group one that is not remembered, a named one, or one of flags; True:
        only flags, and no group.
        """
        named = _NAME.match(self._plain, self._at)
        if named:
            if named[1] in self._names:
                raise NotTranslated(f"two groups called {named[1]}")
            self._names.add(named[1])
            self._at = named.end()
            return False
        flags = _FLAGS.match(self._plain, self._at)
        if not flags:
            raise NotTranslated(
                f"a group that begins with (?{self._plain[self._at : self._at + 2]}"
            )
        refused = set(flags[1]) & set("uxU")
        if refused:
            raise NotTranslated(f"the flag {min(refused)}")
        self._at = flags.end()
        self._ignores_case = (self._ignores_case or "i" in flags[1]) and "i" not in (flags[2] or "")
        return flags[3] == ")"

    def _repeated(self, piece: str) -> str:
        """With the quantifier that follows, if one does."""
        count = _COUNT.match(self._plain, self._at)
        if count:
            if not _is_count(count):
                raise NotTranslated(f"the quantifier {count[0][:20]}")
            self._at = count.end()
            piece += count[0]
        elif self._plain[self._at : self._at + 1] in ("*", "+", "?"):
            piece += self._next().char
        else:
            return self._unrepeated(piece, "a piece")
        if self._took("?"):
            piece += "?"
        elif self._took("+"):
            raise NotTranslated("a possessive quantifier")
        return self._unrepeated(piece, "a quantifier")

    def _unrepeated(self, piece: str, construct: str) -> str:
        following = self._plain[self._at : self._at + 1]
        if following and following in "*+?{":
            raise NotTranslated(f"{following} behind {construct}")
        return piece

    def _class(self) -> frozenset[str]:
        """Parse a class after its bracket; return its legal characters."""
        is_negated, found, begins = self._took("^"), set[str](), self._at
        while self._at == begins or not self._took("]"):
            if self.is_done:
                raise NotTranslated("a [ that is not closed")
            if self._plain[self._at] == "[" or self._plain.startswith("&&", self._at):
                raise NotTranslated("a class inside a class, or &&")
            found |= self._item()
        return LEGAL - found if is_negated else frozenset(found)

    def _item(self) -> frozenset[str]:
        """A character, a range, or a class by its name."""
        first = self._one()
        if not isinstance(first, str):
            return first
        follows = self._plain[self._at : self._at + 2]
        if not follows.startswith("-") or follows in ("-", "-]", "-["):
            return self._cases(frozenset(first))
        self._at += 1
        last = self._one()
        if not isinstance(last, str) or last < first:
            raise NotTranslated(
                f"a range in a class from {first!r} to what does not come behind it"
            )
        return self._cases(frozenset(char for char in _ASCII if first <= char <= last))

    def _one(self) -> str | frozenset[str]:
        """A character that stands for itself, in a class; or what an escape stands for."""
        char = self._next()
        return self._escaped() if char == ("\\", False) else char.char

    def _escaped(self) -> str | frozenset[str]:
        """Parse an escape after its backslash; return its character, or the legal ones of a class."""
        char = self._next()
        name = "" if char.is_quoted else char.char
        if name in PREDEFINED:
            return PREDEFINED[name]
        if name in ("p", "P"):
            return self._property(is_negated=name == "P")
        if name in _CONTROLS:
            return _CONTROLS[name]
        if name == "c":
            return chr(ord(self._next().char) ^ 64)
        if name and name in "0xu":
            return self._by_number()
        if char.char.isascii() and char.char.isalnum():
            raise NotTranslated(f"\\{char.char}")
        return char.char

    def _by_number(self) -> str:
        found = _NUMBERED.match(self._plain, self._at - 1)
        if found and found[1]:
            number = int(found[1], 8)
        elif found:
            number = int("".join(found.groups("")), 16)
        else:
            number = -1
        if not found or number > _LARGEST or 0xD800 <= number < 0xE000:
            raise NotTranslated(f"the character \\{self._plain[self._at - 1 : self._at + 5]}")
        self._at = found.end()
        return chr(number)

    def _property(self, *, is_negated: bool) -> frozenset[str]:
        found = _PROPERTY.match(self._plain, self._at)
        if not found:
            raise NotTranslated(f"the class \\p{self._plain[self._at : self._at + 20]}")
        self._at = found.end()
        meant = by_property(found[1] or found[2], ignores_case=self._ignores_case)
        return LEGAL - meant if is_negated else meant

    def _cases(self, chars: frozenset[str]) -> frozenset[str]:
        return other_cases(chars) if self._ignores_case else chars

    def _took(self, token: str) -> bool:
        """Consume the next token if it equals `what`."""
        taken = self._plain.startswith(token, self._at)
        self._at += len(token) if taken else 0
        return taken

    def _next(self) -> Token:
        if self.is_done:
            raise NotTranslated("the end of the pattern behind a \\ or inside a class")
        self._at += 1
        return self._tokens[self._at - 1]


def _is_count(count: re.Match[str]) -> bool:
    """True if `{n}`, `{n,}` or `{n,m}` is a valid count: not `{0}`, not too large for Java, not
    descending.
    """
    least, has_comma, most = count[1], count[2], count[3]
    if len(least) > _MOST_DIGITS or len(most or "") > _MOST_DIGITS:
        return False
    if has_comma and not most:
        return True
    return int(most or least) >= max(1, int(least))


_QUOTES_AT_END = re.compile("[\"']+(?=[\\x85\\u2028\\u2029]?\\Z)")


class FilterKind(str, Enum):
    """Whether a filter includes or excludes what it matches; values as in registrations of 0.8."""

    WHITE_LIST = "white_list"
    BLACK_LIST = "black_list"


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """Raises NotTranslated, in words, where the text has no translation or is no pattern."""

    kind: FilterKind
    text: str
    """The pattern after a consumer's cleanup."""

    def __post_init__(self) -> None:
        java_pattern(self.text)

    def allows(self, topic: str) -> bool:
        """True if an existing topic is read. Internal topics are not, unless a consumer has
        `exclude.internal.topics=false`, which its registration does not tell.
        """
        matches = java_pattern(self.text).fullmatch(topic) is not None
        return matches == (self.kind is FilterKind.WHITE_LIST) and topic not in INTERNAL_TOPICS


def cleaned(text: str) -> str:
    """Clean a pattern as consumers do: `,` becomes `|`, blanks and enclosing quotes are removed."""
    trimmed = text.strip("".join(map(chr, range(33))))
    return _QUOTES_AT_END.sub("", trimmed.replace(",", "|").replace(" ", "").lstrip("\"'"))
