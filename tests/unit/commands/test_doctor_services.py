"""The checks of `etl doctor` on ZooKeeper and brokers: foreign servers, and the ACLs of znodes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from etl.commands.doctor_machine import Verdict
from etl.commands.doctor_services import acl_line
from etl.errors import (
    ZooKeeperUnreachable,
)
from etl.io.zookeeper.permissions import ask_server
from etl.kafka.versions import release
from etl.model.security import EVERYBODY, Acl


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[int]:
    """A port that gives one answer to each connection in turn and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1024)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    with contextlib.suppress(OSError):
                        connection.recv(1024)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(5)


_GRANTED = bytes.fromhex("000000250000000000000fa0000000000000000100000010") + b"\0" * 17


def test_a_zookeeper_that_keeps_its_version_to_itself_is_reached_all_the_same() -> None:
    with answering(b"srvr is not executed because it is not in the whitelist.\n", _GRANTED) as port:
        answer = ask_server("127.0.0.1", port, session_timeout_s=10, timeout_s=5)
    assert (answer.version, answer.mode, answer.granted_s) == (None, None, 4.0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "hangs up"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
        (_GRANTED[:20], "hangs up"),
        (b"\xff\xff\xff\xff", "not ZooKeeper's"),
    ],
)
def test_a_port_that_is_not_zookeepers_or_takes_no_session_is_named(
    answer: bytes, words: str
) -> None:
    looked_at = [] if answer else [b""]  # whether it speaks TLS
    with (
        answering(answer, answer, *looked_at) as port,
        pytest.raises(ZooKeeperUnreachable, match=words) as caught,
    ):
        ask_server("127.0.0.1", port, session_timeout_s=10, timeout_s=5)
    assert caught.value.where == {"server": f"127.0.0.1:{port}"}


@pytest.mark.parametrize(
    ("spoken", "version"),
    [
        ({1: (0, 5), 3: (0, 4), 18: (0, 1)}, "0.11"),
        ({1: (0, 17), 3: (0, 12), 18: (0, 4)}, "3.9"),
        ({18: (0, 0)}, "0.10.0"),
    ],
)
def test_a_brokers_release_is_guessed_from_the_requests_it_speaks(
    spoken: dict[int, tuple[int, int]], version: str
) -> None:
    assert release(spoken) == version


OPEN, OURS = frozenset({EVERYBODY}), frozenset({"sasl:etl"})
OTHERS = frozenset({"digest:etl:hash-of-a-password"})
ANOTHER_PASSWORD = (
    "by digest:etl alone, and the login of this conf is digest:etl with another password"
)


@pytest.mark.parametrize(
    ("acl", "writers", "ours", "message"),
    [
        (Acl.CREATOR, [OPEN, OURS, OPEN], "sasl:etl", "2 of 3 znodes (/0, /2) can be changed by"),
        (Acl.OPEN, [OPEN, OTHERS], "sasl:etl", "1 of 2 znodes (/1) can be changed by digest:etl"),
        (Acl.CREATOR, [OURS, OTHERS], "sasl:etl", "some by digest:etl or sasl:etl"),
        (Acl.CREATOR, [OTHERS], "digest:etl:another-hash", ANOTHER_PASSWORD),
        (Acl.CREATOR, [OURS], "sasl:x", "sasl:etl alone, and the login of this conf is sasl:x"),
    ],
    ids=["open", "guarded", "two logins", "another password", "another login"],
)
def test_znodes_that_are_not_as_configured_are_reported_before_a_run_is_denied_and_without_a_hash(
    acl: Acl, writers: list[frozenset[str]], ours: str, message: str
) -> None:
    znodes = {f"/{number}": found for number, found in enumerate(writers)}
    line = acl_line("znode ACLs", acl, znodes, ours)
    assert line.verdict is Verdict.ADVICE and message in line.found and "hash" not in line.found
    is_open = "can be changed by everybody" in line.found
    assert is_open <= ("`etl ledger apply-acl CONF`" in line.to_do)
    assert is_open == (acl is Acl.CREATOR and OPEN in writers)


@pytest.mark.parametrize(
    ("acl", "writers", "ours"),
    [
        (Acl.OPEN, OPEN, "sasl:etl"),
        (Acl.CREATOR, OURS, "sasl:etl"),
        (Acl.CREATOR, OURS | {"x509:CN=client"}, "sasl:etl"),
        (Acl.CREATOR, OTHERS, None),
        (Acl.CREATOR, None, None),
    ],
    ids=["open", "ours", "ours by two ways", "a certificate's user is unknown", "all are hidden"],
)
def test_znodes_as_configured_are_ok(
    acl: Acl, writers: frozenset[str] | None, ours: str | None
) -> None:
    znodes = {"/a": writers, "/b": writers} if writers else {}
    assert acl_line("znode ACLs", acl, znodes, ours).verdict is Verdict.OK
