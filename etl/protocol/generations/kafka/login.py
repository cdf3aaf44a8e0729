"""The requests of a login: ApiVersions, which brokers answer before it, SaslHandshake v1 and
SaslAuthenticate (KIP-43, KIP-152, KIP-368).

Before Kafka 1.0 a mechanism's bytes went without a request around them, and a refusal was a
hang-up: such brokers are not logged in to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from etl.errors import SettingsError
from etl.protocol.generations.dialect import Reply, Request
from etl.protocol.generations.kafka import small_messages, versions
from etl.protocol.generations.kafka.errors import NONE, refusal_of
from etl.protocol.generations.kafka.versions import Api, ApiVersions
from etl.protocol.login import LoginDialect, MechanismAnswer, TokenAnswer

Answer = TypeVar("Answer")
_ILLEGAL_STATE = 34
_AUTHENTICATION_FAILED = 58
_HANDSHAKE = 1


def asked_first(client_id: str, address: str) -> Request[LoginDialect]:
    """The question by which a broker tells how it is logged in to. Its answer raises SettingsError
    where that is not known here.
    """

    def dialect(response: Any) -> LoginDialect:
        spoken = small_messages.parse_api_versions(response)
        if versions.newest_of(Api.SASL_HANDSHAKE, spoken) < _HANDSHAKE or not versions.is_spoken(
            Api.SASL_AUTHENTICATE, spoken
        ):
            check = "a listener without a login, for brokers of this release"
            raise SettingsError(
                "the broker is of a release before 1.0, and logins begin there",
                broker=address,
                check=check,
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
    """An answer to SaslAuthenticate. One code alone is of a wrong login: the others are faults of a
    broker, or of what stands before it.
    """
    code = response.error_code
    if refusal := refusal_of(code):
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
