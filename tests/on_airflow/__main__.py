"""`python -m tests.on_airflow [--airflow 3.3] [--make] [PYTEST ARGUMENTS]`: the tests of this
folder, in environments of Airflow's own.

Each has the requirements of the extra `airflow` at the versions of its constraints file, and not
this package: its source tree is on the path, and of its requirements only those that DAG files
need. Spark, Delta and the embedded brokers stay in the environment that runs this. The environments
are in the cache folder, made once for each content of those files.
"""

from __future__ import annotations

import argparse
import configparser
import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from etl.testkit.java_and_jars import alone, cache_folder, java_environment

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
VERSIONS = sorted(
    (path.stem.removeprefix("constraints-") for path in HERE.glob("constraints-*.txt")),
    reverse=True,
)
NEEDED_BY_DAGS = ("pydantic", "PyYAML")


def requirements() -> list[str]:
    """The extra `airflow`, what DAG files need of the package's requirements, and pytest."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    extras, own = (
        settings["options.extras_require"],
        settings["options"]["install_requires"].split("\n"),
    )
    needed = [line for line in own if line.startswith(NEEDED_BY_DAGS)]
    return [
        *_lines(extras["airflow"]),
        *needed,
        *(line for line in _lines(extras["dev"]) if line.startswith("pytest>")),
    ]


def made(version: str) -> Path:
    """Return the interpreter of that version's environment; create a missing one."""
    constraints, wanted = HERE / f"constraints-{version}.txt", requirements()
    content = hashlib.sha256(
        "\n".join([sys.version, *wanted, constraints.read_text()]).encode()
    ).hexdigest()[:12]
    folder = cache_folder() / "airflow" / f"{version}-{content}"
    python, stamp = folder / "bin" / "python", folder / "installed"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(folder.with_name(f"{folder.name}.lock")):
        if not stamp.exists():
            print(
                f"installing Airflow {version} into {folder}: 700 MB, a minute or two the "
                f"first time",
                flush=True,
            )
            venv.create(folder, with_pip=True, clear=True)
            pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "install", "--constraint", str(constraints), *wanted], check=True)
            subprocess.run([*pip, "check"], check=True)
            stamp.touch()
    return python


def words_of_pytest(arguments: Sequence[str]) -> list[str]:
    """Of the tests of this folder, none of which needs what the others have as fixtures."""
    return ["pytest", "--confcutdir", str(HERE), "-p", "no:cacheprovider", str(HERE), *arguments]


def started(python: Path, *words: str, output: IO[str] | None = None) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        **java_environment(),
        "ETL_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.Popen(
        [str(python), "-m", *words],
        cwd=ROOT,
        env=environment,
        stdout=output,
        stderr=output,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> int:
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # both got it; that one ends what it has started
            continue


def tested(pythons: Mapping[str, Path], arguments: Sequence[str]) -> int:
    """The worst exit code of pytest on all versions, in parallel; output is in turn."""
    with ExitStack() as kept:
        outputs = {
            version: kept.enter_context(TemporaryFile("w+")) if len(pythons) > 1 else None
            for version in pythons
        }
        running = {
            version: started(python, *words_of_pytest(arguments), output=outputs[version])
            for version, python in pythons.items()
        }
        codes = list[int]()
        for version, process in running.items():
            print(f"on Airflow {version}", flush=True)
            codes.append(ended(process))
            if output := outputs[version]:
                output.seek(0)
                print(output.read(), flush=True)
    return max(codes)


def main() -> int:
    """Return 0 if the tests pass on each requested version."""
    asking = argparse.ArgumentParser(prog="python -m tests.on_airflow")
    asking.add_argument(
        "--airflow", choices=VERSIONS, action="append", help="this version; all by default"
    )
    asking.add_argument("--make", action="store_true", help="make the environments and run no test")
    asking.add_argument(
        "--demo", action="store_true", help="a whole Airflow until Ctrl-C, and no test"
    )
    request, arguments = asking.parse_known_args()
    pythons = {version: made(version) for version in request.airflow or VERSIONS}
    if request.make:
        print("\n".join(map(str, pythons.values())))
        return 0
    if request.demo:
        return ended(started(next(iter(pythons.values())), "tests.on_airflow.demo"))
    return tested(pythons, arguments)


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line and not line.startswith("#")]


if __name__ == "__main__":
    sys.exit(main())
