"""The operator's command line and its reaction to the answer."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from etl.errors import BrokerUnreachable, CorruptData, NotReady, Owned, VerificationFailed
from tests.on_airflow.home import CONF, ENVIRONMENT, ROOT
from tests.on_airflow.running import IS_2, dag_bag, events, run
from tests.on_airflow.stand_in import StandIn

pytestmark = pytest.mark.usefixtures("database")

FIVE, SIX = "2026-11-10T05:00:00+00:00", "2026-11-10T06:00:00+00:00"
KEY = "20261110T050000Z-20261110T060000Z"
BY_PARAMS = {"from": FIVE, "until": SIX}
RANGES = [{"topic": "clicks", "partition": 0, "from": 0, "until": 7}]
DONE = {
    "document": {
        "run_id": "r-1",
        "records_read": 7,
        "exit_code": 0,
        "error": None,
        "outcomes": [{"outcome": "ingested", "message": "plan 3"}],
        "plan": {"number": 3, "ranges": RANGES},
    }
}
CLICKS = str(CONF / "clicks.yaml")

_minutes = iter(range(10_000))


def now() -> datetime:
    """A logical date of a run's own."""
    return datetime(2026, 11, 15, tzinfo=UTC).replace(minute=next(_minutes))


def failing(error: Any) -> dict[str, Any]:
    return {"code": error.exit_code, "document": error.as_json()}


def test_a_run_submits_the_job_of_its_interval_and_returns_the_jobs_summary(
    stand_in: StandIn,
) -> None:
    stand_in.spark_submit(DONE)
    ran = run("at_once", now(), BY_PARAMS)
    [request] = stand_in.calls()
    assert request.job == ["run", CLICKS, "--run-key", KEY, "--until", SIX]
    assert str(ROOT / "jobs" / "etl_job.py") in request.words
    assert request.after("--master") == ["local[2]"] and request.after("--packages") == [
        "io.delta:delta-spark_4.2_2.13:4.4.0"
    ]
    assert request.after("--name") == [
        "etl run etl-clicks/clicks"
    ] and "spark.log.level=WARN" in request.after("--conf")
    assert request.environment["PYSPARK_PYTHON"] == str(ENVIRONMENT.python)
    assert ran.tasks["load"] == ("success", 1)
    assert (
        ran.returned["run_key"] == KEY
        and ran.returned["records_read"] == 7
        and ran.returned["outcomes"] == ["plan 3"]
    )
    assert ran.returned["plan"] == {"number": 3, "total_ranges": 1, "ranges": RANGES}


def test_consumers_of_the_table_get_the_report_and_the_same_interval_has_the_same_run_key(
    stand_in: StandIn,
) -> None:
    stand_in.spark_submit(DONE)
    before = len(events())
    for _ in range(2):
        assert run("at_once", now(), BY_PARAMS).state == "success"
    reported = events()[before:]
    assert [extra["run_key"] for extra in reported] == [KEY, KEY], (
        "at least once: who must act once remembers the run key"
    )
    assert reported[0]["plan"]["number"] == 3 and reported[0]["pipeline"] == "etl-clicks/clicks"


def test_a_scheduled_run_is_for_its_data_interval(stand_in: StandIn) -> None:
    stand_in.spark_submit(DONE)
    ran = run("at_once", datetime(2026, 11, 10, 5, 30, tzinfo=UTC))
    assert ran.returned["run_key"] == "20261110T040000Z-20261110T050000Z", (
        "the last whole interval before it"
    )


def test_a_run_without_an_interval_fails_in_its_first_try_and_submits_nothing(
    stand_in: StandIn,
) -> None:
    if IS_2:
        pytest.skip("every run of Airflow 2 has a logical date")
    ran = run("at_once", None)
    assert (ran.state, ran.tasks["load"]) == ("failed", ("failed", 1))
    assert stand_in.calls() == []


@pytest.mark.parametrize(
    "params",
    [
        {"from": SIX, "until": FIVE},
        {"from": FIVE, "until": FIVE},
        {"from": FIVE},
        {"until": FIVE},
    ],
    ids=["backwards", "empty", "no end", "no start"],
)
def test_an_interval_that_is_none_fails_in_its_first_try_and_submits_nothing(
    stand_in: StandIn, params: dict[str, str]
) -> None:
    ran = run("at_once", now(), params)
    assert (ran.state, ran.tasks["load"]) == ("failed", ("failed", 1))
    assert stand_in.calls() == []


def test_what_may_help_is_tried_again_with_the_same_run_key(stand_in: StandIn) -> None:
    stand_in.spark_submit(
        failing(BrokerUnreachable("no broker answers")),
        failing(Owned("another driver is at work")),
        DONE,
    )
    ran = run("at_once", now(), BY_PARAMS)
    assert ran.tasks["load"] == ("success", 3)
    assert {tuple(request.job) for request in stand_in.calls()} == {tuple(stand_in.calls()[0].job)}
    assert len(stand_in.calls()) == 3


def test_a_driver_that_was_killed_is_tried_again_and_one_that_had_committed_is_done_then(
    stand_in: StandIn,
) -> None:
    again = {
        "document": {
            "run_key": KEY,
            "exit_code": 0,
            "error": None,
            "outcomes": [{"message": "was loaded by plan 3"}],
        }
    }
    stand_in.spark_submit({**DONE, "signal": 9}, again)
    ran = run("at_once", now(), BY_PARAMS)
    assert ran.tasks["load"] == ("success", 2) and ran.returned["outcomes"] == [
        "was loaded by plan 3"
    ]


@pytest.mark.parametrize(
    ("dag", "task", "params", "job"),
    [
        (
            "replay_clicks",
            "replay",
            {"partitions": ["clicks:3"], "from": "10", "until": "20", "reason": "seen"},
            ["replay", CLICKS, "--partition", "clicks:3", "--from", "10", "--until", "20"]
            + ["--reason", "seen"],
        ),
        (
            "backfill_clicks",
            "backfill",
            {"name": "old", "from": FIVE, "until": SIX},
            ["backfills", "run", CLICKS, "old", "--from", FIVE, "--until", SIX],
        ),
    ],
    ids=["replay", "backfill: by its name a retry resumes it"],
)
def test_other_dags_name_the_range_of_their_params_and_confirm_it(
    stand_in: StandIn, dag: str, task: str, params: dict[str, Any], job: list[str]
) -> None:
    stand_in.spark_submit({"document": {"rows": 5, "exit_code": 0}})
    assert run(dag, now(), params, task=task).state == "success"
    assert stand_in.calls()[0].job == [*job, "--yes"]
    before = len(events())
    stand_in.spark_submit({"document": {"dry_run": True, "message": "5 rows would go"}})
    assert run(dag, now(), {**params, "dry_run": True}, task=task).returned["dry_run"] is True
    assert stand_in.calls()[1].job == [*job, "--dry-run"]
    assert len(events()) == before, "a dry run changes no table"


def test_jars_in_the_cache_are_named_and_maven_is_not_asked(stand_in: StandIn) -> None:
    stand_in.jars("/cache/delta-spark.jar", "/cache/delta-storage.jar")
    stand_in.spark_submit(DONE)
    assert run("at_once", now(), BY_PARAMS).state == "success"
    [request] = stand_in.calls()
    assert request.after("--jars") == ["/cache/delta-spark.jar,/cache/delta-storage.jar"]
    assert request.after("--packages") == []


def test_maintenance_verifies_the_table(stand_in: StandIn) -> None:
    stand_in.spark_submit({"document": {"exit_code": 0}})
    stand_in.command({"document": {"incomplete": [], "message": "whole"}})
    assert run("maintain_clicks", now(), task="verify").state == "success"
    assert stand_in.calls()[0].job == ["verify", CLICKS]
    [request] = stand_in.calls("python")
    times = [datetime.fromisoformat(*request.after(option)) for option in ("--from", "--until")]
    assert all(time.utcoffset() == timedelta() for time in times) and times[1] - times[
        0
    ] == timedelta(days=7)


def test_intervals_that_the_table_lacks_fail_the_maintenance_by_their_names(
    stand_in: StandIn,
) -> None:
    whole = {
        "intervals": 168,
        "message": "168 intervals: the table has every record of them that the partitions hold",
        "incomplete": [],
    }
    lost = {"from_time": FIVE, "until_time": SIX, "run_key": KEY, "missing": 1234}
    stand_in.command(
        {"document": whole},
        {
            "code": NotReady.exit_code,
            "document": {**whole, "message": "1 of 168 intervals", "incomplete": [lost]},
        },
    )
    at = datetime(2026, 11, 10, 6, tzinfo=UTC)
    [task] = [
        one for one in dag_bag().get_dag("maintain_clicks").tasks if one.task_id == "table_gaps"
    ]
    context = {"data_interval_start": at, "data_interval_end": at.replace(hour=7)}
    assert task.execute(context) == {"message": whole["message"]}
    with pytest.raises(
        Exception,
        match=f"1 of 168 intervals: {re.escape(FIVE)} to .* \\(1,234 offsets\\)",
    ):
        task.execute(context)
    week = ["--from", "2026-11-03T04:00:00+00:00", "--until", "2026-11-10T04:00:00+00:00"]
    words = ["-m", "etl", "table", "gaps", CLICKS, *week, "--every", "1h", "--json"]
    assert stand_in.calls("python")[0].words == words


# -- missing files and programs
# ------------------------------------------------------------------------------------------


def failure(context: dict[str, Any]) -> str:
    """Why a task of that context fails at once."""
    from etl.airflow.compat import AirflowFailException

    [task] = dag_bag().get_dag("at_once").tasks
    with pytest.raises(AirflowFailException) as failed:
        task.execute({"params": BY_PARAMS, **context})
    return str(failed.value)


def test_a_missing_connection_is_reported_with_its_command_and_nothing_is_submitted(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    reported = failure({})
    assert (
        "The Airflow connection spark_default does not exist" in reported
        and "airflow connections add spark_default" in reported
    )
    assert stand_in.calls() == []


def test_a_connection_in_deploy_mode_cluster_is_rejected_since_no_report_comes_back(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT",
        '{"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}',
    )
    assert "Set deploy-mode to client" in failure({})
    assert stand_in.calls() == []


def test_deploy_mode_cluster_in_spark_conf_is_rejected(stand_in: StandIn) -> None:
    from etl.airflow.compat import AirflowFailException

    [task] = dag_bag().get_dag("at_once").tasks
    task.conf = {**task.conf, "spark.submit.deployMode": "cluster"}
    with pytest.raises(
        AirflowFailException, match="Set deploy-mode to client .* spark.submit.deployMode"
    ):
        task.execute({"params": BY_PARAMS})
    assert stand_in.calls() == []


def test_the_report_is_returned_from_a_driver_in_kubernetes_too(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.providers.apache.spark.hooks import spark_submit as hook

    monkeypatch.setattr(
        hook, "kube_client", object(), raising=False
    )  # required, and used only to stop started processes
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "k8s://https://127.0.0.1:1"}'
    )
    stand_in.spark_submit(DONE)
    ran = run("at_once", now(), BY_PARAMS)
    assert ran.tasks["load"][0] == "success" and ran.returned["records_read"] == 7
    [request] = stand_in.calls()
    assert request.environment["PYSPARK_PYTHON"] == str(ENVIRONMENT.python)


def test_a_job_that_left_no_report_is_not_taken_for_done_though_spark_submit_ended_well(
    stand_in: StandIn,
) -> None:
    stand_in.spark_submit({"code": 0})
    before = len(events())
    assert "left no report" in failure({})
    assert len(events()) == before, "no asset event reports rows"


@pytest.mark.parametrize(
    ("variable", "path"),
    [("ETL_PYTHON", "/no/such/bin/python"), ("ETL_JOB", "/no/such/etl_job.py")],
)
def test_a_worker_without_the_environment_or_the_job_file_reports_the_variable_that_names_it(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, variable: str, path: str
) -> None:
    monkeypatch.setenv(variable, path)
    reported = failure({})
    assert path in reported and variable in reported


def test_a_worker_without_the_package_reports_the_command_that_installs_it_and_is_not_retried(
    stand_in: StandIn,
) -> None:
    stand_in.without_package()
    reported = failure({})
    assert (
        "No module named 'etl'" in reported
        and f"{ENVIRONMENT.python} -m pip install offset-range-etl" in reported
    )


def test_what_a_person_must_decide_fails_in_its_first_try_with_the_jobs_message(
    stand_in: StandIn,
) -> None:
    action = "Check the broker's disk"
    stand_in.spark_submit(
        failing(CorruptData("a bad CRC", topic="clicks", partition=3, action=action))
    )
    assert run("at_once", now(), BY_PARAMS).tasks["load"] == ("failed", 1)
    assert len(stand_in.calls()) == 1
    reported = failure({})
    assert (
        "CorruptData: a bad CRC (topic clicks, partition 3). Check the broker's disk" in reported
        and "exit code 5" in reported
    )


WHOLE = {"document": {"incomplete": [], "message": "whole"}}


def test_a_proven_table_is_then_maintained_without_a_confirmation(
    stand_in: StandIn,
) -> None:
    stand_in.spark_submit(
        {"document": {"passed": True}}, {"document": {"small_files": 9, "large_files": 1}}
    )
    stand_in.command(WHOLE)
    ran = run("maintain_clicks", datetime(2026, 11, 16, 1, tzinfo=UTC), task="maintain")
    assert [request.job for request in stand_in.calls()] == [
        ["verify", CLICKS],
        ["table", "maintain", CLICKS, "--yes"],
    ]
    assert (
        ran.state == "success"
        and {"command": "table maintain", "small_files": 9, "large_files": 1}.items()
        <= ran.returned.items()
    )


def test_a_table_that_lacks_something_is_left_as_it_is(stand_in: StandIn) -> None:
    stand_in.spark_submit(
        {"code": 5, "document": VerificationFailed("3 rows are missing").as_json()}
    )
    stand_in.command(WHOLE)
    ran = run("maintain_clicks", datetime(2026, 11, 16, 2, tzinfo=UTC), task="table_gaps")
    assert [request.job[0] for request in stand_in.calls()] == ["verify"]
    assert ran.state == "failed" and ran.tasks["maintain"][0] == "upstream_failed"
