"""Runs with a table in a store: moto and Azurite, with `long` also versitygw and HDFS."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command_result import CommandResult, refused
from tests.stores.pipeline import StoredPipeline
from tests.stores.servers import SECRET_VARIABLE, STORES, Azurite, StoreServer, VersityGateway
from tests.stores.way import FaultyWay
from tests.system.driving import broken_off_before, watched_run

pytestmark = pytest.mark.without_spark


def each(*in_the_gate: str) -> pytest.MarkDecorator:
    """Each of the stores; those that are not named at length alone."""
    lacking = {"azurite": ("npm", "npm brings Azurite"), "versitygw": ("go", "Go builds versitygw")}
    marks = {name: [] if name in in_the_gate else [pytest.mark.networks] for name in STORES}
    for name, (program, why) in lacking.items():
        marks[name].append(pytest.mark.skipif(shutil.which(program) is None, reason=why))
    return pytest.mark.parametrize(
        "store", [pytest.param(name, marks=marks[name]) for name in STORES], indirect=True
    )


@pytest.fixture(scope="module")
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StoreServer]:
    with STORES[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def pipeline(store: StoreServer, make_stored: Callable[..., StoredPipeline]) -> StoredPipeline:
    """A pipeline of two partitions with its table there."""
    return make_stored(store)


@each("moto")
def test_a_run_loads_its_records_once_the_next_one_finds_nothing_new_and_no_secret_stays(
    pipeline: StoredPipeline,
) -> None:
    pipeline.produce(200, partitions=2)
    assert pipeline.ran().document["plan"]["writer"].endswith("without Spark")
    assert pipeline.is_whole()
    cost, outcomes = watched_run(pipeline)
    assert outcomes == ["up_to_date"]
    assert (cost["code"], cost["started"], cost["loaded"]) == (0, [], [])
    result = pipeline.ran()
    files = [file for file in pipeline.folder.rglob("*") if file.is_file()]
    texts = [result.out, result.err, *(file.read_text("utf-8", "replace") for file in files)]
    for secret in pipeline.store.secrets.values():
        assert not any(secret in text for text in texts)


@each("azurite")
@pytest.mark.parametrize("verb", ["append", pytest.param("record", marks=pytest.mark.long)])
def test_a_run_that_ends_at_any_verb_is_finished_by_the_next_one(
    pipeline: StoredPipeline, verb: str
) -> None:
    pipeline.produce(100, partitions=2)
    broken_off_before(verb, pipeline)  # there is no table yet, and files of tasks may be
    pipeline.ran()
    assert pipeline.is_whole()


@each("moto")
def test_an_error_of_the_store_has_its_exit_code_and_its_key(
    pipeline: StoredPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = pipeline.store.settings()
    if not given:
        pytest.skip("HDFS takes no settings of ours")
    dead = given["endpoint"].replace(str(pipeline.store.port), "1")
    pipeline.settings = {"table": {"store": {**given, "endpoint": dead}}}
    refused(pipeline.run(), 7, "The table cannot be read", "Connection refused")
    pipeline.settings = {"table": {"path": pipeline.url.replace("://lake", "://nowhere")}}
    refused(pipeline.run(), 2, "has no such", "table.path")
    pipeline.settings = {}
    monkeypatch.delenv(SECRET_VARIABLE)
    refused(pipeline.run(), 2, SECRET_VARIABLE, "table.store.")


@pytest.fixture
def careless(pipeline: StoredPipeline, tmp_path: Path) -> Iterator[FaultyWay]:
    """A proxy to the store that removes If-None-Match."""
    if isinstance(pipeline.store, (Azurite, VersityGateway)):
        pytest.skip("The store checks the signature of a request, which covers If-None-Match")
    with FaultyWay(pipeline.store.port, tmp_path / "way", without="If-None-Match") as way:
        yield way
    through(None, pipeline)


def through(way: FaultyWay | None, pipeline: StoredPipeline) -> StoredPipeline:
    """The same pipeline, its conf with the endpoint of that way, or with the store's own."""
    pipeline.store.reached_by = pipeline.store.port if way is None else way.port
    return pipeline


def refused_by_name(result: CommandResult, way: FaultyWay) -> None:
    danger = "two writers could replace each other's commit"
    page = "docs/guides/networks-and-stores.md"
    refused(result, 7, "The store ignores If-None-Match", danger, str(way.port), page)


def line_of_doctor(pipeline: StoredPipeline) -> tuple[int, dict[str, Any]]:
    """The doctor's exit code, and its line of the table's folder."""
    result = pipeline.door("doctor")
    [line] = [line for line in result.document["checks"] if line["name"] == "table folder"]
    return result.code, line


@each("moto")
def test_a_table_is_not_begun_on_a_store_that_ignores_if_none_match(
    pipeline: StoredPipeline, careless: FaultyWay
) -> None:
    if not pipeline.store.settings():
        pytest.skip("HDFS has no such header")
    pipeline.produce(50, partitions=2)
    through(careless, pipeline)
    refused_by_name(pipeline.run(), careless)
    assert pipeline.table_files() == []
    code, line = line_of_doctor(pipeline)
    assert (code, line["error"], line["verdict"]) == (7, "NoExclusiveCreate", "failed")

    through(None, pipeline).ran()
    assert pipeline.is_whole(), "nothing was lost"
    code, line = line_of_doctor(pipeline)
    assert (code, line["verdict"], line["error"], line["exit_code"]) == (0, "ok", None, 0)
    assert not [file for file in pipeline.table_files() if ".etl_probe_" in file]
