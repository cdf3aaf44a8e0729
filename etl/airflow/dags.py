"""Which DAGs are made for a pipeline?

Ingest, replay, backfill and maintenance, from a conf file. In common: one run of a pipeline at a
time (`max_active_runs` does not bind Airflow's backfills, `max_active_tis_per_dag` does), retries
with growing delays, no catchup: a run continues from the ledger. In a folder of confs, one that
cannot be read does not remove the DAGs of the others; it becomes an import error that is reported.
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
    Pipeline,
    Toolkit,
    conf_files,
    pipeline_of,
    toolkit_from_environment,
)
from etl.airflow.sensors import BEHIND, LogCompleteSensor, MissingIntervalsOperator
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
_A_TIME = {"type": ["null", "string"], "format": "date-time"}


def ingest_dag(
    conf: str | Path,
    schedule: str,
    *,
    toolkit: Toolkit | None = None,
    pool: str | None = None,
    start_date: datetime = START,
    grace: timedelta | None = timedelta(minutes=10),
    poke_interval_s: float = 60,
    retries: int = 3,
    retry_delay: timedelta = timedelta(minutes=2),
    deferrable: bool = True,
    **dag: Any,
) -> DAG:
    """`ingest_CONF`: at the end of each interval of a cron expression in UTC, loads what the logs
    hold up to that end.

    grace    how late records come at most, see `LogCompleteSensor`; None: a run does not wait pool
    a pool of Airflow, of one slot, for pipelines that must not run beside each other; it must be
    there (`etl.airflow.pipeline`) dag      anything else that a DAG takes

    By hand it is started with both params, from and until.
    """
    pipeline, toolkit = pipeline_of(conf), toolkit or toolkit_from_environment()
    made = _dag(
        "ingest",
        pipeline,
        retries,
        retry_delay,
        {
            "schedule": CronDataIntervalTimetable(schedule, timezone="UTC"),
            "start_date": start_date,
            "description": f"loads new records of {pipeline.group}/{pipeline.name}, exactly once",
            "params": {"from": Param(None, **_A_TIME), "until": Param(None, **_A_TIME)},
            **dag,
        },
    )

    def arguments(context: Mapping[str, Any]) -> list[str]:
        return run_arguments(pipeline.conf, interval_of(context), is_physical=pipeline.is_physical)

    with made:
        load = _job("load", "ingest", pipeline, toolkit, arguments, pool=pool)
        if grace is not None:
            waiting = LogCompleteSensor(
                task_id="wait_until_complete",
                toolkit=toolkit,
                pipeline=pipeline,
                grace=grace,
                deferrable=deferrable,
                poke_interval=poke_interval_s,
                mode="poke" if deferrable else "reschedule",
                timeout=timedelta(days=1).total_seconds(),
            )
            waiting >> load
    return made


def replay_dag(
    conf: str | Path, *, toolkit: Toolkit | None = None, pool: str | None = None, **dag: Any
) -> DAG:
    """`replay_CONF`, started by hand: reads a range of a topic again and replaces its rows. from
    and until: offsets, or times.
    """
    pipeline, toolkit = pipeline_of(conf), toolkit or toolkit_from_environment()
    made = _by_hand(
        "replay",
        pipeline,
        {
            "partitions": Param(type="array", minItems=1, items={"type": "string"}),
            "from": Param(type=["string", "integer"]),
            "until": Param(type=["string", "integer"]),
            "reason": Param(type="string", minLength=1),
        },
        dag,
    )
    with made:
        _job(
            "replay",
            "replay",
            pipeline,
            toolkit,
            lambda context: replay_arguments(pipeline.conf, context["params"]),
            pool=pool,
        )
    return made


def backfill_dag(
    conf: str | Path, *, toolkit: Toolkit | None = None, pool: str | None = None, **dag: Any
) -> DAG:
    """`backfill_CONF`, started by hand: loads an interval that the pipeline never loaded, beside
    its runs.

    from and until are offsets, or times. A retry goes on where the try before it ended; with
    `only_unloaded` only offsets that nobody has loaded or will load are loaded.
    """
    pipeline, toolkit = pipeline_of(conf), toolkit or toolkit_from_environment()
    made = _by_hand(
        "backfill",
        pipeline,
        {
            "name": Param(type="string", pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$"),
            "from": Param(type=["string", "integer"]),
            "until": Param(type=["string", "integer"]),
            "partitions": Param([], type=["null", "array"], items={"type": "string"}),
            "only_unloaded": Param(False, type="boolean"),
        },
        dag,
    )
    with made:
        _job(
            "backfill",
            "backfill",
            pipeline,
            toolkit,
            lambda context: backfill_arguments(pipeline.conf, context["params"]),
            pool=pool,
        )
    return made


def maintenance_dag(
    conf: str | Path,
    schedule: str,
    *,
    toolkit: Toolkit | None = None,
    start_date: datetime = START,
    back: timedelta = timedelta(days=7),
    every: str = "1h",
    behind: timedelta = BEHIND,
    **dag: Any,
) -> DAG:
    """`maintain_CONF`: proves that each record of every plan is in the table once, then keeps its
    house (`etl table maintain`).

    It also proves that no interval of the time `back` lacks any, but for those that ended less than
    `behind` ago: let that be longer than the pipeline's runs are apart. A table that lacks
    something is left as it is: what tells why may lie in files that would go.
    """
    pipeline, toolkit = pipeline_of(conf), toolkit or toolkit_from_environment()
    made = _dag(
        "maintain",
        pipeline,
        2,
        timedelta(minutes=5),
        {
            "schedule": CronDataIntervalTimetable(schedule, timezone="UTC"),
            "start_date": start_date,
            "description": f"verifies and maintains the table of {pipeline.group}/{pipeline.name}",
            **dag,
        },
    )
    with made:
        proved = _job(
            "verify", "verify", pipeline, toolkit, lambda _: [pipeline.conf, "--json"], outlets=[]
        )
        proved >> _job(
            "maintain",
            "maintain",
            pipeline,
            toolkit,
            lambda _: [pipeline.conf, "--yes", "--json"],
            outlets=[],
        )
        if not pipeline.is_physical:
            MissingIntervalsOperator(
                task_id="missing_intervals",
                toolkit=toolkit,
                pipeline=pipeline,
                back=back,
                every=every,
                behind=behind,
            )
    return made


def dag_id_of(kind: str, conf: Path) -> str:
    """`ingest_clicks`, by the name of the conf file; what a DAG's id cannot have is `_` there."""
    return f"{kind}_{re.sub(r'[^A-Za-z0-9_.-]', '_', conf.stem)}"


def _dag(
    kind: str,
    pipeline: Pipeline,
    retries: int,
    retry_delay: timedelta,
    arguments: Mapping[str, Any],
) -> DAG:
    defaults = {
        "retries": retries,
        "retry_delay": retry_delay,
        "retry_exponential_backoff": True,
        "max_retry_delay": timedelta(hours=1),
        "execution_timeout": timedelta(hours=12),
        "on_failure_callback": on_failure(failure_callback_from_environment()),
        **arguments.get("default_args", {}),
    }
    return DAG(
        **{
            "dag_id": dag_id_of(kind, Path(pipeline.conf)),
            "catchup": False,
            "max_active_runs": 1,
            "tags": ["offset-range-etl", pipeline.name],
            "doc_md": f"Pipeline `{pipeline.group}/{pipeline.name}`, conf `{pipeline.conf}`, table `{pipeline.table}`.",
            **arguments,
            "default_args": defaults,
        }
    )


def _by_hand(
    kind: str, pipeline: Pipeline, params: Mapping[str, Param], dag: Mapping[str, Any]
) -> DAG:
    return _dag(
        kind,
        pipeline,
        3,
        timedelta(minutes=2),
        {
            "schedule": None,
            "start_date": START,
            "description": f"{kind} of {pipeline.group}/{pipeline.name}, by hand",
            "params": params,
            **dag,
        },
    )


def _job(
    task_id: str,
    job: str,
    pipeline: Pipeline,
    toolkit: Toolkit,
    arguments: Callable[[Mapping[str, Any]], list[str]],
    *,
    pool: str | None = None,
    outlets: list[Any] | None = None,
) -> EtlSubmitOperator:
    return EtlSubmitOperator(
        task_id=task_id,
        job=job,
        pipeline=pipeline,
        toolkit=toolkit,
        arguments=arguments,
        max_active_tis_per_dag=1,
        outlets=[table_asset(pipeline)] if outlets is None else outlets,
        **({"pool": pool} if pool else {}),
    )


class UnreadableConfOperator(BaseOperator):
    """Fails with what is wrong with a conf file."""

    def __init__(self, *, why: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._why = why

    def execute(self, context: Mapping[str, Any]) -> None:
        """See the class."""
        raise AirflowFailException(
            f"{self._why}. Nothing of this pipeline runs until the file can be read; nothing is lost by it"
        )


def dag_of_each(
    kind: str,
    folder: str | Path,
    make: Callable[[Path], DAG],
    schedule: Callable[[Path], str | None] = lambda conf: None,
) -> Iterator[DAG]:
    """The DAG that `make` builds of each conf file; of one that cannot be read a DAG of the same id
    whose only task fails and says why.

    kind       what the DAGs' ids begin with
    schedule   when that one fails: a cron expression in UTC; None: when it is started by hand

    Raises SettingsError where the folder has no conf file.
    """
    made = dict[str, Path]()
    for conf in conf_files(folder):
        dag_id = dag_id_of(kind, conf)
        if dag_id in made:
            why = f"{made[dag_id].name} and {conf.name} would both have the DAG {dag_id}. Check: the files' names, without their ends"
            yield _that_fails(f"{dag_id}_{len(made) + 1}", schedule(conf), why)
            continue
        made[dag_id] = conf
        try:
            yield make(conf)
        except Exception as error:  # whatever it is, the other files' DAGs stay
            yield _that_fails(
                dag_id,
                schedule(conf),
                f"{conf}: {error}" if not isinstance(error, SettingsError) else str(error),
            )


def _that_fails(dag_id: str, schedule: str | None, why: str) -> DAG:
    made = DAG(
        dag_id=dag_id,
        schedule=None if schedule is None else CronDataIntervalTimetable(schedule, timezone="UTC"),
        start_date=START,
        catchup=False,
        max_active_runs=1,
        tags=["offset-range-etl"],
        description="its conf file cannot be read",
        doc_md=why,
        default_args={"on_failure_callback": on_failure(failure_callback_from_environment())},
    )
    with made:
        UnreadableConfOperator(task_id="read_conf", why=why)
    return made
