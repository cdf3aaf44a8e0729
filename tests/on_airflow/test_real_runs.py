"""Real runs: the DAGs, real spark-submit, real brokers and a real table, with Airflow's scheduler left out."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.on_airflow.real import PARTITIONS, Real, real_pipeline
from tests.on_airflow.running import run

pytestmark = pytest.mark.usefixtures("database")

FIVE = datetime(2026, 1, 10, 5, tzinfo=UTC)
SIX, SEVEN = FIVE + timedelta(hours=1), FIVE + timedelta(hours=2)
WHEN = datetime(2026, 11, 17, tzinfo=UTC)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    with real_pipeline(tmp_path_factory.mktemp("real")) as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        yield running


def produce(real: Real, hour: datetime, each: int = 10) -> None:
    """So many records of that hour in each partition."""
    begin = round(hour.timestamp() * 1000)
    real.ask("produce", name="clicks", times=[[n % PARTITIONS, begin + n * 1000] for n in range(each * PARTITIONS)])


def of(start: datetime, end: datetime) -> dict[str, str]:
    return {"from_time": start.isoformat(), "until_time": end.isoformat()}


def test_an_interval_is_loaded_once_however_often_it_is_run_and_the_next_one_goes_on_from_it(real: Real) -> None:
    produce(real, FIVE)
    produce(real, SIX)
    first = run("by_hand", WHEN, of(FIVE, SIX))
    assert first.state == "success" and first.said["records"] == 10 * PARTITIONS
    loaded = real.rows()
    assert len(loaded) == 10 * PARTITIONS, "up to the end of the interval, and no further"

    again = run("by_hand", WHEN.replace(hour=1), of(FIVE, SIX))
    assert again.state == "success" and any("already applied by plan" in said for said in again.said["outcomes"])
    assert real.rows() == loaded

    second = run("by_hand", WHEN.replace(hour=2), of(SIX, SEVEN))
    assert second.state == "success" and second.said["run_key"] != first.said["run_key"]
    assert real.rows() == real.records()
    assert run("proof", WHEN.replace(hour=3), task="verify").state == "success"


def test_a_conf_whose_topic_is_not_there_fails_in_the_first_look_of_the_real_command(real: Real) -> None:
    right = real.conf.read_text()
    real.conf.write_text(right.replace("[clicks]", "[nosuch]"))
    try:
        ran = run("by_hand", WHEN.replace(hour=4), of(FIVE, SIX))
    finally:
        real.conf.write_text(right)
    assert ran.tasks["wait_until_complete"] == ("failed", 1) and ran.tasks["load"][0] == "upstream_failed"
