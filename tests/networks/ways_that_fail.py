"""Errors at a broker's listeners: keys of `source`, the class, and the message."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from etl.errors import BrokerUnreachable, EtlError, NotKafka, PermissionDenied, SettingsError
from tests.networks.secured import Secured

Way = dict[str, Any]
Case = tuple[type[EtlError], str, str | None]
Of = Callable[[Secured], str]


@dataclass(frozen=True)
class Failing:
    """A connection that fails: the message's pattern, and the places of the error."""

    way: Callable[[Secured], Way]
    listener: str | None
    kind: type[EtlError]
    pattern: str
    key: str | None
    where: Mapping[str, Of] = field(default_factory=dict)
    host: str = "localhost"

    @property
    def exit_code(self) -> int:
        """6 where a retry may help."""
        return 6 if self.kind is BrokerUnreachable else 2

    def entered(self, secured: Secured) -> tuple[Way, str]:
        """The way, and the address at which it fails."""
        way = self.way(secured)
        name = self.listener or way["listener"]
        return (
            way,
            f"{self.host}:{secured.plain_port if name == 'PLAINTEXT' else secured.ports[name]}",
        )


def changed(way: Way, **keys: Any) -> Way:
    """The same way with these keys of its login."""
    found = copy.deepcopy(way)
    found["security"]["sasl"] |= keys
    return found


_PROTOCOL = "source.security.protocol"
_PASSWORD, _TOKEN, _MECHANISM = (
    f"source.security.sasl.{name}" for name in ("password", "token", "mechanism")
)
_CA, _CERTIFICATE, _KEY, _KEY_PASSWORD = (
    f"source.security.tls.{name}" for name in ("ca_file", "cert_file", "key_file", "key_password")
)


def with_token(secured: Secured, token: str) -> Way:
    return changed(secured.security("SASL_SSL", "OAUTHBEARER"), token=token)


def with_key(secured: Secured, key: object, **more: str) -> Way:
    cert = str(secured.client.cert)
    return secured.security("SSL", cert_file=cert, key_file=str(key), **more)


_LOGINS: dict[str, tuple[Callable[[Secured], Way], str | None, Case]] = {
    "a wrong name": (
        lambda s: changed(s.security("SASL_SSL", "PLAIN"), username="unknown"),
        None,
        (PermissionDenied, "refuses the login by PLAIN: Authentication failed", _PASSWORD),
    ),
    "a wrong name of SCRAM": (
        lambda s: changed(s.security("SASL_SSL", "SCRAM-SHA-512"), username="unknown"),
        None,
        (PermissionDenied, "refuses the login by SCRAM-SHA-512", _PASSWORD),
    ),
    "a wrong password": (
        lambda s: changed(s.security("SASL_SSL", "SCRAM-SHA-256"), password="${env:HOME}"),
        None,
        (PermissionDenied, "refuses the login by SCRAM-SHA-256", _PASSWORD),
    ),
    "a wrong token": (
        lambda s: with_token(s, "${env:HOME}"),
        None,
        (PermissionDenied, 'refuses the login by OAUTHBEARER: .*"status":"invalid_token"', _TOKEN),
    ),
    "a mechanism that the listener does not have": (
        lambda s: s.security("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        "PLAIN_ONLY",
        (
            SettingsError,
            "does not support the SASL mechanism SCRAM-SHA-256; it supports PLAIN",
            _MECHANISM,
        ),
    ),
    "a login to a listener without SASL, encrypted": (
        lambda s: s.security("SASL_SSL", "PLAIN"),
        "SSL",
        (SettingsError, "does not use SASL, and a login is configured", _PROTOCOL),
    ),
    "a login to a listener without SASL": (
        lambda s: s.security("SASL_PLAINTEXT", "PLAIN"),
        "PLAINTEXT",
        (SettingsError, "does not use SASL, and a login is configured", _PROTOCOL),
    ),
    "no login": (
        lambda s: s.security("PLAINTEXT"),
        "SASL_PLAINTEXT",
        (
            PermissionDenied,
            "requires a login by .*SCRAM-SHA-512.*, and none is configured",
            _PROTOCOL,
        ),
    ),
    "no login, encrypted": (
        lambda s: s.security("SSL"),
        "SASL_SSL",
        (PermissionDenied, "requires a login by .*PLAIN", _PROTOCOL),
    ),
    "no encryption": (
        lambda s: s.security("PLAINTEXT"),
        "SSL",
        (NotKafka, "The port speaks TLS", _PROTOCOL),
    ),
    "no encryption of a login": (
        lambda s: s.security("SASL_PLAINTEXT", "PLAIN"),
        "SASL_SSL",
        (NotKafka, "The port speaks TLS.*SASL_SSL", _PROTOCOL),
    ),
    "encryption that the port does not speak": (
        lambda s: s.security("SSL"),
        "PLAINTEXT",
        (NotKafka, "The port does not use TLS", _PROTOCOL),
    ),
    "encryption of a login that the port does not speak": (
        lambda s: s.security("SASL_SSL", "PLAIN"),
        "SASL_PLAINTEXT",
        (NotKafka, "The port does not use TLS", _PROTOCOL),
    ),
    "a function that fails": (
        lambda s: with_token(s, "tests.networks.tokens:failing"),
        None,
        (
            BrokerUnreachable,
            r"raised ConnectionError at tokens.py:\d+ and returned no token",
            _TOKEN,
        ),
    ),
    "a function that gives nothing": (
        lambda s: with_token(s, "tests.networks.tokens:empty"),
        None,
        (SettingsError, "tests.networks.tokens:empty returned no token", _TOKEN),
    ),
    "no function": (
        lambda s: with_token(s, "tests.networks.tokens:NOT_CALLABLE"),
        None,
        (SettingsError, "is not a function", _TOKEN),
    ),
    "no module": (
        lambda s: with_token(s, "no_such.module:token"),
        None,
        (SettingsError, "There is no module no_such", _TOKEN),
    ),
    "no secret": (
        lambda s: changed(s.security("SASL_SSL", "PLAIN"), password="${file:/no/such/secret}"),
        None,
        (
            SettingsError,
            f"{_PASSWORD} refers to the file /no/such/secret, which does not exist",
            _PASSWORD,
        ),
    ),
}
_CERTIFICATES: dict[str, tuple[Callable[[Secured], Way], str, str, str | None, dict[str, Of]]] = {
    "an authority that did not sign it": (
        lambda s: s.security("SSL", ca_file=str(s.stranger.ca)),
        "SSL",
        "The broker's certificate is not signed by a trusted CA",
        _CA,
        {"file": lambda s: str(s.stranger.ca), "host": lambda s: "localhost"},
    ),
    "the system's authorities": (
        lambda s: {"listener": "SSL", "security": {"protocol": "SSL"}},
        "SSL",
        "The broker's certificate is not signed by a trusted CA",
        _CA,
        {"file": lambda s: "the system's CAs"},
    ),
    "another host's": (
        lambda s: s.security("SSL"),
        "OTHER_NAME",
        "belongs to another host: broker.elsewhere, other.elsewhere",
        None,
        {"host": lambda s: "localhost"},
    ),
    "an expired one": (
        lambda s: s.security("SSL"),
        "EXPIRED",
        "has expired",
        _CA,
        {"host": lambda s: "localhost"},
    ),
    "no file of authorities": (
        lambda s: s.security("SSL", ca_file="/no/ca.pem"),
        "SSL",
        "The file cannot be read: No such file",
        _CA,
        {"file": lambda s: "/no/ca.pem"},
    ),
    "a file of something else": (
        lambda s: s.security("SSL", ca_file=str(s.client.key)),
        "SSL",
        "The file has no valid PEM content",
        _CA,
        {},
    ),
    "no file of our own": (
        lambda s: s.security("SSL", cert_file="/no/cert.pem"),
        "MUTUAL",
        "The file cannot be read: No such file",
        _CERTIFICATE,
        {"file": lambda s: "/no/cert.pem"},
    ),
    "no key": (
        lambda s: with_key(s, "/no/key.pem"),
        "MUTUAL",
        "The file cannot be read",
        _KEY,
        {"file": lambda s: "/no/key.pem"},
    ),
    "another key": (
        lambda s: with_key(s, s.unknown.key),
        "MUTUAL",
        "The key does not belong to the certificate",
        _KEY,
        {"file": lambda s: str(s.unknown.key)},
    ),
    "a key without its password": (
        lambda s: with_key(s, s.authority.locked(s.client)),
        "MUTUAL",
        "The password does not decrypt the key",
        _KEY_PASSWORD,
        {},
    ),
    "a key of another password": (
        lambda s: with_key(s, s.authority.locked(s.client), key_password="${env:KAFKA_PASSWORD}"),
        "MUTUAL",
        "The password does not decrypt the key",
        _KEY_PASSWORD,
        {},
    ),
}
FAILING: Mapping[str, Failing] = {
    **{name: Failing(way, listener, *case) for name, (way, listener, case) in _LOGINS.items()},
    **{
        name: Failing(way, listener, SettingsError, pattern, key, where)
        for name, (way, listener, pattern, key, where) in _CERTIFICATES.items()
    },
    "a certificate of an address that it does not name": Failing(
        lambda s: s.security("SSL"),
        "OTHER_NAME",
        SettingsError,
        "belongs to another host",
        None,
        host="127.0.0.1",
    ),
    "no certificate of ours": Failing(
        lambda s: s.security("SSL"),
        "MUTUAL",
        PermissionDenied,
        "rejects our certificate, or requires one",
        _CERTIFICATE,
    ),
    "a certificate of ours that the broker does not trust": Failing(
        lambda s: s.security("SSL", cert_file=str(s.unknown.both)),
        "MUTUAL",
        PermissionDenied,
        "rejects our certificate",
        _CERTIFICATE,
    ),
}
"""Each row of what a broker, its certificate or our own files can have against us."""
