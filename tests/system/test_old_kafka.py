"""A real broker of Kafka 0.8.2.2: valid and invalid confs for it, and runs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from etl.commands.plans import preview
from etl.errors import OtherRelease
from etl.settings.sections import Settings
from etl.testkit.cluster import EmbeddedCluster
from tests.builders import plain_settings


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(version="0.8.2.2", folder=tmp_path_factory.mktemp("old")) as running:
        running.create_topic("clicks", 2)
        yield running


def settings_of(old: EmbeddedCluster, folder: Path, **source: object) -> Settings:
    return plain_settings(
        zookeeper={"connect": old.zookeeper_connect},
        group=f"group-{uuid.uuid4().hex}",
        table={"path": str(folder / "table")},
        source={"assume_cluster_id": "old", "topics": ["clicks"], **source},
        report={"path": str(folder / "reports")},
    )


def test_a_broker_version_above_the_brokers_own_is_reported_as_that_setting(
    old: EmbeddedCluster, tmp_path: Path
) -> None:
    for value in ("0.9", "0.10.0", "0.10.2", "0.11", "1.1", "2.8", "3.9", "4.1"):
        with pytest.raises(
            OtherRelease, match=f"treated as Kafka {value}.*answers like Kafka 0.8"
        ) as refused:
            preview(settings_of(old, tmp_path, broker_version=value, request_timeout_s=5))
        assert (refused.value.exit_code, refused.value.where["key"]) == (2, "source.broker_version")
    assert (
        preview(settings_of(old, tmp_path, broker_version="0.8")).summary
        == preview(settings_of(old, tmp_path)).summary
    )
