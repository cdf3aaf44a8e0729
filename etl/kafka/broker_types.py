"""Which broker type does a broker have, and how does a connection to it begin?

Lives here: the list of all broker types, the choice among them, and the requests of a login:
ApiVersions, which brokers answer before a login, SaslHandshake v1 and SaslAuthenticate (KIP-43,
KIP-152, KIP-368).
Not here: requests of one broker type (kafka_broker_type.py, jafka_broker_type.py).

Before Kafka 1.0 SASL tokens were sent without a request header, and a rejected login closed the
connection. Logins to such brokers are not supported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from etl.errors import NotKafka, SettingsError
from etl.kafka import kafka_python_messages, versions
from etl.kafka.broker_type_interface import (
    BrokerType,
    Greeting,
    LoginProtocol,
    MechanismAnswer,
    Reply,
    Request,
    TokenAnswer,
)
from etl.kafka.jafka_broker_type import Jafka
from etl.kafka.kafka_broker_type import Kafka
from etl.kafka.versions import NONE, Api, ApiVersions, error_of, release_of

Answer = TypeVar("Answer")
Greeted = TypeVar("Greeted")

BROKER_TYPES: tuple[BrokerType, ...] = (Kafka(), Jafka())
"""All broker types, the newest first."""

_ILLEGAL_STATE = 34
_AUTHENTICATION_FAILED = 58
_HANDSHAKE = 1
"""The version of SaslHandshake after which tokens are sent by SaslAuthenticate."""


def choose(
    greet: Callable[[Greeting], Greeted], *, client_id: str, address: str, told: str | None = None
) -> Greeted:
    """Return the result of `greet` for the first broker type whose handshake succeeds.

    `told` is the configured broker type or release; no other type is then tried. `greet` raises
    NotKafka for another protocol. If no type fits, the error of the newest type is raised, as most
    brokers are of that type. Raises SettingsError for an unknown name.
    """
    failures: list[NotKafka] = []
    for broker_type in _candidates(told):
        try:
            return greet(broker_type.greeting(client_id, address, told))
        except NotKafka as failure:
            failures.append(failure)
    raise failures[0]


def _candidates(name: str | None) -> tuple[BrokerType, ...]:
    """Return the broker types to try: those of this name, or all that can be detected."""
    if name is None:
        return tuple(broker_type for broker_type in BROKER_TYPES if not broker_type.is_told)

    named = tuple(broker_type for broker_type in BROKER_TYPES if name in broker_type.names)
    if not named:
        names: list[str] = []
        for broker_type in BROKER_TYPES:
            names.extend(broker_type.names)
        raise SettingsError(
            f"There is no broker type {name}",
            key="source.broker_type",
            action=f"Use one of {', '.join(names)}",
        )
    return named


def is_release_name(reported: str | None) -> bool:
    """True if this name is a release whose brokers could also be asked for their versions."""
    return any(reported in broker_type.releases for broker_type in BROKER_TYPES)


def returns_uncommitted_records(reported: str | None) -> bool:
    """True if requests of this release return uncommitted records, also from a newer broker."""
    return any(reported in broker_type.without_isolation for broker_type in BROKER_TYPES)


def release_name(version: str, **written: str) -> str:
    """Return the name of the release of a Kafka version, so that brokers are not asked.

    `written` names the setting in errors. Raises SettingsError for an unsupported version.
    """
    release = release_of(version)
    if release is not None:
        return Kafka.name_of(release)

    raise SettingsError(
        f"The API versions of brokers of version {version} are unknown",
        action=(
            "Check the number, such as 0.8.2, 0.9 or 3.9. "
            "Brokers from 0.10 on report their API versions, and need no broker_version"
        ),
        **(written or {"key": "source.broker_version"}),
    )


def login_request(client_id: str, address: str) -> Request[LoginProtocol]:
    """Return the request whose response decides how to log in. Only Kafka has logins.

    Parsing the response raises SettingsError if the broker supports no login known here.
    """

    def choose_login(response: Any) -> LoginProtocol:
        spoken = kafka_python_messages.parse_api_versions(response)
        has_handshake = versions.newest_of(Api.SASL_HANDSHAKE, spoken) >= _HANDSHAKE
        if not has_handshake or not versions.is_supported(Api.SASL_AUTHENTICATE, spoken):
            raise SettingsError(
                "The broker is older than Kafka 1.0, and logins are supported from 1.0 on",
                key="source.security.protocol",
                broker=address,
                action="Set source.security.protocol: PLAINTEXT or SSL, and source.listener or"
                " source.bootstrap_servers to a listener without a login",
            )
        return KafkaLogin(spoken, client_id, address)

    return _request(Api.API_VERSIONS, 0, {}, choose_login, client_id, address)


@dataclass(frozen=True, slots=True)
class KafkaLogin(LoginProtocol):
    """Requests of a login to a Kafka broker."""

    spoken: ApiVersions
    client_id: str
    address: str

    def mechanism(self, name: str) -> Request[MechanismAnswer]:
        return _request(
            Api.SASL_HANDSHAKE,
            _HANDSHAKE,
            {"mechanism": name},
            parse_mechanisms,
            self.client_id,
            self.address,
        )

    def token(self, token: bytes) -> Request[TokenAnswer]:
        version = versions.choose_version(Api.SASL_AUTHENTICATE, self.spoken, broker=self.address)
        return _request(
            Api.SASL_AUTHENTICATE,
            version,
            {"auth_bytes": token},
            parse_token,
            self.client_id,
            self.address,
        )


def parse_mechanisms(response: Any) -> MechanismAnswer:
    """Parse a response to SaslHandshake."""
    code = response.error_code
    return MechanismAnswer(code == NONE, tuple(response.mechanisms), code == _ILLEGAL_STATE)


def parse_token(response: Any) -> TokenAnswer:
    """Parse a response to SaslAuthenticate.

    Only one error code means wrong credentials. The others are failures of a broker or a proxy.
    """
    code = response.error_code
    if refusal := error_of(code):
        return TokenAnswer(
            refusal=refusal,
            is_wrong=code == _AUTHENTICATION_FAILED,
            said=response.error_message or "",
        )

    lifetime_ms = getattr(response, "session_lifetime_ms", 0) or 0
    lifetime_s = lifetime_ms / 1000 if lifetime_ms > 0 else None
    return TokenAnswer(bytes(response.auth_bytes), lifetime_s=lifetime_s)


def _request(
    api: Api,
    version: int,
    fields: Mapping[str, Any],
    parse: Callable[[Any], Answer],
    client_id: str,
    address: str,
) -> Request[Answer]:
    def frame(number: int) -> bytes:
        return kafka_python_messages.encode(
            api, version, correlation_id=number, client_id=client_id, fields=fields
        )

    def read(answer: memoryview) -> Reply[Answer]:
        return Reply(parse(kafka_python_messages.decode(api, version, answer, broker=address)))

    return Request(frame, read)
