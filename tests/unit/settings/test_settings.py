"""What may be configured: each key is taken, each mistake is refused with the path of its key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import annotated_types
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from etl.decide.group_assignment import STRATEGIES, Strategy
from etl.decide.plan import may_be_transformed, shape_of_rows
from etl.errors import SettingsError
from etl.model.partitions import Isolation, Membership
from etl.report.incident import read_settings, write_settings
from etl.settings.choices import (
    GroupStrategy,
    OnDataLoss,
    OnNoLeader,
    OnOffsetChanged,
    OwnershipMode,
    StartAt,
    split_address,
)
from etl.settings.conf_file import document_of
from etl.settings.load import changed, load_settings, parse_change, parse_settings
from etl.settings.schema import describe_key
from etl.settings.sections import Settings
from etl.settings.source import Timestamp, TopicFilter
from tests.builders import plain_plan, plain_settings

LEAST = """
pipeline: clicks
group: etl-clicks
zookeeper: {connect: "127.0.0.1:2181/kafka"}
source: {topics: ["clicks"]}
table: {path: "warehouse/clicks"}
"""

WHOLE = """
pipeline: clicks
group: {id: etl-clicks, mode: observe, on_owned: fail, on_active_members: fail, on_offset_changed: follow}
zookeeper: {connect: "a:2181,b:2181/kafka", session_timeout_s: 10}
source:
  broker_type: kafka
  assume_cluster_id: here
  bootstrap_servers: "a:9092, [::1]:9093"
  broker_version: "0.10.2"
  topics: ["clicks", "click-.*"]
  exclude_topics: [".*-test"]
  starting_offsets: 2026-01-31T00:00:00+01:00
  new_topics_starting_offsets: latest
  on_data_loss: skip
  on_no_leader: skip
  wait_for_leader_s: 0
  isolation_level: read_uncommitted
  fetch_max_bytes: 16777216
  max_batch_bytes: 33554432
  max_record_bytes: 1048576
  request_timeout_s: 2.5
  assume_compacted: ["click-.*"]
table: {path: "warehouse/clicks", writer: spark, partition_by: [topic, event_date], on_rows_removed: fail}
limits: {max_records_per_plan: 10, max_bytes_per_plan: null, target_task_bytes: 256 MiB}
ledger: {lock_timeout_s: 60}
transform: package.module:function
report: {path: "elsewhere"}
spark: {spark.master: "local[2]", spark.ui.enabled: false, spark.sql.shuffle.partitions: 4}
"""

PLACE = "/some/clicks.yaml"


def document_with(key: str, value: Any) -> dict[str, Any]:
    """The least conf with one key (`source.topics`) set."""
    document: dict[str, Any] = yaml.safe_load(LEAST)
    section = document
    if key.startswith("group."):
        document["group"] = {"id": document["group"]}
    *sections, last = key.split(".")
    for name in sections:
        section = section.setdefault(name, {})
    section[last] = value
    if key == "limits.local_below_bytes":  # refused where it has no effect
        document["table"]["writer"] = "auto"
    return document


def parse(text: str) -> Settings:
    return parse_settings(yaml.safe_load(text), path=PLACE)


def conf_with(folder: Path, **sections: Any) -> Path:
    path = folder / "clicks.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(LEAST), **sections}))
    return path


def refusal(key: str, value: Any) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        parse_settings(document_with(key, value), path=PLACE)
    assert caught.value.exit_code == 2
    assert caught.value.where["path"] == PLACE
    assert caught.value.action
    return caught.value


def test_the_least_conf_has_the_documented_defaults() -> None:
    found = parse(LEAST)
    source, group, table, limits = found.source, found.group, found.table, found.limits
    assert source.starting_offsets == source.new_topics_starting_offsets == StartAt.EARLIEST
    policies = (source.on_data_loss, group.on_offset_changed, source.on_no_leader)
    assert policies == (OnDataLoss.FAIL, OnOffsetChanged.FAIL, OnNoLeader.FAIL)
    assert source.isolation_level == Isolation.READ_COMMITTED
    assert source.fetch_max_bytes == 16_777_216
    assert (limits.target_task_bytes, found.ledger.lock_timeout_s) == (268_435_456, 60)
    assert (table.writer, table.partition_by, found.report.path) == ("spark", (), "reports")
    absent = (limits.max_records_per_plan, limits.max_bytes_per_plan, source.bootstrap_servers)
    assert (*absent, source.assume_cluster_id, found.transform.function) == (None,) * 5
    assert found.spark == {}


def test_every_key_is_taken() -> None:
    found = parse(WHOLE)
    source = found.source
    assert source.starting_offsets == Timestamp(timestamp=datetime(2026, 1, 30, 23, tzinfo=UTC))
    assert source.bootstrap_servers == ("a:9092", "[::1]:9093")
    assert source.broker_version == "0.10.2"
    assert found.group.on_offset_changed is OnOffsetChanged.FOLLOW
    assert found.group.mode is OwnershipMode.OBSERVE
    assert found.table.partition_by == ("topic", "event_date")
    with pytest.raises(ValueError, match="frozen"):
        found.pipeline = "other"
    lists = ("source.topics", "source.exclude_topics", "source.assume_compacted")
    for key in (*lists, "table.partition_by"):
        one, several = (document_with(key, value) for value in ("topic", ["topic"]))
        assert parse_settings(one) == parse_settings(several), "one name is a list of one"
    number = "spark.sql.shuffle.partitions"
    assert found.spark == {"spark.master": "local[2]", "spark.ui.enabled": "false", number: "4"}


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("groupp", "group"),
        ("zookeeper.conect", "zookeeper.connect"),
        ("source.topicss", "source.topics"),
        ("ledger.lock_timeout", "ledger.lock_timeout_s"),
        ("on_data_loss", "source.on_data_loss"),
    ],
)
def test_an_unknown_key_is_refused_with_its_path_and_a_similar_key(key: str, near: str) -> None:
    error = refusal(key, 1)
    assert error.where["key"] == key
    assert error.message == f"{key}: unknown key; did you mean `{near}`?"
    unlike = refusal("report.colour", "red")
    assert unlike.message == "report.colour: unknown key"
    assert unlike.action == "Check its spelling and its indentation. report takes path, keep"


@pytest.mark.parametrize(
    "key", ["pipeline", "group", "zookeeper.connect", "source.topics", "table.path"]
)
def test_a_missing_key_is_refused_with_its_path(key: str) -> None:
    document = yaml.safe_load(LEAST)
    section, _, last = key.rpartition(".")
    del (document[section] if section else document)[last]
    with pytest.raises(SettingsError) as caught:
        parse_settings(document, path=PLACE)
    assert (caught.value.message, caught.value.where["key"]) == (f"{key}: is missing", key)


WRONG_VALUES: dict[str, list[Any]] = {
    "pipeline": ["a/b", "", 7, "..", False, "-clicks"],
    "source.assume_cluster_id": ["a/b"],
    "zookeeper": ["127.0.0.1:2181"],
    "zookeeper.connect": ["", "127.0.0.1", "127.0.0.1:port"]
    + ["a:1,,b:2", "a:1/b,c:2/b", "a:1//b", "a:1/../b"]
    + ["a:b:c:2181", "user@a:2181", "a#b:2181", "[a]:2181", "::1:2181"],
    "zookeeper.session_timeout_s": ["soon", True],
    "source.topics": ["", [], ["("]],
    "source.exclude_topics": [["a{99999999999999}"]],
    "source.assume_compacted": [["("]],
    "source.bootstrap_servers": ["localhost", "localhost:0", "localhost:65536", ""],
    "source.starting_offsets": ["begin", [], {}, {"timestamp": "x"}],
    "source.new_topics_starting_offsets": [{"timestamp": "2026-01-31T00:00:00Z"}],
    "source.on_data_loss": ["ignore"],
    "group.on_offset_changed": [None],
    "source.on_no_leader": ["wait"],
    "source.isolation_level": ["serializable"],
    "source.fetch_max_bytes": ["16MB", 10.5, 1],
    "source.request_timeout_s": [0, float("inf")],
    "table.path": [""],
    "table.partition_by": [7, ["topic", "topic"], ["topic", "Topic"]],
    "limits.max_records_per_plan": [0, True],
    "limits.target_task_bytes": [None],
    "ledger.lock_timeout_s": ["1m"],
    "report.path": [7],
    "report": [None],
    "spark": [["spark.master"]],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG_VALUES.items() for value in values]
)
def test_a_wrong_value_is_refused_with_the_path_of_its_key(key: str, value: Any) -> None:
    assert refusal(key, value).where["key"] == key


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [
        ("group", ".", "group.id"),
        ("group", "a b", "group.id"),
        ("source.topics", [7], "source.topics.0"),
        ("source.bootstrap_servers", [9092], "source.bootstrap_servers.0"),
        ("source.max_batch_bytes", 2048, "source"),
        ("transform", "module.function", "transform.dataframe"),
        ("transform", "module:", "transform.dataframe"),
        ("spark", {"spark": {"master": "local"}}, "spark.spark"),
        ("spark", {"a": None}, "spark.a"),
    ],
)
def test_a_wrong_value_inside_another_is_refused_with_its_own_path(
    key: str, value: Any, where: str
) -> None:
    assert refusal(key, value).where["key"] == where


def test_all_mistakes_are_reported_at_once_each_with_the_permitted_values() -> None:
    document = document_with("limits.max_records_per_plan", "many")
    document["source"]["on_data_loss"] = "ignore"
    del document["group"]
    with pytest.raises(SettingsError) as caught:
        parse_settings(document, path=PLACE)
    first, *more = caught.value.message.splitlines()
    assert first == "3 keys of the conf are invalid:"
    assert sorted(more) == [
        f"group: is missing; it takes {describe_key('group')}",
        "limits.max_records_per_plan: must be a whole number (it is 'many'); "
        f"it takes {describe_key('limits.max_records_per_plan')}",
        "source.on_data_loss: must be fail or skip (it is 'ignore'); "
        f"it takes {describe_key('source.on_data_loss')}",
    ]
    renamed = document_with("groupp", "etl-clicks")
    del renamed["group"]
    with pytest.raises(SettingsError) as one:
        parse_settings(renamed)
    assert one.value.message == "groupp: unknown key; did you mean `group`?", "it is one mistake"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("pipeline", "a/b", "letters, digits"),
        ("group", "..", "not dots alone"),
        ("source.fetch_max_bytes", "16MB", "1 KiB to 1 GiB. Bytes of a fetch"),
        ("group.on_owned", "never", "fail, wait or skip"),
        ("spark", {"spark.a": None}, "spark.master"),
        ("source.broker_type", "pulsar", "kafka or jafka"),
        ("group.mode", "share", "claim"),
        ("table.writer", "flink", "auto, spark or arrow"),
        ("table.compression", "gzip", "uncompressed, snappy, lz4 or zstd"),
        ("source.broker_version", 0.1, "in quotes"),
        ("source.broker_version", "2", "no version"),
        ("source.broker_version", "0.9.x", "no version"),
        ("source.broker_version", "٠.٩", "no version"),
    ],
)
def test_a_wrong_value_is_reported_in_words_with_the_permitted_values(
    key: str, value: Any, message: str
) -> None:
    error = refusal(key, value)
    assert message in f"{error.message} {error.action}"
    assert not any(word in str(error) for word in ("pattern", "^", "Input", "docs/", "conf/"))


def numbers_of(section: type[BaseModel], at: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Every key that takes a number, with its bounds."""
    for name, field in section.model_fields.items():
        kinds = [
            kind
            for kind in (field.annotation, *get_args(field.annotation))
            if isinstance(kind, type)
        ]
        if any(issubclass(kind, (int, float)) and kind is not bool for kind in kinds):
            yield at + name, field.metadata
        for kind in kinds:
            if issubclass(kind, BaseModel):
                yield from numbers_of(kind, f"{at}{name}.")


NUMBERS = dict(numbers_of(Settings))


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", [1e20, 1e306, 10**400, -1, float("nan")])
def test_no_key_takes_a_number_of_any_size(key: str, value: float) -> None:
    assert refusal(key, value).where["key"] == key


@pytest.mark.parametrize("key", [key for key in NUMBERS if not key.startswith("source.fetch_")])
def test_every_number_has_a_greatest_value_that_is_taken(key: str) -> None:
    greatest: Any
    [greatest] = [bound.le for bound in NUMBERS[key] if isinstance(bound, annotated_types.Le)]
    parse_settings(document_with(key, greatest), path=PLACE)
    assert refusal(key, greatest + 1).where["key"] == key


NO_EFFECT = "has no effect with offsets_storage"
STRATEGY, JAFKA = "join.assignment_strategy", "source.broker_type=jafka"
IN_KAFKA = "offsets_storage=kafka"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("offsets_storage=dual", "offsets_storage: dual does not go with mode: join"),
        ("source.bootstrap_servers=[b:9092]", "Remove source.bootstrap_servers"),
        ("join.protocol=consumer", f"join.protocol {NO_EFFECT}: zookeeper"),
        ("join.session_timeout_s=9", f"join.session_timeout_s {NO_EFFECT}: zookeeper"),
        ("join.rebalance_timeout_s=9", f"join.rebalance_timeout_s {NO_EFFECT}: zookeeper"),
        (f"{STRATEGY}=[range,roundrobin]", "all use one strategy"),
        (f"{STRATEGY}=sticky", "sticky is not supported with offsets_storage: zookeeper"),
        (f"{IN_KAFKA} join.num_streams=2", f"join.num_streams {NO_EFFECT}: kafka"),
        (f"{IN_KAFKA} {STRATEGY}=roundrobin-1.0", "roundrobin-1.0 is not supported with offsets"),
        (f"{IN_KAFKA} {STRATEGY}=[range,range]", "names a strategy more than once"),
        (f"{IN_KAFKA} join.protocol=consumer {STRATEGY}=sticky", f"{STRATEGY} has no effect"),
        (f"{IN_KAFKA} {JAFKA}", "whose brokers keep no groups"),
        (f"{STRATEGY}=roundrobin {JAFKA}", f"{STRATEGY}: roundrobin does not go with"),
        (
            "join.commit_when=after_append join.leave_after=commit",
            "join.leave_after: commit does not go with join.commit_when: after_append",
        ),
        (
            "mode=claim join.commit_when=after_append",
            "join.commit_when: after_append has no effect with mode: claim",
        ),
    ],
)
def test_what_does_not_go_with_being_a_member_is_refused_by_name(keys: str, message: str) -> None:
    words = [word if word.startswith("source.") else f"group.{word}" for word in keys.split()]
    document = document_with("group", {"id": "etl-clicks", "mode": "join"})
    with pytest.raises(SettingsError, match=re.escape(message)) as caught:
        parse_settings(changed(document, [*map(parse_change, words)]), path=PLACE)
    assert (caught.value.where["key"], caught.value.exit_code) == ("group", 2)


def test_the_strategies_that_a_conf_may_name_are_those_that_a_group_is_divided_by() -> None:
    assert {one.value for one in GroupStrategy} == {one.value for one in Strategy} | set(STRATEGIES)


@pytest.mark.parametrize(
    ("keys", "membership"),
    [
        ("mode=claim offsets_storage=kafka", None),
        ("mode=join", Membership.ZOOKEEPER),
        (
            "mode=join offsets_storage=kafka join.assignment_strategy=[cooperative-sticky,range]",
            Membership.COORDINATOR,
        ),
        (
            "mode=join offsets_storage=kafka join.protocol=consumer join.session_timeout_s=9",
            Membership.COORDINATOR,
        ),
    ],
)
def test_a_run_joins_the_group_of_its_offsets(keys: str, membership: Membership | None) -> None:
    document = document_with("group", {"id": "g"})
    changes = [parse_change(f"group.{word}") for word in keys.split()]
    settings = parse_settings(changed(document, changes), path=PLACE)
    assert settings.group.membership is membership
    restored = read_settings(write_settings(settings))
    assert restored.group.membership is membership, "and a report contains it"


@pytest.mark.parametrize(
    "value",
    ["2026-01-31T00:00:00", "2026-01-31", "1769817600", "1769817600000"]
    + ["1969-12-31T23:59:59.999+00:00", datetime(2026, 1, 31), datetime(2026, 1, 31).date()]
    + [1_769_817_600, 1_769_817_600_000, 1.5, True, None],
)
def test_a_time_that_is_not_one_instant_after_1970_is_refused(value: Any) -> None:
    assert refusal("source.starting_offsets", value).where["key"] == "source.starting_offsets"


@pytest.mark.parametrize(
    "text", ["2026-01-31T01:00:00+01:00", "2026-01-31 00:00:00Z", '"2026-01-31T00:00:00+00:00"']
)
def test_a_time_with_an_offset_is_milliseconds_since_1970(text: str) -> None:
    document = document_with("source.starting_offsets", yaml.safe_load(text))
    start = parse_settings(document).source.starting_offsets
    assert isinstance(start, Timestamp)
    assert start.ms == 1_769_817_600_000


@pytest.mark.parametrize(
    "reference",
    ["${env:NOT_SET_ANYWHERE}", "${file:/not/there}", "${file:/}", "${file:a\0b}", "${env:a\0b}"],
)
def test_a_reference_that_leads_nowhere_is_refused_with_the_path_of_its_key(reference: str) -> None:
    error = refusal("source.topics", ["clicks", reference])
    assert error.where["key"] == "source.topics.1"
    assert "refers to" in error.message


@pytest.mark.parametrize(
    ("table", "report", "key"),
    [
        ({"path": "clicks"}, "clicks", "report.path"),
        ({"path": "clicks"}, "clicks/reports/", "report.path"),
        ({"path": "clicks"}, "clicks_losses/reports", "report.path"),
        ({"path": "file://{here}/clicks"}, "{here}/clicks", "report.path"),
        ({"path": "clicks", "losses_path": "clicks"}, "reports", "table.losses_path"),
        ({"path": "clicks", "losses_path": "clicks/losses"}, "reports", "table.losses_path"),
        ({"path": "lost/clicks", "losses_path": "lost"}, "reports", "table.losses_path"),
        ({"path": "s3://b/t", "losses_path": "s3://b/t/losses"}, "reports", "table.losses_path"),
        ({"path": "clicks"}, "clicks_reports", None),
        ({"path": "reports/clicks"}, "reports", None),
        ({"path": "s3://reports/"}, "reports", None),
    ],
)
def test_nothing_else_is_kept_in_the_folder_of_a_table(
    tmp_path: Path, table: dict[str, str], report: str, key: str | None
) -> None:
    places = {name: path.format(here=tmp_path) for name, path in table.items()}
    conf = conf_with(tmp_path, table=places, report={"path": report.format(here=tmp_path)})
    if key is None:
        load_settings(conf)
        return
    with pytest.raises(SettingsError) as caught:
        load_settings(conf)
    assert (caught.value.where["key"], caught.value.where["path"]) == (key, conf)


@pytest.mark.parametrize(
    ("metrics_path", "words"),
    [
        ("clicks/metrics", "The metrics are inside the directory of the table,"),
        ("clicks_losses/x.prom", "the directory of the losses table,"),
        ("s3://bucket/x", "must be a local file or directory"),
        ("file:///x", "must be a local file or directory"),
        ("~/x", "begins with ~"),
    ],
)
def test_metrics_are_of_this_machine_and_not_in_the_folder_of_a_table(
    tmp_path: Path, metrics_path: str, words: str
) -> None:
    conf = conf_with(tmp_path, table={"path": "clicks"}, metrics={"path": metrics_path})
    with pytest.raises(SettingsError, match=words) as caught:
        load_settings(conf)
    assert caught.value.where["key"] == "metrics.path"


def test_a_relative_path_is_seen_from_the_folder_of_the_conf_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "conf"
    folder.mkdir()
    (folder / "key").write_text("s3cret\n")
    table = {"path": "../warehouse/clicks", "losses_path": "losses"}
    conf = conf_with(folder, table=table, spark={"spark.password": "${file:key}"})
    (tmp_path / "link.yaml").symlink_to(conf)
    for there, path in ((tmp_path, "conf/clicks.yaml"), (folder, "clicks.yaml"), ("/", conf)):
        monkeypatch.chdir(there)
        found = load_settings(path)
        assert found.table.path == str(tmp_path / "warehouse" / "clicks")
        assert found.table.losses_at == str(folder / "losses")
        assert found.report.path == str(folder / "reports")
        assert found.spark["spark.password"] == "s3cret"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").write_text("of the link")
    assert load_settings("link.yaml").table.path == str(tmp_path.parent / "warehouse" / "clicks")
    for path in ("s3://bucket/clicks", "file:/data/clicks", "file:///data/clicks", "/data/clicks"):
        absolute = conf_with(folder, table={"path": path})
        assert load_settings(absolute).table.path == path, "it stays as it is"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "7", "a: [", "a: !!python/object:os.system {}", "a: !!timestamp x", "a: !!bool x"]
    + ["a: !!float ''", "a: !!int ''", "a: 2026-13-45", "\t", "a: &x [*x]", "&x {pipeline: *x}"]
    + ["? {a: b}\n: c", "a: \x00", "--- 1\n--- 2", "1: 2", "[" * 1200, b"pipeline: caf\xe9"],
)
def test_a_file_that_is_no_conf_is_refused_and_named(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for odd in (path, tmp_path / "missing", tmp_path, "a\0b"):
        with pytest.raises(SettingsError) as caught:
            load_settings(odd)
        assert str(caught.value.where["path"]) == str(odd)


@pytest.mark.parametrize(
    "line",
    ["report: *place", "report: {<<: *place}", "transform: *.py", "report: [*place, *place]"],
)
def test_an_alias_is_refused_with_its_line_and_what_to_write_instead(
    tmp_path: Path, line: str
) -> None:
    path = tmp_path / "clicks.yaml"
    path.write_text(f"{LEAST}\nplace: &place {{path: reports}}\n{line}\n")
    with pytest.raises(
        SettingsError, match=r"YAML: aliases \(\*\) are not supported: write the value, or quote"
    ) as caught:
        load_settings(path)
    number = path.read_text().splitlines().index(line) + 1
    assert f"line {number}, column {line.index('*') + 1}" in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("limits: {max_records_per_plan: 10}", "limits: {local_below_bytes: 0}"),
        ("pipeline: a", "'pipeline': b"),
        ("report: {deny: 1, x: 2,", "  deny: 3}"),
        ("limits:\n  max_records_per_plan: 10", "  max_records_per_plan: 11"),
        ("spark:\n  spark.driver.memory: 2g", "  spark.driver.memory: 4g"),
        ("report:\n  - a: 1", "    a: 2"),
    ],
)
def test_a_key_that_stands_twice_in_a_conf_is_refused_with_both_lines(
    tmp_path: Path, first: str, second: str
) -> None:
    path = tmp_path / "clicks.yaml"
    path.write_text(f"# a comment\n{first}\n{second}\n")
    key = second.partition(":")[0].strip(" '")
    last = path.read_text().count("\n")
    message = f"duplicate key {key}, first in line {last - 1};.*: line {last}, column"
    with pytest.raises(SettingsError, match=message) as caught:
        load_settings(path)
    assert (caught.value.exit_code, caught.value.where["path"]) == (2, path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: 1\n<<: {a: 2, b: 3}", {"a": 1, "b": 3}),
        ("a: {b: 1}\nc: {b: 1}", {"a": {"b": 1}, "c": {"b": 1}}),
        ("- a: 1\n- a: 2", [{"a": 1}, {"a": 2}]),
        ("a: '*'", {"a": "*"}),
        ("", None),
    ],
)
def test_a_key_may_stand_in_several_mappings_and_over_one_that_is_merged(
    text: str, found: object
) -> None:
    assert document_of(text) == found


def test_expressions_match_whole_names_and_an_exclusion_wins() -> None:
    source = parse(WHOLE).source
    topics = ("clicks", "click-de", "click-test", "my-clicks")
    assert [source.topic_filter.admits(topic) for topic in topics] == [True, True, False, False]
    compacted = [source.is_assumed_compacted(topic) for topic in ("click-de", "my-click-de")]
    assert compacted == [True, False]
    assert source.topic_filter.literal_names == ("clicks",), (
        "a plain name is a topic that must exist"
    )


def test_a_copy_with_other_topics_admits_those() -> None:
    source = parse(WHOLE).source
    assert source.topic_filter.admits("clicks") and source.is_assumed_compacted("click-de")
    copied = source.model_copy(update={"topics": ("orders",), "assume_compacted": ("orders",)})
    assert copied.topic_filter.admits("orders") and not copied.topic_filter.admits("clicks")
    assert copied.is_assumed_compacted("orders") and not copied.is_assumed_compacted("click-de")


def test_names_are_looked_up_and_each_expression_is_compiled_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = list[str]()
    compile = re.compile

    def counted(text: str) -> re.Pattern[str]:
        compiled.append(text)
        return compile(text)

    monkeypatch.setattr(re, "compile", counted)
    monkeypatch.setattr(re, "fullmatch", None)
    names = tuple(f"{kind}-{number}" for kind in ("a", "b.c") for number in range(300))
    topics = TopicFilter((*names, "x.*", "y.*"), ("xx.*",))
    assert all(topics.admits(name) for name in (*names, "x1", "y1"))
    assert not any(topics.admits(name) for name in ("xx", "a-300", "a"))
    assert topics.admits("bxc-7"), "a dot matches any character"
    assert len(compiled) == len(set(compiled)) == 303
    assert topics.literal_names == names[:300]


@pytest.mark.parametrize("key", ["topics", "exclude_topics", "assume_compacted"])
@pytest.mark.parametrize("expression", ["or[c-e&&[^c]]ers", "[a[[b]]", "clicks|[a-z&&b]"])
def test_an_expression_that_java_and_python_read_in_two_ways_is_refused(
    key: str, expression: str
) -> None:
    error = refusal(f"source.{key}", [expression])
    assert "inside a class, which Java and Python read differently" in error.message


@pytest.mark.parametrize(("address", "parts"), [("a:1", ("a", 1)), ("[::1]:65535", ("::1", 65535))])
def test_an_address_is_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


NAMES = st.sampled_from([None, "m:f", "m:g"])


def test_a_conf_has_one_transform_at_most() -> None:
    with pytest.raises(
        SettingsError, match="excludes transform.dataframe.*key transform.record_batch"
    ):
        plain_settings(transform={"dataframe": "m:f", "record_batch": "m:g"})
    both = plain_settings(transform={"dataframe": None, "record_batch": "m:g"})
    assert both.transform.function == "m:g"


@pytest.mark.parametrize("name", ["shaped", "m:", ":f", "m:f()", "a b:c", 7])
def test_a_name_of_another_form_is_refused_with_the_one_that_it_has(name: object) -> None:
    with pytest.raises(SettingsError, match="package.module:function") as raised:
        plain_settings(transform={"record_batch": name})
    assert raised.value.where["key"] == "transform.record_batch"


@given(NAMES, NAMES)
def test_rows_of_a_stored_plan_are_those_of_the_same_function_of_the_same_kind(
    transform: str | None, arrow: str | None
) -> None:
    if transform and arrow:
        return
    here = plain_settings(transform={"dataframe": transform, "record_batch": arrow})
    plan = plain_plan(shape=shape_of_rows(here))
    assert may_be_transformed(plan, here) is (here.transform.function is not None)
    for other in (
        plain_settings(),
        plain_settings(transform="m:f"),
        plain_settings(transform={"record_batch": "m:f"}),
    ):
        is_same = (other.transform.dataframe, other.transform.record_batch) == (transform, arrow)
        assert (shape_of_rows(other) == plan.shape) is is_same


def test_plans_stored_before_arrow_transforms_continue() -> None:
    """Their hash is in ZooKeeper."""
    assert [
        shape_of_rows(plain_settings(transform={"dataframe": name})) for name in (None, "m:f")
    ] == BEFORE


BEFORE = ["e185f091c68f8a68", "4acda0c7ebba8d6d"]


def test_a_document_that_is_no_mapping_of_keys_is_a_settings_error() -> None:
    documents: list[Any] = [None, 7, "clicks", [], {1: 2}, {"spark": {b"": "x"}}]
    for document in documents:
        with pytest.raises(SettingsError):
            parse_settings(document)
