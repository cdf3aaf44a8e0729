"""Errors at a broker's listeners: keys of `source`, the class, and the message."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from etl.errors import BrokerUnreachable, EtlError, NotKafka, PermissionDenied, SettingsError
from tests.networks.secured import Secured

Way = dict[str, Any]
"""`listener`, and `security` as in a conf."""
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


_LOGINS: dict[str, tuple[Callable[[Secured], Way], str | None, Case]] = {
    "a wrong name": (
        lambda s: changed(s.security("SASL_SSL", "PLAIN"), username="unknown"),
        None,
        (
            PermissionDenied,
            "refuses the login by PLAIN: Authentication failed",
            "source.security.sasl.password",
        ),
    ),
    "a wrong name of SCRAM": (
        lambda s: changed(s.security("SASL_SSL", "SCRAM-SHA-512"), username="unknown"),
        None,
        (PermissionDenied, "refuses the login by SCRAM-SHA-512", "source.security.sasl.password"),
    ),
    "a wrong password": (
        lambda s: changed(s.security("SASL_SSL", "SCRAM-SHA-256"), password="${env:HOME}"),
        None,
        (PermissionDenied, "refuses the login by SCRAM-SHA-256", "source.security.sasl.password"),
    ),
    "a wrong token": (
        lambda s: changed(s.security("SASL_SSL", "OAUTHBEARER"), token="${env:HOME}"),
        None,
        (
            PermissionDenied,
            'refuses the login by OAUTHBEARER: .*"status":"invalid_token"',
            "source.security.sasl.token",
        ),
    ),
    "a mechanism that the listener does not have": (
        lambda s: s.security("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        "PLAIN_ONLY",
        (
            SettingsError,
            "does not support the SASL mechanism SCRAM-SHA-256; it supports PLAIN",
            "source.security.sasl.mechanism",
        ),
    ),
    "a login to a listener without SASL, encrypted": (
        lambda s: s.security("SASL_SSL", "PLAIN"),
        "SSL",
        (SettingsError, "does not use SASL, and a login is configured", "source.security.protocol"),
    ),
    "a login to a listener without SASL": (
        lambda s: s.security("SASL_PLAINTEXT", "PLAIN"),
        "PLAINTEXT",
        (SettingsError, "does not use SASL, and a login is configured", "source.security.protocol"),
    ),
    "no login": (
        lambda s: s.security("PLAINTEXT"),
        "SASL_PLAINTEXT",
        (
            PermissionDenied,
            "requires a login by .*SCRAM-SHA-512.*, and none is configured",
            "source.security.protocol",
        ),
    ),
    "no login, encrypted": (
        lambda s: s.security("SSL"),
        "SASL_SSL",
        (PermissionDenied, "requires a login by .*PLAIN", "source.security.protocol"),
    ),
    "no encryption": (
        lambda s: s.security("PLAINTEXT"),
        "SSL",
        (NotKafka, "The port speaks TLS", "source.security.protocol"),
    ),
    "no encryption of a login": (
        lambda s: s.security("SASL_PLAINTEXT", "PLAIN"),
        "SASL_SSL",
        (NotKafka, "The port speaks TLS.*SASL_SSL", "source.security.protocol"),
    ),
    "encryption that the port does not speak": (
        lambda s: s.security("SSL"),
        "PLAINTEXT",
        (NotKafka, "The port does not use TLS", "source.security.protocol"),
    ),
    "encryption of a login that the port does not speak": (
        lambda s: s.security("SASL_SSL", "PLAIN"),
        "SASL_PLAINTEXT",
        (NotKafka, "The port does not use TLS", "source.security.protocol"),
    ),
    "a function that fails": (
        lambda s: changed(
            s.security("SASL_SSL", "OAUTHBEARER"), token="tests.networks.tokens:failing"
        ),
        None,
        (
            BrokerUnreachable,
            r"raised ConnectionError at tokens.py:\d+ and returned no token",
            "source.security.sasl.token",
        ),
    ),
    "a function that gives nothing": (
        lambda s: changed(
            s.security("SASL_SSL", "OAUTHBEARER"), token="tests.networks.tokens:empty"
        ),
        None,
        (
            SettingsError,
            "tests.networks.tokens:empty returned no token",
            "source.security.sasl.token",
        ),
    ),
    "no function": (
        lambda s: changed(
            s.security("SASL_SSL", "OAUTHBEARER"), token="tests.networks.tokens:NOT_CALLABLE"
        ),
        None,
        (SettingsError, "is not a function", "source.security.sasl.token"),
    ),
    "no module": (
        lambda s: changed(s.security("SASL_SSL", "OAUTHBEARER"), token="no_such.module:token"),
        None,
        (SettingsError, "There is no module no_such", "source.security.sasl.token"),
    ),
    "no secret": (
        lambda s: changed(s.security("SASL_SSL", "PLAIN"), password="${file:/no/such/secret}"),
        None,
        (
            SettingsError,
            "source.security.sasl.password refers to the file /no/such/secret, which cannot be "
            "read",
            "source.security.sasl.password",
        ),
    ),
}
_CERTIFICATES: dict[str, tuple[Callable[[Secured], Way], str, str, str | None, dict[str, Of]]] = {
    "an authority that did not sign it": (
        lambda s: s.security("SSL", ca_file=str(s.stranger.ca)),
        "SSL",
        "The broker's certificate is not signed by a trusted CA",
        "source.security.tls.ca_file",
        {"file": lambda s: str(s.stranger.ca), "host": lambda s: "localhost"},
    ),
    "the system's authorities": (
        lambda s: {"listener": "SSL", "security": {"protocol": "SSL"}},
        "SSL",
        "The broker's certificate is not signed by a trusted CA",
        "source.security.tls.ca_file",
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
        "source.security.tls.ca_file",
        {"host": lambda s: "localhost"},
    ),
    "no file of authorities": (
        lambda s: s.security("SSL", ca_file="/no/ca.pem"),
        "SSL",
        "The file cannot be read: No such file",
        "source.security.tls.ca_file",
        {"file": lambda s: "/no/ca.pem"},
    ),
    "a file of something else": (
        lambda s: s.security("SSL", ca_file=str(s.client.key)),
        "SSL",
        "The file has no valid PEM content",
        "source.security.tls.ca_file",
        {},
    ),
    "no file of our own": (
        lambda s: s.security("SSL", cert_file="/no/cert.pem"),
        "MUTUAL",
        "The file cannot be read: No such file",
        "source.security.tls.cert_file",
        {"file": lambda s: "/no/cert.pem"},
    ),
    "no key": (
        lambda s: s.security("SSL", cert_file=str(s.client.cert), key_file="/no/key.pem"),
        "MUTUAL",
        "The file cannot be read",
        "source.security.tls.key_file",
        {"file": lambda s: "/no/key.pem"},
    ),
    "another key": (
        lambda s: s.security("SSL", cert_file=str(s.client.cert), key_file=str(s.unknown.key)),
        "MUTUAL",
        "The key does not belong to the certificate",
        "source.security.tls.key_file",
        {"file": lambda s: str(s.unknown.key)},
    ),
    "a key without its password": (
        lambda s: s.security(
            "SSL", cert_file=str(s.client.cert), key_file=str(s.authority.locked(s.client))
        ),
        "MUTUAL",
        "The password does not decrypt the key",
        "source.security.tls.key_password",
        {},
    ),
    "a key of another password": (
        lambda s: s.security(
            "SSL",
            cert_file=str(s.client.cert),
            key_file=str(s.authority.locked(s.client)),
            key_password="${env:KAFKA_PASSWORD}",
        ),
        "MUTUAL",
        "The password does not decrypt the key",
        "source.security.tls.key_password",
        {},
    ),
}
_CERT_FILE = "source.security.tls.cert_file"
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
        _CERT_FILE,
    ),
    "a certificate of ours that the broker does not trust": Failing(
        lambda s: s.security("SSL", cert_file=str(s.unknown.both)),
        "MUTUAL",
        PermissionDenied,
        "rejects our certificate",
        _CERT_FILE,
    ),
}
"""Each row of what a broker, its certificate or our own files can have against us."""
