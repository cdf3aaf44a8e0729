"""Builds the jar of `etl/io/spark/log_store` from its source: `python -m tests.log_store_build`
writes it.

The compiler is the pinned one of the tests, so that the same source gives the same classes on every
machine.
"""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from etl.io.spark import log_store
from etl.testkit.java_and_jars import delta_jars, fetched, find_java, spark_jars
from tests.brokers.compiling import COMPILER, LANGUAGE, MAIN, path_of

FOLDER = Path(log_store.__file__).parent
SOURCE = FOLDER / "ConditionalLogStore.java"
JAR = FOLDER / "log_store.jar"
_NEVER = (1980, 1, 1, 0, 0, 0)


def classes() -> Mapping[str, bytes]:
    """Name in the jar -> bytes, of the source as it is."""
    compiler = fetched(f"{COMPILER.name}-{COMPILER.version}", [COMPILER])
    libraries = [
        *spark_jars("hadoop-client-api"),
        *(jar for jar in delta_jars() if jar.name.startswith("delta-storage")),
    ]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            str(find_java()),
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            path_of(compiler),
            MAIN,
            LANGUAGE,
            "-nowarn",
            "-g:none",
            "-cp",
            path_of(libraries),
            "-d",
            folder,
            str(SOURCE),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return {
            str(one.relative_to(folder)): one.read_bytes()
            for one in sorted(Path(folder).rglob("*.class"))
        }


def shipped() -> Mapping[str, bytes]:
    with zipfile.ZipFile(JAR) as jar:
        return {name: jar.read(name) for name in jar.namelist()}


def write() -> None:
    with zipfile.ZipFile(JAR, "w", zipfile.ZIP_DEFLATED) as jar:
        for name, content in classes().items():
            jar.writestr(zipfile.ZipInfo(name, _NEVER), content)


if __name__ == "__main__":
    write()
