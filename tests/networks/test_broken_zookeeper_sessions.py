"""Broken and ended ZooKeeper sessions of a run, with login and encryption."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import pytest

from etl.commands.run import run
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.settings.connection_security import ZooKeeperSettings
from etl.settings.load import load_settings
from etl.testkit.server_process import wait_until
from tests.chaos.zookeeper_proxy import Lost, ZooKeeperProxy
from tests.networks.secured import CHROOT, MakePipeline, Secured
from tests.system.driving import Before, lose_session

pytestmark = pytest.mark.networks
WAYS = {
    "anonymous": (None, False),
    "sasl by TLS": ("sasl", True),
    "digest": ("digest", False),
    "x509": ("x509", True),
}
_SASL = 102
"""The operation in ZooKeeper's protocol."""


def keys_of(secured: Secured, way: str) -> dict[str, Any]:
    scheme, encrypted = WAYS[way]
    return secured.zookeeper_by(scheme, encrypted=encrypted, acl="creator" if scheme else "open")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verb", ["store", "append", "record"])
def test_a_session_that_ends_before_a_verb_costs_a_new_beginning_and_no_record(
    secured: Secured,
    piped: MakePipeline,
    way: str,
    verb: str,
) -> None:
    pipeline = piped(secured.security("PLAINTEXT"), zookeeper=keys_of(secured, way))
    pipeline.produce(40)

    def end_it() -> None:
        session = around.world.zookeeper
        lose_session(session, secured.zookeeper.connect)
        assert wait_until(lambda: session.life.is_over, 30)

    around = Before(verb, end_it)
    assert run(load_settings(pipeline.conf), around=around).exit_code == 0 and around.happened
    assert pipeline.is_whole()
    pipeline.produce(8)
    pipeline.ran()
    assert pipeline.is_whole()


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_is_started_again_amid_a_run_is_entered_anew_by_the_same_session(
    secured: Secured,
    piped: MakePipeline,
    way: str,
) -> None:
    pipeline = piped(
        secured.security("PLAINTEXT"), zookeeper={**keys_of(secured, way), "session_timeout_s": 40}
    )
    pipeline.produce(40)
    around = Before("record", secured.zookeeper.restart)
    report = run(load_settings(pipeline.conf), around=around)
    assert report.exit_code == 0 and around.happened
    assert pipeline.is_whole()


def test_servers_that_go_away_amid_a_login_again_and_again_are_not_taken_for_ones_that_refuse_it(
    secured: Secured,
) -> None:
    keys = ZooKeeperSettings(**secured.zookeeper_by("sasl"))
    with (
        ZooKeeperProxy(secured.zookeeper.port) as proxy,
        (
            ZooKeeper(
                proxy.connect + CHROOT,
                session_timeout_s=30,
                connect_timeout_s=30,
                access=keys.access,
            )
        ) as session,
    ):
        number = session.client.client_id
        for _ in range(3):
            proxy.lose(Lost.REQUEST, lambda operation, _: operation == _SASL)
            for one in list(proxy._open):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            assert proxy.happened.wait(30)
            proxy.lose(Lost.REQUEST, lambda operation, _: operation == _SASL)
            assert proxy.happened.wait(30)
            assert session.children("/brokers") is not None
        assert session.client.client_id == number
