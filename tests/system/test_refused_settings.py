"""`etl run` with a wrong conf: exit code, error, place in the conf and action."""

from __future__ import annotations

import sys

import pytest

from tests.command_result import refused
from tests.fakes.broker import FakeBroker
from tests.system.driving import Pipeline


@pytest.mark.parametrize("length", [249, 250], ids=["a name", "longer than any name"])
def test_a_topic_that_is_not_there_is_named_also_beside_one_that_is(
    pipeline: Pipeline, length: int
) -> None:
    pipeline.settings = {"source": {"topics": [pipeline.topic, "x" * length]}}
    refused(pipeline.run(), 2, "The topic is not there", "source.topics", "x" * length)


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        ("no_such_module_of_tests:shaped", ("no_such_module_of_tests",)),
        ("transforms_of_tests:fails", ("no luck", "transforms_of_tests.py:3")),
        ("transforms_of_tests:asks_for_a_column", ("colour", "transforms_of_tests.py:5")),
    ],
)
def test_a_transform_that_does_not_work_is_named_before_a_plan_binds_the_conf_to_it(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, transform: str, words: tuple[str, ...]
) -> None:
    (pipeline.folder / "transforms_of_tests.py").write_text(
        "\ndef fails(rows):\n    raise ValueError('no luck')\n"
        "def asks_for_a_column(rows):\n    return rows.select('colour')\n"
    )
    monkeypatch.syspath_prepend(str(pipeline.folder))
    monkeypatch.delitem(sys.modules, "transforms_of_tests", raising=False)
    pipeline.produce(40)
    pipeline.settings = {"transform": transform}
    refused(pipeline.run(), 2, "transform", *words)
    with pipeline.zookeeper() as client:
        assert not client.exists(f"/consumers/{pipeline.group}/etl/clicks/plans")


def test_a_transform_that_fails_on_a_row_is_named_and_the_mended_one_finishes_the_plan(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = pipeline.folder / "unlucky_of_tests.py"
    module.write_text(
        "from pyspark.sql import functions as f\n\n"
        "@f.udf('int')\ndef lucky(value):\n    if value:\n        raise ValueError('no luck')\n\n"
        "def shaped(rows):\n    return rows.withColumn('size', lucky('value'))\n"
    )
    monkeypatch.syspath_prepend(str(pipeline.folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    pipeline.produce(400)
    pipeline.settings = {"transform": "unlucky_of_tests:shaped"}
    words = ("ValueError: no luck", "unlucky_of_tests.py:6")
    refused(pipeline.run(), 2, "The transform failed on a row", *words)
    module.write_text("def shaped(rows):\n    return rows\n")
    monkeypatch.delitem(sys.modules, "unlucky_of_tests")
    assert pipeline.ran().outcomes == ["plan_resumed", "ingested"]
    assert pipeline.is_whole()
    monkeypatch.delitem(sys.modules, "unlucky_of_tests")


def test_a_topic_that_we_may_not_read_is_named(spoiled: tuple[Pipeline, FakeBroker]) -> None:
    pipeline, broker = spoiled
    broker.log(pipeline.topic, 0).refusals.extend([29] * 50)
    refused(pipeline.run(), 2, pipeline.topic, "ACL")
