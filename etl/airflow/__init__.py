"""Airflow DAGs for pipelines: each task starts one command of `etl`.

`dags` makes DAGs from conf files, `submit` starts commands by spark-submit, `sensors` waits for
complete partitions and finds missing intervals, `pipeline` reads what a DAG needs of a conf and its
environment, `compat` has the names of Airflow 2.11 and 3.

A DAG file imports nothing heavy: no pyspark, numba, pyarrow, kafka, kazoo. No other folder imports
this one.
"""
