"""Which settings a session gets: the caller's, then what spark-submit was told, then ours."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from etl.decisions.file_layout import level_of
from etl.edges.machine import cores
from etl.edges.spark import session
from etl.edges.spark.session import DELTA_PACKAGE, LOCAL_MASTER, complete, for_short_run, parallelism_of
from etl.model.data_files import Codec


@pytest.fixture(autouse=True)
def nobody_chose_a_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


def test_alone_a_session_is_local_retries_tasks_and_runs_this_python() -> None:
    chosen = complete({}, {})
    assert chosen["spark.master"] == LOCAL_MASTER == "local[*,4]"
    assert chosen["spark.pyspark.python"] == sys.executable
    assert chosen["spark.jars.packages"] == DELTA_PACKAGE
    assert chosen["spark.driver.bindAddress"] == "127.0.0.1"


def test_what_spark_submit_was_told_is_not_set_again() -> None:
    submitted = {"spark.master": "spark://host:7077", "spark.jars": "/delta.jar", "spark.sql.shuffle.partitions": "64"}
    chosen = complete({}, submitted)
    assert not {"spark.sql.shuffle.partitions", "spark.jars.packages", "spark.pyspark.python", "spark.driver.host"} & set(chosen)
    assert chosen["spark.sql.catalog.spark_catalog"].endswith("DeltaCatalog")


def test_zstd_tries_as_hard_by_either_writer_unless_somebody_says_otherwise() -> None:
    level = "spark.hadoop.parquet.compression.codec.zstd.level"
    assert complete({}, {})[level] == str(level_of(Codec.ZSTD))
    assert complete({level: "9"}, {})[level] == "9" and level not in complete({}, {level: "9"})


def test_the_callers_settings_win() -> None:
    chosen = complete({"spark.master": "local[1]", "spark.ui.enabled": "true"}, {"spark.ui.enabled": "false"})
    assert (chosen["spark.master"], chosen["spark.ui.enabled"]) == ("local[1]", "true")


@pytest.mark.parametrize("given", [{"spark.sql.extensions": "my.Extension"}, {}])
def test_delta_joins_the_extensions_that_are_there(given: dict[str, str]) -> None:
    delta = "io.delta.sql.DeltaSparkSessionExtension"
    wanted = ",".join([*given.values(), delta])
    assert complete(given, {})["spark.sql.extensions"] == wanted
    if given:
        assert complete({}, given)["spark.sql.extensions"] == wanted
        assert complete({"spark.sql.extensions": wanted}, {})["spark.sql.extensions"] == wanted


def test_a_short_run_has_a_jvm_of_one_compiler_beside_what_it_is_told_already() -> None:
    options, archive = "spark.driver.extraJavaOptions", "-XX:SharedArchiveFile=classes.jsa"
    assert for_short_run({options: archive}, ())[options] == f"{archive} -XX:TieredStopAtLevel=1"
    assert for_short_run({}, ()) == {options: "-XX:TieredStopAtLevel=1"}


@pytest.mark.parametrize("theirs", [{"spark.driver.extraJavaOptions": "-Xlog:gc"}, {"spark.master": "yarn"}])
def test_a_jvm_whose_options_others_chose_or_whose_tasks_run_elsewhere_stays_as_it_is(theirs: dict[str, str]) -> None:
    assert for_short_run(theirs, theirs) == theirs


@pytest.mark.parametrize("place", ["SPARK_CONF_DIR", "SPARK_HOME"])
def test_a_jvm_whose_options_are_in_sparks_own_file_keeps_them(place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options, folder = "spark.driver.extraJavaOptions", tmp_path if place == "SPARK_CONF_DIR" else tmp_path / "conf"
    folder.mkdir(exist_ok=True)
    for other in ("SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(place, str(tmp_path))
    assert options in for_short_run({}, ()), "there is no such file"
    file = folder / "spark-defaults.conf"
    file.write_text(f"# {options} -Xlog:gc\nspark.driver.extraJavaOptionsOfMine 1\n")
    assert options in for_short_run({}, ()), "it names others"
    file.write_text(f"spark.ui.enabled false\n  {options}=-Djavax.net.ssl.trustStore=ours\n")
    assert for_short_run({}, ()) == {}


def test_a_jvm_that_spark_submit_has_started_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert for_short_run({}, ()) == {}


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "cores", lambda: 4)
    monkeypatch.setattr(session, "session_there", lambda: None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


@pytest.mark.parametrize(("settings", "parallelism"), [
    ({}, 4), ({"spark.master": "local"}, 1), ({"spark.master": "local[3]"}, 3), ({"spark.master": "local[3, 2]"}, 3),
    ({"spark.master": "local[*]"}, 4), ({"spark.master": "spark://host:7077"}, None), ({"spark.master": "yarn"}, None),
    ({"spark.master": "local-cluster[2,1,1024]"}, None), ({"spark.master": "yarn", "spark.default.parallelism": "24"}, 24),
    ({"spark.default.parallelism": "7"}, 7),
])
def test_how_many_tasks_work_at_once_is_known_without_a_session(
    four_cores: None, settings: dict[str, str], parallelism: int | None,
) -> None:
    assert parallelism_of(settings) == parallelism


def test_the_cores_are_some() -> None:
    assert cores() >= 1
