"""The keys of ZooKeeper's encryption, login and ACL: what fits what, that a secret stays a
reference, and which znodes are guarded.
"""

from __future__ import annotations

import logging
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest
import yaml
from kazoo.protocol.serialization import SASL, Connect
from kazoo.protocol.serialization import Auth as AuthRequest
from kazoo.security import OPEN_ACL_UNSAFE

from etl.errors import SettingsError
from etl.io.zookeeper.login_and_acl import CREATOR_WRITES
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger.znode_paths import is_of_a_pipeline
from etl.model.security import OPEN_ZOOKEEPER, Access, Acl, Auth, LocalFile, Scheme, SecretRef, Tls
from etl.reader.options import parse_options
from etl.settings.load import access_of, changed, load_settings, parse_change, parse_settings
from etl.streams.conf import ConsumerConfig

SECRET = "hunter2-of-all"
SASL_LOGIN = {"scheme": "sasl", "username": "etl", "password": "${env:ZOOKEEPER_PASSWORD}"}


def conf(**zookeeper: Any) -> dict[str, Any]:
    return {
        "pipeline": "clicks",
        "group": "g",
        "zookeeper": {"connect": "a:2181/kafka", **zookeeper},
        "source": {"topics": ["clicks"]},
        "table": {"path": "warehouse/clicks"},
    }


def test_without_the_keys_sessions_are_as_they_were() -> None:
    assert parse_settings(conf()).zookeeper.access == OPEN_ZOOKEEPER == Access(None, None, Acl.OPEN)


def test_the_keys_become_one_value_with_secrets_and_files_resolved_at_their_use(
    tmp_path: Path,
) -> None:
    path, at = tmp_path / "conf.yaml", str(tmp_path)
    auth = {**SASL_LOGIN, "password": "${file:secrets/zookeeper}"}
    path.write_text(yaml.safe_dump(conf(tls={"ca_file": "ca.pem"}, auth=auth, acl="creator")))
    assert load_settings(path).zookeeper.access == Access(
        Tls(LocalFile("ca.pem", at)),
        Auth(Scheme.SASL, "etl", SecretRef("file", "secrets/zookeeper", at)),
        Acl.CREATOR,
    )


@pytest.mark.parametrize(
    ("tls", "is_on"),
    [
        ({}, False),
        ({"enabled": True}, True),
        ({"ca_file": "ca.pem"}, True),
        ({"enabled": False}, False),
    ],
)
def test_connections_are_encrypted_by_the_key_or_if_it_follows_from_others(
    tls: dict[str, Any], is_on: bool
) -> None:
    assert (parse_settings(conf(tls=tls)).zookeeper.access.tls is not None) == is_on


LOGIN = "auth.username=etl auth.password=${env:ZOOKEEPER_PASSWORD} auth.scheme="


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("tls.enabled=false tls.ca_file=c", "ca_file has no effect, because enabled is false"),
        ("tls.enabled=1", "must be true, false or null"),
        ("tls.ca_file=true", r"is True\) \(key"),
        ("tls.key_file=k.pem", "key_file belongs to a client certificate,"),
        ("auth.username=etl", "scheme is missing, and username belongs to a login"),
        (f"{LOGIN}sasl auth.password=", "password is missing, which scheme sasl needs"),
        (f"{LOGIN}kerberos", "must be sasl, digest or x509"),
        (f"{LOGIN}x509 tls.cert_file=c.pem", "username has no effect with scheme x509,"),
        (
            "auth.scheme=x509",
            r"auth\.scheme x509 needs a client certificate, and tls\.cert_file is missing",
        ),
        (
            f"{LOGIN}digest auth.username=a:b",
            "username contains a colon, which ends the name in scheme digest",
        ),
        ("acl=creator", "restricts changes to this login, and auth.scheme is missing"),
    ],
)
def test_keys_that_do_not_fit_one_another_are_refused_before_anybody_connects(
    keys: str, message: str
) -> None:
    changes = [parse_change(f"zookeeper.{word}") for word in keys.split()]
    with pytest.raises(SettingsError, match=message) as refused:
        parse_settings(changed(conf(), changes))
    assert refused.value.where["key"].startswith("zookeeper")


@pytest.mark.parametrize(
    "keys",
    [
        {"auth": {**SASL_LOGIN, "password": SECRET}},
        {"auth": {**SASL_LOGIN, "pasword": SECRET}},
        {"auth": SECRET},
        {"auth": {**SASL_LOGIN, "password": [SECRET]}},
        {"tls": {"cert_file": "c.pem", "key_password": SECRET}},
    ],
)
def test_a_plain_secret_in_a_conf_is_rejected_and_shown_nowhere(keys: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_settings(conf(**keys))
    assert SECRET not in "".join(traceback.format_exception(refused.value)) + repr(
        refused.value
    ) + str(refused.value.as_json())


def test_neither_settings_nor_a_session_that_has_not_begun_hold_the_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ZOOKEEPER_PASSWORD", SECRET)
    settings = parse_settings(conf(auth=SASL_LOGIN))
    access = settings.zookeeper.access
    session = ZooKeeper(settings.zookeeper.connect, access=access)
    client = session.client
    shown = [
        repr(settings),
        settings.model_dump_json(),
        repr(access),
        str(pickle.dumps(settings)),
        str(vars(session)),
        str(vars(client)),
        str(vars(client._connection)),
    ]
    assert not any(SECRET in each for each in shown)


@pytest.mark.parametrize(
    "value",
    [
        ("Sending request(xid=%s): %s", 1, SASL(SECRET.encode())),
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


@pytest.mark.parametrize(
    ("path", "is_ours"),
    [
        ("/consumers/g/etl/clicks", True),
        ("/consumers/g/etl/clicks/plans/7", True),
        ("/consumers/g/etl/clicks@old/claim", True),
        ("/consumers/g/etl", False),
        ("/consumers/g", False),
        ("/consumers/g/offsets/etl/0", False),
        ("/consumers/g/owners/clicks/0", False),
        ("/consumers/g/ids/etl", False),
        ("/consumers/etl/ids/a", False),
        ("/brokers/ids/etl/1", False),
    ],
)
def test_what_a_pipeline_keeps_is_guarded_and_what_it_shares_with_old_consumers_is_not(
    path: str, is_ours: bool
) -> None:
    access = Access(None, Auth(Scheme.X509), Acl.CREATOR)
    client = ZooKeeper("a:2181", access=access).client
    assert is_of_a_pipeline(path) == is_ours
    assert client.acl_of(path) == (CREATOR_WRITES if is_ours else OPEN_ACL_UNSAFE)
    assert ZooKeeper("a:2181").client.acl_of(path) == OPEN_ACL_UNSAFE


OPTIONS = {"zookeeper": "a:2181/kafka", "subscribe": "clicks"}


def test_the_data_source_takes_the_same_by_options_and_its_references_stay_references() -> None:
    tls = {"zookeeper_tls_ca_file": "ca.pem", "zookeeper_tls": "true"}
    login = {f"zookeeper_auth_{name}": value for name, value in SASL_LOGIN.items()}
    found = parse_options({**OPTIONS, **tls, **login}).access
    assert found == Access(
        Tls(LocalFile("ca.pem")), Auth(Scheme.SASL, "etl", SecretRef("env", "ZOOKEEPER_PASSWORD"))
    )
    assert parse_options(OPTIONS).access == OPEN_ZOOKEEPER
    assert parse_options({**OPTIONS, "zookeeper_tls": "true"}).access == Access(Tls())


@pytest.mark.parametrize(
    ("more", "text", "option"),
    [
        (
            {"zookeeper_auth_password": SECRET},
            r"must be a reference, \$\{env:NAME\} or",
            "zookeeper_auth_password",
        ),
        ({"zookeeper_auth_username": "etl"}, "scheme is missing", "zookeeper_auth_*"),
        ({"zookeeper_tls": "perhaps"}, "must be", "zookeeper_tls"),
    ],
)
def test_a_wrong_option_of_connection_security_is_reported_by_its_name_and_without_its_value(
    more: dict[str, str], text: str, option: str
) -> None:
    with pytest.raises(SettingsError, match=text) as refused:
        parse_options({**OPTIONS, **more})
    assert refused.value.where["option"] == option and SECRET not in str(refused.value)
    with pytest.raises(SettingsError, match="zookeeper is not set"):
        parse_options({"kafka.bootstrap.servers": "a:1", "subscribe": "c", "zookeeper_tls": "true"})


def test_a_consumer_takes_the_same_keys() -> None:
    assert ConsumerConfig(
        zookeeper="a:2181", zookeeper_security={"auth": SASL_LOGIN}
    ).access == access_of({"auth": SASL_LOGIN})
    with pytest.raises(SettingsError, match="has no effect without zookeeper"):
        ConsumerConfig(
            bootstrap_servers="a:9092", zookeeper_security={"auth": SASL_LOGIN}
        ).checked()
