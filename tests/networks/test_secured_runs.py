"""Pipelines on brokers with encryption and logins, however long a login is valid."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError

from etl.commands.run import run
from etl.settings.load import load_settings
from tests.command_result import refused
from tests.networks.commands import loads, peeks
from tests.networks.secured import CHROOT, PASSWORD, MakePipeline, Secured
from tests.system.driving import Before

WAYS = [
    ("SSL", ""),
    ("SASL_PLAINTEXT", "PLAIN"),
    *(("SASL_SSL", one) for one in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")),
]
"""`test_ways_in` has each mechanism with and without encryption."""


def test_a_pipeline_with_encryption_and_a_login_loads_each_record_once(
    secured: Secured, piped: MakePipeline
) -> None:
    """At its brokers and at its ZooKeeper, where no other login changes its znodes."""
    zookeeper = secured.zookeeper_by("sasl", encrypted=True, acl="creator")
    pipeline = piped(secured.security("SASL_SSL", "PLAIN"), partitions=1, zookeeper=zookeeper)
    pipeline.produce(20, partitions=1)
    assert "WARN" not in pipeline.ran().err
    assert pipeline.is_whole()
    pipeline.settings["source"] = secured.security("SASL_PLAINTEXT", "SCRAM-SHA-512")
    peeks(pipeline)
    with secured.zookeeper.entered("another", chroot=CHROOT) as stranger:
        plan, offset = (
            f"/consumers/{pipeline.group}/etl/clicks/plans/1",
            f"/consumers/{pipeline.group}/offsets/{pipeline.topic}/0",
        )
        changes: list[Callable[[], object]] = [
            lambda: stranger.set(plan, b""),
            lambda: stranger.create(f"{plan}/x"),
            lambda: stranger.delete(plan),
        ]
        for change in changes:
            with pytest.raises(NoAuthError):
                change()
        assert stranger.get(plan) and stranger.set(offset, stranger.get(offset)[0])


@pytest.mark.networks
@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_every_way_in_goes_for_run_verify_doctor_and_peek(
    secured: Secured,
    piped: MakePipeline,
    protocol: str,
    mechanism: str,
) -> None:
    pipeline = piped(secured.security(protocol, mechanism))
    loads(pipeline)
    doctor = pipeline.door("doctor")
    assert doctor.code == 0, doctor.out
    peeks(pipeline)


@pytest.mark.networks
def test_tasks_of_spark_enter_by_the_same_way(
    secured: Secured, piped: MakePipeline, spark: Any
) -> None:
    pipeline = piped(
        secured.security("SASL_SSL", "SCRAM-SHA-256"),
        table={"writer": "spark"},
        limits={"local_below_bytes": 0},
    )
    loads(pipeline)


@pytest.mark.networks
def test_brokers_by_address_offsets_in_kafka_and_a_membership_go_by_the_same_way(
    secured: Secured, piped: MakePipeline
) -> None:
    way = secured.security("SASL_SSL", "SCRAM-SHA-512")
    by_address = {"listener": None, "bootstrap_servers": f"localhost:{secured.ports['SASL_SSL']}"}
    pipeline = piped(
        way,
        source=by_address,
        group={
            "offsets_storage": "kafka",
            "mode": "join",
            "join": {"session_timeout_s": 10},
        },
        ledger={"lock_timeout_s": 0},
    )
    for _ in range(2):
        pipeline.produce(40)
        pipeline.ran()
    assert pipeline.is_whole()


@pytest.mark.networks
def test_a_stored_plan_continues_with_another_connection_security(
    secured: Secured, piped: MakePipeline
) -> None:
    pipeline = piped(secured.security("PLAINTEXT"))
    pipeline.produce(40)
    assert pipeline.killed_before("fetch") == -9
    pipeline.settings["source"] = secured.security("SASL_SSL", "PLAIN")
    pipeline.ran()
    assert pipeline.is_whole()


@pytest.mark.networks
def test_an_unknown_listener_is_reported_with_the_existing_ones(
    secured: Secured, piped: MakePipeline
) -> None:
    pipeline = piped({**secured.security("SASL_SSL", "PLAIN"), "listener": "NOWHERE"})
    refused(
        pipeline.run(),
        2,
        "None of the 1 registered brokers has a listener of SASL_SSL by the name NOWHERE",
        "MUTUAL (SSL)",
    )


@pytest.mark.networks
@pytest.mark.parametrize("writer", ["spark", "arrow"])
def test_an_executor_without_the_secret_ends_the_run_with_its_host_and_the_file(
    secured: Secured,
    piped: MakePipeline,
    tmp_path: Path,
    writer: str,
    spark: Any,
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD)
    way = secured.security("SASL_SSL", "PLAIN")
    way["security"]["sasl"]["password"] = "${file:secret}"
    without_spark = 0 if writer == "spark" else 1 << 30
    pipeline = piped(way, table={"writer": writer}, limits={"local_below_bytes": without_spark})
    pipeline.produce(40)
    with pytest.raises(
        Exception, match="source.security.sasl.password refers to the .*, which does not exist"
    ) as failed:
        run(load_settings(pipeline.conf), around=Before("append", secret.unlink))
    assert getattr(failed.value, "exit_code", None) == 2
    assert failed.value.where["host"]  # type: ignore[attr-defined]
    assert str(secret) in str(failed.value)
    secret.write_text(PASSWORD)
    pipeline.ran()
    assert pipeline.is_whole()


@pytest.mark.networks
@pytest.mark.parametrize("writer", ["processes", "arrow", "spark"])
@pytest.mark.parametrize(
    ("listener", "sasl"),
    [
        ("SHORT", {}),
        (
            "SASL_PLAINTEXT",
            {"mechanism": "OAUTHBEARER", "token": "tests.networks.tokens:short_token"},
        ),
    ],
)
def test_logins_that_end_amid_a_long_task_cost_a_connect_and_nothing_else(
    secured: Secured,
    piped: MakePipeline,
    tmp_path: Path,
    listener: str,
    sasl: dict[str, Any],
    writer: str,
) -> None:
    """The broker ends a login of SHORT after 4 s (KIP-368); the task takes more than 20."""
    counted = tmp_path / "tokens"
    way = secured.security("SASL_PLAINTEXT", "PLAIN", listener=listener)
    if sasl:
        way["security"]["sasl"] = sasl
    by_spark = {
        "table": {"writer": writer},
        "limits": {"local_below_bytes": 0},
        "spark": {"spark.master": "local[1]"},
    }
    pipeline = piped(
        way,
        partitions=1,
        source={"fetch_max_bytes": 1024},
        **{} if writer == "processes" else by_spark,
        transform={"record_batch": "tests.networks.tokens:slowly"},
    )
    pipeline.produce(200, partitions=1)
    child = pipeline.start("etl", "run", str(pipeline.conf), "--json", TOKENS_ASKED=str(counted))
    out, err = child.communicate(timeout=300)
    assert child.returncode == 0 and "WARN" not in err.upper(), err
    ran = json.loads(out)
    assert [one["outcome"] for one in ran["outcomes"]] == ["ingested"]
    assert (
        writer in ran["plan"]["writer"]
        or writer == "processes"
        and "without Spark" in ran["plan"]["writer"]
    )
    assert pipeline.is_whole()
    assert pipeline.door("verify").code == 0
    assert float((tmp_path / "tokens.took").read_text()) > 20
    assert not sasl or len(counted.read_text()) >= 5


@pytest.mark.networks
def test_the_least_acls_of_the_page_are_enough(secured: Secured, piped: MakePipeline) -> None:
    """docs/guides/networks-and-stores.md, "The least permissions"."""
    pipeline = piped(secured.security("SASL_PLAINTEXT", "PLAIN"), partitions=1)
    pipeline.produce(20, partitions=1)
    group = secured.allow("GROUP", pipeline.group, "READ", user="another")
    cluster = secured.allow("BROKER", "kafka-cluster", "DESCRIBE", user="another")
    topic = secured.allow("TOPIC", pipeline.topic, "READ")
    with group, cluster, topic:
        assert pipeline.door("run", after=["--dry-run"]).code == 0
        assert pipeline.ran().outcomes == ["ingested"]
        assert [pipeline.door(command).code for command in ("verify", "lag")] == [0, 0]
        peeks(pipeline)
        pipeline.settings["group"] = {"offsets_storage": "kafka"}
        refused(pipeline.run(), 2, pipeline.group, "ACL")
        with secured.allow("GROUP", pipeline.group, "READ"):
            assert pipeline.run().code == 0
            pipeline.produce(20, partitions=1)
            assert pipeline.ran().outcomes == ["ingested"]
