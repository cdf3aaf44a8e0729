"""The file of the metrics: where it is, that it is whole, what it keeps of the runs before, and
that no run fails for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import etl
from etl.errors import TableUnreachable
from etl.io import report_files
from etl.io.report_files import kept_in
from etl.report.metrics import LAST_SUCCESS, PREFIX
from etl.report.run_progress import Outcome
from etl.report.run_report import Report
from etl.settings.sections import Settings
from tests.builders import plain_settings
from tests.reports import new_report

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
    [before] = values(file, LAST_SUCCESS)
    for _ in range(2):
        ran(tmp_path, settings, fails=True)
        assert values(file, LAST_SUCCESS) == [before]
        assert values(file, "run_exit_code") == [7]


@pytest.mark.parametrize(
    ("sample", "kept"),
    [
        (b'{pipeline="clicks",group="etl-clicks"} 1700000022.454', 1_700_000_022.454),
        (b'{group="etl-clicks",pipeline="clicks"} 1.700000022454e+09', 1_700_000_022.454),
        (b'{group="etl-clicks",pipeline="clicks"} 1700000022', 1_700_000_022),
    ],
)
def test_the_last_success_is_read_in_any_valid_form(
    tmp_path: Path, sample: bytes, kept: float
) -> None:
    file = tmp_path / "group+clicks.prom"
    file.write_bytes(f"{PREFIX}run_info 1\n{PREFIX}{LAST_SUCCESS}".encode() + sample + b"\n")
    ran(tmp_path, settings_at(tmp_path), fails=True)
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
    ran(tmp_path, settings_at(tmp_path), fails=True)
    assert values(tmp_path / "group+clicks.prom", LAST_SUCCESS) == []


def test_unwritable_metrics_or_a_bug_in_them_do_not_change_the_outcome_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "group+clicks.prom").mkdir()
    report = ran(tmp_path, settings_at(tmp_path))
    assert report.exit_code == 0
    assert [outcome for outcome, _ in report.outcomes] == [Outcome.METRICS_NOT_WRITTEN]
    [kept] = (tmp_path / "reports").glob("*.json")
    assert "metrics_not_written" in kept.read_text()
    monkeypatch.setattr(report_files, "write_metrics", lambda *_, **__: 1 / 0)
    report = ran(tmp_path, settings_at(tmp_path))
    assert report.exit_code == 0 and "a bug: ZeroDivisionError" in report.outcomes[0][1]


RUNS = """
import sys
from etl.io.report_files import kept_in
from tests.builders import plain_settings
from tests.reports import new_report

for metrics in ({}, {"path": sys.argv[1] + "/metrics/here.prom"}):
    report = new_report()
    report.settings = plain_settings(metrics=metrics)
    with kept_in(sys.argv[1] + "/reports", report, keep=2):
        pass
    print("prometheus_client" in sys.modules, report.outcomes)
"""


def test_a_run_without_metrics_does_not_import_the_client_and_its_settings_do_not_matter(
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
    assert done.stdout == "False []\nTrue []\n"
    assert values(tmp_path / "metrics" / "here.prom", "run_success") == [1]
    assert list(of_the_client.iterdir()) == []
