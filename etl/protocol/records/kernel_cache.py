"""Where compiled kernels are kept while the package comes as a zip, and which files they are where
it is installed.

numba keeps what it compiled beside the source. For a zip it goes by the place where that lies,
which is another one for each application and executor of Spark, so nothing would ever be found
again. Here it goes by what is in the zip; and a zip may bring what was compiled before (`etl
package`), which is unpacked once. numba itself sees to it that only what was compiled from these
very sources, by this version of it, for this Python and this CPU, is used; anything else is
compiled again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numba.core import config as numbas_config
from numba.core.caching import ZipCacheLocator

config: Any = numbas_config
"""Its settings: read from the environment, so no checker knows them."""
KEPT = (".nbc", ".nbi")
"""Names of numba's files end so: what was compiled, and the index, which is unpacked last, or it
would name what is not there.
"""


class ZippedKernels(ZipCacheLocator):
    """numba asks it where the kernels of a zip are kept (its setting NUMBA_CACHE_LOCATOR_CLASSES)."""

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
    """Inside, numba keeps a function of a zip as above, unless somebody told it otherwise."""
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
    """Where kernels of this zip are kept, with what it brings; None where nothing can be written."""
    name = f"kernels-{hashlib.sha256(zipped.read_bytes()).hexdigest()[:16]}"
    for root in _roots(zipped):
        with contextlib.suppress(OSError):
            _unpack(zipped, root / name)
            return root / name
    return None


def _roots(zipped: Path) -> Iterator[Path]:
    """numba's own setting (NUMBA_CACHE_DIR), the user's cache, and beside the zip, which lies in a
    folder of the executor.
    """
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
    """What numba keeps of these compiled functions, for this Python, as far as it was compiled or
    loaded by now.
    """
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
