"""The page of `make bench` is made of its results alone; `python -m bench` measures them."""

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
    page = page_of(
        {"part": "topics", "workload": "100B-none", "records": 1_000_000, "log_bytes": 112_000_000},
        *(
            result_of(
                "compared",
                "spark-delta",
                seconds=s,
                to_commit=s - 0.5,
                cpu=4.0,
                table_bytes=30_000_000,
            )
            for s in (4.5, 9.0, 4.0)
        ),
        *(
            result_of(
                "compared", "arrow", seconds=s, to_commit=s - 0.5, cpu=1.0, table_bytes=20_000_000
            )
            for s in (1.0, 0.9, 7.0)
        ),
        result_of("compared", "peer", seconds=2.0, to_commit=2.0, cpu=2.0, table_bytes=40_000_000),
    )
    assert "1,000,000 records, 100 MB of values; the topic's segments have 112 MB." in page
    assert (
        "| Spark's Kafka source -> Delta | 4.00 | 0.25 | 25 |  | 4.50 |  | 40.0 |  |  | 30 |"
        in page
    )
    assert (
        "| `etl run`, `writer: arrow` | 0.50 | 2.00 | 200 | 8.00 | 1.00 | 4.50 | 10.0 | 0.25 "
        "| 0.50 | 20 |" in page
    )
    assert (
        "| confluent-kafka + deltalake, one process | 2.00 | 0.50 | 50 | 2.00 | 2.00 | 2.25 "
        "| 20.0 | 0.50 |  | 40 |" in page
    )


def test_reading_through_tls_has_its_share_of_what_pythons_own_ssl_moves() -> None:
    def one(kind: str, is_encrypted: bool, mib_s: float) -> dict[str, Any]:
        return {
            "part": "encrypted",
            "kind": kind,
            "is_encrypted": is_encrypted,
            "mib_s": mib_s,
            "mib": 1024.0,
            "cpu_s": 2.0,
        }

    results = [
        one("bytes", False, 3000),
        one("bytes", True, 1000),
        one("fetches", False, 2000),
        one("fetches", True, 600),
    ]
    assert "| bytes | 3,000 | 2.00 |  |  |  |" in page_of(*results[:1]), (
        "the page is written after each result"
    )
    page = page_of(*results)
    assert (
        "| bytes | 3,000 | 2.00 | 1,000 | 2.00 | 1.00 |" in page
        and "| fetches | 2,000 | 2.00 | 600 | 2.00 | 0.60 |" in page
    )


def test_growth_and_memory_and_small_runs_and_planning_have_tables_of_their_own() -> None:
    run = {
        "plan_s": 1.0,
        "commit_s": 0.5,
        "process_s": 3.0,
        "cpu_s": 2.0,
        "peak_mib": 100.4,
        "document_bytes": 12_345,
    }
    page = page_of(
        result_of("records", "arrow", seconds=1.0, to_commit=0.5),
        {**result_of("records", "arrow", seconds=2.0), "records": 2_000_000},
        result_of("cores", "arrow", seconds=2.0, cores=1),
        result_of("cores", "arrow", seconds=1.0, cores=2),
        {**result_of("memory", "arrow", peaks={"worker": 200_000_000}), "records": 50_000},
        result_of(
            "memory",
            "arrow",
            peaks={"jvm": 900_000_000, "driver": 150_000_000, "worker": 210_000_000},
        ),
        {"part": "small", "kind": "bare", "round": 0, "seconds": 10.0, "is_bare": True},
        {"part": "small", "kind": "ours", "round": 0, "seconds": 12.0, "is_bare": False},
        {"part": "planning", "kind": "next", "partitions": 10_000, **run},
    )
    assert "| `etl run`, `writer: arrow` | 0.50 s, 2.00 | 2.00 s, 1.00 |" in page
    assert "| `etl run`, `writer: arrow` | 2.00 | 0.50 | 1.00 | 1.00 | 2.00 |" in page
    assert "| `etl run`, `writer: arrow` | 1,000,000 | 900 | 150 | 210 | 200 | 5 % |" in page
    assert "| ours | 12.00 | 1.20 |" in page
    assert "| 10,000 | next | 1.00 | 0.50 | 3.00 | 2.00 | 100 | 12,345 |" in page


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
