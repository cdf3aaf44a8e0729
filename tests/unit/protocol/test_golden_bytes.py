"""Bytes that real brokers sent of what their own producers wrote, decoded to what their own
consumers read.

How they were taken: tests/brokers/golden.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.logs import rows_between
from tests.fakes.old_logs import physical_rows_between

FOLDER = Path(__file__).parents[2] / "golden"
ANSWERS = [
    pytest.param(answer, id=f"{path.stem}, {answer['producer']}")
    for path in sorted(FOLDER.glob("*.json"))
    for answer in json.loads(path.read_text())["answers"]
]


def test_there_are_bytes_of_every_generation() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} >= {
        "jafka-3.0.6",
        "0.8.2.2",
        "0.9.0.1",
        "0.10.2.2",
        "0.11.0.3",
        "3.9.1",
        "4.1.0",
    }


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_bytes_of_a_broker_are_what_its_own_consumer_reads(answer: dict[str, Any]) -> None:
    records = bytes.fromhex(answer["records"])
    if answer["fetch_version"] is None:
        rows = physical_rows_between(records, 0, len(records))
    else:
        rows = rows_between(records, 0, answer["read"][-1][0] + 1)
    found = [
        [row["offset"], row.get("message_index", 0), _hex(row["key"]), _hex(row["value"])]
        for row in rows
    ]
    assert found == answer["read"]
    assert len(found) == len({(offset, index) for offset, index, _, _ in found})


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()
