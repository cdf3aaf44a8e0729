"""The zip of docs/guides/schedule.md, "Clusters", on a standalone cluster without this package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from kafka import KafkaProducer

from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.java_and_jars import delta_jars
from etl.testkit.spark_launch import StandaloneSpark, submit_environment
from tests.conftest import TopicFactory
from tests.pages import command_lines

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "schedule.md"
RECORDS = 40
CONF = """
pipeline: clicks
group: etl-{topic}
zookeeper: {{connect: "{zookeeper}"}}
source: {{topics: ["{topic}"]}}
table: {{path: "../warehouse/clicks"}}
report: {{path: "../reports"}}
"""


def produce(cluster: EmbeddedCluster, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
    for n in range(RECORDS):
        producer.send(topic, value=b"%d" % n, partition=n % 2)
    producer.close()


@pytest.mark.long
def test_the_zip_loads_a_table_by_the_commands_of_the_page_and_its_workers_compile_no_kernel(
    cluster: EmbeddedCluster,
    topic: TopicFactory,
    python_without_the_package: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Delta's jars are named by their place, as the command that `etl package` prints has them on a
    machine where they are.
    """
    name, here, jars = topic(2), tmp_path / "here", ",".join(map(str, delta_jars()))
    (here / "conf").mkdir(parents=True)
    (here / "conf" / "clicks.yaml").write_text(
        CONF.format(topic=name, zookeeper=cluster.zookeeper_connect)
    )
    package, submit = command_lines(PAGE, "Clusters")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**submit_environment(), "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # of the workers, which keep kernels there
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with StandaloneSpark(tmp_path / "standalone") as spark:
        for text in (package, submit):
            produce(cluster, name)
            for page, ours in (
                ("/opt/venv/bin/python", str(python_without_the_package)),
                ("--packages io.delta:delta-spark_4.2_2.13:4.4.0", f"--jars {jars}"),
                ("spark://HOST:7077", spark.master_url),
            ):
                text = text.replace(page, ours)
            typed = subprocess.run(
                ["bash", "-c", text],
                cwd=here,
                env=environment,
                capture_output=True,
                text=True,
                timeout=600,
            )
            assert typed.returncode == 0, f"{text}\n{typed.stdout[-2000:]}{typed.stderr[-3000:]}"
    assert (
        DeltaTable(str(here / "warehouse" / "clicks")).to_pyarrow_table(columns=["offset"]).num_rows
        == 2 * RECORDS
    )
    kept = [path.name for path in (tmp_path / "home").rglob("*.nbc")]
    assert kept and all(name.endswith(".1.nbc") for name in kept), "other kernels than the zip's"
