"""Which DAGs does a pipeline have?

Ingest, replay, backfill and maintenance, built from a conf file. All have: one run of a pipeline at
a time (`max_active_runs` does not bind Airflow's backfills, `max_active_tis_per_dag` does), retries
with exponential backoff, no catchup, since a run continues from the ledger. If one conf of a folder
is invalid, its own DAG fails and reports why; the DAGs of the other confs stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from etl.airflow.compat import (
    DAG,
    AirflowFailException,
    BaseOperator,
    CronDataIntervalTimetable,
    Param,
)
from etl.airflow.pipeline import (
    EtlEnvironment,
    Pipeline,
    conf_files,
    read_pipeline,
    table_name,
)
from etl.airflow.sensors import IGNORE_LAST, TableGapsOperator, TopicsReadySensor
from etl.airflow.submit import (
    EtlSubmitOperator,
    failure_callback_from_environment,
    interval_of,
    on_failure,
    table_asset,
)
from etl.decide.run_requests import backfill_arguments, replay_arguments, run_arguments
from etl.errors import SettingsError

START = datetime(2026, 1, 1, tzinfo=UTC)
_OPTIONAL_TIME = {"type": ["null", "string"], "format": "date-time"}
_POSITION_HELP = (
    "An offset (1200), a time with its UTC offset (2026-01-31T13:00Z), or before now (-1h)."
)


def _from_and_until(start: str, end: str) -> dict[str, Param]:
    """Return the params of an interval of offsets or times; the arguments begin their help."""
    position: dict[str, Any] = {"type": ["string", "integer"]}
    return {
        "from": Param(**position, title="From", description=f"{start} {_POSITION_HELP}"),
        "until": Param(**position, title="Until", description=f"{end} {_POSITION_HELP}"),
    }


def _partitions(description: str, **schema: Any) -> Param:
    return Param(
        **schema,
        items={"type": "string"},
        title="Partitions",
        description=f"{description} One per line: clicks:3, on Jafka clicks:1-3 (broker 1); "
        "clicks: all partitions of the topic.",
    )


def _dry_run(description: str) -> Param:
    return Param(False, type="boolean", title="Dry run", description=description)


def ingest_dag(
    conf_file: str | Path,
    schedule: str,
    *,
    environment: EtlEnvironment | None = None,
    pool: str | None = None,
    start_date: datetime = START,
    assume_ready_after: timedelta | None = timedelta(minutes=10),
    poke_interval_s: float = 60,
    retries: int = 3,
    retry_delay: timedelta = timedelta(minutes=2),
    deferrable: bool = True,
    **dag: Any,
) -> DAG:
    """`ingest_CONF`: at the end of each interval, load the records up to that end.

    schedule             cron expression in UTC
    assume_ready_after   see `TopicsReadySensor`; None: a run does not wait
    pool                 an existing Airflow pool of one slot, for pipelines that must not run at
                         the same time
    dag                  further arguments of the DAG

    A manual run sets both params, from and until.
    """
    pipeline = read_pipeline(conf_file)
    environment = environment or EtlEnvironment()
    dag_arguments = {
        "schedule": CronDataIntervalTimetable(schedule, timezone="UTC"),
        "start_date": start_date,
        "description": f"Load new records of {pipeline.full_name}, exactly once",
        "params": {
            "from": Param(
                None,
                **_OPTIONAL_TIME,
                title="From",
                description="Start of the interval; it names the run. Both or none; without them "
                "the run's data interval. Example: 2026-01-31T12:00:00Z",
            ),
            "until": Param(
                None,
                **_OPTIONAL_TIME,
                title="Until",
                description="Records up to this time are loaded. Example: 2026-01-31T13:00:00Z",
            ),
        },
        **dag,
    }
    ingest = _dag("ingest", pipeline, retries, retry_delay, dag_arguments)

    def arguments(context: Mapping[str, Any]) -> list[str]:
        return run_arguments(pipeline.conf, interval_of(context), finds_times=pipeline.finds_times)

    with ingest:
        load = _task("load", "run", pipeline, environment, arguments, pool=pool)
        if assume_ready_after is not None:
            wait = TopicsReadySensor(
                task_id="wait_until_ready",
                conf_file=conf_file,
                environment=environment,
                assume_ready_after=assume_ready_after,
                deferrable=deferrable,
                poke_interval=poke_interval_s,
                mode="poke" if deferrable else "reschedule",
                timeout=timedelta(days=1).total_seconds(),
            )
            wait >> load
    return ingest


def replay_dag(
    conf_file: str | Path,
    *,
    environment: EtlEnvironment | None = None,
    pool: str | None = None,
    **dag: Any,
) -> DAG:
    """`replay_CONF`, triggered manually: read offsets again and replace their rows.

    Params: partitions, from and until (offsets or times), reason, dry_run.
    """
    pipeline = read_pipeline(conf_file)
    params = {
        "partitions": _partitions("Whose rows are replaced.", type="array", minItems=1),
        **_from_and_until("First offset to read again.", "First offset that stays as it is."),
        "reason": Param(
            type="string",
            minLength=1,
            title="Reason",
            description="Why; stored with the plan. Example: T-17, the transform lost a column",
        ),
        "dry_run": _dry_run("Show in the log which rows would be replaced; change nothing."),
    }

    def arguments(context: Mapping[str, Any]) -> list[str]:
        return replay_arguments(pipeline.conf, context["params"])

    replay = _manual_dag("replay", pipeline, params, dag)
    with replay:
        _task("replay", "replay", pipeline, environment or EtlEnvironment(), arguments, pool=pool)
    return replay


def backfill_dag(
    conf_file: str | Path,
    *,
    environment: EtlEnvironment | None = None,
    pool: str | None = None,
    **dag: Any,
) -> DAG:
    """`backfill_CONF`, triggered manually: load an interval that the pipeline never loaded.

    Params: name, from and until (offsets or times), partitions, only_unloaded (leave out loaded
    offsets), dry_run. A retry continues where the previous try ended.
    """
    pipeline = read_pipeline(conf_file)
    params = {
        "name": Param(
            type="string",
            pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$",
            title="Name",
            description="Of the backfill; the same name continues it. Example: january",
        ),
        **_from_and_until("First offset to load.", "First offset that is not loaded."),
        "partitions": _partitions("Empty: all of the conf.", default=[], type=["null", "array"]),
        "only_unloaded": Param(
            False,
            type="boolean",
            title="Only unloaded offsets",
            description="Leave out offsets that are loaded; else the interval has none, or it fails.",
        ),
        "dry_run": _dry_run("Show in the log which offsets would be loaded; change nothing."),
    }

    def arguments(context: Mapping[str, Any]) -> list[str]:
        return backfill_arguments(pipeline.conf, context["params"])

    backfill = _manual_dag("backfill", pipeline, params, dag)
    with backfill:
        _task(
            "backfill",
            "backfills run",
            pipeline,
            environment or EtlEnvironment(),
            arguments,
            pool=pool,
        )
    return backfill


def maintenance_dag(
    conf_file: str | Path,
    schedule: str,
    *,
    environment: EtlEnvironment | None = None,
    start_date: datetime = START,
    lookback: timedelta = timedelta(days=7),
    every: str = "1h",
    ignore_last: timedelta = IGNORE_LAST,
    **dag: Any,
) -> DAG:
    """`maintain_CONF`: verify that each record of every plan is in the table once, then run
    `etl table maintain`.

    It also checks that no interval of `lookback` is missing, except intervals that ended less than
    `ignore_last` ago; set that to more than the time between runs. A table that lacks rows is not
    maintained: files that explain the loss could be deleted.
    """
    pipeline = read_pipeline(conf_file)
    environment = environment or EtlEnvironment()
    dag_arguments = {
        "schedule": CronDataIntervalTimetable(schedule, timezone="UTC"),
        "start_date": start_date,
        "description": f"Verify and maintain the table of {pipeline.full_name}",
        **dag,
    }
    maintain_dag = _dag("maintain", pipeline, 2, timedelta(minutes=5), dag_arguments)

    def verify_arguments(context: Mapping[str, Any]) -> list[str]:
        return [pipeline.conf]

    def maintain_arguments(context: Mapping[str, Any]) -> list[str]:
        return [pipeline.conf, "--yes"]

    with maintain_dag:
        verify = _task("verify", "verify", pipeline, environment, verify_arguments, outlets=[])
        maintain = _task(
            "maintain", "table maintain", pipeline, environment, maintain_arguments, outlets=[]
        )
        verify >> maintain
        if pipeline.finds_times:
            TableGapsOperator(
                task_id="table_gaps",
                conf_file=conf_file,
                environment=environment,
                lookback=lookback,
                every=every,
                ignore_last=ignore_last,
            )
    return maintain_dag


_DOC = """\
Pipeline `{pipeline}`, conf `{conf}`, table `{table}`.

**If a task fails**, its log ends with the error and what to do. Exit codes:

| exit | what to do |
| --- | --- |
| 4, 6, 7, 8 | Retried. After the last try, check what the message names: another driver or consumer, brokers, ZooKeeper, the store of the table. Then clear the task. |
| 5 | Nothing is loaded until a person decides: run the command of the message. Then clear the task. |
| 9 | Rows are missing or doubled: `etl verify {conf}` names them. Do not clear the task before the cause is known. |
| 2 | Correct the conf, param, permission or installation that the message names. Then clear the task. |
| 1 | Report the traceback of the log. |

{again}
"""
_AGAIN = {
    "ingest": "Clearing a task is safe at any time: an interval is loaded once. The next run also "
    "loads what a failed one left.",
    "replay": "Clearing a task reads the same offsets again, and replaces their rows once more.",
    "backfill": "Clearing a task continues the backfill of that name; loaded offsets stay.",
    "maintain": "Clearing a task is safe at any time. A table that is not proved is not maintained.",
}


def dag_id_of(kind: str, conf_file: Path) -> str:
    """Return KIND_CONF, such as ingest_clicks, with `_` for characters that no DAG id has."""
    return f"{kind}_{re.sub(r'[^A-Za-z0-9_.-]', '_', conf_file.stem)}"


def _dag(
    kind: str,
    pipeline: Pipeline,
    retries: int,
    retry_delay: timedelta,
    arguments: Mapping[str, Any],
) -> DAG:
    default_args = {
        "retries": retries,
        "retry_delay": retry_delay,
        "retry_exponential_backoff": True,
        "max_retry_delay": timedelta(hours=1),
        "execution_timeout": timedelta(hours=12),
        "on_failure_callback": on_failure(failure_callback_from_environment()),
        **arguments.get("default_args", {}),
    }
    doc = _DOC.format(
        pipeline=pipeline.full_name,
        conf=pipeline.conf,
        table=table_name(pipeline.table),
        again=_AGAIN[kind],
    )
    dag_arguments = {
        "dag_id": dag_id_of(kind, Path(pipeline.conf)),
        "catchup": False,
        "max_active_runs": 1,
        "tags": ["offset-range-etl", pipeline.name],
        "doc_md": doc,
        **arguments,
        "default_args": default_args,
    }
    return DAG(**dag_arguments)


def _manual_dag(
    kind: str, pipeline: Pipeline, params: Mapping[str, Param], dag: Mapping[str, Any]
) -> DAG:
    arguments = {
        "schedule": None,
        "start_date": START,
        "description": f"{kind.capitalize()} of {pipeline.full_name}, triggered manually",
        "params": params,
        **dag,
    }
    return _dag(kind, pipeline, 3, timedelta(minutes=2), arguments)


def _task(
    task_id: str,
    command: str,
    pipeline: Pipeline,
    environment: EtlEnvironment,
    arguments: Callable[[Mapping[str, Any]], list[str]],
    *,
    pool: str | None = None,
    outlets: list[Any] | None = None,
) -> EtlSubmitOperator:
    """Return the task that runs a command; default outlet: the asset of the table."""
    if outlets is None:
        outlets = [table_asset(pipeline)]
    pool_argument = {"pool": pool} if pool else {}
    return EtlSubmitOperator(
        task_id=task_id,
        command=command,
        conf_file=pipeline.conf,
        environment=environment,
        arguments=arguments,
        max_active_tis_per_dag=1,
        outlets=outlets,
        **pool_argument,
    )


# ------------------------------------------------------------------------------- a folder of confs


class InvalidConfOperator(BaseOperator):
    """Fails with the error of a conf file."""

    def __init__(self, *, error: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._error = error

    def execute(self, context: Mapping[str, Any]) -> None:
        """See the class."""
        raise AirflowFailException(
            f"{self._error}. The pipeline does not run until the file is valid; nothing is lost"
        )


def _no_schedule(conf_file: Path) -> str | None:
    return None


def dags_for_each_conf(
    kind: str,
    folder: str | Path,
    build: Callable[[Path], DAG],
    schedule: Callable[[Path], str | None] = _no_schedule,
) -> Iterator[DAG]:
    """Yield the DAG that `build` returns for each conf file. For an invalid file, yield a DAG of
    the same id with a single task that fails with the reason.

    kind       prefix of the DAG ids
    schedule   when the failing DAG runs: cron expression in UTC; None: when triggered manually

    Raises SettingsError if the folder has no conf file.
    """
    files = dict[str, Path]()
    for conf_file in conf_files(folder):
        dag_id = dag_id_of(kind, conf_file)
        if dag_id in files:
            error = (
                f"{files[dag_id].name} and {conf_file.name} have the same DAG id, {dag_id}. "
                "Rename one of the files"
            )
            yield _failing_dag(f"{dag_id}_{len(files) + 1}", schedule(conf_file), error)
            continue
        files[dag_id] = conf_file
        try:
            yield build(conf_file)
        except SettingsError as settings_error:
            yield _failing_dag(dag_id, schedule(conf_file), str(settings_error))
        except Exception as other_error:  # of any kind: the DAGs of the other files stay
            yield _failing_dag(dag_id, schedule(conf_file), f"{conf_file}: {other_error}")


def _failing_dag(dag_id: str, schedule: str | None, error: str) -> DAG:
    timetable = None
    if schedule is not None:
        timetable = CronDataIntervalTimetable(schedule, timezone="UTC")
    dag = DAG(
        dag_id=dag_id,
        schedule=timetable,
        start_date=START,
        catchup=False,
        max_active_runs=1,
        tags=["offset-range-etl"],
        description="Its conf file is invalid",
        doc_md=error,
        default_args={"on_failure_callback": on_failure(failure_callback_from_environment())},
    )
    with dag:
        InvalidConfOperator(task_id="read_conf", error=error)
    return dag
