"""Write access to a pipeline's znodes under `zookeeper.acl`, and the change of that key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError
from kazoo.security import make_acl

from etl.commands.run import new_run_id
from etl.io.zookeeper.ledger import DriverLock
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.settings.connection_security import ZooKeeperSettings
from tests.command_result import refused
from tests.networks.secured import (
    CHROOT,
    EVERYBODY,
    MakePipeline,
    Secured,
    below,
    guarded_for,
    rights,
)
from tests.system.driving import Pipeline

pytestmark = pytest.mark.networks


def under(secured: Secured, pipeline: Pipeline, *way: str | None, **more: Any) -> Pipeline:
    """The same pipeline by another way into ZooKeeper."""
    pipeline.settings["zookeeper"] = secured.zookeeper_by(*way, **more)
    return pipeline


def loaded(pipeline: Pipeline) -> None:
    pipeline.produce(8)
    pipeline.ran()
    assert pipeline.is_whole()


def advised(pipeline: Pipeline) -> tuple[str, str]:
    """The verdict of doctor's line on ACLs, and what it found; it lets a run begin."""
    result = pipeline.door("doctor")
    assert result.code == 0, result.out
    [line] = [line for line in result.document["checks"] if line["name"] == "znode ACLs"]
    return line["verdict"], f"{line['found']} {line['to_do']}"


def test_strangers_read_what_a_pipeline_keeps_and_neither_change_nor_delete_it(
    secured: Secured, piped: MakePipeline
) -> None:
    pipeline = piped(
        secured.security("PLAINTEXT"), zookeeper=secured.zookeeper_by("sasl", acl="creator")
    )
    loaded(pipeline)
    assert rights(secured, pipeline) == ({guarded_for(("sasl", "etl"))}, {EVERYBODY})
    root, offset = (
        f"/consumers/{pipeline.group}/etl/clicks",
        f"/consumers/{pipeline.group}/offsets/{pipeline.topic}/0",
    )
    for user in (None, "another"):
        with secured.zookeeper.entered(user, chroot=CHROOT) as stranger:
            for path in below(stranger, root):
                assert stranger.get(path) is not None
                deeds: list[Callable[[], object]] = [
                    lambda: stranger.set(path, b""),
                    lambda: stranger.create(f"{path}/x"),  # noqa: B023, called at once
                    lambda: stranger.set_acls(path, stranger.get_acls(path)[0]),
                    lambda: stranger.delete(path),
                ]  # noqa: B023
                for deed in deeds[: None if path != root else -1]:
                    with pytest.raises(NoAuthError):
                        deed()
            stranger.set(offset, stranger.get(offset)[0])
    loaded(pipeline)


def test_open_znodes_are_guarded_by_a_command_and_opened_again_by_it(
    secured: Secured, piped: MakePipeline
) -> None:
    pipeline = piped(secured.security("PLAINTEXT"), zookeeper=secured.zookeeper_by(None))
    refused(
        pipeline.door("ledger", "apply-acl", after=["--yes"]), 2, "The group has no pipeline clicks"
    )
    loaded(pipeline)
    assert advised(pipeline)[0] == "ok"
    under(secured, pipeline, "sasl", acl="creator")
    loaded(pipeline)
    assert rights(secured, pipeline)[0] == {EVERYBODY, guarded_for(("sasl", "etl"))}, (
        "znodes that exist before the conf's change keep their ACLs"
    )
    verdict, result = advised(pipeline)
    assert (
        verdict == "advice"
        and "can be changed by everybody, and zookeeper.acl is creator" in result
        and "apply-acl" in result
    )
    done = pipeline.door("ledger", "apply-acl", after=["--yes"])
    assert (
        done.code == 0
        and done.document["acl"] == "creator"
        and "sasl user etl, alone" in done.document["message"]
    ), done.err
    assert rights(secured, pipeline) == ({guarded_for(("sasl", "etl"))}, {EVERYBODY})
    assert advised(pipeline)[0] == "ok"
    loaded(pipeline)

    under(secured, pipeline, None)
    refused(
        pipeline.run(),
        2,
        "ZooKeeper denies access",
        "znode",
        "none, since zookeeper.auth.scheme is not set",
        "apply-acl",
    )
    refused(pipeline.door("ledger", "apply-acl", after=["--yes"]), 2, "ZooKeeper denies access")
    under(secured, pipeline, "sasl", acl="open")
    loaded(pipeline)
    verdict, result = advised(pipeline)
    assert (
        verdict == "advice"
        and "can be changed by sasl:etl alone, and zookeeper.acl is open" in result
    )
    assert pipeline.door("ledger", "apply-acl", after=["--yes"]).code == 0
    assert rights(secured, pipeline) == ({EVERYBODY}, {EVERYBODY})
    under(secured, pipeline, None)
    loaded(pipeline)
    assert pipeline.door("verify").code == 0


@pytest.mark.parametrize(
    ("scheme", "as_other"),
    [
        ("sasl", "sasl user another"),
        ("digest", "digest user another, whose wrong password servers do not reject"),
    ],
)
def test_another_login_is_refused_by_every_verb_that_writes_and_let_in_by_two_commands(
    secured: Secured,
    piped: MakePipeline,
    scheme: str,
    as_other: str,
) -> None:
    pipeline = piped(
        secured.security("PLAINTEXT"), zookeeper=secured.zookeeper_by(scheme, acl="creator")
    )
    loaded(pipeline)
    pipeline.produce(8)
    under(secured, pipeline, scheme, user="another", acl="creator")
    for words, after in (
        (("run",), ()),
        (("ledger", "apply-acl"), ("--yes",)),
        (("pipelines", "retire"), ("--reason", "seen")),
        (("topics", "pause"), ("-p", f"{pipeline.topic}:0", "--reason", "seen")),
    ):
        refused(pipeline.door(*words, after=after), 2, "ZooKeeper denies access", as_other)
    doctor = pipeline.door("doctor", json_too=False)
    assert doctor.code == 2 and as_other in doctor.out, doctor.out
    assert pipeline.door("lag").code == 0, "who only looks is let in"

    under(secured, pipeline, scheme, acl="open")
    assert pipeline.door("ledger", "apply-acl", after=["--yes"]).code == 0
    under(secured, pipeline, scheme, user="another", acl="creator")
    assert pipeline.door("ledger", "apply-acl", after=["--yes"]).code == 0
    pipeline.ran()
    assert pipeline.is_whole() and len(rights(secured, pipeline)[0]) == 1
    assert advised(pipeline)[0] == "ok"
    refused(under(secured, pipeline, scheme, acl="creator").run(), 2, "ZooKeeper denies access")


def test_where_a_login_is_lost_the_superuser_opens_what_it_guarded(
    secured: Secured, piped: MakePipeline
) -> None:
    pipeline = piped(
        secured.security("PLAINTEXT"), zookeeper=secured.zookeeper_by("sasl", acl="creator")
    )
    loaded(pipeline)
    assert (
        under(secured, pipeline, "digest", user="super", acl="open")
        .door("ledger", "apply-acl", after=["--yes"])
        .code
        == 0
    )
    loaded(under(secured, pipeline, None))


def test_no_run_is_at_work_while_acls_are_set(secured: Secured, piped: MakePipeline) -> None:
    pipeline = piped(
        secured.security("PLAINTEXT"), zookeeper=secured.zookeeper_by("sasl", acl="creator")
    )
    loaded(pipeline)
    way = ZooKeeperSettings(**pipeline.settings["zookeeper"])
    with (
        ZooKeeper(way.connect, access=way.access) as other,
        DriverLock(other, pipeline.group, "clicks").driving(new_run_id(), wait_s=0),
    ):
        refused(
            pipeline.door("ledger", "apply-acl", after=["--yes"]), 4, "Another driver is at work"
        )


def test_the_least_permissions_of_the_page_are_enough(
    secured: Secured, piped: MakePipeline
) -> None:
    """docs/guides/networks-and-stores.md, "The least permissions", without a login."""
    pipeline = piped(secured.security("PLAINTEXT"), zookeeper=secured.zookeeper_by(None))
    kafka = make_acl("sasl", "kafka", all=True)
    least = {
        "/consumers": [kafka, make_acl("world", "anyone", read=True, create=True)],
        "/config/topics": [kafka],
    }
    with secured.zookeeper.entered("kafka", chroot=CHROOT) as owner:
        before = {path: owner.get_acls(path)[0] for path in least}
        for path, acls in least.items():
            owner.set_acls(path, acls)
        try:
            loaded(pipeline)
            assert [pipeline.door(command).code for command in ("doctor", "verify")] == [0, 0]
        finally:
            for path, acls in before.items():
                owner.set_acls(path, acls)
