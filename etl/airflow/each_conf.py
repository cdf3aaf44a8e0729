"""A DAG for each conf file of a folder: one that cannot be read takes no other pipeline's DAG away,
and somebody is called for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from etl.airflow.dags import START, dag_id_of
from etl.airflow.failure import on_failure, tell_from_environment
from etl.airflow.pipeline import conf_files
from etl.airflow.sdk import DAG, AirflowFailException, BaseOperator, CronDataIntervalTimetable
from etl.errors import SettingsError


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
        default_args={"on_failure_callback": on_failure(tell_from_environment())},
    )
    with made:
        UnreadableConfOperator(task_id="read_conf", why=why)
    return made
