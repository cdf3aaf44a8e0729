"""`python -m etl.airflow check FOLDER`: do DAG files load, do their pools and connections exist, and
does spark-submit run a command?

The command is `etl doctor` of one conf for each environment and connection.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

try:
    from etl.airflow.compat import AirflowException, AirflowNotFoundException
except ModuleNotFoundError as error:
    sys.exit(f"{error}: run this with the Python of Airflow's environment")
from etl.airflow.pipeline import missing_references, references_of
from etl.airflow.submit import EtlSubmitOperator

try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # Airflow 2.11
    from airflow.models import DagBag


def main(arguments: Sequence[str]) -> int:
    """Print a line for each fault. Return 0 without any, 2 with faults or wrong arguments."""
    if len(arguments) != 2 or arguments[0] != "check":
        print("usage: python -m etl.airflow check FOLDER", file=sys.stderr)
        return 2

    bag = DagBag(arguments[1])
    faults = []
    for path, traceback in bag.import_errors.items():
        last_line = traceback.strip().splitlines()[-1]
        faults.append(f"{path} does not load: {last_line}")

    references = references_of(bag.dags)
    connections = []
    for reference in references:
        if reference.kind == "connection" and _connection_exists(reference.name):
            connections.append(reference.name)
    for reference in missing_references(references, _pools(), connections):
        faults.append(str(reference))

    if not faults:
        faults = [str(error) for error in _submission_errors(bag.dags)]

    for fault in faults:
        print(fault)
    if faults:
        return 2
    print(
        f"{len(bag.dags)} DAGs load; the pools and connections that they name exist, and "
        "spark-submit runs etl doctor"
    )
    return 0


def _submission_errors(dags: Mapping[str, Any]) -> Iterator[Exception]:
    """Submit a command once for each environment that tasks name; yield the errors."""
    tasks = dict[str, EtlSubmitOperator]()
    for dag in dags.values():
        for task in dag.tasks:
            if isinstance(task, EtlSubmitOperator):
                tasks.setdefault(repr(task.environment), task)
    for task in tasks.values():
        try:
            task.try_out()
        except AirflowException as error:
            yield AirflowException(f"Task {task.task_id} of DAG {task.dag_id}: {error}")


def _pools() -> list[str]:
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session

    with create_session() as session:
        return [pool.pool for pool in session.query(Pool).all()]


def _connection_exists(name: str) -> bool:
    # The server's own look-up: a task's look-up calls the API server, and outside a task it sees
    # environment variables only.
    from airflow.models.connection import Connection

    try:
        found = Connection.get_connection_from_secrets(name)
    except AirflowNotFoundException:
        return False
    os.environ.setdefault(f"AIRFLOW_CONN_{name.upper()}", found.as_json())
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
