"""Owns the jars in the cache: which ones, fetched once from Maven Central by the Ivy inside
pyspark's jars.

A folder of jars is complete when its list names every jar with its size. It is filled under another
name and renamed, so a fetch that was cut off never looks complete; a lock keeps two processes from
fetching the same.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from etl.embedded.cache import alone, cache_folder
from etl.embedded.java import find_java, is_bundled
from etl.embedded.trust import trust_options
from etl.errors import SettingsError, Unreachable

DELTA_VERSION = "4.4.0"
_DELTA_ARTIFACT = "delta-spark_4.2_2.13"  # the name holds Spark's and Scala's version
_COMPLETE = "complete.txt"


@dataclass(frozen=True, slots=True)
class Artifact:
    """One artifact by its Maven coordinates; what it depends on comes with it, unless it is to come
    `alone`.
    """

    organisation: str
    name: str
    version: str
    alone: bool = False


@functools.cache
def spark_home() -> Path:
    """The folder of the installed pyspark, found without importing it. Raises SettingsError when
    there is none.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise SettingsError(
            "pyspark is not installed", check="`pip install offset-range-etl` brings it"
        )
    return Path(found.origin).parent


def spark_jars(*starts: str) -> list[Path]:
    """Spark's own jars, or those whose names start so."""
    return sorted(
        jar
        for jar in (spark_home() / "jars").glob("*.jar")
        if not starts or jar.name.startswith(starts)
    )


def delta_jars() -> list[Path]:
    """The jars that Delta adds to Spark's own. Raises as `fetched` does."""
    return fetched(
        f"delta-{DELTA_VERSION}",
        [Artifact("io.delta", _DELTA_ARTIFACT, DELTA_VERSION)],
        besides=_names_in_spark,
    )


def store_jars(packages: Iterable[str]) -> list[Path]:
    """The jars of these packages, `ORGANISATION:NAME:VERSION`, that a store's client needs beside
    Spark's own. Raises as `fetched` does.
    """
    found = []
    for package in packages:
        organisation, name, version = package.split(":")
        artifact = Artifact(organisation, name, version)
        found += fetched(f"{artifact.name}-{artifact.version}", [artifact], besides=_names_in_spark)
    return list({jar.name: jar for jar in found}.values())


def cached_delta_jars() -> list[Path]:
    """Those of them that are in the cache already, all or none; nothing is fetched."""
    return _complete(cache_folder() / "jars" / f"delta-{DELTA_VERSION}") or []


def fetched(
    name: str, artifacts: Iterable[Artifact], *, besides: Callable[[], Iterable[str]] = tuple
) -> list[Path]:
    """The jars of `artifacts` and of all they depend on, from the cache's folder `name`, fetched
    when they are not there.

    What `besides` names is left out. Raises Unreachable when a fetch fails, SettingsError when
    there is no Java.
    """
    folder = cache_folder() / "jars" / name
    jars = _complete(folder)
    if jars is not None:
        return jars
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(folder.with_name(f"{name}.lock")):
        jars = _complete(folder)  # another process may have fetched them while we waited
        return jars if jars is not None else _fetch(folder, artifacts, besides())


def _complete(folder: Path) -> list[Path] | None:
    """The jars of a complete folder, or None: a jar may also have been lost later, to a clean-up or
    a full disk.
    """
    try:
        lines = [line.rsplit(" ", 1) for line in (folder / _COMPLETE).read_text().splitlines()]
        return [folder / name for name, size in lines if _same_size(folder / name, int(size))]
    except FileNotFoundError:
        return None


def _same_size(jar: Path, size: int) -> bool:
    if jar.stat().st_size != size:
        raise FileNotFoundError(jar)
    return True


def _fetch(folder: Path, artifacts: Iterable[Artifact], leave_out: Iterable[str]) -> list[Path]:
    for cut_off in folder.parent.glob(f"{folder.name}.partial-*"):
        shutil.rmtree(cut_off, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=f"{folder.name}.partial-", dir=folder.parent
    ) as partial:
        jars = Path(partial, "jars")
        jars.mkdir()
        Path(partial, "ivy.xml").write_text(_ivy_file([*artifacts], leave_out))
        _run_ivy(Path(partial), folder.with_name(f"{folder.name}.log"))
        listed = "".join(f"{jar.name} {jar.stat().st_size}\n" for jar in sorted(jars.iterdir()))
        (jars / _COMPLETE).write_text(listed)
        shutil.rmtree(folder, ignore_errors=True)
        jars.rename(folder)
    return _complete(folder) or []


def _run_ivy(partial: Path, log: Path) -> None:
    java, ivy = find_java(), spark_jars("ivy-")
    trust = trust_options(partial) if is_bundled(java) else []
    command = [
        str(java),
        "-Xmx512m",
        *trust,
        "-cp",
        os.pathsep.join(map(str, ivy)),
        "org.apache.ivy.Main",
    ]
    command += [
        "-cache",
        str(partial / "cache"),
        "-ivy",
        str(partial / "ivy.xml"),
        "-confs",
        "default",
    ]
    command += ["-retrieve", f"{partial}/jars/[artifact]-[revision].[ext]"]
    with log.open("wb") as out:
        done = subprocess.run(
            command,
            cwd=partial,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode or not any((partial / "jars").iterdir()):
        raise Unreachable(
            "jars could not be fetched from Maven Central",
            check="the network, and what the log file says; needed once",
            log=log,
        )


def _ivy_file(wanted: Sequence[Artifact], leave_out: Iterable[str]) -> str:
    dependencies = "".join(
        f"<dependency org={quoteattr(a.organisation)} name={quoteattr(a.name)} rev={quoteattr(a.version)} "
        f"conf='default->{'master' if a.alone else 'default'}'/>"
        for a in wanted
    )
    # An artifact that is named stays at its version: another one that asks for "any from 2.9 on"
    # would bring a new one each month.
    pinned = "".join(
        f"<override org={quoteattr(a.organisation)} module={quoteattr(a.name)} rev={quoteattr(a.version)}/>"
        for a in wanted
    )
    left_out = "".join(f"<exclude module={quoteattr(name)}/>" for name in leave_out)
    return (
        "<ivy-module version='2.0'><info organisation='offset-range-etl' module='jars'/>"
        f"<configurations><conf name='default'/></configurations><dependencies>{dependencies}{left_out}{pinned}</dependencies></ivy-module>"
    )


def _names_in_spark() -> list[str]:
    """The artifacts that Spark brings. Its class loader prefers its own, so another version would
    be fetched in vain.
    """
    return sorted({re.sub(r"-\d[^/]*$", "", jar.name) for jar in spark_jars()})
