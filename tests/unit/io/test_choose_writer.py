"""Which writer appends a plan follows from the plan, the table and the settings alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from etl.errors import NotOurTable, SettingsError
from etl.io.delta import append
from etl.io.delta.append import ArrowWriter, Chosen, EmptyCommit, SparkWriter
from etl.model.columns import arrow_schema
from etl.model.partitions import TopicPartition
from etl.model.plans import OffsetRange, Plan, PlanKind
from tests.builders import plain_plan, plain_settings

LOG = TopicPartition("clicks", 0)
RANGES = (OffsetRange(LOG, 0, 10),)


def plan_of(*ranges: OffsetRange, table_id: str | None = None) -> Plan:
    return plain_plan(ranges=ranges, loaded_until={LOG: 10}, table_id=table_id)


def table_with(
    *features: str, writer: int = 7, mode: str | None = None, column: str = "", **properties: str
) -> Any:
    """A table as choose_writer looks at it; `column` has the nullability and the metadata of a."""
    field = column or '"nullable": true, "metadata": {}'
    schema = '{"fields": [{"name": "a", "type": "long", %s}]}' % field
    reported = {**properties, **({"delta.columnMapping.mode": mode} if mode else {})}
    protocol = SimpleNamespace(
        min_writer_version=writer, reader_features=None, writer_features=list(features)
    )
    return SimpleNamespace(
        protocol=lambda: protocol,
        metadata=lambda: SimpleNamespace(configuration=reported),
        schema=lambda: SimpleNamespace(to_json=lambda: schema),
    )


def column_with(key: str, value: str) -> str:
    return f'"nullable": true, "metadata": {{"{key}": {value}}}'


NOT_NULL = '"nullable": false, "metadata": {}'
GENERATED = column_with("delta.generationExpression", '"o + 1"')
INVARIANT = column_with("delta.invariants", '"{}"')
IDENTITY = column_with("delta.identity.start", "1")


def unasked() -> None:
    raise AssertionError("the table was opened")


def choose_writer(plan: Plan, settings: Any, look: Any, columns: Any = arrow_schema) -> Chosen:
    return append.choose_writer(plan, settings, look, columns)


NO_TRANSFORM: dict[str, Any] = {}
TRANSFORM = {"transform": "module:function"}


@pytest.mark.parametrize("table_id", [None, "t"])
@pytest.mark.parametrize("more", [NO_TRANSFORM, TRANSFORM])
def test_ranges_are_appended_by_spark_and_the_table_is_not_opened_for_that(
    table_id: str | None, more: dict[str, Any]
) -> None:
    chosen = choose_writer(plan_of(*RANGES, table_id=table_id), plain_settings(**more), unasked)
    assert isinstance(chosen.writer, SparkWriter)


def conf(**table: Any) -> dict[str, Any]:
    return {"table": {"path": "clicks", **table}}


@pytest.mark.parametrize("writer", ["arrow", "auto"])
@pytest.mark.parametrize("table_id", [None, "t"])
def test_tasks_write_the_files_with_the_confs_permission_and_a_plain_table(
    table_id: str | None, writer: str
) -> None:
    table = conf(
        writer=writer,
        compression="snappy",
        target_file_bytes=2**21,
        row_group_bytes=2**20,
        write_buffer_bytes=2**22,
        partition_by=["topic", "event_date"],
    )
    plan = plan_of(*RANGES, table_id=table_id)
    chosen = choose_writer(plan, plain_settings(**table), lambda: table_with(writer=2)).writer
    assert isinstance(chosen, ArrowWriter) and chosen.codec.value == "snappy"
    sizes = (chosen.file_bytes, chosen.row_group_bytes, chosen.write_buffer_bytes)
    assert sizes == (2**21, 2**20, 2**22)


UNFIT_CONFS: list[tuple[dict[str, Any], str]] = [
    ({**conf(), "transform": "module:function"}, "transform"),
    (conf(partition_by=["timestamp"]), "partitioned by timestamp"),
    (
        {**conf(), "spark": {"spark.databricks.delta.properties.defaults.appendOnly": "true"}},
        "defaults.appendOnly",
    ),
]


@pytest.mark.parametrize(("more", "why"), UNFIT_CONFS)
def test_a_conf_that_needs_spark_is_refused_by_name_under_arrow_and_gets_spark_under_auto(
    more: dict[str, Any], why: str
) -> None:
    by = {
        writer: plain_settings(**{**more, "table": {**more["table"], "writer": writer}})
        for writer in ("arrow", "auto")
    }
    with pytest.raises(SettingsError, match=why):
        choose_writer(plan_of(*RANGES), by["arrow"], unasked)
    chosen = choose_writer(plan_of(*RANGES), by["auto"], unasked)
    assert isinstance(chosen.writer, SparkWriter) and why in chosen.why


def test_a_plan_that_puts_rows_in_the_place_of_others_is_no_matter_of_adding_files() -> None:
    plan = plain_plan(ranges=RANGES, loaded_until={LOG: 10}, table_id="t", kind=PlanKind.REPLAY)
    for writer in ("auto", "arrow"):
        chosen = choose_writer(plan, plain_settings(**conf(writer=writer)), unasked)
        assert isinstance(chosen.writer, SparkWriter)
        assert "can replace the rows of a replay" in chosen.why


UNFIT_TABLES: list[tuple[Any, str]] = [
    (table_with("rowTracking"), "rowTracking"),
    (table_with("clustering", "domainMetadata"), "clustering"),
    (table_with("variantType"), "variantType"),
    (table_with("allowColumnDefaults"), "allowColumnDefaults"),
    (table_with("columnMapping", mode="name"), "column mapping"),
    (table_with(writer=5, mode="id"), "column mapping"),
    (table_with(writer=3, **{"delta.constraints.positive": "offset > 0"}), "constraint positive"),
    (table_with(writer=2, column=NOT_NULL), "column a is NOT NULL"),
    (table_with("generatedColumns", column=GENERATED), "column a is generated"),
    (table_with("invariants", column=INVARIANT), "column a is under an invariant"),
    (table_with(writer=6, column=IDENTITY), "column a is an identity column"),
]


@pytest.mark.parametrize(("table", "why"), UNFIT_TABLES, ids=[why for _, why in UNFIT_TABLES])
def test_a_table_with_unsupported_features_is_rejected_under_arrow_and_gets_spark_by_auto(
    table: Any, why: str
) -> None:
    plan = plan_of(*RANGES, table_id="t")
    with pytest.raises(NotOurTable, match=why):
        choose_writer(plan, plain_settings(**conf(writer="arrow")), lambda: table)
    chosen = choose_writer(plan, plain_settings(**conf(writer="auto")), lambda: table)
    assert isinstance(chosen.writer, SparkWriter) and why in chosen.why


@pytest.mark.parametrize(
    "table",
    [
        table_with("appendOnly", "invariants", "deletionVectors"),
        table_with("changeDataFeed", "timestampNtz", "v2Checkpoint"),
        table_with("columnMapping", "checkConstraints"),
        table_with(writer=6),
        table_with(writer=2, **{"delta.appendOnly": "true"}),
    ],
)
def test_a_table_that_names_a_feature_and_does_not_use_it_gets_files_of_ours(table: Any) -> None:
    chosen = choose_writer(
        plan_of(*RANGES, table_id="t"), plain_settings(**conf(writer="arrow")), lambda: table
    )
    assert isinstance(chosen.writer, ArrowWriter)


MADE = pa.schema(
    [
        *arrow_schema(),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us")),
        pa.field("price", pa.float64()),
    ]
)


@pytest.mark.parametrize("by", [[], ["day", "topic"], ["event_date"]])
def test_an_arrow_transform_defines_the_columns_of_files_and_of_a_new_table(by: list[str]) -> None:
    settings = plain_settings(
        **conf(writer="arrow", partition_by=by), transform={"record_batch": "module:function"}
    )
    chosen = choose_writer(plan_of(*RANGES), settings, unasked, lambda: MADE)
    assert isinstance(chosen.writer, ArrowWriter) and chosen.writer.made == MADE
    assert choose_writer(plan_of(), settings, unasked, lambda: MADE).writer == EmptyCommit(MADE)


@pytest.mark.parametrize(
    ("by", "made"),
    [("at", MADE), ("price", MADE), ("event_date", MADE.remove(MADE.get_field_index("timestamp")))],
)
def test_partition_values_without_a_unique_text_are_left_to_sparks_writer(
    by: str, made: pa.Schema
) -> None:
    settings = plain_settings(
        **conf(writer="auto", partition_by=[by]), transform={"record_batch": "module:function"}
    )
    assert isinstance(
        choose_writer(plan_of(*RANGES), settings, unasked, lambda: made).writer, SparkWriter
    )


@pytest.mark.parametrize("more", [NO_TRANSFORM, TRANSFORM])
def test_without_ranges_spark_is_chosen_only_if_delta_rs_cannot_commit_or_a_transform_has_the_columns(
    more: dict[str, Any],
) -> None:
    settings = plain_settings(**more)
    new = EmptyCommit if more == NO_TRANSFORM else SparkWriter
    assert isinstance(choose_writer(plan_of(), settings, unasked).writer, new), "a new table"
    for features, writer in (((), EmptyCommit), (("rowTracking",), SparkWriter)):
        table = table_with(*features)
        chosen = choose_writer(plan_of(table_id="t"), settings, lambda table=table: table)
        assert isinstance(chosen.writer, writer), features
