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
    **{"commands": ["python -m bench --quick"], "measured_at": "2026-01-02 03:04 UTC"},
    **{"codec": "zstd", "versions": {"Kafka": "3.9.1"}},
    "machine": {
        **{"processor": "P", "cores": 2, "memory_gib": 24, "system": "Linux"},
        "load_at_start": 0.1,
    },
}


def result_of(part: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"part": part, "workload": "100B-none", "kind": kind, "records": 1_000_000, **more}


def test_a_failed_measurement_is_reported_and_counts_nowhere() -> None:
    failed = "Traceback\nValueError: 3 rows of 4 are there"
    result = result_of("compared", "arrow", failed=failed, round=1)
    page = rendered({**ABOUT, "results": [result]}).splitlines()
    assert "- compared, 100B-none, arrow, 1000000, 1: ValueError: 3 rows of 4 are there" in page
    assert not any(line.startswith("| `etl run`") for line in page)


def test_a_repeated_measurement_replaces_the_old_one_and_the_rest_stays(tmp_path: Path) -> None:
    first = Document(tmp_path, ["--quick"], codec="zstd")
    first.add_result(result_of("compared", "arrow", seconds=1.0))
    first.add_result(result_of("compared", "dataframe", seconds=2.0))
    words = ["--to", str(tmp_path), "--kinds", "arrow"]
    again = Document(tmp_path, words, codec="zstd", goes_on=True)
    for seconds in (3.0, 5.0):
        again.add_result(result_of("compared", "arrow", seconds=seconds))
    kept = json.loads((tmp_path / KEPT).read_text())
    found = [(one["kind"], one["seconds"]) for one in kept["results"]]
    assert found == [("dataframe", 2.0), ("arrow", 3.0), ("arrow", 5.0)]
    assert kept["commands"] == ["python -m bench --quick", "python -m bench --kinds arrow"]
    for twice in (kept["measured_at"], str(kept["machine"]["load_at_start"])):
        assert len(twice.split(", then ")) == 2
    assert (tmp_path / PAGE).read_text() == rendered(kept)


def test_tasks_read_through_tls_at_least_half_as_fast_as_pythons_own_ssl_moves_bytes() -> None:
    speeds: dict[str, list[float]] = {}
    for one in json.loads((PROOF / KEPT).read_text())["results"]:
        if one["part"] == "encrypted" and one["is_encrypted"]:
            speeds.setdefault(one["kind"], []).append(one["mib_s"])
    slowest = min(median(speeds["fetches"]), median(speeds["rows"]))
    assert slowest >= median(speeds["bytes"]) / 2, (
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
