"""How are the numba kernels compiled and cached, and which counters do they share?

numba caches compiled code next to the source. For a package in a zip it uses a folder by the path
of the zip, which differs for each Spark application and executor: the cache would never be hit, and
each executor would compile for about four seconds. Here the name of the folder is a hash of the
content of the zip, and a zip can contain compiled kernels (`etl package`), unpacked once. numba
itself compares source, versions, Python and CPU, and recompiles on any difference. If no folder is
writable, kernels are compiled in each process.

Lives here: the cache, helpers and constants of the kernels, and the counters of a range.
Not here: the kernels (batch_kernel.py, message_set_kernel.py).

The helpers check no bounds: their callers do.
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
from collections.abc import Callable, Iterable, Iterator
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
"""Settings of numba: read from the environment, so without types."""
CACHE_SUFFIXES = (".nbc", ".nbi")
"""Suffixes of numba's files: compiled code and the index.

The index is unpacked last, because it refers to the other files.
"""


class ZippedKernels(ZipCacheLocator):
    """Cache locator for kernels in a zip (numba's setting NUMBA_CACHE_LOCATOR_CLASSES)."""

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> ZippedKernels | None:
        """Return the locator; None if the function is in no zip, or no folder is writable."""
        if ".zip" not in py_file:
            return None
        found = cls(py_func, py_file)
        folder = cache_folder(Path(found._zip_path))
        if folder is None:
            return None
        found._cache_path = str(folder)
        return found


@contextlib.contextmanager
def zip_cache_locator(function: Callable[..., Any]) -> Iterator[None]:
    """Context manager in which numba uses `ZippedKernels` for a zip, unless it is configured."""
    if ".zip" not in function.__code__.co_filename or config.CACHE_LOCATOR_CLASSES:
        yield
        return
    config.CACHE_LOCATOR_CLASSES = f"{ZippedKernels.__module__}.{ZippedKernels.__name__}"
    try:
        yield
    finally:
        config.CACHE_LOCATOR_CLASSES = ""


@functools.cache
def cache_folder(zipped: Path) -> Path | None:
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
    with contextlib.suppress(RuntimeError):  # a user without a home directory
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offset-range-etl"
    yield zipped.absolute().parent


def _unpack(zipped: Path, folder: Path) -> None:
    """Unpack the kernels of a zip, each file atomically: other workers unpack and read the same.

    Raises OSError if the folder is not writable.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()
    with zipfile.ZipFile(zipped) as opened:
        names = [name for name in opened.namelist() if name.endswith(CACHE_SUFFIXES)]
        for name in sorted(names, key=lambda name: CACHE_SUFFIXES.index(name[-4:])):
            place = folder / name.rpartition("/")[2]
            if place.exists():
                continue
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as written:
                written.write(opened.read(name))
            os.replace(written.name, place)


def cache_files(kernels: Iterable[Any]) -> list[Path]:
    """Return numba's cache files of these kernels for this Python, compiled or loaded so far."""
    found = set[Path]()
    for kernel in kernels:
        if kernel.stats.cache_path is None:
            continue
        code = kernel.py_func.__code__
        module = Path(code.co_filename).stem
        names = f"{module}.{kernel.py_func.__qualname__}-{code.co_firstlineno}.py*"
        for path in Path(kernel.stats.cache_path).glob(names):
            if path.name.endswith(CACHE_SUFFIXES):
                found.add(path)
    return sorted(found)


Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

KERNELS: list[Any] = []
"""All cached kernels, as numba objects."""


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that compiles on the first call, and caches the result on disk if possible."""
    try:
        with zip_cache_locator(function):
            compiled = njit(cache=True, nogil=True)(function)
    except (RuntimeError, OSError):
        # numba found no writable folder; it raises this error when it decorates.
        return njit(nogil=True)(function)

    KERNELS.append(compiled)
    state = {"call": compiled}

    def call(*arguments: Any) -> Any:
        try:
            return state["call"](*arguments)
        except (OSError, EOFError, pickle.UnpicklingError):
            # A package in a zip without a writable folder, a full disk, a truncated cache file:
            # continue without cache.
            state["call"] = njit(nogil=True)(function)
            return state["call"](*arguments)

    return call


def read_only_view(content: Any) -> Bytes:
    """Return a read-only view of bytes: the kernels are compiled for this type of source only."""
    if len(content):
        view = np.frombuffer(content, dtype=np.uint8)
    else:
        view = np.empty(0, dtype=np.uint8)
    view.flags.writeable = False
    return view


def _address(context: Any, builder: Any, kind: Any, array: Any, place: Any) -> Any:
    content = make_array(kind)(context, builder, array).data  # type: ignore[no-untyped-call]
    return builder.gep(content, [place])


def _copy_bytes(_: Any, source: Any, at: Any, count: Any, target: Any, to: Any) -> Any:
    """Generate a `memcpy`, which is several times as fast as a loop or a slice.

    The caller checks that the bytes are inside `source`. `target` has room for all bytes of the
    group, and each is copied once.
    """

    # Ignored below: numba's own functions have no types.
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        origin = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        goal = _address(context, builder, signature.args[3], arguments[3], arguments[4])
        cgutils.raw_memcpy(builder, goal, origin, arguments[2], 1)  # type: ignore[no-untyped-call]

    return types.void(source, types.intp, types.intp, target, types.intp), generate


def _number(kind: Any, *, byteorder: str) -> Any:
    """Return a function (array of bytes, place) -> number with one load instead of one per byte."""

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
"""Rows of one Arrow batch; each row repeats the topic."""
MOST_BYTES = 32 << 20
"""Bytes of keys, values and headers in one Arrow batch, without its last record."""
MOST_HEADERS = 1 << 20
"""Headers in one Arrow batch, without those of its last record."""
# Places in the state, which continues from call to call: the fill level of the buffers,
BATCH, ROWS, KEY_BYTES, VALUE_BYTES, HEADERS, HEADER_KEY_BYTES, HEADER_VALUE_BYTES = range(7)
NO_KEY, NO_VALUE, NO_TIMESTAMP, NO_HEADERS, NO_HEADER_VALUE, NON_ASCII = range(7, 13)
# the place to continue at inside a row of the table (records done, place of the next one, its
# lowest offset, its number in its wrapper), and OFFSET, the offset of the rejected record.
RECORD, AT, LOWEST, OFFSET, INDEX = range(13, 18)
NO_TIMESTAMP_TYPE = 18
STATE_WIDTH = 19
# Results of a call. The codes 2 to 5 are errors in the bytes: see WRONG of each kernel.
FILLED, MORE_HEADERS, TOO_LARGE, TOO_MANY_HEADERS, FULL = 0, 1, 6, 7, 8

MAX_MS = (2**63 - 1) // 1000
NO_MS = -1


MAX_HOLES = 100
"""Largest number of missing intervals between messages that are stored."""
EXPECTED, GAPS, SEEN_ROWS, HOLES = range(4)


class Tally:
    """The number of rows of one range, and the intervals without rows."""

    def __init__(self, from_offset: int) -> None:
        self.numbers: Ints = np.array([from_offset, 0, 0, 0], dtype=np.int64)
        self.gap_bounds: Ints = np.empty((GAPS_KEPT, 2), dtype=np.int64)
        self.hole_bounds: Ints = np.empty((MAX_HOLES, 2), dtype=np.int64)

    @property
    def rows(self) -> int:
        return int(self.numbers[SEEN_ROWS])

    @property
    def gap_count(self) -> int:
        """Return the number of all gaps, including those beyond GAPS_KEPT."""
        return int(self.numbers[GAPS])

    def gaps(self) -> list[tuple[int, int]]:
        """Return the first GAPS_KEPT intervals [from, until) without a row, ascending."""
        return _pairs(self.gap_bounds, self.gap_count)

    @property
    def hole_count(self) -> int:
        """Return the number of all holes, including those beyond MAX_HOLES."""
        return int(self.numbers[HOLES])

    def holes(self) -> list[tuple[int, int]]:
        """Return the first MAX_HOLES missing intervals [from, until) between messages v0 and v1.

        Ascending. Missing intervals between record batches v2 follow from their headers.
        """
        return _pairs(self.hole_bounds, self.hole_count)

    @property
    def expected(self) -> int:
        """Return the offset after the newest row, or the start of the range."""
        return int(self.numbers[EXPECTED])


def _pairs(bounds: Ints, count: int) -> list[tuple[int, int]]:
    return [(int(first), int(until)) for first, until in bounds[:count]]
