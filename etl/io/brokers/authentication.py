"""How does a connection authenticate (SASL), and where do tokens come from?

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
from etl.kafka.families import login_request
from etl.kafka.protocol import MechanismAnswer, Request, TokenAnswer
from etl.model.security import Login, Mechanism, SecretRef, Security, names_token_source
from etl.settings.secrets import login_text, resolve_secret


def called_until(
    function: Callable[[], Any], deadline: float, *, name: str, key: str, address: str
) -> Any:
    """Call a user's function until `deadline`, a `time.monotonic` value.

    Raises the function's own EtlError, and BrokerUnreachable if it raises anything else, exits
    (`sys.exit`) or does not return. Texts of exceptions are not repeated, since they may hold
    secrets. A hanging function is left behind in its thread.
    """
    outcome = list[Any]()
    failure = list[BaseException]()

    def call() -> None:
        try:
            outcome.append(function())
        except BaseException as error:  # SystemExit, too: a program that was wrapped ends itself, and would end the run as if it were done
            failure.append(error)

    calling = threading.Thread(target=call, name="token", daemon=True)
    began = time.monotonic()
    calling.start()
    calling.join(max(0.0, deadline - began))
    if outcome:
        return outcome[0]
    if failure and isinstance(failure[0], EtlError):
        raise failure[0]
    if failure:
        message = (
            f"{name} raised {type(failure[0]).__name__} at {_place(failure[0])}, and gave no token"
        )
    else:
        message = f"{name} gave no token in {time.monotonic() - began:.1f} s, which were left of source.request_timeout_s"
    raise BrokerUnreachable(
        message, key=key, broker=address, action="Check that function, and whom it asks"
    ) from None


def _place(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno}"


KEY = "source.security.sasl.token"
_MSK = "aws-msk"


class TokenSource:
    """One token, for one connection; `given` holds it after the request. `deadline`: a
    `time.monotonic` value.
    """

    def __init__(self, value: str | SecretRef | None, address: str, deadline: float) -> None:
        self._said, self._address, self._deadline = value or "", address, deadline
        self.given: list[str] = []

    def provider(self) -> Any:
        """Return the token provider for kafka-python. It raises SettingsError if the source is
        invalid, BrokerUnreachable if it fails.
        """
        from kafka.net.sasl.oauth import AbstractTokenProvider

        token, extensions = self._asked()
        self.given.append(token)

        class Provider(AbstractTokenProvider):  # type: ignore[misc]
            def token(self) -> str:
                return token

            def extensions(self) -> Mapping[str, str]:
                return extensions

        return Provider()

    def _asked(self) -> tuple[str, Mapping[str, str]]:
        if isinstance(self._said, SecretRef):
            return self._checked(resolve_secret(self._said, KEY))
        if not names_token_source(self._said):
            raise self._wrong(
                "what stands there names no source of tokens",
                f"{KEY}: module:function, aws-msk:REGION or a reference",
            )
        module, _, name = self._said.partition(":")
        if module == _MSK:
            return self._checked(self._called(lambda: _msk_token(name))[0])
        return self._checked(self._called(self._called(lambda: self._function(module, name))))

    def _function(self, module: str, name: str) -> Callable[[], Any]:
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            if isinstance(error, ModuleNotFoundError):
                missing = f"module {error.name}"
            else:
                missing = f"{self._said}"
            action = f"{KEY}, and that the module is there on every machine that connects to brokers (spark.submit.pyFiles)"
            raise self._wrong(f"there is no {missing}", action) from None
        if not callable(found):
            raise self._wrong(f"{self._said} is no function", KEY)
        return found  # type: ignore[no-any-return]

    def _called(self, function: Callable[[], Any]) -> Any:
        return called_until(
            function, self._deadline, name=str(self._said), key=KEY, address=self._address
        )

    def _checked(self, found: Any) -> tuple[str, Mapping[str, str]]:
        token, extensions = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
        if isinstance(extensions, Mapping):
            texts = [token, *extensions, *extensions.values()]
        else:
            texts = [None]
        if not token or not all(
            isinstance(text, str) and text.isascii() and text.isprintable() for text in texts
        ):
            raise self._wrong(
                f"{self._said} gave no token: it must give a text, or that and a mapping of extensions",
                KEY,
            )
        return token, extensions

    def _wrong(self, message: str, action: str) -> SettingsError:
        return SettingsError(
            message, key=KEY, broker=self._address, host=os.uname().nodename, action=action
        )


def _msk_token(region: str) -> tuple[str, int]:
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError:
        action = (
            "Run pip install 'offset-range-etl[aws-msk]' on every machine that connects to brokers"
        )
        raise SettingsError(
            f"{_MSK} takes a library that is not installed",
            key=KEY,
            host=os.uname().nodename,
            action=action,
        ) from None
    found: tuple[str, int] = MSKAuthTokenProvider.generate_auth_token(region)
    return found


Answer = TypeVar("Answer")
_MAX_ANSWER_BYTES = 1 << 20
"""Kafka's limit of requests before a login is 512 KiB (sasl.server.max.receive.size)."""
_MECHANISM = "source.security.sasl.mechanism"
_OF_LIFETIME = 0.85
"""Fraction of a login's lifetime after which an idle connection is replaced. Kafka's clients use
0.85 to 0.95.
"""
_LEAST_ITERATIONS = 4096
"""SCRAM (RFC 7677): with fewer iterations an impostor could find the password from our answer."""


def log_in(
    connection: Connection, security: Security, host: str, client_id: str, deadline: float
) -> None:
    """Nothing where there is no login. `deadline`: a `time.monotonic` moment.

    Raises PermissionDenied where the broker does not take it, SettingsError where it cannot be
    tried, BrokerUnreachable, NotKafka, CorruptData; ConnectionBroken where the other side hangs up
    at once.
    """
    if security.login is None:
        return
    asking = _Asking(connection, deadline)
    spoken = asking.ask(login_request(client_id, connection.address))
    try:
        answer = asking.ask(spoken.mechanism(security.login.mechanism.value))
        if not answer.is_taken:
            raise _rejected_login(answer, security.login, connection.address)
        proof = _Proof(security.login, host, connection.address, deadline)
        while not proof.is_done:
            broker_answer = asking.ask(spoken.token(proof.next()))
            if broker_answer.refusal is not None:
                raise _refused(security.login, proof, broker_answer, broker_answer.refusal)
            proof.receive(broker_answer.token)
            if broker_answer.lifetime_s is not None:
                connection.renew_at = time.monotonic() + _OF_LIFETIME * broker_answer.lifetime_s
    except ConnectionBroken as broken:
        if broken.each_time is not None:
            raise
        message = f"The broker hung up in the middle of the login: {broken}"
        raise BrokerUnreachable(
            message, broker=connection.address, action="Check the broker's log at this time"
        ) from None


def _refused(login: Login, proof: _Proof, answer: TokenAnswer, refusal: BrokerRefusal) -> Exception:
    """Return the error of a rejected login. A token may expire on its way, which the broker does
    not report: one more is requested, on the next connection. So it is after a broker's own
    failure.
    """
    if answer.is_wrong:
        error: EtlError = proof.refused(answer.said or refusal.name)
    else:
        error = proof.failed_at(refusal, answer.said)
    if refusal.is_retriable or answer.is_wrong and login.mechanism is Mechanism.OAUTHBEARER:
        return ConnectionBroken(error.message, answered=False, each_time=error)
    return error


def missing_login_error(connection: Connection, client_id: str, deadline: float) -> EtlError | None:
    """Return the error if the listener requires a login; None if it does not, or does not say."""
    asking = _Asking(connection, deadline)
    try:
        spoken = asking.ask(login_request(client_id, connection.address))
        answer = asking.ask(spoken.mechanism(Mechanism.PLAIN.value))
    except (EtlError, ConnectionBroken):
        return None
    if answer.wants_none:
        return None
    offered = ", ".join(answer.offered) or "mechanisms that it does not tell"
    message = f"The listener wants a login, by {offered}, and we have none for it"
    action = "Check source.security: protocol SASL_SSL or SASL_PLAINTEXT and sasl; or the address of another listener"
    return PermissionDenied(
        message, key="source.security.protocol", broker=connection.address, action=action
    )


class _Asking:
    """One request after the other, each with its answer."""

    def __init__(self, connection: Connection, deadline: float) -> None:
        self._connection, self._deadline, self._number = connection, deadline, 0

    def ask(self, request: Request[Answer]) -> Answer:
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


def _rejected_login(answer: MechanismAnswer, login: Login, address: str) -> SettingsError:
    if answer.wants_none:
        action = (
            "Set source.security.protocol: SSL or PLAINTEXT; or the address of another listener"
        )
        return SettingsError(
            "The listener wants no login",
            key="source.security.protocol",
            broker=address,
            action=action,
        )
    message = f"The listener takes no login by {login.mechanism.value}; it has {', '.join(answer.offered) or 'none that it tells of'}"
    return SettingsError(
        message,
        key=_MECHANISM,
        broker=address,
        action=f"Check {_MECHANISM}, and sasl.enabled.mechanisms of the broker",
    )


class _Proof:
    """Tokens of the mechanism, made and parsed. Errors contain no secrets."""

    def __init__(self, login: Login, host: str, address: str, deadline: float) -> None:
        self._login, self._address, self._deadline = login, address, deadline
        self._secrets: list[str] = []
        self._mechanism = self._made(host)

    def _made(self, host: str) -> Any:
        from kafka.net.sasl import get_sasl_mechanism  # who logs in nowhere does not wait for it

        name = self._login.mechanism.value
        try:
            return get_sasl_mechanism(name)(host=host, sasl_mechanism=name, **self._given())
        except RuntimeError:  # its only one: that the library is not there
            action = "Run pip install 'offset-range-etl[gssapi]' on every machine that connects to brokers"
            raise SettingsError(
                "GSSAPI takes a library that is not installed",
                key=_MECHANISM,
                broker=self._address,
                action=action,
            ) from None
        except EtlError:
            raise
        except Exception as error:  # of the library of Kerberos, which is there or not
            raise self._failed(error) from None

    def _given(self) -> Mapping[str, Any]:
        login = self._login
        if login.mechanism.has_password:
            name, password = (
                login_text(getattr(login, of), f"source.security.sasl.{of}")
                for of in ("username", "password")
            )
            self._secrets += [password, *([name] if isinstance(login.username, SecretRef) else ())]
            if login.mechanism is not Mechanism.PLAIN:
                name = name.replace("=", "=3D").replace(
                    ",", "=2C"
                )  # RFC 5802, 5.1; the library leaves it to us
            return {"sasl_plain_username": name, "sasl_plain_password": password}
        if login.mechanism is Mechanism.OAUTHBEARER:
            source = TokenSource(login.token, self._address, self._deadline)
            self._secrets = source.given
            return {"sasl_oauth_token_provider": source.provider()}
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
        if any(
            not re.fullmatch(rb"[0-9]{1,7}", each) or int(each) < _LEAST_ITERATIONS
            for each in counts
        ):
            shown = " and ".join(each.decode("ascii", "replace")[:20] for each in counts)
            message = f"Whoever answers wants our password proven by {shown} rounds, and {_LEAST_ITERATIONS} are the least"
            raise PermissionDenied(
                message,
                broker=self._address,
                action="Check that the address is the broker's, and how its users were made",
            )

    def refused(self, text: str) -> PermissionDenied:
        """Return the error of a rejection. It does not tell a wrong name from a wrong password."""
        keys = {
            Mechanism.OAUTHBEARER: "source.security.sasl.token",
            Mechanism.GSSAPI: "source.security.sasl.kerberos_service_name",
        }
        key = keys.get(self._login.mechanism, "source.security.sasl.password")
        message = (
            f"The broker refuses the login by {self._login.mechanism.value}: {self._masked(text)}"
        )
        if self._login.mechanism.has_password:
            action = "Check username and password"
        else:
            action = f"Check {key}"
        return PermissionDenied(
            message,
            key=key,
            broker=self._address,
            action=f"{action}, and that the broker knows them",
        )

    def failed_at(self, refusal: BrokerRefusal, text: str) -> EtlError:
        """Return the error of a code that says nothing about the credentials: the broker cannot
        check them, or the port expects another kind of login.
        """
        error = refusal.error(
            f"log us in by {self._login.mechanism.value}", key=_MECHANISM, broker=self._address
        )
        return refusal.kind(
            ": ".join(filter(None, (error.message, self._masked(text)))),
            action=error.action,
            **error.where,
        )

    def _failed(self, error: Exception) -> PermissionDenied:
        """Return the error of an invalid server proof: a broker that does not know our password
        cannot sign with it.
        """
        message = f"The login by {self._login.mechanism.value} came to nothing: {self._masked(str(error) or type(error).__name__)}"
        action = "Check that the address is the broker's; with GSSAPI a ticket (klist) and source.security.sasl.kerberos_service_name"
        return PermissionDenied(message, key=_MECHANISM, broker=self._address, action=action)

    def _masked(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return " ".join(text.split())
