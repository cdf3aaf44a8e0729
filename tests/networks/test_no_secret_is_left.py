"""Files, logs and znodes of runs that fail: no secret is in them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from etl.cli.app import app
from tests.networks.certificates import KEY_PASSWORD
from tests.networks.secured import PASSWORD, MakePipeline, Secured
from tests.networks.secured_zookeeper import USERS, variable_of
from tests.system.driving import Pipeline

pytestmark = pytest.mark.networks
VERBS = ("observe", "store", "claiming", "fetch", "append", "record", "commit", "tidy")


def leftovers(pipeline: Pipeline, secrets: Collection[Path]) -> Iterator[tuple[str, bytes]]:
    """Every file of the pipeline's folder but the secrets' own, and every znode of its group."""
    for path in pipeline.folder.rglob("*"):
        if path.is_file() and path not in secrets:
            yield str(path), path.read_bytes()
    with pipeline.zookeeper() as client:
        waiting = [f"/consumers/{pipeline.group}"]
        while waiting:
            znode = waiting.pop()
            if client.exists(znode):
                yield znode, client.get(znode)[0]
                waiting += [f"{znode}/{name}" for name in client.get_children(znode)]


@pytest.mark.parametrize(
    ("writer", "mechanism", "scheme"),
    [("spark", "PLAIN", "sasl"), ("arrow", "OAUTHBEARER", "digest")],
)
def test_no_secret_is_in_what_a_run_leaves_that_fails_at_a_verb(
    secured: Secured,
    piped: MakePipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    writer: str,
    mechanism: str,
    scheme: str,
) -> None:
    """The most verbose output: kazoo, too, at DEBUG."""
    for variable in ("KAFKA_PASSWORD", *map(variable_of, USERS)):
        monkeypatch.delenv(variable)
    secret, of_zookeeper, of_key, events = (
        tmp_path / name for name in ("secret", "zookeeper", "key", "events")
    )
    events.mkdir()
    token = secured.token()
    secret.write_text(PASSWORD if mechanism == "PLAIN" else token)
    if mechanism == "PLAIN":
        reference = {"mechanism": mechanism, "username": "etl", "password": "${file:secret}"}
    else:
        reference = {"mechanism": mechanism, "token": "${file:secret}"}
    way = secured.security("SASL_SSL", mechanism)
    way["security"]["sasl"] = reference
    spark = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{events}",
        "spark.master": "local[2]",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.log.level": "DEBUG" if writer == "spark" else "INFO",
    }
    of_zookeeper.write_text(USERS["etl"])
    of_key.write_text(KEY_PASSWORD)
    locked = {
        "cert_file": str(secured.client.cert),
        "key_file": str(secured.authority.locked(secured.client)),
        "key_password": "${file:key}",
    }
    zookeeper = secured.zookeeper_by(scheme, encrypted=True, acl="creator", **locked)
    zookeeper["auth"]["password"] = "${file:zookeeper}"
    pipeline = piped(
        way,
        zookeeper=zookeeper,
        table={"writer": writer},
        limits={"local_below_bytes": 0},
        spark=spark,
    )
    results = list[tuple[str, bytes]]()
    for verb in VERBS:
        pipeline.produce(8)
        results.append((verb, failed_at(pipeline, verb)))
    pipeline.produce(8)
    way["security"]["sasl"] = {
        **reference,
        **({"username": "unknown"} if mechanism == "PLAIN" else {"token": "${file:events}"}),
    }
    results.append(("a refused login", failed_at(pipeline, "nothing")))
    pipeline.settings["zookeeper"] = {
        **zookeeper,
        "auth": {**zookeeper["auth"], "username": "kafka"},
    }
    results.append(
        ("a login that ZooKeeper refuses, or its znodes", failed_at(pipeline, "nothing"))
    )
    found = [*leftovers(pipeline, (secret, of_zookeeper, of_key)), *results]
    secrets = [secret.encode() for secret in (PASSWORD, token, USERS["etl"], KEY_PASSWORD)]
    assert {name for name, content in found if any(one in content for one in secrets)} == set()
    assert any("events" in name and b"SparkListenerTaskEnd" in content for name, content in found)
    assert all(b"DEBUG:kazoo.client" in content for _, content in results[: len(VERBS)]), (
        "the debug log of all libraries is on"
    )
    assert sum(b"Traceback" in content for _, content in results) >= len(VERBS) - 1


def failed_at(pipeline: Pipeline, verb: str) -> bytes:
    """All output of the run that fails there, with every traceback."""
    child = pipeline.start("tests.networks.failing_run", str(pipeline.conf), verb)
    out, err = child.communicate(timeout=240)
    assert child.returncode != 0, out
    return (out + err).encode()


_ONE = ("--reason", "seen")
COMMANDS: Mapping[str, Sequence[str]] = {
    "doctor": (),
    "lag": (),
    "verify": (),
    "records show": ("-p", "TOPIC:0", "-n", "2"),
    "offsets show": (),
    "offsets diff": (),
    "records consume": (
        "--group",
        "another",
        "--offset-reset",
        "earliest",
        "-n",
        "1",
        "--timeout",
        "30s",
    ),
    "topics ready-to-load": ("--until", "2026-01-01T00:00:00Z"),
    "table gaps": ("--from", "2026-01-01T00:00:00Z", "--until", "2026-01-01T03:00:00Z"),
    "topics pause": ("-p", "TOPIC:1", *_ONE),
    "topics resume": ("-p", "TOPIC:1", *_ONE),
    "offsets set": ("-p", "TOPIC:0", "--to", "latest", "--yes", *_ONE),
    "run": (),
    "ledger restore": ("--yes", *_ONE),
    "backfills run": (
        "b",
        "-p",
        "TOPIC:0",
        "--from",
        "0",
        "--until",
        "40",
        "--only-unloaded",
        "--yes",
    ),
    "backfills list": (),
    "backfills show": ("b",),
    "backfills delete": ("b", "--yes", *_ONE),
    "replay": ("-p", "TOPIC:0", "--from", "0", "--until", "2", "--yes", *_ONE),
    "plans list": (),
    "plans show": ("1",),
    "plans supersede": ("9", "--yes", *_ONE),
    "pipelines inherit": ("--predecessor", "unknown", "--yes", *_ONE),
    "table accept-changes": ("0", "--yes", *_ONE),
    "topics accept-changes": ("-p", "TOPIC", "--yes", *_ONE),
    "table compact": ("--dry-run",),
    "table maintain": ("--dry-run",),
    "report": (),
    "table refresh-path": ("--yes",),
    "pipelines list": (),
    "ledger apply-acl": ("--yes",),
    "pipelines resume": ("clicks", *_ONE),
    "pipelines retire": ("clicks", *_ONE),
}
"""The arguments after CONF of each command that takes one; the last ones leave no usable pipeline.
"""
_ASK_NO_BROKER = {  # in this state: the backfill is complete, and each row is counted
    "verify",
    "topics pause",
    "topics resume",
    "backfills list",
    "backfills show",
    "backfills delete",
    "plans list",
    "plans show",
    "table accept-changes",
    "table compact",
    "table maintain",
    "report",
    "table refresh-path",
    "pipelines list",
    "ledger apply-acl",
    "pipelines resume",
    "pipelines retire",
}


def test_the_commands_of_this_test_are_all_that_take_a_conf() -> None:
    assert set(COMMANDS) == {
        name
        for name, command in leaves(typer.main.get_command(app))
        if any(one.name == "conf" for one in command.params)
    }


def leaves(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word, below in command.commands.items():
        yield from leaves(below, f"{name} {word}".strip())


def test_no_output_or_file_of_any_command_has_a_secret_with_a_right_login_or_a_wrong_one(
    secured: Secured,
    piped: MakePipeline,
    tmp_path: Path,
    spark: Any,
) -> None:
    secret, wrong = tmp_path / "secret", "another-hunter3-secret"
    way = secured.security("SASL_SSL", "SCRAM-SHA-256")
    way["security"]["sasl"]["password"] = "${file:secret}"
    pipeline = piped(way)
    secret.write_text(PASSWORD)
    pipeline.produce(40)
    pipeline.ran()
    result, refused = dict[str, bytes](), set[str]()
    for name, words in COMMANDS.items():
        for password in (wrong, PASSWORD):
            secret.write_text(password)
            pipeline.produce(4)
            got = pipeline.door(
                *name.split(), after=[word.replace("TOPIC", pipeline.topic) for word in words]
            )
            result[f"{name} by {password}"] = (got.out + got.err).encode()
            assert got.code != 1 and "Traceback" not in got.err, (name, got.err)
            if password == wrong and "refuses the login" in got.err:
                assert got.code == 2 and "source.security.sasl.password" in got.err, got.err
                refused.add(name)
            assert password == wrong or "refuses the login" not in got.err, got.err
    assert set(COMMANDS) - refused == _ASK_NO_BROKER
    found = [*leftovers(pipeline, (secret,)), *result.items()]
    assert {
        name for name, content in found if any(one.encode() in content for one in (PASSWORD, wrong))
    } == set()
