"""Which Java is taken, and when a folder of jars is complete."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from etl.decide.table_storage import PACKAGES_OF_STORES
from etl.errors import SettingsError, Unreachable
from etl.testkit import class_archive, java_and_jars
from etl.testkit.brokers import JAFKA, RELEASES
from etl.testkit.java_and_jars import cache_folder

WANTED = [java_and_jars.Artifact("org.example", "thing", "1.0")]


@pytest.fixture(autouse=True)
def an_empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java_and_jars, "_bundled_java", lambda: None)
    (tmp_path / "path").mkdir()


def install_java(home: Path, version: str) -> Path:
    """A program that prints the output of `java -XshowSettings:properties -version`."""
    text = f"    java.home = {home}\\n    java.specification.version = {version}\\n"
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nprintf '{text}' >&2\n")
    program.chmod(0o755)
    return program


def test_without_a_java_the_error_has_the_tried_paths_and_an_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_java(tmp_path / "eight", "1.8")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "eight"))
    with pytest.raises(SettingsError, match="is Java 8") as failure:
        java_and_jars.find_java()
    assert "pip install" in failure.value.action


def test_the_script_in_front_drops_one_argument_and_keeps_the_others_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = tmp_path / "echo"
    echo.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    echo.chmod(0o755)
    monkeypatch.setattr(java_and_jars, "_bundled_java", lambda: echo)
    arguments = [
        "-Xmx1g",
        "--add-modules=jdk.incubator.vector",
        "-Da=b c",
        "",
        "--add-modules=jdk.net",
    ]
    result = subprocess.run(
        [java_and_jars.find_java(), *arguments], capture_output=True, text=True, check=True
    ).stdout
    assert result == "<-Xmx1g><-Da=b c><><--add-modules=jdk.net>"


def bring(monkeypatch: pytest.MonkeyPatch, *, fails: int = 0) -> list[int]:
    """Let a fetch bring one jar, after `fails` fetches that were cut off; the list counts them."""
    fetches: list[int] = []

    def run(partial: Path, log: Path) -> None:
        fetches.append(1)
        (partial / "jars" / "thing-1.0.jar").write_bytes(b"a jar")
        if len(fetches) <= fails:
            raise Unreachable("cut off", log=log)

    monkeypatch.setattr(java_and_jars, "_run_ivy", run)
    return fetches


def test_jars_are_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fetches = bring(monkeypatch)
    first, second = java_and_jars.fetched("thing", WANTED), java_and_jars.fetched("thing", WANTED)
    assert [jar.read_bytes() for jar in first] == [b"a jar"]
    assert first == second
    assert len(fetches) == 1


def test_a_cache_that_cannot_be_written_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SettingsError, match="The cache cannot be written: Not a dir") as raised:
        java_and_jars.fetched("nothing", [])
    assert "XDG_CACHE_HOME" in raised.value.action


def test_a_fetch_that_was_cut_off_does_not_look_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    fetches = bring(monkeypatch, fails=1)
    with pytest.raises(Unreachable):
        java_and_jars.fetched("thing", WANTED)
    assert [path.name for path in (cache_folder() / "jars").iterdir()] == ["thing.lock"]
    assert len(java_and_jars.fetched("thing", WANTED)) == 1
    assert len(fetches) == 2


@pytest.mark.parametrize(
    "damage",
    [Path.unlink, lambda jar: jar.write_bytes(b"a j"), lambda jar: shutil.rmtree(jar.parent)],
)
def test_a_jar_that_was_lost_or_cut_is_fetched_again(
    monkeypatch: pytest.MonkeyPatch, damage: object
) -> None:
    bring(monkeypatch)
    [jar] = java_and_jars.fetched("thing", WANTED)
    assert callable(damage)
    damage(jar)
    assert [jar.read_bytes() for jar in java_and_jars.fetched("thing", WANTED)] == [b"a jar"]


def test_a_jar_with_another_checksum_than_the_packages_is_rejected_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    listed = tmp_path / "jars.sha256"
    listed.write_text(f"{hashlib.sha256(b'another').hexdigest()}  thing/thing-1.0.jar\n")
    monkeypatch.setattr(java_and_jars, "_CHECKSUMS", listed)
    java_and_jars._checksums.cache_clear()
    bring(monkeypatch)
    with pytest.raises(SettingsError, match="thing-1.0.jar is not the one .* SHA-256"):
        java_and_jars.fetched("thing", WANTED)
    assert [path.name for path in (cache_folder() / "jars").iterdir()] == ["thing.lock"]
    java_and_jars._checksums.cache_clear()


def test_the_package_has_checksums_of_all_jars_that_it_fetches() -> None:
    stores = map(java_and_jars.folder_of_package, PACKAGES_OF_STORES.values())
    servers = (name if name == JAFKA else f"kafka-{name}" for name in RELEASES)
    listed = java_and_jars._checksums()
    assert set(listed) == {f"delta-{java_and_jars.DELTA_VERSION}", *stores, *servers}
    checksums = [one for folder in listed.values() for one in folder.values()]
    assert all(re.fullmatch("[0-9a-f]{64}", one) for one in checksums) and len(checksums) > 200


def test_what_spark_brings_is_not_fetched_again() -> None:
    names = java_and_jars._names_in_spark()
    assert {"hadoop-client-api", "parquet-hadoop", "snappy-java", "spark-sql_2.13"} <= set(names)
    assert not [name for name in names if name.startswith("delta-")]


def test_an_archive_of_classes_is_made_again_for_a_new_installation_at_the_same_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JVM compares the times of jars with its archive's, and ignores an older archive."""
    jar = tmp_path / "spark" / "jars" / "spark-core.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    monkeypatch.setattr(class_archive, "spark_home", lambda: tmp_path / "spark")
    monkeypatch.setattr(class_archive, "java_home", lambda: tmp_path / "java")
    monkeypatch.setattr(class_archive, "delta_jars", list)
    monkeypatch.setattr(class_archive, "_make", Path.touch)
    first = class_archive.make_archive()
    assert first is not None and str(first) in class_archive.archive_options()
    os.utime(jar, (1, 1))
    assert class_archive.archive_options() == ""
    second = class_archive.make_archive()
    assert second is not None and list(first.parent.glob("*.jsa")) == [second]


def test_a_key_store_is_a_head_its_certificates_and_a_digest() -> None:
    store = java_and_jars.render_key_store([b"DER"])  # three bytes in place of a certificate
    assert store[:12] == bytes.fromhex("feedfeed 00000002 00000001")
    assert store[12:-20] == b"\0\0\0\2\0\4ca-0\0\0\0\0\0\0\0\0\0\5X.509\0\0\0\3DER"
    assert (
        store[-20:]
        == hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + store[:-20]).digest()
    )


def test_java_home_precedes_path_and_a_java_of_another_version_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_java(tmp_path / "eleven", "11")
    seventeen = install_java(tmp_path / "seventeen", "17")
    (tmp_path / "path" / "java").symlink_to(install_java(tmp_path / "twenty-one", "21"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "seventeen"))
    assert java_and_jars.find_java() == seventeen
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "eleven"))
    assert java_and_jars.java_home() == tmp_path / "twenty-one"
    assert java_and_jars.java_environment()["JAVA_HOME"] == str(tmp_path / "twenty-one")
