"""`etl demo` as a person calls it, for brokers of each family: what it starts are real processes,
and it kills one of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from etl.model.partitions import BrokerFamily
from tests.command_result import run_etl

pytestmark = pytest.mark.brokers
PLACE = {
    BrokerFamily.KAFKA: ("partition", "offset"),
    BrokerFamily.JAFKA: ("broker_id", "partition", "offset", "message_index"),
}


@pytest.mark.parametrize("dialect", [pytest.param(one, id=one.value) for one in BrokerFamily])
def test_the_demo_ends_with_every_record_in_its_table_once(
    dialect: BrokerFamily, tmp_path: Path
) -> None:
    result = run_etl(
        "demo",
        "--broker-type",
        dialect.value,
        "--records",
        "8000",
        "--folder",
        str(tmp_path / "demo"),
        "--json",
    )
    assert result.code == 0, result.err
    reported = result.document
    assert (
        reported["produced"],
        reported["in_the_table"],
        reported["verified"],
        reported["killed_by_signal"],
    ) == (
        9600,
        9600,
        True,
        9,
    )
    rows = DeltaTable(reported["table"]).to_pyarrow_table(columns=[*PLACE[dialect]]).to_pylist()
    assert len({tuple(row.values()) for row in rows}) == len(rows) == 9600
    outcomes = [[one["outcome"] for one in run["outcomes"]] for run in reported["runs"]]
    assert outcomes == [["ingested"], ["plan_completed", "ingested"], ["up_to_date"]]


def test_the_demo_prints_its_steps_the_offsets_and_the_proof(tmp_path: Path) -> None:
    result = run_etl("demo", "--records", "8000", "--folder", str(tmp_path / "demo"))
    assert result.code == 0, result.err
    assert "9,600 records in the table of 9,600 produced: each once, none missing" in result.out
    assert "loaded until" in result.out.lower()
