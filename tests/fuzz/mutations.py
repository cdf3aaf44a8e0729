"""Valid examples made wrong: what a torn write, a flipped bit, a foreign writer or a liar would
leave.

Everything is chosen by the `random.Random` that is handed in, so that hypothesis can shrink it and
a seed repeats it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

LENGTHS = (-(2**31), -2, -1, 0, 1, 0x7F, 0x80, 0xFFFF, 2**31 - 1)
"""What a liar writes where a length or a count is expected."""
NUMBERS = (0, -1, 1, 2**31, 2**63 - 1, 2**63, 10**40, 1.5, -0.0, 1e308)
TEXTS = ("", "x", "0", "\ud800", "a\x00b", "9" * 5000)
HOLDERS: tuple[Any, ...] = ([], {}, [[]], [None], {"": None}, [1, "x", None])
VALUES = (None, True, False, *NUMBERS, float("inf"), float("nan"), *TEXTS, *HOLDERS)
"""What a foreign writer puts where something else is expected."""


def mutated(seeds: Sequence[bytes], choose: Random, *, is_json: bool = False) -> bytes:
    """One of the seeds with one to four things wrong with it."""
    content = choose.choice(seeds)
    for _ in range(choose.randint(1, 4)):
        wrong = choose.choice(_OF_JSON if is_json and choose.random() < 0.7 else _OF_BYTES)
        content = wrong(content, choose, seeds)
    return content


Mutation = Callable[[bytes, Random, Sequence[bytes]], bytes]


def _flip(content: bytes, choose: Random, _: Sequence[bytes]) -> bytes:
    at = choose.randrange(len(content) or 1)
    return (
        content[:at]
        + bytes(byte ^ 1 << choose.randrange(8) for byte in content[at : at + 1])
        + content[at + 1 :]
    )


def _insert(content: bytes, choose: Random, _: Sequence[bytes]) -> bytes:
    at = choose.randint(0, len(content))
    return content[:at] + choose.randbytes(choose.randint(1, 8)) + content[at:]


def _delete(content: bytes, choose: Random, _: Sequence[bytes]) -> bytes:
    start, until = _span(content, choose)
    return content[:start] + content[until:]


def _repeat(content: bytes, choose: Random, _: Sequence[bytes]) -> bytes:
    start, until = _span(content, choose)
    return content[:until] + content[start:until] * choose.randint(1, 5) + content[until:]


def _truncate(content: bytes, choose: Random, _: Sequence[bytes]) -> bytes:
    return content[: choose.randint(0, len(content))]


def _splice(content: bytes, choose: Random, seeds: Sequence[bytes]) -> bytes:
    other = choose.choice(seeds)
    return content[: choose.randint(0, len(content))] + other[choose.randint(0, len(other)) :]


def _lie(content: bytes, choose: Random, _: Sequence[bytes]) -> bytes:
    """Another number, of one to eight bytes big-endian, where one may stand."""
    size = choose.choice((1, 2, 4, 8))
    at = choose.randrange(len(content) or 1)
    number = choose.choice((*LENGTHS, len(content), choose.getrandbits(64)))
    return content[:at] + (number % (1 << 8 * size)).to_bytes(size, "big") + content[at + size :]


def _span(content: bytes, choose: Random) -> tuple[int, int]:
    start = choose.randint(0, len(content))
    return start, choose.randint(start, min(len(content), start + 64))


def _replace_value(content: bytes, choose: Random, _: Sequence[bytes]) -> bytes:
    return _edited(
        content, choose, lambda holder, key: holder.__setitem__(key, choose.choice(VALUES))
    )


def _drop_value(content: bytes, choose: Random, _: Sequence[bytes]) -> bytes:
    return _edited(content, choose, lambda holder, key: holder.__delitem__(key))


def _nudge_number(content: bytes, choose: Random, _: Sequence[bytes]) -> bytes:
    def nudge(holder: Any, key: Any) -> None:
        if type(holder[key]) is int:
            holder[key] += choose.choice((-1, 1, -1000, 1000, 2**62))

    return _edited(content, choose, nudge)


def _wrap_value(content: bytes, choose: Random, _: Sequence[bytes]) -> bytes:
    def wrap(holder: Any, key: Any) -> None:
        holder[key] = choose.choice(
            ([holder[key]], {"x": holder[key]}, [holder[key]] * 3, str(holder[key]))
        )

    return _edited(content, choose, wrap)


def _edited(content: bytes, choose: Random, edit: Callable[[Any, Any], object]) -> bytes:
    """One line of JSON with one place of it edited; other text stays unchanged."""
    lines: list[bytes] = content.split(b"\n")
    at = choose.randrange(len(lines))
    try:
        document = [json.loads(lines[at])]
    except (ValueError, RecursionError):
        return content
    edit(*choose.choice(list(_places(document))))
    lines[at] = json.dumps(document[0]).encode() if document else b""
    return b"\n".join(lines)


def _places(document: Any) -> list[tuple[Any, Any]]:
    """(holder, key) of every value in it."""
    found, left = list[tuple[Any, Any]](), [document]
    while left:
        holder = left.pop()
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            found.append((holder, key))
            if isinstance(holder[key], (dict, list)):
                left.append(holder[key])
    return found


_OF_BYTES: tuple[Mutation, ...] = (
    _flip,
    _flip,
    _insert,
    _delete,
    _repeat,
    _truncate,
    _splice,
    _lie,
    _lie,
)
_OF_JSON: tuple[Mutation, ...] = (
    _replace_value,
    _replace_value,
    _drop_value,
    _nudge_number,
    _wrap_value,
)
