"""Runs of DAGs without a scheduler, the same on Airflow 2.11 and 3."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.on_airflow.home import DAGS

IS_2 = importlib.metadata.version("apache-airflow").startswith("2.")


def dag_bag(folder: Any = DAGS) -> Any:
    try:
        from airflow.dag_processing.dagbag import DagBag
    except ImportError:
        from airflow.models import DagBag
    return DagBag(folder)


@dataclass(frozen=True)
class Ran:
    state: str
    tasks: dict[str, tuple[str, int]]
    """The state of each task, and its tries."""
    returned: Any


def run(
    dag_id: str, when: datetime | None, conf: dict[str, Any] | None = None, task: str = "load"
) -> Ran:
    """Run it in this process. `when`: the logical date; None: none."""
    dag = dag_bag().get_dag(dag_id)
    if IS_2:
        found = dag.test(execution_date=when, run_conf=conf)
    else:
        found = dag.test(logical_date=when, run_conf=conf)
    tasks = {one.task_id: one for one in found.get_task_instances()}
    result = tasks[task].xcom_pull(task_ids=task) if tasks[task].state == "success" else None
    return Ran(
        str(found.state),
        {name: (str(one.state), one.try_number) for name, one in tasks.items()},
        result,
    )


def events() -> list[Any]:
    """The extras of all events of assets so far."""
    from airflow.utils.session import create_session

    try:
        from airflow.models.asset import AssetEvent
    except ImportError:
        from airflow.models.dataset import DatasetEvent as AssetEvent
    with create_session() as session:
        return [event.extra for event in session.query(AssetEvent).order_by(AssetEvent.id)]
