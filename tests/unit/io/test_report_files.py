"""The files that a run leaves; no run fails for them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import etl
from etl.errors import EtlError, SettingsError, TableUnreachable
from etl.io import report_files
from etl.io.report_files import (
    UNFINISHED,
    kept_in,
    newest_report,
    past_runs,
    report_path,
    write_page,
    write_whole,
)
from etl.io.spark.session import redirecting_jvm_output
from etl.report.incident import as_text
from etl.report.metrics import LAST_SUCCESS, PREFIX
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from etl.settings.sections import Settings
from tests.builders import plain_settings
from tests.reports import document_of, loaded, new_report

RUN = "2023111{}T221320-0a1b2c"
FULL = TableUnreachable("no space is left", action="the disk")
OURS = "etl-clicks+clicks"


def ran(
    folder: Path,
    day: int = 1,
    *,
    keep: int = 10,
    error: EtlError | None = None,
    settings: Settings | None = None,
) -> Report:
    """A run of that day, as `etl run` keeps it."""
    report = new_report()
    report.run_id = RUN.format(day)
    report.settings = settings
    with pytest.raises(EtlError) if error else contextlib.nullcontext():
        with kept_in(str(folder), report, keep=keep):
            if error:
                raise error
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
    report = ran(tmp_path, error=FULL)
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
    assert names(tmp_path) == files_of(1)
    monkeypatch.setattr(report_files, "page_of", lambda *_: 1 / 0)
    report = ran(tmp_path, 2)
    bug = "a bug: ZeroDivisionError: division by zero"
    assert report.exit_code == 0 and bug in report.outcomes[0][1]


def test_no_file_is_written_through_a_link_that_another_user_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports, metrics, theirs = (tmp_path / name for name in ("reports", "clicks.prom", "theirs"))
    theirs.write_text("unchanged")
    links = (metrics, tmp_path / "clicks.prom.tmp", tmp_path / f".known{UNFINISHED}")
    for link in links:
        link.symlink_to(theirs)
    ran(reports, settings=plain_settings(metrics={"path": str(metrics)}))
    assert not metrics.is_symlink() and names(reports) == files_of(1)
    metrics.unlink()
    os.mkfifo(metrics)
    ran(reports, settings=plain_settings(metrics={"path": str(metrics)}))
    assert metrics.is_file()
    monkeypatch.setattr("secrets.token_hex", lambda _: "known")
    with pytest.raises(FileExistsError):
        write_whole(metrics, "x")
    with pytest.raises(SettingsError, match="Spark's log cannot be written"):
        with redirecting_jvm_output(links[1]):
            pass
    assert theirs.read_text() == "unchanged"


def test_the_unfinished_file_of_a_killed_run_is_removed_later(tmp_path: Path) -> None:
    new, old = (tmp_path / f".{name}{UNFINISHED}" for name in ("new", "old"))
    new.touch()
    old.touch()
    os.utime(old, (0, 0))
    ran(tmp_path)
    assert names(tmp_path) == [new.name, *files_of(1)]


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


ROOT = Path(etl.__file__).parents[1]
SAMPLE = f"{PREFIX}{LAST_SUCCESS}".encode()


def values(file: Path, name: str) -> list[float]:
    """The values of a metric in the file; its labels are those of the pipeline."""
    found = []
    for family in text_string_to_metric_families(file.read_text()):
        for sample in family.samples:
            if sample.name == PREFIX + name:
                assert sample.labels == {"pipeline": "clicks", "group": "etl-clicks"}
                found.append(sample.value)
    return found


def settings_at(path: Path | str) -> Settings:
    return plain_settings(metrics={"path": str(path)})


@pytest.mark.parametrize(
    ("metrics_path", "file"),
    [("x/here.prom", "x/here.prom"), ("x", "x/group+clicks.prom"), ("x/", "x/group+clicks.prom")],
)
def test_the_file_is_the_one_that_is_named_or_one_of_the_pipelines_name_in_the_folder(
    tmp_path: Path, metrics_path: str, file: str
) -> None:
    ran(tmp_path / "reports", settings=settings_at(f"{tmp_path}/{metrics_path}"))
    assert "offset_range_etl_run_success" in (tmp_path / file).read_text()
    assert [path.name for path in (tmp_path / file).parent.iterdir()] == [(tmp_path / file).name], (
        "nothing half written is left"
    )


def test_a_failed_run_is_written_and_keeps_the_time_of_the_last_success(tmp_path: Path) -> None:
    settings, file = settings_at(tmp_path), tmp_path / "group+clicks.prom"
    ran(tmp_path / "reports", settings=settings)
    [before] = values(file, LAST_SUCCESS)
    for _ in range(2):
        ran(tmp_path / "reports", error=FULL, settings=settings)
        assert values(file, LAST_SUCCESS) == [before]
        assert values(file, "run_exit_code") == [7]


@pytest.mark.parametrize(
    ("labels", "kept"),
    [
        ('pipeline="clicks",group="etl-clicks"} 1700000022.454', 1_700_000_022.454),
        ('group="etl-clicks",pipeline="clicks"} 1.700000022454e+09', 1_700_000_022.454),
        ('group="etl-clicks",pipeline="clicks"} 1700000022', 1_700_000_022),
    ],
)
def test_the_last_success_is_read_in_any_valid_form(
    tmp_path: Path, labels: str, kept: float
) -> None:
    file = tmp_path / "group+clicks.prom"
    file.write_text(f"{PREFIX}run_info 1\n{PREFIX}{LAST_SUCCESS}{{{labels}\n")
    ran(tmp_path / "reports", error=FULL, settings=settings_at(tmp_path))
    assert values(file, LAST_SUCCESS) == [kept]


@pytest.mark.parametrize(
    "before",
    [
        b"",
        b"\xff\xfe",
        b"nonsense\n",
        SAMPLE + b'{pipeline="clicks",group="etl-clicks"} 1.2.3\n',
        SAMPLE + b'{pipeline="clicks",group="etl-clicks"} NaN\n',
        SAMPLE + b'{pipeline="cli',
        SAMPLE + b'{pipeline="other",group="etl-clicks"} 17.0\n',
    ],
)
def test_a_file_without_samples_of_this_pipeline_is_rewritten(
    tmp_path: Path, before: bytes
) -> None:
    (tmp_path / "group+clicks.prom").write_bytes(before)
    ran(tmp_path / "reports", error=FULL, settings=settings_at(tmp_path))
    assert values(tmp_path / "group+clicks.prom", LAST_SUCCESS) == []


def test_unwritable_metrics_or_a_bug_in_them_do_not_change_the_outcome_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "group+clicks.prom").mkdir()
    report = ran(tmp_path / "reports", settings=settings_at(tmp_path))
    assert report.exit_code == 0
    assert [outcome for outcome, _ in report.outcomes] == [Outcome.METRICS_NOT_WRITTEN]
    [kept] = (tmp_path / "reports").glob("*.json")
    assert "metrics_not_written" in kept.read_text()
    monkeypatch.setattr(report_files, "write_metrics", lambda *_, **__: 1 / 0)
    report = ran(tmp_path / "reports", settings=settings_at(tmp_path))
    assert report.exit_code == 0 and "a bug: ZeroDivisionError" in report.outcomes[0][1]


RUNS = """
import sys
import etl.cli, etl.commands.run, etl.reader.source, etl.reader.run_task
from etl.io.report_files import kept_in
from tests.builders import plain_settings
from tests.reports import new_report

for metrics in ({}, {"path": sys.argv[1] + "/metrics/here.prom"}):
    report = new_report()
    report.settings = plain_settings(metrics=metrics)
    with kept_in(sys.argv[1] + "/reports", report, keep=2):
        print([name in sys.modules for name in ("jinja2", "prometheus_client")])
    print([name in sys.modules for name in ("jinja2", "prometheus_client")], report.outcomes)
"""


def test_the_libraries_of_the_page_and_of_the_metrics_are_imported_when_they_are_written(
    tmp_path: Path,
) -> None:
    of_the_client = tmp_path / "multiprocess"
    of_the_client.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", RUNS, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(of_the_client)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "[False, False]",
        "[True, False] []",
        "[True, False]",
        "[True, True] []",
    ]
    assert values(tmp_path / "metrics" / "here.prom", "run_success") == [1]
    assert list(of_the_client.iterdir()) == [], "settings of the client do not matter"


def test_a_report_that_cannot_be_written_is_an_outcome_and_hides_no_error_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def replace_by_a_file(folder: Path) -> None:
        shutil.rmtree(folder)
        folder.touch()

    done, failed, full = new_report(), new_report(), new_report()
    with kept_in(str(tmp_path / "a"), done, keep=10):
        replace_by_a_file(tmp_path / "a")
    with pytest.raises(TableUnreachable), kept_in(str(tmp_path / "b"), failed, keep=10):
        replace_by_a_file(tmp_path / "b")
        raise FULL
    with kept_in(str(tmp_path / "c"), full, keep=10):
        (before,) = (tmp_path / "c").iterdir()
        monkeypatch.setattr(Path, "replace", is_full)
    assert list((tmp_path / "c").iterdir()) == [before], "nothing half written is left"
    for run in (done, full):
        assert [outcome for outcome, _ in run.outcomes] == [Outcome.REPORT_NOT_WRITTEN]
