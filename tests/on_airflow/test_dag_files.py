"""The DAG files as Airflow finds them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.on_airflow.home import CONF, DAGS, ROOT
from tests.on_airflow.running import IS_2, dag_bag

KINDS = ("ingest", "replay", "backfill", "maintain")
HEAVY = ("pyspark", "py4j", "numba", "numpy", "pandas", "pyarrow", "kafka", "kazoo", "deltalake")


@pytest.fixture(scope="module")
def dags() -> dict[str, Any]:
    found = dag_bag()
    assert found.import_errors == {}
    return dict(found.dags)


def test_every_conf_file_has_a_dag_of_each_kind(dags: dict[str, Any]) -> None:
    expected = {f"{kind}_{conf.stem}" for kind in KINDS for conf in CONF.glob("*.yaml")}
    assert expected and expected == {name for name in dags if name.startswith(KINDS)}


def test_dag_files_load_in_a_process_of_their_own_without_anything_heavy() -> None:
    program = (
        "import sys, json, runpy\nbefore = set(sys.modules)\n"
        f"for path in {[str(path) for path in sorted(DAGS.glob('*.py'))]!r}: runpy.run_path(path)\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    reported = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    heavy = json.loads(reported.stdout.splitlines()[-1])
    without_ours = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, json, etl.airflow.compat, "
            "airflow.providers.apache.spark.operators.spark_submit\n"
            f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(heavy) <= set(json.loads(without_ours.stdout.splitlines()[-1])), (
        "what Airflow loads itself is not ours to avoid"
    )


def test_scheduled_dags_have_intervals_and_do_not_catch_up_and_run_one_at_a_time(
    dags: dict[str, Any],
) -> None:
    for name, dag in dags.items():
        if name.startswith(("ingest", "maintain")):
            assert type(dag.timetable).__name__ == "CronDataIntervalTimetable", name
        assert (dag.catchup, dag.max_active_runs) == (False, 1), name
        assert "offset-range-etl" in dag.tags and dag.doc_md and dag.description, name
    schedules = [dags[name].timetable for name in ("ingest_jafka", "ingest_clicks")]
    assert [getattr(one, "expression", None) or one.summary for one in schedules] == [
        "*/15 * * * *",
        "0 * * * *",
    ]


def test_jobs_are_retried_and_never_run_twice_at_a_time_and_call_the_callback_on_failure(
    dags: dict[str, Any],
) -> None:
    looking = ("wait_until_ready", "table_gaps")
    jobs = [
        task
        for name, dag in dags.items()
        if name.startswith(KINDS)
        for task in dag.tasks
        if task.task_id not in looking
    ]
    assert len(jobs) == (len(KINDS) + 1) * len(list(CONF.glob("*.yaml"))), (
        "one of each kind, and maintenance proves before it maintains"
    )
    for task in jobs:
        assert task.retries >= 2 and task.retry_exponential_backoff and task.execution_timeout, task
        assert task.max_active_tis_per_dag == 1 and task.on_failure_callback, (
            "max_active_runs does not bind Airflow's backfills"
        )


def test_tasks_name_no_pool_and_one_connection_by_default(
    dags: dict[str, Any],
) -> None:
    tasks = [task for name, dag in dags.items() if name.startswith(KINDS) for task in dag.tasks]
    assert {task.pool for task in tasks} == {"default_pool"}
    assert {task._conn_id for task in tasks if hasattr(task, "_conn_id")} == {"spark_default"}
    assert [task.pool for task in dags["pooled"].tasks] == ["clicks"]


def test_each_param_of_a_form_has_a_title_and_a_description_and_each_dag_says_what_to_do(
    dags: dict[str, Any],
) -> None:
    forms = {}
    for kind in KINDS:
        dag = dags[f"{kind}_clicks"]
        assert "| 5 | Nothing is loaded until a person decides" in dag.doc_md
        params = {name: dag.params.get_param(name) for name in dag.params}
        for param in params.values():
            assert param.schema["title"] and len(param.description) > 30
        forms[kind] = {name: param.schema["type"] for name, param in params.items()}
    position, time = ["string", "integer"], ["null", "string"]
    replay = {"partitions": "array", "from": position, "until": position, "reason": "string"}
    assert forms["ingest"] == {"from": time, "until": time} and forms["maintain"] == {}
    assert forms["replay"] == {**replay, "dry_run": "boolean"}


def test_each_table_is_one_asset_of_whatever_loads_it(dags: dict[str, Any]) -> None:
    from etl.airflow import table_asset

    named = {
        name: [asset.uri for task in dag.tasks for asset in task.outlets]
        for name, dag in dags.items()
    }
    assert (
        named["ingest_clicks"]
        == named["replay_clicks"]
        == named["backfill_clicks"]
        != named["ingest_jafka"]
    )
    assert named["ingest_clicks"][0].startswith("file:///") and named["maintain_clicks"] == []
    asset = table_asset(CONF / "clicks.yaml")
    assert asset.uri == named["ingest_clicks"][0]
    assert IS_2 or f"file://{asset.name}" == asset.uri


def test_an_unreadable_conf_file_leaves_the_other_dags_and_its_own_dag_fails_with_the_reason(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from etl.airflow.compat import AirflowFailException

    folder = tmp_path_factory.mktemp("half")
    (folder / "clicks.yaml").write_text((CONF / "clicks.yaml").read_text())
    (folder / "half.yaml").write_text("pipeline: half")
    monkeypatch.setenv("ETL_CONF_DIR", str(folder))
    found = dag_bag()
    assert found.import_errors == {}
    assert {name for name in found.dags if name.startswith(KINDS)} == {
        f"{kind}_{stem}" for kind in KINDS for stem in ("clicks", "half")
    }
    for kind in KINDS:
        [task] = found.dags[f"{kind}_half"].tasks
        assert task.on_failure_callback
        with pytest.raises(AirflowFailException, match="group.id.*half.yaml"):
            task.execute({})
    timetables = [
        type(found.dags[f"{kind}_half"].timetable).__name__ for kind in ("ingest", "maintain")
    ]
    assert timetables == ["CronDataIntervalTimetable"] * 2, (
        "they fail when the pipeline would have run"
    )


def test_names_of_conf_files_that_no_dag_can_have_and_two_of_one_name_take_no_dag_away(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("names")
    for name in ("clicks.yaml", "clicks.yml", "clicks (eu).yaml"):
        (folder / name).write_text((CONF / "clicks.yaml").read_text())
    (folder / "odd.yaml").write_text('pipeline: odd\ndefaults: "x\\0y"\n')
    monkeypatch.setenv("ETL_CONF_DIR", str(folder))
    found = dag_bag()
    assert found.import_errors == {}
    names = {
        name: dag.tasks[-1].task_id for name, dag in found.dags.items() if name.startswith("ingest")
    }
    failing = {name for name, task in names.items() if task == "read_conf"}
    assert names.keys() - failing == {"ingest_clicks", "ingest_clicks__eu_"}
    assert len(failing) == 2 and "ingest_odd" in failing


def test_a_conf_file_with_a_mistake_is_an_import_error_that_names_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "dags").mkdir()
    (folder / "half.yaml").write_text("pipeline: clicks")
    (folder / "dags" / "wrong.py").write_text(
        f"from etl.airflow import ingest_dag\ndag = "
        f"ingest_dag({str(folder / 'half.yaml')!r}, '0 * * * *')\n"
    )
    reported = "".join(dag_bag(folder / "dags").import_errors.values())
    assert "SettingsError" in reported and "half.yaml" in reported and "group.id" in reported
