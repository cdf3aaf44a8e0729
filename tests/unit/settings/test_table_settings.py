"""The section `table`, and the keys that have another or no meaning on Jafka."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from etl.errors import SettingsError
from etl.model.partitions import BrokerFamily, Isolation
from etl.settings.choices import OnNoLeader, StartAt, check_place, lies_in, place_of
from etl.settings.load import placed_by_name
from etl.settings.sections import Settings
from etl.settings.table import TablePath, account_of, store_of, untried
from tests.builders import plain_settings


@pytest.mark.parametrize("name", ["lake.clicks", "main.lake.clicks", "main.lake-1.Klicks_ü"])
def test_a_name_replaces_a_path_and_a_read_of_the_path_reports_that_it_is_not_resolved_yet(
    name: str,
) -> None:
    table = plain_settings(table={"path": None, "name": name}).table
    assert (table.called, table.is_placed) == (name, False)
    with pytest.raises(LookupError, match="not looked up yet"):
        assert table.path
    with pytest.raises(KeyError, match="TableSettings has no field path"):
        table.model_copy(update={"path": "/y"})


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({}, "table.path"),
        ({"name": None}, "table.path"),
        ({"name": "lake.clicks", "path": "/x"}, "table.path"),
        ({"name": "clicks"}, "table.name"),
        ({"name": "a.b.c.d"}, "table.name"),
        ({"name": "delta.`/x`"}, "table.name"),
        ({"name": "lake.cl icks"}, "table.name"),
    ],
)
def test_one_of_the_two_must_be_there_and_a_name_has_its_schema(
    table: dict[str, Any], key: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        plain_settings(table={"path": None, **table})
    assert refused.value.where["key"] == key


def test_the_location_from_spark_keeps_the_stores_settings_and_names_the_losses_table() -> None:
    named = {"path": None, "name": "lake.clicks", "store": {"region": "eu-1"}}
    placed = placed_by_name(plain_settings(table=named), "s3a://bucket/clicks")
    assert (placed.table.path, placed.table.called) == ("s3a://bucket/clicks", "lake.clicks")
    assert placed.table.losses_at == "s3a://bucket/clicks_losses"
    assert store_of(placed.table.path).region == store_of(placed.table.losses_at).region == "eu-1"


@pytest.mark.parametrize(
    ("place", "table", "more"),
    [
        ("/wh/clicks", {"store": {"region": "eu-1"}}, {}),
        ("/wh/clicks", {}, {"report": {"path": "/wh/clicks/reports"}}),
        ("dbfs:/wh/clicks", {}, {}),
        ("/wh/clicks", {"losses_path": "/wh"}, {}),
    ],
)
def test_a_place_that_the_conf_does_not_fit_is_refused_once_it_is_known(
    place: str, table: dict[str, Any], more: dict[str, Any]
) -> None:
    named = {"path": None, "name": "lake.clicks", **table}
    with pytest.raises(SettingsError):
        placed_by_name(plain_settings(table=named, **more), place)


@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("s3a://b/clicks", "s3://b/clicks"),
        ("s3://b/clicks/_delta_log", "s3a://b/clicks"),
        ("abfs://c@a/x", "abfss://c@a/x/"),
    ],
)
def test_a_place_in_a_store_lies_in_another_one_whichever_scheme_names_them(
    path: str, other: str
) -> None:
    assert lies_in(path, other) and not lies_in(path, other.replace("c", "d"))


AMBIGUOUS = [
    " s3://bucket/clicks",
    "s3://bucket/clicks ",
    "a b://clicks",
    "/a\0b",
    "/a\tb",
    "/a\nb",
]
AMBIGUOUS += (
    r"~/clicks s3:/bucket/clicks dbfs:/clicks file:clicks file://host/clicks ://clicks "
    r"memory:///clicks /a\b/clicks S3://bucket/clicks s3://bucket/a%20b s3://bucket/a?b "
    r"s3://bucket/a#b s3://bucket/a\b abfss://c@a.dfs.core.windows.net/a%b s3://bucket//clicks "
    r"s3://key:word@bucket/a s3a://key@bucket/a abfss://c:word@a.dfs.core.windows.net/a "
    r"s3://bucket/a/../b hdfs://host:9000/./a s3://bucket/a//b/"
).split()


@pytest.mark.parametrize("path", AMBIGUOUS)
def test_what_would_be_taken_for_another_place_than_was_meant_is_refused(path: str) -> None:
    with pytest.raises(ValueError):
        check_place(path)


CLEAR = ["/a b", "s3://bucket/a b/c-d_e=f/"]
CLEAR += (
    "clicks a:b/c s3://bucket/clicks file:///clicks file:/clicks x/s3:/y 50% s3://bucket "
    "s3://bucket/ü s3://bucket/a@b hdfs://host:9000/a abfss://c@a.dfs.core.windows.net/a"
).split()


@pytest.mark.parametrize("path", CLEAR)
def test_what_can_only_be_meant_in_one_way_is_taken(path: str) -> None:
    assert check_place(path) == path


AZURE = "abfss://lake@acme.dfs.core.windows.net/clicks"
KEYS = {"access_key": "${env:KEY}", "secret_key": "${file:/run/secrets/s3}"}


def conf(path: str = "s3://lake/clicks", **store: Any) -> Settings:
    return plain_settings(table={"path": path, "store": store})


@pytest.mark.parametrize(
    ("path", "store", "key"),
    [
        ("s3://lake/t", {"account": "acme"}, "account"),
        ("s3a://lake/t", {"account_key": "${env:K}"}, "account_key"),
        (AZURE, {"region": "eu"}, "region"),
        (AZURE, KEYS, "access_key"),
        ("hdfs://n:8020/t", {"endpoint": "https://h"}, "endpoint"),
        ("/data/t", {"region": "eu"}, "region"),
        ("gs://lake/t", {"endpoint": "https://h"}, "endpoint"),
        ("s3://lake/t", {"access_key": "${env:K}"}, "secret_key"),
        ("s3://lake/t", {"secret_key": "${env:K}"}, "access_key"),
        ("s3://lake/t", {"endpoint": "http://h:9000"}, "endpoint"),
        (AZURE, {"account": "other"}, "account"),
        ("s3://lake/t", {"endpoint": "h:9000"}, "endpoint"),
        ("s3://lake/t", {"endpoint": "https://me:pw@h"}, "endpoint"),
        ("s3://lake/t", {"allow_http": "yes"}, "allow_http"),
        ("s3://lake/t", {"allow_http": 1}, "allow_http"),
        ("s3://lake/t", {"region": True}, "region"),
    ],
)
def test_keys_that_the_store_does_not_take_are_refused_by_name(
    path: str, store: dict[str, Any], key: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        conf(path, **store)
    assert caught.value.where["key"] == f"table.store.{key}" and caught.value.exit_code == 2


@pytest.mark.parametrize("path", ["gs://lake/t", "wasbs://lake@acme/t"])
def test_a_store_on_which_nothing_was_ever_tried_is_taken_with_a_warning(path: str) -> None:
    assert "is supported but not tested" in (untried(conf(path).table.path) or "")
    for tried in ("/data/t", "file:///data/t", "s3a://lake/t", AZURE, "hdfs://n:8020/t"):
        assert untried(conf(tried).table.path) is None


def test_a_path_of_azure_names_its_account() -> None:
    assert account_of(AZURE) == "acme"
    assert conf(AZURE, account="acme", account_key="${env:K}").table.store.account == "acme"
    with pytest.raises(SettingsError) as caught:
        conf("abfss://acme.dfs.core.windows.net/t")
    assert caught.value.where["key"] == "table.path"


def test_both_tables_carry_the_store_and_are_their_paths_to_all_else() -> None:
    table = conf("s3://lake/t/", region="eu-central-1").table
    assert (table.path, table.losses_at) == ("s3://lake/t/", "s3://lake/t_losses")
    again = pickle.loads(pickle.dumps(table.path))
    regions = {store_of(path).region for path in (table.path, table.losses_at, again)}
    assert regions == {"eu-central-1"}
    assert type(f"{table.path}") is str and store_of(f"{table.path}").keys_set == ()
    assert isinstance(again, TablePath)


@pytest.mark.parametrize(
    "path",
    [
        "/warehouse/clicks/",
        "/warehouse//clicks",
        "/warehouse/old/../clicks",
        "file:///warehouse/clicks",
    ],
)
def test_a_place_is_the_same_however_it_is_written(path: str) -> None:
    assert place_of(path) == place_of("/warehouse/clicks")
    assert place_of("s3://bucket/clicks/") == place_of("s3://bucket/clicks")
    assert place_of("s3://bucket/clicks") != place_of("s3://bucket/clicks2")


JAFKA = {"assume_cluster_id": "old", "broker_type": "jafka"}


def refusal(**sections: Any) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        plain_settings(**{"source": JAFKA, **sections})
    assert caught.value.exit_code == 2
    return caught.value


def test_the_least_conf_for_jafka_uses_no_feature_that_its_brokers_lack() -> None:
    source = plain_settings(source=JAFKA).source
    assert (source.broker_type, source.is_physical) == (BrokerFamily.JAFKA, True)
    assert source.isolation_level is Isolation.READ_UNCOMMITTED
    assert source.on_no_leader is OnNoLeader.SKIP
    assert not plain_settings(source={**JAFKA, "broker_type": "kafka"}).source.is_physical


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("bootstrap_servers", "a:9092", "registered in the ZooKeeper"),
        ("starting_offsets", "2026-01-31T00:00:00+00:00", "one too"),
        ("isolation_level", "read_committed", "no transactions"),
        ("on_no_leader", "fail", "one broker only"),
        ("assume_compacted", ["clicks"], "no compaction"),
        ("assume_cluster_id", None, "no cluster id"),
    ],
)
def test_what_brokers_of_byte_positions_cannot_do_is_refused_with_the_reason(
    key: str, value: Any, why: str
) -> None:
    error = refusal(source={**JAFKA, key: value})
    assert error.where["key"] == f"source.{key}"
    assert why in error.message


def test_the_same_keys_are_taken_where_they_ask_for_what_there_is() -> None:
    keys: dict[str, Any] = {
        "bootstrap_servers": None,
        "starting_offsets": "latest",
        "isolation_level": "read_uncommitted",
        "on_no_leader": "skip",
        "assume_compacted": [],
    }
    source = plain_settings(source={**JAFKA, **keys}).source
    assert source.starting_offsets is StartAt.LATEST


def test_records_cannot_be_counted_from_byte_positions() -> None:
    by_records = refusal(limits={"max_records_per_plan": 10})
    assert by_records.where["key"] == "limits.max_records_per_plan"
    by_bytes = plain_settings(source=JAFKA, limits={"max_bytes_per_plan": 10})
    assert by_bytes.limits.max_bytes_per_plan == 10


def test_a_date_of_the_record_needs_a_transform_that_gives_one() -> None:
    table = {"partition_by": ["topic", "event_date"]}
    assert refusal(table=table).where["key"] == "table.partition_by"
    plain_settings(source=JAFKA, table=table, transform="package.module:function")


def test_all_incompatible_keys_are_reported_at_once() -> None:
    source = {**JAFKA, "bootstrap_servers": "a:9092", "isolation_level": "read_committed"}
    error = refusal(source=source, limits={"max_records_per_plan": 10})
    first, *more = error.message.splitlines()
    assert first == "With source.broker_type: jafka, 3 keys are not supported:"
    assert [line.split()[0] for line in more] == [
        "source.bootstrap_servers",
        "source.isolation_level",
        "limits.max_records_per_plan",
    ]
