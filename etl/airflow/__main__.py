"""`python -m etl.airflow check FOLDER`: do DAG files load? Do pools and connections exist?"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from etl.airflow.compat import AirflowNotFoundException
from etl.airflow.pipeline import missing, named_by

try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # Airflow 2.11
    from airflow.models import DagBag


def main(arguments: Sequence[str]) -> int:
    """0: all is there; 2: what is not, a line each, or the words are wrong."""
    if len(arguments) != 2 or arguments[0] != "check":
        print("usage: python -m etl.airflow check FOLDER", file=sys.stderr)
        return 2
    found = DagBag(arguments[1])
    wrong = [
        f"{path} does not load: {why.strip().splitlines()[-1]}"
        for path, why in found.import_errors.items()
    ]
    named = named_by(found.dags)
    connections = [
        name
        for name in {one.name for one in named if one.kind == "connection"}
        if _is_connection(name)
    ]
    wrong += [str(one) for one in missing(named, _pools(), connections)]
    for line in wrong:
        print(line)
    if not wrong:
        print(
            f"{len(found.dags)} DAGs load, and the pools and connections that they name are there"
        )
    return 2 if wrong else 0


def _pools() -> list[str]:
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session

    with create_session() as session:
        return [pool.pool for pool in session.query(Pool).all()]


def _is_connection(name: str) -> bool:
    """By the server's own look-up: a task's asks the API server, and where there is no task it sees
    the environment alone.
    """
    from airflow.models.connection import Connection

    try:
        Connection.get_connection_from_secrets(name)
    except AirflowNotFoundException:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
