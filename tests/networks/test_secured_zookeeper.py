"""Pipelines, consumers and the data source with a secured ZooKeeper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etl import Consumer, Group, OffsetRanges
from tests.networks.commands import consume, loads, peeks
from tests.networks.secured import CHROOT, EVERYBODY, MakePipeline, Secured, guarded_for, rights
from tests.networks.secured_zookeeper import USERS

pytestmark = pytest.mark.networks
WAYS = [
    ("sasl", False),
    ("sasl", True),
    ("digest", False),
    ("digest", True),
    ("x509", True),
    (None, True),
]
JOIN = {"mode": "join"}
REASON = ("--reason", "seen")
TWO = ("--offset-reset", "earliest", "-n", "2", "--timeout", "60s")


@pytest.mark.parametrize(("scheme", "encrypted"), WAYS)
def test_every_way_in_goes_for_run_verify_doctor_and_peek(
    secured: Secured,
    piped: MakePipeline,
    scheme: str | None,
    encrypted: bool,
) -> None:
    acl = "creator" if scheme else "open"
    pipeline = piped(
        secured.security("PLAINTEXT"),
        zookeeper=secured.zookeeper_by(scheme, encrypted=encrypted, acl=acl),
    )
    loads(pipeline)
    doctor = pipeline.door("doctor")
    assert doctor.code == 0, doctor.out
    peeks(pipeline)
    kept, shared = rights(secured, pipeline)
    assert shared == {EVERYBODY} and len(kept) == 1
    [writers] = kept
    assert (
        writers == EVERYBODY
        if scheme is None
        else {one[0] for one in writers} <= {scheme, "world", "x509"} and EVERYBODY != writers
    )


def test_every_command_goes_by_the_same_way_and_what_it_makes_is_guarded(
    secured: Secured, piped: MakePipeline
) -> None:
    pipeline = piped(
        secured.security("PLAINTEXT"),
        zookeeper=secured.zookeeper_by("sasl", encrypted=True, acl="creator"),
        group=JOIN,
    )
    topic = pipeline.topic
    loads(pipeline)
    pipeline.produce(40)
    for words, after in (
        (("run", "--dry-run"), ()),
        (("lag",), ()),
        (("topics", "ready-to-load"), ("--until", "2020-01-01T00:00:00+00:00")),
        (("report",), ()),
        (("offsets", "show"), ()),
        (("offsets", "diff"), ()),
        (("topics", "pause"), ("-p", f"{topic}:1", *REASON)),
        (("offsets", "set"), ("-p", f"{topic}:0", "--to", "latest", "--yes", *REASON)),
        (("run",), ()),
        (("topics", "resume"), ("-p", topic, *REASON)),
        (("run",), ()),
        (("plans", "list"), ()),
        (("plans", "show"), ("1",)),
        (("pipelines", "list"), ()),
        (("backfills", "list"), ()),
        (("table", "maintain"), ("--yes",)),
        (("verify",), ()),
        (("records", "consume"), ("--group", f"{pipeline.group}-tail", "--topic", topic, *TWO)),
        (("pipelines", "retire"), REASON),
        (("pipelines", "resume"), REASON),
        (("doctor",), ()),
    ):
        result = pipeline.door(*words, after=after, json_too=words != ("report",))
        assert result.code == 0, (words, result.out, result.err)
    assert rights(secured, pipeline) == ({guarded_for(("sasl", "etl"))}, {EVERYBODY})


def test_a_consumer_of_a_zookeeper_group_reads_and_commits(
    secured: Secured, piped: MakePipeline
) -> None:
    pipeline = piped(secured.security("PLAINTEXT"))
    pipeline.produce(40)
    for scheme, encrypted in WAYS:
        way = secured.zookeeper_by(scheme, encrypted=encrypted)
        access: dict[str, Any] = {key: way[key] for key in ("tls", "auth") if key in way}
        group = Group(f"{pipeline.group}-{scheme}-{encrypted}", membership="zookeeper")
        with Consumer(
            zookeeper=way["connect"],
            group=group,
            auto_offset_reset="earliest",
            zookeeper_security=access,
        ) as consumer:
            consume(consumer, pipeline.topic, 40)


def test_the_data_source_alone_enters_zookeeper_by_references(
    secured: Secured,
    piped: MakePipeline,
    tmp_path: Path,
    spark: Any,
) -> None:
    pipeline = piped(secured.security("PLAINTEXT"))
    pipeline.produce(40)
    (tmp_path / "secret").write_text(USERS["etl"])
    spark.dataSource.register(OffsetRanges)

    def read(secret: Path) -> Any:
        return (
            spark.read.format("offset_ranges")
            .options(
                **{
                    "zookeeper": secured.zookeeper.encrypted + CHROOT,
                    "subscribe": pipeline.topic,
                    "listener": "PLAINTEXT",
                    "zookeeper_tls_ca_file": str(secured.authority.ca),
                    "zookeeper_auth_scheme": "sasl",
                    "zookeeper_auth_username": "etl",
                    "zookeeper_auth_password": f"${{file:{secret}}}",
                }
            )
            .load()
        )

    rows = read(tmp_path / "secret")
    assert rows.count() == 40 and USERS["etl"] not in rows._jdf.queryExecution().toString()
    with pytest.raises(Exception, match="zookeeper_auth_password") as failed:
        read(tmp_path / "nothing").count()
    assert USERS["etl"] not in str(failed.value)
