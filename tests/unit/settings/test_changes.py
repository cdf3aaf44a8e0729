"""A key on the command line has the effect of the same key in the conf, and an unknown one is
rejected by name.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from etl.errors import SettingsError
from etl.settings.load import changed, describe_overrides, load_settings, parse_change
from etl.settings.schema import key_names

LEAST = {
    "pipeline": "clicks",
    "group": "etl-clicks",
    "zookeeper": {"connect": "a:2181/kafka"},
    "source": {"topics": ["clicks"], "starting_offsets": "latest"},
    "table": {"path": "../warehouse/clicks"},
}


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "conf").mkdir()
    path = tmp_path / "conf" / "clicks.yaml"
    path.write_text(yaml.safe_dump(LEAST))
    return path


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("limits.max_records_per_plan=1000", 1000),
        ("limits.max_records_per_plan=", None),
        ("source.topics=[a, 'b-.*']", ["a", "b-.*"]),
        ("source.topics={allow: [a]}", {"allow": ["a"]}),
        ("group=7", 7),
        ("group='7'", "7"),
        ("spark.a.b=c=d", "c=d"),
    ],
)
def test_the_value_of_a_change_is_what_yaml_makes_of_it(word: str, value: object) -> None:
    assert parse_change(word).value == value


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("limits.max_record_per_run=1", "limits.max_records_per_plan"),
        ("max_records_per_plan=1", "limits.max_records_per_plan"),
        ("nothing=1", "etl conf schema"),
        ("source.starting_offsets.day=1", "source.starting_offsets"),
        ("group", "KEY=VALUE"),
        ("=1", "KEY=VALUE"),
        ("group=[", "as in a conf file"),
        ("group=*x", "as in a conf file"),
        ("source.topics={allow: [a], allow: [b]}", "not valid YAML: duplicate key allow, first in"),
    ],
)
def test_a_change_of_an_unknown_key_is_rejected_by_its_name(word: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_change(word)
    assert f"--set {word.partition('=')[0]}" in caught.value.message
    assert message in f"{caught.value.message} {caught.value.action}"


@pytest.mark.parametrize("key", sorted(key_names()))
def test_every_key_of_a_conf_may_be_changed(key: str) -> None:
    document = changed(LEAST, [parse_change(f"{key}=7")])
    for part in key.split("."):
        document = document[part]
    assert document == 7


def test_a_change_is_as_if_it_stood_in_the_file_and_the_last_of_two_holds(
    conf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setenv("FOLDER", "elsewhere")
    results = [
        parse_change(word)
        for word in (
            "source.starting_offsets=2026-01-31T00:00:00+00:00",
            "limits.max_records_per_plan=1",
            "limits.max_records_per_plan=2",
            "table.path=../${env:FOLDER}/clicks",
            "spark.driver.memory=2g",
            "spark.spark.master=local[2]",
        )
    ]
    found = load_settings(conf, results)
    assert found.limits.max_records_per_plan == 2
    assert found.source.starting_offsets.ms == 1_769_817_600_000  # type: ignore[union-attr]
    assert found.table.path == str(tmp_path / "elsewhere" / "clicks")
    assert found.spark == {"spark.driver.memory": "2g", "spark.master": "local[2]"}
    assert LEAST["source"] == {"topics": ["clicks"], "starting_offsets": "latest"}


def test_a_wrong_value_of_a_change_is_reported_with_the_file_and_the_change(conf: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(
            conf, [parse_change("limits.max_records_per_plan=many"), parse_change("group=g")]
        )
    assert caught.value.where == {
        "path": str(conf),
        "key": "limits.max_records_per_plan",
        "set": "limits.max_records_per_plan, group",
    }


def test_a_report_lists_changes_without_possible_secrets() -> None:
    result = (
        "limits.max_records_per_plan=1000",
        "group=${env:GROUP}",
        "spark.hadoop.fs.s3a.secret.key=s3cret",
        "spark={spark.x: s3cret}",
        "source.security.sasl.password=s3cret",
        "zookeeper.connect=host:2181",
        "source.bootstrap_servers=host:9092",
    )
    assert describe_overrides([parse_change(word) for word in result]) == {
        "limits.max_records_per_plan": "1000",
        "group": "${env:GROUP}",
        "spark.hadoop.fs.s3a.secret.key": None,
        "spark": None,
        "source.security.sasl.password": None,
        "zookeeper.connect": None,
        "source.bootstrap_servers": None,
    }
