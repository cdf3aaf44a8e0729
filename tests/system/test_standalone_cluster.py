"""`spark-submit` to a standalone cluster whose Python has the libraries and not this package: it comes as a zip."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from etl.embedded.cluster import Cluster
from etl.embedded.jars import delta_jars
from etl.embedded.spark import StandaloneSpark, submit_command, submit_environment

ROOT = Path(__file__).parents[2]
PARTITIONS, RECORDS = 4, 2_000
CONF = """
version: 1
pipeline: clicks
group: etl-clicks
zookeeper: {{connect: "{zookeeper}"}}
source: {{topics: {{allow: ["{topic}"]}}}}
table: {{path: "{folder}/table", partition_by: [event_date]}}
limits: {{target_task_bytes: 1024}}
report: {{path: "{folder}/reports"}}
"""


@pytest.fixture(scope="module")
def jars() -> str:
    return ",".join(map(str, delta_jars()))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workers' home folder, new: whatever they cache is made by this very job."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory, home: Path, jars: str) -> Iterator[StandaloneSpark]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.delenv("XDG_CACHE_HOME", raising=False)
        with StandaloneSpark(tmp_path_factory.mktemp("standalone")) as running:
            yield running


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as `--py-files` takes it."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "etl", folder / "tree" / "etl", ignore=shutil.ignore_patterns("__pycache__"))
    return Path(shutil.make_archive(str(folder / "offset-range-etl"), "zip", folder / "tree"))


@pytest.fixture(scope="module")
def filled(cluster: Cluster, topic: Any) -> str:
    from kafka import KafkaProducer

    name: str = topic(partitions=PARTITIONS, config={"retention.ms": "-1"})
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, compression_type="gzip")
    for n in range(RECORDS):
        producer.send(name, value=str(n).encode(), partition=n % PARTITIONS)
    producer.close()
    return name


def test_a_job_reads_a_topic_into_delta_where_only_the_zip_brings_the_package(
    cluster: Cluster, filled: str, standalone: StandaloneSpark, python_without_the_package: Path, package: Path, jars: str, home: Path,
    tmp_path: Path,
) -> None:
    python = str(python_without_the_package)
    alone = subprocess.run([python, "-c", "import numba, pyarrow, pyspark, etl"], cwd=tmp_path, capture_output=True, text=True)
    assert "No module named 'etl'" in alone.stderr

    conf = tmp_path / "clicks.yaml"
    conf.write_text(CONF.format(zookeeper=cluster.zookeeper_connect, topic=filled, folder=tmp_path))
    settings = {
        "spark.pyspark.python": python, "spark.executor.memory": "512m", "spark.executor.cores": "2", "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    }
    said = _submit(standalone.master_url, package, jars, settings, conf)
    assert said["outcomes"], said
    rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table(columns=["partition", "offset", "value"]).to_pylist()
    assert sorted((r["partition"], r["offset"], int(r["value"])) for r in rows) == [
        (p, o, o * PARTITIONS + p) for p in range(PARTITIONS) for o in range(RECORDS // PARTITIONS)]
    assert list((home / ".cache" / "numba").rglob("*.nbi")), "the executors kept what numba compiled, though it came from a zip"

    again = _submit(standalone.master_url, package, jars, settings, conf)
    assert again["outcomes"] != said["outcomes"]
    assert DeltaTable(str(tmp_path / "table")).version() == 0


def _submit(master: str, package: Path, jars: str, settings: Mapping[str, str], conf: Path) -> dict[str, Any]:
    """Run the job from a folder that does not hold the package; its standard output is one JSON document."""
    told = [text for key, value in settings.items() for text in ("--conf", f"{key}={value}")]
    command = submit_command("--master", master, "--py-files", str(package), "--jars", jars, *told)
    environment = {k: v for k, v in submit_environment().items() if k not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    done = subprocess.run(
        [*command, str(ROOT / "jobs" / "ingest.py"), str(conf), "--json"],
        cwd=conf.parent, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    document: dict[str, Any] = json.loads(done.stdout)
    return document
