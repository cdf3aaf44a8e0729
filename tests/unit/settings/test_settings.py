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
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from etl.decide.group_assignment import STRATEGIES, Strategy
from etl.errors import SettingsError
from etl.model.partitions import Isolation, Membership
from etl.report.plan_json import read_settings, write_settings
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
from etl.settings.load import load_settings, parse_settings
from etl.settings.schema import MEANINGS
from etl.settings.sections import Settings
from etl.settings.source import Timestamp

LEAST = """
version: 1
pipeline: clicks
group: etl-clicks
zookeeper: {connect: "127.0.0.1:2181/kafka"}
source: {topics: {allow: ["clicks"]}}
table: {path: "warehouse/clicks"}
"""

WHOLE = """
version: 1
pipeline: clicks
cluster: here
group: etl-clicks
zookeeper: {connect: "a:2181,b:2181/kafka", session_timeout_s: 10, connect_timeout_s: 5}
source:
  dialect: kafka
  bootstrap: "a:9092, [::1]:9093"
  broker_version: "0.10.2"
  topics: {allow: ["clicks", "click-.*"], deny: [".*-test"]}
  start: {timestamp: 2026-01-31T00:00:00+01:00}
  new_topics_starting_offsets: latest
  on_data_loss: skip
  on_offset_changed: follow
  on_no_leader: skip
  wait_for_leader_s: 0
  isolation: read_uncommitted
  fetch_max_bytes: 16777216
  max_batch_bytes: 33554432
  max_record_bytes: 1048576
  timeout_s: 2.5
  assume_compacted: ["click-.*"]
table: {path: "warehouse/clicks", writer: spark, partition_by: [topic, event_date], on_rows_removed: fail}
limits: {max_records_per_plan: 10, max_bytes_per_plan: null, target_task_bytes: 268435456}
ownership: {mode: observe, on_owned: fail, on_active_members: fail, lock_timeout_s: 60}
transform: package.module:function
report: {path: "elsewhere"}
spark: {spark.master: "local[2]", spark.ui.enabled: false, spark.sql.shuffle.partitions: 4}
"""

PLACE = "/some/clicks.yaml"


def document_with(key: str, value: Any) -> dict[str, Any]:
    """The least conf with one key (`source.topics.allow`) set."""
    document: dict[str, Any] = yaml.safe_load(LEAST)
    section = document
    *sections, last = key.split(".")
    for name in sections:
        section = section.setdefault(name, {})
    section[last] = value
    if key == "limits.local_below_bytes":  # refused where it has no effect
        document["table"]["writer"] = "auto"
    return document


def parse(text: str) -> Settings:
    return parse_settings(yaml.safe_load(text), path=PLACE)


def refusal(key: str, value: Any) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        parse_settings(document_with(key, value), path=PLACE)
    assert caught.value.exit_code == 2
    assert caught.value.where["path"] == PLACE
    assert caught.value.action
    return caught.value


def test_the_least_conf_has_the_documented_defaults() -> None:
    found = parse(LEAST)
    assert found.source.start is StartAt.EARLIEST
    assert found.source.new_topics_starting_offsets is StartAt.EARLIEST
    assert (
        found.source.on_data_loss,
        found.source.on_offset_changed,
        found.source.on_no_leader,
    ) == (
        OnDataLoss.FAIL,
        OnOffsetChanged.FAIL,
        OnNoLeader.FAIL,
    )
    assert found.source.isolation is Isolation.READ_COMMITTED
    assert found.source.fetch_max_bytes == 16_777_216
    assert found.limits.target_task_bytes == 268_435_456
    assert (found.limits.max_records_per_plan, found.limits.max_bytes_per_plan) == (None, None)
    assert found.ownership.lock_timeout_s == 60
    assert (found.table.writer, found.table.partition_by, found.report.path) == (
        "spark",
        (),
        "reports",
    )
    assert (found.cluster, found.transform, found.spark, found.source.bootstrap) == (
        None,
        None,
        {},
        None,
    )


def test_every_key_is_taken() -> None:
    found = parse(WHOLE)
    assert found.source.start == Timestamp(timestamp=datetime(2026, 1, 30, 23, tzinfo=UTC))
    assert (found.source.bootstrap, found.source.broker_version) == (
        ("a:9092", "[::1]:9093"),
        "0.10.2",
    )
    assert found.source.on_offset_changed is OnOffsetChanged.FOLLOW
    assert found.ownership.mode is OwnershipMode.OBSERVE
    assert found.table.partition_by == ("topic", "event_date")
    assert found.spark == {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
    }


def test_the_example_conf_is_one() -> None:
    assert load_settings(Path(__file__).parents[3] / "conf" / "clicks.yaml").pipeline == "clicks"


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse(LEAST).pipeline = "other"


@pytest.mark.parametrize(
    "key",
    [
        "piepline",
        "zookeeper.conect",
        "source.topic",
        "source.topics.alow",
        "table.pathe",
        "limits.max_records",
        "ownership.wait_for_driver",
        "report.folder",
    ],
)
def test_an_unknown_key_is_refused_with_its_path(key: str) -> None:
    error = refusal(key, 1)
    assert error.where["key"] == key
    assert error.message.startswith("unknown key")


@pytest.mark.parametrize(
    "key",
    ["version", "pipeline", "group", "zookeeper.connect", "source.topics.allow", "table.path"],
)
def test_a_missing_key_is_refused_with_its_path(key: str) -> None:
    document = yaml.safe_load(LEAST)
    section = document
    *sections, last = key.split(".")
    for name in sections:
        section = section[name]
    del section[last]
    with pytest.raises(SettingsError) as caught:
        parse_settings(document, path=PLACE)
    assert (caught.value.message, caught.value.where["key"]) == ("a key is missing", key)


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [
        ("version", 2, "version"),
        ("version", "1", "version"),
        ("version", True, "version"),
        ("pipeline", "a/b", "pipeline"),
        ("pipeline", "", "pipeline"),
        ("pipeline", 7, "pipeline"),
        ("pipeline", "..", "pipeline"),
        ("pipeline", False, "pipeline"),
        ("group", ".", "group"),
        ("group", "a b", "group"),
        ("cluster", "a/b", "cluster"),
        ("zookeeper", "127.0.0.1:2181", "zookeeper"),
        ("zookeeper.connect", "", "zookeeper.connect"),
        ("zookeeper.connect", "127.0.0.1", "zookeeper.connect"),
        ("zookeeper.connect", "127.0.0.1:port", "zookeeper.connect"),
        ("zookeeper.connect", "a:1,,b:2", "zookeeper.connect"),
        ("zookeeper.connect", "a:1/b,c:2/b", "zookeeper.connect"),
        ("zookeeper.connect", "a:1//b", "zookeeper.connect"),
        ("zookeeper.connect", "a:1/../b", "zookeeper.connect"),
        ("zookeeper.session_timeout_s", "soon", "zookeeper.session_timeout_s"),
        ("zookeeper.session_timeout_s", True, "zookeeper.session_timeout_s"),
        ("zookeeper.session_timeout_s", float("inf"), "zookeeper.session_timeout_s"),
        ("source.topics.allow", "", "source.topics.allow"),
        ("source.topics.allow", [], "source.topics.allow"),
        ("source.topics.allow", ["("], "source.topics.allow"),
        ("source.topics.deny", ["a{99999999999999}"], "source.topics.deny"),
        ("source.topics.allow", [7], "source.topics.allow.0"),
        ("source.assume_compacted", ["("], "source.assume_compacted"),
        ("source.bootstrap", "localhost", "source.bootstrap"),
        ("source.bootstrap", "localhost:0", "source.bootstrap"),
        ("source.bootstrap", "localhost:65536", "source.bootstrap"),
        ("source.bootstrap", "", "source.bootstrap"),
        ("source.bootstrap", [9092], "source.bootstrap.0"),
        ("source.start", "begin", "source.start"),
        ("source.start", [], "source.start"),
        ("source.start", {}, "source.start.timestamp"),
        ("source.start", {"timestamp": "x"}, "source.start.timestamp"),
        ("source.start", {"time": 1}, "source.start.time"),
        (
            "source.new_topics_starting_offsets",
            {"timestamp": "2026-01-31T00:00:00Z"},
            "source.new_topics_starting_offsets",
        ),
        ("source.on_data_loss", "ignore", "source.on_data_loss"),
        ("source.on_offset_changed", None, "source.on_offset_changed"),
        ("source.on_no_leader", "wait", "source.on_no_leader"),
        ("source.isolation", "serializable", "source.isolation"),
        ("source.fetch_max_bytes", "16MB", "source.fetch_max_bytes"),
        ("source.fetch_max_bytes", 10.5, "source.fetch_max_bytes"),
        ("source.fetch_max_bytes", 1, "source.fetch_max_bytes"),
        ("source.max_batch_bytes", 2048, "source"),
        ("source.timeout_s", 0, "source.timeout_s"),
        ("source.timeout_s", float("nan"), "source.timeout_s"),
        ("source.timeout_s", float("inf"), "source.timeout_s"),
        ("source.wait_for_leader_s", -1, "source.wait_for_leader_s"),
        ("table.path", "", "table.path"),
        ("table.partition_by", 7, "table.partition_by"),
        ("table.partition_by", ["topic", "topic"], "table.partition_by"),
        ("table.partition_by", ["topic", "Topic"], "table.partition_by"),
        ("limits.max_records_per_plan", 0, "limits.max_records_per_plan"),
        ("limits.max_records_per_plan", True, "limits.max_records_per_plan"),
        ("limits.max_bytes_per_plan", -5, "limits.max_bytes_per_plan"),
        ("limits.target_task_bytes", None, "limits.target_task_bytes"),
        ("ownership.lock_timeout_s", "1m", "ownership.lock_timeout_s"),
        ("transform", "module.function", "transform"),
        ("transform", "module:", "transform"),
        ("report.path", 7, "report.path"),
        ("report", None, "report"),
        ("spark", ["spark.master"], "spark"),
        ("spark", {"spark": {"master": "local"}}, "spark.spark"),
        ("spark", {"a": None}, "spark.a"),
    ],
)
def test_a_wrong_value_is_refused_with_the_path_of_its_key(
    key: str, value: Any, where: str
) -> None:
    assert refusal(key, value).where["key"] == where


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("groupp", "group"),
        ("zookeeper.conect", "zookeeper.connect"),
        ("source.topics.alow", "source.topics.allow"),
        ("ownership.wait_for_driver", "ownership.lock_timeout_s"),
        ("on_data_loss", "source.on_data_loss"),
    ],
)
def test_an_unknown_key_is_told_with_the_one_that_was_meant(key: str, near: str) -> None:
    assert refusal(key, "x").message == f"unknown key; did you mean `{near}`?"


def test_an_unknown_key_that_is_like_none_is_told_with_those_that_there_are() -> None:
    error = refusal("report.colour", "red")
    assert (error.message, error.action) == (
        "unknown key",
        "its spelling and indentation; report takes path, keep",
    )


def test_a_key_under_another_name_is_one_mistake() -> None:
    document = document_with("groupp", "etl-clicks")
    del document["group"]
    with pytest.raises(SettingsError) as caught:
        parse_settings(document)
    assert (caught.value.message, caught.value.where["key"]) == (
        "unknown key; did you mean `group`?",
        "groupp",
    )


def test_all_mistakes_are_told_at_once_each_with_what_its_key_takes() -> None:
    document = document_with("limits.max_records_per_plan", "many")
    document["source"]["on_offset_changed"] = "ignore"
    del document["group"]
    with pytest.raises(SettingsError) as caught:
        parse_settings(document, path=PLACE)
    first, *more = caught.value.message.splitlines()
    assert first == "3 keys of the conf are wrong:"
    assert sorted(more) == [
        "group: a key is missing; it takes the consumer group whose offsets are read and moved: letters, digits, `.`, `_` and `-`, "
        "and not dots alone",
        "limits.max_records_per_plan: must be a whole number (it is 'many'); it takes how many offsets one plan takes on, 1 or more; "
        "null for all",
        "source.on_offset_changed: must be fail or follow (it is 'ignore'); it takes fail: stop where somebody moved a committed offset; "
        "follow: go on from there, forwards only",
    ]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("pipeline", "a/b", "letters, digits"),
        ("group", "..", "not dots alone"),
        ("transform", "module.function", "package.module:function"),
        ("source.fetch_max_bytes", "16MB", "bytes asked for"),
        ("spark", {"spark.a": None}, "spark.master"),
    ],
)
def test_a_wrong_value_is_told_in_words_with_what_its_key_takes(
    key: str, value: Any, says: str
) -> None:
    error = refusal(key, value)
    assert says in error.action
    assert not any(word in str(error) for word in ("pattern", "^", "Input", "docs/", "conf/"))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (0.1, "in quotes"),
        (2, "in quotes"),
        ("2", "no version"),
        ("0.9.x", "no version"),
        ("٠.٩", "no version"),
    ],
)
def test_a_version_of_brokers_is_text_of_a_version(value: Any, why: str) -> None:
    assert why in refusal("source.broker_version", value).message


def test_every_key_has_a_meaning_and_every_meaning_a_key() -> None:
    def keys_of(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
        for key, field in section.model_fields.items():
            name = field.alias or key
            yield prefix + name
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                yield from keys_of(field.annotation, f"{prefix}{name}.")

    assert set(keys_of(Settings)) | {"source.start.timestamp"} == set(MEANINGS)


@pytest.mark.parametrize(
    "key",
    ["source.topics.allow", "source.topics.deny", "table.partition_by", "source.assume_compacted"],
)
def test_one_name_is_a_list_of_one(key: str) -> None:
    assert parse_settings(document_with(key, "topic")) == parse_settings(
        document_with(key, ["topic"])
    )


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


@pytest.mark.parametrize(
    ("key", "more", "says"),
    [
        (
            "offsets",
            {"offsets": {"storage": "kafka"}},
            "storage: kafka does not go with ownership.mode: join",
        ),
        (
            "offsets",
            {"offsets": {"storage": "dual"}},
            "storage: dual does not go with ownership.mode: join",
        ),
        (
            "offsets",
            {"source": {"bootstrap": ["b:9092"]}},
            "who keep the group's offsets there: storage: kafka",
        ),
        (
            "ownership",
            {"source": {"bootstrap": ["b:9092"]}, "ownership": {"membership": "zookeeper"}},
            "leave source.bootstrap out",
        ),
        (
            "ownership",
            {"ownership": {"protocol": "consumer"}},
            "protocol means nothing under membership: zookeeper",
        ),
        (
            "ownership",
            {"ownership": {"session_timeout_s": 9}},
            "session_timeout_s means nothing under membership: zookeeper",
        ),
        (
            "ownership",
            {"ownership": {"rebalance_timeout_s": 9}},
            "rebalance_timeout_s means nothing under membership: zookeeper",
        ),
        (
            "ownership",
            {"ownership": {"strategy": ["range", "roundrobin"]}},
            "divide by one strategy",
        ),
        (
            "ownership",
            {"ownership": {"strategy": "sticky"}},
            "sticky is none of membership: zookeeper",
        ),
        (
            "ownership",
            {"ownership": {"membership": "coordinator", "threads": 2}},
            "threads means nothing under membership: coordinator",
        ),
        (
            "ownership",
            {"ownership": {"membership": "coordinator", "backoff_s": 3}},
            "backoff_s means nothing under membership: coordinator",
        ),
        (
            "ownership",
            {"ownership": {"membership": "coordinator", "strategy": "roundrobin-1.0"}},
            "roundrobin-1.0 is none of membership",
        ),
        (
            "ownership",
            {"ownership": {"membership": "coordinator", "strategy": ["range", "range"]}},
            "names one of them more than once",
        ),
        (
            "ownership",
            {
                "ownership": {
                    "membership": "coordinator",
                    "protocol": "consumer",
                    "strategy": "sticky",
                }
            },
            "strategy means nothing",
        ),
        (
            "ownership",
            {"source": {"dialect": "jafka"}, "ownership": {"membership": "coordinator"}},
            "whose brokers keep no groups",
        ),
        (
            "offsets",
            {"ownership": {"membership": "coordinator"}, "offsets": {"storage": "dual"}},
            "storage: dual does not go with",
        ),
        (
            "ownership",
            {"source": {"dialect": "jafka"}, "ownership": {"strategy": "roundrobin"}},
            "strategy: roundrobin does not go with",
        ),
        (
            "ownership",
            {"ownership": {"hand_over": "after_append", "stay": "share"}},
            "stay: share does not go with hand_over: after_append",
        ),
        (
            "ownership",
            {"ownership": {"mode": "claim", "hand_over": "after_append"}},
            "hand_over: after_append means nothing under mode: claim",
        ),
        ("ownership.hand_over", {"ownership": {"hand_over": "later"}}, "at_plan"),
    ],
)
def test_what_does_not_go_with_being_a_member_is_refused_by_name(
    key: str, more: dict[str, dict[str, Any]], says: str
) -> None:
    document = document_with("ownership.mode", "join")
    for section, keys in more.items():
        document[section] = {**document.get(section, {}), **keys}
    with pytest.raises(SettingsError, match=re.escape(says)) as caught:
        parse_settings(document, path=PLACE)
    assert (caught.value.where["key"], caught.value.exit_code) == (key, 2)


def test_the_strategies_that_a_conf_may_name_are_those_that_a_group_is_divided_by() -> None:
    assert {one.value for one in GroupStrategy} == {one.value for one in Strategy} | set(STRATEGIES)


@pytest.mark.parametrize(
    ("ownership", "source", "membership"),
    [
        ({"mode": "claim", "membership": "coordinator"}, {}, None),
        ({"mode": "join"}, {}, Membership.ZOOKEEPER),
        (
            {"mode": "join", "strategy": ["cooperative-sticky", "range"]},
            {"bootstrap": ["b:9092"]},
            Membership.COORDINATOR,
        ),
        (
            {
                "mode": "join",
                "membership": "coordinator",
                "protocol": "consumer",
                "session_timeout_s": 9,
            },
            {},
            Membership.COORDINATOR,
        ),
    ],
)
def test_a_run_joins_the_group_that_is_named_or_that_of_the_place_where_its_brokers_are_found(
    ownership: dict[str, Any],
    source: dict[str, Any],
    membership: Membership | None,
) -> None:
    document = document_with("ownership", ownership)
    document["source"] |= source
    document["offsets"] = {
        "storage": "kafka" if membership is Membership.COORDINATOR else "zookeeper"
    }
    settings = parse_settings(document, path=PLACE)
    assert settings.membership is membership
    assert read_settings(write_settings(settings)).membership is membership, "and a report tells it"


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("source.dialect", "pulsar", "kafka or jafka"),
        ("ownership.mode", "share", "claim"),
        ("table.writer", "flink", "auto, spark or arrow"),
        ("table.codec", "gzip", "uncompressed, snappy, lz4 or zstd"),
    ],
)
def test_what_is_not_built_yet_is_refused_in_a_sentence(key: str, value: Any, says: str) -> None:
    error = refusal(key, value)
    assert error.where["key"] == key
    assert says in error.message


@pytest.mark.parametrize(
    "value",
    [
        "2026-01-31T00:00:00",
        "2026-01-31",
        1_769_817_600,
        1_769_817_600_000,
        "1769817600",
        "1769817600000",
        1.5,
        True,
        None,
        datetime(2026, 1, 31),
        datetime(2026, 1, 31).date(),
        "1969-12-31T23:59:59.999+00:00",
    ],
)
def test_a_time_that_is_not_one_instant_after_1970_is_refused(value: Any) -> None:
    assert refusal("source.start", {"timestamp": value}).where["key"] == "source.start.timestamp"


@pytest.mark.parametrize(
    "text", ["2026-01-31T01:00:00+01:00", "2026-01-31 00:00:00Z", '"2026-01-31T00:00:00+00:00"']
)
def test_a_time_with_an_offset_is_milliseconds_since_1970(text: str) -> None:
    document = document_with("source.start", {"timestamp": yaml.safe_load(text)})
    start = parse_settings(document).source.start
    assert isinstance(start, Timestamp)
    assert start.ms == 1_769_817_600_000


def test_a_reference_takes_its_value_from_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ZOO", "10.0.0.1:2181")
    (tmp_path / "key").write_text("s3cret\n")
    document = document_with("zookeeper.connect", "${env:ZOO}/kafka")
    document["spark"] = {"spark.password": f"${{file:{tmp_path}/key}}"}
    found = parse_settings(document)
    assert found.zookeeper.connect == "10.0.0.1:2181/kafka"
    assert found.spark == {"spark.password": "s3cret"}


@pytest.mark.parametrize(
    "reference",
    ["${env:NOT_SET_ANYWHERE}", "${file:/not/there}", "${file:/}", "${file:a\0b}", "${env:a\0b}"],
)
def test_a_reference_that_leads_nowhere_is_refused_with_the_path_of_its_key(reference: str) -> None:
    error = refusal("source.topics.allow", ["clicks", reference])
    assert error.where["key"] == "source.topics.allow.1"
    assert "refers to" in error.message


def test_a_wrong_value_that_came_by_reference_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter two")
    error = refusal("zookeeper.connect", "${env:SECRET}")
    assert "hunter" not in str(error)


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
        (
            {"path": "s3://bucket/clicks", "losses_path": "s3://bucket/clicks/losses"},
            "reports",
            "table.losses_path",
        ),
        ({"path": "clicks"}, "clicks_reports", None),
        ({"path": "reports/clicks"}, "reports", None),
        ({"path": "s3://reports/"}, "reports", None),
    ],
)
def test_nothing_else_is_kept_in_the_folder_of_a_table(
    tmp_path: Path, table: dict[str, str], report: str, key: str | None
) -> None:
    document = yaml.safe_load(LEAST)
    document["table"] = {name: path.format(here=tmp_path) for name, path in table.items()}
    document["report"] = {"path": report.format(here=tmp_path)}
    conf = tmp_path / "clicks.yaml"
    conf.write_text(yaml.safe_dump(document))
    if key is None:
        load_settings(conf)
        return
    with pytest.raises(SettingsError) as caught:
        load_settings(conf)
    assert (caught.value.where["key"], caught.value.where["path"]) == (key, conf)


@pytest.mark.parametrize(
    ("metrics_path", "words"),
    [
        ("clicks/metrics", "the metrics are in the folder of the table"),
        ("clicks_losses/x.prom", "the folder of the losses table"),
        ("s3://bucket/x", "a file or folder of this machine"),
        ("file:///x", "a file or folder of this machine"),
        ("~/x", "begins with ~"),
    ],
)
def test_metrics_are_of_this_machine_and_not_in_the_folder_of_a_table(
    tmp_path: Path, metrics_path: str, words: str
) -> None:
    conf = tmp_path / "clicks.yaml"
    conf.write_text(
        yaml.safe_dump(
            {**yaml.safe_load(LEAST), "table": {"path": "clicks"}, "metrics_path": metrics_path}
        )
    )
    with pytest.raises(SettingsError, match=words) as caught:
        load_settings(conf)
    assert caught.value.where["key"] == "metrics_path"


def test_a_relative_path_is_seen_from_the_folder_of_the_conf_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = yaml.safe_load(LEAST)
    document["table"] = {"path": "../warehouse/clicks", "losses_path": "losses"}
    document["spark"] = {"spark.password": "${file:key}"}
    folder = tmp_path / "conf"
    folder.mkdir()
    (folder / "key").write_text("s3cret")
    (folder / "clicks.yaml").write_text(yaml.safe_dump(document))
    (tmp_path / "link.yaml").symlink_to(folder / "clicks.yaml")
    for there, path in (
        (tmp_path, "conf/clicks.yaml"),
        (folder, "clicks.yaml"),
        (Path("/"), str(folder / "clicks.yaml")),
    ):
        monkeypatch.chdir(there)
        found = load_settings(path)
        assert found.table.path == str(tmp_path / "warehouse" / "clicks")
        assert found.table.losses_at == str(folder / "losses")
        assert found.report.path == str(folder / "reports")
        assert found.spark["spark.password"] == "s3cret"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").write_text("of the link")
    assert load_settings("link.yaml").table.path == str(tmp_path.parent / "warehouse" / "clicks")


@pytest.mark.parametrize(
    "path", ["s3://bucket/clicks", "file:/data/clicks", "file:///data/clicks", "/data/clicks"]
)
def test_an_absolute_path_and_an_object_stores_url_stay_as_they_are(
    path: str, tmp_path: Path
) -> None:
    document = yaml.safe_load(LEAST)
    document["table"] = {"path": path}
    (tmp_path / "clicks.yaml").write_text(yaml.safe_dump(document))
    assert load_settings(tmp_path / "clicks.yaml").table.path == path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        "a: [",
        "a: !!python/object:os.system {}",
        "a: !!timestamp x",
        "a: !!bool x",
        "a: !!float ''",
        "a: !!int ''",
        "a: 2026-13-45",
        "\t",
        "a: &x [*x]",
        "&x {version: *x}",
        "? {a: b}\n: c",
        "a: \x00",
        "--- 1\n--- 2",
        "1: 2",
        "[" * 1200,
    ],
)
def test_a_file_that_is_no_conf_is_refused_and_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(path)
    assert str(caught.value.where["path"]) == str(path)


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
        SettingsError,
        match=r"an alias \(\*\) is not taken here: write the value out, or put quotes",
    ) as caught:
        load_settings(path)
    number = path.read_text().splitlines().index(line) + 1
    assert f"line {number}, column {line.index('*') + 1}" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "first", "second"),
    [
        ("limits", "limits: {max_records_per_plan: 10}", "limits: {local_below_bytes: 0}"),
        ("version", "version: 1", "'version': 1"),
        ("deny", "report: {deny: 1, x: 2,", "  deny: 3}"),
        (
            "max_records_per_plan",
            "limits:\n  max_records_per_plan: 10",
            "  max_records_per_plan: 11",
        ),
        ("spark.driver.memory", "spark:\n  spark.driver.memory: 2g", "  spark.driver.memory: 4g"),
        ("a", "report:\n  - a: 1", "    a: 2"),
    ],
)
def test_a_key_that_stands_twice_in_a_conf_is_refused_with_both_lines(
    tmp_path: Path, key: str, first: str, second: str
) -> None:
    path = tmp_path / "clicks.yaml"
    path.write_text(f"# a comment\n{first}\n{second}\n")
    lines = path.read_text().count("\n")
    with pytest.raises(
        SettingsError,
        match=f"the key {key} stands twice, first in line {lines - 1};.*: line {lines}, column",
    ) as caught:
        load_settings(path)
    assert (caught.value.exit_code, caught.value.where["path"]) == (2, path)


def test_a_second_section_of_one_name_does_not_take_the_place_of_the_first_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "clicks.yaml"
    path.write_text(
        f"{LEAST}\nlimits: {{max_records_per_plan: 10}}\nlimits: {{local_below_bytes: 0}}\n"
    )
    with pytest.raises(SettingsError, match="the key limits stands twice"):
        load_settings(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: 1\n<<: {a: 2, b: 3}", {"a": 1, "b": 3}),
        ("a: {b: 1}\nc: {b: 1}", {"a": {"b": 1}, "c": {"b": 1}}),
        ("- a: 1\n- a: 2", [{"a": 1}, {"a": 2}]),
        ("", None),
    ],
)
def test_a_key_may_stand_in_several_mappings_and_over_one_that_is_merged(
    text: str, found: object
) -> None:
    assert document_of(text) == found


def test_a_text_that_begins_with_a_star_is_taken_in_quotes() -> None:
    assert document_of("a: '*'") == {"a": "*"}


def test_a_file_that_cannot_be_read_is_refused_and_named(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"pipeline: caf\xe9")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "latin", "a\0b"):
        with pytest.raises(SettingsError) as caught:
            load_settings(path)
        assert str(caught.value.where["path"]) == str(path)


@pytest.mark.parametrize(
    ("topic", "admitted"),
    [("clicks", True), ("click-de", True), ("click-test", False), ("my-clicks", False)],
)
def test_topics_match_whole_and_deny_wins(topic: str, admitted: bool) -> None:
    assert parse(WHOLE).source.topics.admits(topic) is admitted


@pytest.mark.parametrize(
    ("topic", "said"), [("click-de", True), ("my-click-de", False), ("clicks", False)]
)
def test_topics_that_an_operator_says_are_compacted_match_whole(topic: str, said: bool) -> None:
    assert parse(WHOLE).source.is_assumed_compacted(topic) is said


@pytest.mark.parametrize(
    "key",
    [
        "topics: {allow: ['%s']}",
        "topics: {allow: [clicks], deny: ['%s']}",
        "topics: {allow: [clicks]}, assume_compacted: ['%s']",
    ],
)
@pytest.mark.parametrize("expression", ["or[c-e&&[^c]]ers", "[a[[b]]", "clicks|[a-z&&b]"])
def test_an_expression_that_java_and_python_read_in_two_ways_is_refused(
    key: str, expression: str
) -> None:
    text = LEAST.replace('topics: {allow: ["clicks"]}', key % expression)
    with pytest.raises(SettingsError, match="one thing in Java and another in Python"):
        parse(text)


def test_expressions_in_plain_letters_name_topics_that_must_exist() -> None:
    assert parse(WHOLE).source.topics.literal_names == ("clicks",)


@pytest.mark.parametrize(("address", "parts"), [("a:1", ("a", 1)), ("[::1]:65535", ("::1", 65535))])
def test_an_address_is_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.datetimes(),
    st.dates(),
    st.binary(max_size=4),
    st.sampled_from(
        [
            "earliest",
            "latest",
            "${env:NO}",
            "${file:/no}",
            "a:1",
            "follow",
            "claim",
            "1e999",
            "\ud800",
            "${env:\ud800}",
        ]
    ),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(SCALARS.filter(lambda k: k == k), inner, max_size=3),
    ),
    max_leaves=6,
)
KEYS = [
    f"{section}.{name}" if section else name
    for section, names in [("", yaml.safe_load(WHOLE))]
    + [(s, v) for s, v in yaml.safe_load(WHOLE).items() if isinstance(v, dict)]
    for name in names
    if section != "spark"
] + ["source.topics.allow", "source.topics.deny", "source.start.timestamp"]


@settings(deadline=None, max_examples=100)
@given(key=st.sampled_from(KEYS), value=ANYTHING)
@example(key="spark", value={b"": "x"})
def test_any_value_of_any_key_gives_settings_or_a_settings_error(key: str, value: Any) -> None:
    document = yaml.safe_load(WHOLE)
    section = document
    *sections, last = key.split(".")
    for name in sections:
        section = section[name]
    section[last] = value
    try:
        assert isinstance(parse_settings(document), Settings)
    except SettingsError as error:
        assert error.message and str(error)


@settings(deadline=None)
@given(ANYTHING)
def test_any_document_gives_settings_or_a_settings_error(document: Any) -> None:
    with pytest.raises(SettingsError):
        parse_settings(document)


@settings(deadline=None)
@given(
    text=st.text(st.sampled_from(list("abz09:-{}[]\"'!&*?|>%@`#, \n.~")), max_size=40),
    at=st.integers(0, len(WHOLE)),
)
def test_any_text_gives_settings_or_a_settings_error(
    tmp_path_factory: pytest.TempPathFactory, text: str, at: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(WHOLE[:at] + text + WHOLE[at:], encoding="utf-8")
    try:
        assert isinstance(load_settings(path), Settings)
    except SettingsError as error:
        assert error.where["path"]
