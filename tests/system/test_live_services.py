"""The services of a run on real ZooKeeper, brokers, Spark and Delta satisfy `world_contract`."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from etl.io.brokers.simple_consumer import SimpleConsumer
from etl.io.delta.losses import read_losses
from etl.io.zookeeper.ledger import PlanLedger
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger.znode_paths import PipelinePaths
from etl.model.columns import arrow_schema
from etl.model.partitions import TopicPartition
from etl.model.plans import Loss, Request
from etl.run.live_services import LiveServices
from etl.run.run_context import RunContext
from etl.settings.choices import split_address
from etl.testkit.cluster import EmbeddedCluster
from etl.testkit.server_process import wait_until
from tests.builders import plain_settings
from tests.conftest import TopicFactory
from tests.fakes.world_contract import SIZES, WorldContract
from tests.traffic.modern import took

PIPELINE = "clicks"


class RealStage:
    """`world_contract.Stage` on ZooKeeper and Delta."""

    def __init__(
        self,
        cluster: EmbeddedCluster,
        group: str,
        topic: str,
        folder: Path,
        opened: contextlib.ExitStack,
    ) -> None:
        connect, bootstrap = cluster.zookeeper_connect, cluster.bootstrap
        self._connect, self._bootstrap, self._group = connect, bootstrap, group
        self._opened, self._table = opened, folder / "table"
        self.logs = tuple(TopicPartition(topic, partition) for partition in range(len(SIZES)))
        self.settings = plain_settings(
            pipeline=PIPELINE,
            group=group,
            zookeeper={"connect": connect},
            table={"path": str(self._table)},
            source={"topics": [topic], "request_timeout_s": 20, "bootstrap_servers": bootstrap},
            report={"path": str(folder / "reports")},
            ledger={"lock_timeout_s": 0},
        )
        self._ours = opened.enter_context(ZooKeeper(connect))
        self._ledger = PlanLedger(self._ours, group, PIPELINE)
        self._paths = PipelinePaths(group, PIPELINE)
        self._ours.ensure(self._paths.root)  # as the driver's lock does

    def world(self, run_id: str = "run-1", request: Request | None = None) -> LiveServices:
        return LiveServices(self.settings, self._session(), RunContext(), run_id, request=request)

    def _session(self) -> ZooKeeper:
        return self._opened.enter_context(ZooKeeper(self._connect))

    def rows(self) -> list[tuple[TopicPartition, int]]:
        columns = ["topic", "partition", "offset"]
        rows = DeltaTable(str(self._table)).to_pyarrow_table(columns=columns).to_pylist()
        places = [(TopicPartition(row["topic"], row["partition"]), row["offset"]) for row in rows]
        return sorted(places)

    def losses(self) -> list[Loss]:
        return list(read_losses(self.settings.table.losses_at, uid="uid1"))

    def plans(self) -> dict[int, str]:
        return {plan.number: plan.id for plan in self._ledger.read_plans()}

    def forget(self, number: int | None = None) -> None:
        if number:
            gone = [self._paths.plan(number), self._paths.applied(number)]
        else:
            gone = [self._paths.root]
        for path in gone:
            self._ours.delete_tree(path)
        self._ours.ensure(self._paths.root)

    def expire(self, partition: TopicPartition, until: int) -> None:
        from kafka import TopicPartition
        from kafka.admin import KafkaAdminClient

        with KafkaAdminClient(bootstrap_servers=self._bootstrap) as admin:
            admin.delete_records({TopicPartition(partition.topic, partition.partition): until})

    def replace_table(self) -> None:
        shutil.rmtree(self._table, ignore_errors=True)
        partition_by = list(self.settings.table.partition_by)
        DeltaTable.create(str(self._table), arrow_schema(), partition_by=partition_by)

    def clean_up_log(self) -> None:
        table = DeltaTable(str(self._table))
        table.create_checkpoint()
        for version in range(table.version() + 1):
            (self._table / "_delta_log" / f"{version:020}.json").unlink()


@pytest.fixture(scope="module")
def filled(cluster: EmbeddedCluster, topic: TopicFactory) -> str:
    """A topic with partitions of the sizes `SIZES`. Only its last partition changes."""
    name = topic(len(SIZES))
    host, port = split_address(cluster.bootstrap)
    with SimpleConsumer(host, port) as broker:
        for partition, size in enumerate(SIZES):
            records = [(None, b"%d" % number) for number in range(size)]
            assert wait_until(functools.partial(took, broker, name, partition, records), 60)
    return name


class TestTheRealWorld(WorldContract):
    @pytest.fixture
    def stage(
        self,
        cluster: EmbeddedCluster,
        filled: str,
        unused_group: str,
        tmp_path: Path,
        spark: SparkSession,
    ) -> Iterator[RealStage]:
        with contextlib.ExitStack() as opened:
            yield RealStage(cluster, unused_group, filled, tmp_path, opened)
