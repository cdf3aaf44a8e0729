"""The end of the JVM that this process started for Spark, so that the next session gets one with
other jars and options.
"""

from __future__ import annotations

import contextlib
import subprocess

from etl.edges.spark.session import is_submitted

_ENDS_WITHIN_S = 30


def end_jvm() -> None:
    """End it, behind its session's `stop`. One that spark-submit started stays, and so does one
    with a session.
    """
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # no public way to it
    if gateway is None or is_submitted() or SparkContext._active_spark_context is not None:
        return
    started: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    with contextlib.suppress(Exception):  # whatever py4j says of a JVM that is gone
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    if started is not None and started.stdin is not None:
        started.stdin.close()  # it ends when nobody can write to it any more
        try:
            started.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            started.kill()
