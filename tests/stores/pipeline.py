"""One pipeline under test whose table lies in a store."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from deltalake import DeltaTable

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

    def opened(self, path: str | None = None) -> DeltaTable:
        return DeltaTable(path or self.url, storage_options=self.store.options())

    def in_table(self) -> Counter[Row]:
        place = self.traffic.place
        rows = self.opened().to_pyarrow_table(columns=[*place, "value"])
        return Counter((*(row[column] for column in place), hash_of(row["value"])) for row in rows.to_pylist())
