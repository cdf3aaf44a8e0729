"""How consumers in Java and Scala order texts, and what they take for a text's hash: whoever
divides like them orders like them.
"""

from __future__ import annotations

_LARGEST = 2**31 - 1


def java_hash(text: str, *, behind: int = 0) -> int:
    """`String.hashCode`: a signed number of 32 bits. `behind`: the hash of what stands before this
    text, which is then not looked at.
    """
    found = behind
    for unit in text if text.isascii() else _units(text):
        found = 31 * found + (ord(unit) if isinstance(unit, str) else unit)
    found &= 0xFFFFFFFF
    return found - 2**32 if found > _LARGEST else found


def java_order(text: str) -> bytes:
    """A key to sort by: `String.compareTo` compares units of UTF-16, so what lies above U+FFFF
    comes before U+E000.
    """
    return text.encode("utf-16-be", "surrogatepass")


def _units(text: str) -> list[int]:
    units = java_order(text)
    return [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]
