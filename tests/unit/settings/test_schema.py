"""The JSON schema of a conf, the file in the repository, and the page of settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from etl.settings.load import changed, load_settings, parse_change, parse_settings
from etl.settings.schema import SCHEMA_FILE, conf_schema, describe_key, key_names, schemas_in
from etl.settings.sections import Settings
from tests.command_result import run_etl
from tests.settings_page import PAGE, with_tables

CONF = Path(__file__).parents[3] / "conf"
LEAST = {
    "pipeline": "clicks",
    "group": "etl-clicks",
    "zookeeper": {"connect": "a:2181/kafka"},
    "source": {"topics": ["clicks"]},
    "table": {"path": "warehouse/clicks"},
}
RIGHT = (
    "source.topics=clicks",
    "source.starting_offsets=latest",
    "source.starting_offsets='2026-01-31T00:00:00+00:00'",
    "source.bootstrap_servers=a:9092",
    "source.bootstrap_servers=[a:9092]",
    "source.bootstrap_servers=null",
    "limits.max_records_per_plan=${env:MOST}",
    "spark.ui.enabled=false",
    "spark.x=3",
    "transform=null",
    "transform=a.b:c",
    "source.request_timeout_s=0.5",
    "limits.target_task_bytes=64 MiB",
    "group=g",
    "group.mode=observe",
    "table={name: lake.clicks}",
)
WRONG = (
    "source.starting_offsets={timestamp: x, y: 1}",
    "limits.max_records_per_plan=0",
    "limits.max_records_per_plan=many",
    "group=a b",
    "source.on_data_loss=maybe",
    "source.topics=[]",
    "limits.target_task_bytes=64 MB",
    "table.path=''",
    "spark=[]",
    "report.keep=1.5",
    "table={}",
)


def mistakes(document: Any, *, for_defaults: bool = False) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema", reason="`make setup` installs it")
    validator = jsonschema.Draft7Validator(conf_schema(for_defaults=for_defaults))
    return [error.message for error in validator.iter_errors(document)]


def test_the_schema_in_the_repository_is_the_one_of_the_settings() -> None:
    made = run_etl("conf", "schema")
    assert made.code == 0 and json.loads((CONF / SCHEMA_FILE).read_text()) == made.document, (
        "`etl conf schema > conf/pipeline.schema.json`"
    )


def test_the_page_of_settings_in_the_repository_is_the_one_of_the_settings() -> None:
    page = PAGE.read_text()
    assert page == with_tables(page), "`python -m tests.settings_page`"


def undescribed(section: type[BaseModel], above: str = "") -> Iterator[str]:
    """The keys without a description of their own, and the sections without a docstring."""
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            if "__doc__" not in vars(inner):
                yield above + name
            yield from undescribed(inner, f"{above}{name}.")
        elif not field.description:
            yield above + name


def test_every_key_is_described_by_its_field_and_every_section_by_its_class() -> None:
    assert list(undescribed(Settings)) == []


def test_the_schema_has_every_key_and_its_values() -> None:
    assert [key for key, _ in schemas_in(conf_schema())] == list(key_names())


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("source.on_data_loss", "fail or skip"),
        ("source.topics.0", "text or a list"),
        ("source.fetch_max_bytes", "1 KiB to 1 GiB"),
        ("transform", "text, or the keys dataframe, record_batch, may_drop"),
    ],
)
def test_a_key_is_described_by_its_values_and_its_meaning(key: str, values: str) -> None:
    assert describe_key(key).startswith(f"{values}. ")
    assert describe_key(f"nothing.{key}") == ""


@pytest.mark.parametrize("name", ["clicks.yaml", "jafka.yaml"])
def test_an_example_conf_names_the_schema_and_fits_it(name: str) -> None:
    text = (CONF / "examples" / name).read_text()
    assert text.startswith(f"# yaml-language-server: $schema=../{SCHEMA_FILE}\n")
    assert mistakes(yaml.safe_load(text)) == []
    assert load_settings(CONF / "examples" / name).source.is_physical == (name == "jafka.yaml")


@pytest.mark.parametrize("word", RIGHT)
def test_what_the_settings_take_fits_the_schema(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOST", "7")
    document = changed(LEAST, [parse_change(word)])
    parse_settings(document)
    assert mistakes(document) == []


@pytest.mark.parametrize("word", WRONG)
def test_what_the_settings_refuse_is_marked_by_the_schema(word: str) -> None:
    document = changed(LEAST, [parse_change(word)])
    with pytest.raises(Exception, match=word.partition("=")[0].partition(".")[0]):
        parse_settings(document)
    assert mistakes(document)


def test_keys_that_are_unknown_or_missing_are_marked_unless_a_file_of_defaults_may_have_them() -> (
    None
):
    assert mistakes({**LEAST, "grop": "x"})
    for name in LEAST:
        left = {key: value for key, value in LEAST.items() if key != name}
        assert mistakes(left)
        assert bool(mistakes({**left, "defaults": "defaults.yaml"})) == (name == "pipeline")
        assert mistakes({**left, "defaults": None})


def test_a_file_of_defaults_has_a_schema_that_needs_no_key_and_knows_none_of_one_pipelines() -> (
    None
):
    assert run_etl("conf", "schema", "--defaults-file").document == conf_schema(for_defaults=True)
    assert (
        mistakes({"group": "etl", "limits": {"max_records_per_plan": 5}}, for_defaults=True) == []
    )
    assert mistakes({"pipeline": "clicks"}, for_defaults=True)
    assert mistakes({"defaults": "x"}, for_defaults=True)
