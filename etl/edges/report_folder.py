"""The folder of reports: what the runs before came to, the report of one of them, and the page of a
report, which is written beside it.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etl.errors import SettingsError
from etl.report.page import PastRun, page_of, past_run, run_ids
from etl.settings.sections import name_in_files

HISTORY_RUNS = 30
HISTORY_MAX_BYTES = 64 << 20
"""How much of old reports one page reads; what each run saw is not read. Reports of some thousand
partitions fit.
"""
_SAW = b'\n  "saw": '


def past_runs(
    folder: Path, ours_called: str, *, before: str, most: int = HISTORY_RUNS
) -> list[PastRun]:
    """The last runs before the one that is called `before`, oldest first. A report that cannot be
    read is left out.
    """
    found, left = list[PastRun](), HISTORY_MAX_BYTES
    for run_id in reversed(
        [one for one in run_ids(os.listdir(folder), ours_called) if one < before][-most:]
    ):
        text = _without_what_it_saw(report_path(folder, ours_called, run_id), left)
        if text is None:
            continue
        left -= len(text)
        run = past_run(text.decode("utf-8", "replace"))
        if run:
            found.insert(0, run)
    return found


def _without_what_it_saw(path: Path, most: int) -> bytes | None:
    """The report down to what the run saw; None where it is empty, gone, or takes more bytes than
    that.
    """
    with contextlib.suppress(
        OSError, ValueError
    ):  # ValueError: nothing is in it; a run that ends now may have removed it
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            end = content.find(_SAW)
            size = len(content) if end < 0 else end
            return content[:size] if size <= most else None
    return None


def report_path(folder: Path, ours_called: str, run_id: str) -> Path:
    """Where the report of a run is; `ours_called`: see `Settings.name_in_files`."""
    return folder / f"{ours_called}-{run_id}.json"


def newest_report(
    folder: Path, ours_called: str, run_id: str | None = None
) -> tuple[Path, Mapping[str, Any]]:
    """The report of the newest run, or of that one, with its path. Raises SettingsError where there
    is none, or none that can be read.
    """
    try:
        known = run_ids(os.listdir(folder), ours_called)
    except FileNotFoundError:
        known = []
    except OSError as error:
        what = f"the folder of reports cannot be read: {error.strerror}"
        raise SettingsError(
            what, key="report.path", path=folder, check="its permissions"
        ) from error
    if run_id is not None and run_id not in known:
        last = f"the newest is {known[-1]}" if known else "there is none of this pipeline"
        raise SettingsError(
            f"there is no report of a run {run_id!r}: {last}",
            key="report.path",
            path=folder,
            check="the name of the run",
        )
    if not known:
        check = "report.path, and the key pipeline; `etl run CONF` leaves the first one"
        raise SettingsError(
            "no run of this pipeline has left a report here",
            key="report.path",
            path=folder,
            check=check,
        )
    path = report_path(folder, ours_called, run_id or known[-1])
    return path, _read(path)


def _read(path: Path) -> Mapping[str, Any]:
    check = "who changed the file; `etl report CONF --run RUN` shows another run"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(
            f"the report cannot be read: {error.strerror}", path=path, check="its permissions"
        ) from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"the report is no JSON: {error}", path=path, check=check) from error
    if not isinstance(found, dict):
        raise SettingsError("the report is no report of a run", path=path, check=check)
    return found


def write_page(to: Path, report: Mapping[str, Any], folder: Path) -> None:
    """The page of a report, with the runs before it that are in the folder; their pages are linked
    where the new one stands beside them.

    It is there as a whole or not at all. Raises OSError, and KeyError, TypeError, AttributeError or
    ValueError for what is no report.
    """
    ours_called = name_in_files(report["group"], report["pipeline"])
    before = past_runs(folder, ours_called, before=report["run_id"])
    is_beside = to.parent.resolve() == folder.resolve()
    pages = {
        run.run_id
        for run in before
        if is_beside and report_path(folder, ours_called, run.run_id).with_suffix(".html").exists()
    }
    text = page_of(
        report,
        before,
        lambda run: f"{ours_called}-{run.run_id}.html" if run.run_id in pages else None,
    )
    write_whole(to, text)


def write_whole(path: Path, text: str) -> None:
    """The file is the old one until it is the new one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    finally:
        with contextlib.suppress(OSError):  # there no more, as it should be
            unfinished.unlink()
