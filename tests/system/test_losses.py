"""The losses table: each lost interval of a plan is in it once; and commands that give offsets up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from kafka import TopicPartition as KafkaTopicPartition
from kafka.admin import KafkaAdminClient
from pyspark.sql import SparkSession

from etl.errors import FileLost, NotOurTable
from etl.io.delta import losses
from etl.io.delta.losses import read_losses, record_losses, recorded
from etl.ledger.plan_document import with_id
from etl.model.partitions import TopicPartition
from etl.model.plans import Loss, LossReason, OffsetRange, Plan
from tests.builders import plain_plan
from tests.chaos.sources import delete_topic
from tests.command_result import refused
from tests.system.driving import Pipeline, broken_off_before

pytestmark = pytest.mark.without_spark

APP = "offset-range-etl/cluster/group/clicks"
LOG, OTHER = TopicPartition("clicks", 0), TopicPartition("views", 3)
Rows = list[tuple[str, int, int, int, str, int]]


def plan_of(number: int, *lost: Loss, uid: str = "uid-1") -> Plan:
    return with_id(
        plain_plan(
            number,
            uid=uid,
            ranges=(OffsetRange(LOG, 5, 9),),
            loaded_until={LOG: 9, OTHER: 2},
            lost=lost,
        )
    )


LOSING = plan_of(3, Loss(LOG, 0, 5, LossReason.EXPIRED), Loss(LOG, 7, 8, LossReason.SKIPPED))


def rows_in(path: str | Path) -> Rows:
    columns = ("topic", "partition", "from_offset", "until_offset", "reason", "plan_number")
    return sorted(
        tuple(row[name] for name in columns)
        for row in DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    )


LOST_ROWS: Rows = [("clicks", 0, 0, 5, "expired", 3), ("clicks", 0, 7, 8, "skipped", 3)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a table_losses")


def test_a_plans_losses_are_one_commit_and_a_second_time_writes_nothing(path: str) -> None:
    assert not recorded(LOSING, app_id=APP, path=path)
    for _ in range(2):
        record_losses(LOSING, app_id=APP, path=path)
        assert recorded(LOSING, app_id=APP, path=path)
        assert (rows_in(path), DeltaTable(path).version()) == (LOST_ROWS, 1)
    assert LOSING.id in DeltaTable(path).history(1)[0]["userMetadata"]
    assert read_losses(path, uid="uid-1") == LOSING.losses.lost
    assert read_losses(path, uid="uid-2") == ()


def test_each_column_of_the_table_has_a_comment(path: str) -> None:
    record_losses(LOSING, app_id=APP, path=path)
    fields = DeltaTable(path).schema().fields
    names = (
        "app_id pipeline_id topic partition broker_id from_offset until_offset reason plan_number "
        "plan_id recorded_at incarnation"
    )
    assert [field.name for field in fields] == names.split()
    assert all(field.metadata["comment"] for field in fields)


def test_a_losses_table_without_the_column_incarnation_gets_it_when_it_is_first_needed(
    path: str,
) -> None:
    before = losses.schema()
    DeltaTable.create(path, before.remove(before.get_field_index("incarnation")))
    record_losses(LOSING, app_id=APP, path=path)
    assert "incarnation" not in [field.name for field in DeltaTable(path).schema().fields]
    later = plan_of(4, Loss(LOG, 1, 2, LossReason.EXPIRED, 1))
    record_losses(later, app_id=APP, path=path)
    assert recorded(later, app_id=APP, path=path)
    assert read_losses(path, uid="uid-1") == tuple(
        sorted((*LOSING.losses.lost, *later.losses.lost))
    )


def test_a_driver_that_wakes_up_after_others_went_on_writes_nothing_twice(path: str) -> None:
    later = plan_of(4, Loss(OTHER, 1, 2, LossReason.MOVED))
    for plan in (LOSING, later, LOSING):
        record_losses(plan, app_id=APP, path=path)
    assert rows_in(path) == [*LOST_ROWS, ("views", 3, 1, 2, "offset_changed", 4)]


def test_pipelines_that_share_a_losses_table_and_one_that_begins_anew_do_not_hide_each_other(
    path: str,
) -> None:
    record_losses(LOSING, app_id=APP, path=path)
    anew = plan_of(1, Loss(OTHER, 1, 2, LossReason.EXPIRED), uid="uid-2")
    record_losses(anew, app_id=APP, path=path)
    assert read_losses(path, uid="uid-2") == anew.losses.lost
    assert read_losses(path, uid="uid-1") == LOSING.losses.lost


@pytest.mark.parametrize(
    "there_before", [True, False], ids=["a table that is there", "a first write"]
)
def test_two_drivers_at_the_same_moment_write_each_loss_once(
    path: str, monkeypatch: pytest.MonkeyPatch, there_before: bool
) -> None:
    """The second one writes between the first one's look and its commit."""
    if there_before:
        record_losses(plan_of(2, Loss(OTHER, 0, 1, LossReason.EXPIRED)), app_id=APP, path=path)
    real, met = losses._rows, list[bool]()

    def overtaken(plan: Plan, app_id: str, now_ms: int) -> object:
        if not met:
            met.append(True)
            record_losses(plan, app_id=app_id, path=path)
        return real(plan, app_id, now_ms)

    monkeypatch.setattr(losses, "_rows", overtaken)
    record_losses(LOSING, app_id=APP, path=path)
    assert met
    assert [row for row in rows_in(path) if row[0] == "clicks"] == LOST_ROWS


def test_two_pipelines_that_make_one_losses_table_at_the_same_moment_begin_it_once(
    tmp_path: Path,
) -> None:
    for turn in range(8):
        path, ready = str(tmp_path / str(turn)), threading.Barrier(2)

        def go(app_id: str, path: str = path, ready: threading.Barrier = ready) -> None:
            ready.wait()
            record_losses(LOSING, app_id=app_id, path=path)

        with ThreadPoolExecutor(2) as both:
            list(both.map(go, (APP, APP + "-2")))
        operations = [commit["operation"] for commit in DeltaTable(path).history()]
        assert (operations.count("CREATE TABLE"), len(rows_in(path))) == (1, 2 * len(LOST_ROWS))


def test_an_answer_that_was_lost_is_read_back_and_not_written_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = losses._append

    def written_and_lost(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        raise OSError("the answer got lost")

    monkeypatch.setattr(losses, "_append", written_and_lost)
    record_losses(LOSING, app_id=APP, path=path)
    assert rows_in(path) == LOST_ROWS


def test_another_table_is_rejected_and_an_unwritable_path_is_named(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow

    write_deltalake(path, pyarrow.table({"topic": ["clicks"]}))
    with pytest.raises(NotOurTable, match="no column app_id"):
        record_losses(LOSING, app_id=APP, path=path)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotOurTable, match="is a file"):
        record_losses(LOSING, app_id=APP, path=str(tmp_path / "file" / "losses"))


@pytest.mark.long
def test_a_losses_table_with_deletion_vectors_is_read_and_written(
    path: str, spark: SparkSession
) -> None:
    record_losses(LOSING, app_id="app", path=path)
    spark.sql(
        f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    spark.sql(f"DELETE FROM delta.`{path}` WHERE from_offset = {LOSING.losses.lost[0].from_offset}")
    assert read_losses(path, uid="uid-1") == LOSING.losses.lost[1:]
    later = plan_of(9, Loss(LOSING.losses.lost[0].partition, 90, 95, LossReason.EXPIRED))
    record_losses(later, app_id="app", path=path)
    assert read_losses(path, uid="uid-1") == tuple(
        sorted((*LOSING.losses.lost[1:], *later.losses.lost))
    )


def test_a_lost_file_of_a_losses_table_is_named_and_no_retry_is_advised(path: str) -> None:
    record_losses(LOSING, app_id="app", path=path)
    lost = next(Path(path).glob("*.parquet"))
    lost.unlink()
    with pytest.raises(FileLost) as caught:
        read_losses(path, uid="uid-1")
    assert caught.value.where["file"] == lost.name
    assert "repair()" in caught.value.action and not caught.value.retriable


def test_a_losses_table_that_forgets_transaction_ids_is_refused(path: str) -> None:
    record_losses(LOSING, app_id=APP, path=path)
    DeltaTable(path).alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 1 days"}, raise_if_not_exists=False
    )
    with pytest.raises(NotOurTable, match="forgets transaction ids"):
        record_losses(plan_of(4, *LOSING.losses.lost), app_id=APP, path=path)


@pytest.fixture
def losing(make_pipeline: Callable[..., Pipeline], spark: SparkSession) -> Pipeline:
    """A pipeline with `on_data_loss: skip`; offsets 100 to 149 of partition 1 expired."""
    pipeline = make_pipeline(source={"on_data_loss": "skip"})
    pipeline.produce(400)
    pipeline.ran()
    expire(pipeline, 150)
    return pipeline


def expire(pipeline: Pipeline, before: int) -> None:
    pipeline.produce(400)
    with KafkaAdminClient(bootstrap_servers=pipeline.cluster.bootstrap) as admin:
        admin.delete_records({KafkaTopicPartition(pipeline.topic, 1): before})


def written(pipeline: Pipeline) -> Rows:
    return rows_in(f"{pipeline.table}_losses")


def test_expired_offsets_are_a_row_of_the_losses_table_and_strict_ends_with_3(
    losing: Pipeline,
) -> None:
    result = losing.door("run", "--fail-on-loss")
    assert (result.code, result.outcomes) == (3, ["records_lost", "ingested"])
    assert written(losing) == [(losing.topic, 1, 100, 150, "expired", 2)]
    assert losing.ran().outcomes == ["up_to_date"]
    expire(losing, 275)
    assert losing.ran().outcomes == ["records_lost", "ingested"]
    assert written(losing) == [
        (losing.topic, 1, 100, 150, "expired", 2),
        (losing.topic, 1, 200, 275, "expired", 3),
    ]


@pytest.mark.usefixtures("spark")
def test_a_stored_plan_of_a_deleted_topic_that_is_superseded_is_a_loss_and_strict_ends_with_3(
    make_pipeline: Callable[..., Pipeline], caplog: pytest.LogCaptureFixture
) -> None:
    """Offsets 0 to 99 of each partition are loaded; plan 2 reads 100 to 199."""
    pipeline = make_pipeline()
    pipeline.cluster.create_topic(f"{pipeline.topic}-kept", 1)
    pipeline.settings["source"] = {"topics": [f"{pipeline.topic}(-kept)?"]}
    pipeline.produce(400)
    pipeline.ran()
    pipeline.produce(400)
    broken_off_before("fetch", pipeline)
    loaded = pipeline.in_table()
    delete_topic(pipeline)
    texts = ("do not know its topic any more", "400 offsets of plan 2", "plans supersede CONF 2")
    refused(pipeline.run(), 5, *texts)
    with caplog.at_level(logging.INFO, "etl"):
        result = pipeline.door("plans", "supersede", after=("2", "--reason", "gone", "--yes"))
    assert result.code == 0, result.err + result.out
    assert [
        (lost["partition"], lost["from"], lost["until"], lost["reason"])
        for lost in result.document["lost"]
    ] == [(partition, 100, 200, "topic_deleted") for partition in range(4)]
    assert "100 offsets (100 to 200), topic_deleted" in caplog.text, (
        "logged before the plan is stored"
    )
    result = pipeline.door("run", "--fail-on-loss")
    assert (result.code, result.outcomes.count("records_lost")) == (3, 4), result.out
    rows = [(pipeline.topic, partition, 100, 200, "topic_deleted", 2) for partition in range(4)]
    assert (written(pipeline), pipeline.in_table()) == (rows, loaded)
    proof = pipeline.door("verify")
    assert proof.code == 0, proof.err + proof.out
    lost = [log["without_row"]["losses"] for log in proof.document["partitions"]]
    assert lost == [[[100, 200, "topic_deleted"]]] * 4
