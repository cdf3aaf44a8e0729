r"""Which topics match a Java regular expression of a consumer's filter?

Lives here: the filter of a consumer, and the translation of Java's expressions into Python's.
Not here: the registrations that hold filters (`registrations`), and `source.topics`, a list of
Python's expressions.

Filters of other group members and of Spark's users are Java expressions. Only legal topic names are
matched (`_LEGAL`), as a whole or in part. So a character class becomes the set of its characters
that a name may have, and `(?i)` adds the other case of each letter:

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


class FilterKind(str, Enum):
    """Whether a filter includes or excludes what it matches; values as in registrations of 0.8."""

    WHITE_LIST = "white_list"
    BLACK_LIST = "black_list"


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """The topics that a consumer selects by a pattern.

    Raises NotTranslated if the pattern is invalid or has no translation.
    """

    kind: FilterKind
    text: str
    """The pattern after a consumer's cleanup (`cleaned`)."""

    def __post_init__(self) -> None:
        java_pattern(self.text)

    def allows(self, topic: str) -> bool:
        """Return True if the consumer reads this existing topic.

        Internal topics count as excluded. A consumer with `exclude.internal.topics=false` reads
        them, but its registration does not contain that setting.
        """
        if topic in INTERNAL_TOPICS:
            return False
        matches = java_pattern(self.text).fullmatch(topic) is not None
        return matches == (self.kind is FilterKind.WHITE_LIST)


_JAVA_TRIMS = "".join(map(chr, range(33)))
"""The characters that `String.trim()` removes."""
_QUOTES_AT_END = re.compile("[\"']+(?=[\\x85\\u2028\\u2029]?\\Z)")
"""Quotes at the end, where Java's `$` also matches before a final line terminator."""


def cleaned(text: str) -> str:
    """Clean a pattern as consumers do: `,` becomes `|`, blanks and enclosing quotes are removed."""
    pattern = text.strip(_JAVA_TRIMS)
    pattern = pattern.replace(",", "|").replace(" ", "")
    return _QUOTES_AT_END.sub("", pattern.lstrip("\"'"))


class NotTranslated(ValueError):
    """The part of a pattern that is invalid or cannot be translated."""


@lru_cache(maxsize=256)
def java_pattern(text: str) -> re.Pattern[str]:
    """Return a Python pattern that matches the same legal topic names as Java's pattern.

    Its `fullmatch` corresponds to Java's `matches()`, its `search` to `find()`.
    Raises NotTranslated.
    """
    parser = _Parser(_tokens(text))
    translated = parser.alternatives()
    if not parser.is_done:
        raise NotTranslated("a ) without an opening (")
    try:
        return re.compile(translated, re.ASCII)
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        raise NotTranslated(str(error)) from error


class _Token(NamedTuple):
    """One character of a pattern."""

    char: str
    is_quoted: bool = False
    """True between `\\Q` and `\\E`: the character is a literal."""

    @property
    def syntax(self) -> str:
        """The character, or an empty string if it is quoted and so has no syntactic meaning."""
        if self.is_quoted:
            return ""
        return self.char


def _tokens(text: str) -> list[_Token]:
    """Split a pattern into its tokens.

    Empty quotes vanish, as in Java: a quantifier after one applies to the token before it.
    """
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        if text.startswith("\\Q", at):
            quoted, end, _ = text[at + 2 :].partition("\\E")
            tokens.extend(_Token(char, is_quoted=True) for char in quoted)
            at += 2 + len(quoted) + len(end)
            continue
        length = 1
        if text[at] == "\\":
            # An escaped backslash before a Q begins no quote.
            length = 2
        tokens.extend(_Token(char) for char in text[at : at + length])
        at += length
    return tokens


_MAX_DEPTH = 50
_MAX_CODE_POINT = 0x10FFFF
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_ANCHORS = {"A": r"\A", "z": r"\Z", "Z": r"\Z", "b": r"\b", "B": r"\B"}
_LOOKAROUNDS = ("=", "!", "<=", "<!")
_GROUP_NAME = re.compile(r"<([a-zA-Z][a-zA-Z0-9]*)>")
_FLAGS = re.compile(r"([idmsuxU]*)(-[idmsuxU]*)?([:)])")
_UNSUPPORTED_FLAGS = frozenset("uxU")
_CODE_POINT = re.compile(
    r"0([0-3]?[0-7]{1,2})|x([0-9a-fA-F]{2})|x{([0-9a-fA-F]{1,8})}|u([0-9a-fA-F]{4})"
)
_PROPERTY = re.compile(r"{([a-zA-Z]+)}|([A-Z])")
_COUNT = re.compile(r"{([0-9]+)(?:(,)([0-9]*))?}")


class _Parser:
    """A recursive-descent parser that returns the translation of what it parses.

    Its methods raise NotTranslated.
    """

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._text = "".join(token.syntax or "\0" for token in tokens)
        """The tokens as text to search. Quoted characters are NUL, which no construct contains."""
        self._at = 0
        self._ignores_case = False
        self._group_names: set[str] = set()

    @property
    def is_done(self) -> bool:
        return self._at == len(self._tokens)

    def alternatives(self, depth: int = 0) -> str:
        """Translate up to the end of the group, or of the pattern."""
        if depth > _MAX_DEPTH:
            raise NotTranslated(f"groups nested more than {_MAX_DEPTH} deep")
        sequences = [self._sequence(depth)]
        while self._accept("|"):
            sequences.append(self._sequence(depth))
        return "|".join(sequences)

    def _sequence(self, depth: int) -> str:
        elements = []
        while not self.is_done and self._text[self._at] not in "|)":
            elements.append(self._element(depth))
        return "".join(elements)

    def _element(self, depth: int) -> str:
        """Translate a character, class, group, anchor or lookaround, and its quantifier."""
        token = self._next()
        match token.syntax:
            case "(":
                return self._group(depth + 1)
            case "[":
                return self._with_quantifier(_python_class(self._class()))
            case ".":
                return self._with_quantifier(_python_class(_LEGAL))
            case "^":
                return self._without_quantifier(r"\A", "an anchor")
            case "$":
                return self._without_quantifier(r"\Z", "an anchor")
            case "*" | "+" | "?" | "{":
                raise NotTranslated(f"{token.char} after nothing that can be repeated")
            case "\\":
                return self._escaped_element()
        chars = self._with_cases(frozenset(token.char))
        return self._with_quantifier(_python_class(chars))

    def _escaped_element(self) -> str:
        """Translate an escape outside a class, after its backslash."""
        anchor = _ANCHORS.get(self._peek())
        if anchor is not None:
            self._at += 1
            return self._without_quantifier(anchor, "an anchor")
        chars = self._escape()
        if isinstance(chars, str):
            chars = self._with_cases(frozenset(chars))
        return self._with_quantifier(_python_class(chars))

    def _group(self, depth: int) -> str:
        """Translate a group or a lookaround after its parenthesis.

        Flags that are set in its prefix or inside end with it.
        """
        ignored_case_before = self._ignores_case
        lookaround = ""
        if self._accept("?"):
            lookaround = self._lookaround()
            if not lookaround and not self._parse_group_prefix():
                return ""
        inside = self.alternatives(depth)
        self._ignores_case = ignored_case_before
        if not self._accept(")"):
            raise NotTranslated("a ( that is not closed")
        if lookaround:
            return self._without_quantifier(f"(?{lookaround}{inside})", "a lookaround")
        return self._with_quantifier(f"(?:{inside})")

    def _lookaround(self) -> str:
        """Return the sign of a lookaround after `(?`; an empty string: another kind of group."""
        for sign in _LOOKAROUNDS:
            if self._accept(sign):
                return sign
        return ""

    def _parse_group_prefix(self) -> bool:
        """Parse the name or the flags after `(?`.

        Return False if there is no group: `(?i)` sets flags up to the end of the enclosing group.
        """
        named = _GROUP_NAME.match(self._text, self._at)
        if named:
            name = named[1]
            if name in self._group_names:
                raise NotTranslated(f"two groups called {name}")
            self._group_names.add(name)
            self._at = named.end()
            return True

        flags = _FLAGS.match(self._text, self._at)
        if not flags:
            prefix = self._text[self._at : self._at + 2]
            raise NotTranslated(f"a group that begins with (?{prefix}")
        set_flags = flags[1]
        cleared_flags = flags[2] or ""
        unsupported = _UNSUPPORTED_FLAGS.intersection(set_flags)
        if unsupported:
            raise NotTranslated(f"the flag {min(unsupported)}")
        self._at = flags.end()
        if "i" in set_flags:
            self._ignores_case = True
        if "i" in cleared_flags:
            self._ignores_case = False
        return flags[3] == ":"

    def _with_quantifier(self, element: str) -> str:
        """Add the quantifier that follows, if there is one."""
        count = _COUNT.match(self._text, self._at)
        if count:
            if not _is_valid_count(count):
                raise NotTranslated(f"the quantifier {count[0][:20]}")
            self._at = count.end()
            element += count[0]
        elif self._peek() in ("*", "+", "?"):
            element += self._next().char
        else:
            return self._without_quantifier(element, "a character or group")

        if self._accept("?"):
            element += "?"
        elif self._accept("+"):
            raise NotTranslated("a possessive quantifier")
        return self._without_quantifier(element, "a quantifier")

    def _without_quantifier(self, element: str, construct: str) -> str:
        """Return the element, or raise NotTranslated if a quantifier follows it."""
        following = self._peek()
        if following and following in "*+?{":
            raise NotTranslated(f"{following} after {construct}")
        return element

    def _class(self) -> frozenset[str]:
        """Parse a class after its bracket; return its characters."""
        is_negated = self._accept("^")
        chars: frozenset[str] = frozenset()
        start = self._at
        # A ] at the start is a literal.
        while self._at == start or not self._accept("]"):
            if self.is_done:
                raise NotTranslated("a [ that is not closed")
            if self._text[self._at] == "[" or self._text.startswith("&&", self._at):
                raise NotTranslated("a class inside a class, or &&")
            chars |= self._class_item()
        if is_negated:
            return _LEGAL - chars
        return chars

    def _class_item(self) -> frozenset[str]:
        """Parse a character, a range or a predefined class inside a class."""
        first = self._class_atom()
        if not isinstance(first, str):
            return first
        following = self._text[self._at : self._at + 2]
        if not following.startswith("-") or following in ("-", "-]", "-["):
            return self._with_cases(frozenset(first))
        self._at += 1
        last = self._class_atom()
        if not isinstance(last, str) or last < first:
            raise NotTranslated(f"a range in a class from {first!r} without a later end")
        chars = frozenset(char for char in _ASCII if first <= char <= last)
        return self._with_cases(chars)

    def _class_atom(self) -> str | frozenset[str]:
        """Parse a literal or an escape inside a class; return as `_escape` does."""
        token = self._next()
        if token.syntax == "\\":
            return self._escape()
        return token.char

    def _escape(self) -> str | frozenset[str]:
        """Parse an escape after its backslash; return its character, or the set of a class."""
        token = self._next()
        name = token.syntax
        if name in _PREDEFINED:
            return _PREDEFINED[name]
        if name in ("p", "P"):
            return self._property(is_negated=name == "P")
        if name in _CONTROLS:
            return _CONTROLS[name]
        if name == "c":
            return chr(ord(self._next().char) ^ 64)
        if name in ("0", "x", "u"):
            return self._code_point()
        if token.char.isascii() and token.char.isalnum():
            raise NotTranslated(f"\\{token.char}")
        return token.char

    def _code_point(self) -> str:
        """Parse `\\056`, `\\x41`, `\\x{41}` or `\\u0041` after its first letter."""
        start = self._at - 1
        description = f"the character \\{self._text[start : start + 6]}"
        found = _CODE_POINT.match(self._text, start)
        if not found:
            raise NotTranslated(description)
        octal = found[1]
        if octal:
            number = int(octal, 8)
        else:
            number = int(found[2] or found[3] or found[4], 16)
        is_surrogate = 0xD800 <= number < 0xE000
        if number > _MAX_CODE_POINT or is_surrogate:
            raise NotTranslated(description)
        self._at = found.end()
        return chr(number)

    def _property(self, *, is_negated: bool) -> frozenset[str]:
        """Parse a property after `\\p` or `\\P`; return its characters."""
        found = _PROPERTY.match(self._text, self._at)
        if not found:
            following = self._text[self._at : self._at + 20]
            raise NotTranslated(f"the class \\p{following}")
        self._at = found.end()
        chars = _chars_of_property(found[1] or found[2], ignores_case=self._ignores_case)
        if is_negated:
            return _LEGAL - chars
        return chars

    def _with_cases(self, chars: frozenset[str]) -> frozenset[str]:
        """Add the other case of each letter under the flag i: of ASCII only, as without u."""
        if not self._ignores_case:
            return chars
        return chars | {char.swapcase() for char in chars if char.isascii()}

    def _peek(self) -> str:
        """Return the next character; empty at the end of the pattern."""
        return self._text[self._at : self._at + 1]

    def _accept(self, text: str) -> bool:
        """Consume this text and return True if it comes next."""
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _next(self) -> _Token:
        """Consume the next token."""
        if self.is_done:
            raise NotTranslated("the end of the pattern after a \\ or inside a class")
        token = self._tokens[self._at]
        self._at += 1
        return token


_MAX_COUNT_DIGITS = 9


def _is_valid_count(count: re.Match[str]) -> bool:
    """Return True if `{n}`, `{n,}` or `{n,m}` can be translated.

    `{0}`, a descending count and a count that is too large for Java cannot.
    """
    least = count[1]
    has_comma = count[2] is not None
    most = count[3] or ""
    if len(least) > _MAX_COUNT_DIGITS or len(most) > _MAX_COUNT_DIGITS:
        return False
    if has_comma and not most:
        return True
    return int(most or least) >= max(1, int(least))


_LEGAL = frozenset(string.ascii_letters + string.digits + "._-")
"""The characters of topic names."""
_ASCII = frozenset(map(chr, range(128)))
_DIGITS = frozenset(string.digits)
_WORD_CHARS = frozenset(string.ascii_letters + string.digits + "_")
_WHITESPACE = frozenset(" \t\n\x0b\f\r")
_PREDEFINED = {
    "d": _DIGITS,
    "w": _WORD_CHARS,
    "s": _WHITESPACE,
    "D": _LEGAL - _DIGITS,
    "W": _LEGAL - _WORD_CHARS,
    "S": _LEGAL,
}
"""The predefined classes, by the letter after the backslash."""
_CASED_POSIX = {
    "Lower": frozenset(string.ascii_lowercase),
    "Upper": frozenset(string.ascii_uppercase),
}
_POSIX = {
    **_CASED_POSIX,
    "Digit": _DIGITS,
    "Alpha": frozenset(string.ascii_letters),
    "Alnum": frozenset(string.ascii_letters + string.digits),
    "Punct": frozenset(string.punctuation),
    "Graph": _LEGAL,
    "Print": _LEGAL,
    "ASCII": _LEGAL,
    "Blank": frozenset(" \t"),
    "Space": _WHITESPACE,
    "XDigit": frozenset(string.hexdigits),
    "Cntrl": frozenset(map(chr, range(32))),
}
_CATEGORIES = frozenset(
    "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp "
    "C Cc Cf".split()
)
_CASED_CATEGORIES = frozenset({"Lu", "Ll", "Lt"})


def _chars_of_property(name: str, *, ignores_case: bool) -> frozenset[str]:
    r"""Return the characters of `\p{name}`. Raises NotTranslated."""
    if name not in _POSIX and name not in _CATEGORIES:
        raise NotTranslated(f"the class \\p{{{name}}}")
    if ignores_case and (name in _CASED_POSIX or name in _CASED_CATEGORIES):
        raise NotTranslated(
            f"the class \\p{{{name}}} under the flag i, which releases of Java read in two ways"
        )
    if name in _POSIX:
        return _POSIX[name]
    chars = set()
    for char in _LEGAL:
        if unicodedata.category(char).startswith(name):
            chars.add(char)
    return frozenset(chars)


def _python_class(chars: frozenset[str]) -> str:
    """Return a Python class of the legal ones of these characters.

    Without any, return an expression that never matches and is one character long, so that the
    length of a lookbehind stays fixed.
    """
    legal = "".join(sorted(chars & _LEGAL))
    if not legal:
        return "(?:(?!)[a])"
    return f"[{re.escape(legal)}]"
