"""Servers on a broker's port that are no brokers, or that close the connection: which answers are
accepted, and which data is sent.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from etl.errors import BrokerUnreachable, PermissionDenied, SettingsError
from etl.io import tls
from etl.io.brokers.connection import Connection
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.io.tls import ConnectionBroken
from etl.model.security import LocalFile, Security, SecurityProtocol, Tls
from etl.settings.load import security_of
from tests.fakes.broker import FakeBroker
from tests.fakes.guarded import WRONG, Guarded
from tests.networks.certificates import Authority, Certificate

SECRET = "hunter2-of-all"


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Certificate]:
    authority = Authority(tmp_path_factory.mktemp("certificates"), "authority")
    return authority, authority.signed("broker", "IP:127.0.0.1")


def serving(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    return context


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port that serves its connections one after the other."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    with server.accept()[0] as connection, suppress(OSError):
                        serve(connection)

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def connect(port: int, sasl: dict[str, str]) -> None:
    security = security_of({"protocol": "SASL_PLAINTEXT", "sasl": sasl})
    with SimpleConsumer("127.0.0.1", port, security=security, request_timeout_s=5) as consumer:
        consumer.topic_metadata(["clicks"])


@pytest.mark.parametrize("rounds", [b"i= 1", b"i=+1", b"i=1_0", b"i=4096,i=1", b"x=1,i=04095"])
def test_few_rounds_of_scram_that_are_written_otherwise_are_few(
    monkeypatch: pytest.MonkeyPatch, rounds: bytes
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    reported = list[bytes]()

    def impostor(token: bytes) -> tuple[int, bytes, str | None]:
        reported.append(token)
        return 0, b"r=" + token.rpartition(b"r=")[2] + b"more,s=c2FsdA==," + rounds, None

    with (
        FakeBroker() as broker,
        Guarded(
            broker, users={"etl": SECRET}, answers=impostor, mechanisms=("SCRAM-SHA-256",)
        ) as port,
    ):
        with pytest.raises(PermissionDenied, match="SCRAM iterations, and the minimum is 4096"):
            connect(
                port.port,
                {
                    "mechanism": "SCRAM-SHA-256",
                    "username": "etl",
                    "password": "${env:KAFKA_PASSWORD}",
                },
            )
    assert len(reported) == 1  # no proof, by which the password could be guessed


def test_bytes_after_the_handshake_that_are_no_tls_are_a_broken_connection(
    signed: tuple[Authority, Certificate],
) -> None:
    authority, certificate = signed

    def serve(connection: socket.socket) -> None:
        encrypted = serving(certificate).wrap_socket(connection, server_side=True)
        socket.socket.send(encrypted, b"nothing of the kind" * 9)
        encrypted.recv(1)

    security = Security(SecurityProtocol.SSL, tls=Tls(LocalFile(str(authority.ca))))
    with listening(serve) as port:
        deadline = time.monotonic() + 5
        connection = Connection("127.0.0.1", port, deadline, security)
        with pytest.raises(ConnectionBroken) as broken:
            connection.receive(deadline, lambda size: memoryview(bytearray(size)), max_bytes=9)
        connection.close()
    assert broken.value.each_time is None


def test_an_end_after_the_handshake_proves_nothing_about_the_port() -> None:
    ended = ssl.SSLEOFError(8, "EOF occurred in violation of protocol")
    ended.reason = "UNEXPECTED_EOF_WHILE_READING"
    assert tls.refused(ended, "broker:9093") is None


def test_a_connection_that_is_reset_before_the_handshake_broke(
    signed: tuple[Authority, Certificate],
) -> None:
    is_connected = threading.Event()

    def reset(connection: socket.socket) -> None:
        is_connected.wait(5)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with listening(reset) as port:
        connected = socket.create_connection(("127.0.0.1", port), timeout=5)
        is_connected.set()
        waiting = select.poll()
        waiting.register(connected, 0)
        assert waiting.poll(5000)  # POLLERR, POLLHUP
        with pytest.raises(ConnectionBroken, match="in the TLS handshake"):
            tls.wrap(connected, "127.0.0.1", Tls(LocalFile(str(signed[0].ca))), f"127.0.0.1:{port}")


def test_the_names_of_a_certificate_are_requested_under_the_name_that_did_not_match(
    signed: tuple[Authority, Certificate],
) -> None:
    authority, certificate = signed
    named = list[str | None]()
    context = serving(certificate)
    context.sni_callback = lambda connection, name, own: named.append(name)

    def serve(connection: socket.socket) -> None:
        context.wrap_socket(connection, server_side=True).recv(1)

    with (
        listening(serve) as port,
        pytest.raises(SettingsError, match="belongs to another host: 127.0.0.1"),
    ):
        Connection(
            "localhost",
            port,
            time.monotonic() + 5,
            Security(SecurityProtocol.SSL, tls=Tls(LocalFile(str(authority.ca)))),
        )
    assert named == ["localhost", "localhost"]


def test_a_module_of_tokens_that_fails_at_its_import_is_reported_by_its_line_only(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "tokens_that_fail.py").write_text(f"raise RuntimeError({SECRET!r})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with FakeBroker() as broker, Guarded(broker, users={}, mechanisms=("OAUTHBEARER",)) as port:
        with pytest.raises(
            BrokerUnreachable,
            match=r"raised RuntimeError at tokens_that_fail.py:1 and returned no token",
        ) as error:
            connect(port.port, {"mechanism": "OAUTHBEARER", "token": "tokens_that_fail:token"})
    assert (
        error.value.where["key"] == "source.security.sasl.token"
        and SECRET not in f"{error.value} {error.value.as_json()}"
    )


def test_a_referenced_name_is_masked_in_the_brokers_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KAFKA_USER", SECRET)
    monkeypatch.setenv("KAFKA_PASSWORD", "another")
    refusing = (WRONG, b"", f"no user {SECRET}")
    with FakeBroker() as broker, Guarded(broker, users={}, answers=lambda token: refusing) as port:
        with pytest.raises(PermissionDenied, match=r"no user \*\*\*"):
            connect(
                port.port,
                {
                    "mechanism": "PLAIN",
                    "username": "${env:KAFKA_USER}",
                    "password": "${env:KAFKA_PASSWORD}",
                },
            )


def test_a_variable_of_bytes_that_are_no_text_is_reported_by_its_key_and_without_its_content(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "a\udcffb")
    with FakeBroker() as broker, Guarded(broker, users={}) as port:
        with pytest.raises(
            SettingsError, match="KAFKA_PASSWORD, which cannot be read: it is not UTF-8"
        ) as error:
            connect(
                port.port,
                {"mechanism": "PLAIN", "username": "etl", "password": "${env:KAFKA_PASSWORD}"},
            )
    assert error.value.where["key"] == "source.security.sasl.password" and "udcff" not in repr(
        str(error.value)
    )
