"""How does a connection authenticate (SASL), and where do tokens come from?

Lives here: the login of a connection, and sources of OAUTHBEARER tokens. Not here: TLS
(etl/io/tls.py), the conf keys (etl/settings/connection_security.py).

The mechanisms are kafka-python's, without their I/O: tokens are sent and received here, under our
deadline, before any other request. GSSAPI alone also contacts Kerberos servers, without a deadline.

OAUTHBEARER tokens come from a user's function, from AWS for the machine's role, or from a file or
variable that others refresh. They are requested for each connection; the source caches them. A
user's function runs under a deadline.
"""

from __future__ import annotations

import importlib
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from etl.errors import BrokerRefusal, BrokerUnreachable, EtlError, PermissionDenied, SettingsError
from etl.io.brokers.connection import Connection, ImpossibleSize, new_buffer, not_kafka
from etl.io.tls import ConnectionBroken
from etl.kafka.broker_type_interface import MechanismAnswer, Request, TokenAnswer
from etl.kafka.broker_types import login_request
from etl.model.security import Login, Mechanism, SecretRef, Security, names_token_source
from etl.settings.secrets import login_text, resolve_secret


def call_with_deadline(
    function: Callable[[], Any], deadline: float, *, name: str, key: str, address: str
) -> Any:
    """Call a user's function until `deadline`, a `time.monotonic` value.

    Raises the function's own EtlError, and BrokerUnreachable if it raises anything else, exits
    (`sys.exit`) or does not return. Texts of exceptions are not repeated, since they may hold
    secrets. The thread of a function that does not return stays.
    """
    results: list[Any] = []
    failures: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:
            # SystemExit, too: a wrapped program that exits would end the run as if it were done.
            failures.append(error)

    thread = threading.Thread(target=call, name="token", daemon=True)
    began = time.monotonic()
    thread.start()
    thread.join(max(0.0, deadline - began))
    if results:
        return results[0]
    if failures:
        error = failures[0]
        if isinstance(error, EtlError):
            raise error
        message = f"{name} raised {type(error).__name__} at {_line_of(error)} and returned no token"
    else:
        message = (
            f"{name} returned no token within {time.monotonic() - began:.1f} s, the time left of"
            " source.request_timeout_s"
        )
    raise BrokerUnreachable(
        message,
        key=key,
        broker=address,
        action="Check that function, and the service that it calls",
    ) from None


def _line_of(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}"


KEY = "source.security.sasl.token"
_MSK = "aws-msk"


class TokenSource:
    """The source of one token, for one connection.

    `value`: of source.security.sasl.token. `deadline`: a `time.monotonic` value.
    """

    def __init__(self, value: str | SecretRef | None, address: str, deadline: float) -> None:
        self._value = value or ""
        self._address = address
        self._deadline = deadline

    def request(self) -> tuple[str, Mapping[str, str]]:
        """Request a token; return it with its extensions (KIP-342).

        Raises SettingsError if the source is invalid or returns no token, BrokerUnreachable if it
        fails or does not return in time.
        """
        if isinstance(self._value, SecretRef):
            return self._check(resolve_secret(self._value, KEY))
        if not names_token_source(self._value):
            # The value may be a secret, so the message does not repeat it.
            raise self._invalid(
                "The value names no source of tokens",
                f"Set {KEY}: module:function, aws-msk:REGION or a reference",
            )
        module, _, name = self._value.partition(":")
        if module == _MSK:
            token, _ = self._call(lambda: _msk_token(name))
            return self._check(token)
        function = self._call(lambda: self._import(module, name))
        return self._check(self._call(function))

    def _import(self, module: str, name: str) -> Callable[[], Any]:
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            missing = str(self._value)
            if isinstance(error, ModuleNotFoundError):
                missing = f"module {error.name}"
            raise self._invalid(
                f"There is no {missing}",
                f"Check {KEY}, and that the module is installed on every machine that connects to"
                " brokers (spark.submit.pyFiles)",
            ) from None
        if not callable(found):
            raise self._invalid(f"{self._value} is not a function", f"Check {KEY}")
        return found  # type: ignore[no-any-return]

    def _call(self, function: Callable[[], Any]) -> Any:
        return call_with_deadline(
            function, self._deadline, name=str(self._value), key=KEY, address=self._address
        )

    def _check(self, found: Any) -> tuple[str, Mapping[str, str]]:
        """Return token and extensions (KIP-342). Raises SettingsError for other types."""
        token = found
        extensions: Any = {}
        if isinstance(found, tuple) and len(found) == 2:
            token, extensions = found
        texts: list[Any] = [None]
        if isinstance(extensions, Mapping):
            texts = [token, *extensions, *extensions.values()]
        if not token or not all(map(_is_printable, texts)):
            raise self._invalid(
                f"{self._value} returned no token: it must return a text, or a text and a mapping"
                " of extensions",
                f"Check {KEY}",
            )
        return token, extensions

    def _invalid(self, message: str, action: str) -> SettingsError:
        return SettingsError(
            message, key=KEY, broker=self._address, host=os.uname().nodename, action=action
        )


def _is_printable(text: Any) -> bool:
    return isinstance(text, str) and text.isascii() and text.isprintable()


def _token_provider(token: str, extensions: Mapping[str, str]) -> Any:
    """Return the token as a token provider of kafka-python."""
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return token

        def extensions(self) -> Mapping[str, str]:
            return extensions

    return TokenProvider()


def _msk_token(region: str) -> tuple[str, int]:
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError:
        raise SettingsError(
            f"{_MSK} needs a library that is not installed",
            key=KEY,
            host=os.uname().nodename,
            action="Run pip install 'offset-range-etl[aws-msk]' on every machine that connects to"
            " brokers",
        ) from None
    found: tuple[str, int] = MSKAuthTokenProvider.generate_auth_token(region)
    return found


# The login of a connection

Answer = TypeVar("Answer")
_MAX_ANSWER_BYTES = 1 << 20
"""Kafka's limit of requests before a login is 512 KiB (sasl.server.max.receive.size)."""
_MECHANISM = "source.security.sasl.mechanism"
_RENEWED_AT = 0.85
"""Fraction of a login's lifetime after which an idle connection is replaced.

Kafka's clients use 0.85 to 0.95.
"""
_LEAST_ITERATIONS = 4096
"""SCRAM (RFC 7677): with fewer iterations an impostor could find the password from our answer."""


def log_in(
    connection: Connection, security: Security, host: str, client_id: str, deadline: float
) -> None:
    """Log in, if a login is configured. `deadline`: a `time.monotonic` value.

    Raises PermissionDenied if the broker rejects the login, SettingsError if the login is not
    possible, BrokerUnreachable, NotKafka, CorruptData; ConnectionBroken if the other side closes
    the connection at once.
    """
    if security.login is None:
        return
    requests = _Requests(connection, deadline)
    supported = requests.send(login_request(client_id, connection.address))
    try:
        answer = requests.send(supported.mechanism(security.login.mechanism.value))
        if not answer.is_taken:
            raise _unsupported_mechanism(answer, security.login, connection.address)
        proof = _SaslLogin(security.login, host, connection.address, deadline)
        while not proof.is_done:
            token_answer = requests.send(supported.token(proof.next()))
            if token_answer.refusal is not None:
                raise _rejected_login(security.login, proof, token_answer, token_answer.refusal)
            proof.receive(token_answer.token)
            if token_answer.lifetime_s is not None:
                connection.renew_at = time.monotonic() + _RENEWED_AT * token_answer.lifetime_s
    except ConnectionBroken as broken:
        if broken.each_time is not None:
            raise
        raise BrokerUnreachable(
            f"The broker closed the connection during the login: {broken}",
            broker=connection.address,
            action="Check the broker's log at this time",
        ) from None


def _rejected_login(
    login: Login, proof: _SaslLogin, answer: TokenAnswer, refusal: BrokerRefusal
) -> Exception:
    """Return the error of a rejected login.

    ConnectionBroken if another try may help, on the next connection: after a broker's own failure,
    and for a token that expired on its way, which the broker does not report.
    """
    error: EtlError
    if answer.is_wrong:
        error = proof.refused(answer.said or refusal.name)
    else:
        error = proof.failed_at(refusal, answer.said)
    may_have_expired = answer.is_wrong and login.mechanism is Mechanism.OAUTHBEARER
    if refusal.is_retriable or may_have_expired:
        return ConnectionBroken(error.message, answered=False, each_time=error)
    return error


def missing_login_error(connection: Connection, client_id: str, deadline: float) -> EtlError | None:
    """Return the error if the listener requires a login; None if it does not, or is unknown."""
    requests = _Requests(connection, deadline)
    try:
        supported = requests.send(login_request(client_id, connection.address))
        answer = requests.send(supported.mechanism(Mechanism.PLAIN.value))
    except (EtlError, ConnectionBroken):
        return None
    if answer.wants_none:
        return None
    offered = ", ".join(answer.offered) or "a mechanism that it does not report"
    return PermissionDenied(
        f"The listener requires a login by {offered}, and none is configured",
        key="source.security.protocol",
        broker=connection.address,
        action="Set source.security.protocol: SASL_SSL or SASL_PLAINTEXT, and"
        " source.security.sasl; or the address of another listener",
    )


class _Requests:
    """Requests of a login, one after the other, each with its response."""

    def __init__(self, connection: Connection, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._number = 0

    def send(self, request: Request[Answer]) -> Answer:
        self._number += 1
        self._connection.send(request.frame(self._number), self._deadline)
        try:
            answer = self._connection.receive(
                self._deadline, new_buffer, max_bytes=_MAX_ANSWER_BYTES
            )
        except ImpossibleSize as size:
            raise not_kafka(self._connection.address, size.first) from None
        if int.from_bytes(answer[:4], "big") != self._number:
            raise not_kafka(self._connection.address, bytes(answer[:4]))
        return request.read(answer).answer


def _unsupported_mechanism(answer: MechanismAnswer, login: Login, address: str) -> SettingsError:
    if answer.wants_none:
        return SettingsError(
            "The listener does not use SASL, and a login is configured",
            key="source.security.protocol",
            broker=address,
            action="Set source.security.protocol: SSL or PLAINTEXT; or the address of another"
            " listener",
        )
    offered = ", ".join(answer.offered) or "none that it reports"
    return SettingsError(
        f"The listener does not support the SASL mechanism {login.mechanism.value};"
        f" it supports {offered}",
        key=_MECHANISM,
        broker=address,
        action=f"Check {_MECHANISM}, and sasl.enabled.mechanisms of the broker",
    )


class _SaslLogin:
    """Tokens of the mechanism, created and parsed. Errors contain no secrets."""

    def __init__(self, login: Login, host: str, address: str, deadline: float) -> None:
        self._login = login
        self._address = address
        self._deadline = deadline
        self._secrets: list[str] = []
        self._mechanism = self._create_mechanism(host)

    def _create_mechanism(self, host: str) -> Any:
        # Imported here, since most connections have no login.
        from kafka.net.sasl import get_sasl_mechanism

        name = self._login.mechanism.value
        try:
            return get_sasl_mechanism(name)(host=host, sasl_mechanism=name, **self._credentials())
        except RuntimeError:
            # The mechanisms raise it for one reason only: a library is not installed.
            raise SettingsError(
                "GSSAPI needs a library that is not installed",
                key=_MECHANISM,
                broker=self._address,
                action="Run pip install 'offset-range-etl[gssapi]' on every machine that connects"
                " to brokers",
            ) from None
        except EtlError:
            raise
        except Exception as error:
            # Errors of the Kerberos library, which is optional, so its classes are not imported.
            raise self._failed(error) from None

    def _credentials(self) -> Mapping[str, Any]:
        login = self._login
        if login.mechanism.has_password:
            name = login_text(login.username, "source.security.sasl.username")
            password = login_text(login.password, "source.security.sasl.password")
            self._secrets.append(password)
            if isinstance(login.username, SecretRef):
                self._secrets.append(name)
            if login.mechanism is not Mechanism.PLAIN:
                # RFC 5802, 5.1; kafka-python does not escape it.
                name = name.replace("=", "=3D").replace(",", "=2C")
            return {"sasl_plain_username": name, "sasl_plain_password": password}
        if login.mechanism is Mechanism.OAUTHBEARER:
            token, extensions = TokenSource(login.token, self._address, self._deadline).request()
            self._secrets.append(token)
            return {"sasl_oauth_token_provider": _token_provider(token, extensions)}
        return {"sasl_kerberos_service_name": login.service}

    @property
    def is_done(self) -> bool:
        return bool(self._mechanism.is_done())

    def next(self) -> bytes:
        try:
            return bytes(self._mechanism.auth_bytes())
        except EtlError:
            raise
        except Exception as error:
            raise self._failed(error) from None

    def receive(self, token: bytes) -> None:
        if self._login.mechanism in (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512):
            self._reject_few_iterations(token)
        try:
            self._mechanism.receive(token)
        except Exception as error:
            raise self._failed(error) from None

    def _reject_few_iterations(self, token: bytes) -> None:
        counts = re.findall(rb"(?:^|,)i=([^,]*)", token)
        if all(map(_is_enough, counts)):
            return
        requested = " and ".join(each.decode("ascii", "replace")[:20] for each in counts)
        raise PermissionDenied(
            f"The server requests {requested} SCRAM iterations, and the minimum is"
            f" {_LEAST_ITERATIONS}",
            key=_MECHANISM,
            broker=self._address,
            action="Check that the address is the broker's, and how its users were created",
        )

    def refused(self, text: str) -> PermissionDenied:
        """Return the error of a rejection: brokers do not report whether name or password is wrong.

        `text`: the broker's reason.
        """
        mechanism = self._login.mechanism
        keys = {
            Mechanism.OAUTHBEARER: "source.security.sasl.token",
            Mechanism.GSSAPI: "source.security.sasl.kerberos_service_name",
        }
        key = keys.get(mechanism, "source.security.sasl.password")
        credentials = "username and password" if mechanism.has_password else key
        return PermissionDenied(
            f"The broker refuses the login by {mechanism.value}: {self._mask(text)}",
            key=key,
            broker=self._address,
            action=f"Check {credentials}, and that the broker knows them",
        )

    def failed_at(self, refusal: BrokerRefusal, text: str) -> EtlError:
        """Return the error of a code that is not about wrong credentials.

        The broker cannot check them, or the port expects another kind of login.
        """
        error = refusal.error(
            f"log us in by {self._login.mechanism.value}", key=_MECHANISM, broker=self._address
        )
        message = error.message
        reason = self._mask(text)
        if reason:
            message = f"{message}: {reason}"
        return refusal.kind(message, action=error.action, **error.where)

    def _failed(self, error: Exception) -> PermissionDenied:
        """Return the error of a login that failed on our side.

        For example an invalid server proof: a broker that does not know our password cannot sign
        with it.
        """
        reason = self._mask(str(error) or type(error).__name__)
        return PermissionDenied(
            f"The login by {self._login.mechanism.value} failed: {reason}",
            key=_MECHANISM,
            broker=self._address,
            action="Check that the address is the broker's. With GSSAPI check the ticket (klist)"
            " and source.security.sasl.kerberos_service_name",
        )

    def _mask(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return " ".join(text.split())


def _is_enough(iterations: bytes) -> bool:
    is_number = re.fullmatch(rb"[0-9]{1,7}", iterations) is not None
    return is_number and int(iterations) >= _LEAST_ITERATIONS
