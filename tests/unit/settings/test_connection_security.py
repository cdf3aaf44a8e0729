"""The keys of encryption, login and ACL, in valid and invalid combinations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from kazoo.security import OPEN_ACL_UNSAFE

from etl.errors import SettingsError
from etl.io.zookeeper.login_and_acl import CREATOR_WRITES
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.ledger.znode_paths import is_of_a_pipeline
from etl.model.security import (
    OPEN,
    OPEN_ZOOKEEPER,
    Access,
    Acl,
    Auth,
    LocalFile,
    Login,
    Mechanism,
    Scheme,
    SecretRef,
    Security,
    SecurityProtocol,
    Tls,
)
from etl.reader.options import parse_options
from etl.settings.load import access_of, changed, load_settings, parse_change, parse_settings
from etl.streams.conf import ConsumerConfig
from tests.builders import plain_settings

SASL_LOGIN = {"scheme": "sasl", "username": "etl", "password": "${env:ZOOKEEPER_PASSWORD}"}
LEAST: dict[str, Any] = {
    "pipeline": "clicks",
    "group": "etl-clicks",
    "zookeeper": {"connect": "a:2181/kafka"},
    "source": {"topics": ["clicks"]},
    "table": {"path": "warehouse/clicks"},
}
SCRAM = {"mechanism": "SCRAM-SHA-512", "username": "etl", "password": "${file:secrets/kafka}"}


def test_without_the_keys_connections_are_open() -> None:
    settings = parse_settings(LEAST)
    assert settings.source.way_in == OPEN == Security(SecurityProtocol.PLAINTEXT)
    assert settings.zookeeper.access == OPEN_ZOOKEEPER == Access(None, None, Acl.OPEN)


def test_the_keys_become_one_value_with_secrets_and_files_resolved_at_their_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CERTIFICATES", "certs")
    tls = {
        "ca_file": "${env:CERTIFICATES}/ca.pem",
        "cert_file": "/etc/us.pem",
        "key_password": "${env:KEY}",
    }
    security = {"protocol": "SASL_SSL", "tls": tls, "sasl": SCRAM}
    auth = {**SASL_LOGIN, "password": "${file:secrets/zookeeper}"}
    zookeeper = {"tls": {"ca_file": "ca.pem"}, "auth": auth, "acl": "creator"}
    document = {
        **LEAST,
        "source": {"topics": ["clicks"], "security": security, "listener": "INSIDE"},
        "zookeeper": {"connect": "a:2181/kafka", **zookeeper},
    }
    path, at = tmp_path / "conf.yaml", str(tmp_path)
    path.write_text(yaml.safe_dump(document))
    settings = load_settings(path)
    key_password = SecretRef("env", "KEY")
    assert settings.source.way_in == Security(
        SecurityProtocol.SASL_SSL,
        "INSIDE",
        Tls(LocalFile("certs/ca.pem", at), LocalFile("/etc/us.pem", at), None, key_password),
        Login(Mechanism.SCRAM_SHA_512, "etl", SecretRef("file", "secrets/kafka", at)),
    )
    assert settings.zookeeper.access == Access(
        Tls(LocalFile("ca.pem", at)),
        Auth(Scheme.SASL, "etl", SecretRef("file", "secrets/zookeeper", at)),
        Acl.CREATOR,
    )


def test_a_file_of_defaults_sees_its_files_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    security = {"protocol": "SASL_SSL", "tls": {"ca_file": "ca.pem"}, "sasl": SCRAM}
    (tmp_path / "shared" / "defaults.yaml").write_text(
        yaml.safe_dump({"source": {"security": security}})
    )
    own = {"topics": ["clicks"], "security": {"sasl": {"password": "${file:own}"}}}
    document = {**LEAST, "source": own, "defaults": "shared/defaults.yaml"}
    (tmp_path / "conf.yaml").write_text(yaml.safe_dump(document))
    found = load_settings(tmp_path / "conf.yaml").source.way_in
    assert found.tls.ca_file == LocalFile("ca.pem", str(tmp_path / "shared"))
    assert found.login and found.login.password == SecretRef("file", "own", str(tmp_path))


LOGIN = "protocol=SASL_SSL sasl.username=etl sasl.password=${file:secrets/kafka} sasl.mechanism="
ZOOKEEPER_LOGIN = "auth.username=etl auth.password=${env:ZOOKEEPER_PASSWORD} auth.scheme="
UNFIT_FOR_BROKERS = [
    ("protocol=SASL_SSL", r"SASL_SSL needs a login, and sasl\.mechanism is missing"),
    (f"{LOGIN}PLAIN protocol=SSL", "PLAIN needs a protocol with login, not SSL: it is"),
    (f"{LOGIN}PLAIN protocol=PLAINTEXT", "protocol with login, not PLAINTEXT:"),
    (
        f"{LOGIN}PLAIN protocol=SASL_PLAINTEXT tls.ca_file=ca.pem",
        r"tls\.ca_file needs an encrypted protocol, SSL or SASL_SSL, not",
    ),
    (f"{LOGIN}PLAIN sasl.password=", "password is missing, which mechanism PLAIN needs"),
    (f"{LOGIN}PLAIN sasl.token=a:b", "token has no effect with mechanism PLAIN,"),
    ("protocol=SASL_SSL sasl.mechanism=OAUTHBEARER", "token is missing, which mechanism OAUTHBE"),
    (f"{LOGIN}GSSAPI", "username has no effect with mechanism GSSAPI,"),
    (f"{LOGIN}SCRAM-SHA-1", "must be 'PLAIN'|must be PLAIN"),
    ("protocol=SSL tls.key_file=k.pem", "belongs to a client certificate, and cert_file is missi"),
    ("protocol=TLS", r"must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL \(it is 'TLS'\)"),
]
UNFIT_FOR_ZOOKEEPER = [
    ("tls.enabled=false tls.ca_file=c", "ca_file has no effect, because enabled is false"),
    ("tls.enabled=1", "must be true, false or null"),
    ("tls.ca_file=true", r"is True\) \(key"),
    ("tls.key_file=k.pem", "key_file belongs to a client certificate,"),
    ("auth.username=etl", "scheme is missing, and username belongs to a login"),
    (f"{ZOOKEEPER_LOGIN}sasl auth.password=", "password is missing, which scheme sasl needs"),
    (f"{ZOOKEEPER_LOGIN}kerberos", "must be sasl, digest or x509"),
    (f"{ZOOKEEPER_LOGIN}x509 tls.cert_file=c.pem", "username has no effect with scheme x509,"),
    ("auth.scheme=x509", r"x509 needs a client certificate, and tls\.cert_file is missing"),
    (f"{ZOOKEEPER_LOGIN}digest auth.username=a:b", "contains a colon, which ends the name in sch"),
    ("acl=creator", "restricts changes to this login, and auth.scheme is missing"),
]


@pytest.mark.parametrize(
    ("section", "keys", "message"),
    [
        *(("source.security", keys, message) for keys, message in UNFIT_FOR_BROKERS),
        *(("zookeeper", keys, message) for keys, message in UNFIT_FOR_ZOOKEEPER),
    ],
)
def test_keys_that_do_not_fit_one_another_are_refused_with_what_fits(
    section: str, keys: str, message: str
) -> None:
    changes = [parse_change(f"{section}.{word}") for word in keys.split()]
    with pytest.raises(SettingsError, match=message) as refused:
        parse_settings(changed(LEAST, changes))
    assert refused.value.where["key"].startswith(section)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"listener": "INSIDE", "bootstrap_servers": "a:9093"}, r"the others\. Remove one of"),
        (
            {
                "broker_type": "jafka",
                "assume_cluster_id": "old",
                "security": {"protocol": "SSL"},
            },
            r"is not supported: these brokers have neither encryption nor logins\.",
        ),
    ],
    ids=["a listener beside addresses", "old brokers"],
)
def test_a_listener_or_encryption_that_has_no_effect_is_refused(
    source: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        plain_settings(source=source)


@pytest.mark.parametrize(
    ("tls", "is_on"),
    [
        ({}, False),
        ({"enabled": True}, True),
        ({"ca_file": "ca"}, True),
        ({"enabled": False}, False),
    ],
)
def test_connections_to_zookeeper_are_encrypted_by_the_key_or_if_it_follows_from_others(
    tls: dict[str, Any], is_on: bool
) -> None:
    assert (plain_settings(zookeeper={"tls": tls}).zookeeper.access.tls is not None) == is_on


SECRET = "hunter2-of-all"


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
