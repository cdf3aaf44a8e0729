"""What DAGs name and nobody made: Airflow lets a task whose pool is not there wait for ever, and
without the connection Spark goes to yarn.

Run where Airflow's database can be reached, after DAGs were changed: `python -m etl.airflow check
FOLDER`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Named:
    """A pool or a connection that a task names."""

    kind: str
    name: str
    dag: str
    task: str

    @property
    def command(self) -> str:
        """What makes it."""
        if self.kind == "pool":
            return f"airflow pools set {self.name} 1 'one load at a time'"
        return f"airflow connections add {self.name} --conn-type spark --conn-host 'local[*]'"

    def __str__(self) -> str:
        return f"the {self.kind} {self.name} is not there, and task {self.task} of DAG {self.dag} names it. Make it: {self.command}"


def named_by(dags: Mapping[str, Any]) -> list[Named]:
    """What the tasks of these DAGs name."""
    tasks = [(dag_id, task) for dag_id, dag in dags.items() for task in dag.tasks]
    pools = [Named("pool", task.pool, dag_id, task.task_id) for dag_id, task in tasks]
    asked = [(dag_id, task, getattr(task, "_conn_id", None)) for dag_id, task in tasks]
    return sorted(
        {
            *pools,
            *(
                Named("connection", name, dag_id, task.task_id)
                for dag_id, task, name in asked
                if name
            ),
        }
    )


def missing(
    named: Iterable[Named], pools: Collection[str], connections: Collection[str]
) -> list[Named]:
    """Those that are neither among the pools nor the connections."""
    return [one for one in named if one.name not in (pools if one.kind == "pool" else connections)]
