"""The probe of a local mount by two hard links, and the jar of the log store."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from etl.errors import NoExclusiveCreate, SettingsError, TableUnreachable
from etl.io.delta.exclusive_create_probe import require_exclusive_create
from etl.io.delta.table_shape import PROBE_PREFIX, open_table
from etl.io.spark.log_store import jar_path
from tests.log_store_build import JAR, classes, shipped

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
