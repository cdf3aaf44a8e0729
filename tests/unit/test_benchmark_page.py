"""The page of `make bench` consists of its results alone; `python -m bench` measures them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from bench.whole.document import KEPT, PAGE, Document
from bench.whole.drain import next_offset
from bench.whole.page import rendered
from bench.whole.records import Clicks

PROOF = Path(__file__).parents[2] / "docs" / "proof"
ABOUT: dict[str, Any] = {
    "commands": ["python -m bench --quick"],
    "measured_at": "2026-01-02 03:04 UTC",
    "codec": "zstd",
    "versions": {"Kafka": "3.9.1"},
    "machine": {
        "processor": "P",
        "cores": 2,
        "memory_gib": 24,
        "system": "Linux",
        "load_at_start": 0.1,
    },
}


def result_of(part: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"part": part, "workload": "100B-none", "kind": kind, "records": 1_000_000, **more}


def page_of(*results: dict[str, Any]) -> list[str]:
    return rendered({**ABOUT, "results": list(results)}).splitlines()


def test_a_row_has_the_medians_of_its_rounds_and_its_ratios_to_sparks_and_to_the_peers() -> None:
    results = [
        {"part": "topics", "workload": "100B-none", "records": 1_000_000, "log_bytes": 112_000_000}
    ]
    for kind, cpu, table_bytes, rounds in (
        ("spark-delta", 4.0, 30_000_000, (4.5, 9.0, 4.0)),
        ("arrow", 1.0, 20_000_000, (1.0, 0.9, 7.0)),
        ("peer", 2.0, 40_000_000, (2.5,)),
    ):
        for seconds in rounds:
            measured = {"seconds": seconds, "to_commit": seconds - 0.5, "cpu": cpu}
            results.append(result_of("compared", kind, table_bytes=table_bytes, **measured))
    page = page_of(*results)
    assert "1,000,000 records, 100 MB of values; the topic's segments have 112 MB." in page
    rows = [
        "| Spark's Kafka source -> Delta | 4.00 | 0.25 | 25 |  | 4.50 |  | 40.0 |  |  | 30 |",
        "| `etl run`, `writer: arrow` | 0.50 | 2.00 | 200 | 8.00 | 1.00 | 4.50 | 10.0 | 0.25 "
        "| 0.50 | 20 |",
        "| confluent-kafka + deltalake, one process | 2.00 | 0.50 | 50 | 2.00 | 2.50 | 1.80 "
        "| 20.0 | 0.50 |  | 40 |",
    ]
    assert set(rows) <= set(page)


def test_a_failed_measurement_is_reported_and_counts_nowhere() -> None:
    page = page_of(
        result_of(
            "compared", "arrow", failed="Traceback\nValueError: 3 rows of 4 are there", round=1
        )
    )
    assert "- compared, 100B-none, arrow, 1000000, 1: ValueError: 3 rows of 4 are there" in page
    assert not any(line.startswith("| `etl run`") for line in page)


def test_a_repeated_measurement_replaces_the_old_one_and_the_rest_stays(
    tmp_path: Path,
) -> None:
    first = Document(tmp_path, ["--quick"], codec="zstd")
    for result in (
        result_of("compared", "arrow", seconds=1.0),
        result_of("compared", "dataframe", seconds=2.0),
    ):
        first.add_result(result)
    again = Document(
        tmp_path, ["--to", str(tmp_path), "--kinds", "arrow"], codec="zstd", goes_on=True
    )
    for seconds in (3.0, 5.0):
        again.add_result(result_of("compared", "arrow", seconds=seconds))
    kept = json.loads((tmp_path / KEPT).read_text())
    assert [(one["kind"], one["seconds"]) for one in kept["results"]] == [
        ("dataframe", 2.0),
        ("arrow", 3.0),
        ("arrow", 5.0),
    ]
    assert kept["commands"] == [
        "python -m bench --quick",
        "python -m bench --kinds arrow",
    ]
    assert (
        len(kept["measured_at"].split(", then "))
        == len(str(kept["machine"]["load_at_start"]).split(", then "))
        == 2
    )
    assert (tmp_path / PAGE).read_text() == rendered(kept)


def test_tasks_read_through_tls_at_least_half_as_fast_as_pythons_own_ssl_moves_bytes() -> None:
    results = [
        one
        for one in json.loads((PROOF / KEPT).read_text())["results"]
        if one["part"] == "encrypted" and one["is_encrypted"]
    ]
    speeds = {
        kind: median([one["mib_s"] for one in results if one["kind"] == kind])
        for kind in ("bytes", "fetches", "rows")
    }
    assert min(speeds["fetches"], speeds["rows"]) >= speeds["bytes"] / 2, (
        "this ratio is a law: repeat the measurement, or find the cause"
    )


def test_the_page_in_docs_is_what_its_results_render() -> None:
    assert (PROOF / PAGE).read_text() == rendered(json.loads((PROOF / KEPT).read_text()))


@pytest.mark.parametrize("size", [100, 1000])
def test_clicks_are_json_of_the_requested_size_and_no_two_are_alike(size: int) -> None:
    clicks = Clicks(size)
    found = [clicks[number] for number in range(0, 20_000, 2)]
    assert {len(click) for click in found} == {size}
    assert len(set(found)) == len(found)
    assert {json.loads(click)["at"] for click in found} == set(
        range(1_700_000_000_000, 1_700_000_020_000, 2)
    )


def test_the_drain_continues_after_the_last_whole_batch() -> None:
    def batch(base: int, count: int) -> bytes:
        return struct.pack(">qi11xi", base, 30, count - 1) + bytes(42 - 27)

    assert next_offset(memoryview(batch(5, 3) + batch(8, 2) + batch(10, 9)[:-1]), 5) == 10
    assert next_offset(memoryview(b""), 7) == 7
