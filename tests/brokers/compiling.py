"""The Java classes in this directory, compiled for one release's jars into the cache, by a compiler
that runs on any Java: many have no `javac`.

`python -m tests.brokers.compiling` compiles what CI needs, and fetches the jars; `make test` runs
it together with its first tests.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from etl.testkit.brokers import JAFKA, release_jars
from etl.testkit.java_and_jars import Artifact, alone, cache_folder, fetched, find_java

IN_THE_GATE = (JAFKA, "0.8.2.2", "4.1.0")
"""The releases that `make test` runs on beside the one of tests/system: those that differ most."""

SOURCES = Path(__file__).with_name("java")
_OF_GROUPS = {
    JAFKA: "JafkaAssignor",
    "0.8.2.2": "ScalaAssignors",
    "0.9.0.1": "ScalaAssignors",
    "0.10.2.2": "ScalaAssignors",
    "1.1.1": "ScalaAssignors",
    "3.9.1": "LeaderAssignors",
}
"""What of `tests/groups/java` goes with which release."""
COMPILER = Artifact("org.eclipse.jdt", "ecj", "3.37.0")
MAIN = "org.eclipse.jdt.internal.compiler.batch.Main"
LANGUAGE = "-17"
_WITHIN_S = 120


def number_of(version: str) -> tuple[int, ...]:
    """A release of Kafka as something that can be compared."""
    return tuple(map(int, version.split(".")))


def programs(version: str) -> tuple[str, ...]:
    """Those of `java` that go with a release."""
    if version == JAFKA:
        return ("Jafka",)
    number = number_of(version)
    return (
        "JavaProducer" if number < (0, 9) else "JavaClients",
        *(("ScalaClients",) if number < (2,) else ()),
    )


def compiled(version: str, folder: Path = SOURCES) -> Path:
    """The folder of the compiled classes. Fails the test if they do not fit the release's jars."""
    names = programs(version) if folder == SOURCES else (_OF_GROUPS[version],)
    known = b"".join(path.read_bytes() for path in sorted({*SOURCES.iterdir(), *folder.iterdir()}))
    called = version if folder == SOURCES else f"{version}-{folder.parent.name}"
    classes = (
        cache_folder()
        / "tests"
        / f"{called}-{hashlib.sha256(known + COMPILER.version.encode()).hexdigest()[:16]}"
    )
    classes.parent.mkdir(parents=True, exist_ok=True)
    with alone(classes.with_name(f"{called}.lock")):
        if not classes.exists():
            _compile(version, [folder / f"{name}.java" for name in names], classes)
    return classes


def _compile(version: str, sources: Sequence[Path], classes: Path) -> None:
    compiler = fetched(f"{COMPILER.name}-{COMPILER.version}", [COMPILER])
    java = [str(find_java()), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command = [*java, "-cp", path_of(compiler), MAIN, LANGUAGE, "-nowarn"]
    with tempfile.TemporaryDirectory(dir=classes.parent) as partial:
        made = Path(partial, "classes")
        command += ["-cp", path_of(release_jars(version)), "-sourcepath", str(SOURCES)]
        command += ["-d", str(made), *map(str, sources)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_WITHIN_S, check=False
        )
        assert done.returncode == 0, done.stderr
        made.rename(classes)


def path_of(jars: Sequence[Path]) -> str:
    return os.pathsep.join(map(str, jars))


if __name__ == "__main__":
    for release in IN_THE_GATE:
        compiled(release)
        release_jars(release)
