"""A conf file, its defaults and `--set` become one document; errors name the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from etl.errors import SettingsError
from etl.settings.choices import OnDataLoss
from etl.settings.conf_file import over
from etl.settings.load import changed, describe_overrides, load_settings, parse_change
from etl.settings.schema import key_names

SHARED: dict[str, Any] = {
    "group": "etl",
    "zookeeper": {"connect": "a:2181/kafka", "session_timeout_s": 20},
    "source": {"on_data_loss": "skip", "exclude_topics": [".*-test"]},
    "report": {"path": "reports"},
    "spark": {"spark.master": "local[2]", "spark.driver.memory": "2g"},
}
OWN: dict[str, Any] = {
    "defaults": "../shared/defaults.yaml",
    "pipeline": "clicks",
    "source": {"topics": ["clicks"]},
    "table": {"path": "../warehouse/clicks"},
    "spark": {"spark.driver.memory": "4g"},
}


def written(folder: Path, shared: Any = SHARED, own: dict[str, Any] = OWN) -> Path:
    for name, document in (("shared/defaults.yaml", shared), ("conf/clicks.yaml", own)):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(yaml.safe_dump(document))
    return folder / "conf" / "clicks.yaml"


def test_defaults_apply_to_missing_keys_and_each_file_has_paths_of_its_own_folder(
    tmp_path: Path,
) -> None:
    found = load_settings(written(tmp_path))
    assert (found.group.id, found.zookeeper.session_timeout_s) == ("etl", 20)
    source = found.source
    assert (source.on_data_loss, source.topics) == (OnDataLoss.SKIP, ("clicks",))
    assert source.exclude_topics == (".*-test",)
    assert found.spark == {"spark.master": "local[2]", "spark.driver.memory": "4g"}
    assert found.report.path == str(tmp_path / "shared" / "reports")
    assert found.table.path == str(tmp_path / "warehouse" / "clicks")
    table = {"path": "rows", "losses_path": "gone"}
    places = {"table": table, "report": {"path": "reports"}, "metrics": {"path": "measured"}}
    own = {key: value for key, value in OWN.items() if key != "table"}
    found = load_settings(written(tmp_path, {**SHARED, **places}, own))
    seen = (found.table.path, found.table.losses_path, found.report.path, found.metrics.path)
    names = ("rows", "gone", "reports", "measured")
    assert seen == tuple(str(tmp_path / "shared" / name) for name in names)
    for shared, own, folder in (
        ({}, {"transform": "a:b"}, "conf"),
        ({"transform": "a:b"}, {}, "shared"),
    ):
        found = load_settings(written(tmp_path, {**SHARED, **shared}, {**OWN, **own}))
        assert found.transform.folder == str(tmp_path / folder)


def test_a_change_on_the_command_line_is_over_both_and_may_name_other_defaults_or_none(
    tmp_path: Path,
) -> None:
    conf = written(tmp_path)
    assert load_settings(conf, [parse_change("group=mine")]).group.id == "mine"
    (tmp_path / "other.yaml").write_text(yaml.safe_dump({**SHARED, "group": "other"}))
    assert load_settings(conf, [parse_change("defaults=../other.yaml")]).group.id == "other"
    with pytest.raises(SettingsError, match="is missing; it takes"):
        load_settings(conf, [parse_change("defaults=null")])


@pytest.mark.parametrize(
    ("below", "above", "both"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}, {"a": {"b": 1, "c": 3}}),
        ({"a": [1]}, {"a": [2]}, {"a": [2]}),
        ({"a": {"b": 1}}, {"a": None}, {"a": None}),
        ({"a": {"timestamp": 1}}, {"a": "latest"}, {"a": "latest"}),
        ({}, {"a": 1}, {"a": 1}),
    ],
)
def test_sections_are_put_together_and_anything_else_is_taken_whole(
    below: Any, above: Any, both: Any
) -> None:
    assert over(below, above) == both


@pytest.mark.parametrize(
    ("shared", "message", "key"),
    [
        ({**SHARED, "pipeline": "clicks"}, "cannot have the key pipeline", "pipeline"),
        ({**SHARED, "defaults": "more.yaml"}, "cannot have the key defaults", "defaults"),
        ([], "is not a mapping of keys", None),
        (None, "The file of defaults does not exist", None),
    ],
    ids=["a pipeline", "other defaults", "a list", "no file"],
)
def test_what_cannot_be_defaults_is_refused_with_both_files(
    tmp_path: Path, shared: Any, message: str, key: str | None
) -> None:
    conf, file = written(tmp_path, shared), tmp_path / "shared" / "defaults.yaml"
    if shared is None:
        file.unlink()
    with pytest.raises(SettingsError, match=message) as caught:
        load_settings(conf)
    where = caught.value.where
    assert where.get("key") == key and where["conf"] == str(conf)
    assert Path(where["path"]).resolve() == file.resolve()


def test_a_mistake_is_reported_with_both_files_and_without_secrets_of_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"max_records_per_plan": "${env:WORD}"}
    conf = written(tmp_path, {**SHARED, "limits": limits, "grop": "x"})
    monkeypatch.setenv("WORD", "s3cret")
    with pytest.raises(SettingsError) as caught:
        load_settings(conf)
    assert caught.value.where["path"] == str(conf)
    assert caught.value.where["defaults"].endswith("shared/defaults.yaml")
    message = "refers to a value that it does not accept: ${env:WORD}"
    assert "grop" in caught.value.message and message in caught.value.message
    assert "s3cret" not in str(caught.value)


def test_a_key_that_stands_twice_in_the_defaults_is_refused_with_both_lines(tmp_path: Path) -> None:
    conf, shared = written(tmp_path), tmp_path / "shared" / "defaults.yaml"
    text = shared.read_text()
    shared.write_text(f"{text}limits: {{max_records_per_plan: 10}}\nlimits: {{}}\n")
    first = len(text.splitlines()) + 1
    message = f"duplicate key limits, first in line {first};.*: line {first + 1}, column 1"
    with pytest.raises(SettingsError, match=message) as caught:
        load_settings(conf)
    assert str(caught.value.where["path"]).endswith("shared/defaults.yaml")


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
        ("source.topics={allow: [a, 'b-.*']}", {"allow": ["a", "b-.*"]}),
        ("group=7", 7),
        ("group='7'", "7"),
        ("spark.a.b=c=d", "c=d"),
    ],
)
def test_the_value_of_a_change_is_what_yaml_makes_of_it(word: str, value: object) -> None:
    assert parse_change(word).value == value


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
    words = (
        "source.starting_offsets=2026-01-31T00:00:00+00:00 limits.max_records_per_plan=1 "
        "limits.max_records_per_plan=2 table.path=../${env:FOLDER}/clicks "
        "spark.driver.memory=2g spark.spark.master=local[2]"
    )
    found = load_settings(conf, [parse_change(word) for word in words.split()])
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
    hidden = [
        "spark.hadoop.fs.s3a.secret.key=s3cret",
        "spark={spark.x: s3cret}",
        "source.security.sasl.password=s3cret",
        "zookeeper.connect=host:2181",
        "source.bootstrap_servers=host:9092",
    ]
    shown = {"limits.max_records_per_plan": "1000", "group": "${env:GROUP}"}
    words = [f"{key}={value}" for key, value in shown.items()] + hidden
    hidden_keys = [word.partition("=")[0] for word in hidden]
    found = describe_overrides([parse_change(word) for word in words])
    assert found == {**shown, **dict.fromkeys(hidden_keys)}


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
def test_a_change_of_an_unknown_key_or_of_another_form_is_rejected_by_its_name(
    word: str, message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_change(word)
    assert f"--set {word.partition('=')[0]}" in caught.value.message
    assert message in f"{caught.value.message} {caught.value.action}"
