"""Tables in a store that a Hive metastore names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.networks.commands import command
from tests.networks.statements import NAMED, metastore_in, run_statements
from tests.stores.pipeline import StoredPipeline
from tests.stores.servers import SECRET_VARIABLE, Moto, StoreServer

pytestmark = [pytest.mark.networks]


@dataclass
class NamedInStore(StoredPipeline):
    """Its table is called `table`, in a schema with the group's directory."""

    @property
    def url(self) -> str:
        return self.store.url(f"{self.group}/table")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with Moto(tmp_path_factory.mktemp("moto")) as running:
        yield running


@pytest.fixture
def pipeline(store: StoreServer, make_stored: Callable[..., NamedInStore]) -> NamedInStore:
    """One of two partitions; the metastore is a folder of this machine."""
    made = make_stored(store, NamedInStore)
    made.settings |= {"table": dict(NAMED), "spark": metastore_in(made.folder)}
    made.produce(100, partitions=2)
    return made


@pytest.mark.parametrize("scheme", ["s3a", "s3"])
def test_a_first_run_has_the_catalog_make_a_table_in_the_store_that_its_schema_is_in(
    pipeline: NamedInStore, scheme: str
) -> None:
    at = f"{scheme}://lake/{pipeline.group}"
    run_statements(pipeline, f"CREATE SCHEMA lake LOCATION '{at}'", at=at)
    command(pipeline, "run")
    pipeline.produce(100, partitions=2)
    command(pipeline, "run")
    assert pipeline.is_whole()
    reported = [file for file in pipeline.folder.rglob("*") if file.is_file()]
    assert not [
        file
        for file in reported
        for secret in pipeline.store.secrets.values()
        if secret.encode() in file.read_bytes()
    ]


def test_a_session_reaches_the_warehouse_in_a_store_and_missing_keys_create_no_table(
    pipeline: NamedInStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = f"s3a://lake/{pipeline.group}"
    pipeline.settings["spark"]["spark.sql.warehouse.dir"] = at
    pipeline.settings["table"] |= {"name": "default.table"}
    run_statements(pipeline, "SHOW TABLES", at=at)
    with monkeypatch.context() as lacking:
        lacking.delenv(SECRET_VARIABLE)
        assert SECRET_VARIABLE in command(pipeline, "run", code=2)
    assert "the first run makes it" in command(pipeline, "doctor")
    command(pipeline, "run")
    assert pipeline.is_whole()
