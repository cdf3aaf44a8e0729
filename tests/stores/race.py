"""Races for a version of a table: Spark's log store, as a run's session has it, against delta-rs.
Prints what came of them, as JSON.

`python -m tests.stores.race GIVEN RACES BEGUN_BEFORE`: GIVEN has `url`, `settings` (`table.store`)
and `options` (delta-rs's).
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from etl.decide.table_storage import is_ours, packages, settings_for
from etl.io.delta.table_shape import spark_path
from etl.io.spark.catalog import enter_store
from etl.io.spark.log_store import jar_path
from etl.io.spark.session import build_session
from etl.model.security import parse_reference
from etl.settings.table import StoreSettings, TablePath
from etl.testkit.java_and_jars import store_jars
from etl.testkit.spark_launch import jar_settings, set_spark_environment

BY_SPARK, BY_DELTA_RS = "by the log store", "by delta-rs"


class Racers:
    def __init__(self, given: dict[str, Any]) -> None:
        result = {
            name: (parse_reference(value) or value) if isinstance(value, str) else value
            for name, value in given["settings"].items()
        }
        self.path, self._options = (
            TablePath(given["url"], StoreSettings.model_validate(result)),
            given["options"],
        )
        set_spark_environment()
        wanted = settings_for(self.path, {})
        jars = [*store_jars(packages(wanted)), *([jar_path()] if is_ours(wanted) else [])]
        self.spark = build_session(
            "race", {"spark.master": "local[2]", **jar_settings("local[2]", besides=jars), **wanted}
        )
        enter_store(self.spark, self.path)
        write_deltalake(self.path, pa.table({"n": [1]}), storage_options=self._options)
        jvm: Any = self.spark._jvm
        partition = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
            self.spark._jsparkSession, spark_path(self.path)
        )
        self.store, self.hadoop, self.jvm = partition.store(), partition.newDeltaHadoopConf(), jvm

    def table(self) -> DeltaTable:
        return DeltaTable(self.path, storage_options=self._options)

    def by_delta_rs(self, table: DeltaTable) -> bool:
        """One attempt to commit the next version of the opened table."""
        properties = CommitProperties(
            custom_metadata={"userMetadata": BY_DELTA_RS}, max_commit_retries=0
        )
        try:
            table.create_write_transaction(
                [], "append", table.schema(), commit_properties=properties
            )
        except (CommitFailedError, DeltaError):
            return False
        return True

    def by_spark(self, version: int, actions: Any = None) -> bool:
        path = self.jvm.org.apache.hadoop.fs.Path(
            f"{spark_path(self.path)}/_delta_log/{version:020}.json"
        )
        try:
            self.store.write(path, actions or self.scala([LINE]), False, self.hadoop)
        except Exception as error:
            if "FileAlreadyExistsException" not in str(error):
                raise
            return False
        return True

    def scala(self, lines: list[str]) -> Any:
        found = self.jvm.java.util.ArrayList()
        for line in lines:
            found.add(line)
        return self.of_java(found.iterator())

    def of_java(self, iterator: Any) -> Any:
        return self.jvm.scala.jdk.javaapi.CollectionConverters.asScala(iterator)

    def begun_before(self) -> bool:
        """True if the log store reports success for a version that delta-rs committed."""
        table = self.table()
        line, opened = self.jvm.java.io.PipedWriter(), threading.Event()
        lines = (
            self.jvm.java.io.BufferedReader(self.jvm.java.io.PipedReader(line)).lines().iterator()
        )
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(self.by_spark, table.version() + 1, self.of_java(lines))
            opened.wait(
                0.5
                # the file is created before its first line is read; otherwise this would be an easy
                # race, and no fault
            )
            assert self.by_delta_rs(table)
            line.write(LINE + "\n")
            line.close()
            return writing.result()


LINE = json.dumps(
    {
        "commitInfo": {
            "timestamp": 0,
            "operation": "WRITE",
            "operationParameters": {},
            "userMetadata": BY_SPARK,
        }
    }
)


def main(given: str, races: str, begun_before: str) -> None:
    racers, found = (
        Racers(json.loads(given)),
        Counter[str](spark=0, delta_rs=0, both=0, none=0, replaced=0, begun_before=0),
    )
    with ThreadPoolExecutor(2) as pool:
        for _ in range(int(races)):
            table = racers.table()
            version = table.version() + 1
            one, other = (
                pool.submit(racers.by_spark, version),
                pool.submit(racers.by_delta_rs, table),
            )
            won = one.result(), other.result()
            found[
                "both" if all(won) else "spark" if won[0] else "delta_rs" if won[1] else "none"
            ] += 1
            result = racers.table().history(1)[0].get("userMetadata")
            found["replaced"] += result != (BY_SPARK if won[0] else BY_DELTA_RS)
    for _ in range(int(begun_before)):
        found["begun_before"] += racers.begun_before()
    print(json.dumps(found))
    racers.spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
