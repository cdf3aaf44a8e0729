"""A secret in a conf is a reference until it is used."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
from kazoo.protocol.serialization import SASL as SaslRequest
from kazoo.protocol.serialization import Auth as AuthRequest
from kazoo.protocol.serialization import Connect

from etl.errors import SettingsError
from etl.io.brokers.authentication import _SaslLogin
from etl.io.tls import wrap
from etl.io.zookeeper.login_and_acl import said_of
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.model.security import (
    Access,
    Auth,
    LocalFile,
    Login,
    Mechanism,
    Scheme,
    SecretRef,
    Security,
    SecurityProtocol,
    Tls,
    parse_reference,
)
from etl.report.incident import write_settings
from etl.settings import secrets
from etl.settings.conf_file import read_document
from etl.settings.load import changed, parse_change, parse_settings
from etl.settings.secrets import login_text, place_of_file, resolve_secret
from tests.builders import plain_settings

SECRET = "hunter2-of-all"


SCRAM = {"mechanism": "SCRAM-SHA-512", "username": "etl", "password": "${file:secrets/kafka}"}

SASL = {"scheme": "sasl", "username": "etl", "password": "${env:A_PASSWORD}"}
STORE = {"access_key": "${env:A_PASSWORD}", "secret_key": "${file:/run/secrets/s3}"}


def conf(**sections: Any) -> dict[str, Any]:
    return {
        "pipeline": "clicks",
        "group": "g",
        "zookeeper": {"connect": "a:2181/kafka"},
        "source": {"topics": ["clicks"]},
        "table": {"path": "warehouse/clicks"},
        **sections,
    }


def broker_login(**sasl: Any) -> dict[str, Any]:
    return {"security": {"protocol": "SASL_SSL", "sasl": {**SCRAM, **sasl}}}


def store_keys(**keys: Any) -> dict[str, Any]:
    return {"path": "s3://lake/clicks", "store": {**STORE, **keys}}


OAUTH = {"mechanism": "OAUTHBEARER", "token": SECRET}
KEY = {"cert_file": "c.pem", "key_password": SECRET}
PLAIN_SECRETS: list[tuple[str, dict[str, Any]]] = [
    ("source", broker_login(password=SECRET)),
    ("source", broker_login(password=SECRET + "-${env:PATH}")),
    ("source", broker_login(password=[SECRET])),
    ("source", broker_login(pasword=SECRET)),
    ("source", {"security": {"protocol": "SASL_SSL", "sasl": SECRET}}),
    ("source", {"security": {"protocol": "SASL_SSL", "sasl": OAUTH}}),
    ("source", {"security": {"protocol": "SSL", "tls": KEY}}),
    ("source", {"security": SECRET}),
    ("zookeeper", {"auth": {**SASL, "password": SECRET}}),
    ("zookeeper", {"auth": {**SASL, "pasword": SECRET}}),
    ("zookeeper", {"auth": {**SASL, "password": [SECRET]}}),
    ("zookeeper", {"auth": SECRET}),
    ("zookeeper", {"tls": KEY}),
    ("table", store_keys(secret_key=SECRET)),
    ("table", store_keys(secret_key=f"{SECRET}${{env:KEY}}")),
    ("table", store_keys(secret_key={SECRET: 1})),
]


@pytest.mark.parametrize(("section", "keys"), PLAIN_SECRETS)
def test_a_plain_secret_in_a_conf_is_rejected_and_shown_nowhere(
    section: str, keys: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError) as refused:
        plain_settings(**{section: keys})
    error = refused.value
    shown = "".join(traceback.format_exception(error)) + repr(error) + str(error.as_json())
    assert SECRET not in shown
    below = {"source": "source.security", "zookeeper": "zookeeper", "table": "table.store"}
    assert error.where["key"].startswith(below[section]) and error.exit_code == 2


def test_neither_settings_nor_a_session_that_has_not_begun_hold_a_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_PASSWORD", SECRET)
    login = broker_login(username="${env:A_PASSWORD}", password="${env:A_PASSWORD}")
    settings = plain_settings(source=login, zookeeper={"auth": SASL}, table=store_keys())
    way_in, access = settings.source.way_in, settings.zookeeper.access
    session = ZooKeeper(settings.zookeeper.connect, access=access)
    shown = [repr(settings), str(settings.model_dump()), settings.model_dump_json()]
    shown += [str(write_settings(settings)), str(pickle.dumps(settings)), repr(access)]
    shown += [repr(way_in), str(way_in), str(pickle.dumps(way_in))]
    shown += [str(vars(session)), str(vars(session.client)), str(vars(session.client._connection))]
    assert not any(SECRET in each for each in shown)
    assert "${env:A_PASSWORD}" in repr(way_in)
    assert way_in.login
    reference = SecretRef("env", "A_PASSWORD")
    assert way_in.login.password == way_in.login.username == reference
    assert settings.table.store.access_key == reference
    assert resolve_secret(reference, "source.security.sasl.password") == SECRET
    again = pickle.loads(pickle.dumps(way_in))
    assert again == way_in and hash(again) == hash(way_in)


def test_a_login_that_a_program_made_of_plain_secrets_shows_none() -> None:
    made: Any = Security(
        SecurityProtocol.SASL_SSL,
        None,
        Tls(key_password=SECRET),  # type: ignore[arg-type]
        Login(Mechanism.PLAIN, "etl", SECRET, SECRET),  # type: ignore[arg-type]
    )
    assert SECRET not in f"{made} {made!r} {made.login!r} {made.tls!r} {[made]}"
    assert "etl" in repr(made)
    shown = (
        repr(Login(Mechanism.OAUTHBEARER, token="package.tokens:token")),
        repr(Login(Mechanism.OAUTHBEARER, token="aws-msk:eu-west-1")),
    )
    assert "package.tokens:token" in shown[0] and "aws-msk:eu-west-1" in shown[1]


@pytest.mark.parametrize(
    "login",
    [
        Login(Mechanism.PLAIN, "etl", f"{SECRET}\0"),  # type: ignore[arg-type]
        Login(Mechanism.OAUTHBEARER, token=SECRET),
        Login(Mechanism.OAUTHBEARER, token=f"{SECRET}:no"),
        Login(Mechanism.PLAIN, f"{SECRET}\0", SecretRef("env", "PATH")),
    ],
)
def test_a_mistake_in_a_plain_secret_is_reported_without_it(login: Login) -> None:
    with pytest.raises(SettingsError) as refused:
        _SaslLogin(login, "localhost", "localhost:9092", time.monotonic() + 5)
    assert SECRET not in f"{refused.value} {refused.value.as_json()}"
    assert refused.value.where["key"].startswith("source.security.sasl.")


def test_a_missing_secret_is_reported_with_its_key_the_machine_and_the_place(
    tmp_path: Path,
) -> None:
    there, latin, pipe, absent = (tmp_path / name for name in ("there", "latin", "pipe", "absent"))
    empty = tmp_path / "empty"
    empty.write_text("\n")
    there.write_text(f"\ufeff{SECRET}\r\n")
    latin.write_bytes(b"\xff\xfe")
    os.mkfifo(pipe)
    assert resolve_secret(SecretRef("file", "there", str(tmp_path)), "k") == SECRET
    for secret, message in (
        (SecretRef("file", "absent", str(tmp_path)), f"the file {absent}, which does not exist"),
        (SecretRef("file", str(empty)), f"the file {empty}, which is empty"),
        (SecretRef("env", "NO_SUCH"), "the environment variable NO_SUCH, which is not set"),
        (SecretRef("file", str(tmp_path)), ".*, which cannot be read: Is a directory"),
        (SecretRef("file", str(latin)), ".*, which cannot be read: it is not UTF-8"),
        (SecretRef("file", str(pipe)), ".*, which cannot be read: it is not a regular file"),
    ):
        with pytest.raises(SettingsError, match=f"k refers to {message}") as refused:
            resolve_secret(secret, "k")
        where = refused.value.where
        assert refused.value.exit_code == 2 and where["key"] == "k" and where["host"]
    with pytest.raises(SettingsError, match="it is not a regular file"), socket.socket() as none:
        wrap(none, "b", Tls(LocalFile(str(pipe))), "b:1")


def test_a_file_that_is_missing_beside_the_conf_is_only_found_among_those_that_spark_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, shipped, own = (tmp_path / name for name in ("work", "shipped", "secrets/kafka"))
    for folder in (work, shipped):
        folder.mkdir()
        (folder / "kafka").write_text(SECRET)
    monkeypatch.chdir(work)
    monkeypatch.setattr(secrets, "_shipped", [])
    relative = SecretRef("file", "secrets/kafka", str(tmp_path))
    with pytest.raises(SettingsError, match=f"refers to the file {own}, which does not exist"):
        resolve_secret(relative, "k")
    with pytest.raises(SettingsError) as refused, socket.socket() as unconnected:
        wrap(unconnected, "b", Tls(relative.file), "b:1")
    assert refused.value.where["file"] == str(own)
    secrets.use_shipped_files(str(shipped))
    assert place_of_file(relative.file) == f"{shipped}/kafka"
    assert place_of_file(LocalFile(str(own), str(tmp_path))) == str(own)
    own.parent.mkdir()
    own.write_text("the conf's own")
    assert resolve_secret(relative, "k") == "the conf's own"


@pytest.mark.parametrize(
    ("value", "content", "wrong"),
    [
        (SecretRef("file", "secret"), "", "username refers to the file secret, which is empty"),
        (SecretRef("file", "secret"), "a\0b", "username, from ${file:secret}, contains a NUL"),
        ("", "", "username is empty"),
        ("a\0b", "", "username contains a NUL"),
    ],
)
def test_values_that_no_login_can_send_are_rejected_by_their_key_before_any_connection(
    value: str | SecretRef,
    content: str,
    wrong: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text(content)
    with pytest.raises(SettingsError, match="is empty|contains a NUL") as of_broker:
        login_text(value, "source.security.sasl.username")
    with pytest.raises(SettingsError, match="is empty|contains a NUL") as of_zookeeper:
        said_of(Access(None, Auth(Scheme.SASL, value)), "username")
    for error, key in (
        (of_broker.value, "source.security.sasl.username"),
        (of_zookeeper.value, "zookeeper.auth.username"),
    ):
        assert wrong in error.message and error.where["key"] == key and "a\0b" not in str(error)


@pytest.mark.parametrize(
    "text", ["", "secret", "${env:}", "${env:A}b", "${vault:A}", "$env:A", "${env:A}${env:B}"]
)
def test_text_that_is_no_whole_reference_is_none(text: str) -> None:
    assert parse_reference(text) is None


@pytest.mark.parametrize(
    "line",
    ["password: hunter9: foo", "password: @hunter9", "password: 'hunter9", "password: [hunter9"],
)
def test_a_password_in_invalid_yaml_is_not_shown(line: str, tmp_path: Path) -> None:
    conf = tmp_path / "conf.yaml"
    conf.write_text(f"version: 1\n{line}\n")
    with pytest.raises(SettingsError, match=r"not valid YAML: .*line \d") as error:
        read_document(conf, "the conf file")
    assert "hunter9" not in str(error.value)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("=@hunter9", "the value is not valid YAML: "),
        ("='hunter9", "the value is not valid YAML: "),
        ("=[hunter9", "the value is not valid YAML: "),
        (":hunter9", r"KEY=VALUE\. Write it"),
        (" hunter9", r"KEY=VALUE\. Write it"),
        (":hunter9=2", "password: not of the form KEY=VALUE"),
        (" hunter9=2", "password: not of the form KEY=VALUE"),
        ("/hunter9=2", "password: not of the form KEY=VALUE"),
    ],
)
def test_a_password_in_an_invalid_change_is_not_shown(word: str, message: str) -> None:
    key = "source.security.sasl.password"
    with pytest.raises(SettingsError, match=message) as error:
        parse_change(key + word)
    assert "hunter9" not in str(error.value) and "=2" not in str(error.value)
    assert key in error.value.message
    with pytest.raises(SettingsError, match=r"KEY=VALUE\. Write it") as error:
        parse_change("=hunter9")
    assert "hunter9" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ("pipeline=HTTPS://token-hunter9@minio", "HTTPS://***@minio"),
        ("pipeline=kafka://etl:hunter9@b", "kafka://***@b"),
        ("table.path=s3://hunter9@b/t", "s3://***@b/t"),
        ("pipeline=//logs@b", "//logs@b"),
        ("table.path='abfss://rows@acme.dfs.core.windows.net/t '", "abfss://rows@acme"),
        ("table={path: s3://b/t, store: {endpoint: 'https://u:hunter9@m'}}", "https://***@m'"),
    ],
)
def test_text_before_an_at_sign_is_hidden_if_it_may_be_a_password_and_a_container_is_shown(
    change: str, reported: str
) -> None:
    with pytest.raises(SettingsError) as error:
        parse_settings(changed(conf(), [parse_change(change)]))
    assert f"it is '{reported}" in str(error.value) and "hunter9" not in str(error.value)


@pytest.mark.parametrize(
    "value",
    [
        ("Sending request(xid=%s): %s", 1, SaslRequest(SECRET.encode())),
        ("Sending request(xid=%s): %s", -4, AuthRequest(0, "digest", f"etl:{SECRET}")),
        ("Read response %s", Connect(0, 0, 10, 7, SECRET.encode(), None)),
        ("    Using session_id: %r session_passwd: %s", 1, SECRET),
    ],
)
def test_no_log_contains_kazoos_messages_about_a_login_or_a_sessions_password(
    value: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    logger = ZooKeeper("a:2181").client.logger
    with caplog.at_level(1, logger="kazoo.client"):
        logger.log(logging.DEBUG, *value)
        logger.debug("Sending request(xid=%s): %s", 2, "an ordinary one")
    assert SECRET not in caplog.text and "an ordinary one" in caplog.text


def test_a_reference_takes_its_value_from_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ZOO", "10.0.0.1:2181")
    (tmp_path / "key").write_text("s3cret\n")
    spark = {"spark.password": f"${{file:{tmp_path}/key}}"}
    found = plain_settings(zookeeper={"connect": "${env:ZOO}/kafka"}, spark=spark)
    assert found.zookeeper.connect == "10.0.0.1:2181/kafka"
    assert found.spark == {"spark.password": "s3cret"}
    for key, value in (
        ("zookeeper", {"connect": spark["spark.password"]}),
        ("pipeline", "${file:key}"),
    ):
        with pytest.raises(SettingsError, match="refers to the file") as refused:
            plain_settings(**{key: value})
        assert refused.value.exit_code == 2 and "s3cret" not in str(refused.value)
