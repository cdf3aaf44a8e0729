"""docs/CLUSTER.md, "What brings the package" and "Standalone": the zip is made and both commands
load by it, word for word.
"""

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
PAGE = ROOT / "docs" / "CLUSTER.md"
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
def test_the_page_is_typed_from_the_zip_to_a_table_that_a_cluster_wrote(
    cluster: EmbeddedCluster, topic: TopicFactory, python_without_the_package: Path, tmp_path: Path
) -> None:
    """Delta's jars are named by their place, as the command that `etl package` prints has them on a
    machine where they are.
    """
    name, here, jars = topic(2), tmp_path / "here", ",".join(map(str, delta_jars()))
    (here / "conf").mkdir(parents=True)
    (here / "jobs").symlink_to(ROOT / "jobs")
    (here / "conf" / "clicks.yaml").write_text(
        CONF.format(topic=name, zookeeper=cluster.zookeeper_connect)
    )
    package, by_job, by_file = (
        next(line for line in command_lines(PAGE) if all(word in line for word in words))
        for words in (
            ["etl package"],
            ["--master MASTER", "dist/etl_job.py"],
            ["spark://HOST:7077", "jobs/etl_job.py"],
        )
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**submit_environment(), "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    with StandaloneSpark(tmp_path / "standalone") as spark:
        for text in (package, by_job, by_file):
            produce(cluster, name)
            for page, ours in (
                ("/opt/venv/bin/python", str(python_without_the_package)),
                ("run CONF", "run conf/clicks.yaml"),
                ("--packages io.delta:delta-spark_4.2_2.13:4.4.0", f"--jars {jars}"),
                ("--master MASTER", f"--master {spark.master_url}"),
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
        == 3 * RECORDS
    )
