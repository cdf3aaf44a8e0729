"""The error if Spark cannot read a file of the table, by Spark's text."""

from __future__ import annotations

import pytest

from etl.io.delta.stores import unreadable

AWAITED = (
    "An error occurred while calling o125.getResult.\n"
    ": org.apache.spark.SparkException: Exception thrown in awaitResult: \nCaused by: "
)


@pytest.mark.parametrize(
    "text, message, file, exit_code",
    [
        (
            "org.apache.spark.SparkException: [FAILED_READ_FILE.FILE_NOT_EXIST] Encountered "
            "error while reading file "
            "file:/data/a%20table/topic=clicks/part-0.snappy.parquet. File does not exist. It is",
            "does not exist",
            "part-0.snappy.parquet",
            5,
        ),
        (
            "org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error "
            "while reading file s3a://b/t/part-0.parquet.  "
            "SQLSTATE: KD001",
            "cannot be read",
            "part-0.parquet",
            7,
        ),
        (
            "org.apache.spark.sql.delta.DeltaFileNotFoundException: "
            "[DELTA_TRUNCATED_TRANSACTION_LOG] "
            "file:/t/_delta_log/00000000000000000000.json: Unable to reconstruct state at "
            "version 1",
            "does not exist",
            "00000000000000000000.json",
            5,
        ),
    ],
    ids=["lost", "damaged", "lost from the log"],
)
def test_a_file_that_cannot_be_read_is_named_and_a_retry_is_advised_only_where_it_may_help(
    text: str,
    message: str,
    file: str,
    exit_code: int,
) -> None:
    found = unreadable(AWAITED + text, "/data/a table")
    assert found is not None and message in found.message
    assert (found.where["file"], found.where["path"], found.exit_code) == (
        file,
        "/data/a table",
        exit_code,
    )
    assert found.retriable == (exit_code == 7) and ("repair()" in found.action) == (
        exit_code == 5 and file.endswith("parquet")
    )


@pytest.mark.parametrize(
    "text",
    ["", "java.lang.OutOfMemoryError", "[ARITHMETIC_OVERFLOW] overflow. Use 'try_add' to tolerate"],
)
def test_any_other_failure_of_spark_is_not_the_tables(text: str) -> None:
    assert unreadable(AWAITED + text, "/data") is None
