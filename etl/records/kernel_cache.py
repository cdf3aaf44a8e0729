"""How are the numba kernels compiled and cached, and which counters do they share?

numba caches compiled code beside the source. For a package in a zip it uses a folder that differs
for each Spark application and executor, so nothing would be found again: here the cache is keyed
by the content of the zip, and a zip may bring compiled kernels (`etl package`), which are
unpacked once. numba itself compares source, versions, Python and CPU, and recompiles on any
difference. If no folder is writable, kernels are compiled in each process (seconds).

The helpers here check no bounds: their callers have.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core import config as numbas_config
from numba.core.caching import ZipCacheLocator
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from numpy.typing import NDArray

from etl.model.plans import GAPS_KEPT

config: Any = numbas_config
"""Its settings: read from the environment, so no checker knows them."""
KEPT = (".nbc", ".nbi")
"""Suffixes of numba's files: compiled code, and the index, which is unpacked last, since it names
the others.
"""


class ZippedKernels(ZipCacheLocator):
    """numba's locator for kernels in a zip (its setting NUMBA_CACHE_LOCATOR_CLASSES)."""

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> ZippedKernels | None:
        """None where the function is in no zip, or no folder can be written."""
        if ".zip" not in py_file:
            return None
        found = cls(py_func, py_file)
        folder = kept_folder(Path(found._zip_path))
        if folder is None:
            return None
        found._cache_path = str(folder)
        return found


@contextlib.contextmanager
def kept_by_content(function: Callable[..., Any]) -> Iterator[None]:
    """Context manager: numba caches functions of a zip here, unless configured otherwise."""
    if ".zip" not in function.__code__.co_filename or config.CACHE_LOCATOR_CLASSES:
        yield
        return
    config.CACHE_LOCATOR_CLASSES = f"{ZippedKernels.__module__}.{ZippedKernels.__name__}"
    try:
        yield
    finally:
        config.CACHE_LOCATOR_CLASSES = ""


@functools.cache
def kept_folder(zipped: Path) -> Path | None:
    """Return the cache folder of this zip, with its kernels; None if nothing is writable."""
    name = f"kernels-{hashlib.sha256(zipped.read_bytes()).hexdigest()[:16]}"
    for root in _roots(zipped):
        with contextlib.suppress(OSError):
            _unpack(zipped, root / name)
            return root / name
    return None


def _roots(zipped: Path) -> Iterator[Path]:
    """Return NUMBA_CACHE_DIR, the user's cache, and the zip's own folder on the executor."""
    if config.CACHE_DIR:
        yield Path(config.CACHE_DIR)
    with contextlib.suppress(RuntimeError):  # a user without a home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offset-range-etl"
    yield zipped.absolute().parent


def _unpack(zipped: Path, folder: Path) -> None:
    """Each file as a whole: other workers unpack the same, and read it. Raises OSError where the
    folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()
    with zipfile.ZipFile(zipped) as opened:
        for name in sorted(
            (name for name in opened.namelist() if name.endswith(KEPT)),
            key=lambda name: KEPT.index(name[-4:]),
        ):
            place = folder / name.rpartition("/")[2]
            if place.exists():
                continue
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as written:
                written.write(opened.read(name))
            os.replace(written.name, place)


def files_of(kernels: Iterator[Any]) -> list[Path]:
    """Return numba's cache files of these functions for this Python, as compiled or loaded so far."""
    found = set[Path]()
    for kernel in kernels:
        if kernel.stats.cache_path is not None:
            code = kernel.py_func.__code__
            names = f"{Path(code.co_filename).stem}.{kernel.py_func.__qualname__}-{code.co_firstlineno}.py*"
            found.update(
                path
                for path in Path(kernel.stats.cache_path).glob(names)
                if path.name.endswith(KEPT)
            )
    return sorted(found)


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


MOST_ROWS = (1 << 18) + (1 << 16)
"""Rows of one Arrow batch: the topic is repeated with each."""
MOST_BYTES = 32 << 20
"""Bytes of keys, values and headers in one Arrow batch, its last record not counted."""
MOST_HEADERS = 1 << 20
"""Headers in one Arrow batch, those of its last record not counted."""
# What the buffers hold, kept from one call to the next.
BATCH, ROWS, KEY_BYTES, VALUE_BYTES, HEADERS, HEADER_KEY_BYTES, HEADER_VALUE_BYTES = range(7)
NO_KEY, NO_VALUE, NO_TIMESTAMP, NO_HEADERS, NO_HEADER_VALUE, NON_ASCII = range(7, 13)
# Where it goes on inside a row of the table: records done, place of the next one, the lowest offset
# it may have, its number in its wrapper. And which record was refused.
RECORD, AT, LOWEST, OFFSET, INDEX = range(13, 18)
NO_TIMESTAMP_TYPE = 18
STATE_WIDTH = 19
# How a call ended. What is between them says what is wrong with the bytes, and is the kernel's own.
FILLED, MORE_HEADERS, TOO_LARGE, TOO_MANY_HEADERS, FULL = 0, 1, 6, 7, 8

MAX_MS = (2**63 - 1) // 1000
NO_MS = -1


MAX_HOLES = 100
"""Number of missing intervals between messages that are kept."""
EXPECTED, GAPS, SEEN_ROWS, HOLES = range(4)


class Tally:
    """Rows seen by one walk, and the intervals that gave none."""

    def __init__(self, from_offset: int) -> None:
        self.numbers: Ints = np.array([from_offset, 0, 0, 0], dtype=np.int64)
        self.gap_bounds: Ints = np.empty((GAPS_KEPT, 2), dtype=np.int64)
        self.hole_bounds: Ints = np.empty((MAX_HOLES, 2), dtype=np.int64)

    @property
    def rows(self) -> int:
        return int(self.numbers[SEEN_ROWS])

    @property
    def gap_count(self) -> int:
        """All of them, also those beyond GAPS_KEPT."""
        return int(self.numbers[GAPS])

    def gaps(self) -> list[tuple[int, int]]:
        """The first GAPS_KEPT intervals [from, until) without a row, in order."""
        return _pairs(self.gap_bounds, self.gap_count)

    @property
    def hole_count(self) -> int:
        """All of them, also those beyond MAX_HOLES."""
        return int(self.numbers[HOLES])

    def holes(self) -> list[tuple[int, int]]:
        """Return the first MAX_HOLES intervals [from, until) between messages v0 and v1 that none
        has, ascending. For record batches v2 their headers tell.
        """
        return _pairs(self.hole_bounds, self.hole_count)

    @property
    def expected(self) -> int:
        """One past the newest row, or the start of the range."""
        return int(self.numbers[EXPECTED])


def _pairs(bounds: Ints, count: int) -> list[tuple[int, int]]:
    return [(int(first), int(until)) for first, until in bounds[:count]]
