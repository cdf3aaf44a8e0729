"""The artifacts of each release, as far as they can be checked without fetching and starting it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from etl.errors import SettingsError
from etl.testkit.brokers import DEFAULT_VERSION, JAFKA, RELEASES, Kafka, release
from etl.testkit.cluster import EmbeddedCluster

FACTS = {"id", "host", "port", "folder", "zookeeper", "voters", "roles", "listeners"}


def test_the_default_is_a_release_and_so_is_jafka() -> None:
    assert {DEFAULT_VERSION, JAFKA} <= RELEASES.keys()


@pytest.mark.parametrize("version", RELEASES)
def test_every_artifact_is_of_one_version(version: str) -> None:
    assert all(
        artifact.version.replace(".", "").isalnum() for artifact in release(version).artifacts
    ), "ranges bring new jars each month"


@pytest.mark.parametrize("version", RELEASES)
def test_a_release_has_only_configs_that_its_broker_knows(version: str) -> None:
    for text in release(version).properties.values():
        text.format_map(dict.fromkeys(FACTS, "known"))


@pytest.mark.parametrize(
    "version", [version for version, row in RELEASES.items() if row.has_zookeeper]
)
def test_a_release_that_needs_zookeeper_is_refused_without(version: str) -> None:
    with pytest.raises(SettingsError, match="needs a ZooKeeper"):
        Kafka(version=version)


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
