"""Encryption and logins of broker connections, and servers that are no brokers."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etl.errors import BrokerUnreachable, EtlError, NotKafka, PermissionDenied, SettingsError
from etl.io import tls
from etl.io.brokers.connection import Connection, IdleConnections
from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.io.tls import ConnectionBroken
from etl.kafka.request_values import FetchTarget
from etl.model.partitions import Isolation, TopicPartition
from etl.model.plans import OffsetRange
from etl.model.security import LocalFile, Security, Tls
from etl.reader.fetch import read_ranges
from etl.reader.fetch_options import FetchOptions
from etl.settings.load import security_of
from tests.fakes.batches import Batch, Rec, encode
from tests.fakes.broker import FakeBroker
from tests.fakes.guarded import REFUSED, WRONG, Guarded
from tests.fakes.sockets import listening
from tests.networks.certificates import Authority, Certificate

Certified = tuple[Authority, Certificate]
PASSWORD = "hunter2-of-all"
USERS = {"etl": PASSWORD}
LOG = TopicPartition("clicks", 0)


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        broker.append(
            "clicks",
            0,
            *(encode(Batch(10 * n, [Rec(i, b"value") for i in range(10)])) for n in range(3)),
        )
        yield broker


@pytest.fixture(scope="session")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    authority = Authority(tmp_path_factory.mktemp("certificates"), "authority")
    return authority, authority.signed("broker", "IP:127.0.0.1")


def way(mechanism: str = "PLAIN", *, ca: Path | None = None, **sasl: Any) -> Security:
    """SASL_PLAINTEXT, or SASL_SSL with that authority."""
    login = {"mechanism": mechanism, "username": "etl", "password": "${env:KAFKA_PASSWORD}", **sasl}
    return security_of(
        {"protocol": "SASL_SSL", "tls": {"ca_file": str(ca)}, "sasl": login}
        if ca
        else {"protocol": "SASL_PLAINTEXT", "sasl": login}
    )


def encrypted(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    return context


def trusting(authority: Authority) -> Security:
    return security_of({"protocol": "SSL", "tls": {"ca_file": str(authority.ca)}})


def consumer_of(port: Guarded, security: Security, **more: Any) -> SimpleConsumer:
    return SimpleConsumer("127.0.0.1", port.port, security=security, request_timeout_s=5, **more)


def opened(consumer: SimpleConsumer) -> Any:
    found = consumer._exchange._open
    assert found is not None
    return found[0]


def error_of(
    broker: FakeBroker,
    security: Security,
    error: type[EtlError],
    text: str | None = None,
    **listener: Any,
) -> EtlError:
    """What a request fails with at such a listener."""
    with Guarded(broker, **{"users": USERS, **listener}) as port:
        with consumer_of(port, security) as consumer, pytest.raises(error, match=text) as raised:
            consumer.topic_metadata(["clicks"])
    return raised.value


def test_records_are_the_same_with_a_login(broker: FakeBroker, certified: Certified) -> None:
    authority, certificate = certified
    with Guarded(broker, users=USERS, context=encrypted(certificate)) as port:
        broker.world.addresses[1] = ("127.0.0.1", port.port)
        options = FetchOptions(
            isolation=Isolation.READ_UNCOMMITTED,
            bootstrap=(("127.0.0.1", port.port),),
            security=way(ca=authority.ca),
        )
        ranges = [OffsetRange(LOG, 3, 27)]
        found = list(read_ranges(ranges, options, on_result=lambda index, result: None))
        offsets = [offset for batch in found for offset in batch["offset"].to_pylist()]
        assert offsets == list(range(3, 27))
        assert port.logins == port.connections


def test_session_tickets_are_no_answer(broker: FakeBroker, certified: Certified) -> None:
    authority, certificate = certified
    idle = IdleConnections()
    with Guarded(broker, context=encrypted(certificate)) as port:
        security = trusting(authority)
        with consumer_of(port, security, idle_connections=idle) as consumer:
            consumer.topic_metadata(["clicks"])
            assert not opened(consumer).is_answering(
                time.monotonic()
            )  # new session tickets of TLS 1.3 are no answer
            consumer.begin_fetch([FetchTarget(LOG, 0, 1 << 20)])
            assert consumer.is_answered(5.0) and consumer.is_answered(0)
            assert consumer.end_fetch().partitions[0].high_watermark == 30
        with consumer_of(port, security, idle_connections=idle) as consumer:
            assert consumer.topic_metadata(["clicks"]).topics
        assert port.connections == 1
        idle.close()


def test_an_encrypted_wait_is_interrupted(broker: FakeBroker, certified: Certified) -> None:
    authority, certificate = certified
    with Guarded(broker, context=encrypted(certificate)) as port:
        consumer = consumer_of(port, trusting(authority))
        consumer.begin_fetch([FetchTarget(LOG, 30, 1 << 20)], fetch_max_wait_ms=60_000, min_bytes=1)
        first = opened(consumer)
        first.interrupt()
        assert first.is_answering(time.monotonic() + 5)
        consumer.close()


def test_another_login_has_its_own_connections(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER", "other")
    idle = IdleConnections()
    with Guarded(broker, users={**USERS, "other": "other"}) as port:
        for security in (way(), way(), way(username="other", password="${env:OTHER}")):
            with consumer_of(port, security, idle_connections=idle) as consumer:
                consumer.topic_metadata(["clicks"])
        assert (port.connections, port.logins) == (2, 2)
        idle.close()


def test_a_login_is_renewed_between_requests(broker: FakeBroker) -> None:
    with (
        Guarded(broker, users=USERS, lifetime_ms=60_000) as port,
        consumer_of(port, way()) as consumer,
    ):
        consumer.topic_metadata(["clicks"])
        assert 50 < opened(consumer).renew_at - time.monotonic() <= 0.85 * 60
        consumer.begin_fetch([FetchTarget(LOG, 0, 1 << 20)])
        first = opened(consumer)
        first.renew_at = 0.0  # the time has come
        assert consumer.end_fetch().partitions[0].high_watermark == 30
        assert port.logins == 1
        consumer.begin_fetch([FetchTarget(LOG, 0, 1 << 20)])
        assert port.logins == 2 and opened(consumer) is not first
        assert consumer.end_fetch().partitions[0].high_watermark == 30


def test_an_expiring_login_is_not_reused(broker: FakeBroker) -> None:
    idle = IdleConnections()
    with Guarded(broker, users=USERS) as port:
        for _ in range(2):
            with consumer_of(port, way(), idle_connections=idle) as consumer:
                consumer.topic_metadata(["clicks"])
                opened(consumer).renew_at = 0.0
        assert port.logins == 2
        idle.close()


def test_a_login_that_ended_unnoticed_costs_a_connect(broker: FakeBroker) -> None:
    with Guarded(broker, users=USERS) as port, consumer_of(port, way()) as consumer:
        assert consumer.topic_metadata(["clicks"]).topics
        port.ended_at = time.monotonic()
        assert consumer.topic_metadata(["clicks"]).topics
        assert port.logins == 2


def test_a_rejected_login_does_not_show_the_secret(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "another-secret")
    refused = error_of(broker, way(), PermissionDenied, REFUSED)
    assert refused.where["key"] == "source.security.sasl.password"
    assert "***" in refused.message
    assert "another-secret" not in str(refused)


@pytest.mark.parametrize(
    ("text", "reported"),
    [(None, "SASL_AUTHENTICATION_FAILED"), ("no user hunter", r"no user \*\*\*")],
)
def test_the_text_of_a_rejection_is_masked(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, text: str | None, reported: str
) -> None:
    monkeypatch.setenv("KAFKA_USER", "hunter")
    security = way(username="${env:KAFKA_USER}")

    def refuses(token: bytes) -> tuple[int, bytes, str | None]:
        return WRONG, b"", text

    error_of(broker, security, PermissionDenied, reported, answers=refuses)


@pytest.mark.parametrize(
    "rounds", [b"i=1", b"i= 1", b"i=+1", b"i=1_0", b"i=4096,i=1", b"x=1,i=04095"]
)
def test_few_rounds_of_scram_are_refused(broker: FakeBroker, rounds: bytes) -> None:
    tokens = list[bytes]()

    def impostor(token: bytes) -> tuple[int, bytes, str | None]:
        tokens.append(token)
        return 0, b"r=" + token.rpartition(b"r=")[2] + b"more,s=c2FsdA==," + rounds, None

    text, mechanism = "SCRAM iterations, and the minimum is 4096", "SCRAM-SHA-256"
    listener: dict[str, Any] = {"answers": impostor, "mechanisms": (mechanism,)}
    error_of(broker, way(mechanism), PermissionDenied, text, **listener)
    assert len(tokens) == 1, "there is no proof, by which the password could be guessed"


@pytest.mark.parametrize(
    "answer", [b"", b"r=short", b"\xff\xfe", b"r=,s=,i=4096", b"e=other-error"]
)
def test_an_invalid_scram_answer_is_a_refusal(broker: FakeBroker, answer: bytes) -> None:
    def answers(token: bytes) -> tuple[int, bytes, str | None]:
        return 0, answer, None

    text, mechanism = "The login by SCRAM-SHA-512 failed: ", "SCRAM-SHA-512"
    listener: dict[str, Any] = {"answers": answers, "mechanisms": (mechanism,)}
    error_of(broker, way(mechanism), PermissionDenied, text, **listener)


@pytest.mark.parametrize(
    ("code", "exit_code", "text", "requested"),
    [
        (-1, 6, "UNKNOWN_SERVER_ERROR (code -1): a *** is away", 2),
        (7, 6, "REQUEST_TIMED_OUT", 2),
        (34, 2, "ILLEGAL_SASL_STATE", 1),
        (35, 2, "UNSUPPORTED_VERSION", 1),
        (4711, 1, "unknown error code 4711", 1),
    ],
)
@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_only_the_code_of_a_wrong_login_is_taken_for_one(
    broker: FakeBroker,
    monkeypatch: pytest.MonkeyPatch,
    mechanism: str,
    code: int,
    exit_code: int,
    text: str,
    requested: int,
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "quorum")
    tokens = list[bytes]()

    def fails(token: bytes) -> tuple[int, bytes, str | None]:
        tokens.append(token)
        return code, b"", "a quorum is away"

    if mechanism == "PLAIN":
        security = way()
    else:
        security = way(mechanism, username=None, password=None, token="${env:KAFKA_PASSWORD}")
    error = error_of(broker, security, EtlError, answers=fails, mechanisms=(mechanism,))
    assert error.exit_code == exit_code and type(error) is not PermissionDenied, repr(error)
    assert text in str(error) and "quorum" not in str(error)
    assert error.where["key"] == "source.security.sasl.mechanism"
    assert len(tokens) == requested


def test_a_failed_login_is_tried_once_more(broker: FakeBroker) -> None:
    answers = iter([(-1, b"", None), (0, b"", None)])
    with (
        Guarded(broker, users=USERS, answers=lambda token: next(answers)) as port,
        consumer_of(port, way()) as consumer,
    ):
        assert consumer.topic_metadata(["clicks"]).topics


@pytest.mark.parametrize(
    ("users", "mechanism", "error", "text"),
    [
        (USERS, None, PermissionDenied, "requires a login by PLAIN, and none is configured"),
        (None, "PLAIN", SettingsError, "does not use SASL, and a login is configured"),
        (USERS, "SCRAM-SHA-256", SettingsError, "SASL mechanism SCRAM-SHA-256; it supports PLAIN"),
    ],
)
def test_a_login_that_does_not_fit_the_listener_is_named(
    broker: FakeBroker, users: Any, mechanism: str | None, error: type[EtlError], text: str
) -> None:
    error_of(broker, way(mechanism) if mechanism else Security(), error, text, users=users)


def test_a_hang_up_without_a_login_is_a_broken_connection(broker: FakeBroker) -> None:
    with Guarded(broker) as port, consumer_of(port, Security()) as consumer:
        port.hangs_up = True
        with pytest.raises(BrokerUnreachable, match="The connection broke"):
            consumer.topic_metadata(["clicks"])


def test_a_second_hang_up_is_a_port_without_tls(broker: FakeBroker, certified: Certified) -> None:
    authority, certificate = certified
    with Guarded(broker, context=encrypted(certificate)) as port:
        security = trusting(authority)
        port.refuses = 2
        with (
            consumer_of(port, security) as consumer,
            pytest.raises(NotKafka, match="The port does not use TLS"),
        ):
            consumer.topic_metadata(["clicks"])
        port.refuses = 1
        with consumer_of(port, security) as consumer:
            assert consumer.topic_metadata(["clicks"]).topics


def test_a_reset_handshake_and_any_after_a_success_are_tried_until_the_deadline(
    broker: FakeBroker, certified: Certified
) -> None:
    authority, certificate = certified
    with Guarded(broker, context=encrypted(certificate)) as port:
        port.resets = 5
        with consumer_of(port, trusting(authority)) as consumer:
            assert consumer.topic_metadata(["clicks"]).topics
        port.refuses = 5
        with consumer_of(port, trusting(authority)) as consumer:
            assert consumer.topic_metadata(["clicks"]).topics
        port.resets = 10_000
        with SimpleConsumer(
            "127.0.0.1", port.port, security=trusting(authority), request_timeout_s=0.7
        ) as consumer:
            with pytest.raises(BrokerUnreachable, match="TLS handshake was cut off") as raised:
                consumer.topic_metadata(["clicks"])
    assert "source.security.protocol" in raised.value.action


def test_a_token_that_expires_on_its_way_is_requested_once_more(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "a-token")
    security = way("OAUTHBEARER", username=None, password=None, token="${env:TOKEN}")
    expired = (WRONG, b"", "invalid_token a-token")
    answers = iter([expired, (0, b"", None), expired, expired])
    listener: dict[str, Any] = {
        "answers": lambda token: next(answers),
        "mechanisms": ("OAUTHBEARER",),
    }
    with Guarded(broker, users=USERS, **listener) as port:
        with consumer_of(port, security) as consumer:
            assert consumer.topic_metadata(["clicks"]).topics
    error = error_of(broker, security, PermissionDenied, "invalid_token", **listener)
    assert error.where["key"] == "source.security.sasl.token"
    assert "a-token" not in str(error)


# Secrets


def test_a_failing_module_of_tokens_is_named_by_its_line(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokens_that_fail.py").write_text(f"raise RuntimeError({PASSWORD!r})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    security = way("OAUTHBEARER", username=None, password=None, token="tokens_that_fail:token")
    text = "raised RuntimeError at tokens_that_fail.py:1 and returned no token"
    error = error_of(broker, security, BrokerUnreachable, text, mechanisms=("OAUTHBEARER",))
    assert error.where["key"] == "source.security.sasl.token"
    assert PASSWORD not in f"{error} {error.as_json()}"


def test_a_variable_without_text_is_named_by_its_key(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "a\udcffb")
    text = "KAFKA_PASSWORD, which cannot be read: it is not UTF-8"
    error = error_of(broker, way(), SettingsError, text)
    assert error.where["key"] == "source.security.sasl.password"
    assert "udcff" not in repr(str(error))


# Servers that are no brokers, or that close the connection


def test_bytes_after_a_handshake_may_be_no_tls(certified: Certified) -> None:
    authority, certificate = certified

    def serve(connection: socket.socket) -> None:
        secured = encrypted(certificate).wrap_socket(connection, server_side=True)
        socket.socket.send(secured, b"nothing of the kind" * 9)
        secured.recv(1)

    security = trusting(authority)
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


def test_a_reset_handshake_is_a_broken_connection(certified: Certified) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connected = socket.create_connection(server.getsockname(), timeout=5)
        accepted, _ = server.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()
        waiting = select.poll()
        waiting.register(connected, 0)
        assert waiting.poll(5000)  # POLLERR, POLLHUP
        with pytest.raises(ConnectionBroken, match="in the TLS handshake"):
            tls.wrap(connected, "127.0.0.1", Tls(LocalFile(str(certified[0].ca))), "127.0.0.1:1")


def test_the_names_of_a_certificate_are_reported(certified: Certified) -> None:
    authority, certificate = certified
    named = list[str | None]()
    context = encrypted(certificate)
    context.sni_callback = lambda connection, name, own: named.append(name)

    def serve(connection: socket.socket) -> None:
        context.wrap_socket(connection, server_side=True).recv(1)

    security = trusting(authority)
    with (
        listening(serve) as port,
        pytest.raises(SettingsError, match="belongs to another host: 127.0.0.1"),
    ):
        Connection("localhost", port, time.monotonic() + 5, security)
    assert named == ["localhost", "localhost"]
