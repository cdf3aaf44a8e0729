"""What runs that fail leave behind, wherever it lies: no secret is in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.networks.secured import PASSWORD, MakePipeline, Secured
from tests.system.driving import Pipeline

pytestmark = pytest.mark.networks
VERBS = ("observe", "store", "claiming", "fetch", "append", "record", "commit", "tidy")


def left_behind(pipeline: Pipeline, secret: Path) -> Iterator[tuple[str, bytes]]:
    """Every file of the pipeline's folder but the secret's own, and every znode of its group."""
    for path in pipeline.folder.rglob("*"):
        if path.is_file() and path != secret:
            yield str(path), path.read_bytes()
    client = KazooClient(hosts=pipeline.cluster.zookeeper_connect)
    client.start()
    try:
        waiting = [f"/consumers/{pipeline.group}"]
        while waiting:
            znode = waiting.pop()
            if client.exists(znode):
                yield znode, client.get(znode)[0]
                waiting += [f"{znode}/{name}" for name in client.get_children(znode)]
    finally:
        client.stop()
        client.close()


@pytest.mark.parametrize(("writer", "mechanism"), [("spark", "PLAIN"), ("arrow", "OAUTHBEARER")])
def test_no_secret_is_in_what_a_run_leaves_that_fails_at_a_verb(
    secured: Secured, piped: MakePipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str, mechanism: str,
) -> None:
    monkeypatch.delenv("KAFKA_PASSWORD")
    secret, events = tmp_path / "secret", tmp_path / "events"
    events.mkdir()
    token = secured.token()
    secret.write_text(PASSWORD if mechanism == "PLAIN" else token)
    reference = {"mechanism": mechanism, "username": "etl", "password": "${file:secret}"} if mechanism == "PLAIN" else {
        "mechanism": mechanism, "token": "${file:secret}"}
    way = secured.security("SASL_SSL", mechanism)
    way["security"]["sasl"] = reference
    spark = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{events}", "spark.master": "local[2]",
             "spark.eventLog.compress": "false", "spark.eventLog.rolling.enabled": "false",
             "spark.log.level": "DEBUG" if writer == "spark" else "INFO"}
    pipeline = piped(way, table={"writer": writer}, limits={"without_spark_below_bytes": 0}, spark=spark)
    said = list[tuple[str, bytes]]()
    for verb in VERBS:
        pipeline.produce(8)
        said.append((verb, failed_at(pipeline, verb)))
    pipeline.produce(8)
    way["security"]["sasl"] = {**reference, **({"username": "nobody"} if mechanism == "PLAIN" else {"token": "${file:events}"})}
    said.append(("a refused login", failed_at(pipeline, "nothing")))
    found = [*left_behind(pipeline, secret), *said]
    secrets = [PASSWORD.encode(), token.encode()]
    assert {name for name, content in found if any(one in content for one in secrets)} == set()
    assert any("events" in name and b"SparkListenerTaskEnd" in content for name, content in found)
    assert sum(b"Traceback" in content for _, content in said) >= len(VERBS) - 1


def failed_at(pipeline: Pipeline, verb: str) -> bytes:
    """All that the run says which fails there, with every traceback."""
    child = pipeline.start("tests.networks.failing_run", str(pipeline.conf), verb)
    out, err = child.communicate(timeout=240)
    assert child.returncode != 0, out
    return (out + err).encode()
