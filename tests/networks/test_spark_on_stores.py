"""Spark's writer on stores: whole runs, and its log next to delta-rs's."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.stores.pipeline import StoredPipeline
from tests.stores.servers import STORES, StoreServer
from tests.system.driving import ROOT

pytestmark = [pytest.mark.networks]
_WITHIN_S = 400


@pytest.fixture
def pipeline(
    store: StoreServer,
    cluster: object,
    topic: TopicFactory,
    unused_group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> StoredPipeline:
    """A pipeline of two partitions with its table there, written by Spark."""
    store.give_secrets(monkeypatch)
    events = tmp_path / "events"
    events.mkdir()
    spark = {
        "spark.master": "local[2]",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(events),
    }
    return StoredPipeline(
        cluster,  # type: ignore[arg-type]
        tmp_path,
        topic(2),
        unused_group,
        {"spark": spark},
        store=store,
    )


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
