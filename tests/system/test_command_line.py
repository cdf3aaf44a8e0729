"""The command line as a program sees it: one JSON document per command, exit codes, imports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from etl import __version__
from etl.cli import main
from tests.system.driving import ROOT, Pipeline

pytestmark = pytest.mark.without_spark

COMMANDS = [
    ("run", "--dry-run"),
    ("run",),
    ("verify",),
    ("lag",),
    ("offsets", "show"),
    ("offsets", "diff"),
    ("plans", "list"),
    ("plans", "show"),
]


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    program = (
        "import sys; from etl.cli import main; code = main(['--help'])\n"
        "heavy = {'pyspark', 'numba', 'numpy', 'pyarrow', 'kafka', 'kazoo', 'deltalake', "
        "'pydantic', 'yaml', 'cramjam'}\n"
        "print(code, sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    *screen, last = result.stdout.splitlines()
    assert last == "0 []"
    assert len(screen) <= 40 and all(len(line) < 80 for line in screen), "it fits on a screen"
    listed = {line.split()[0] for line in screen if re.match(r"  [a-z]+ ", line)}
    commands = (
        "demo init doctor run replay backfills verify lag report records offsets plans topics table "
        "ledger pipelines conf package"
    )
    assert listed == set(commands.split())


def test_the_module_is_the_command_and_prints_its_version() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "etl", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == f"offset-range-etl {__version__}\n"


@pytest.mark.parametrize(
    "words",
    [
        "",
        "nosuch",
        "run",
        "run --bogus a.yaml",
        "run a.yaml b.yaml",
        "offsets",
        "offsets set conf.yaml -p clicks:0 --reason r",
        "records show a.yaml",
        "records consume a.yaml",
        "plans show conf.yaml first",
        "demo --records 3",
        "init",
        "replay a.yaml -p clicks",
    ],
)
def test_wrong_arguments_are_reported_on_the_terminal_and_as_a_document(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    plain = capsys.readouterr()
    assert plain.out == "" and plain.err.startswith("etl: ")
    assert "Check the arguments with `etl" in plain.err
    if words not in ("", "nosuch"):
        assert main([*words.split(), "--json"]) == 2
        printed = capsys.readouterr()
        assert json.loads(printed.out)["exit_code"] == 2
        assert "Traceback" not in plain.err + printed.err


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_reports_a_missing_conf_file(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "no/such.yaml", "--json"]) == 2
    result = capsys.readouterr()
    assert json.loads(result.out)["where"] == {"path": "no/such.yaml"}
    assert "no/such.yaml" in result.err


@pytest.mark.usefixtures("spark")
def test_each_command_prints_one_document_before_the_first_run_and_after_it(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(40)
    codes: dict[str, list[int]] = {}
    first = tuple(words for words in COMMANDS if words != ("run",))
    for words in (*first, ("run",), ("run",), *COMMANDS):
        result = pipeline.door(*words)
        command = " ".join(words)
        codes.setdefault(command, []).append(result.code)
        assert command.startswith(result.document["command"])
        assert "Traceback" not in result.err
    assert codes == {
        "run --dry-run": [0, 0],
        "verify": [0, 0],
        "lag": [0, 0],
        "offsets show": [0, 0],
        "offsets diff": [0, 0],
        "plans list": [0, 0],
        "plans show": [2, 0],
        "run": [0, 0, 0],
    }


def test_offsets_are_compared_with_plan_and_table_also_while_no_broker_answers(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(80)
    pipeline.ran()
    with pipeline.zookeeper() as client:
        client.set(f"/consumers/{pipeline.group}/offsets/{pipeline.topic}/1", b"7")
    found = [pipeline.door("offsets", "diff")]
    pipeline.settings = {"source": {"bootstrap_servers": "127.0.0.1:1", "request_timeout_s": 2}}
    found.append(pipeline.door("offsets", "diff"))
    assert [result.code for result in found] == [5, 5]
    names = ("partition", "committed", "plan", "table", "difference")
    for result in found:
        [row] = result.document["rows"]
        assert [row[name] for name in names] == [1, 7, 20, 20, "moved by another client"]
    assert [bool(result.document["not_looked_at"]) for result in found] == [False, True]
    with pipeline.zookeeper() as client:
        client.set(f"/consumers/{pipeline.group}/offsets/{pipeline.topic}/1", b"20")
    result = pipeline.door("offsets", "diff", after=("--all-partitions",))
    assert (result.code, result.document["differing"], len(result.document["rows"])) == (0, 0, 4)
    assert pipeline.door("offsets", "show").code == 6, "it needs the brokers"


def test_the_lag_of_the_table_is_reported_with_time_size_and_retention_and_moves_nothing(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    ten_years_ms = 10 * 365 * 24 * 3600 * 1000
    pipeline = make_pipeline(
        config={"retention.ms": str(ten_years_ms), "retention.bytes": "1000000000"}
    )
    pipeline.produce(80)
    pipeline.ran()
    assert pipeline.door("lag").document["totals"]["lag"] == 0
    pipeline.produce(40)
    found = pipeline.door("lag").document
    totals, lagging = found["totals"], [row for row in found["partitions"] if row["lag"]]
    assert totals["records_at_most"] == 40 == sum(row["lag"] for row in lagging)
    assert [row["unknown"] for row in lagging] == [{}] * len(lagging)
    assert totals["estimated_bytes"] > 0 and 0 < totals["headroom_bytes"] < 1_000_000_000
    for row in lagging:
        assert row["behind_s"] > 0 and row["behind_s"] + row["headroom_s"] == pytest.approx(
            ten_years_ms / 1000
        )
    assert {row["headroom_rests_on"] for row in lagging} == {"retention.ms"}
    assert (
        pipeline.door("lag").document["totals"]["lag"]
        == 40
        == pipeline.door("run", after=["--dry-run"]).document["lag"]
    )
    assert pipeline.ran().document["records_read"] == 40


def test_the_job_for_spark_submit_is_the_same_command(tmp_path: Path) -> None:
    for command in ("run", "verify"):
        result = subprocess.run(
            [sys.executable, str(ROOT / "jobs" / "etl_job.py"), command, "no/such.yaml", "--json"],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (result.returncode, json.loads(result.stdout)["where"]) == (
            2,
            {"path": "no/such.yaml"},
        )
