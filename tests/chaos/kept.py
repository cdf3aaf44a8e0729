"""Servers of a row's own that its cases share: they are started for the first of them and stay
until another row wants some.

Three brokers take a quarter of a minute to start and more than a gigabyte of memory, so no case
gets them for itself, and two rows do not have theirs at the same time. Who breaks one of them
starts it again.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, TypeVar

_Servers = TypeVar("_Servers", bound=AbstractContextManager[Any])
_kept: dict[str, tuple[AbstractContextManager[Any], ExitStack]] = {}


def kept(name: str, make: Callable[[Path], _Servers]) -> _Servers:
    """The running servers of this name, made by `make` if needed; any others are stopped."""
    if name not in _kept:
        _end()
        ends = ExitStack()
        folder = Path(tempfile.mkdtemp(prefix=f"etl-chaos-{name}-"))
        ends.callback(shutil.rmtree, folder, ignore_errors=True)
        made = make(folder / "servers")
        ends.enter_context(made)
        _kept[name] = made, ends
    servers: _Servers = _kept[name][0]  # type: ignore[assignment]  # the name stands for the kind
    return servers


@atexit.register
def _end() -> None:
    while _kept:
        _, (_, ends) = _kept.popitem()
        ends.close()
