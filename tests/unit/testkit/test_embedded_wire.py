"""Answers of embedded brokers about themselves, and a broker that closes the connection."""

from __future__ import annotations

import socket
import threading

import pytest

from etl.testkit.brokers import Metadata, metadata, parse_metadata

# Correlation 0; one broker, 7 at h:9 (and no rack); the controller 7; one topic, t: partition 0 is
# led by 7, partition 1 has no leader.
_BROKER = "00000001 00000007 000168 00000009"
_PARTITIONS = (
    "00000002 0000 00000000 00000007 00000001 00000007 00000001 00000007 0005 00000001 ffffffff "
    "00000001 00000007 00000000"
)
_V0 = bytes.fromhex(f"00000000 {_BROKER} 00000001 0000 000174 {_PARTITIONS}")
_V1_WITHOUT_TOPICS = bytes.fromhex(f"00000000 {_BROKER} ffff 00000007 00000000")


def test_version_0_has_brokers_and_leaders_and_no_controller() -> None:
    assert parse_metadata(_V0, version=0) == Metadata(frozenset({7}), None, {"t": {0: 7, 1: -1}})


def test_version_1_has_the_controller_and_requests_no_topic() -> None:
    assert parse_metadata(_V1_WITHOUT_TOPICS, version=1) == Metadata(frozenset({7}), 7, {})


@pytest.mark.parametrize("answer", [b"", b"\0\0", b"\0\0\0\x09half"])
def test_a_broker_that_hangs_up_early_is_a_broken_connection(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(OSError):
            metadata(server.getsockname()[1], version=1)
        thread.join()
