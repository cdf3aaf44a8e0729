"""What the compiled kernels share: how they are compiled and kept, and the few steps that numba has
no fast way for.

numba's cache lies beside the source; that of a package in a zip is `kernel_cache`'s. Where neither
can be written the kernels are compiled again in each process (seconds) instead of failing.

Nothing here looks at bounds: who calls has found the bytes inside their array.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from numpy.typing import NDArray

from etl.protocol.records.kernel_cache import kept_by_content

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

KERNELS: list[Any] = []
"""Each kernel that is kept, as numba has it."""


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first call, and keep the result on disk where that is possible."""
    try:
        with kept_by_content(function):
            compiled = njit(cache=True, nogil=True)(function)
    except (RuntimeError, OSError):
        # numba finds no folder it may write to and says so when decorating.
        return njit(nogil=True)(function)

    KERNELS.append(compiled)
    state = {"call": compiled}

    def call(*arguments: Any) -> Any:
        try:
            return state["call"](*arguments)
        except (OSError, EOFError, pickle.UnpicklingError):
            # A package in a zip and no home to write to, a full disk, a cache file cut off:
            # decoding goes on without.
            state["call"] = njit(nogil=True)(function)
            return state["call"](*arguments)

    return call


def frozen(content: Any) -> Bytes:
    """A read-only view of bytes: the kernels are compiled for one kind of source only."""
    view = np.frombuffer(content, dtype=np.uint8) if len(content) else np.empty(0, dtype=np.uint8)
    view.flags.writeable = False
    return view


def _address(context: Any, builder: Any, kind: Any, array: Any, place: Any) -> Any:
    content = make_array(kind)(context, builder, array).data  # type: ignore[no-untyped-call]
    return builder.gep(content, [place])


def _copy_bytes(_: Any, source: Any, at: Any, count: Any, target: Any, to: Any) -> Any:
    """`memcpy` of bytes that the caller has found inside `source`: several times as fast as a loop
    or a slice here.

    They fit: `target` has room for all bytes of the group, and each of them is copied once.
    """

    # Ignored below: numba's own functions have no types.
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        origin = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        goal = _address(context, builder, signature.args[3], arguments[3], arguments[4])
        cgutils.raw_memcpy(builder, goal, origin, arguments[2], 1)  # type: ignore[no-untyped-call]

    return types.void(source, types.intp, types.intp, target, types.intp), generate


def _number(kind: Any, *, byteorder: str) -> Any:
    """A function (array of bytes, place) -> number, in one load instead of one for each byte."""

    def load(_: Any, source: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = _address(context, builder, signature.args[0], arguments[0], arguments[1])
            found = builder.load(builder.bitcast(place, ir.IntType(kind.bitwidth).as_pointer()))
            found.align = 1
            return found if byteorder == sys.byteorder else builder.bswap(found)

        return kind(source, types.intp), generate

    return intrinsic(load)


copy: Any = intrinsic(_copy_bytes)
int32: Any = _number(types.int32, byteorder="big")
uint32: Any = _number(types.uint32, byteorder="big")
int64: Any = _number(types.int64, byteorder="big")
little_uint64: Any = _number(types.uint64, byteorder="little")
