"""The cost of Spark's JVM for the rows of a Python data source before a writer gets them: by size
of Arrow batches, and by column.

    PYTHONPATH=. python bench/through_jvm.py [--rows N] [--bytes N] [--rounds N]

In one thread, by Spark's own classes: an Arrow stream is read, and its rows become Spark's
(`java/ArrowRows.java`). Printed are microseconds of CPU for a row, warm, of the fastest round. The
cost of pyspark's garbage collection after each task of a worker is printed, too, before loaded
objects are frozen and after (`etl/reader/run_task.py`).
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark.worker  # noqa: F401  # as a worker has it

from etl.model.columns import arrow_schema
from etl.records import arrow_buffers  # noqa: F401  # with the kernels
from etl.testkit.java_and_jars import find_java, spark_home
from etl.testkit.spark_launch import set_spark_environment

SOURCE = Path(__file__).with_name("java") / "ArrowRows.java"
_BATCHES = (1 << 16, 1 << 14, 1 << 12, 1 << 10, 1 << 8)
_OPENED = ("java.nio", "sun.nio.ch", "java.lang", "java.util")
"""Packages of Java that Spark's launcher opens for Arrow."""


def rows_of(count: int, size: int) -> pa.RecordBatch:
    """Records of one partition without keys and headers, as the reader has them."""
    columns = {
        "value": [b"%010d" % n * (size // 10) for n in range(count)],
        "topic": ["clicks"] * count,
        "partition": [0] * count,
        "offset": range(count),
        "timestamp": range(1_700_000_000_000_000, 1_700_000_000_000_000 + count),
        "timestampType": [0] * count,
        "incarnation": [0] * count,
    }
    schema = arrow_schema()
    return pa.RecordBatch.from_arrays(
        [
            pa.array(columns[f.name], f.type)
            if f.name in columns
            else pa.array([None] * count, f.type)
            for f in schema
        ],
        schema=schema,
    )


def streams(folder: Path, rows: pa.RecordBatch) -> Iterator[Path]:
    """A file for each size of batch, and one without each column."""
    for size in _BATCHES:
        yield _written(folder / f"batches of {size}".replace(" ", "-"), rows, size)
    for left_out in rows.schema.names:
        kept = [name for name in rows.schema.names if name != left_out]
        yield _written(folder / f"without-{left_out}", rows.select(kept), 1 << 14)


def _written(path: Path, rows: pa.RecordBatch, size: int) -> Path:
    parts = [
        pa.record_batch([rows.slice(at, size).to_struct_array()], names=["_0"])
        for at in range(0, rows.num_rows, size)
    ]
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, parts[0].schema) as stream:
        for part in parts:
            stream.write_batch(part)
    return path


def collection_s() -> float:
    """Seconds of CPU of one collection."""
    gc.collect()
    began = time.process_time()
    gc.collect()
    return time.process_time() - began


def main() -> None:
    """Print them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=100, help="of a value")
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    set_spark_environment()
    java, jars = find_java(), f"{spark_home()}/jars/*"
    with tempfile.TemporaryDirectory(prefix="etl-bench-") as name:
        folder = Path(name)
        files = [str(path) for path in streams(folder, rows_of(arguments.rows, arguments.bytes))]
        subprocess.run(
            [str(java.with_name("javac")), "-nowarn", "-cp", jars, "-d", name, str(SOURCE)],
            check=True,
        )
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        result = subprocess.run(
            [
                str(java),
                *opened,
                "-Xmx1g",
                "-cp",
                f"{jars}:{name}",
                "ArrowRows",
                str(arguments.rounds),
                *files,
            ],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ).stdout
    print(
        f"{arguments.rows:,} rows with values of {arguments.bytes} bytes: microseconds of "
        f"CPU for a row, and of them for reading the stream"
    )
    for line in result.splitlines():
        path, whole, reading = line.rsplit(" ", 2)
        print(f"{Path(path).name:>24} {whole:>7} {reading:>7}")
    before = collection_s()
    gc.freeze()
    print(
        f"a collection in a worker that has loaded the kernels: {before:.3f} s of CPU, with "
        f"all of that set aside {collection_s():.3f}"
    )


if __name__ == "__main__":
    main()
