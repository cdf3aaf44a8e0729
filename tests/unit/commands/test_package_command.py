"""`etl package`: the zip with compiled kernels, and the command that submits it."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import etl
from etl.commands.package import Package, compiled_kernels, write_zip
from etl.records.kernel_cache import KERNELS
from tests.command_result import run_etl
from tests.reports import document_of, loaded

ROOT = Path(etl.__file__).parents[1]


def ours() -> int:
    """How many kernels the package has: tests may have some of their own in this process."""
    return sum(kernel.py_func.__module__.startswith("etl.") for kernel in KERNELS)


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


DECODE = """
from etl.commands.package import compiled_kernels
from etl.records.kernel_cache import KERNELS
kept = compiled_kernels()
print(len(KERNELS), sum(len(kernel.stats.cache_misses) for kernel in KERNELS), sorted({str(path.parent) for path in kept}))
"""


def only_with(zipped: Path, folder: Path, *words: str, **environment: str) -> str:
    """The output of a Python that has the libraries and the zip, and no other package."""
    paths = os.pathsep.join((str(zipped), sysconfig.get_path("purelib")))
    own = {"XDG_CACHE_HOME", "NUMBA_CACHE_DIR"} if environment else set[str]()
    inherited = {name: value for name, value in os.environ.items() if name not in own}
    return subprocess.run(
        [sys.executable, "-S", *words],
        cwd=folder,
        env={**inherited, **environment, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def decoded(zipped: Path, home: Path) -> list[str]:
    """How many kernels there are, how many were compiled, where they are kept."""
    return only_with(zipped, home.parent, "-c", DECODE, HOME=str(home)).strip().split(" ", 2)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Copies of numba's files: another process that compiles a kernel replaces them."""
    folder = tmp_path_factory.mktemp("kernels")
    return [Path(shutil.copy2(path, folder)) for path in compiled_kernels()]


@pytest.fixture(scope="module")
def zipped(tmp_path_factory: pytest.TempPathFactory, kernels: list[Path]) -> Path:
    return write_zip(tmp_path_factory.mktemp("packed") / "package.zip", kernels)


def test_the_zip_holds_the_package_and_of_each_kernel_what_numba_compiled(zipped: Path) -> None:
    with zipfile.ZipFile(zipped) as opened:
        names = set(opened.namelist())
    there = {
        str(path.relative_to(ROOT))
        for ending in ("py", "json", "html", "css")
        for path in (ROOT / "etl").rglob(f"*.{ending}")
    }
    assert {name for name in names if name.endswith((".py", ".json", ".html", ".css"))} == there
    assert len([name for name in names if name.endswith(".nbi")]) == ours()
    assert len([name for name in names if name.endswith(".nbc")]) >= ours()


def test_a_driver_that_has_only_the_zip_writes_the_page_of_a_run(
    zipped: Path, tmp_path: Path
) -> None:
    document = tmp_path / "report.json"
    document.write_text(json.dumps(document_of(loaded(2))))
    program = (
        "import json, sys; from etl.report import page; "
        "print(page.__file__, page.page_of(json.load(open(sys.argv[1]))))"
    )
    output = only_with(zipped, tmp_path, "-c", program, str(document))
    assert output.startswith(str(zipped))
    assert "<h1>clicks</h1>" in output and "--paper: " in output


def test_the_same_package_is_the_same_zip_to_the_byte(
    zipped: Path, kernels: list[Path], tmp_path: Path
) -> None:
    again = write_zip(tmp_path / "again.zip", kernels)
    # Digests: pytest describes the difference of a megabyte of bytes for an hour.
    assert digest_of(again) == digest_of(zipped)


def test_a_worker_that_has_only_the_zip_compiles_no_kernel_wherever_it_lies(
    zipped: Path, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    elsewhere = tmp_path / "work" / "app-1" / "renamed.zip"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_bytes(zipped.read_bytes())
    kernels, compiled, where = decoded(zipped, tmp_path / "home")
    assert (int(kernels), int(compiled)) == (ours(), 0)
    assert decoded(elsewhere, tmp_path / "home") == [kernels, compiled, where], (
        "a copy in another folder is recognized by its content"
    )
    assert str(tmp_path / "home" / ".cache" / "offset-range-etl" / "kernels-") in where


def test_a_worker_without_a_writable_home_keeps_kernels_next_to_the_zip(
    zipped: Path, tmp_path: Path
) -> None:
    (tmp_path / "home").write_text("a file where the home should be")
    own = tmp_path / "work" / "package.zip"
    own.parent.mkdir()
    own.write_bytes(zipped.read_bytes())
    _, compiled, where = decoded(own, tmp_path / "home")
    assert int(compiled) == 0 and str(tmp_path / "work" / "kernels-") in where


def test_the_command_creates_the_zip_and_the_job_and_prints_the_submit_command(
    tmp_path: Path,
) -> None:
    result = run_etl("package", "--output", str(tmp_path), "--json")
    assert result.code == 0, result.err
    made = result.document
    with zipfile.ZipFile(made["zip"]) as opened:
        assert "etl/cli/__init__.py" in opened.namelist()
    words = shlex.split(made["command"])
    assert words[words.index("--py-files") + 1] == made["zip"]
    assert words[-3:] == [made["job"], "run", "CONF"]
    reported = only_with(made["zip"], tmp_path, made["job"], "--version")
    assert reported == f"offset-range-etl {etl.__version__}\n"
    assert run_etl("package", "--output", str(tmp_path)).out.count(made["command"]) == 1


def test_the_packed_file_is_named_as_the_executors_see_it() -> None:
    zipped, job = Path("/d/p.zip"), Path("/d/etl_job.py")
    jars = (Path("/j/a.jar"), Path("/j/b.jar"))
    assert Package(zipped, job, 10, jars, Path("/d/env.tar.gz")).command == (
        f"mkdir -p environment && tar -xzf /d/env.tar.gz -C environment && "
        f"PYSPARK_DRIVER_PYTHON={sys.executable} "
        "PYSPARK_PYTHON=./environment/bin/python spark-submit --master MASTER --archives "
        "/d/env.tar.gz#environment --jars /j/a.jar,/j/b.jar /d/etl_job.py run CONF"
    )
    assert "--packages io.delta:delta-spark" in Package(zipped, job, 0, ()).command


@pytest.mark.parametrize("environment", [None, Path("/my d/env.tar.gz")])
def test_the_command_quotes_paths_for_a_shell(
    environment: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/my d/$python")
    zipped, job, jar = (Path("/my d") / name for name in ("p.zip", "etl_job.py", "a.jar"))
    command = Package(zipped, job, 0, (jar,), environment).command
    if environment is None:
        expected = {"PYSPARK_PYTHON=/my d/$python", str(zipped)}
    else:
        expected = {"PYSPARK_DRIVER_PYTHON=/my d/$python", f"{environment}#environment"}
    assert {str(jar), str(job), *expected} <= set(shlex.split(command))
    assert command.replace("'/my d/$python'", "").count("$") == 0


def test_a_clone_next_to_its_environment_is_not_packed_as_one_and_the_error_has_an_action(
    tmp_path: Path,
) -> None:
    if Path(sys.prefix) in Path(etl.__file__).parents:
        pytest.skip("the tests run on an installed package")
    result = run_etl("package", "--output", str(tmp_path), "--include-dependencies", "--json")
    assert result.code == 2 and "etl.commands" not in result.err
    assert "pip install" in json.dumps(result.document)


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run_etl("package", "--output", str(tmp_path / "file" / "dist"), "--json")
    assert result.code == 2 and result.document["where"]["key"] == "--output"
