"""Files for deployment: each names existing commands, exit codes and files."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
from pathlib import Path

import pytest

from etl.errors import EtlError

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FAKE = """#!/bin/sh
echo "$@" >> called
code=$(sed -n "$(wc -l < called)p" codes)
echo "written to standard error" >&2
exit "$code"
"""


def kinds(error: type[EtlError] = EtlError) -> set[type[EtlError]]:
    return {error}.union(*(kinds(kind) for kind in error.__subclasses__()))


RETRIABLE = {kind.exit_code for kind in kinds() if kind.retriable}
FINAL = {kind.exit_code for kind in kinds() if not kind.retriable}


@pytest.mark.parametrize(
    ("codes", "runs"), [([0], 1), ([6, 0], 2), ([6, 7, 4], 3), ([5], 1), ([7, 2], 2), ([130], 1)]
)
def test_the_script_for_cron_tries_again_what_may_pass_and_ends_as_the_last_run_did(
    codes: list[int], runs: int, tmp_path: Path
) -> None:
    for name, text in (("etl", FAKE), ("page", '#!/bin/sh\necho "$@" > paged\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "codes").write_text("".join(f"{code}\n" for code in codes))
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "ETL_PAUSE_S": "0",
        "ETL_PAGE": str(tmp_path / "page"),
    }
    command = [str(DEPLOY / "etl-run"), "a b.yaml", "--fail-on-loss"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    called = (tmp_path / "called").read_text().splitlines()
    assert (done.returncode, called) == (codes[-1], ["run a b.yaml --fail-on-loss --quiet"] * runs)
    assert done.stdout == "" and done.stderr.count("written to standard error") == runs
    paged = tmp_path / "paged"
    expected = f"{codes[-1]} a b.yaml\n" if codes[-1] else ""
    assert (paged.read_text() if paged.exists() else "") == expected


def test_systemd_starts_again_exactly_what_a_retry_may_mend() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "etl@.service")
    kept = set(map(int, unit["Service"]["RestartPreventExitStatus"].split()))
    assert kept == FINAL and kept.isdisjoint(RETRIABLE)
    assert set(map(int, unit["Service"]["SuccessExitStatus"].split())) == {130}
    again = re.search(r"^ +([\d |]+)\) \[", (DEPLOY / "etl-run").read_text(), re.MULTILINE)
    assert again and set(map(int, again[1].split("|"))) == RETRIABLE - {130}


def test_the_table_of_pages_has_every_exit_code() -> None:
    rows = re.findall(
        r"^\| (\d+)[^|]*\|", (ROOT / "docs/guides/schedule.md").read_text(), re.MULTILINE
    )
    readme = re.findall(r"^\| (\d+)[^|]*\|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert rows == readme and set(map(int, rows)) == RETRIABLE | FINAL | {0, 141}


def test_the_image_is_made_of_what_the_package_has() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    for module, name in re.findall(r"from (etl[\w.]+) import (\w+)", text):
        assert hasattr(__import__(module, fromlist=[name]), name)
    assert re.search(r"^ENTRYPOINT \[\"etl\"\]$", text, re.MULTILINE)
