"""Classes of characters in Java's regular expressions, as the characters of a topic's name that
they stand for.
"""

from __future__ import annotations

import re
import string
import unicodedata

LEGAL = frozenset(string.ascii_letters + string.digits + "._-")
"""What a topic's name may be made of."""

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
"""By the letter behind the backslash."""
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
    "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf".split()
)
_CASED_CATEGORIES = frozenset({"Lu", "Ll", "Lt"})


class NotTranslated(ValueError):
    """What of a pattern has no translation, or is no pattern."""


def by_property(name: str, *, ignores_case: bool) -> frozenset[str]:
    """What `\\p{name}` stands for. Raises NotTranslated."""
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
