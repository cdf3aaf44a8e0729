"""What stays together on a worker of the gate."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.units_of_work import LONGEST, turn_of, unit_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("test", "unit"),
    [
        ("tests/brokers/test_a.py::test_x[jafka-3.0.6]", "tests/brokers on jafka-3.0.6"),
        (
            "tests/brokers/test_b.py::test_y[jafka-3.0.6-one is as late]",
            "tests/brokers on jafka-3.0.6",
        ),
        ("tests/brokers/test_b.py::test_y[3.9.1 range]", "tests/brokers on 3.9.1"),
        ("tests/brokers/test_b.py::test_y[registered-0.8.2.2]", "tests/brokers on 0.8.2.2"),
        ("tests/brokers/test_b.py::test_y[10.8.2.2]", "tests/brokers/test_b.py"),
        ("tests/brokers/test_b.py::test_y", "tests/brokers/test_b.py"),
        ("tests/system/test_a.py::test_x[3.9.1]", "tests/system/test_a.py"),
    ],
)
def test_tests_on_one_release_of_the_brokers_stay_together_and_others_by_their_file(
    test: str, unit: str
) -> None:
    assert unit_of(test) == unit


def test_what_needs_no_server_is_first_and_then_what_takes_longest() -> None:
    tests = [
        "tests/spark/test_a.py::test_x",
        f"{LONGEST[0]}::test_x",
        "tests/wire/test_a.py::test_x",
        "tests/unit/a/test_a.py::test_x[1]",
    ]
    assert sorted(tests, key=turn_of) == [tests[2], tests[3], tests[1], tests[0]]
    assert [name for name in LONGEST if not (ROOT / name).is_file()] == []
