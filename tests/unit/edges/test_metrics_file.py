"""The file of the metrics: where it is, that it is whole, what it keeps of the runs before, and
that no run fails for it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from etl.errors import TableUnreachable
from etl.io import report_files
from etl.io.report_files import kept_in
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from etl.settings.sections import Settings
from tests.builders import plain_settings
from tests.reports import new_report

SUCCESS = re.compile(
    r'^offset_range_etl_last_success_timestamp_seconds\{pipeline="clicks",group="etl-clicks"\} '
    r"(.+)$",
    re.MULTILINE,
)


def ran(folder: Path, settings: Settings, *, fails: bool = False) -> Report:
    """A run, as `etl run` keeps it."""
    report = new_report()
    report.settings = settings
    if not fails:
        with kept_in(str(folder / "reports"), report, keep=5):
            return report
    with pytest.raises(TableUnreachable), kept_in(str(folder / "reports"), report, keep=5):
        raise TableUnreachable("no space is left")
    return report


def settings_at(path: Path) -> Settings:
    return plain_settings(metrics={"path": str(path)})


@pytest.mark.parametrize(
    ("metrics_path", "file"),
    [("x/here.prom", "x/here.prom"), ("x", "x/group+clicks.prom"), ("x/", "x/group+clicks.prom")],
)
def test_the_file_is_the_one_that_is_named_or_one_of_the_pipelines_name_in_the_folder(
    tmp_path: Path, metrics_path: str, file: str
) -> None:
    ran(tmp_path, plain_settings(metrics={"path": f"{tmp_path}/{metrics_path}"}))
    assert "offset_range_etl_run_success" in (tmp_path / file).read_text()
    assert [path.name for path in (tmp_path / file).parent.iterdir()] == [(tmp_path / file).name], (
        "nothing half written is left"
    )


def test_a_failed_run_is_written_and_keeps_the_time_of_the_last_success(tmp_path: Path) -> None:
    settings, file = settings_at(tmp_path), tmp_path / "group+clicks.prom"
    ran(tmp_path, settings)
    [before] = SUCCESS.findall(file.read_text())
    for _ in range(2):
        ran(tmp_path, settings, fails=True)
        assert (
            SUCCESS.findall(file.read_text()) == [before]
            and 'run_exit_code{pipeline="clicks",group="etl-clicks"} 7' in file.read_text()
        )


@pytest.mark.parametrize(
    "before",
    [
        b"",
        b"\xff\xfe",
        b"nonsense\n",
        b'offset_range_etl_last_success_timestamp_seconds{pipeline="clicks",group="etl-clicks"} '
        b"1.2.3\n",
        b'offset_range_etl_last_success_timestamp_seconds{pipeline="other",group="etl-clicks"} '
        b"17.0\n",
    ],
)
def test_a_file_without_samples_of_this_pipeline_is_rewritten(
    tmp_path: Path, before: bytes
) -> None:
    (tmp_path / "group+clicks.prom").write_bytes(before)
    ran(tmp_path, settings_at(tmp_path), fails=True)
    assert SUCCESS.findall((tmp_path / "group+clicks.prom").read_text()) == []


def test_unwritable_metrics_are_reported_and_do_not_change_the_outcome_of_the_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "group+clicks.prom").mkdir()
    report = ran(tmp_path, settings_at(tmp_path))
    assert report.exit_code == 0 and [outcome for outcome, _ in report.outcomes] == [
        Outcome.METRICS_NOT_WRITTEN
    ]
    [kept] = (tmp_path / "reports").glob("*.json")
    assert "metrics_not_written" in kept.read_text()


def test_a_bug_in_the_metrics_does_not_make_a_run_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_files, "write_metrics", lambda *_, **__: 1 / 0)
    report = ran(tmp_path, settings_at(tmp_path))
    assert report.exit_code == 0 and "a bug: ZeroDivisionError" in report.outcomes[0][1]


def test_without_the_setting_nothing_is_written(tmp_path: Path) -> None:
    ran(tmp_path, plain_settings())
    assert sorted(path.suffix for path in tmp_path.rglob("*.*")) == [".html", ".json"]
