"""`python -m etl.airflow check`, and the recipients of a failure: on Airflow's own database."""

from __future__ import annotations

import json
import logging
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etl.errors import SettingsError
from tests.on_airflow.home import CONF, DAGS, ROOT
from tests.on_airflow.stand_in import StandIn
from tests.pages import command_lines, programs

failures: list[Any] = []


@pytest.mark.usefixtures("database")
def test_a_missing_pool_of_a_dag_is_reported_and_a_submission_that_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stand_in: StandIn
) -> None:
    from etl.airflow.__main__ import main

    assert main(["check", str(DAGS)]) == 2
    result = capsys.readouterr().out
    assert (
        "The pool clicks does not exist; task load of DAG pooled names it. Create it: "
        "airflow pools set clicks 1" in result
    )
    assert "connection" not in result
    subprocess.run(
        [sys.executable, "-m", "airflow", "pools", "set", "clicks", "1", "one load at a time"],
        check=True,
        capture_output=True,
    )
    assert main(["check", str(DAGS)]) == 0
    assert "exist, and spark-submit runs etl doctor" in capsys.readouterr().out
    [request] = stand_in.calls()
    assert request.job[0] == "doctor", "one environment, one submission"
    check = {"name": "brokers", "found": "none answers", "to_do": "Check it", "exit_code": 6}
    stand_in.spark_submit({"code": 6, "document": {"checks": [check]}})
    assert main(["check", str(DAGS)]) == 2
    assert "brokers: none answers. Check it" in capsys.readouterr().out
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    assert main(["check", str(DAGS)]) == 2
    assert (
        "The connection spark_default does not exist; task load of DAG" in capsys.readouterr().out
    )


@pytest.mark.usefixtures("database")
def test_the_commands_of_the_page_create_missing_objects_and_find_existing_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/guides/schedule.md, "Airflow", with the project's DAG files."""
    page = ROOT / "docs" / "guides" / "schedule.md"
    [program] = programs(page)
    for file in (ROOT / "airflow_dags").glob("*.py"):
        if (
            file.stem != "ingest"
        ):  # the program of the page is in its place, with a DAG of the same id
            shutil.copy(file, tmp_path)
    (tmp_path / "own.py").write_text(
        program.replace("/srv/conf", str(CONF)).replace(', pool="clicks"', "")
    )
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    add, check = command_lines(page, "Airflow")[-2:]
    words = {"airflow": [sys.executable, "-m", "airflow"], "python": [sys.executable]}
    results = []
    for line in (check, add, check):
        first, *others = shlex.split(line.replace("/path/to/dags", str(tmp_path)))
        results.append(
            subprocess.run([*words[first], *others], cwd=ROOT, capture_output=True, text=True)
        )
    subprocess.run(
        [*words["airflow"], "connections", "delete", "spark_default"],
        check=True,
        capture_output=True,
    )
    assert [one.returncode for one in results] == [2, 0, 0], results


def test_unknown_words_are_reported_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from etl.airflow.__main__ import main

    assert [main(words) for words in ([], ["check"], ["look", "dags"])] == [2, 2, 2]
    assert "python -m etl.airflow check FOLDER" in capsys.readouterr().err


def context() -> dict[str, Any]:
    task = SimpleNamespace(
        dag_id="ingest_clicks", task_id="load", run_id="r", try_number=4, log_url="http://here/log"
    )
    params = {"from": "2026-11-10T05:00:00Z", "until": "2026-11-10T06:00:00Z"}
    return {"task_instance": task, "params": params, "exception": RuntimeError("a bad CRC")}


def test_a_failure_is_one_value_with_the_most_important_fields_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from etl.airflow.submit import failure_of, on_failure

    found = failure_of(context())
    assert found == {
        "dag": "ingest_clicks",
        "task": "load",
        "run": "r",
        "try": 4,
        "log": "http://here/log",
        "from_time": "2026-11-10T05:00:00+00:00",
        "until_time": "2026-11-10T06:00:00+00:00",
        "run_key": "20261110T050000Z-20261110T060000Z",
        "reason": "a bad CRC",
    }
    with caplog.at_level(logging.ERROR, "etl.airflow.submit"):
        on_failure()(context())
    assert json.loads(caplog.messages[-1].removeprefix("failed: ")) == found
    assert failure_of({}) == {}, "unknown values are left out"


def test_the_callback_for_failures_is_named_by_the_environment() -> None:
    from etl.airflow.submit import failure_callback_from_environment, on_failure

    report = failure_callback_from_environment({"ETL_ON_FAILURE": "builtins:print"})
    assert report is not None and report.__name__ == "print"
    on_failure(failures.append)(context())
    assert failures[-1]["dag"] == "ingest_clicks"
    assert failure_callback_from_environment({}) is None
    for wrong in ("nosuch.module:f", "builtins:nosuch", "builtins", ":f"):
        with pytest.raises(SettingsError, match="ETL_ON_FAILURE names no function"):
            failure_callback_from_environment({"ETL_ON_FAILURE": wrong})
