"""`etl table accept-changes` on a real table."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.command_result import CommandResult, refused
from tests.system.driving import Pipeline, broken_off_before

pytestmark = pytest.mark.without_spark


def accept(pipeline: Pipeline, version: str) -> CommandResult:
    return pipeline.door("table", "accept-changes", after=(version, "--reason", "seen", "--yes"))


def put_back(pipeline: Pipeline, copy: Path) -> None:
    shutil.rmtree(pipeline.table)
    shutil.copytree(copy, pipeline.table)


@pytest.mark.usefixtures("spark")
def test_an_accepted_version_does_not_cover_another_commit_of_that_number(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(20)
    pipeline.ran()
    copy = pipeline.folder / "copy"
    shutil.copytree(pipeline.table, copy)
    DeltaTable(str(pipeline.table)).delete("offset = 0")
    dry_run = ("1", "--reason", "seen", "--dry-run")
    foreseen = pipeline.door("table", "accept-changes", after=dry_run)
    assert foreseen.code == 0 and foreseen.document["dry_run"] is True, foreseen.err
    refused(pipeline.run(), 5, "DELETE of another writer removed rows", "accept-changes CONF 1")
    assert accept(pipeline, "1").code == 0
    assert pipeline.ran().outcomes == ["up_to_date"]
    put_back(pipeline, copy)
    assert pipeline.ran().outcomes == ["up_to_date"]
    DeltaTable(str(pipeline.table)).delete("offset = 1")
    refused(pipeline.run(), 5, "DELETE of another writer removed rows", "accept-changes CONF 1")
    DeltaTable(str(pipeline.table)).restore(0)
    texts = ("a RESTORE came after it, at version 2", "counts them", "accept-changes CONF 2")
    refused(pipeline.run(), 5, *texts)
    assert accept(pipeline, "2").code == pipeline.door("verify").code == 0


def test_an_earlier_table_that_is_put_back_lacks_a_plan_and_its_accepted_delete_is_not_reported(
    pipeline: Pipeline,
) -> None:
    pipeline.produce(20)
    pipeline.ran()
    DeltaTable(str(pipeline.table)).delete("offset = 0")
    assert accept(pipeline, "1").code == 0
    pipeline.produce(20)
    pipeline.ran()
    pipeline.produce(20)
    broken_off_before("fetch", pipeline)
    earlier = pipeline.folder / "earlier"
    pipeline.table.rename(earlier)
    assert accept(pipeline, "none").code == 0
    assert pipeline.ran().outcomes == ["plan_superseded", "ingested"]
    shutil.rmtree(pipeline.table)
    earlier.rename(pipeline.table)
    table_id = DeltaTable(str(pipeline.table)).metadata().id
    texts = (
        f"The table at this path has id {table_id}, plan 3 went to ",
        "lacks of plan 3 (at most 20) and of the plans before are then given up",
        "etl backfills run CONF NAME -p TOPIC:PARTITION --from OFFSET --until OFFSET "
        "--only-unloaded",
    )
    for words in (("run",), ("run", "--dry-run"), ("verify",)):
        refused(pipeline.door(*words), 5, *texts)
    compared = pipeline.door("offsets", "diff")
    assert compared.code == 5
    for text in texts:
        assert text in compared.err, compared.err
    before = DeltaTable(str(pipeline.table)).to_pyarrow_table().num_rows
    accepted = accept(pipeline, "2")
    assert accepted.code == 0 and "the rows of plan 3 (20)" in accepted.out, accepted.err
    assert pipeline.ran().outcomes == ["up_to_date"]
    request = ("again", "--from", "0", "--until", "60", "--only-unloaded", "--yes")
    again = pipeline.door("backfills", "run", after=request)
    assert again.code == 0, again.err
    assert DeltaTable(str(pipeline.table)).to_pyarrow_table().num_rows == before + 20
