"""`etl run` with a wrong conf: exit code, error, place in the conf and action."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.command_result import CommandResult, refused, run_etl
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


def test_a_partitioning_that_the_rows_or_the_table_do_not_have_is_named(pipeline: Pipeline) -> None:
    pipeline.produce(40)
    pipeline.settings = {"table": {"path": str(pipeline.table), "partition_by": ["colour"]}}
    refused(pipeline.run(), 2, "colour", "table.partition_by")
    pipeline.settings = {"table": {"path": str(pipeline.table), "partition_by": ["key"]}}
    refused(pipeline.run(), 2, "F.hex('key')", "table.partition_by")
    assert [pipeline.door(*words).code for words in (("doctor",), ("run", "--dry-run"))] == [2, 2]
    pipeline.settings = {}
    pipeline.ran()
    pipeline.settings = {"table": {"path": str(pipeline.table), "partition_by": ["partition"]}}
    pipeline.produce(40)
    refused(pipeline.run(), 2, "partition", "table.partition_by")


def test_a_topic_that_we_may_not_read_is_named(spoiled: tuple[Pipeline, FakeBroker]) -> None:
    pipeline, broker = spoiled
    broker.log(pipeline.topic, 0).refusals.extend([29] * 50)
    refused(pipeline.run(), 2, pipeline.topic, "ACL")


def test_a_place_where_no_table_can_be_is_named_before_a_plan_is_stored(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline()
    pipeline.produce(40)
    (pipeline.folder / "file").write_text("in the way")
    pipeline.settings = {"table": {"path": str(pipeline.folder / "file" / "table")}}
    refused(pipeline.run(), 2, "file is a file, and the path lies below it", "file/table")
    pipeline.settings = {"table": {"path": "s4://bucket/clicks"}}
    refused(pipeline.run(), 2, "The store of this URL is not supported", "s4")
    with pipeline.zookeeper() as client:
        assert not client.exists(f"/consumers/{pipeline.group}/etl/clicks/plans")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user with fewer rights")
def test_a_folder_that_only_its_owner_may_write_is_named(
    make_pipeline: Callable[..., Pipeline],
) -> None:
    pipeline = make_pipeline()
    pipeline.produce(40)
    with _folder_for_everybody() as home:
        pipeline.settings = {
            "table": {"path": str(home / "closed" / "table")},
            "report": {"path": str(home / "reports")},
        }
        (home / "closed").mkdir(mode=0o755)
        refused(_unprivileged(pipeline, home), 7, str(home / "closed"), "ermission denied", "retry")
        pipeline.settings["report"]["path"] = str(home / "closed" / "reports")
        refused(_unprivileged(pipeline, home), 2, "report.path", "ermission denied")
    with pipeline.zookeeper() as client:
        assert not client.exists(f"/consumers/{pipeline.group}/etl/clicks/plans")


@contextlib.contextmanager
def _folder_for_everybody() -> Iterator[Path]:
    """pytest's own temporary folders are closed to everybody else."""
    home = Path(tempfile.mkdtemp(prefix="etl-test-"))
    try:
        home.chmod(0o777)
        yield home
    finally:
        shutil.rmtree(home)


def _unprivileged(pipeline: Pipeline, home: Path) -> CommandResult:
    """The run with the rights of a user who owns nothing; what it imports was imported before."""
    pipeline.door("run", after=["--dry-run"])
    conf = home / "conf.yaml"
    conf.write_bytes(pipeline.conf.read_bytes())
    os.seteuid(65534)
    try:
        return run_etl("run", str(conf), "--json")
    finally:
        os.seteuid(0)
