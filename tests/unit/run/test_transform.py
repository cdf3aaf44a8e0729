"""The error if rows cannot be computed, by Spark's exception."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructType

from etl.errors import NotOurTable, SettingsError
from etl.io.spark.session import raised_on_a_row
from etl.model.columns import arrow_schema
from etl.run.read_rows import apply_transform, fitting_rows, load_transform, unprovable
from etl.settings.sections import Settings
from tests.builders import plain_settings

JAVA = "\n\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:665)\n"


def traceback(*raised: str, file: str = "/home/me/shaping.py") -> str:
    """What Python prints: each of `raised` followed from the one before."""
    one = (
        'Traceback (most recent call last):\n  File "{}", line {}, in shaped\n    return '
        'row["a"]\n           ~~~^^^^^\n{}\n'
    )
    between = "\nDuring handling of the above exception, another exception occurred:\n\n"
    return between.join(
        one.format(file, number, value) for number, value in enumerate(raised, start=7)
    )


@pytest.mark.parametrize(
    ("kind", "text", "reported"),
    [
        (
            "PythonException",
            "thrown from the Python worker:\n" + traceback("ValueError: no luck"),
            ("ValueError: no luck", "/home/me/shaping.py:7"),
        ),
        (
            "Py4JJavaError",
            "[PYTHON_EXCEPTION] thrown: "
            + traceback("KeyError: 'a'", "ValueError: the row has no a")
            + " SQLSTATE: 38000"
            + JAVA,
            ("ValueError: the row has no a", "/home/me/shaping.py:8"),
        ),
        (
            "Py4JJavaError",
            "[TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030"
            + JAVA
            + "Caused by: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012",
            ("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012", None),
        ),
        (
            "ArithmeticException",
            "[DIVIDE_BY_ZERO] Division by zero.",
            ("[DIVIDE_BY_ZERO] Division by zero.", None),
        ),
        (
            "Py4JJavaError",
            "Job aborted due to stage failure: Task 0\n[CAST_INVALID_INPUT] The value 'x'",
            ("[CAST_INVALID_INPUT] The value 'x'", None),
        ),
    ],
    ids=[
        "a function",
        "one exception after another",
        "an expression",
        "an expression before a shuffle",
        "a failed stage",
    ],
)
def test_an_error_of_a_function_or_an_expression_is_reported_with_its_line(
    kind: str, text: str, reported: tuple[str, str | None]
) -> None:
    assert raised_on_a_row(kind, text) == reported


@pytest.mark.parametrize(
    "text",
    [
        traceback(
            "IndexError: list index out of range", file="/x/etl.zip/etl/reader/spark_tasks.py"
        ),
        "[TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030"
        + JAVA
        + "Caused by: [DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint",
        "[TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030" + JAVA,
        "[INTERNAL_ERROR] no session",
        "",
    ],
    ids=["our reader", "the table's constraint", "a task", "no task", "nothing"],
)
def test_other_failures_are_not_the_transforms(text: str) -> None:
    assert raised_on_a_row("Py4JJavaError", text) is None


# -- what the transform makes of rows
# -------------------------------------------------------------------------------------------

ANY_ROWS: Any = None
OURS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "integer",
    "offset": "long",
    "timestamp": "timestamp",
    "timestampType": "integer",
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return plain_settings(table={"path": str(tmp_path / "table")}, transform="shaping:shaped")


def made(monkeypatch: pytest.MonkeyPatch, **changed: str | None) -> Any:
    """The transform returns rows with these columns: ours with the given changes."""
    schema = StructType()
    for name, kind in {**OURS, **changed}.items():
        if kind:
            schema = schema.add(name, kind)
    frame = SimpleNamespace(
        schema=schema,
        dtypes=[(field.name, field.dataType.simpleString()) for field in schema.fields],
    )
    monkeypatch.setattr("etl.run.read_rows.apply_transform", lambda *_: frame)
    return frame


def test_a_transform_that_keeps_what_names_a_record_may_do_what_it_likes_with_the_rest(
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
) -> None:
    frame = made(monkeypatch, key=None, value=None, colour="string")
    assert fitting_rows(settings, ANY_ROWS) is frame


@pytest.mark.parametrize("has_table", [False, True])
@pytest.mark.parametrize(
    "changed, why",
    [
        ({"offset": None}, "there is no column offset"),
        ({"topic": None, "name": "string"}, "there is no column topic"),
        ({"partition": "string"}, "the column partition is string"),
        ({"offset": "double"}, "the column offset is double"),
    ],
    ids=["dropped", "renamed", "cast to text", "cast to a double"],
)
def test_a_transform_with_unprovable_rows_is_rejected_before_any_write(
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
    has_table: bool,
    changed: dict[str, str | None],
    why: str,
) -> None:
    if has_table:
        DeltaTable.create(settings.table.path, arrow_schema())
    made(monkeypatch, **changed)
    with pytest.raises(SettingsError, match=why) as caught:
        fitting_rows(settings, ANY_ROWS)
    assert (caught.value.where["key"], caught.value.where["function"]) == (
        "transform.dataframe",
        "shaping:shaped",
    )


def test_a_column_that_is_never_null_fits_the_table_that_it_made(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    nested = pyarrow.list_(pyarrow.field("element", pyarrow.int32()))
    schema = (
        arrow_schema()
        .append(pyarrow.field("source", pyarrow.string()))
        .append(pyarrow.field("sizes", nested))
    )
    DeltaTable.create(settings.table.path, schema)
    frame = made(monkeypatch)
    frame.schema.add("source", StringType(), nullable=False).add(
        "sizes", ArrayType(IntegerType(), False), nullable=False
    )
    assert fitting_rows(settings, ANY_ROWS) is frame


@pytest.mark.parametrize(
    ("partition_by", "changed", "why"),
    [
        (("key",), {}, "partitioned by key"),
        (("digest",), {"digest": "binary"}, "partitioned by digest"),
        (("key",), {"key": "string"}, None),
        ((), {"a b": "integer"}, "column 'a b'"),
    ],
)
def test_what_no_table_can_be_is_refused_before_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
    partition_by: tuple[str, ...],
    changed: dict[str, str],
    why: str | None,
) -> None:
    made(monkeypatch, **changed)
    settings = settings.model_copy(
        update={"table": settings.table.model_copy(update={"partition_by": partition_by})}
    )
    if why is None:
        fitting_rows(settings, ANY_ROWS)
        return
    with pytest.raises(SettingsError, match=why):
        fitting_rows(settings, ANY_ROWS)


# -- the function itself
# --------------------------------------------------------------------------------------------------


def rows_of(context: object) -> Any:
    return SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=SimpleNamespace(_jsc=context)))


def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> str:
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"{name}:shaped"


@pytest.mark.parametrize("code", ["0", "3", "'bye'", ""])
def test_a_module_that_ends_the_process_is_reported_as_an_error_of_the_transform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    name = module(
        tmp_path,
        monkeypatch,
        f"ends_at_import_{len(code)}{code.strip(chr(39))}",
        f"import sys\nsys.exit({code})\n",
    )
    with pytest.raises(SettingsError, match=r"cannot be imported: it ends the process \(sys.exit"):
        load_transform(name)


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        ("sys.exit(0)", r"it ends the process \(sys.exit, with 0\)"),
        ("raise BaseException('odd')", "BaseException: odd"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("raise ValueError", "ValueError"),
    ],
)
def test_a_function_that_ends_the_process_is_reported_with_its_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    raised: str,
    text: str,
) -> None:
    name = module(
        tmp_path,
        monkeypatch,
        f"ends_{abs(hash(raised))}",
        f"import sys\n\ndef shaped(rows):\n    {raised}\n",
    )
    with pytest.raises(SettingsError, match=f"The transform failed: {text}") as caught:
        apply_transform(name, rows_of(object()))
    assert str(caught.value.where["line"]).endswith(".py:4")


def test_ctrl_c_in_a_transform_is_no_error_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module(
        tmp_path,
        monkeypatch,
        "interrupted_of_tests",
        "def shaped(rows):\n    raise KeyboardInterrupt\n",
    )
    with pytest.raises(KeyboardInterrupt):
        apply_transform(name, rows_of(object()))


@pytest.mark.parametrize("more", ["return rows", "return rows.count()"])
def test_a_transform_that_stops_spark_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    text = f"def shaped(rows):\n    rows.sparkSession.sparkContext._jsc = None\n    {more}\n"
    name = module(tmp_path, monkeypatch, f"stops_{len(more)}", text)
    with pytest.raises(SettingsError, match="The transform stopped Spark") as caught:
        apply_transform(name, rows_of(object()))
    assert caught.value.where["key"] == "transform.dataframe"


def test_a_table_that_was_made_without_what_names_a_record_is_gone_on_with(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    DeltaTable.create(settings.table.path, arrow_schema(["key", "value", "topic", "partition"]))
    frame = made(monkeypatch, offset=None, timestamp=None, timestampType=None)
    assert fitting_rows(settings, ANY_ROWS) is frame
    assert unprovable(settings) == "there is no column offset"
    made(monkeypatch)
    with pytest.raises(NotOurTable, match="no column offset"):
        fitting_rows(settings, ANY_ROWS)


def test_a_table_of_ours_can_be_proved_and_no_table_is_no_obstacle(settings: Settings) -> None:
    assert unprovable(settings) is None
    DeltaTable.create(settings.table.path, arrow_schema())
    assert unprovable(settings) is None
