"""The parser of a commit file of a Delta table, and what a commit of another writer changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from etl.io.delta.log import (
    Added,
    Shape,
    judge,
    parse_added,
    parse_commit,
    parse_shape,
    removals_since,
)
from etl.model.snapshot import ForeignCommit

OURS = "offset-range-etl/c/g/p"
FIELDS = [{"name": "offset", "type": "long", "nullable": True, "metadata": {}}]
BEFORE = Shape("id-1", {"offset": '{"nullable": true, "type": "long"}'}, ("topic",))


def content(*actions: dict[str, Any]) -> bytes:
    return (
        "\n".join(json.dumps(action, separators=(",", ":")) for action in actions).encode() + b"\n"
    )


def metadata(
    fields: list[Any], table_id: str = "id-1", partition_by: tuple[str, ...] = ("topic",)
) -> dict[str, Any]:
    schema = json.dumps({"type": "struct", "fields": fields})
    return {
        "metaData": {
            "id": table_id,
            "schemaString": schema,
            "partitionColumns": list(partition_by),
            "configuration": {},
        }
    }


@pytest.mark.parametrize(
    ("stats", "rows"),
    [
        ('{"numRecords": 7}', 7),
        ("{}", None),
        (None, None),
        ("[]", None),
        ('{"numRecords": "x"}', None),
    ],
)
def test_added_files_come_with_their_partition_values_and_with_their_rows_if_these_are_counted(
    stats: str | None, rows: int | None
) -> None:
    file = {"path": "topic=a%20b/part-0", "partitionValues": {"topic": "a b"}, "stats": stats}
    [added] = parse_added(content({"txn": {"appId": OURS, "version": 3}}, {"add": file}))
    assert (added, added.rows) == (Added("topic=a%20b/part-0", {"topic": "a b"}), rows)


@pytest.mark.parametrize(
    "operation, remove, found",
    [
        ("DELETE", {"path": "x", "dataChange": True}, "removed rows"),
        ("WRITE", {"path": "x", "dataChange": True}, "removed rows"),
        ("OPTIMIZE", {"path": "x", "dataChange": False}, None),
        ("RESTORE", {"path": "x", "dataChange": True}, "removed rows"),
        ("RESTORE", None, "brought rows back"),
        ("WRITE", None, None),
    ],
)
def test_only_a_remove_that_changes_data_and_a_restore_touch_our_rows(
    operation: str, remove: Any, found: str | None
) -> None:
    actions = [{"commitInfo": {"operation": operation}}, *([{"remove": remove}] if remove else [])]
    judged = judge(parse_commit(5, content(*actions)), OURS, BEFORE)
    assert judged == (ForeignCommit(5, operation, found) if found else None)


def test_removals_of_others_are_found_after_a_version_or_as_far_back_as_the_log_reaches(
    tmp_path: Path,
) -> None:
    gone = {"remove": {"path": "x", "dataChange": True}}
    ours = {"txn": {"appId": OURS, "version": 3}}
    commits: list[list[dict[str, Any]]] = [
        [gone],
        [{"commitInfo": {"operation": "DELETE"}}, gone],
        [ours, gone],
        [{"commitInfo": {"operation": "RESTORE"}}],
        [{"commitInfo": {"operation": "WRITE"}}],
    ]
    (tmp_path / "_delta_log").mkdir()
    for version, actions in enumerate(commits):
        (tmp_path / "_delta_log" / f"{version:020}.json").write_bytes(content(*actions))
    (tmp_path / "_delta_log" / f"{0:020}.json").unlink()
    files = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    deleted, restored = (
        ForeignCommit(1, "DELETE", "removed rows"),
        ForeignCommit(3, "RESTORE", "brought rows back"),
    )
    assert removals_since(files, 4, None, OURS) == [deleted, restored]
    assert removals_since(files, 4, 1, OURS) == [restored]
    assert removals_since(files, 4, 4, OURS) == []


TEXT = {**FIELDS[0], "type": "string"}
MORE = {**TEXT, "name": "more"}


@pytest.mark.parametrize(
    ("fields", "table_id", "partition_by", "redefined"),
    [
        (FIELDS, "id-1", ("topic",), False),
        ([*FIELDS, MORE], "id-1", ("topic",), False),
        ([{**FIELDS[0], "metadata": {"delta.columnMapping.id": 1}}], "id-1", ("topic",), False),
        (FIELDS, "id-2", ("topic",), True),
        (FIELDS, "id-1", (), True),
        ([TEXT], "id-1", ("topic",), True),
        ([{**FIELDS[0], "nullable": False}], "id-1", ("topic",), True),
        ([], "id-1", ("topic",), True),
    ],
    ids="a property,new column,column mapping,id,partitioning,type,not null,column gone".split(","),
)
def test_a_table_is_redefined_when_its_id_partitioning_or_one_of_our_columns_changes(
    fields: list[Any], table_id: str, partition_by: tuple[str, ...], redefined: bool
) -> None:
    judged = judge(parse_commit(5, content(metadata(fields, table_id, partition_by))), OURS, BEFORE)
    assert judged == (ForeignCommit(5, "unknown", "redefined the table") if redefined else None)
    without_former = judge(parse_commit(5, content(metadata([], "id-2"))), OURS, None)
    assert without_former is None, "without the former schema a new one is not judged"


def test_metadata_of_nested_columns_is_no_part_of_a_shape() -> None:
    def shape_with(extra: dict[str, Any]) -> Shape:
        common = {"nullable": True, "metadata": extra}
        inner = {"type": "struct", "fields": [{"name": "key", "type": "string", **common}]}
        headers = {"type": "array", "elementType": inner, "containsNull": True}
        fields = [{"name": "headers", "type": headers, **common}]
        return parse_shape("id", json.dumps({"type": "struct", "fields": fields}), ())

    assert shape_with({}) == shape_with({"delta.columnMapping.id": 4})
