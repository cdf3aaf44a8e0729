"""The DAGs with real spark-submit, brokers and table, without Airflow's scheduler."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.on_airflow.real import PARTITIONS, Real, real_pipeline
from tests.on_airflow.running import run
from tests.on_airflow.standalone import wait_for

pytestmark = pytest.mark.usefixtures("database")

FOUR = datetime(2026, 1, 10, 4, tzinfo=UTC)
FIVE, SIX, SEVEN, EIGHT = (FOUR + timedelta(hours=n) for n in (1, 2, 3, 4))
BEFORE_FIVE = 40
"""Offsets of each partition; the pipeline begins after them."""
A_PLAN = 80
"""Offsets, at most."""
WHEN = datetime(2026, 11, 17, tzinfo=UTC)


_PYTHON = """#!/bin/sh
exec {python} "$@"
"""
_SPARK_SUBMIT = """#!/bin/bash
if [ -e {folder}/before ]; then
    mv {folder}/before {folder}/done
    setsid {spark_submit} "$@" >{folder}/left.log 2>&1 </dev/null &
    echo $! > {folder}/left.part && mv {folder}/left.part {folder}/left
    kill -KILL $$
fi
{spark_submit} "$@"
code=$?
if [ -e {folder}/after ]; then
    mv {folder}/after {folder}/done
    kill -KILL $$
fi
exit $code
"""


class LostWorkers:
    """Workers that are lost: their spark-submit is the real one, and the test kills it.

    `python` and `spark-submit` in a directory, which call those of the environment in
    ETL_REAL_PYTHON.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "bin").mkdir()
        self.python = folder / "bin" / "python"
        real = Path(os.environ["ETL_REAL_PYTHON"])
        for name, script in (("python", _PYTHON), ("spark-submit", _SPARK_SUBMIT)):
            path = folder / "bin" / name
            path.write_text(
                script.format(
                    python=real, spark_submit=real.with_name("spark-submit"), folder=folder
                )
            )
            path.chmod(0o755)

    def lose_the_next_one_after_its_commit(self) -> None:
        """The next spark-submit is killed when its driver has ended."""
        (self._folder / "after").touch()

    def lose_the_next_one_before_its_driver_ends(self) -> None:
        """The next spark-submit is killed when it has started its driver, which continues."""
        (self._folder / "before").touch()

    def remaining_driver(self) -> int:
        return int((self._folder / "left").read_text())


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> LostWorkers:
    return LostWorkers(tmp_path_factory.mktemp("toolkit"))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, workers: LostWorkers) -> Iterator[Real]:
    folder, start = tmp_path_factory.mktemp("real"), f'"{FIVE.isoformat()}"'
    pipeline = real_pipeline(folder, lock_timeout_s=120, start=start, max_records_per_plan=A_PLAN)
    with pipeline as running, pytest.MonkeyPatch.context() as patch:
        for name, value in {**running.environment, "ETL_REAL_PYTHON": str(workers.python)}.items():
            patch.setenv(name, value)
        yield running


def produce(real: Real, hour: datetime, each: int = 10) -> None:
    begin = round(hour.timestamp() * 1000)
    real.ask(
        "produce",
        name="clicks",
        times=[[n % PARTITIONS, begin + n * 1000] for n in range(each * PARTITIONS)],
    )


def of(start: datetime, end: datetime) -> dict[str, str]:
    return {"from": start.isoformat(), "until": end.isoformat()}


def test_a_worker_lost_after_its_drivers_commit_is_retried_and_the_interval_loaded_once(
    real: Real, workers: LostWorkers
) -> None:
    produce(real, FOUR, BEFORE_FIVE)
    produce(real, FIVE)
    produce(real, SIX)
    workers.lose_the_next_one_after_its_commit()
    ran = run("by_hand", WHEN, of(FIVE, SIX))
    assert ran.state == "success" and ran.tasks["load"][1] == 2
    assert any("was loaded by plan" in value for value in ran.returned["outcomes"]), (
        "the second try met the commit of the first"
    )
    assert len(real.rows()) == 10 * PARTITIONS, "up to the end of the interval, and no further"


def test_a_backfill_retried_during_the_lost_workers_driver_loads_its_interval_once(
    real: Real, workers: LostWorkers
) -> None:
    workers.lose_the_next_one_before_its_driver_ends()
    ran = run(
        "filling",
        WHEN,
        {"name": "four", "from": FOUR.isoformat(), "until": FIVE.isoformat()},
        task="backfill",
    )
    assert ran.state == "success" and ran.tasks["backfill"][1] > 1
    wait_for(
        "the first driver's end",
        lambda: not Path("/proc", str(workers.remaining_driver())).exists(),
        120,
    )
    assert ran.returned["outcomes"][-1].startswith(
        f"Backfill four: all {BEFORE_FIVE * PARTITIONS} offsets of {PARTITIONS} partitions loaded"
    )
    assert real.rows() == [record for record in real.records() if record[1] < BEFORE_FIVE + 10], (
        "that hour and the next one, once"
    )


def test_a_replay_with_a_worker_lost_after_its_commit_leaves_each_row_of_its_interval_once(
    real: Real, workers: LostWorkers
) -> None:
    before = real.rows()
    workers.lose_the_next_one_after_its_commit()
    ran = run(
        "again",
        WHEN,
        {
            "partitions": ["clicks"],
            "from": FIVE.isoformat(),
            "until": SIX.isoformat(),
            "reason": "seen",
        },
        task="replay",
    )
    assert ran.state == "success" and ran.tasks["replay"][1] == 2
    assert f"{10 * PARTITIONS} rows replaced by {10 * PARTITIONS}" in ran.returned["outcomes"][-1]
    assert real.rows() == before


def test_a_retry_while_the_driver_of_a_lost_worker_is_still_at_work_loads_the_interval_once(
    real: Real, workers: LostWorkers
) -> None:
    produce(real, SEVEN)
    workers.lose_the_next_one_before_its_driver_ends()
    ran = run("by_hand", WHEN.replace(hour=1), of(SEVEN, EIGHT))
    assert ran.state == "success" and ran.tasks["load"][1] > 1
    wait_for(
        "the first driver's end",
        lambda: not Path("/proc", str(workers.remaining_driver())).exists(),
        120,
    )
    assert real.rows() == real.records(), "each record of this interval and of all before it once"
    assert run("proof", WHEN.replace(hour=2), task="verify").state == "success"


def test_a_conf_with_a_missing_topic_fails_at_the_first_observation_of_the_real_command(
    real: Real,
) -> None:
    right = real.conf.read_text()
    real.conf.write_text(right.replace("[clicks]", "[nosuch]"))
    try:
        ran = run("by_hand", WHEN.replace(hour=4), of(FIVE, SIX))
    finally:
        real.conf.write_text(right)
    assert (
        ran.tasks["wait_until_ready"] == ("failed", 1) and ran.tasks["load"][0] == "upstream_failed"
    )
