"""Artifacts, confs, folders and ports of each release, without starting one."""

from __future__ import annotations

import socket
import tempfile
import threading
from pathlib import Path

import pytest

from etl.errors import SettingsError
from etl.testkit.brokers import (
    DEFAULT_VERSION,
    JAFKA,
    RELEASES,
    Kafka,
    Metadata,
    metadata,
    parse_metadata,
    release,
)
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import free_port

FACTS = {"id", "host", "port", "folder", "zookeeper", "voters", "roles", "listeners"}


def test_a_cluster_deletes_the_folder_that_it_made_and_none_of_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "kept").mkdir()
    EmbeddedCluster(folder=tmp_path / "kept").__exit__(None, None, None)
    assert (tmp_path / "kept").exists()
    cluster = EmbeddedCluster()
    assert cluster.folder.exists()
    cluster.__exit__(None, None, None)
    assert not cluster.folder.exists()


def test_a_version_that_cannot_be_embedded_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SettingsError, match=r"jafka-3\.0\.6, 0\.8\.2\.2"):
        EmbeddedCluster(version="0.0.1")
    assert not list(tmp_path.iterdir())


def test_no_two_servers_that_are_about_to_start_are_given_one_port() -> None:
    ports = [free_port() for _ in range(900)]
    assert len(set(ports)) == len(ports)


# Correlation 0; one broker, 7 at h:9 (and no rack); the controller 7; one topic, t: partition 0 is
# led by 7, partition 1 has no leader.
_BROKER = "00000001 00000007 000168 00000009"
_PARTITIONS = (
    "00000002 0000 00000000 00000007 00000001 00000007 00000001 00000007 0005 00000001 ffffffff "
    "00000001 00000007 00000000"
)
_V0 = bytes.fromhex(f"00000000 {_BROKER} 00000001 0000 000174 {_PARTITIONS}")
_V1_WITHOUT_TOPICS = bytes.fromhex(f"00000000 {_BROKER} ffff 00000007 00000000")


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


@pytest.mark.parametrize("version", sorted({*RELEASES, DEFAULT_VERSION, JAFKA}))
def test_a_release_has_artifacts_of_one_version_and_configs_that_its_broker_knows(
    version: str,
) -> None:
    found = release(version)
    for artifact in found.artifacts:
        assert artifact.version.replace(".", "").isalnum(), "ranges bring new jars each month"
    for text in found.properties.values():
        text.format_map(dict.fromkeys(FACTS, "known"))
    if found.has_zookeeper:
        with pytest.raises(SettingsError, match="needs a ZooKeeper"):
            Kafka(version=version)


def test_metadata_of_version_0_has_leaders_and_that_of_version_1_the_controller() -> None:
    assert parse_metadata(_V0, version=0) == Metadata(frozenset({7}), None, {"t": {0: 7, 1: -1}})
    assert parse_metadata(_V1_WITHOUT_TOPICS, version=1) == Metadata(frozenset({7}), 7, {})
