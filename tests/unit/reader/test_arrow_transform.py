"""A transform of Arrow batches, and the garbage collector of a task's process."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import compute
from pyspark.sql.datasource import InputPartition

from etl.errors import SettingsError
from etl.model.columns import arrow_schema
from etl.reader import run_task
from etl.reader.batch_transform import NoTypeOfDelta, load_arrow_transform, stored_type, transformed
from etl.reader.source import OffsetRanges
from tests.pages import ROOT, programs

NAME = "function_of_these_tests:shaped"


def rows(*offsets: int) -> pa.RecordBatch:
    """Records of one log, as a fetch gives them."""
    same = {"topic": "clicks", "partition": 3, "timestampType": 0, "incarnation": 0}
    return pa.RecordBatch.from_pylist(
        [{**same, "value": b"v%d" % n, "offset": n, "timestamp": n} for n in offsets],
        schema=arrow_schema(),
    )


@pytest.fixture
def shaped(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """The function that the name leads to."""
    module = ModuleType("function_of_these_tests")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return lambda function: setattr(module, "shaped", function)


def made(*batches: pa.RecordBatch) -> list[pa.RecordBatch]:
    return list(transformed(iter(batches), load_arrow_transform(NAME)))


def with_column(
    name: str, values: Callable[[pa.RecordBatch], Any]
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    return lambda batch: batch.append_column(name, values(batch))


def changed(
    name: str, values: Callable[[pa.RecordBatch], Any]
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A column in the place of one that is there."""
    return lambda batch: batch.set_column(batch.schema.get_field_index(name), name, values(batch))


def test_the_result_for_no_rows_has_the_columns_of_all(shaped: Callable[[Any], None]) -> None:
    shaped(
        with_column(
            "kind",
            lambda batch: pa.array(["a"] * batch.num_rows, pa.large_string()).dictionary_encode(),
        )
    )
    known = load_arrow_transform(NAME)
    assert known.stored.names == [*arrow_schema().names, "kind"]
    assert known.stored.field("kind").type == pa.string()
    [batch] = made(rows(1, 2))
    assert batch.schema == known.stored and batch["kind"].to_pylist() == ["a", "a"]


@pytest.mark.parametrize(
    ("shape", "expected", "left_out"),
    [
        (lambda batch: batch.filter(compute.greater(batch["offset"], 1)), [2, 3], 1),
        (lambda batch: batch.slice(0, 0), [], 3),
        (lambda batch: batch.take(pa.array([2, 1, 0][: batch.num_rows], pa.int32())), [3, 2, 1], 0),
        (lambda batch: pa.concat_batches([batch, batch]), [1, 2, 3, 1, 2, 3], 0),
        (changed("offset", lambda batch: batch["offset"].cast(pa.int32())), [1, 2, 3], 0),
    ],
    ids=["fewer", "none", "in another order", "more", "narrower"],
)
def test_a_transform_may_change_rows_and_the_records_that_it_leaves_out_are_counted(
    shaped: Callable[[Any], None], shape: Any, expected: list[int], left_out: int
) -> None:
    shaped(shape)
    counted: list[int] = []
    found = transformed(
        iter([rows(1, 2, 3)]), load_arrow_transform(NAME), lambda _, count: counted.append(count)
    )
    assert [n for batch in found for n in batch["offset"].to_pylist()] == expected
    assert sum(counted) == left_out


def with_rows(shape: Callable[[pa.RecordBatch], Any]) -> Callable[[pa.RecordBatch], Any]:
    """A function that returns an empty batch as it is."""
    return lambda batch: shape(batch) if batch.num_rows else batch


def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ValueError("no luck\nat all")


def no_utf_8(batch: pa.RecordBatch) -> pa.Array:
    return compute.cast(pa.array([b"\xff"] * batch.num_rows, pa.binary()), pa.string(), safe=False)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (with_rows(fails), "failed for a batch with rows: ValueError: no luck"),
        (with_rows(lambda batch: sys.exit(0)), "it ends the process (sys.exit, with 0)"),
        (with_rows(lambda batch: None), "returned NoneType for a batch with rows, not a Record"),
        (with_rows(pa.table), "returned Table for a batch with rows"),
        (
            with_rows(lambda batch: batch.drop_columns(["key"])),
            "other columns with rows than without: value (binary) instead of",
        ),
        (
            with_rows(lambda batch: batch.append_column("n", pa.array([1]))),
            "10 columns instead of 9",
        ),
        (
            changed("offset", lambda batch: compute.add(batch["offset"], 1000)),
            "changes the column offset",
        ),
        (
            changed("partition", lambda batch: pa.array([4] * batch.num_rows, pa.int32())),
            "changes the column partition",
        ),
        (
            changed("topic", lambda batch: pa.nulls(batch.num_rows, pa.string())),
            "changes the column topic",
        ),
        (
            with_column("t", lambda batch: pa.array([1] * batch.num_rows, pa.timestamp("ns"))),
            "returned a value that the table cannot store",
        ),
        (with_column("s", no_utf_8), "returned a value that the table cannot store"),
    ],
    ids=[
        "raises",
        "exits",
        "nothing",
        "a table",
        "without a column",
        "with one more",
        "offset",
        "partition",
        "null topic",
        "nanoseconds",
        "no UTF-8",
    ],
)
def test_an_error_on_rows_names_the_function(
    shaped: Callable[[Any], None], shape: Any, words: str
) -> None:
    shaped(shape)
    with pytest.raises(SettingsError) as raised:
        made(rows(1))
    assert words in raised.value.message and raised.value.where["key"] == "transform.record_batch"
    assert "etl plans supersede" in raised.value.action


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (lambda batch: batch["offset"][0] and batch, "failed for an empty batch: IndexError"),
        (lambda batch: batch.to_pylist(), "returned list for an empty batch"),
        (lambda batch: rows(1), "returned 1 rows for an empty batch"),
        (
            with_column("for", lambda batch: pa.array([], pa.duration("s"))),
            "column for of a type that Delta does not have: duration[s]",
        ),
        (
            with_column("s", lambda batch: pa.array([], pa.struct([("a", pa.list_(pa.null()))]))),
            "s.a of a type that Delta does not have: null",
        ),
        (
            with_column("Offset", lambda batch: batch["offset"]),
            "returns the column offset and Offset more than once",
        ),
        (
            with_column(
                "s",
                lambda batch: pa.array(
                    [], pa.list_(pa.struct([("a", pa.int8()), ("a", pa.int8())]))
                ),
            ),
            "the column a more than once",
        ),
        (7, "is not a function"),
    ],
)
def test_an_error_without_rows_is_known_before_the_first_row(
    shaped: Callable[[Any], None], shape: Any, words: str
) -> None:
    shaped(shape)
    with pytest.raises(SettingsError) as raised:
        load_arrow_transform(NAME)
    assert words in raised.value.message and raised.value.where["key"] == "transform.record_batch"


def test_a_missing_function_is_reported_with_the_key() -> None:
    with pytest.raises(
        SettingsError, match="The function of transform.record_batch cannot be imported"
    ):
        load_arrow_transform("no_such_module_of_tests:shaped")


def test_what_reading_raises_is_not_the_functions(shaped: Callable[[Any], None]) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield rows(1)
        raise OSError("the broker is gone")

    shaped(lambda batch: batch)
    given_on = transformed(broken(), load_arrow_transform(NAME))
    assert next(given_on).num_rows == 1
    with pytest.raises(OSError, match="the broker"):
        next(given_on)


def test_columns_have_the_order_of_the_table(shaped: Callable[[Any], None]) -> None:
    seen = list[pa.Schema]()

    def looking(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch.schema)
        return batch

    shaped(looking)
    made(rows(1).select(list(reversed(arrow_schema().names))))
    assert seen == [arrow_schema()] * 2


def test_the_function_on_the_page_returns_its_column(shaped: Callable[[Any], None]) -> None:
    pages = programs(ROOT / "docs" / "READER.md")
    [program] = [text for text in pages if "def decoded(" in text]
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102 -- of our own page
    shaped(names["decoded"])
    [batch] = made(rows(1, 200))
    assert batch["country"].to_pylist() == ["v1", "v2"]


TYPES = st.recursive(
    st.sampled_from(
        [
            pa.bool_(),
            pa.int8(),
            pa.uint8(),
            pa.uint32(),
            pa.int64(),
            pa.float16(),
            pa.float64(),
            pa.string(),
            pa.large_binary(),
            pa.string_view(),
            pa.binary(3),
            pa.date64(),
            pa.timestamp("ms", tz="Europe/Berlin"),
            pa.timestamp("ns"),
            pa.decimal128(38, 2),
            pa.dictionary(pa.int8(), pa.string()),
        ]
    ),
    lambda inner: (
        inner.map(pa.list_)
        | inner.map(pa.large_list)
        | inner.map(lambda kind: pa.struct([pa.field("a", kind, nullable=False)]))
        | inner.map(lambda kind: pa.map_(pa.large_string(), kind))
    ),
    max_leaves=3,
)


@given(TYPES)
def test_a_type_is_kept_as_one_that_delta_has_and_that_one_as_itself(kind: pa.DataType) -> None:
    from deltalake import Schema

    kept = stored_type(kind)
    assert stored_type(kept) == kept
    [field] = Schema.from_arrow(pa.schema([pa.field("a", kept)])).fields
    assert field.nullable
    pa.array([], kind).cast(kept)


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.uint64(),
        pa.time64("us"),
        pa.duration("s"),
        pa.decimal256(50, 2),
        pa.decimal128(5, -2),
        pa.struct([]),
        pa.list_(pa.time32("s")),
    ],
)
def test_a_type_that_delta_lacks_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(NoTypeOfDelta):
        stored_type(kind)


class Node:
    """Points at itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As one in which no task of Spark's has begun."""
    monkeypatch.setattr(run_task, "_tasks", 0)
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("new_process")
def test_from_its_second_task_on_a_worker_freezes_objects_of_the_first_for_the_collector() -> None:
    run_task.begin_task()
    assert gc.get_freeze_count() == 0
    alive = len(gc.get_objects())
    run_task.begin_task()
    assert gc.get_freeze_count() > alive * 0.9 and len(gc.get_objects()) < alive * 0.1


@pytest.mark.usefixtures("new_process")
def test_garbage_of_later_tasks_is_collected_as_ever() -> None:
    run_task.begin_task()
    run_task.begin_task()
    node = Node()
    seen = weakref.ref(node)
    run_task.begin_task()
    del node
    gc.collect()
    assert seen() is None


@pytest.mark.usefixtures("new_process")
def test_the_data_source_reports_the_beginning_of_each_task() -> None:
    reader = OffsetRanges({"kafka.bootstrap.servers": "h:1", "subscribe": "clicks"}).reader(None)
    assert list(reader.read(InputPartition(None))) == [] and gc.get_freeze_count() == 0
    assert list(reader.read(InputPartition(None))) == [] and gc.get_freeze_count() > 0
