"""The folder of a table that files are put into and taken from, on this machine or in a store: what
writers of data files need of it.

A store's is delta-rs's own (`deltalake.fs`), so that every path works that a table may have, with
the credentials of its log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from etl.edges.delta.stores import options_of
from etl.errors import TableUnreachable
from etl.settings.choices import folder_of


class TableFolder(Protocol):
    """Files by their paths below the folder. All raise OSError where it refuses."""

    def create(self, path: str) -> pa.NativeFile:
        """A new file to write; it is there when it is closed. Raises TableUnreachable where the
        folder itself is gone.
        """

    def remove(self, path: str) -> None:
        """A file that is there, or begun."""

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Of each file, in bytes; None where there is none."""

    def named(self, pattern: str) -> list[str]:
        """The paths of all files whose last part fits the pattern, however deep they lie."""


def table_folder(root: str) -> TableFolder:
    """The folder at a table's path."""
    return LocalFolder(root) if folder_of(root) is not None else StoreFolder(root)


class LocalFolder:
    """A folder of this machine; see `TableFolder`."""

    def __init__(self, root: str) -> None:
        self._root = root

    def create(self, path: str) -> pa.NativeFile:
        """See `TableFolder`."""
        root = Path(self._root)
        whole = root / path
        if not root.is_dir():  # whoever begins to write makes it: made again it would be a folder of files that no log stands beside
            check = "that it is the same folder on every executor's host, and who removed it; the next run appends the same plan again"
            raise TableUnreachable("the table's folder is not there", path=self._root, check=check)
        whole.parent.mkdir(parents=True, exist_ok=True)
        return pa.OSFile(str(whole), "wb")

    def remove(self, path: str) -> None:
        """See `TableFolder`."""
        Path(self._root, path).unlink()

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """See `TableFolder`."""
        return [
            whole.stat().st_size if (whole := Path(self._root, path)).is_file() else None
            for path in paths
        ]

    def named(self, pattern: str) -> list[str]:
        """See `TableFolder`."""
        return [str(path.relative_to(self._root)) for path in Path(self._root).rglob(pattern)]


class StoreFolder:
    """A folder of a store; see `TableFolder`. A file that was begun and not closed is none: its
    parts stay until the store drops them.
    """

    def __init__(self, root: str) -> None:
        from deltalake._internal import (
            DeltaFileSystemHandler,
        )  # what `deltalake.fs` wraps: its own streams take no buffers of pyarrow

        self._files: Any = DeltaFileSystemHandler(root, options_of(root))

    def create(self, path: str) -> pa.NativeFile:
        """See `TableFolder`."""
        return pa.PythonFile(_Upload(self._files.open_output_stream(path)), "w")

    def remove(self, path: str) -> None:
        """See `TableFolder`."""
        with contextlib.suppress(FileNotFoundError):
            self._files.delete_file(path)

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """See `TableFolder`."""
        return [found.size for found in self._files.get_file_info(list(paths))]

    def named(self, pattern: str) -> list[str]:
        """See `TableFolder`. A store has no folders: all of the table is listed."""
        found = self._files.get_file_info_selector("", allow_not_found=True, recursive=True)
        return [file.path for file in found if fnmatchcase(file.base_name, pattern)]


class _Upload:
    """delta-rs takes bytes alone, and pyarrow's writers have buffers."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def closed(self) -> bool:
        """As file objects say it."""
        return bool(self._stream.closed)

    def write(self, data: Any) -> int:
        """All of it."""
        return int(self._stream.write(bytes(data)))

    def tell(self) -> int:
        """Bytes so far."""
        return int(self._stream.tell())

    def flush(self) -> None:
        """What is held back goes with the next part."""

    def close(self) -> None:
        """The file is there."""
        self._stream.close()
