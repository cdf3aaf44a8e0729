"""One pipeline under test with its table in a store."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from tests.stores.servers import StoreServer
from tests.system.driving import Pipeline
from tests.traffic.rows import Row, hash_of


@dataclass
class StoredPipeline(Pipeline):
    """`store` has the table; the variables with its secrets must be set where commands run."""

    store: StoreServer = field(kw_only=True)

    @property
    def url(self) -> str:
        return self.store.url(self.group)

    @property
    def conf(self) -> Any:
        table = {"path": self.url, "store": self.store.settings(), **self.settings.get("table", {})}
        before, self.settings = self.settings, {**self.settings, "table": table}
        try:
            return super().conf
        finally:
            self.settings = before

    def under(self, name: str, **changes: Any) -> Any:
        made = super().under(name, **changes)
        made.settings = {**made.settings, "table": {"path": self.url}}
        return made

    def table_files(self) -> list[str]:
        found = self._files().get_file_info(
            fs.FileSelector("", recursive=True, allow_not_found=True)
        )
        return [
            one.path
            for one in found
            if one.type == fs.FileType.File and not one.base_name.startswith(".")
        ]

    def table_file(self, path: str) -> bytes:
        try:
            with self._files().open_input_stream(path) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return b""

    def _files(self) -> fs.FileSystem:
        return fs.PyFileSystem(DeltaStorageHandler(self.url, self.store.options()))

    def opened(self, path: str | None = None) -> DeltaTable:
        return DeltaTable(path or self.url, storage_options=self.store.options())

    def in_table(self) -> Counter[Row]:
        place = self.traffic.place
        rows = self.opened().to_pyarrow_table(columns=[*place, "value"])
        return Counter(
            (*(row[column] for column in place), hash_of(row["value"])) for row in rows.to_pylist()
        )
