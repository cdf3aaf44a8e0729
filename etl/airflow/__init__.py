"""Airflow DAGs for pipelines: when each one runs and in what order. How is the toolkit's own: each
task starts one of its commands.

| module | what is there |
| --- | --- |
| `dags` | a DAG of each kind, made from a conf file: scheduled ingest, replay, backfill, maintenance |
| `submit` | the operator that starts a job by spark-submit, and what its exit code means |
| `missing` | the operator that looks whether the table lacks intervals, whatever Airflow has run |
| `sensors` | the sensor that waits until the logs are complete up to the end of the interval, and its trigger |
| `interval` | which interval a run is for |
| `toolkit` | where the environment is that has Spark and this package; Airflow needs neither |
| `pipeline` | what a DAG must know of a conf file |
| `outcome` | what a command came to, as Airflow hears it |
| `assets`, `failure`, `brief` | what is said of a run: to whoever waits for the table, to whoever is called, and how much of it |
| `check` | `python -m etl.airflow check`: pools and connections that DAGs name and nobody made |
| `sdk` | the names of Airflow 2.11 and 3, in one place |

Nothing heavy is imported by a DAG file: no pyspark, numba, pyarrow, kafka, kazoo. Nothing else of
the package imports this folder.
"""
