"""Elements of a page. What is put into one is text, and escaped, unless it is `Html` already:
nobody has to think of it.

Topics, errors and paths come from outside, so a page could otherwise be made to say, or do, what
they say.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

_NEVER_CLOSED = ("meta", "link", "rect", "line", "br")
_NO_TEXT = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)
"""What HTML takes for a mistake, what UTF-8 cannot hold, and what turns the direction of the text
around it.
"""

Attribute = str | int | float | bool | None


class Html(str):
    """Text that is HTML."""

    __slots__ = ()


Child = str | int | None | Iterable["Child"]


def escaped(text: object) -> Html:
    """The text as HTML, in an element or in an attribute's quotes."""
    return (
        text
        if isinstance(text, Html)
        else Html(html.escape(_NO_TEXT.sub("\N{REPLACEMENT CHARACTER}", str(text))))
    )


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """`tag("p", "a < b", class_="note")`. A child or an attribute that is None is left out; `_` in
    an attribute's name stands for `-`.
    """
    told = "".join(
        f" {_name(key)}" if value is True else f' {_name(key)}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(
        f"<{name}{told}>" if name in _NEVER_CLOSED else f"<{name}{told}>{joined(children)}</{name}>"
    )


def joined(children: Iterable[Child]) -> Html:
    """Several, one behind the other."""
    return Html("".join(_child(child) for child in children))


def _child(child: Child) -> str:
    if child is None:
        return ""
    return escaped(child) if isinstance(child, (str, int)) else joined(child)


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def prose(text: str, most: int = 4000) -> Html:
    """A sentence of a message: what stands between backticks is code. Cut behind `most` characters,
    which it then says.
    """
    left = len(text) - most
    parts = re.split(r"`([^`\n]+)`", text[:most])
    told = joined(tag("code", part) if i % 2 else part for i, part in enumerate(parts))
    return joined((told, f" ... and {left:,} characters more")) if left > 0 else told
