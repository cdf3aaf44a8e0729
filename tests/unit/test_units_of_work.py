"""What stays together on a worker of the gate."""

from __future__ import annotations

import pytest

from tests.units_of_work import unit_of


@pytest.mark.parametrize(("test", "unit"), [
    ("tests/brokers/test_a.py::test_x[jafka-3.0.6]", "tests/brokers on jafka-3.0.6"),
    ("tests/brokers/test_b.py::test_y[jafka-3.0.6-one is as late]", "tests/brokers on jafka-3.0.6"),
    ("tests/brokers/test_b.py::test_y[3.9.1 range]", "tests/brokers on 3.9.1"),
    ("tests/brokers/test_b.py::test_y[registered-0.8.2.2]", "tests/brokers on 0.8.2.2"),
    ("tests/brokers/test_b.py::test_y[10.8.2.2]", "tests/brokers/test_b.py"),
    ("tests/brokers/test_b.py::test_y", "tests/brokers/test_b.py"),
    ("tests/system/test_a.py::test_x[3.9.1]", "tests/system/test_a.py"),
])
def test_tests_on_one_release_of_the_brokers_stay_together_and_others_by_their_file(test: str, unit: str) -> None:
    assert unit_of(test) == unit
