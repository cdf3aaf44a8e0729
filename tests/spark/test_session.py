"""The session that a run builds: what of pyspark's own manners is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_jvm_that_hangs_up_on_the_accumulators_is_told_to_the_log_and_not_to_the_terminal(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str],
) -> None:
    server = spark.sparkContext._accumulatorServer
    try:
        raise EOFError("half a number")
    except EOFError:
        server.handle_error(None, ("127.0.0.1", 1))  # type: ignore[arg-type]
    assert "hung up" in caplog.text and "half a number" in caplog.text
    assert "Traceback" not in capfd.readouterr().err
