"""The file system at a table's path, and the error for each obstacle, in real directories."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType

from etl.errors import FileLost, NoExclusiveCreate, NotOurTable, SettingsError, TableUnreachable
from etl.io.delta.exclusive_create_probe import require_exclusive_create
from etl.io.delta.loaded_plans import read_table
from etl.io.delta.table_shape import (
    PROBE_PREFIX,
    announce_first_write,
    check_shape,
    check_writable,
    columns_to_add,
    open_table,
    rust_path,
    spark_path,
)
from etl.io.spark.log_store import jar_path
from etl.model.columns import arrow_schema
from tests.log_store_build import JAR, classes, shipped

UNPRIVILEGED_UID = 65534


@contextmanager
def unprivileged() -> Iterator[None]:
    """Switch to another user for a while: root may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(UNPRIVILEGED_UID)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that others may enter and list, and not write."""
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(folder.stat().st_mode | 0o055)
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    folder.chmod(0o555)
    return folder


@pytest.mark.parametrize("partition_by", [(), ("day",)])
def test_a_generated_partition_column_is_rejected_with_one_way_out(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    generated = {"delta.generationExpression": "CAST(timestamp AS DATE)"}
    day = Field("day", PrimitiveType("date"), metadata=generated)
    fields = [*Schema.from_arrow(arrow_schema()).fields, day]
    DeltaTable.create(str(tmp_path), Schema(fields), partition_by=["day"])
    with pytest.raises(NotOurTable, match="partitioned by day, which it generates") as caught:
        check_shape(str(tmp_path), arrow_schema(), partition_by)
    assert caught.value.where["key"] == "table.partition_by"
    assert "F.expr('CAST(timestamp AS DATE)')" in caught.value.action
    with_day = arrow_schema().append(pyarrow.field("day", pyarrow.date32()))
    check_shape(str(tmp_path), with_day, ("day",))


def test_nothing_an_empty_folder_and_a_first_write_that_never_finished_are_no_table(
    tmp_path: Path,
) -> None:
    assert open_table(str(tmp_path / "nothing" / "here")) is None
    assert open_table(str(tmp_path)) is None
    announce_first_write(str(tmp_path / "new"))
    (tmp_path / "new" / "part-00000.parquet").write_bytes(b"PAR1")
    assert open_table(str(tmp_path / "new")) is None
    assert read_table(str(tmp_path / "new"), "app", known=3) is None


def test_a_file_and_a_folder_of_other_files_are_not_our_table(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet", "c", "d", "log/_delta_log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    for path, error, message in (
        (tmp_path / "c", NotOurTable, "is a file"),
        (tmp_path, NotOurTable, r"no _delta_log, but holds a.parquet, b.parquet, c, \.\.\."),
        (tmp_path / "log", NotOurTable, "_delta_log is a file"),
        (tmp_path / "a%20b", SettingsError, "a%20b"),
    ):
        with pytest.raises(error, match=message):
            open_table(str(path))


def test_a_renamed_column_is_named_and_not_added(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    DeltaTable.create(path, arrow_schema())
    numbers = itertools.count(1)

    def mapped(part: dict[str, Any]) -> dict[str, Any]:
        if "name" in part:
            names = {"id": next(numbers), "physicalName": part["name"]}
            part["metadata"] = {f"delta.columnMapping.{key}": names[key] for key in names}
        return part

    def rename_value(action: dict[str, Any]) -> None:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"], object_hook=mapped)
            column = next(column for column in schema["fields"] if column["name"] == "value")
            column["name"] = "payload"
            action["metaData"]["schemaString"] = json.dumps(schema)
            action["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}

    rewritten(tmp_path / "t", rename_value)
    with pytest.raises(NotOurTable, match="column value was renamed to payload") as caught:
        check_shape(path, arrow_schema(), ())
    assert "RENAME COLUMN `payload` TO `value`" in caught.value.action
    table = open_table(path)
    assert table is not None and columns_to_add(table, arrow_schema()) == ""


def rewritten(table: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """The first commit of the table with other actions."""
    commit = table / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        change(action)
    commit.write_text("\n".join(map(json.dumps, actions)))


def test_a_table_that_was_made_without_columns_is_a_mistake_that_no_retry_mends(
    tmp_path: Path,
) -> None:
    def without_columns(action: dict[str, Any]) -> None:
        if "metaData" in action:
            action["metaData"]["schemaString"] = json.dumps({"type": "struct", "fields": []})

    DeltaTable.create(str(tmp_path / "t"), arrow_schema())
    rewritten(tmp_path / "t", without_columns)
    with pytest.raises(NotOurTable, match="has no columns") as refused:
        open_table(str(tmp_path / "t"))
    assert not refused.value.retriable and "ADD COLUMNS" in refused.value.action


@pytest.mark.parametrize("name", ["two words", "100%", "hash#1", "käse", "what?", "a+b", "a=b"])
def test_a_table_may_have_any_name(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    DeltaTable.create(rust_path(path), arrow_schema())
    assert (tmp_path / name / "_delta_log").is_dir()
    found = read_table(path, "app", known=None)
    assert found is not None
    assert found.version == 0


def test_both_engines_get_the_same_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    there = f"{tmp_path}/warehouse/clicks"
    assert spark_path("warehouse/clicks") == f"file://{there}"
    assert rust_path("warehouse/clicks") == rust_path(f"file://{there}") == there
    assert spark_path("s3://bucket/clicks") == "s3a://bucket/clicks"
    assert rust_path("s3://bucket/clicks") == "s3://bucket/clicks"


def test_a_folder_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    check_writable(str(tmp_path / "not" / "yet" / "there"))
    check_writable(str(tmp_path))
    check_writable("s3://bucket/clicks")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("touch", [open_table, check_writable, announce_first_write])
def test_a_file_in_the_way_is_no_passing_trouble(
    tmp_path: Path, touch: Callable[[str], object]
) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotOurTable, match="file is a file, and the path lies below it"):
        touch(str(tmp_path / "file" / "new" / "table"))
    with pytest.raises(NotOurTable, match="The path is a file,"):
        touch(str(tmp_path / "file"))


@pytest.mark.parametrize(
    "url",
    "s4://bucket/clicks https://host/clicks s3:///clicks s3://bucket:99999/t".split()
    + ["s3://buck et/clicks"],
)
def test_a_url_by_which_there_is_no_store_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(SettingsError, match="The store of this URL is not supported:") as caught:
        open_table(url)
    assert caught.value.exit_code == 2 and "Known schemes" not in str(caught.value)


def test_a_table_with_a_feature_that_delta_rs_does_not_know_is_not_ours_and_no_passing_trouble(
    tmp_path: Path,
) -> None:
    features = ["redirectReaderWriter-preview"]
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    strange = {**versions, "readerFeatures": features, "writerFeatures": features}
    DeltaTable.create(str(tmp_path / "t"), arrow_schema())
    rewritten(
        tmp_path / "t", lambda action: "protocol" in action and action.update(protocol=strange)
    )
    with pytest.raises(NotOurTable, match="does not support the table") as caught:
        open_table(str(tmp_path / "t"))
    assert caught.value.exit_code == 2


def test_a_stale_pointer_to_a_checkpoint_is_reported_as_that_and_no_table_is_abandoned_for_it(
    tmp_path: Path,
) -> None:
    write_deltalake(str(tmp_path), pyarrow.table({"a": [1]}))
    hint = tmp_path / "_delta_log" / "_last_checkpoint"
    hint.write_text('{"version":7,"size":3}')
    with pytest.raises(FileLost, match="names a checkpoint that does not exist") as error:
        open_table(str(tmp_path))
    assert "remove _last_checkpoint" in str(error.value.action)
    assert "move the folder" not in str(error.value.action)
    hint.unlink()
    table = open_table(str(tmp_path))
    assert table is not None and table.version() == 0


@pytest.mark.parametrize("keep", [0.5, 0.0])
@pytest.mark.parametrize(
    "file", ["00000000000000000001.json", "00000000000000000001.checkpoint.parquet"]
)
def test_a_damaged_file_of_the_log_is_named_and_no_passing_trouble(
    tmp_path: Path, file: str, keep: float
) -> None:
    for _ in range(2):
        write_deltalake(str(tmp_path), pyarrow.table({"a": [1]}), mode="append")
    if file.endswith(".parquet"):
        DeltaTable(str(tmp_path)).create_checkpoint()
    damaged = tmp_path / "_delta_log" / file
    content = damaged.read_bytes()
    kept = content[: int(len(content) * keep)]
    damaged.write_bytes(kept + bytes(len(content) - len(kept)))  # zeroes, as after a power failure
    with pytest.raises(FileLost, match="of the table's log is damaged") as error:
        open_table(str(tmp_path))
    assert error.value.where["file"] == file and not error.value.retriable


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("00000000000000000000.json", "commit file"),
        ("00000000000000000000.checkpoint.parquet", "checkpoint"),
    ],
)
def test_an_empty_file_without_which_there_is_no_table_is_named(
    tmp_path: Path, file: str, kind: str
) -> None:
    write_deltalake(str(tmp_path), pyarrow.table({"a": [1]}))
    if kind == "checkpoint":
        DeltaTable(str(tmp_path)).create_checkpoint()
    (tmp_path / "_delta_log" / file).write_bytes(b"")
    with pytest.raises(FileLost, match=f"A {kind} of the table's log is damaged") as error:
        open_table(str(tmp_path))
    assert error.value.where["file"] == file


def test_a_folder_of_another_user_cannot_be_written_or_listed(shared: Path) -> None:
    with unprivileged(), pytest.raises(TableUnreachable, match="new/table") as caught:
        check_writable(str(shared / "new" / "table"))
    assert caught.value.exit_code == 7
    assert "Permission denied" in str(caught.value)
    shared.chmod(0o000)
    with unprivileged(), pytest.raises(TableUnreachable, match="Permission denied"):
        open_table(str(shared / "table"))
    shared.chmod(0o755)


Link = Callable[[Path, Path], object]


def failing_link(code: int) -> Link:
    """A mount on which no hard link can be made."""

    def link(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code))

    return link


def test_a_mount_with_hard_links_passes_and_nothing_is_left_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    for name in ("table", "not/yet/there"):
        require_exclusive_create(str(tmp_path / name))
    assert [str(path) for path in tmp_path.rglob("*")] == [str(tmp_path / "table")]


@pytest.mark.parametrize(
    ("link", "message"),
    [
        *(
            (failing_link(code), "has no hard links .* could replace each other's commit")
            for code in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
        ),
        (shutil.copyfile, "creates a hard link over another file: two writers could replace"),
    ],
)
def test_a_mount_without_hard_links_or_that_links_over_a_file_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: Link, message: str
) -> None:
    monkeypatch.setattr(os, "link", link)
    with pytest.raises(SettingsError, match=f"The mount {message}") as caught:
        require_exclusive_create(str(tmp_path / "table"))
    mount = caught.value.where["mount"]
    assert tmp_path.is_relative_to(mount.partition(" (")[0]) and mount.endswith(")")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_not_taken_for_a_mount_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", failing_link(errno.ENOSPC))
    with pytest.raises(TableUnreachable, match="No space left on device") as caught:
        require_exclusive_create(str(tmp_path))
    assert not isinstance(caught.value, NoExclusiveCreate)


def test_the_variable_by_which_delta_rs_renames_over_commits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("false", ""):
        monkeypatch.setenv("MOUNT_ALLOW_UNSAFE_RENAME", value)
        require_exclusive_create(str(tmp_path))
    message = "MOUNT_ALLOW_UNSAFE_RENAME makes delta-rs rename a commit over another one"
    for value in ("true", "1"):
        monkeypatch.setenv("MOUNT_ALLOW_UNSAFE_RENAME", value)
        with pytest.raises(NoExclusiveCreate, match=message):
            require_exclusive_create(str(tmp_path))


def test_a_killed_probe_does_not_make_the_folder_foreign(tmp_path: Path) -> None:
    (tmp_path / f"{PROBE_PREFIX}0123" / "_delta_log").mkdir(parents=True)
    assert open_table(str(tmp_path)) is None


def test_the_jar_is_a_file_for_a_jvm_with_the_classes_of_the_source_next_to_it() -> None:
    assert jar_path() == JAR and Path(JAR).read_bytes().startswith(b"PK")
    assert shipped() == classes(), "python -m tests.log_store_build makes it anew"
