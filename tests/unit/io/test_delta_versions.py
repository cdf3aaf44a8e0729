"""Version numbers that are used twice: a copy of the table is restored, and another commit follows.
Real tables, no JVM.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from etl.decide.table_changes import accepted_version
from etl.errors import FileLost
from etl.io.delta.loaded_plans import read_table
from etl.io.delta.log import hash_of_commit, open_log
from etl.model.snapshot import Acknowledgement, ForeignCommit, Table
from tests.fakes.commits import OURS, commit, plan_of


def put_back(copy: Path, path: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(copy, path)


def acknowledgement_on(path: Path) -> Acknowledgement:
    table = DeltaTable(str(path))
    version = table.version()
    return Acknowledgement(
        str(table.metadata().id),
        version,
        1,
        "seen",
        1,
        commit=hash_of_commit(open_log(str(path)), version),
    )


def read(path: Path, known: int | None, acknowledgement: Acknowledgement | None = None) -> Table:
    table = read_table(str(path), OURS, known=known, acknowledgement=acknowledgement)
    assert table is not None
    return table


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A table with one plan, and a copy of it."""
    commit(tmp_path / "table", OURS, plan_of(1))
    shutil.copytree(tmp_path / "table", tmp_path / "copy")
    return tmp_path / "table", tmp_path / "copy"


def test_a_word_covers_a_copy_of_the_commit_that_was_seen_and_no_other_one_of_its_number(
    places: tuple[Path, Path],
) -> None:
    path, copy = places
    DeltaTable(str(path)).delete("offset = 1")
    acknowledgement = acknowledgement_on(path)
    shutil.copytree(path, path.with_name("later copy"))
    put_back(copy, path)
    assert accepted_version(acknowledgement, read(path, 0, acknowledgement)) is None
    DeltaTable(str(path)).delete("offset = 1")
    assert accepted_version(acknowledgement, read(path, 0, acknowledgement)) is None
    put_back(path.with_name("later copy"), path)
    assert accepted_version(acknowledgement, read(path, 0, acknowledgement)) == 1


def test_a_word_is_about_nothing_once_clean_up_took_the_commit_that_it_names(
    places: tuple[Path, Path],
) -> None:
    path, _ = places
    DeltaTable(str(path)).delete("offset = 1")
    acknowledgement = acknowledgement_on(path)
    DeltaTable(str(path)).restore(0)
    DeltaTable(str(path)).create_checkpoint()
    for version in (0, 1):
        (path / "_delta_log" / f"{version:020}.json").unlink()
    assert accepted_version(acknowledgement, read(path, 0, acknowledgement)) is None
    assert read(path, 0).foreign == (ForeignCommit(2, "RESTORE", "brought rows back"),)


@pytest.mark.parametrize("gone", [0, 1])
def test_a_table_with_a_missing_commit_in_its_log_is_a_permanent_error(
    places: tuple[Path, Path], gone: int
) -> None:
    path, _ = places
    for number in (2, 3):
        commit(path, OURS, plan_of(number))
    (path / "_delta_log" / f"{gone:020}.json").unlink()
    with pytest.raises(FileLost, match="The table's log lacks files:") as caught:
        read(path, 2)
    assert not caught.value.retriable and len(caught.value.message) < 100


def test_what_others_do_to_an_old_copy_is_seen_also_below_the_version_that_our_last_commit_had(
    places: tuple[Path, Path],
) -> None:
    path, copy = places
    commit(path, OURS, plan_of(2))
    put_back(copy, path)
    DeltaTable(str(path)).delete("offset = 1")
    assert read(path, known=1).foreign == (ForeignCommit(1, "DELETE", "removed rows"),)
