"""Every way into a real broker, and every way to fail there: which error, which exit code, which key, and what it says besides."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from etl.edges.brokers.simple_consumer import SimpleConsumer
from etl.errors import BrokerUnreachable, EtlError, NotKafka, PermissionRefused, SettingsError
from etl.settings.way_in import security_of
from tests.networks.certificates import KEY_PASSWORD
from tests.networks.secured import ODD_USER, PASSWORD, REAUTH_MS, Secured

pytestmark = pytest.mark.networks
Way = dict[str, Any]


def entered(secured: Secured, way: Way, listener: str | None = None, host: str = "localhost") -> SimpleConsumer:
    """A connection by that way, on which something was asked."""
    name = listener or way["listener"]
    port = secured.plain_port if name == "PLAINTEXT" else secured.ports[name]
    consumer = SimpleConsumer(host, port, security=security_of(way["security"]), timeout_s=20)
    try:
        assert consumer.topic_metadata(()).brokers[0].port == port
    except BaseException:
        consumer.close()
        raise
    return consumer


def changed(way: Way, **keys: Any) -> Way:
    found = copy.deepcopy(way)
    found["security"]["sasl"] |= keys
    return found


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_each_mechanism_logs_in_with_and_without_encryption(secured: Secured, protocol: str, mechanism: str) -> None:
    entered(secured, secured.security(protocol, mechanism)).close()


def test_encryption_alone_by_name_by_address_and_with_a_certificate_of_our_own(
    secured: Secured, monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = secured.client
    entered(secured, secured.security("SSL")).close()
    entered(secured, secured.security("SSL"), host="127.0.0.1").close()
    monkeypatch.setenv("KEY_PASSWORD", KEY_PASSWORD)
    locked = secured.authority.locked(own)
    for given in ({"cert_file": str(own.cert), "key_file": str(own.key)}, {"cert_file": str(own.both)},
                  {"cert_file": str(own.cert), "key_file": str(locked), "key_password": "${env:KEY_PASSWORD}"}):
        entered(secured, secured.security("SSL", listener="MUTUAL", **given)).close()


def test_a_name_that_scram_must_escape_logs_in(secured: Secured) -> None:
    entered(secured, changed(secured.security("SASL_SSL", "SCRAM-SHA-256"), username=ODD_USER)).close()


def refused_as(secured: Secured, way: Way, listener: str | None = None, host: str = "localhost") -> EtlError:
    with pytest.raises(EtlError) as refused:
        entered(secured, way, listener, host)
    error = refused.value
    assert PASSWORD not in f"{error} {error.as_json()} {error!r}"
    return error


Case = tuple[type[EtlError], str, str | None]
_LOGINS: dict[str, tuple[Callable[[Secured], Way], str | None, Case]] = {
    "a wrong name": (
        lambda s: changed(s.security("SASL_SSL", "PLAIN"), username="nobody"), None,
        (PermissionRefused, "refuses the login by PLAIN: Authentication failed", "source.security.sasl.password")),
    "a wrong name of SCRAM": (
        lambda s: changed(s.security("SASL_SSL", "SCRAM-SHA-512"), username="nobody"), None,
        (PermissionRefused, "refuses the login by SCRAM-SHA-512", "source.security.sasl.password")),
    "a wrong password": (
        lambda s: changed(s.security("SASL_SSL", "SCRAM-SHA-256"), password="${env:HOME}"), None,
        (PermissionRefused, "refuses the login by SCRAM-SHA-256", "source.security.sasl.password")),
    "a wrong token": (
        lambda s: changed(s.security("SASL_SSL", "OAUTHBEARER"), token="${env:HOME}"), None,
        (PermissionRefused, 'refuses the login by OAUTHBEARER: .*"status":"invalid_token"', "source.security.sasl.token")),
    "a mechanism that the listener does not have": (
        lambda s: s.security("SASL_PLAINTEXT", "SCRAM-SHA-256"), "PLAIN_ONLY",
        (SettingsError, "takes no login by SCRAM-SHA-256; it has PLAIN", "source.security.sasl.mechanism")),
    "a login that nobody wants, encrypted": (
        lambda s: s.security("SASL_SSL", "PLAIN"), "SSL", (SettingsError, "wants no login", "source.security.protocol")),
    "a login that nobody wants": (
        lambda s: s.security("SASL_PLAINTEXT", "PLAIN"), "PLAINTEXT", (SettingsError, "wants no login", "source.security.protocol")),
    "no login": (
        lambda s: s.security("PLAINTEXT"), "SASL_PLAINTEXT",
        (PermissionRefused, "wants a login, by .*SCRAM-SHA-512.*, and we have none", "source.security.protocol")),
    "no login, encrypted": (
        lambda s: s.security("SSL"), "SASL_SSL", (PermissionRefused, "wants a login, by .*PLAIN", "source.security.protocol")),
    "no encryption": (lambda s: s.security("PLAINTEXT"), "SSL", (NotKafka, "the port speaks TLS", None)),
    "no encryption of a login": (
        lambda s: s.security("SASL_PLAINTEXT", "PLAIN"), "SASL_SSL", (NotKafka, "the port speaks TLS.*SASL_SSL", None)),
    "encryption that the port does not speak": (
        lambda s: s.security("SSL"), "PLAINTEXT", (NotKafka, "the port does not speak TLS", None)),
    "encryption of a login that the port does not speak": (
        lambda s: s.security("SASL_SSL", "PLAIN"), "SASL_PLAINTEXT", (NotKafka, "the port does not speak TLS", None)),
    "a function that fails": (
        lambda s: changed(s.security("SASL_SSL", "OAUTHBEARER"), token="tests.networks.tokens:failing"), None,
        (BrokerUnreachable, r"raised ConnectionError at tokens.py:\d+, and gave no token", "source.security.sasl.token")),
    "a function that gives nothing": (
        lambda s: changed(s.security("SASL_SSL", "OAUTHBEARER"), token="tests.networks.tokens:empty"), None,
        (SettingsError, "tests.networks.tokens:empty gave no token", "source.security.sasl.token")),
    "no function": (
        lambda s: changed(s.security("SASL_SSL", "OAUTHBEARER"), token="tests.networks.tokens:NOT_CALLABLE"), None,
        (SettingsError, "is no function", "source.security.sasl.token")),
    "no module": (
        lambda s: changed(s.security("SASL_SSL", "OAUTHBEARER"), token="no_such.module:token"), None,
        (SettingsError, "there is no module no_such", "source.security.sasl.token")),
    "no secret": (
        lambda s: changed(s.security("SASL_SSL", "PLAIN"), password="${file:/no/such/secret}"), None,
        (SettingsError, "the file /no/such/secret that source.security.sasl.password refers to cannot be read",
         "source.security.sasl.password")),
}


@pytest.mark.parametrize("case", sorted(_LOGINS))
def test_a_login_that_does_not_come_about_says_which_end_has_what(secured: Secured, case: str) -> None:
    way, listener, (kind, said, key) = _LOGINS[case]
    error = refused_as(secured, way(secured), listener)
    assert type(error) is kind and re.search(said, str(error)), str(error)
    assert error.where.get("key") == key
    assert error.exit_code == (6 if kind is BrokerUnreachable else 2)


_CERTIFICATES: dict[str, tuple[Callable[[Secured], Way], str, str, str | None, dict[str, Callable[[Secured], str]]]] = {
    "an authority that did not sign it": (
        lambda s: s.security("SSL", ca_file=str(s.stranger.ca)), "SSL", "nobody whom we trust has signed the broker's certificate",
        "source.security.tls.ca_file", {"file": lambda s: str(s.stranger.ca), "host": lambda s: "localhost"}),
    "the system's authorities": (
        lambda s: {"listener": "SSL", "security": {"protocol": "SSL"}}, "SSL", "nobody whom we trust has signed the broker's certificate",
        "source.security.tls.ca_file", {"file": lambda s: "the system's authorities"}),
    "another host's": (
        lambda s: s.security("SSL"), "OTHER_NAME", "is of another host: broker.elsewhere, other.elsewhere", None,
        {"host": lambda s: "localhost"}),
    "an expired one": (
        lambda s: s.security("SSL"), "EXPIRED", "has expired", "source.security.tls.ca_file", {"host": lambda s: "localhost"}),
    "no file of authorities": (
        lambda s: s.security("SSL", ca_file="/no/ca.pem"), "SSL", "the file cannot be read: No such file",
        "source.security.tls.ca_file", {"file": lambda s: "/no/ca.pem"}),
    "a file of something else": (
        lambda s: s.security("SSL", ca_file=str(s.client.key)), "SSL", "nothing of the kind in PEM", "source.security.tls.ca_file", {}),
    "no file of our own": (
        lambda s: s.security("SSL", cert_file="/no/cert.pem"), "MUTUAL", "the file cannot be read: No such file",
        "source.security.tls.cert_file", {"file": lambda s: "/no/cert.pem"}),
    "no key": (
        lambda s: s.security("SSL", cert_file=str(s.client.cert), key_file="/no/key.pem"), "MUTUAL", "the file cannot be read",
        "source.security.tls.key_file", {"file": lambda s: "/no/key.pem"}),
    "another key": (
        lambda s: s.security("SSL", cert_file=str(s.client.cert), key_file=str(s.unknown.key)), "MUTUAL",
        "the key is not the certificate's", "source.security.tls.key_file", {"file": lambda s: str(s.unknown.key)}),
    "a key whose password nobody gives": (
        lambda s: s.security("SSL", cert_file=str(s.client.cert), key_file=str(s.authority.locked(s.client))), "MUTUAL",
        "the password does not open the key", "source.security.tls.key_password", {}),
    "a key of another password": (
        lambda s: s.security("SSL", cert_file=str(s.client.cert), key_file=str(s.authority.locked(s.client)),
                             key_password="${env:KAFKA_PASSWORD}"), "MUTUAL",
        "the password does not open the key", "source.security.tls.key_password", {}),
}


@pytest.mark.parametrize("case", sorted(_CERTIFICATES))
def test_a_certificate_that_proves_nothing_is_told_with_its_file_and_its_host(secured: Secured, case: str) -> None:
    way, listener, said, key, where = _CERTIFICATES[case]
    error = refused_as(secured, way(secured), listener)
    assert type(error) is SettingsError and said in str(error), str(error)
    assert error.where.get("key") == key
    assert {name: error.where.get(name) for name in where} == {name: of(secured) for name, of in where.items()}


@pytest.mark.parametrize("given", [None, "unknown"])
def test_a_broker_that_does_not_take_our_certificate_refuses_us(secured: Secured, given: str | None) -> None:
    own = {} if given is None else {"cert_file": str(secured.unknown.both)}
    error = refused_as(secured, secured.security("SSL", **own), "MUTUAL")
    assert type(error) is PermissionRefused and error.where["key"] == "source.security.tls.cert_file", str(error)


def test_a_certificate_of_an_address_that_it_does_not_name_is_refused(secured: Secured) -> None:
    error = refused_as(secured, secured.security("SSL"), "OTHER_NAME", "127.0.0.1")
    assert type(error) is SettingsError and "is of another host" in str(error)


@pytest.mark.parametrize("mechanism", ["PLAIN"])
def test_a_login_that_ends_is_made_anew_before_it_does_where_nothing_is_under_way(secured: Secured, mechanism: str) -> None:
    with entered(secured, secured.security("SASL_PLAINTEXT", mechanism), "SHORT") as consumer:
        first = consumer._exchange._open
        assert first is not None and 0 < first[0].renew_at - time.monotonic() <= 0.85 * REAUTH_MS / 1000
        begun = time.monotonic()
        while time.monotonic() < begun + 2 * REAUTH_MS / 1000:
            consumer.topic_metadata(())
            time.sleep(0.1)
        assert consumer._exchange._open is not first


def test_a_login_that_ended_unnoticed_costs_a_connect_and_nothing_else(secured: Secured) -> None:
    with entered(secured, secured.security("SASL_PLAINTEXT", "PLAIN"), "SHORT") as consumer:
        opened = consumer._exchange._open
        assert opened is not None
        opened[0].renew_at = float("inf")  # as if the broker had not said it
        time.sleep(REAUTH_MS / 1000 + 0.5)
        assert consumer.topic_metadata(()).brokers


def test_a_renewed_password_counts_from_the_next_connection_on(secured: Secured, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("not yet\n")
    way = changed(secured.security("SASL_SSL", "PLAIN"), password=f"${{file:{tmp_path}/password}}")
    with SimpleConsumer("localhost", secured.ports["SASL_SSL"], security=security_of(way["security"]), timeout_s=20) as consumer:
        with pytest.raises(PermissionRefused):
            consumer.topic_metadata(())
        (tmp_path / "password").write_text(f"{PASSWORD}\n")
        assert consumer.topic_metadata(()).brokers
