"""What the bytes of a key or a value say, by the name of whoever can read them: for a person who
looks at records.

A decoder makes of bytes something that JSON can hold. Bytes that are not what it reads are no error
of the record's, nor an end of looking: they are told as `Undecoded`.
"""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from etl.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Bytes that a decoder could not read, and why."""

    content: bytes
    why: str


Decoder = Callable[[bytes], Any]


def decoder_of(name: str) -> Decoder:
    """The decoder of this name: one of `DECODERS`, or a function of bytes as
    `package.module:function`. Raises SettingsError.
    """
    if ":" not in name and name not in DECODERS:
        raise SettingsError(
            f"there is no decoder {name!r}",
            check=f"one of {', '.join(DECODERS)}, or package.module:function",
        )
    decode = DECODERS[name] if name in DECODERS else _function(name)

    def decoded(content: bytes) -> Any:
        try:
            found = decode(content)
            json.dumps(found, default=str)
            return found
        except Exception as error:  # whatever somebody else's function raises or makes, the record is there and can be shown
            return Undecoded(content, f"{type(error).__name__}: {error}")

    return decoded


def _function(name: str) -> Decoder:
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:  # the module is somebody else's, and importing it runs it
        check = "the name, package.module:function, and that the module can be imported from here (PYTHONPATH)"
        raise SettingsError(
            f"the decoder {name!r} cannot be loaded: {type(error).__name__}: {error}", check=check
        ) from None
    if not callable(found):
        raise SettingsError(
            f"the decoder {name!r} is no function", check="the name: package.module:function"
        )
    decode: Decoder = found
    return decode


def _json(content: bytes) -> Any:
    return json.loads(content, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _number(content: bytes) -> int:
    if len(content) not in (1, 2, 4, 8):
        raise ValueError(f"a number has 1, 2, 4 or 8 bytes, here are {len(content)}")
    return int.from_bytes(content, "big", signed=True)


DECODERS: dict[str, Decoder] = {
    "text": lambda content: content.decode("utf-8"),
    "json": _json,
    "hex": bytes.hex,
    "base64": lambda content: base64.b64encode(content).decode("ascii"),
    "int": _number,
}
"""`text` is UTF-8, `int` a signed number of 1, 2, 4 or 8 bytes, the high one first, as Java's
serializers write them.
"""
