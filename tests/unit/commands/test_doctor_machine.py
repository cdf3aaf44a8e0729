"""The checks of `etl doctor` on the machine: packages, Python, Java, jars, transform, directories."""

from __future__ import annotations

import configparser
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from etl.commands import doctor_machine
from etl.commands.doctor_machine import Check, Findings, Line, Verdict
from etl.io.report_files import installed_version
from etl.testkit.java_and_jars import DELTA_VERSION
from tests.builders import plain_settings

ROOT = Path(__file__).parents[3]


def lines_of(look: Any, **sections: Any) -> list[Line]:
    """The lines of one check that needs no other."""
    with contextlib.ExitStack() as closing:
        findings = Findings(plain_settings(**sections), closing)
        return list(Check("x", look).lines(findings))


def between(version: str) -> str:
    """A version and its post-releases, which count as the same version."""
    *front, last = version.split(".")
    return f">={version},<{'.'.join(front)}.{int(last) + 1}"


def test_the_packages_and_versions_are_those_of_setup_cfg() -> None:
    law = configparser.ConfigParser()
    law.read(ROOT / "setup.cfg")
    required = {
        one.name: one.specifier
        for one in map(Requirement, law["options"]["install_requires"].split("\n")[1:])
    }
    for package, tried in doctor_machine.PACKAGES.items():
        pinned = [one.version for one in required[package] if one.operator == "=="]
        assert required[package] == SpecifierSet(tried) or (pinned and tried == between(pinned[0]))
    assert [line.verdict for line in lines_of(doctor_machine.packages)] == [Verdict.OK]


@pytest.mark.parametrize("version", ["4.4.0", "4.4.0.post1", "4.4.0+ours"])
def test_a_package_of_the_tested_version_is_ok(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    assert line_of_package(monkeypatch, version).exit_code == 0


@pytest.mark.parametrize("version", [None, "4.3.1", "4.4.1", "4.4.0rc1", "4.4.0-vendor-2", "4.40"])
def test_a_package_that_is_missing_or_of_another_version_is_named(
    monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    line = line_of_package(monkeypatch, version)
    assert line.exit_code == 2
    assert (version or "delta-spark is not installed") in line.found
    assert line.to_do == "Run `pip install 'delta-spark>=4.4.0,<4.4.1'`"


OUR_VERSION = list(sys.version_info[:2])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ('print("[[3, 2], []]")', "is 3.2, the driver's is"),
        (f"print('[{OUR_VERSION}, [\"numba\"]]')", "lacks numba"),
        ("sys.exit(3)", "does not run"),
        (f'print("[{OUR_VERSION}, []]")', ""),
    ],
    ids=["another version", "a library is missing", "it fails", "it fits"],
)
def test_the_workers_python_must_be_of_our_version_and_have_our_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, words: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nimport sys\n{answer}\n")
    python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    (line,) = lines_of(doctor_machine.workers_python)
    assert words in line.found and "PYSPARK_PYTHON" in line.found
    assert (line.exit_code, "PYSPARK_PYTHON" in line.to_do) == ((2, True) if words else (0, False))


def test_a_workers_python_elsewhere_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/not/here/python3")
    (line,) = lines_of(doctor_machine.workers_python, spark={"spark.master": "spark://h:7077"})
    assert line.verdict is Verdict.OK
    (line,) = lines_of(doctor_machine.workers_python)
    assert line.exit_code == 2


def test_jars_that_are_not_in_the_cache_are_advice_and_changed_ones_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (line,) = lines_of(doctor_machine.jars)
    assert line.verdict is Verdict.ADVICE
    assert "python -m etl.testkit" in line.to_do
    assert list(tmp_path.iterdir()) == []
    folder = tmp_path / "offset-range-etl" / "jars" / f"delta-{DELTA_VERSION}"
    folder.mkdir(parents=True)
    (folder / "delta-storage-4.4.0.jar").write_bytes(b"another")
    (folder / "complete.txt").write_text("delta-storage-4.4.0.jar 7\n")
    (line,) = lines_of(doctor_machine.jars)
    assert (line.exit_code, "SHA-256" in line.found) == (2, True)
    (line,) = lines_of(doctor_machine.jars, spark={"spark.jars.packages": "io.delta:delta"})
    assert (line.verdict, line.found) == (Verdict.OK, "spark.jars.packages: io.delta:delta")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    (line,) = lines_of(doctor_machine.jars)
    assert line.exit_code == 2 and "XDG_CACHE_HOME" in line.to_do


def test_a_java_of_another_version_is_refused_and_its_place_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    properties = ("java.home = /x", "java.specification.version = 1.8")
    java.write_text("#!/bin/sh\n" + "".join(f"echo '    {one}' >&2\n" for one in properties))
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("etl.testkit.java_and_jars._bundled_java", lambda: None)
    (line,) = lines_of(doctor_machine.java)
    assert line.exit_code == 2
    assert "is Java 8" in line.found


def test_a_transform_that_cannot_be_imported_is_named() -> None:
    (line,) = lines_of(doctor_machine.transform, transform="no_such_module:clean")
    assert line.exit_code == 2
    assert "no_such_module" in line.found
    assert lines_of(doctor_machine.transform, transform="os.path:basename")[0].verdict is Verdict.OK


@pytest.mark.parametrize(
    ("check", "section"),
    [(doctor_machine.report_folder, "report"), (doctor_machine.metrics_folder, "metrics")],
)
def test_a_folder_is_tried_where_it_is_or_will_be_and_not_made(
    check: object, section: str, tmp_path: Path
) -> None:
    def line_of(path: str) -> Line:
        (line,) = lines_of(check, **{section: {"path": str(tmp_path / path)}})
        return line

    assert "will be created in" in line_of("a/b").found
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    line = line_of("file/b")
    if section == "report":
        assert line.exit_code == 2
        return
    assert (line.verdict, line.exit_code) == (Verdict.ADVICE, 0), "a run works without metrics"
    assert "metrics.path" in line.to_do and str(tmp_path / "file" / "b") in line.found
    assert line_of("own.prom").found == str(tmp_path)
    assert lines_of(check) == [], "there are to be none"


def test_sizes_folders_and_the_user_of_spark_are_checked_without_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = {"spark.eventLog.enabled": True, "spark.eventLog.dir": f"file:{tmp_path}/gone"}
    wrong = {**events, "spark.driver.memory": "4 gb", "spark.local.dir": "/dev/null/x"}
    right = {**events, "spark.eventLog.dir": str(tmp_path), "spark.local.dir": f"{tmp_path}/new"}
    check = doctor_machine.spark_settings
    assert [line.exit_code for line in lines_of(check, spark=right)] == [0]
    found = [line.error.where["key"] for line in lines_of(check, spark=wrong) if line.error]
    assert found == ["spark.driver.memory", "spark.eventLog.dir", "spark.local.dir"]
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    assert "user id has no name" in lines_of(check, spark=right)[0].found


def line_of_package(monkeypatch: pytest.MonkeyPatch, version: str | None) -> Line:
    """The line on packages where delta-spark has that version."""

    def installed(name: str) -> str | None:
        return version if name == "delta-spark" else installed_version(name)

    monkeypatch.setattr(doctor_machine, "installed_version", installed)
    (line,) = lines_of(doctor_machine.packages)
    return line


def test_a_file_with_a_secret_that_every_user_can_read_is_named(tmp_path: Path) -> None:
    secret, key = tmp_path / "secret", tmp_path / "key.pem"
    login = {"scheme": "sasl", "username": "etl", "password": f"${{file:{secret}}}"}
    tls = {"cert_file": "c.pem", "key_file": str(key)}
    sections = {"zookeeper": {"auth": login, "tls": tls}}
    for path in (secret, key):
        path.touch()
        path.chmod(0o640)
    [line] = lines_of(doctor_machine.secret_files, **sections)
    assert line.verdict is Verdict.OK
    for path in (secret, key):
        path.chmod(0o644)
        [line, other] = lines_of(doctor_machine.secret_files, **sections)
        assert line.verdict is Verdict.ADVICE and str(path) in line.found and "0644" in line.found
        assert other.verdict is Verdict.OK and str(path) not in other.found
        path.chmod(0o600)
    assert lines_of(doctor_machine.secret_files) == []
