"""Settings of a Spark session and their order, its store, and its errors."""

from __future__ import annotations

import errno
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from etl.cli.common_options import run_context
from etl.decide.spark_settings import error_of_start, invalid_settings
from etl.decide.table_storage import level_of
from etl.errors import SettingsError
from etl.io.process import cores
from etl.io.spark import session
from etl.io.spark.catalog import enter_store
from etl.io.spark.session import (
    DELTA_PACKAGE,
    LOCAL_MASTER,
    complete,
    for_short_run,
    lacking,
    parallelism_of,
    settings_of_file,
)
from etl.model.plans import Codec
from etl.settings.table import TablePath
from etl.testkit.java_and_jars import java_home
from tests.builders import plain_settings


@pytest.fixture(autouse=True)
def no_configured_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


def test_alone_a_session_is_local_retries_tasks_and_runs_this_python() -> None:
    chosen = complete({}, {})
    assert chosen["spark.master"] == LOCAL_MASTER == "local[*,4]"
    assert chosen["spark.pyspark.python"] == sys.executable
    assert chosen["spark.jars.packages"] == DELTA_PACKAGE
    assert chosen["spark.driver.bindAddress"] == "127.0.0.1"


def test_options_of_spark_submit_are_not_set_again_and_the_callers_win() -> None:
    submitted = {
        "spark.master": "spark://host:7077",
        "spark.jars": "/delta.jar",
        "spark.sql.shuffle.partitions": "64",
        "spark.ui.enabled": "false",
    }
    chosen = complete({}, submitted)
    packages, python = "spark.jars.packages", "spark.pyspark.python"
    left = {"spark.sql.shuffle.partitions", packages, python, "spark.driver.host"}
    assert not left & set(chosen)
    assert chosen["spark.sql.catalog.spark_catalog"].endswith("DeltaCatalog")
    callers = {"spark.master": "local[1]", "spark.ui.enabled": "true"}
    assert callers.items() <= complete(callers, submitted).items()


def test_zstd_has_the_same_level_by_either_writer_unless_configured() -> None:
    level = "spark.hadoop.parquet.compression.codec.zstd.level"
    assert complete({}, {})[level] == str(level_of(Codec.ZSTD))
    assert complete({level: "9"}, {})[level] == "9" and level not in complete({}, {level: "9"})


@pytest.mark.parametrize("given", [{"spark.sql.extensions": "my.Extension"}, {}])
def test_delta_joins_the_extensions_that_are_there(given: dict[str, str]) -> None:
    delta = "io.delta.sql.DeltaSparkSessionExtension"
    wanted = ",".join([*given.values(), delta])
    assert complete(given, {})["spark.sql.extensions"] == wanted
    if given:
        assert complete({}, given)["spark.sql.extensions"] == wanted
        assert complete({"spark.sql.extensions": wanted}, {})["spark.sql.extensions"] == wanted


def test_a_short_run_adds_the_option_for_one_compiler_to_the_jvms_own() -> None:
    options, archive = "spark.driver.extraJavaOptions", "-XX:SharedArchiveFile=classes.jsa"
    assert for_short_run({options: archive}, ())[options] == f"{archive} -XX:TieredStopAtLevel=1"
    assert for_short_run({}, ()) == {options: "-XX:TieredStopAtLevel=1"}


@pytest.fixture
def own_file(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Path:
    """The place of Spark's own file; the parameter is the folder's variable."""
    place = getattr(request, "param", "SPARK_CONF_DIR")
    folder = tmp_path if place == "SPARK_CONF_DIR" else tmp_path / "conf"
    folder.mkdir(exist_ok=True)
    for other in ("SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(place, str(tmp_path))
    return folder / "spark-defaults.conf"


@pytest.mark.parametrize("own_file", ["SPARK_CONF_DIR", "SPARK_HOME"], indirect=True)
def test_a_jvm_with_options_in_sparks_own_file_keeps_them(own_file: Path) -> None:
    options = "spark.driver.extraJavaOptions"
    assert options in for_short_run({}, ()), "there is no such file"
    own_file.write_text(f"# {options} -Xlog:gc\nspark.driver.extraJavaOptionsOfMine 1\n")
    assert options in for_short_run({}, ()), "it names others"
    own_file.write_text(f"spark.ui.enabled false\n  {options}=-Djavax.net.ssl.trustStore=ours\n")
    assert for_short_run({}, ()) == {}


def test_our_options_for_a_quick_start_replace_none_in_sparks_own_file(
    own_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the JVM's options for a trust store or a proxy, nor its jars, are replaced."""
    options, jars = "spark.driver.extraJavaOptions", "spark.driver.extraClassPath"
    monkeypatch.setenv("JAVA_HOME", str(java_home()))  # both are set when the defaults are read
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    alone = run_context().spark_defaults({})
    own_file.write_text(f"{options} -Djavax.net.ssl.trustStore=ours\n{jars} /opt/jdbc.jar\n")
    found = run_context().spark_defaults({})
    assert options not in for_short_run(found, ())
    assert found[jars] == f"{alone[jars]}{os.pathsep}/opt/jdbc.jar"


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("a b\n  c = d e  \nf:g\r\nh=i=j", {"a": "b", "c": "d e", "f": "g", "h": "i=j"}),
        ("# a b\\\n! c d\ne\tf", {"e": "f"}),
        ("a b \\\n   c\nd e\\\\\nf g", {"a": "b c", "d": "e\\", "f": "g"}),
        ("a b\\\n#c\nd e", {"a": "b#c", "d": "e"}),
        ("a b\\\n\n#c\nd e\\", {"a": "b", "d": "e"}),
        ("a\nb =\nc\\ \\=d : \\te\\u00e9\\q\n= f", {"a": "", "b": "", "c =d": "e\u00e9q", "": "f"}),
        ("a b\na c", {"a": "c"}),
        ("", {}),
    ],
)
def test_sparks_own_file_is_read_as_java_reads_such_files(
    own_file: Path, text: str, settings: dict[str, str]
) -> None:
    own_file.write_text(text, newline="")
    assert settings_of_file() == settings


def test_an_unreadable_file_of_spark_is_an_error_with_its_name(
    own_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rejected(*_: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    own_file.write_text("spark.master local")
    monkeypatch.setattr(Path, "read_text", rejected)
    with pytest.raises(SettingsError, match="Permission denied") as found:
        settings_of_file()
    assert found.value.where["path"] == own_file


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "cores", lambda: 4)
    monkeypatch.setattr(session, "session_there", lambda: None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


@pytest.mark.parametrize(
    ("settings", "parallelism"),
    [
        ({}, 4),
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[3]"}, 3),
        ({"spark.master": "local[3, 2]"}, 3),
        ({"spark.master": "local[*]"}, 4),
        ({"spark.master": "spark://host:7077"}, None),
        ({"spark.master": "yarn"}, None),
        ({"spark.master": "local-cluster[2,1,1024]"}, None),
        ({"spark.master": "yarn", "spark.default.parallelism": "24"}, 24),
        ({"spark.default.parallelism": "7"}, 7),
    ],
)
def test_how_many_tasks_work_at_once_is_known_without_a_session(
    four_cores: None, settings: dict[str, str], parallelism: int | None
) -> None:
    assert parallelism_of(settings) == parallelism and cores() >= 1


def test_a_session_has_the_zone_of_the_conf_else_of_sparks_file_else_utc_with_its_workers(
    own_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "session_there", lambda: None)
    key, workers = "spark.sql.session.timeZone", "spark.executorEnv.TZ"
    assert session._zones({}) == {key: "UTC", workers: "UTC"}
    own_file.write_text(f"{key} Asia/Tokyo\n")
    assert session._zones({}) == {key: "Asia/Tokyo", workers: "Asia/Tokyo"}
    assert session.time_zone({key: "Europe/Berlin"}).name == "Europe/Berlin"
    own_file.write_text(f"{key} +09:00\n{workers} America/New_York\n")
    assert session._zones({}) == {key: "+09:00", workers: "America/New_York"}


TRACEBACK = (
    'Traceback (most recent call last):\n  File "/x/pyspark/worker.py", line 3, in '
    "main\n{raised}\n\n\tat org.apache.spark.api"
)


ERRORS = "pyspark.errors.exceptions.base."


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        ("ModuleNotFoundError: No module named 'etl'", "does not have the module etl"),
        ("ModuleNotFoundError: No module named 'numba.core'", "not have the module numba.core"),
        (
            f"{ERRORS}PySparkImportError: [PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be "
            "installed; however, it was not found.",
            "does not have the module PyArrow",
        ),
        ("ImportError: Numba needs NumPy 2.4 or less. Got NumPy 2.5.", "Numba needs NumPy 2.4 or"),
        (
            f"{ERRORS}PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has "
            "different version: 3.12 than that in driver: 3.11, PySpark cannot run.",
            "3.12 than that in driver: 3.11",
        ),
    ],
)
def test_missing_libraries_of_a_worker_are_reported_with_the_command_that_installs_them(
    raised: str, text: str
) -> None:
    error = lacking(TRACEBACK.format(raised=raised))
    assert error is not None and text in error.message and "`etl package" in error.action


def test_a_python_missing_on_the_workers_is_reported_with_its_path() -> None:
    error = lacking(
        'java.io.IOException: Cannot run program "./environment/bin/python": error=2, No '
        "such file or directory"
    )
    assert error is not None
    assert error.where == {"path": "./environment/bin/python"}
    assert "PYSPARK_PYTHON" in error.action


@pytest.mark.parametrize(
    "text",
    [
        TRACEBACK.format(raised="ModuleNotFoundError: No module named 'shop.rows'"),
        TRACEBACK.format(raised="ImportError: cannot import name 'clean' from 'shop'"),
        "No module named 'etl'",
        'Cannot run program "chmod": error=12, Cannot allocate memory',
        "",
    ],
)
def test_what_a_transform_lacks_and_other_failures_are_none_of_it(text: str) -> None:
    assert lacking(text) is None


MEMORY, EVENTS, MASTER = "spark.driver.memory", "spark.eventLog.dir", "spark.master"
SPARKS = "An error occurred while calling o1.x.\n: org.apache.spark.Spark"
EXITED = "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."


@pytest.mark.parametrize(
    ("settings", "raised", "printed", "text", "key"),
    [
        ({}, EXITED, "Invalid maximum heap size: -Xmx9z\nError: Could not", "-Xmx9z", MEMORY),
        (
            {},
            f"{SPARKS}IllegalArgumentException: System memory 1 must be at least",
            "",
            "1",
            MEMORY,
        ),
        ({MASTER: "x"}, f"{SPARKS}Exception: Master must either be yarn", "", "yarn", MASTER),
        (
            {EVENTS: "file:/no/x"},
            f"{SPARKS}X: y\n\tat z\nCaused by: java.io.FileNotFoundException: File file:/no/x is not",
            "",
            "start: java.io.FileNotFoundException: File file:/no/x is not",
            EVENTS,
        ),
        (
            {"spark.serializer": "a.Kyro"},
            ": java.lang.ClassNotFoundException: a.Kyro",
            "",
            "Kyro",
            "spark.serializer",
        ),
        (
            {},
            EXITED,
            'Exception in thread "main" java.x.Y: invalid null input: name',
            "user id",
            None,
        ),
        (
            {},
            EXITED,
            "Error opening zip file or JAR manifest missing : /a.jar\nagent library failed to init",
            "/a.jar",
            None,
        ),
        (
            {},
            EXITED,
            "Error occurred during initialization of VM\nMultiple garbage collectors selected",
            "start: Multiple garbage collectors selected",
            None,
        ),
        (
            {},
            EXITED,
            "Error occurred during initialization of VM\n"
            "Initial heap size set to a larger value than the maximum heap size",
            "Initial heap size",
            MEMORY,
        ),
        ({}, EXITED, "ERROR: transport error 202: bind failed: Address in use", "202", None),
        (
            {},
            EXITED,
            "Error opening zip file or JAR manifest missing : /a.jar\n"
            "/spark/bin/spark-class: line 97: CMD: bad array subscript",
            "/a.jar",
            None,
        ),
        ({}, EXITED, "JAVA_HOME is not set", "JAVA_HOME", None),
    ],
)
def test_a_session_that_does_not_start_is_reported_with_javas_reason_and_the_key(
    settings: dict[str, str], raised: str, printed: str, text: str, key: str | None
) -> None:
    error = error_of_start(raised, printed, settings)
    assert (error.exit_code, error.where.get("key")) == (2, key)
    assert text in error.message


def test_a_master_that_does_not_answer_and_a_jvm_that_is_killed_may_be_tried_again() -> None:
    away = error_of_start(
        "stopped SparkContext", "WARN Failed to connect to master a:7077", {MASTER: "spark://a"}
    )
    assert (away.exit_code, away.where["key"]) == (6, MASTER)
    for printed in (
        "",
        "NOTE: Picked up JDK_JAVA_OPTIONS: -Xss4m\nWARNING: Using incubator modules: a.b\n",
        "/spark/bin/spark-class: line 97: CMD: bad array subscript\n",
    ):
        killed = error_of_start(EXITED, printed, {MASTER: "local"})
        assert killed.exit_code == 6, printed


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({MEMORY: "4 gb"}, MEMORY),
        ({MEMORY: "4gb"}, MEMORY),
        ({MEMORY: "100m"}, MEMORY),
        ({"spark.executor.memory": "4,5g"}, "spark.executor.memory"),
        ({MASTER: "locl[2]"}, MASTER),
        ({MEMORY: "2G", "spark.executor.memory": "4GB", MASTER: "k8s://https://h:1"}, None),
        ({MASTER: "local[*, 4]", "spark.driver.maxResultSize": "0"}, None),
    ],
)
def test_wrong_sizes_and_masters_are_rejected_before_a_jvm_starts(
    settings: dict[str, str], key: str | None
) -> None:
    assert [error.where["key"] for error in invalid_settings(settings)] == [key] * bool(key)


def test_a_secret_is_in_no_line_of_py4js_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "aHVudGVyMg=="
    monkeypatch.setenv("STORE_KEY", secret)
    reported, log = dict[str, str](), logging.getLogger("py4j.clientserver")

    def set_in_jvm(key: str, value: str) -> None:
        log.debug("Command to send: %s %s", key, value)  # as py4j does with any call
        reported[key] = value

    hadoop: Any = SimpleNamespace(
        set=set_in_jvm, get=lambda key: None, getPropertySources=lambda key: None
    )
    own: Any = SimpleNamespace(contains=lambda key: False, set=lambda key, value: None)
    spark_context = SimpleNamespace(conf=lambda: own)
    context = SimpleNamespace(hadoopConfiguration=lambda: hadoop, sc=lambda: spark_context)
    session = cast(SparkSession, SimpleNamespace(_jvm=None, _jsc=context))
    endpoint = {"endpoint": "http://127.0.0.1:1/acme", "allow_http": True}
    store = {**endpoint, "account_key": "${env:STORE_KEY}"}
    path = "abfss://lake@acme.dfs.core.windows.net/t"
    table = plain_settings(table={"path": path, "store": store}).table
    assert isinstance(table.path, TablePath)
    with caplog.at_level(logging.DEBUG):
        enter_store(session, table.path)
    assert secret in reported.values()
    assert secret not in caplog.text and "endpoint" in caplog.text
    assert not log.disabled


@pytest.mark.parametrize(
    "theirs", [{"spark.driver.extraJavaOptions": "-Xlog:gc"}, {"spark.master": "yarn"}]
)
def test_a_jvm_with_configured_options_or_tasks_elsewhere_or_of_spark_submit_stays_as_it_is(
    theirs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert for_short_run(theirs, theirs) == theirs
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert for_short_run({}, ()) == {}
