"""Runs whose table lies in a store, on moto (S3) and Azurite, at length also on versitygw and HDFS.

Rows are there once whatever ends a run, no JVM is started, and no secret is anywhere.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.said import refused
from tests.stores.pipeline import StoredPipeline
from tests.stores.servers import SECRET_VARIABLE, STORES, StoreServer
from tests.system.driving import WITHOUT_SPARK, broken_off_before
from tests.system.watching import watched_run

pytestmark = pytest.mark.without_spark


def each(*in_the_gate: str) -> pytest.MarkDecorator:
    """Each of the stores; those that are not named at length alone."""
    lacking = {"azurite": ("npm", "npm brings Azurite"), "versitygw": ("go", "Go builds versitygw")}
    marks = {name: [] if name in in_the_gate else [pytest.mark.networks] for name in STORES}
    for name, (program, why) in lacking.items():
        marks[name].append(pytest.mark.skipif(shutil.which(program) is None, reason=why))
    return pytest.mark.parametrize("store", [pytest.param(name, marks=marks[name]) for name in STORES], indirect=True)


@pytest.fixture(scope="module")
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """Each of the stores."""
    with STORES[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def pipeline(
    store: StoreServer, cluster: object, topic: TopicFactory, unused_group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> StoredPipeline:
    """A pipeline of two partitions with its table there."""
    store.give_secrets(monkeypatch)
    return StoredPipeline(cluster, tmp_path, topic(2), unused_group, everywhere=WITHOUT_SPARK, store=store)  # type: ignore[arg-type]


@each("moto")
def test_a_run_loads_its_records_once_the_next_one_finds_nothing_new_and_no_secret_is_left_behind(pipeline: StoredPipeline) -> None:
    pipeline.produce(200, partitions=2)
    assert pipeline.ran().document["plan"]["writer"].endswith("without Spark")
    assert pipeline.is_whole()
    cost, outcomes = watched_run(pipeline)
    assert outcomes == ["nothing new"]
    assert (cost["code"], cost["started"], cost["loaded"]) == (0, [], [])
    said = pipeline.ran()
    told = [said.out, said.err, *(file.read_text("utf-8", "replace") for file in pipeline.folder.rglob("*") if file.is_file())]
    assert not [text for text in told for secret in pipeline.store.secrets.values() if secret in text]


@each("azurite")
@pytest.mark.parametrize("verb", ["append", pytest.param("record", marks=pytest.mark.long)])
def test_a_run_that_ends_at_any_verb_is_finished_by_the_next_one(pipeline: StoredPipeline, verb: str) -> None:
    pipeline.produce(100, partitions=2)
    broken_off_before(verb, pipeline)  # there is no table yet, and files of tasks may be
    pipeline.ran()
    assert pipeline.is_whole()


@pytest.mark.long
@each("moto", "azurite")
def test_files_that_no_commit_names_yet_make_the_place_nobody_elses(pipeline: StoredPipeline) -> None:
    from etl.edges.delta.path import announce_first_write, open_table
    from etl.edges.delta.table_folder import table_folder
    from etl.settings.loader import load_settings

    path = load_settings(pipeline.conf).table.path
    announce_first_write(path)
    with table_folder(path).create("part-0.parquet") as file:
        file.write(b"x" * 10)
    assert table_folder(path).sizes(["part-0.parquet", "none"]) == [10, None] and open_table(path) is None
    pipeline.produce(20, partitions=2)
    pipeline.ran()
    assert pipeline.is_whole()


@each("moto")
def test_what_is_wrong_with_the_store_has_its_exit_code_and_its_key(pipeline: StoredPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    given = pipeline.store.settings()
    if not given:
        pytest.skip("HDFS takes no settings of ours")
    dead = given["endpoint"].replace(str(pipeline.store.port), "1")
    pipeline.settings = {"table": {"store": {**given, "endpoint": dead}}}
    refused(pipeline.run(), 7, "the table cannot be read", "Connection refused")
    pipeline.settings = {"table": {"path": pipeline.url.replace("://lake", "://nowhere")}}
    refused(pipeline.run(), 2, "has no such", "table.path")
    pipeline.settings = {}
    monkeypatch.delenv(SECRET_VARIABLE)
    refused(pipeline.run(), 2, SECRET_VARIABLE, "table.store.")
