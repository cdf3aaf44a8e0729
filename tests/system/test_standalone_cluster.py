"""`spark-submit` to a standalone cluster with Python and the libraries, but without this package:
`etl package` provides it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from etl.commands.package import package
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import wait_until
from etl.testkit.spark_launch import (
    SHORT_RUN,
    StandaloneSpark,
    jar_settings,
    submit_command,
    submit_environment,
)
from tests.chaos import holding
from tests.chaos.holding import Hold
from tests.conftest import TopicFactory

ROOT = Path(__file__).parents[2]
QUICK = jar_settings("local", SHORT_RUN)
"""Delta's jars and the archive of classes by their place on this one machine, for a driver's JVM;
the executors get the same.
"""
PARTITIONS, RECORDS = 4, 2_000
CONF = """
pipeline: clicks
group: etl-{topic}
zookeeper: {{connect: "{zookeeper}"}}
source: {{topics: ["{topic}"]}}
table: {{path: "{folder}/table", partition_by: [event_date]}}
limits: {{target_task_bytes: 1024}}
report: {{path: "{folder}/reports"}}
{more}
"""


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workers' home folder, new: whatever they keep is made by this very job."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def standalone(
    tmp_path_factory: pytest.TempPathFactory, home: Path, request: pytest.FixtureRequest
) -> Iterator[StandaloneSpark]:
    """The requested number of workers, each with one core."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.delenv("XDG_CACHE_HOME", raising=False)
        with StandaloneSpark(
            tmp_path_factory.mktemp("standalone"), hosts=request.param, cores=1
        ) as running:
            yield running


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as `--py-files` takes it."""
    return package(tmp_path_factory.mktemp("package")).zip


@pytest.fixture
def filled(cluster: EmbeddedCluster, topic: TopicFactory) -> str:
    from kafka import KafkaProducer

    name = topic(partitions=PARTITIONS, config={"retention.ms": "-1"})
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, compression_type="gzip")
    for n in range(RECORDS):
        producer.send(name, value=str(n).encode(), partition=n % PARTITIONS)
    producer.close()
    return name


@pytest.mark.parametrize("standalone", [1], indirect=True)
def test_a_worker_that_has_the_zip_alone_loads_each_record_once_and_compiles_no_kernel(
    cluster: EmbeddedCluster,
    filled: str,
    standalone: StandaloneSpark,
    python_without_the_package: Path,
    packed: Path,
    home: Path,
    tmp_path: Path,
) -> None:
    job = submit(
        standalone,
        conf_in(tmp_path, cluster, filled),
        python_without_the_package,
        "--py-files",
        str(packed),
    )
    is_loaded(job, tmp_path, home)


@pytest.mark.long
@pytest.mark.parametrize("standalone", [2], indirect=True)
def test_a_worker_that_dies_while_it_fetches_leaves_each_record_in_the_table_once(
    cluster: EmbeddedCluster,
    filled: str,
    standalone: StandaloneSpark,
    python_without_the_package: Path,
    packed: Path,
    home: Path,
    tmp_path: Path,
) -> None:
    """Each worker holds a task with rows in its hands; one of them is killed with all its
    processes, and the other one reads on.
    """
    shutil.copy(
        holding.__file__, tmp_path / "holding.py"
    )  # the driver's alone: what it gives travels by value
    conf = conf_in(tmp_path, cluster, filled, transform="holding:held")
    hold = Hold(tmp_path / "marks", from_task=0)
    job = submit(
        standalone,
        conf,
        python_without_the_package,
        "--py-files",
        str(packed),
        cores=2,
        **hold.variables(),
    )
    try:
        assert wait_until(lambda: job.poll() is not None or len(hold.workers()) == 2, 240), (
            "each worker has a task"
        )
        assert job.poll() is None, job.communicate()
        at_work = {standalone.worker_of(pid) for pid in hold.workers()}
        assert at_work == {"worker-0", "worker-1"}, "each in a folder of its own"
        standalone.kill_worker(1)
        hold.release()
        is_loaded(job, tmp_path, home)
    finally:
        job.kill()


def is_loaded(job: subprocess.Popen[str], folder: Path, home: Path) -> None:
    """It ends with each record in the table, by kernels that came with the zip."""
    result, reported = job.communicate(timeout=240)
    assert job.returncode == 0, reported[-4000:]
    document = json.loads(result)
    assert (document["records_read"], document["outcomes"] != []) == (RECORDS, True)
    assert rows_in(folder / "table") == expected()
    kept = sorted(path.name for path in (home / ".cache" / "offset-range-etl").rglob("*.nbc"))
    assert kept and len(kept) == len(set(kept)), (
        "one folder: the zip lies at another place in each executor"
    )
    assert not [name for name in kept if not name.endswith(".1.nbc")], (
        "nothing is compiled in addition to the zip's own kernels"
    )


@pytest.mark.long
@pytest.mark.parametrize("standalone", [1], indirect=True)
def test_a_cluster_without_the_package_reports_the_command_that_creates_it_and_loads_nothing(
    cluster: EmbeddedCluster,
    filled: str,
    standalone: StandaloneSpark,
    python_without_the_package: Path,
    tmp_path: Path,
) -> None:
    job = submit(
        standalone,
        conf_in(tmp_path, cluster, filled),
        python_without_the_package,
        PYTHONPATH=str(ROOT),
    )
    result, reported = job.communicate(timeout=240)
    assert job.returncode == 2, reported[-4000:]
    document, _ = json.JSONDecoder().raw_decode(
        result
    )  # spark-submit copies standard error to standard output
    assert (
        "does not have the module etl" in document["message"]
        and "`etl package`" in document["action"]
    )
    assert "a bug" not in reported
    assert not list((tmp_path / "table").rglob("*.parquet"))


def conf_in(
    folder: Path, cluster: EmbeddedCluster, topic: str, transform: str | None = None
) -> Path:
    conf, more = folder / "clicks.yaml", f"transform: {transform}" if transform else ""
    conf.write_text(
        CONF.format(zookeeper=cluster.zookeeper_connect, topic=topic, folder=folder, more=more)
    )
    return conf


def submit(
    spark: StandaloneSpark,
    conf: Path,
    python: Path,
    *words: str,
    cores: int = 1,
    **variables: str,
) -> subprocess.Popen[str]:
    """Start the job on so many cores from a folder that does not hold the package; its standard
    output is one JSON document.
    """
    settings: Mapping[str, str] = {
        "spark.pyspark.python": str(python),
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.cores.max": str(cores),
        **QUICK,
        **{key.replace("driver", "executor"): value for key, value in QUICK.items()},
    }
    reported = [text for key, value in settings.items() for text in ("--conf", f"{key}={value}")]
    command = submit_command(
        "--master", spark.master_url, *words, *reported, str(ROOT / "jobs" / "etl_job.py"), "run"
    )
    environment = {
        k: v for k, v in submit_environment().items() if k not in ("PYTHONPATH", "PYSPARK_PYTHON")
    }
    return subprocess.Popen(
        [*command, str(conf), "--json"],
        cwd=conf.parent,
        env={**environment, **variables},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def rows_in(table: Path) -> list[tuple[int, int, int]]:
    """By delta-rs, which wrote none of them."""
    rows: list[dict[str, Any]] = (
        DeltaTable(str(table))
        .to_pyarrow_table(columns=["partition", "offset", "value"])
        .to_pylist()
    )
    return sorted((row["partition"], row["offset"], int(row["value"])) for row in rows)


def expected() -> list[tuple[int, int, int]]:
    return [
        (p, o, o * PARTITIONS + p) for p in range(PARTITIONS) for o in range(RECORDS // PARTITIONS)
    ]
