"""The first steps of a new user: `etl init`, `etl doctor`, `etl run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from kafka import KafkaProducer
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from etl.commands import init as first_conf
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.report.metrics import PREFIX
from etl.settings.schema import SCHEMA_FILE, conf_schema
from etl.testkit.cluster import EmbeddedCluster
from tests.command_result import CommandResult, refused, run_etl
from tests.conftest import TopicFactory

RECORDS = 40


@pytest.fixture
def filled(cluster: EmbeddedCluster, topic: TopicFactory) -> str:
    name = topic(4)
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
    for n in range(RECORDS):
        producer.send(name, value=b"%d" % n, partition=n % 4)
    producer.close()
    return name


def init(folder: Path, *words: str) -> CommandResult:
    places = ("--table", str(folder / "warehouse" / "clicks"))
    conf = ("--output", str(folder / "conf" / "clicks.yaml"))
    return run_etl("init", *words, *places, *conf, "--json")


def loaded_by(conf: Path, table: Path, *words: str) -> CommandResult:
    """The run of a conf that has nothing wrong with it, which loads all records."""
    words = (*words, "--set", f"report.path={conf.parent / 'reports'}")
    checked = run_etl("doctor", str(conf), *words, "--json")
    assert checked.code == 0, checked.err + checked.out
    ran = run_etl("run", str(conf), *words, "--json")
    assert ran.code == 0, ran.err + ran.out
    assert DeltaTable(str(table)).to_pyarrow_table(columns=["offset"]).num_rows == RECORDS
    return ran


def in_logs(text: str, run_id: str) -> None:
    """Standard error under `--log-format json`, as objects."""
    lines = [json.loads(line) for line in text.splitlines()]
    assert (lines[0]["message"], lines[-1]["message"]) == ("Run started", "Run ended: done")
    assert lines[-1]["records_read"] == RECORDS
    assert {(line["pipeline"], line["run_id"], line["level"]) for line in lines} == {
        ("clicks", run_id, "info")
    }
    assert lines[-1]["plan"] == 1 and lines[0]["plan"] is None


def in_metrics(file: Path) -> None:
    """What Prometheus reads of it, by its own parser."""
    families = text_string_to_metric_families(file.read_text())
    samples = [sample for family in families for sample in family.samples]
    found = {sample.name.removeprefix(PREFIX): sample for sample in samples}
    assert (found["run_rows"].value, found["run_success"].value) == (RECORDS, 1)
    assert (found["lag_records"].value, found["run_offsets_committed"].value) == (0, 4)
    assert found["run_rows"].labels["pipeline"] == "clicks"


def test_a_first_conf_is_written_by_asking_passes_the_doctor_and_loads_every_record(
    cluster: EmbeddedCluster, filled: str, spark: SparkSession, tmp_path: Path
) -> None:
    result = init(tmp_path, "--zookeeper", cluster.zookeeper_connect, "--topic", filled)
    assert result.code == 0, result.err
    why = {one["key"]: one["reason"] for one in result.document["chosen"]}
    assert f"{filled} (4 partitions)" in why["source.topics"]
    assert f"{RECORDS} offsets" in why["source.starting_offsets"]
    assert json.loads((tmp_path / "conf" / SCHEMA_FILE).read_text()) == conf_schema()
    conf = tmp_path / "conf" / "clicks.yaml"
    before = conf.read_text()
    again = init(tmp_path, "--zookeeper", cluster.zookeeper_connect, "--topic", filled)
    refused(again, 2, "The file exists, and is not overwritten")
    assert conf.read_text() == before
    metrics = tmp_path / "metrics"
    options = ("--set", f"metrics.path={metrics}", "--log-format", "json")
    ran = loaded_by(conf, tmp_path / "warehouse" / "clicks", *options)
    [report] = (tmp_path / "conf" / "reports").glob("*.json")
    run_id = json.loads(report.read_text())["run_id"]
    in_logs(ran.err, run_id)
    in_metrics(metrics / "etl-clicks+clicks.prom")
    page = report.with_suffix(".html").read_text()
    assert run_id in page and filled in page and "<script" not in page


def test_names_that_the_servers_do_not_know_are_rejected_and_nothing_is_written(
    cluster: EmbeddedCluster, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        first_conf, "ZooKeeper", lambda connect, **_: ZooKeeper(connect, connect_timeout_s=2)
    )  # and not ten seconds
    servers, _, chroot = cluster.zookeeper_connect.partition("/")
    here = ("--zookeeper", cluster.zookeeper_connect)
    wrong: list[tuple[tuple[str, ...], int, str]] = [
        (here, 2, "topic"),
        ((*here, "--topic", f"{filled}x"), 2, filled),
        (("--zookeeper", f"{servers}/nowhere", "--topic", filled), 2, f"/{chroot}"),
        ((*here, "--bootstrap-servers", "127.0.0.1:1", "--topic", filled), 6, "127.0.0.1:1"),
        (("--zookeeper", "127.0.0.1:1", "--topic", filled), 6, "127.0.0.1:1"),
    ]
    for words, code, message in wrong:
        refused(init(tmp_path, *words), code, message)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "warehouse" / "clicks").mkdir(parents=True)
    (tmp_path / "warehouse" / "clicks" / "notes.txt").write_text("mine")
    refused(init(tmp_path, *here, "--topic", filled), 2, "warehouse/clicks")
    assert not (tmp_path / "conf").exists()
