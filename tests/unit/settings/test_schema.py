"""The JSON schema of a conf accepts what the settings accept: it is generated from them, and the
file in the repository is up to date.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from etl.settings.load import changed, parse_change, parse_settings
from etl.settings.schema import MEANINGS, SCHEMA_FILE, conf_schema
from tests.command_result import run_etl

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
    "limits.max_records_per_plan=5",
    "limits.max_records_per_plan=${env:MOST}",
    "spark.ui.enabled=false",
    "spark.x=3",
    "transform=null",
    "transform=a.b:c",
    "source.request_timeout_s=0.5",
    "source.assume_cluster_id=null",
    "limits.target_task_bytes=64 MiB",
    "limits.max_bytes_per_plan=16 MiB",
    "group=g",
    "group.mode=observe",
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


def test_the_schema_has_every_key_with_what_it_means() -> None:
    def keys(section: dict[str, Any], above: str = "") -> dict[str, str]:
        found = {}
        for name, key in section["properties"].items():
            found[above + name] = key["description"]
            if "properties" in key:
                found |= keys(key, f"{above}{name}.")
        return found

    assert keys(conf_schema()) == MEANINGS


@pytest.mark.parametrize("name", ["clicks.yaml", "jafka.yaml"])
def test_an_example_conf_names_the_schema_and_fits_it(name: str) -> None:
    text = (CONF / name).read_text()
    assert text.startswith(f"# yaml-language-server: $schema={SCHEMA_FILE}\n")
    assert mistakes(yaml.safe_load(text)) == []


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
    assert mistakes({"pipeline": "clicks"}, for_defaults=True) and mistakes(
        {"defaults": "x"}, for_defaults=True
    )
