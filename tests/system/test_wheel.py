"""The wheel and the zip of `etl package`, where there is no clone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable
from kafka import KafkaProducer

from etl import __version__
from etl.settings.schema import conf_schema
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.java_and_jars import cache_folder, delta_jars, java_environment
from etl.testkit.spark_launch import StandaloneSpark, submit_environment
from tests.conftest import TopicFactory
from tests.pages import command_lines

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
RECORDS = 40


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that git has."""
    source = tmp_path_factory.mktemp("source")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in done.stdout.split("\0"):
        if name and (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    return source


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from that copy as for a release; the clone stays unchanged."""
    folder = tmp_path_factory.mktemp("wheel")
    ran([*PIP, "wheel", "--no-deps", "--wheel-dir", str(folder), str(source)], folder)
    [built] = folder.glob("*.whl")
    return built


def ran(command: Sequence[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """In that folder, and without what points Python at the clone."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYSPARK_PYTHON")
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done


def test_the_wheel_has_the_package_and_nothing_else_of_the_repository(wheel: Path) -> None:
    assert wheel.name == f"offset_range_etl-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        metadata = opened.read(f"offset_range_etl-{__version__}.dist-info/METADATA").decode()
    modules = {
        str(path.relative_to(ROOT))
        for ending in ("py", "json", "jar", "java", "html", "css", "sha256")
        for path in (ROOT / "etl").rglob(f"*.{ending}")
    }
    assert {name for name in names if ".dist-info/" not in name} == modules | {"etl/py.typed"}
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)
    assert (
        "Requires-Dist: pyspark==4.2.0" in metadata and "Requires-Python: <3.14,>=3.11" in metadata
    )


def test_the_package_of_the_wheel_answers_where_there_is_no_clone(
    wheel: Path, python_without_the_package: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path / "installed")
    etl = [str(python_without_the_package), "-m", "etl"]
    elsewhere = {"PYTHONPATH": str(tmp_path / "installed")}
    place = ran([etl[0], "-c", "import etl; print(etl.__file__)"], tmp_path, **elsewhere).stdout
    assert place.startswith(str(tmp_path / "installed"))
    assert "doctor" in ran([*etl, "--help"], tmp_path, **elsewhere).stdout
    assert json.loads(ran([*etl, "conf", "schema"], tmp_path, **elsewhere).stdout) == conf_schema()


def send(cluster: EmbeddedCluster, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap)
    for n in range(RECORDS):
        producer.send(topic, value=b"%d" % n, partition=n % 2)
    producer.close()


@pytest.fixture
def filled(cluster: EmbeddedCluster, topic: TopicFactory) -> str:
    name = topic(2)
    send(cluster, name)
    return name


@dataclass(frozen=True)
class Place:
    """The installation page's /opt/venv, and the working directory of its commands."""

    folder: Path
    source: Path

    @property
    def programs(self) -> Path:
        return self.folder / "venv" / "bin"

    def type(self, text: str) -> None:
        """A line of a page, in the shell."""
        for page, ours in (
            ("/opt/venv", str(self.folder / "venv")),
            ("python3.11 ", f"{sys.executable} "),
            ("--wheel-dir dist .", f"--wheel-dir dist {self.source}"),
        ):
            text = text.replace(page, ours)
        path = f"{self.programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ran(
            ["bash", "-c", text],
            self.folder,
            PATH=path,
            PIP_QUIET="1",
            PIP_DISABLE_PIP_VERSION_CHECK="1",
            **CACHE,
        )


def of_the_page() -> list[str]:
    """The commands of docs/guides/schedule.md, "Install"."""
    return command_lines(ROOT / "docs/guides/schedule.md", "Install")


@pytest.fixture(scope="module")
def installed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A new environment with the wheel alone, as the page makes it."""
    place = Place(tmp_path_factory.mktemp("installed"), source)
    for text in of_the_page():
        if not text.startswith("etl "):
            place.type(text)
    return place


def count_rows(folder: Path) -> int:
    table = DeltaTable(str(folder / "warehouse" / "clicks"))
    return int(table.to_pyarrow_table(columns=["offset"]).num_rows)


CACHE = {"XDG_CACHE_HOME": str(cache_folder().parent)}


def first_conf(etl: str, cluster: EmbeddedCluster, topic: str, folder: Path) -> None:
    servers = ["--zookeeper", cluster.zookeeper_connect, "--topic", topic]
    places = ["--table", "warehouse/clicks", "--output", "clicks.yaml"]
    ran([etl, "init", *servers, *places], folder, **CACHE)


@pytest.mark.long
def test_a_new_environment_with_nothing_but_the_wheel_goes_the_whole_way(
    installed: Place, cluster: EmbeddedCluster, filled: str
) -> None:
    """docs/guides/schedule.md: Delta's jars, a first conf, the doctor, a run, its proof."""
    installed.type("/opt/venv/bin/python -m etl.testkit")
    for text in of_the_page():
        if text.startswith("etl "):
            ours = text.replace("127.0.0.1:2181/kafka", cluster.zookeeper_connect).replace(
                "--topic clicks", f"--topic {filled}"
            )
            installed.type(
                f"{ours} --set pipeline=clicks --set group=etl-{filled}"
                if text.startswith("etl init")
                else ours
            )
    etl, folder = str(installed.programs / "etl"), installed.folder
    verified = ran([etl, "verify", "conf/clicks.yaml", "--json"], folder, **CACHE)
    assert json.loads(verified.stdout)["passed"] is True
    assert count_rows(folder) == RECORDS


@pytest.mark.long
def test_the_environment_is_packed_and_reads_on_bare_workers_by_the_printed_command(
    installed: Place, cluster: EmbeddedCluster, filled: str, tmp_path: Path
) -> None:
    etl = str(installed.programs / "etl")
    path = f"{installed.programs}{os.pathsep}{os.environ['PATH']}"
    installed.type("pip install 'offset-range-etl[package]'")  # as in docs/guides/schedule.md
    first_conf(etl, cluster, filled, tmp_path)
    packed = ran([etl, "package", "--include-dependencies", "--json"], tmp_path, **CACHE)
    made, name = json.loads(packed.stdout), f"offset-range-etl-{__version__}-environment.tar.gz"
    assert made["environment"] == str(tmp_path / "dist" / name)
    with StandaloneSpark(tmp_path / "standalone") as spark:
        command = made["command"].replace("MASTER", spark.master_url).replace("CONF", "clicks.yaml")
        where = {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PATH": path,
            "JAVA_HOME": java_environment()["JAVA_HOME"],
        }
        ran(["bash", "-c", command], tmp_path, **CACHE, **where)
        unpacked = list((tmp_path / "standalone" / "worker-0" / "work").glob("*/*/environment"))
        assert unpacked, "the worker unpacked it in a folder of its own"
    assert count_rows(tmp_path) == RECORDS


CONF = """
pipeline: clicks
group: etl-{topic}
zookeeper: {{connect: "{zookeeper}"}}
source: {{topics: ["{topic}"]}}
table: {{path: "../warehouse/clicks"}}
report: {{path: "../reports"}}
"""


@pytest.mark.long
def test_the_zip_loads_a_table_by_the_commands_of_the_page_and_its_workers_compile_no_kernel(
    cluster: EmbeddedCluster,
    topic: TopicFactory,
    python_without_the_package: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Delta's jars are named by place, as `etl package` prints them where they are."""
    name, here, jars = topic(2), tmp_path / "here", ",".join(map(str, delta_jars()))
    page = ROOT / "docs" / "guides" / "schedule.md"
    (here / "conf").mkdir(parents=True)
    (here / "conf" / "clicks.yaml").write_text(
        CONF.format(topic=name, zookeeper=cluster.zookeeper_connect)
    )
    package, submit = command_lines(page, "Clusters")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**submit_environment(), "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # of the workers, which keep kernels there
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with StandaloneSpark(tmp_path / "standalone") as spark:
        for text in (package, submit):
            send(cluster, name)
            for written, ours in (
                ("/opt/venv/bin/python", str(python_without_the_package)),
                ("--packages io.delta:delta-spark_4.2_2.13:4.4.0", f"--jars {jars}"),
                ("spark://HOST:7077", spark.master_url),
            ):
                text = text.replace(written, ours)
            ran(["bash", "-c", text], here, **environment)
    assert count_rows(here) == 2 * RECORDS
    kept = [path.name for path in (tmp_path / "home").rglob("*.nbc")]
    assert kept and all(name.endswith(".1.nbc") for name in kept), "other kernels than the zip's"
