"""Whose failure it is when rows cannot be made, by what Spark says of it."""

from __future__ import annotations

import pytest

from etl.transform import of_a_row

JAVA = "\n\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:665)\n"


def traceback(*raised: str, file: str = "/home/me/shaping.py") -> str:
    """What Python prints: each of `raised` followed from the one before."""
    one = 'Traceback (most recent call last):\n  File "{}", line {}, in shaped\n    return row["a"]\n           ~~~^^^^^\n{}\n'
    between = "\nDuring handling of the above exception, another exception occurred:\n\n"
    return between.join(one.format(file, number, said) for number, said in enumerate(raised, start=7))


@pytest.mark.parametrize(("kind", "text", "told"), [
    ("PythonException", "thrown from the Python worker:\n" + traceback("ValueError: no luck"),
     ("ValueError: no luck", "/home/me/shaping.py:7")),
    ("Py4JJavaError",
     "[PYTHON_EXCEPTION] thrown: " + traceback("KeyError: 'a'", "ValueError: the row has no a") + " SQLSTATE: 38000" + JAVA,
     ("ValueError: the row has no a", "/home/me/shaping.py:8")),
    ("Py4JJavaError",
     "[TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030" + JAVA + "Caused by: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012",
     ("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012", None)),
    ("ArithmeticException", "[DIVIDE_BY_ZERO] Division by zero.", ("[DIVIDE_BY_ZERO] Division by zero.", None)),
    ("Py4JJavaError", "Job aborted due to stage failure: Task 0\n[CAST_INVALID_INPUT] The value 'x'",
     ("[CAST_INVALID_INPUT] The value 'x'", None)),
], ids=["a function", "one exception after another", "an expression", "an expression before a shuffle", "a failed stage"])
def test_what_a_function_or_an_expression_raised_is_told_with_its_line(kind: str, text: str, told: tuple[str, str | None]) -> None:
    assert of_a_row(kind, text) == told


@pytest.mark.parametrize("text", [
    traceback("IndexError: list index out of range", file="/x/pyspark/sql/worker/plan_data_source_read.py"),
    "[TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030" + JAVA + "Caused by: [DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint",
    "[TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030" + JAVA, "[INTERNAL_ERROR] no session", "",
], ids=["our reader", "the table's constraint", "a task", "no task", "nothing"])
def test_other_failures_are_not_the_transforms(text: str) -> None:
    assert of_a_row("Py4JJavaError", text) is None
