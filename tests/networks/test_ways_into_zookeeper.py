"""Every connection security of a real ZooKeeper, and every error of it."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from etl.errors import EtlError, PermissionDenied, SettingsError, ZooKeeperUnreachable
from etl.io.zookeeper.session_requests import ZooKeeper
from etl.settings.connection_security import ZooKeeperSettings
from tests.command_result import refused, run_etl
from tests.networks.certificates import KEY_PASSWORD, Authority, Certificate
from tests.networks.secured_zookeeper import STRICT, USERS, SecuredZooKeeper, variable_of

pytestmark = pytest.mark.networks
Way = dict[str, Any]
WRONG = "opens-nothing-at-all"
_LONG_S = 120
"""Rejections come at once, or after seconds if the server only closes the connection."""


class Servers:
    """ZooKeepers without brokers: open, strict, and two with wrong certificates."""

    def __init__(self, folder: Path, running: contextlib.ExitStack) -> None:
        self.authority, self.stranger = (
            Authority(folder, "authority"),
            Authority(folder, "stranger"),
        )
        names = ("DNS:localhost", "IP:127.0.0.1")
        self.client, self.unknown = self.authority.signed("client"), self.stranger.signed("unknown")
        self.locked = self.authority.locked(self.client)
        own = self.authority.signed("zookeeper", *names)

        def server(
            name: str, certificate: Certificate, properties: Mapping[str, str] | None = None
        ) -> SecuredZooKeeper:
            return running.enter_context(
                SecuredZooKeeper(
                    folder / name, certificate, self.authority.ca, properties=properties
                )
            )

        self.plain, self.strict = server("plain", own), server("strict", own, STRICT)
        self.elsewhere = server(
            "elsewhere", self.authority.signed("other", "DNS:zookeeper.elsewhere")
        )
        self.expired = server("expired", self.authority.signed("expired", *names, days=-1))
        self.silent: str = running.enter_context(_listening())

    def by_tls(self, **files: object) -> Way:
        """Encryption to `plain`, which `authority` signed."""
        tls = {"ca_file": self.authority.ca, **files}
        return {
            "connect": self.plain.encrypted,
            "tls": {key: str(value) for key, value in tls.items()},
        }

    def by_both(self, **files: object) -> Way:
        """Encryption and a login to `strict`."""
        return {**self.by_tls(**files), "connect": self.strict.encrypted, "auth": login()}


@contextlib.contextmanager
def _listening() -> Iterator[str]:
    """A port that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"localhost:{listening.getsockname()[1]}"


def login(
    user: str = "etl", *, scheme: str = "sasl", variable: str | None = None
) -> dict[str, str]:
    return {
        "scheme": scheme,
        "username": user,
        "password": f"${{env:{variable or variable_of(user)}}}",
    }


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with contextlib.ExitStack() as running:
        yield Servers(tmp_path_factory.mktemp("servers"), running)


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where confs find them, and one that opens nothing."""
    monkeypatch.setenv("KEY_PASSWORD", KEY_PASSWORD)
    monkeypatch.setenv("WRONG", WRONG)


def entered(way: Way, *, connect_timeout_s: float = 5.0) -> None:
    """A session with that security, after one request."""
    settings = ZooKeeperSettings(**way, session_timeout_s=6)
    session = ZooKeeper(
        settings.connect,
        session_timeout_s=6,
        connect_timeout_s=connect_timeout_s,
        access=settings.access,
    )
    with session as zookeeper:
        zookeeper.ensure("/consumers/group/etl/clicks/plans")


_GOOD: dict[str, Callable[[Servers], Way]] = {
    "encryption alone": lambda s: s.by_tls(),
    "by its address": lambda s: {
        **s.by_tls(),
        "connect": s.plain.encrypted.replace("localhost", "127.0.0.1"),
    },
    "a login that is not required": lambda s: {"connect": s.plain.connect, "auth": login()},
    "a login that is required": lambda s: {"connect": s.strict.connect, "auth": login()},
    "a login and a certificate that are required": lambda s: s.by_both(
        cert_file=s.client.cert, key_file=s.client.key
    ),
    "certificate and key in one file": lambda s: s.by_both(cert_file=s.client.both),
    "a key under a password": lambda s: s.by_both(
        cert_file=s.client.cert, key_file=s.locked, key_password="${env:KEY_PASSWORD}"
    ),
    "the second server, the first being closed": lambda s: {
        **s.by_tls(),
        "connect": f"localhost:1,{s.plain.encrypted}",
        "auth": login(),
    },
    "the second server, where the first one's certificate has expired": lambda s: {
        **s.by_tls(),
        "connect": f"{s.expired.encrypted},{s.plain.encrypted}",
        "auth": login(),
    },
}


@pytest.mark.parametrize("case", _GOOD)
def test_there_is_a_way_in_by(servers: Servers, case: str) -> None:
    entered(_GOOD[case](servers))


def test_a_silent_server_does_not_prevent_the_use_of_the_next_one_with_encryption_or_without(
    servers: Servers,
) -> None:
    for way in (
        {"connect": f"{servers.silent},{servers.plain.connect}"},
        {**servers.by_tls(), "connect": f"{servers.silent},{servers.plain.encrypted}"},
    ):
        for _ in range(4):  # kazoo connects to them in random order
            entered(way)


@dataclass(frozen=True)
class Expected:
    """An expected error: its class, a pattern of its text, its key, and its file."""

    kind: type[EtlError]
    text: str
    key: str | None
    file: Callable[[Servers], object] | None = None


_WRONG_LOGIN = Expected(PermissionDenied, "rejects the login, sasl user etl", "zookeeper.auth")
_NO_LOGIN = Expected(PermissionDenied, "requires a login by SASL", "zookeeper.auth")
_SILENCE = Expected(ZooKeeperUnreachable, "ZooKeeper does not answer", None)
_ENCRYPTED = Expected(SettingsError, "The port speaks TLS", "zookeeper.tls.enabled")


def refused_certificate(text: str = "rejects our certificate") -> Expected:
    return Expected(PermissionDenied, text, "zookeeper.tls.cert_file")


def wrong_file(key: str, text: str, file: Callable[[Servers], object]) -> Expected:
    return Expected(SettingsError, text, f"zookeeper.tls.{key}", file)


def missing_file(key: str, file: str) -> Expected:
    return wrong_file(key, "The file cannot be read: No such file", lambda s: file)


_REFUSED: dict[str, tuple[Callable[[Servers], Way], Expected]] = {
    "a wrong password": (
        lambda s: {"connect": s.plain.connect, "auth": login(variable="WRONG")},
        _WRONG_LOGIN,
    ),
    "a wrong password, encrypted": (
        lambda s: {**s.by_tls(), "auth": login(variable="WRONG")},
        _WRONG_LOGIN,
    ),
    "a wrong password where a login is required": (
        lambda s: {"connect": s.strict.connect, "auth": login(variable="WRONG")},
        _WRONG_LOGIN,
    ),
    "an unknown name": (
        lambda s: {"connect": s.plain.connect, "auth": login("unknown", variable="WRONG")},
        Expected(PermissionDenied, "rejects the login, sasl user unknown", "zookeeper.auth"),
    ),
    "no login": (lambda s: {"connect": s.strict.connect}, _NO_LOGIN),
    "a login of another scheme": (
        lambda s: {"connect": s.strict.connect, "auth": login(scheme="digest")},
        _NO_LOGIN,
    ),
    "a certificate for a login": (
        lambda s: {**s.by_both(cert_file=s.client.both), "auth": {"scheme": "x509"}},
        _NO_LOGIN,
    ),
    "no password": (
        lambda s: {"connect": s.plain.connect, "auth": login(variable="NOWHERE")},
        Expected(
            SettingsError,
            "zookeeper.auth.password refers to the environment variable NOWHERE, which is not set",
            "zookeeper.auth.password",
        ),
    ),
    "no certificate of our own": (
        lambda s: s.by_both(),
        refused_certificate("rejects our certificate, or requires one"),
    ),
    "a certificate that the server does not trust": (
        lambda s: s.by_both(cert_file=s.unknown.both),
        refused_certificate(),
    ),
    "one that it does not ask for, and does not trust": (
        lambda s: s.by_tls(cert_file=s.unknown.both),
        refused_certificate(),
    ),
    "an authority that did not sign it": (
        lambda s: s.by_tls(ca_file=s.stranger.ca),
        wrong_file("ca_file", "certificate is not signed by a trusted CA", lambda s: s.stranger.ca),
    ),
    "the system's authorities": (
        lambda s: {"connect": s.plain.encrypted, "tls": {"enabled": True}},
        wrong_file("ca_file", "is not signed by a trusted CA", lambda s: "the system's CAs"),
    ),
    "another host's": (
        lambda s: {**s.by_tls(), "connect": s.elsewhere.encrypted},
        Expected(
            SettingsError,
            "The server's certificate belongs to another host: zookeeper.elsewhere",
            None,
        ),
    ),
    "an expired one": (
        lambda s: {**s.by_tls(), "connect": s.expired.encrypted},
        wrong_file("ca_file", "has expired", lambda s: s.authority.ca),
    ),
    "no file of authorities": (
        lambda s: s.by_tls(ca_file="/no/ca.pem"),
        missing_file("ca_file", "/no/ca.pem"),
    ),
    "no file of our own": (
        lambda s: s.by_tls(cert_file="/no/cert.pem"),
        missing_file("cert_file", "/no/cert.pem"),
    ),
    "no key": (
        lambda s: s.by_tls(cert_file=s.client.cert, key_file="/no/key.pem"),
        missing_file("key_file", "/no/key.pem"),
    ),
    "another key": (
        lambda s: s.by_tls(cert_file=s.client.cert, key_file=s.unknown.key),
        wrong_file(
            "key_file", "The key does not belong to the certificate", lambda s: s.unknown.key
        ),
    ),
    "a key without its password": (
        lambda s: s.by_tls(cert_file=s.client.cert, key_file=s.locked),
        wrong_file("key_password", "The password does not decrypt the key", lambda s: s.locked),
    ),
    "a key of another password": (
        lambda s: s.by_tls(cert_file=s.client.cert, key_file=s.locked, key_password="${env:WRONG}"),
        wrong_file("key_password", "The password does not decrypt the key", lambda s: s.locked),
    ),
    "encryption that the port does not speak": (
        lambda s: {**s.by_tls(), "connect": s.plain.connect},
        Expected(SettingsError, "The port does not use TLS", "zookeeper.tls.enabled"),
    ),
    "no encryption": (lambda s: {"connect": s.plain.encrypted}, _ENCRYPTED),
    "no encryption of a login": (
        lambda s: {"connect": s.plain.encrypted, "auth": login()},
        _ENCRYPTED,
    ),
    "one server's certificate expired, the other one's of elsewhere": (
        lambda s: {**s.by_tls(), "connect": f"{s.expired.encrypted},{s.elsewhere.encrypted}"},
        Expected(SettingsError, "has expired|belongs to another host", "any"),
    ),
    "a closed port": (lambda s: {**s.by_tls(), "connect": "localhost:1"}, _SILENCE),
    "a silent server": (lambda s: {"connect": s.silent}, _SILENCE),
    "a silent server, encrypted": (lambda s: {**s.by_tls(), "connect": s.silent}, _SILENCE),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_there_is_none_with(
    servers: Servers,
    case: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A session is rejected with the key and the file; nothing else is printed, and no secret."""
    way, reported = _REFUSED[case]
    caplog.set_level("DEBUG")
    begun = time.monotonic()
    with pytest.raises(EtlError) as failed:
        entered(way(servers))
    error = failed.value
    assert time.monotonic() < begun + _LONG_S
    assert type(error) is reported.kind and re.search(reported.text, str(error)), str(error)
    assert error.exit_code == (6 if reported.kind is ZooKeeperUnreachable else 2)
    assert reported.key == "any" or error.where.get("key") == reported.key, error.where
    assert error.action
    if reported.file is not None:
        assert str(error.where.get("file")) == str(reported.file(servers))
    text = f"{error} {error!r} {error.as_json()} {caplog.text}"
    assert not [secret for secret in (*USERS.values(), WRONG, KEY_PASSWORD) if secret in text], text
    assert "Traceback" not in capfd.readouterr().err


def conf_with(zookeeper: Way, folder: Path, group: str = "group", **source: str) -> Path:
    document = {
        "pipeline": "clicks",
        "group": group,
        "zookeeper": zookeeper,
        "source": {"topics": ["clicks"], **source},
        "table": {"path": str(folder / "table")},
    }
    conf = folder / "conf.yaml"
    conf.write_text(yaml.safe_dump(document))
    return conf


@pytest.mark.parametrize(
    "case",
    ["a wrong password where a login is required", "no login", "an expired one", "no encryption"],
)
def test_each_command_reports_it_in_the_same_way(
    servers: Servers, case: str, tmp_path: Path
) -> None:
    way, reported = _REFUSED[case]
    conf = conf_with({**way(servers), "session_timeout_s": 3}, tmp_path)
    for words in (
        ("run",),
        ("run", "--dry-run"),
        ("lag",),
        ("verify",),
        ("offsets", "show"),
        ("plans", "list"),
        ("pipelines", "list"),
    ):
        refused(run_etl(*words, str(conf), "--json"), 2, *([reported.key] if reported.key else []))
    doctor = run_etl("doctor", str(conf))
    assert doctor.code == 2 and re.search(reported.text, doctor.out + doctor.err), (
        doctor.out + doctor.err
    )
    assert WRONG not in doctor.out + doctor.err


def test_files_of_a_conf_are_relative_to_it(servers: Servers, tmp_path: Path) -> None:
    (tmp_path / "authority.pem").write_text(servers.authority.ca.read_text())
    conf = conf_with(
        servers.by_tls(ca_file="authority.pem"), tmp_path, bootstrap_servers="localhost:1"
    )
    result = run_etl("plans", "list", str(conf), "--json")
    assert (result.code, result.document["plans"]) == (0, []), result.err


@pytest.mark.parametrize(
    "case", ["a login that is required", "a login and a certificate that are required"]
)
def test_doctors_probes_enter_and_log_in_as_a_run_does(
    servers: Servers, case: str, tmp_path: Path
) -> None:
    way = {**_GOOD[case](servers), "acl": "creator"}
    conf = conf_with(way, tmp_path, "probed", bootstrap_servers="localhost:1")
    lines = {
        line["name"]: line for line in run_etl("doctor", str(conf), "--json").document["checks"]
    }
    for name in ("ZooKeeper", "request limit", "znode permissions"):
        assert lines[name]["verdict"] == "ok", lines[name]
    assert "ZooKeeper 3.9" in lines["ZooKeeper"]["found"]


def test_a_first_conf_connects_by_the_given_keys_and_names_the_missing_ones(
    servers: Servers, tmp_path: Path
) -> None:
    places = ("--table", str(tmp_path / "table"), "--output", str(tmp_path / "c.yaml"))
    words = ("init", "--bootstrap-servers", "127.0.0.1:1", "--topic", "clicks", *places, "--json")
    strict = ("--zookeeper", servers.strict.connect)
    encrypted = ("--zookeeper", servers.plain.encrypted)
    refused(
        run_etl(*words, *strict),
        2,
        "requires a login by SASL",
        "Pass to `etl init`: --set zookeeper.auth.scheme=sasl",
    )
    refused(
        run_etl(*words, *encrypted),
        2,
        "The port speaks TLS",
        "Pass to `etl init`: --set zookeeper.tls.enabled=true",
    )
    keys = [
        word
        for name, value in login().items()
        for word in ("--set", f"zookeeper.auth.{name}={value}")
    ]
    refused(run_etl(*words, *strict, *keys), 6, "No connection")
    refused(
        run_etl(*words, *encrypted, "--set", f"zookeeper.tls.ca_file={servers.authority.ca}"),
        6,
        "No connection",
    )
