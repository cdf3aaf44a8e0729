"""The keys of encryption and login: valid combinations, and that a secret is a reference until it
is used, and is never shown.
"""

from __future__ import annotations

import pickle
import re
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
import yaml

from etl.errors import SettingsError
from etl.io.brokers.authentication import _SaslLogin
from etl.io.zookeeper.login_and_acl import said_of
from etl.model.security import (
    OPEN,
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
    parse_reference,
)
from etl.settings.conf_file import read_document
from etl.settings.load import changed, load_settings, parse_change, parse_settings
from etl.settings.secrets import login_text, place_of_file, resolve_secret

SECRET = "hunter2-of-all"
LEAST: dict[str, Any] = {
    "pipeline": "clicks",
    "group": "etl-clicks",
    "zookeeper": {"connect": "a:2181/kafka"},
    "table": {"path": "warehouse/clicks"},
}
SCRAM = {"mechanism": "SCRAM-SHA-512", "username": "etl", "password": "${file:secrets/kafka}"}


def conf(security: Any, **source: Any) -> dict[str, Any]:
    source = {"topics": ["clicks"], "security": security, **source}
    return {**LEAST, "source": source}


def test_without_the_keys_connections_are_as_they_were() -> None:
    assert parse_settings(conf({})).source.way_in == OPEN == Security(SecurityProtocol.PLAINTEXT)


def test_the_keys_become_one_value_with_secrets_and_files_resolved_at_their_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CERTIFICATES", "certs")
    tls = {
        "ca_file": "${env:CERTIFICATES}/ca.pem",
        "cert_file": "/etc/us.pem",
        "key_password": "${env:KEY}",
    }
    path = tmp_path / "conf.yaml"
    path.write_text(
        yaml.safe_dump(conf({"protocol": "SASL_SSL", "tls": tls, "sasl": SCRAM}, listener="INSIDE"))
    )
    at = str(tmp_path)
    assert load_settings(path).source.way_in == Security(
        SecurityProtocol.SASL_SSL,
        "INSIDE",
        Tls(
            LocalFile("certs/ca.pem", at),
            LocalFile("/etc/us.pem", at),
            None,
            SecretRef("env", "KEY"),
        ),
        Login(Mechanism.SCRAM_SHA_512, "etl", SecretRef("file", "secrets/kafka", at)),
    )


def test_a_file_of_defaults_sees_its_files_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    security = {"protocol": "SASL_SSL", "tls": {"ca_file": "ca.pem"}, "sasl": SCRAM}
    (tmp_path / "shared" / "defaults.yaml").write_text(
        yaml.safe_dump({"source": {"security": security}})
    )
    document = {**conf({"sasl": {"password": "${file:own}"}}), "defaults": "shared/defaults.yaml"}
    (tmp_path / "conf.yaml").write_text(yaml.safe_dump(document))
    found = load_settings(tmp_path / "conf.yaml").source.way_in
    assert found.tls.ca_file == LocalFile("ca.pem", str(tmp_path / "shared"))
    assert found.login and found.login.password == SecretRef("file", "own", str(tmp_path))


LOGIN = "protocol=SASL_SSL sasl.username=etl sasl.password=${file:secrets/kafka} sasl.mechanism="


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("protocol=SASL_SSL", r"SASL_SSL needs a login, and sasl\.mechanism is missing"),
        (f"{LOGIN}PLAIN protocol=SSL", "PLAIN needs a protocol with login, not SSL: it is"),
        (f"{LOGIN}PLAIN protocol=PLAINTEXT", "protocol with login, not PLAINTEXT:"),
        (
            f"{LOGIN}PLAIN protocol=SASL_PLAINTEXT tls.ca_file=ca.pem",
            r"tls\.ca_file needs an encrypted protocol, SSL or SASL_SSL, not",
        ),
        (f"{LOGIN}PLAIN sasl.password=", "password is missing, which mechanism PLAIN needs"),
        (f"{LOGIN}PLAIN sasl.token=a:b", "token has no effect with mechanism PLAIN,"),
        (
            "protocol=SASL_SSL sasl.mechanism=OAUTHBEARER",
            "token is missing, which mechanism OAUTHBEARER needs",
        ),
        (f"{LOGIN}GSSAPI", "username has no effect with mechanism GSSAPI,"),
        (f"{LOGIN}SCRAM-SHA-1", "must be 'PLAIN'|must be PLAIN"),
        (
            "protocol=SSL tls.key_file=k.pem",
            "key_file belongs to a client certificate, and cert_file is missing",
        ),
        ("protocol=TLS", r"must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL \(it is 'TLS'\)"),
    ],
)
def test_keys_that_do_not_fit_one_another_are_refused_with_what_fits(
    keys: str, message: str
) -> None:
    changes = [parse_change(f"source.security.{word}") for word in keys.split()]
    with pytest.raises(SettingsError, match=message) as refused:
        parse_settings(changed(conf({}), changes))
    assert refused.value.where["key"].startswith("source.security")


def test_a_listener_is_chosen_from_registrations_of_brokers_and_not_with_addresses() -> None:
    with pytest.raises(SettingsError, match=r"the others\. Remove one of"):
        parse_settings(conf({}, listener="INSIDE", bootstrap_servers="a:9093"))


def test_old_brokers_have_neither_encryption_nor_logins_nor_listeners() -> None:
    with pytest.raises(
        SettingsError, match=r"is not supported: these brokers have neither encryption nor logins\."
    ):
        parse_settings(conf({"protocol": "SSL"}, broker_type="jafka", assume_cluster_id="old"))


@pytest.mark.parametrize(
    "security",
    [
        {"protocol": "SASL_SSL", "sasl": {**SCRAM, "password": SECRET}},
        {"protocol": "SASL_SSL", "sasl": {**SCRAM, "password": SECRET + "-${env:PATH}"}},
        {"protocol": "SASL_SSL", "sasl": {**SCRAM, "password": [SECRET]}},
        {"protocol": "SASL_SSL", "sasl": SECRET},
        {"protocol": "SASL_SSL", "sasl": {**SCRAM, "pasword": SECRET}},
        {"protocol": "SASL_SSL", "sasl": {"mechanism": "OAUTHBEARER", "token": SECRET}},
        {"protocol": "SSL", "tls": {"cert_file": "c.pem", "key_password": SECRET}},
        SECRET,
    ],
)
def test_a_plain_secret_in_a_conf_is_rejected_and_shown_nowhere(security: Any) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_settings(conf(security))
    reported = (
        "".join(traceback.format_exception(refused.value))
        + repr(refused.value)
        + str(refused.value.as_json())
    )
    assert SECRET not in reported
    assert refused.value.where["key"].startswith("source.security")


def test_a_secret_is_a_reference_in_every_form_of_a_conf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    monkeypatch.setenv("KAFKA_USER", SECRET)
    references = {"username": "${env:KAFKA_USER}", "password": "${env:KAFKA_PASSWORD}"}
    security = {"protocol": "SASL_SSL", "sasl": {"mechanism": "PLAIN", **references}}
    settings = parse_settings(conf(security))
    way_in = settings.source.way_in
    texts = (repr(settings), str(settings.model_dump()), settings.model_dump_json(), repr(way_in))
    pickled = (pickle.dumps(way_in), pickle.dumps(settings))
    assert not any(SECRET in str(each) for each in (*texts, str(way_in), *pickled))
    assert "${env:KAFKA_PASSWORD}" in repr(way_in) and way_in.login
    assert isinstance(way_in.login.password, SecretRef)
    assert isinstance(way_in.login.username, SecretRef)
    assert resolve_secret(way_in.login.password, "source.security.sasl.password") == SECRET
    again = pickle.loads(pickled[0])
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
    there, latin, absent = (tmp_path / name for name in ("there", "latin", "absent"))
    there.write_text(f"{SECRET}\n")
    latin.write_bytes(b"\xff\xfe")
    assert resolve_secret(SecretRef("file", "there", str(tmp_path)), "k") == SECRET
    no_variable = "k refers to the environment variable NO_SUCH_VARIABLE, which cannot be read"
    for secret, value in (
        (
            SecretRef("file", "absent", str(tmp_path)),
            f"k refers to the file {absent}, which cannot be read",
        ),
        (SecretRef("env", "NO_SUCH_VARIABLE"), no_variable),
        (SecretRef("file", str(tmp_path)), "cannot be read: Is a directory"),
        (SecretRef("file", str(latin)), "cannot be read: it is not UTF-8"),
    ):
        with pytest.raises(SettingsError, match=value) as refused:
            resolve_secret(secret, "k")
        where = refused.value.where
        assert refused.value.exit_code == 2 and where["key"] == "k" and where["host"]


def test_a_file_of_a_relative_path_is_also_found_where_a_cluster_puts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, own = tmp_path / "work", tmp_path / "secrets" / "kafka"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / "kafka").write_text(SECRET)
    relative = LocalFile("secrets/kafka", str(tmp_path))
    assert place_of_file(relative) == "kafka"
    assert place_of_file(LocalFile(str(own), str(tmp_path))) == str(own)
    own.parent.mkdir()
    own.write_text("the conf's own")
    assert place_of_file(relative) == str(own)


@pytest.mark.parametrize(
    ("value", "content", "wrong"),
    [
        (SecretRef("file", "secret"), "", "username, from ${file:secret}, is empty"),
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


PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "networks-and-stores.md").read_text()
CONFS = [
    yaml.safe_load(text)
    for text in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize("copied", CONFS)
def test_a_conf_of_the_page_can_be_copied(copied: dict[str, Any]) -> None:
    settings = parse_settings({**conf({}), **copied})
    if "source" in copied:
        way_in = settings.source.way_in
        assert way_in.protocol.is_encrypted and (way_in.login or way_in.tls.cert_file)
    elif "zookeeper" in copied:
        access = settings.zookeeper.access
        assert access.tls and access.auth and access.acl is Acl.CREATOR
    else:
        assert settings.table.name or settings.table.store.keys_set
    sections = [next(iter(each)) for each in CONFS]
    assert sections == ["source", "source", "zookeeper", "table", "table"]


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
        ("source.security.sasl.password=@hunter9", "the value is not valid YAML: "),
        ("source.security.sasl.password='hunter9", "the value is not valid YAML: "),
        ("source.security.sasl.password=[hunter9", "the value is not valid YAML: "),
        ("source.security.sasl.password:hunter9", r"KEY=VALUE\. Write it"),
        ("source.security.sasl.password hunter9", r"KEY=VALUE\. Write it"),
        ("source.security.sasl.password:hunter9=2", "password: not of the form KEY=VALUE"),
        ("source.security.sasl.password hunter9=2", "password: not of the form KEY=VALUE"),
        ("source.security.sasl.password/hunter9=2", "password: not of the form KEY=VALUE"),
        ("=hunter9", r"KEY=VALUE\. Write it"),
    ],
)
def test_a_password_in_an_invalid_change_is_not_shown(word: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as error:
        parse_change(word)
    assert "hunter9" not in str(error.value)
    key = re.split("[=: /]?.?hunter9", word)[0]
    assert key in error.value.message and "=2" not in str(error.value)


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
        parse_settings(changed(conf({}), [parse_change(change)]))
    assert f"it is '{reported}" in str(error.value) and "hunter9" not in str(error.value)
