"""`etl init`: the conf is valid, each key has a reason, and no existing file is overwritten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from etl.commands import init
from etl.commands.init import (
    InitFindings,
    InitRequest,
    choose_keys,
    conf_text,
    propose_broker_security,
    write_first_conf,
)
from etl.errors import EtlError, NotKafka, SettingsError
from etl.io.brokers.connection import closed_on_first_request, not_kafka
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.partitions import BrokerFamily
from etl.settings.load import load_settings, parse_change
from tests.command_result import refused, run_etl

REQUEST = InitRequest("zk:2181/kafka", None, ("clicks",), "warehouse/clicks")
SEEN = InitFindings(BrokerFamily.KAFKA, "an-id", {"clicks": 8}, 1000, 3, 0, None, None)


def written(folder: Path, prompts: InitRequest = REQUEST, seen: InitFindings = SEEN) -> Path:
    path = folder / prompts.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(conf_text(choose_keys(prompts, seen)))
    return path


def why(prompts: InitRequest, seen: InitFindings) -> dict[str, str]:
    return {one.key: one.why for one in choose_keys(prompts, seen)}


def test_the_conf_is_taken_and_names_places_as_its_own_folder_sees_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = load_settings(written(tmp_path))
    assert (found.pipeline, found.group.id) == ("clicks", "etl-clicks")
    source = found.source
    assert (source.assume_cluster_id, source.bootstrap_servers) == (None, None)
    assert (found.zookeeper.connect, source.topics) == ("zk:2181/kafka", ("clicks",))
    assert found.table.path == str(tmp_path / "warehouse" / "clicks")
    assert found.report.path == str(tmp_path / "reports")


def test_each_key_has_its_reason_above_it_and_the_first_line_leads_an_editor_to_the_schema(
    tmp_path: Path,
) -> None:
    lines = written(tmp_path).read_text().splitlines()
    assert lines[0] == "# yaml-language-server: $schema=pipeline.schema.json"
    above = [
        before.lstrip()[:1]
        for before, line in zip(lines, lines[1:])
        if ": " in line and not line.lstrip().startswith("#")
    ]
    assert above == ["#"] * len(choose_keys(REQUEST, SEEN))


@pytest.mark.parametrize(
    ("change", "name", "path"),
    [
        ({}, "clicks", "conf/clicks.yaml"),
        ({"topics": ("a", "b")}, "clicks", "conf/clicks.yaml"),
        ({"topics": ("a.*",), "table": "s3://b/t/"}, "t", "conf/t.yaml"),
        ({"out": Path("x/mine.yaml")}, "mine", "x/mine.yaml"),
        ({"pipeline": "named"}, "named", "conf/named.yaml"),
        ({"topics": ("é è",), "table": "/é"}, "pipeline", "conf/pipeline.yaml"),
    ],
)
def test_a_pipeline_has_the_given_name_or_that_of_its_file_topic_or_table(
    change: dict[str, Any], name: str, path: str
) -> None:
    request = replace(REQUEST, **change)
    assert (request.name, str(request.path)) == (name, path)


def test_brokers_without_a_cluster_id_get_a_name_and_those_with_one_need_none(
    tmp_path: Path,
) -> None:
    seen = replace(SEEN, dialect=BrokerFamily.JAFKA, cluster_id=None)
    source = load_settings(written(tmp_path, REQUEST, seen)).source
    assert (source.assume_cluster_id, source.broker_type) == ("clicks", BrokerFamily.JAFKA)
    reasons = why(REQUEST, seen)
    assert "must stay" in reasons["source.assume_cluster_id"]
    assert "1,000 bytes" in reasons["source.starting_offsets"]
    with pytest.raises(SettingsError, match="an-id"):
        choose_keys(replace(REQUEST, cluster="mine"), SEEN)


def test_existing_offsets_plans_and_tables_are_reported() -> None:
    new = why(REQUEST, SEEN)
    assert "none of these topics yet" in new["group"]
    assert "the table does not exist yet, the first run creates it" in new["table.path"]
    found = why(REQUEST, replace(SEEN, committed=3, newest_plan=7, table_version=12))
    assert "3 partitions" in found["group"]
    assert "Plan 7" in found["pipeline"] and "version 12" in found["table.path"]


def test_a_text_that_yaml_would_read_as_something_else_comes_back_as_it_was() -> None:
    topics, table = ("no", "2026-01-31", "a: *b", "#x"), "/a 'b' \"c\" é"
    request = replace(REQUEST, topics=topics, table=table, pipeline="0x1f")
    found = yaml.safe_load(conf_text(choose_keys(request, SEEN)))
    assert (found["source"]["topics"], found["table"]["path"]) == ([*topics], table)
    assert found["pipeline"] == request.name


def test_an_existing_file_is_not_overwritten_and_no_server_is_contacted(tmp_path: Path) -> None:
    path = tmp_path / "clicks.yaml"
    path.write_text("mine")
    with pytest.raises(SettingsError, match="The file exists, and is not overwritten"):
        write_first_conf(replace(REQUEST, out=path, zookeeper="127.0.0.1:1"))
    assert path.read_text() == "mine"


ANYWHERE = ("--zookeeper", "127.0.0.1:1", "--topic", "t", "--set")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--topic", "t", "--bootstrap-servers", "127.0.0.1:1"), "zookeeper"),
        (("--topic", "t", "--zookeeper", "nowhere"), "zookeeper.connect"),
        (("--zookeeper", "127.0.0.1:1", "--topic", "["), "source.topics"),
        ((*ANYWHERE, "group=a b"), "group"),
        ((*ANYWHERE, "source.starting_offsets=latest"), "`etl init` chooses it, or has an option"),
        ((*ANYWHERE, "limits.max_records_per_plan=1"), "only keys of source, zookeeper and table"),
        ((*ANYWHERE, "source.security.sasl.password=hunter2"), "must be a reference, ${env:NAME}"),
        ((*ANYWHERE, "source.nothing=1"), "unknown key"),
    ],
)
def test_missing_or_wrong_options_are_rejected_before_any_request(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    places = ("--table", str(tmp_path / "table"), "--output", str(tmp_path / "clicks.yaml"))
    result = run_etl("init", *words, *places, "--json")
    refused(result, 2, message)
    assert "hunter2" not in result.err + result.out and list(tmp_path.iterdir()) == []


KEYS = (
    "source.security.sasl.password=${file:secrets/kafka} source.security.protocol=SASL_SSL "
    "source.security.tls.ca_file=ca.pem source.security.sasl.mechanism=PLAIN "
    "source.security.sasl.username=etl source.listener=INSIDE zookeeper.session_timeout_s=20 "
    "table.writer=arrow"
).split()


def test_given_keys_are_written_into_their_sections_with_files_relative_to_the_conf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    request = replace(REQUEST, keys=tuple(map(parse_change, KEYS)))
    settings = load_settings(written(tmp_path, request))
    way_in = settings.source.way_in
    assert (way_in.protocol.value, way_in.listener) == ("SASL_SSL", "INSIDE")
    assert way_in.login and way_in.login.password
    assert Path(str(way_in.tls.ca_file)).resolve() == tmp_path / "ca.pem"
    assert Path(str(way_in.login.password.file)).resolve() == tmp_path / "secrets" / "kafka"
    assert (settings.zookeeper.session_timeout_s, settings.table.writer.value) == (20, "arrow")


MECHANISM = "--set source.security.sasl.mechanism=MECHANISM"
PROPOSED = "Pass to `etl init`: --set source.security.protocol=SASL_SSL"


@pytest.mark.parametrize(
    ("error", "broker_type", "is_proposed"),
    [
        (not_kafka("b1:9092", b"\x15\x03\x03\0"), BrokerFamily.KAFKA, True),
        (closed_on_first_request("b1:9092", "closed", "Check it"), BrokerFamily.KAFKA, True),
        (closed_on_first_request("b1:9092", "closed", "Check it"), BrokerFamily.JAFKA, False),
        (not_kafka("b1:9092", b"HTTP"), BrokerFamily.KAFKA, False),
        (not_kafka("b1:9092", b"\0\0\0\2"), BrokerFamily.KAFKA, False),
        (not_kafka("b1:9092", b"SSH-"), BrokerFamily.KAFKA, False),
    ],
)
@pytest.mark.parametrize("are_listeners_readable", [True, False])
def test_connection_security_is_proposed_only_if_its_lack_can_be_the_cause(
    monkeypatch: pytest.MonkeyPatch,
    are_listeners_readable: bool,
    error: NotKafka,
    broker_type: BrokerFamily,
    is_proposed: bool,
) -> None:
    def registrations(zookeeper: Any, broker_type: BrokerFamily) -> dict[int, bytes]:
        if not are_listeners_readable:
            raise EtlError("The session with ZooKeeper expired", action="Check it")
        return {}

    monkeypatch.setattr(init, "read_registrations", registrations)
    with (
        pytest.raises(NotKafka) as raised,
        init._describe_missing_security(REQUEST, cast(ZooKeeper, None), broker_type),
    ):
        raise error
    assert (raised.value.message, raised.value.where) == (error.message, error.where)
    assert (PROPOSED in raised.value.action) == is_proposed
    assert raised.value.action.startswith(error.action)


@pytest.mark.parametrize(
    ("listeners", "message", "unsaid"),
    [
        (
            [("INSIDE", "SASL_SSL"), ("OUTSIDE", "SASL_SSL"), ("SSL", "SSL")],
            "protocol=SASL_SSL --set source.listener=INSIDE --set",
            "=SSL ",
        ),
        (
            [("SSL", "SSL"), ("X", "SASL_PLAINTEXT")],
            "--set source.security.protocol=SSL --set source.security.tls.ca_file=PEM",
            "mechanism",
        ),
        ([("X", "SASL_PLAINTEXT")], f"protocol=SASL_PLAINTEXT {MECHANISM}", "ca_file"),
        ([], f"protocol=SASL_SSL {MECHANISM}", "listener"),
    ],
)
def test_the_advice_on_connection_security_follows_the_registered_listeners(
    listeners: list[tuple[str, str]], message: str, unsaid: str
) -> None:
    found = propose_broker_security(listeners)
    assert message in found and unsaid not in found
