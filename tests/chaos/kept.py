"""A cluster of a row's own that its cases share: it is started for the first of them and stays until another row wants one.

Three brokers take a quarter of a minute to start and more than a gigabyte of memory, so no case gets them for itself, and two rows
do not have theirs at the same time. Who breaks a server of such a cluster starts it again.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from etl.embedded.cluster import Cluster

_Kind = TypeVar("_Kind", bound=Cluster)
_kept: dict[str, tuple[Cluster, ExitStack]] = {}


def kept(name: str, make: Callable[[Path], _Kind]) -> _Kind:
    """The running cluster of this name, made in a folder by `make` when it is not there; any other one is stopped."""
    if name not in _kept:
        _end()
        ends = ExitStack()
        folder = Path(tempfile.mkdtemp(prefix=f"etl-chaos-{name}-"))
        ends.callback(shutil.rmtree, folder, ignore_errors=True)
        _kept[name] = ends.enter_context(make(folder / "cluster")), ends
    cluster: _Kind = _kept[name][0]  # type: ignore[assignment]  # the name stands for the kind
    return cluster


@atexit.register
def _end() -> None:
    while _kept:
        _, (_, ends) = _kept.popitem()
        ends.close()
