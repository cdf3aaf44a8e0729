"""What an exception of a writer means."""

from __future__ import annotations

import re

from etl.edges.delta.path import is_conflict, is_obstacle, no_file_system, not_supported, unreachable
from etl.errors import NotOurTable, SettingsError, TableUnreachable
from etl.protocol.error_line import unmark, whole_text


def translate(failure: Exception, path: str) -> Exception:
    """What an exception of Spark or delta-rs means: an executor's EtlError, a place that cannot be written, or itself."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    text = whole_text(failure)
    told = unmark(text)
    if told is None and (is_conflict(text) or isinstance(failure, CommitFailedError)):
        check = "who else writes to it (DESCRIBE HISTORY); nothing of ours was committed, the next run appends the same plan again"
        return TableUnreachable("somebody else changed the table while ours were written", path=path, check=check)
    if told is None and isinstance(failure, DeltaError):
        told = not_supported(failure, path)
    told = told or _refused_by_constraint(text, path) or no_file_system(text, path)
    if told or any(said in text for said in _OF_PYTHON):  # a function may say of its own file what a table's folder says
        return told or failure
    return _no_folders_name(text, path) or (unreachable(failure, path, "written") if is_obstacle(text) else failure)


_OF_PYTHON = ("org.apache.spark.api.python.PythonException", "thrown from the Python worker")
_CONSTRAINT = re.compile(r"\[DELTA_(?:VIOLATE_CONSTRAINT|NOT_NULL_CONSTRAINT)\w*\] ([^\n]*)")


def _refused_by_constraint(text: str, path: str) -> NotOurTable | None:
    found = _CONSTRAINT.search(text)
    if found is None:
        return None
    check = "the table's constraints (SHOW TBLPROPERTIES) against what the topic holds; the next run appends the same plan again"
    return NotOurTable(f"a constraint of the table refuses our rows: {found[1].strip()}", path=path, check=check)


_NUL_IN_FOLDER = re.compile(r"/([^/=\s]+)=[^/\n]*\0")
"""Delta makes a folder of each value of a partition, and escapes in its name what a folder's name cannot have, but for this."""


def _no_folders_name(text: str, path: str) -> SettingsError | None:
    found = _NUL_IN_FOLDER.search(text)
    if found is None:
        return None
    what = f"a text in the column {found[1]}, by which the table is partitioned, holds a NUL: no folder can have such a name"
    check = (
        f"the transform, that it leaves no NUL in {found[1]}; the stored plan is executed again by the next run, with the function as it "
        "is then; or give the plan up: etl plans supersede CONF N --reason ...")
    return SettingsError(what, key="table.partition_by", path=path, check=check)
