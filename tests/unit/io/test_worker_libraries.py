"""Spark's errors of a worker that could not start, and our messages for them."""

from __future__ import annotations

import pytest

from etl.io.spark.session import lacking

TRACEBACK = (
    'Traceback (most recent call last):\n  File "/x/pyspark/worker.py", line 3, in '
    "main\n{raised}\n\n\tat org.apache.spark.api"
)


@pytest.mark.parametrize(
    "raised, text",
    [
        ("ModuleNotFoundError: No module named 'etl'", "does not have the module etl"),
        (
            "ModuleNotFoundError: No module named 'numba.core'",
            "does not have the module numba.core",
        ),
        (
            "pyspark.errors.exceptions.base.PySparkImportError: [PACKAGE_NOT_INSTALLED] "
            "PyArrow >= 18.0.0 must be installed; however, it was "
            "not found.",
            "does not have the module PyArrow",
        ),
        (
            "ImportError: Numba needs NumPy 2.4 or less. Got NumPy 2.5.",
            "Numba needs NumPy 2.4 or less. Got NumPy 2.5.",
        ),
        (
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] "
            "Python in worker has different version: 3.12 than "
            "that in driver: 3.11, PySpark cannot run with different minor versions.",
            "3.12 than that in driver: 3.11",
        ),
    ],
)
def test_missing_libraries_of_a_worker_are_reported_with_the_command_that_installs_them(
    raised: str, text: str
) -> None:
    error = lacking(TRACEBACK.format(raised=raised))
    assert error is not None and text in error.message and "`etl package" in error.action


def test_a_python_missing_on_the_workers_is_reported_with_its_path() -> None:
    error = lacking(
        'java.io.IOException: Cannot run program "./environment/bin/python": error=2, No '
        "such file or directory"
    )
    assert (
        error is not None
        and error.where == {"path": "./environment/bin/python"}
        and "PYSPARK_PYTHON" in error.action
    )


@pytest.mark.parametrize(
    "text",
    [
        TRACEBACK.format(raised="ModuleNotFoundError: No module named 'shop.rows'"),
        TRACEBACK.format(raised="ImportError: cannot import name 'clean' from 'shop'"),
        "No module named 'etl'",
        'Cannot run program "chmod": error=12, Cannot allocate memory',
        "",
    ],
)
def test_what_a_transform_lacks_and_other_failures_are_none_of_it(text: str) -> None:
    assert lacking(text) is None
