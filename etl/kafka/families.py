"""Which family does a broker belong to, and how does a connection to it begin?

This is the only module that names all families. It also encodes the requests of a login:
ApiVersions, which brokers answer before a login, SaslHandshake v1 and SaslAuthenticate (KIP-43,
KIP-152, KIP-368). Before Kafka 1.0 SASL tokens were sent without a request header, and a rejected
login closed the connection: logins to such brokers are not supported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from etl.errors import NotKafka, SettingsError
from etl.kafka import small_messages, versions
from etl.kafka.jafka_family import Jafka
from etl.kafka.kafka_family import Kafka
from etl.kafka.protocol import (
    Generation,
    Greeting,
    LoginDialect,
    MechanismAnswer,
    Reply,
    Request,
    TokenAnswer,
)
from etl.kafka.versions import NONE, Api, ApiVersions, error_of, release_of

Answer = TypeVar("Answer")
_ILLEGAL_STATE = 34
_AUTHENTICATION_FAILED = 58
_HANDSHAKE = 1


def asked_first(client_id: str, address: str) -> Request[LoginDialect]:
    """Return the request by which a broker tells how to log in. Parsing its response raises
    SettingsError if that is unsupported.
    """

    def dialect(response: Any) -> LoginDialect:
        spoken = small_messages.parse_api_versions(response)
        if versions.newest_of(Api.SASL_HANDSHAKE, spoken) < _HANDSHAKE or not versions.is_spoken(
            Api.SASL_AUTHENTICATE, spoken
        ):
            action = "Use a listener without a login, for brokers of this release"
            raise SettingsError(
                "The broker is of a release before 1.0, and logins begin there",
                broker=address,
                action=action,
            )
        return KafkaLogin(spoken, client_id, address)

    return _request(Api.API_VERSIONS, 0, {}, dialect, client_id, address)


@dataclass(frozen=True, slots=True)
class KafkaLogin(LoginDialect):
    """See `LoginDialect`."""

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
    """An answer to SaslHandshake."""
    code = response.error_code
    return MechanismAnswer(code == NONE, tuple(response.mechanisms), code == _ILLEGAL_STATE)


def parse_token(response: Any) -> TokenAnswer:
    """Parse a response to SaslAuthenticate. One code alone means wrong credentials; others are
    failures of a broker, or of a proxy.
    """
    code = response.error_code
    if refusal := error_of(code):
        return TokenAnswer(
            refusal=refusal,
            is_wrong=code == _AUTHENTICATION_FAILED,
            said=response.error_message or "",
        )
    lifetime_ms = getattr(response, "session_lifetime_ms", 0) or 0
    return TokenAnswer(
        bytes(response.auth_bytes), lifetime_s=lifetime_ms / 1000 if lifetime_ms > 0 else None
    )


def _request(
    api: Api,
    version: int,
    fields: Mapping[str, Any],
    parse: Callable[[Any], Answer],
    client_id: str,
    address: str,
) -> Request[Answer]:
    def frame(number: int) -> bytes:
        return small_messages.encode(
            api, version, correlation_id=number, client_id=client_id, fields=fields
        )

    def read(answer: memoryview) -> Reply[Answer]:
        return Reply(parse(small_messages.decode(api, version, answer, broker=address)))

    return Request(frame, read)


Greeted = TypeVar("Greeted")
GENERATIONS: tuple[Generation, ...] = (Kafka(), Jafka())
"""The newest first."""


def choose(
    greet: Callable[[Greeting], Greeted], *, client_id: str, address: str, told: str | None = None
) -> Greeted:
    """Return what `greet` makes of the first broker type whose handshake succeeds, or of the
    configured one (`told`).

    `greet` raises NotKafka for another protocol. If none fits, the error of the newest type is
    raised, which most brokers are. Raises SettingsError for an unknown name.
    """
    strangers: list[NotKafka] = []
    for generation in _asked(told):
        try:
            return greet(generation.greeting(client_id, address, told))
        except NotKafka as stranger:
            strangers.append(stranger)
    raise strangers[0]


def login_asked_first(client_id: str, address: str) -> Request[LoginDialect]:
    """Return the request by which a broker tells how to log in. Only one broker type has logins."""
    return asked_first(client_id, address)


def is_release(reported: str | None) -> bool:
    """True if a broker that is configured as this release could also be asked for its versions."""
    return any(reported in generation.releases for generation in GENERATIONS)


def may_lose_isolation(reported: str | None) -> bool:
    """True if a broker that is configured as this release is read without isolation, whatever it
    is.
    """
    return any(reported in generation.without_isolation for generation in GENERATIONS)


def of_broker_version(version: str, **written: str) -> str:
    """Return the release name for a Kafka version, so that brokers are not asked. Raises
    SettingsError for an unsupported version; `written` names the setting.
    """
    release = release_of(version)
    if release is None:
        message = f"What brokers of version {version} speak is not known"
        action = "Check the number, such as 0.8.2, 0.9 or 3.9; brokers from 0.10 on tell what they speak by themselves"
        raise SettingsError(message, action=action, **(written or {"key": "source.broker_version"}))
    return Kafka.name_of(release)


def _asked(reported: str | None) -> tuple[Generation, ...]:
    if reported is None:
        return tuple(generation for generation in GENERATIONS if not generation.is_told)
    found = tuple(generation for generation in GENERATIONS if reported in generation.names)
    if not found:
        names = ", ".join(name for generation in GENERATIONS for name in generation.names)
        raise SettingsError(
            f"There is no generation of brokers called {reported}", action=f"Use one of {names}"
        )
    return found
