"""Data source, consumers and `etl records consume` with connection security."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etl import Consumer, OffsetRanges
from tests.command_result import refused, run_etl
from tests.networks.commands import consume
from tests.networks.secured import PASSWORD, MakePipeline, Secured

pytestmark = pytest.mark.networks


@pytest.mark.parametrize("found_by", ["bootstrap", "zookeeper"])
def test_the_data_source_alone_takes_references_and_its_plan_holds_no_secret(
    secured: Secured,
    piped: MakePipeline,
    tmp_path: Path,
    spark: Any,
    found_by: str,
) -> None:
    pipeline = piped(secured.security("SASL_SSL", "SCRAM-SHA-512"))
    pipeline.produce(40)
    (tmp_path / "secret").write_text(PASSWORD)
    spark.dataSource.register(OffsetRanges)
    if found_by == "bootstrap":
        place = {"kafka.bootstrap.servers": f"localhost:{secured.ports['SASL_SSL']}"}
    else:
        place = {"zookeeper": secured.cluster.zookeeper_connect, "listener": "SASL_SSL"}

    def read(secret: Path) -> Any:
        return (
            spark.read.format("offset_ranges")
            .options(**place)
            .options(
                **{
                    "subscribe": pipeline.topic,
                    "kafka.security.protocol": "SASL_SSL",
                    "tls_ca_file": str(secured.authority.ca),
                    "kafka.sasl.mechanism": "SCRAM-SHA-512",
                    "sasl_username": "etl",
                    "sasl_password": f"${{file:{secret}}}",
                }
            )
            .load()
        )

    rows = read(tmp_path / "secret")
    assert rows.count() == 40
    assert PASSWORD not in rows._jdf.queryExecution().toString()
    with pytest.raises(
        Exception, match="sasl_password refers to the file .*, which does not exist"
    ) as failed:
        read(tmp_path / "nothing").count()
    assert PASSWORD not in str(failed.value)


def test_a_consumer_in_a_group_reads_and_commits(secured: Secured, piped: MakePipeline) -> None:
    way = secured.security("SASL_SSL", "PLAIN")
    pipeline = piped(way)
    pipeline.produce(40)
    with Consumer(
        f"localhost:{secured.ports['SASL_SSL']}",
        group=pipeline.group,
        auto_offset_reset="earliest",
        security=way["security"],
    ) as consumer:
        consume(consumer, pipeline.topic, 40)


def test_tail_shows_what_its_group_is_given(secured: Secured, piped: MakePipeline) -> None:
    pipeline = piped(secured.security("SASL_PLAINTEXT", "SCRAM-SHA-256"))
    pipeline.produce(8)
    group = ("--group", f"{pipeline.group}-tail", "--set", "group.offsets_storage=kafka")
    bounds = ("--offset-reset", "earliest", "-n", "8", "--timeout", "60s")
    result = pipeline.door("records", "consume", after=[*group, *bounds])
    assert result.code == 0 and len(result.document["records"]) == 8, result.err + result.out


def test_a_first_conf_lists_the_keys_to_set_and_with_them_the_doctor_passes_and_a_run_loads(
    secured: Secured,
    piped: MakePipeline,
    tmp_path: Path,
) -> None:
    pipeline = piped(secured.security("SSL"))
    pipeline.produce(8)
    (tmp_path / "secret").write_text(PASSWORD)
    conf = tmp_path / "conf" / "clicks.yaml"
    servers = ("--zookeeper", secured.cluster.zookeeper_connect, "--topic", pipeline.topic)
    places = ("--table", str(tmp_path / "table"), "--output", str(conf))
    words = ("init", *servers, *places, "--json")
    bootstrap = ["--bootstrap-servers", f"localhost:{secured.ports['SASL_SSL']}"]
    refused(
        run_etl(*words, *bootstrap),
        2,
        "The port speaks TLS",
        "--set source.security.protocol=SASL_SSL",
    )
    bootstrap = ["--bootstrap-servers", f"localhost:{secured.ports['SASL_PLAINTEXT']}"]
    refused(
        run_etl(*words, *bootstrap),
        2,
        "requires a login by",
        "'source.security.sasl.password=${file:/PATH}'",
    )
    refused(
        run_etl(*words, "--set", "source.listener=SASL_SSL"),
        2,
        "has a listener of PLAINTEXT by the name SASL_SSL",
        "--set source.security.protocol=SASL_SSL",
    )
    results = [
        word
        for key in (
            "protocol=SASL_SSL",
            "sasl.mechanism=SCRAM-SHA-512",
            "sasl.username=etl",
            f"sasl.password=${{file:{tmp_path}/secret}}",
            f"tls.ca_file={secured.authority.ca}",
        )
        for word in ("--set", f"source.security.{key}")
    ]
    assert run_etl(*words, *results, "--set", "source.listener=SASL_SSL").code == 0
    assert PASSWORD not in conf.read_text()
    for command in ("doctor", "run"):
        reported = run_etl(command, str(conf), "--json", "--set", "table.writer=arrow")
        assert reported.code == 0, reported.err + reported.out
