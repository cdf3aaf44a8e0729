"""`python -m tests.on_airflow [--airflow 3.3] [--make] [PYTEST ARGUMENTS]`: the tests of this folder, in environments of Airflow's own.

Each has the requirements of the extra `airflow` at the versions of its constraints file, and not this package: its source tree is on the
path, and of its requirements only those that DAG files need. Spark, Delta and the embedded brokers stay in the environment that runs this.
The environments are in the cache folder, made once for each content of those files.
"""

from __future__ import annotations

import argparse
import configparser
import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from etl.embedded.cache import alone, cache_folder
from etl.embedded.java import java_environment

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
VERSIONS = sorted((path.stem.removeprefix("constraints-") for path in HERE.glob("constraints-*.txt")), reverse=True)
NEEDED_BY_DAGS = ("pydantic", "PyYAML")


def requirements() -> list[str]:
    """The extra `airflow` as setup.cfg has it, what DAG files need of the package's own requirements, and pytest."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    extras, own = settings["options.extras_require"], settings["options"]["install_requires"].split("\n")
    needed = [line for line in own if line.startswith(NEEDED_BY_DAGS)]
    return [*_lines(extras["airflow"]), *needed, *(line for line in _lines(extras["dev"]) if line.startswith("pytest>"))]


def made(version: str) -> Path:
    """The interpreter of that version's environment, which is made where it is not there yet."""
    constraints, wanted = HERE / f"constraints-{version}.txt", requirements()
    content = hashlib.sha256("\n".join([sys.version, *wanted, constraints.read_text()]).encode()).hexdigest()[:12]
    folder = cache_folder() / "airflow" / f"{version}-{content}"
    python, stamp = folder / "bin" / "python", folder / "installed"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(folder.with_suffix(".lock")):
        if not stamp.exists():
            print(f"installing Airflow {version} into {folder}: 700 MB, a minute or two the first time", flush=True)
            venv.create(folder, with_pip=True, clear=True)
            pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "install", "--constraint", str(constraints), *wanted], check=True)
            subprocess.run([*pip, "check"], check=True)
            stamp.touch()
    return python


def tested(python: Path, arguments: Sequence[str]) -> int:
    """The exit code of pytest there."""
    return started(python, "pytest", "--confcutdir", str(HERE), "-p", "no:cacheprovider", str(HERE), *arguments)


def started(python: Path, module: str, *arguments: str) -> int:
    """The exit code of a module that is run there."""
    environment = {**java_environment(), "ETL_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    started = subprocess.Popen([str(python), "-m", module, *arguments], cwd=ROOT, env={**os.environ, **environment})
    while True:
        try:
            return started.wait()
        except KeyboardInterrupt:  # both got it; that one ends what it has started
            continue


def main() -> int:
    """0 where the tests pass on each version that was asked for."""
    asking = argparse.ArgumentParser(prog="python -m tests.on_airflow")
    asking.add_argument("--airflow", choices=VERSIONS, action="append", help="this version; all by default")
    asking.add_argument("--make", action="store_true", help="make the environments and run no test")
    asking.add_argument("--demo", action="store_true", help="a whole Airflow until Ctrl-C, and no test")
    asked, arguments = asking.parse_known_args()
    codes = dict[str, int]()
    for version in asked.airflow or VERSIONS:
        python = made(version)
        if asked.make:
            print(python)
            continue
        print(f"on Airflow {version}", flush=True)
        codes[version] = started(python, "tests.on_airflow.demo") if asked.demo else tested(python, arguments)
    return max(codes.values(), default=0)


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line and not line.startswith("#")]


if __name__ == "__main__":
    sys.exit(main())
