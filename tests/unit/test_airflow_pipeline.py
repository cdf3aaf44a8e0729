"""What DAGs know of a conf and keep of a document, without an Airflow."""

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
    EtlEnvironment,
    Reference,
    conf_files,
    delta_jars,
    describe_error,
    describe_unresolved,
    missing_references,
    page_url,
    read_pipeline,
    references_of,
    run_command,
    table_name,
    xcom_summary,
)
from etl.errors import CorruptData, SettingsError
from etl.settings.load import load_settings

ROOT = Path(__file__).parents[2]
CONF = """
pipeline: clicks
group: g
zookeeper: {connect: "${env:NOT_SET_HERE}"}
source: {topics: [clicks], assume_cluster_id: c}
table: {path: "%s"}
"""


def conf_of(folder: Path, table: str = "../warehouse/clicks") -> Path:
    path = folder / "clicks.yaml"
    path.write_text(CONF % table)
    return path


@pytest.mark.parametrize(
    "conf", sorted((ROOT / "conf" / "examples").glob("*.yaml")), ids=lambda path: path.stem
)
def test_a_dag_knows_the_same_of_a_conf_file_as_the_command_that_it_starts(conf: Path) -> None:
    pipeline, settings = read_pipeline(conf), load_settings(conf)
    assert (pipeline.name, pipeline.group, pipeline.finds_times) == (
        settings.pipeline,
        settings.group.id,
        settings.source.finds_times,
    )
    assert pipeline.table == Path(settings.table.path).as_uri() and pipeline.conf == str(conf)


@pytest.mark.parametrize(
    ("source", "finds_times"),
    [
        ("broker_type: jafka", False),
        ("broker_version: '0.8.2'", False),
        ("broker_version: '0.10'", False),
        ("broker_version: '0.10.1'", True),
        ("broker_version: '3.9'", True),
        ("isolation_level: read_committed", True),
        ("broker_type: '${env:TYPE_HERE}'", False),
        ("broker_version: '${env:VERSION_HERE}'", False),
    ],
)
def test_runs_of_a_dag_end_at_a_time_if_the_brokers_find_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, finds_times: bool
) -> None:
    path = conf_of(tmp_path)
    path.write_text(path.read_text().replace("{topics: [clicks]", "{topics: [clicks], " + source))
    if "${env:" in source:
        assert read_pipeline(path).finds_times, "a variable that is missing here counts as null"
    monkeypatch.setenv("TYPE_HERE", "jafka")
    monkeypatch.setenv("VERSION_HERE", "0.9")
    assert read_pipeline(path).finds_times is finds_times
    monkeypatch.setenv("NOT_SET_HERE", "localhost:2181")
    assert load_settings(path).source.finds_times is finds_times


def test_what_parses_dag_files_needs_no_secret_of_a_conf(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="NOT_SET_HERE"):
        load_settings(conf_of(tmp_path))
    assert read_pipeline(conf_of(tmp_path)).name == "clicks"


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
    assert read_pipeline(conf_of(tmp_path, table)).table == uri


def with_table_line(path: Path, line: str) -> Path:
    """The conf with another line in place of that of its table."""
    path.write_text(path.read_text().replace('table: {path: "../warehouse/clicks"}', line))
    return path


def test_a_table_in_a_catalog_is_an_asset_by_its_name_since_a_dag_uses_no_catalog(
    tmp_path: Path,
) -> None:
    path = with_table_line(conf_of(tmp_path), "table: {name: main.lake.clicks}")
    assert read_pipeline(path).table == "delta-table:///main.lake.clicks"


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
    path = with_table_line(conf_of(tmp_path / "conf"), "defaults: ../shared/all.yaml")
    assert read_pipeline(path).table == Path(load_settings(path).table.path).as_uri()
    assert read_pipeline(path).table.startswith((tmp_path / "shared" / "tables").as_uri())


def test_a_missing_conf_or_key_is_reported_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no-such.yaml"):
        read_pipeline(tmp_path / "no-such.yaml")
    for text in ("pipeline: clicks", "[]", "pipeline: {a: b}"):
        (tmp_path / "half.yaml").write_text(text)
        with pytest.raises(SettingsError, match="lacks a key") as found:
            read_pipeline(tmp_path / "half.yaml")
        assert found.value.where["path"] == tmp_path / "half.yaml" and "key" in found.value.where
    (tmp_path / "half.yaml").write_text("a: [")
    with pytest.raises(SettingsError, match="cannot be read"):
        read_pipeline(tmp_path / "half.yaml")


def test_a_folder_without_a_conf_file_is_reported_instead_of_returning_no_dag(
    tmp_path: Path,
) -> None:
    with pytest.raises(SettingsError, match="no conf file"):
        conf_files(tmp_path)
    assert conf_files(conf_of(tmp_path).parent) == [tmp_path / "clicks.yaml"]


def test_the_environment_comes_from_variables_or_is_airflows_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ETL_PYTHON", "ETL_JOB", "ETL_CONN_ID", "ETL_SUBMIT_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    assert EtlEnvironment() == EtlEnvironment(
        sys.executable, "jobs/etl_job.py", "spark_default", {}
    )
    monkeypatch.setenv("ETL_PYTHON", "/opt/etl/bin/python")
    monkeypatch.setenv("ETL_CONN_ID", "yarn")
    monkeypatch.setenv("ETL_SUBMIT_OPTIONS", '{"jars": "a.jar"}')
    found = EtlEnvironment(job="/srv/jobs/etl_job.py")
    assert found.spark_submit == "/opt/etl/bin/spark-submit"
    assert (found.job_path, found.conn_id) == ("/srv/jobs/etl_job.py", "yarn")
    assert found.submit_options == {"jars": "a.jar"}
    assert found.variables == {"PYSPARK_PYTHON": "/opt/etl/bin/python"}


@pytest.mark.parametrize("text", ["[]", "packages", "{"])
def test_submit_options_that_are_not_an_object_are_rejected_with_their_form(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETL_SUBMIT_OPTIONS", text)
    with pytest.raises(SettingsError, match="ETL_SUBMIT_OPTIONS") as found:
        EtlEnvironment()
    assert DELTA in found.value.action


def test_the_jars_that_a_job_is_submitted_with_are_those_of_the_installed_delta() -> None:
    from importlib.metadata import version

    spark = ".".join(version("pyspark").split(".")[:2])
    assert DELTA == f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}"
    assert DELTA in (ROOT / "docs/guides/schedule.md").read_text()


def test_a_command_runs_in_the_environment_and_its_document_is_returned(tmp_path: Path) -> None:
    environment = EtlEnvironment(env_vars={"PYTHONPATH": str(ROOT)})
    code, document = run_command(environment, ["run", str(tmp_path / "no-such.yaml"), "--json"])
    assert code == 2 and document is not None and document["error"] == "SettingsError"
    assert run_command(environment, ["--version"])[1] is None, "no document"


def test_a_missing_environment_is_reported_with_its_path() -> None:
    with pytest.raises(SettingsError, match="/no/such/python") as found:
        run_command(EtlEnvironment("/no/such/python"), ["--version"])
    assert "ETL_PYTHON" in found.value.action


READY = ["topics", "ready-to-load", "clicks.yaml", "--json"]


def bare(folder: Path, body: str = "") -> EtlEnvironment:
    """An interpreter that has nothing but what Python itself brings."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\n{body}\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    return EtlEnvironment(str(python))


def test_a_worker_without_the_package_is_reported_with_the_command_that_installs_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(SettingsError, match="No module named 'etl'") as found:
        run_command(bare(tmp_path), READY)
    assert f"{tmp_path}/python -m pip install offset-range-etl" in found.value.action
    assert "ETL_PYTHON" in found.value.action


def test_a_worker_without_a_requirement_of_the_package_is_reported_with_its_name(
    tmp_path: Path,
) -> None:
    python = bare(tmp_path, f'export PYTHONPATH={ROOT}\nexec {sys.executable} -S "$@"')
    with pytest.raises(SettingsError, match="No module named 'typer'"):
        run_command(python, READY)


def test_the_output_of_a_command_without_a_document_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environment = bare(
        tmp_path,
        f"export PYTHONPATH={ROOT}\n[ $1 = -c ] || {{ echo of no use >&2; exit 1; }}\nexec "
        f'{sys.executable} "$@"',
    )
    assert run_command(environment, ["lag"]) == (1, None)
    assert "of no use" in caplog.text


def test_the_xcom_summary_of_a_document_is_small() -> None:
    ranges = [{"topic": "clicks", "partition": n} for n in range(5000)]
    kept = xcom_summary(
        {
            "run_id": "r",
            "records_read": 7,
            "versions": {"a": 1},
            "error": None,
            "outcomes": [{"outcome": "ingested", "message": "plan 3: ..."}],
            "plan": {"number": 3, "ranges": ranges, "positions": ranges},
            "text": "x" * 100_000,
        }
    )
    assert (kept["records_read"], kept["outcomes"]) == (7, ["plan 3: ..."])
    assert kept["plan"] == {"number": 3, "total_ranges": 5000, "ranges": ranges[:RANGES_KEPT]}
    assert "versions" not in kept and len(str(kept)) < 20_000
    assert xcom_summary(None) == {}


def test_an_error_is_described_as_by_the_command() -> None:
    error = CorruptData("a bad CRC", topic="clicks", partition=3, action="Check the broker's disk")
    assert describe_error(error.as_json()) == f"CorruptData: {error}"
    for without_error in (None, {"state": "running"}):
        assert "no document" in describe_error(without_error)
    found = {"found": "10.0.0.1 does not answer", "to_do": "Check it", "exit_code": 6}
    checks = [{"name": "brokers", **found}, {"name": "Java", "exit_code": 0}]
    assert describe_error({"checks": checks}) == "brokers: 10.0.0.1 does not answer. Check it"


def test_packages_that_maven_does_not_resolve_are_named_from_the_output_of_spark_submit() -> None:
    line = 'Exception in thread "main" java.lang.RuntimeException: '
    output = f"{line}[unresolved dependency: io.delta#delta-spark_4.2_2.13;9.9.9: not found]"
    described = describe_unresolved(output)
    assert described is not None and "io.delta#delta-spark_4.2_2.13;9.9.9: not found." in described
    assert describe_unresolved("Exception in thread main") is None


def test_delta_jars_come_from_the_cache_of_the_environment_with_spark(tmp_path: Path) -> None:
    cache = tmp_path / "offset-range-etl" / "jars" / "delta-4.4.0"
    cache.mkdir(parents=True)
    (cache / "delta.jar").write_bytes(b"jar")
    (cache / "complete.txt").write_text("delta.jar 3\n")
    variables = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)}
    found = delta_jars(EtlEnvironment(env_vars=variables))
    assert found == (0, {"jars": [str(cache / "delta.jar")]})
    assert delta_jars(bare(tmp_path))[1] is None, "the package comes with the job: --py-files"


def test_a_run_is_linked_where_its_page_is_and_a_table_is_named_by_its_path(
    tmp_path: Path,
) -> None:
    pipeline = read_pipeline(conf_of(tmp_path))
    served = EtlEnvironment(reports_url="https://reports/clicks/")
    assert page_url(served, pipeline, "r-1") == "https://reports/clicks/g+clicks-r-1.html"
    assert page_url(served, pipeline, None) == page_url(EtlEnvironment(), pipeline, "r-1") == ""
    uris = ("file:///a/b%20c", "s3://b/c", "delta-table:///main.lake.clicks")
    assert [table_name(uri) for uri in uris] == ["/a/b c", "s3://b/c", "main.lake.clicks"]


@dataclass
class Task:
    task_id: str
    pool: str = "default_pool"
    _conn_id: str | None = None


def test_missing_pools_and_connections_are_reported_with_the_command_that_creates_them() -> None:
    dags: Mapping[str, Any] = {
        "a": SimpleNamespace(tasks=[Task("load", "clicks", "spark_default"), Task("wait")]),
        "b": SimpleNamespace(tasks=[Task("load", "clicks")]),
    }
    named = references_of(dags)
    assert missing_references(named, {"default_pool", "clicks"}, {"spark_default"}) == []
    connection, pool, of_b = missing_references(named, {"default_pool"}, set())
    assert connection == Reference("connection", "spark_default", "a", "load")
    assert pool == Reference("pool", "clicks", "a", "load")
    assert of_b == Reference("pool", "clicks", "b", "load")
    assert "airflow connections add spark_default" in str(connection)
    assert "airflow pools set clicks 1" in str(pool) and "task load of DAG a" in str(pool)


HEAVY = "pyspark py4j numba numpy pandas pyarrow kafka kazoo deltalake typer"


def test_what_a_dag_file_imports_of_the_package_is_light() -> None:
    program = (
        "import sys; import etl.airflow.pipeline\n"
        "import etl.decide.run_requests\n"
        f"print([name for name in {HEAVY.split()!r} if name in sys.modules])"
    )
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
