"""How is Spark started on this machine: with the cached jars, and as a standalone cluster?"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from etl.errors import Unreachable
from etl.testkit.class_archive import archive_options, spark_class_path
from etl.testkit.java_and_jars import delta_jars, java_environment, set_java_home, spark_home
from etl.testkit.server_process import HOST, Server, answers, free_port, wait_until


def set_spark_environment() -> None:
    """Set JAVA_HOME and, if unset, PYSPARK_PYTHON; call it before the session starts. Without it
    workers use the first python3 on PATH: pyspark 4.2 reads `spark.pyspark.python` only under
    spark-submit.
    """
    set_java_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


SHORT_RUN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for a JVM that ends within a minute or two: its second compiler would cost more than it
brings.
"""


def jar_settings(
    master: str, java_options: str = "", *, besides: Sequence[Path] = ()
) -> dict[str, str]:
    """Plain Spark settings that bring Delta's jars, and those `besides`, without asking the
    network, and let a local JVM start quickly.

    Raises as `java.delta_jars` does.
    """
    if not master.startswith("local"):
        return {
            "spark.jars": ",".join(map(str, [*delta_jars(), *besides]))
        }  # executors elsewhere are sent copies
    options = (
        f"{'' if besides else archive_options()} {java_options}".strip()
    )  # an archive is of one class path
    class_path = os.pathsep.join([spark_class_path(), *map(str, besides)])
    return {
        "spark.driver.extraClassPath": class_path,
        **({"spark.driver.extraJavaOptions": options} if options else {}),
    }


def spark_settings(master: str = "local[2]", *, besides: Sequence[Path] = ()) -> dict[str, str]:
    """Return Spark settings for a small local session with Delta and without network access.
    `besides`: further jars. Call `set_spark_environment` before the session starts. Raises as
    `java.delta_jars`.
    """
    return {
        "spark.master": master,
        **jar_settings(master, SHORT_RUN, besides=besides),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Their defaults, 50 and 200, are for large clusters: here a small write would take 15
        # seconds.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


class _Daemon(Server):
    """One of Spark's own servers, by the script that comes with pyspark; it adds the module options
    that Java needs.
    """

    def __init__(
        self, name: str, main: str, folder: Path, *arguments: str, host: str = HOST
    ) -> None:
        super().__init__(name, folder)
        self.host = host
        self.web_port = free_port()
        self._main = main
        self._arguments = arguments

    def command(self) -> list[str]:
        """See Server."""
        where = ["--host", self.host, "--port", str(self.port), "--webui-port", str(self.web_port)]
        return [
            "bash",
            str(spark_home() / "bin" / "spark-class"),
            self._main,
            *where,
            *self._arguments,
        ]

    def environment(self) -> dict[str, str]:
        """See Server. Variables of this process's Python are left out, since workers have their
        own.
        """
        ours = {
            name: value
            for name, value in java_environment().items()
            if name not in ("PYTHONPATH", "PYSPARK_PYTHON")
        }
        places = {
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_CONF_DIR": str(self.folder),
        }
        return {
            **ours,
            **places,
            "SPARK_LOCAL_IP": self.host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SHORT_RUN,
        }

    def is_ready(self) -> bool:
        """See Server."""
        return answers(self.port, self.host)


class StandaloneSpark:
    """`with StandaloneSpark(folder, hosts=1) as spark: spark.master_url` gives a Spark master and
    its workers.

    To Spark each worker is a host of its own: 127.0.0.1, 127.0.0.2 and so on (Linux has them all,
    macOS the first only). Each offers `cores` and `memory`; executors' logs are below
    `folder`/worker-N/work.
    """

    start_within_s = 60.0

    def __init__(self, folder: Path, *, hosts: int = 1, cores: int = 2, memory: str = "1g") -> None:
        self.folder = folder = Path(folder).absolute()
        self._master = _Daemon("master", "org.apache.spark.deploy.master.Master", folder / "master")
        self._workers = [
            self._worker(folder / f"worker-{number}", f"127.0.0.{number + 1}", cores, memory)
            for number in range(hosts)
        ]
        self._running = ExitStack()

    def _worker(self, folder: Path, host: str, cores: int, memory: str) -> _Daemon:
        offer = ["--cores", str(cores), "--memory", memory, "--work-dir", str(folder / "work")]
        return _Daemon(
            folder.name,
            "org.apache.spark.deploy.worker.Worker",
            folder,
            *offer,
            self.master_url,
            host=host,
        )

    @property
    def master_url(self) -> str:
        """Return the value for `spark-submit --master`."""
        return f"spark://{HOST}:{self._master.port}"

    def kill_worker(self, number: int) -> None:
        """End this worker with its executors at once, as the loss of a host would."""
        self._workers[number].kill()

    def worker_of(self, pid: int) -> str | None:
        """The name, `worker-N`, of the worker below which a process works, by its working
        directory; None where that is none.
        """
        try:
            place = Path(os.readlink(f"/proc/{pid}/cwd"))
        except OSError:  # it is gone, or this is no Linux
            return None
        return next(
            (worker.name for worker in self._workers if worker.folder in place.parents), None
        )

    def __enter__(self) -> Self:
        with ExitStack() as started:
            for server in (self._master, *self._workers):
                started.enter_context(server)
            if not wait_until(self._all_registered, self.start_within_s):
                raise Unreachable(
                    "A Spark worker did not register",
                    action="Check the log files",
                    logs=[w.log for w in self._workers],
                )
            self._running = started.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running.close()

    def _all_registered(self) -> bool:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(f"http://{HOST}:{self._master.web_port}/json/", timeout=10) as answer:
                state: dict[str, Any] = json.load(answer)
        except OSError:
            return False
        return int(state["aliveworkers"]) == len(self._workers)


def submit_command(*arguments: str) -> list[str]:
    """The command line of pyspark's own `spark-submit`."""
    return ["bash", str(spark_home() / "bin" / "spark-submit"), *arguments]


def submit_environment() -> dict[str, str]:
    """An environment for `submit_command`: JAVA_HOME and SPARK_HOME as everything here uses
    them.
    """
    return {
        **java_environment(),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", HOST),
    }
