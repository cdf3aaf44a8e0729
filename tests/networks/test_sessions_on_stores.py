"""Sessions that write to another store than the pipeline's table, or precede the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from etl.testkit.cluster import EmbeddedCluster
from tests.conftest import TopicFactory
from tests.stores.servers import SECRET_VARIABLE, Moto
from tests.system.driving import ROOT, WITHOUT_SPARK, Pipeline

pytestmark = pytest.mark.networks
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
        for _ in range(2):
            child = pipeline.start(
                "etl",
                "replay",
                str(pipeline.conf),
                "--partition",
                pipeline.topic,
                "--from",
                "0",
                "--until",
                "50",
                "--into",
                "s3://lake/again",
                "--yes",
                "--reason",
                "seen",
                **variables,
            )
            out, err = child.communicate(timeout=400)
            assert child.returncode == 0, err
            assert (
                "50 rows are in s3://lake/again, each once" in out and "commits on S3 by" not in err
            )
        rows = DeltaTable("s3://lake/again", storage_options=store.options()).to_pyarrow_table(
            columns=["offset"]
        )
        assert sorted(rows["offset"].to_pylist()) == list(range(50))
