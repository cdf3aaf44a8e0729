"""The directory of reports: a page for each report, the history in it, and the files that are
removed with an old report.
"""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import pytest

from etl.errors import EtlError, SettingsError, TableUnreachable
from etl.io import report_files
from etl.io.report_files import kept_in, newest_report, past_runs, report_path, write_page
from etl.report.plan_json import as_text
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from tests.reports import document_of, loaded, new_report

RUN = "2023111{}T221320-0a1b2c"
OURS = "etl-clicks+clicks"


def ran(folder: Path, day: int, *, keep: int = 10, error: EtlError | None = None) -> Report:
    """A run of that day, as `etl run` keeps it."""
    report = new_report()
    report.run_id = RUN.format(day)
    with kept_in(str(folder), report, keep=keep):
        if error:
            with pytest.raises(EtlError):
                raise error
            report.failed(error)
    return report


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def files_of(*days: int) -> list[str]:
    return [f"{OURS}-{RUN.format(day)}{end}" for day in days for end in (".html", ".json")]


def test_each_run_leaves_a_page_next_to_its_report_with_links_to_earlier_ones_that_are_kept(
    tmp_path: Path,
) -> None:
    for day in (1, 2, 3):
        ran(tmp_path, day)
    assert names(tmp_path) == files_of(1, 2, 3)
    page = (tmp_path / f"{OURS}-{RUN.format(3)}.html").read_text()
    links = re.findall(r'href="([^"]+\.html)"', page)
    assert links == [f"{OURS}-{RUN.format(day)}.html" for day in (2, 1)]
    assert "The last 3 runs" in page
    ran(tmp_path, 4, keep=2)
    assert names(tmp_path) == files_of(3, 4)


def test_the_page_of_a_run_that_failed_is_written_with_its_error(tmp_path: Path) -> None:
    report = new_report()
    with pytest.raises(TableUnreachable), kept_in(str(tmp_path), report, keep=3):
        raise TableUnreachable("no space is left", action="the disk")
    page = report_path(tmp_path, OURS, report.run_id).with_suffix(".html").read_text()
    assert "no space is left" in page and "What to do" in page


def test_an_unwritable_page_or_a_bug_in_it_does_not_change_the_outcome_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{OURS}-{RUN.format(1)}.html").mkdir()
    report = ran(tmp_path, 1)
    reported = json.loads((tmp_path / f"{OURS}-{RUN.format(1)}.json").read_text())
    assert (report.exit_code, reported["exit_code"], reported["state"]) == (0, 0, "done")
    [outcome] = reported["outcomes"]
    assert outcome["outcome"] == Outcome.REPORT_NOT_WRITTEN.value
    assert "creates it again" in outcome["message"]
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []
    monkeypatch.setattr(report_files, "page_of", lambda *_: 1 / 0)
    report = ran(tmp_path, 2)
    bug = "a bug: ZeroDivisionError: division by zero"
    assert report.exit_code == 0 and bug in report.outcomes[0][1]


def put_a_file_in_the_place_of(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folder.touch()


def test_a_report_that_cannot_be_written_is_an_outcome_and_hides_no_error_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    done, failed, full = new_report(), new_report(), new_report()
    with kept_in(str(tmp_path / "a"), done, keep=10):
        put_a_file_in_the_place_of(tmp_path / "a")
    with pytest.raises(TableUnreachable), kept_in(str(tmp_path / "b"), failed, keep=10):
        put_a_file_in_the_place_of(tmp_path / "b")
        raise TableUnreachable("gone")
    with kept_in(str(tmp_path / "c"), full, keep=10):
        (before,) = (tmp_path / "c").iterdir()
        monkeypatch.setattr(Path, "replace", is_full)
    assert list((tmp_path / "c").iterdir()) == [before], "nothing half written is left"
    for run in (done, full):
        assert [outcome for outcome, _ in run.outcomes] == [Outcome.REPORT_NOT_WRITTEN]


def test_after_a_clock_that_was_ahead_a_run_keeps_its_own_report(tmp_path: Path) -> None:
    ahead = tmp_path / f"{OURS}-20990101T000000-abcdef.json"
    ahead.touch()
    ran(tmp_path, 1, keep=1)
    assert names(tmp_path) == [*files_of(1), ahead.name]


def test_the_history_is_that_of_the_last_runs_of_this_pipeline_oldest_first(tmp_path: Path) -> None:
    for day in range(1, 6):
        ran(tmp_path, day)
    for others in ("etl-clicks+other", "clicks", "eu+clicks"):
        report_path(tmp_path, others, "20231112T000000-0a1b2c").write_text("{}")
    assert [run.run_id for run in past_runs(tmp_path, OURS, before=RUN.format(5), most=3)] == [
        RUN.format(day) for day in (2, 3, 4)
    ]


def test_the_history_reads_no_more_than_so_many_bytes_and_not_what_runs_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = document_of(loaded(3))
    size = len(as_text(document, None))
    for day in (1, 2, 3):
        document["run_id"] = RUN.format(day)
        report_path(tmp_path, OURS, RUN.format(day)).write_text(
            as_text(document, {"looks": 1, "first": "x" * 5 * size})
        )
    monkeypatch.setattr(report_files, "HISTORY_MAX_BYTES", 2 * size + 10)
    found = past_runs(tmp_path, OURS, before="2023112")
    assert [(run.run_id, run.records_read, run.lag_before) for run in found] == [
        (RUN.format(day), 291, 300) for day in (2, 3)
    ]


@pytest.mark.parametrize("content", [b"", b"{}", b'{"run_id": 1', b"\xff\xfe", b"[]"])
def test_a_report_that_cannot_be_read_is_left_out_of_the_history(
    tmp_path: Path, content: bytes
) -> None:
    ran(tmp_path, 1)
    report_path(tmp_path, OURS, RUN.format(2)).write_bytes(content)
    ran(tmp_path, 3)
    assert [run.run_id for run in past_runs(tmp_path, OURS, before=RUN.format(4))] == [
        RUN.format(day) for day in (1, 3)
    ]


def test_a_page_elsewhere_links_to_no_other_page(tmp_path: Path) -> None:
    ran(tmp_path / "reports", 1)
    ran(tmp_path / "reports", 2)
    _, report = newest_report(tmp_path / "reports", OURS)
    write_page(tmp_path / "mail" / "page.html", report, tmp_path / "reports")
    assert f'href="{OURS}' not in (tmp_path / "mail" / "page.html").read_text()


def test_a_folder_that_is_a_file_is_reported_and_stops_a_run_before_it_begins(
    tmp_path: Path,
) -> None:
    (tmp_path / "reports").touch()
    message = "The directory of reports cannot be read: Not a directory"
    with pytest.raises(SettingsError, match=message):
        newest_report(tmp_path / "reports", OURS)
    with pytest.raises(SettingsError), kept_in(str(tmp_path / "reports"), new_report(), keep=10):
        pytest.fail("it began")
