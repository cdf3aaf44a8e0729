"""Spark's writer on stores: whole runs, and its log next to delta-rs's."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from etl.testkit.cluster import EmbeddedCluster
from tests.conftest import TopicFactory
from tests.stores.pipeline import StoredPipeline
from tests.stores.servers import SECRET_VARIABLE, STORES, Moto, StoreServer
from tests.system.driving import ROOT, WITHOUT_SPARK, Pipeline

pytestmark = [pytest.mark.networks]
_WITHIN_S = 400


@pytest.fixture
def pipeline(
    store: StoreServer, make_stored: Callable[..., StoredPipeline], tmp_path: Path
) -> StoredPipeline:
    """A pipeline of two partitions with its table there, written by Spark."""
    events = tmp_path / "events"
    events.mkdir()
    spark = {
        "spark.master": "local[2]",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(events),
    }
    return make_stored(store, settings={"spark": spark}, everywhere={})


def command(pipeline: StoredPipeline, *words: str) -> subprocess.CompletedProcess[str]:
    """A command on the conf in a process of its own, with a JVM of its own where it needs one."""
    child = pipeline.start("etl", *words)
    out, err = child.communicate(timeout=_WITHIN_S)
    return subprocess.CompletedProcess(words, child.returncode, out, err)


def test_runs_by_spark_load_rows_once_are_proven_and_tidied_and_leave_no_secret(
    pipeline: StoredPipeline,
) -> None:
    for _ in range(2):
        pipeline.produce(200, partitions=2)
        ran = command(pipeline, "run", str(pipeline.conf))
        assert ran.returncode == 0, ran.stderr
        assert pipeline.is_whole()
    for words in (("doctor",), ("verify",), ("table", "compact"), ("table", "maintain", "--yes")):
        ran = command(pipeline, *words, str(pipeline.conf))
        assert ran.returncode == 0, (words, ran.stdout, ran.stderr)
    assert pipeline.is_whole()
    reported = [file for file in pipeline.folder.rglob("*") if file.is_file()]
    assert any(
        file.parent.name.startswith("eventlog") or file.parent.name == "events" for file in reported
    )
    for secret in pipeline.store.secrets.values():
        assert not [file for file in reported if secret.encode() in file.read_bytes()]


def test_a_run_by_spark_that_is_killed_is_finished_by_the_next_one(
    pipeline: StoredPipeline,
) -> None:
    pipeline.produce(100, partitions=2)
    assert pipeline.killed_before("record") != 0
    ran = command(pipeline, "run", str(pipeline.conf))
    assert ran.returncode == 0, ran.stderr
    assert pipeline.is_whole()


def test_flags_by_which_commits_could_replace_one_another_are_refused_before_anything_is_read(
    pipeline: StoredPipeline,
) -> None:
    if not pipeline.url.startswith("s3"):
        pytest.skip("these are flags of S3A")
    pipeline.settings["spark"] |= {"spark.hadoop.fs.s3a.performance.flags": "mkdir, create"}
    pipeline.produce(20, partitions=2)
    for words in (("run",), ("doctor",)):
        ran = command(pipeline, *words, str(pipeline.conf))
        assert ran.returncode == 2 and "fs.s3a.performance.flags" in ran.stdout + ran.stderr, (
            ran.stdout,
            ran.stderr,
        )


@pytest.mark.parametrize("kind", list(STORES))
def test_of_sparks_log_and_delta_rs_exactly_one_commits_each_version(
    kind: str, tmp_path: Path
) -> None:
    """Fifty races, and ten commits whose file was begun before delta-rs's commit."""
    with contextlib.ExitStack() as closing:
        server = closing.enter_context(STORES[kind](tmp_path / "store"))
        given = json.dumps(
            {"url": server.url("raced"), "settings": server.settings(), "options": server.options()}
        )
        ran = subprocess.run(
            [sys.executable, "-m", "tests.stores.race", given, "50", "10"],
            cwd=ROOT,
            env={**server.environment(), **server.secrets},
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        found = json.loads(ran.stdout.splitlines()[-1])
    assert found["both"] == found["none"] == found["replaced"] == found["begun_before"] == 0, found
    assert found["spark"] + found["delta_rs"] == 50


SECRET = "aHVudGVyMi1vZi1hbGw="


@pytest.mark.parametrize(
    ("url", "expression"),
    [
        ("abfss://lake@acme.dfs.core.windows.net/t", None),
        ("abfss://lake@acme.dfs.core.windows.net/t", "(?i)password"),
        ("s3://lake/t", "(?i)password"),
    ],
)
def test_the_key_of_a_store_is_not_in_the_event_log_of_a_session_that_was_there_before(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    expression: str | None,
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    words = [str(tmp_path), url, *([expression] if expression else [])]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.stores.notebook", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    reported = "".join(file.read_text() for file in tmp_path.rglob("*") if file.is_file())
    assert (
        "fs.azure.account.key.acme" if "abfss" in url else "fs.s3a.bucket.lake.secret.key"
    ) in reported
    assert SECRET not in reported


def test_rows_of_a_local_table_are_replayed_into_one_on_s3_by_the_log_that_keeps_writers_apart(
    cluster: EmbeddedCluster,
    topic: TopicFactory,
    unused_group: str,
    tmp_path: Path,
) -> None:
    with Moto(tmp_path / "store") as store:
        hadoop = {
            f"spark.hadoop.fs.s3a.{name}": value
            for name, value in (
                ("endpoint", store.endpoint),
                ("endpoint.region", "us-east-1"),
                ("path.style.access", "true"),
                ("connection.ssl.enabled", "false"),
            )
        }
        variables = {
            "AWS_ENDPOINT_URL": store.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": store.key,
            "AWS_SECRET_ACCESS_KEY": store.secret,
        }
        pipeline = Pipeline(
            cluster,
            tmp_path,
            topic(1),
            unused_group,
            {"spark": {"spark.master": "local[2]", **hadoop}},
            everywhere=WITHOUT_SPARK,
        )
        pipeline.produce(60, partitions=1)
        pipeline.ran()
        rows = ("--partition", pipeline.topic, "--from", "0", "--until", "50")
        words = (*rows, "--into", "s3://lake/again", "--yes", "--reason", "seen")
        for _ in range(2):
            child = pipeline.start("etl", "replay", str(pipeline.conf), *words, **variables)
            out, err = child.communicate(timeout=400)
            assert child.returncode == 0, err
            assert (
                "50 rows are in s3://lake/again, each once" in out and "commits on S3 by" not in err
            )
        table = DeltaTable("s3://lake/again", storage_options=store.options())
        offsets = table.to_pyarrow_table(columns=["offset"])["offset"].to_pylist()
        assert sorted(offsets) == list(range(50))
