"""The session of a run: changes of pyspark's behaviour, and errors of lost processes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from etl.errors import ProcessLost, SettingsError
from etl.io.spark.session import own_ctrl_c, translating_spark_errors
from etl.testkit.spark_launch import spark_settings
from tests.command_result import restored_logging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_jvm_that_hangs_up_on_the_accumulators_is_reported_in_the_log_and_not_on_the_terminal(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    server = spark.sparkContext._accumulatorServer

    def hang_up() -> None:
        try:
            raise EOFError("half a number")
        except EOFError:
            server.handle_error(None, ("127.0.0.1", 1))  # type: ignore[arg-type]

    hang_up()
    assert "closed its connection" in caplog.text and "half a number" in caplog.text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            logging.getLogger(), "handlers", []
        )  # without a configured log Python itself prints errors
        logging.getLogger("another library").error("this one is seen")
        hang_up()
    reported = capfd.readouterr()
    assert "this one is seen" in reported.err, "the terminal is watched"
    assert "closed its connection" not in reported.out + reported.err
    assert "half a number" not in reported.out + reported.err


def test_a_worker_without_the_package_is_reported_with_the_command_that_creates_its_zip(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_here = ModuleType("etl.only_on_the_driver")
    exec("def same(number): return number", only_here.__dict__)
    monkeypatch.setitem(sys.modules, only_here.__name__, only_here)
    with pytest.raises(
        SettingsError, match="workers' Python does not have the module etl.only_on_the_driver"
    ) as caught:
        with translating_spark_errors():
            spark.sparkContext.parallelize([1], 1).map(only_here.same).collect()
    assert "Build the files with `etl package`" in caught.value.action
    assert caught.value.exit_code == 2


def test_what_fails_because_of_a_stop_that_is_on_its_way_out_is_the_stop() -> None:
    """As `RDD.collect`: py4j closes the interrupted call's connection, then calls again."""
    from py4j.protocol import Py4JNetworkError

    lost = Py4JNetworkError("Answer from Java side is empty")
    for failed in (lost, ProcessLost("the catalog does not answer")):
        with pytest.raises(KeyboardInterrupt), translating_spark_errors():
            try:
                raise KeyboardInterrupt
            finally:
                raise failed


def test_a_second_ctrl_c_while_spark_starts_ends_the_started_processes() -> None:
    """As in `launch_gateway`, which holds the JVM at that moment."""
    held = list[subprocess.Popen[bytes]]()

    def launch() -> None:
        started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        held.append(started)
        signal.raise_signal(signal.SIGINT)
        assert started.poll() is None, "the first one waits"
        signal.raise_signal(signal.SIGINT)

    with restored_logging(), pytest.raises(KeyboardInterrupt), own_ctrl_c():
        launch()
    assert held[0].wait(60) == -signal.SIGKILL


def test_a_session_that_does_not_start_is_a_wrong_setting_and_no_bug(tmp_path: Path) -> None:
    settings = {
        **spark_settings(),
        "spark.serializer": "org.apache.spark.serializer.KyroSerializer",
    }
    start = f"from etl.io.spark.session import build_session; build_session('x', {settings})"
    started = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True)
    last = started.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "etl.errors.SettingsError: Spark does not start: java.lang.ClassNotFound"
    )
    assert last.endswith("Check spark.serializer")


def test_a_worker_that_is_killed_whenever_it_is_tried_is_named_and_no_bug(
    spark: SparkSession,
) -> None:
    from pyspark.sql.functions import udf

    killed = udf(lambda _: os.kill(os.getpid(), signal.SIGKILL), "int")
    with (
        pytest.raises(ProcessLost, match="Python worker exited unexpectedly") as caught,
        translating_spark_errors(),
    ):
        spark.range(1).select(killed("id")).collect()
    assert caught.value.exit_code == 6 and caught.value.retriable
    assert "memory" in caught.value.action


@pytest.mark.parametrize(
    "bug", [ZeroDivisionError("ours"), ConnectionResetError("another library")]
)
def test_errors_that_are_not_sparks_stay_unchanged(bug: Exception) -> None:
    with pytest.raises(type(bug)), translating_spark_errors():
        raise bug


def test_a_jvm_that_is_gone_is_named(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    from py4j.clientserver import JavaClient

    def hangs_up(*_: object, **__: object) -> None:
        raise ConnectionResetError("[Errno 104] Connection reset by peer")

    monkeypatch.setattr(JavaClient, "_get_connection", hangs_up)
    with pytest.raises(ProcessLost), translating_spark_errors():
        spark.range(3).count()
