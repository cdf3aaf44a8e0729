"""What DAGs know of a conf file and of the toolkit's environment, and what they keep of a document:
values, without an Airflow.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etl.airflow.pipeline import (
    DELTA,
    RANGES_KEPT,
    Named,
    Toolkit,
    ask,
    brief_of,
    conf_files,
    missing,
    named_by,
    pipeline_of,
    told_of,
    toolkit_from_environment,
)
from etl.errors import CorruptData, SettingsError
from etl.settings.load import load_settings

ROOT = Path(__file__).parents[3]
CONF = """
pipeline: clicks
group: g
zookeeper: {connect: "${env:NOT_SET_HERE}"}
source: {topics: [clicks], assume_cluster_id: c%s}
table: {path: "%s"}
"""


def conf_of(folder: Path, table: str = "../warehouse/clicks", more: str = "") -> Path:
    path = folder / "clicks.yaml"
    path.write_text(CONF % (more, table))
    return path


@pytest.mark.parametrize("conf", sorted((ROOT / "conf").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_dag_knows_the_same_of_a_conf_file_as_the_command_that_it_starts(conf: Path) -> None:
    pipeline, settings = pipeline_of(conf), load_settings(conf)
    assert (pipeline.name, pipeline.group, pipeline.is_physical) == (
        settings.pipeline,
        settings.group.id,
        settings.source.is_physical,
    )
    assert pipeline.table == Path(settings.table.path).as_uri() and pipeline.conf == str(conf)


def test_what_parses_dag_files_needs_no_secret_of_a_conf(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="NOT_SET_HERE"):
        load_settings(conf_of(tmp_path))
    assert pipeline_of(conf_of(tmp_path)).name == "clicks"


@pytest.mark.parametrize(
    ("table", "uri"),
    [
        ("s3://bucket/clicks", "s3://bucket/clicks"),
        ("s3a://bucket/clicks", "s3://bucket/clicks"),
        ("s3://bucket/clicks/", "s3://bucket/clicks"),
        ("abfs://rows@acme.dfs.core.windows.net/t", "abfss://rows@acme.dfs.core.windows.net/t"),
        ("file:///data/clicks", "file:///data/clicks"),
        ("/data/a b", "file:///data/a%20b"),
    ],
)
def test_a_table_is_known_by_one_uri_however_its_path_is_written(
    tmp_path: Path, table: str, uri: str
) -> None:
    assert pipeline_of(conf_of(tmp_path, table)).table == uri


def test_a_table_that_a_catalog_names_is_known_by_that_name_for_a_dag_asks_no_catalog(
    tmp_path: Path,
) -> None:
    path = conf_of(tmp_path)
    path.write_text(
        path.read_text().replace('path: "../warehouse/clicks"', "name: main.lake.clicks")
    )
    assert pipeline_of(path).table == "delta-table:///main.lake.clicks"


@pytest.mark.parametrize(
    "table", ["tables/clicks", "${env:ETL_TEST_FOLDER}/clicks", "${env:ETL_TEST_FOLDER}"]
)
def test_a_table_that_a_file_of_defaults_names_is_seen_from_its_folder_as_by_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setenv("ETL_TEST_FOLDER", "tables/clicks")
    monkeypatch.setenv("NOT_SET_HERE", "127.0.0.1:2181")
    (tmp_path / "shared").mkdir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "shared" / "all.yaml").write_text('table: {path: "%s"}\n' % table)
    path = conf_of(tmp_path / "conf")
    path.write_text(
        path.read_text().replace(
            'table: {path: "../warehouse/clicks"}', "defaults: ../shared/all.yaml"
        )
    )
    assert pipeline_of(path).table == Path(load_settings(path).table.path).as_uri()
    assert pipeline_of(path).table.startswith((tmp_path / "shared" / "tables").as_uri())


def test_a_conf_that_is_not_there_or_lacks_a_key_is_told_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no-such.yaml"):
        pipeline_of(tmp_path / "no-such.yaml")
    for text in ("pipeline: clicks", "[]", "pipeline: {a: b}"):
        (tmp_path / "half.yaml").write_text(text)
        with pytest.raises(SettingsError, match="lacks a key") as found:
            pipeline_of(tmp_path / "half.yaml")
        assert found.value.where["path"] == tmp_path / "half.yaml" and "key" in found.value.where
    (tmp_path / "half.yaml").write_text("a: [")
    with pytest.raises(SettingsError, match="cannot be read"):
        pipeline_of(tmp_path / "half.yaml")


def test_a_folder_without_a_conf_file_is_told_instead_of_giving_no_dag(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no conf file"):
        conf_files(tmp_path)
    assert conf_files(conf_of(tmp_path).parent) == [tmp_path / "clicks.yaml"]


def test_the_toolkit_is_where_the_environment_says_and_else_in_airflows_own() -> None:
    assert toolkit_from_environment({}) == Toolkit(
        sys.executable, "jobs", "spark_default", {"packages": DELTA}
    )
    found = toolkit_from_environment(
        {
            "ETL_PYTHON": "/opt/etl/bin/python",
            "ETL_SPARK_CONNECTION": "yarn",
            "ETL_SPARK_SUBMIT": '{"jars": "a.jar"}',
        },
        jobs="/srv/jobs",
    )
    assert (found.spark_submit, found.job("ingest")) == (
        "/opt/etl/bin/spark-submit",
        "/srv/jobs/ingest.py",
    )
    assert (found.connection, found.submit, found.environment) == (
        "yarn",
        {"jars": "a.jar"},
        {"PYSPARK_PYTHON": "/opt/etl/bin/python"},
    )


@pytest.mark.parametrize("text", ["[]", "packages", "{"])
def test_submit_arguments_that_are_no_object_are_told_with_their_form(text: str) -> None:
    with pytest.raises(SettingsError, match="ETL_SPARK_SUBMIT") as found:
        toolkit_from_environment({"ETL_SPARK_SUBMIT": text})
    assert DELTA in found.value.action


def test_the_jars_that_a_job_is_submitted_with_are_those_of_the_installed_delta() -> None:
    from importlib.metadata import version

    spark = ".".join(version("pyspark").split(".")[:2])
    assert DELTA == f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}"
    assert DELTA in (ROOT / "README.md").read_text()


def test_a_command_is_asked_in_the_toolkits_environment_and_its_document_comes_back(
    tmp_path: Path,
) -> None:
    toolkit = Toolkit(variables={"PYTHONPATH": str(ROOT)})
    code, document = ask(toolkit, ["plan", str(tmp_path / "no-such.yaml"), "--json"])
    assert code == 2 and document is not None and document["error"] == "SettingsError"
    assert ask(toolkit, ["--version"])[1] is None, "no document"


def test_an_environment_that_is_not_on_this_worker_is_told_by_its_name() -> None:
    with pytest.raises(SettingsError, match="/no/such/python") as found:
        ask(Toolkit("/no/such/python"), ["--version"])
    assert "ETL_PYTHON" in found.value.action


def bare(folder: Path, body: str = "") -> Toolkit:
    """An interpreter that has nothing but what Python itself brings."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\n{body}\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    return Toolkit(str(python))


def test_a_worker_without_the_package_is_told_with_the_command_that_installs_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(SettingsError, match="No module named 'etl'") as found:
        ask(bare(tmp_path), ["complete", "clicks.yaml", "--json"])
    assert (
        f"{tmp_path}/python -m pip install offset-range-etl" in found.value.action
        and "ETL_PYTHON" in found.value.action
    )


def test_a_worker_without_one_of_the_packages_requirements_is_told_the_name_of_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(SettingsError, match="No module named 'typer'"):
        ask(
            bare(tmp_path, f'export PYTHONPATH={ROOT}\nexec {sys.executable} -S "$@"'),
            ["complete", "clicks.yaml", "--json"],
        )


def test_what_a_command_said_before_it_ended_without_a_document_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    toolkit = bare(
        tmp_path,
        f'export PYTHONPATH={ROOT}\n[ $1 = -c ] || {{ echo of no use >&2; exit 1; }}\nexec {sys.executable} "$@"',
    )
    assert ask(toolkit, ["complete"]) == (1, None)
    assert "of no use" in caplog.text


def test_little_of_a_document_is_kept_whatever_its_size() -> None:
    ranges = [{"topic": "clicks", "partition": n} for n in range(5000)]
    document = {
        "run_id": "r",
        "records": 7,
        "versions": {"a": 1},
        "error": None,
        "outcomes": [{"outcome": "ingested", "message": "plan 3: ..."}],
        "plan": {"number": 3, "ranges": ranges, "positions": ranges},
        "text": "x" * 100_000,
    }
    kept = brief_of(document)
    assert kept["records"] == 7 and kept["outcomes"] == ["plan 3: ..."] and "versions" not in kept
    assert kept["plan"] == {"number": 3, "ranges_in_all": 5000, "ranges": ranges[:RANGES_KEPT]}
    assert len(str(kept)) < 20_000
    assert brief_of(None) == {}


def test_an_error_is_told_as_the_command_tells_it() -> None:
    error = CorruptData("a bad CRC", topic="clicks", partition=3, action="the broker's disk")
    assert told_of(error.as_json()) == f"CorruptData: {error}"
    assert "no document" in told_of(None) and "no document" in told_of({"state": "running"})


@dataclass
class Task:
    task_id: str
    pool: str = "default_pool"
    _conn_id: str | None = None


def test_pools_and_connections_that_tasks_name_and_nobody_made_are_told_with_the_command_that_makes_them() -> (
    None
):
    dags: Mapping[str, Any] = {
        "a": SimpleNamespace(tasks=[Task("load", "clicks", "spark_default"), Task("wait")]),
        "b": SimpleNamespace(tasks=[Task("load", "clicks")]),
    }
    named = named_by(dags)
    assert missing(named, {"default_pool", "clicks"}, {"spark_default"}) == []
    lost = missing(named, {"default_pool"}, set())
    assert lost == [
        Named("connection", "spark_default", "a", "load"),
        Named("pool", "clicks", "a", "load"),
        Named("pool", "clicks", "b", "load"),
    ]
    assert "airflow connections add spark_default" in str(
        lost[0]
    ) and "airflow pools set clicks 1" in str(lost[1])
    assert "task load of DAG a" in str(lost[1])


def test_what_a_dag_file_imports_of_the_package_is_light() -> None:
    heavy = (
        "pyspark",
        "py4j",
        "numba",
        "numpy",
        "pandas",
        "pyarrow",
        "kafka",
        "kazoo",
        "deltalake",
        "typer",
    )
    program = (
        "import sys; import etl.airflow.pipeline, etl.airflow.pipeline, etl.airflow.pipeline, etl.airflow.pipeline\n"
        "import etl.decide.run_requests\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
