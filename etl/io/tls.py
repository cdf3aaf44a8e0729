"""How does a socket become a TLS connection, and what does each failure mean?

The same for brokers and ZooKeeper; a `Peer` holds the conf keys and the server's own setting names
for errors. Host names are always verified. Files are read for each connection, so renewed
certificates are used from the next one on.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from etl.errors import EtlError, NotKafka, PermissionDenied, SettingsError
from etl.model.security import LocalFile, SecretRef, Tls
from etl.settings.secrets import place_of_file, resolve_secret


class ConnectionBroken(ConnectionError):
    """The other side hung up.

    `answered`: a byte of the response had come, so asking again is not the same question. `check`:
    what the request makes of it. `each_time`: what it is where it happens on the next connection,
    too.
    """

    def __init__(
        self, why: str, *, answered: bool, action: str = "", each_time: EtlError | None = None
    ) -> None:
        super().__init__(why)
        self.answered, self.action, self.each_time = answered, action, each_time


_EXPIRED, _NOT_YET, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 62, 64
"""OpenSSL's X509_V_ERR_*; all others mean that no trusted authority signed the certificate."""
_OF_CERTIFICATES = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
_NO_TLS = (
    "WRONG_VERSION_NUMBER",
    "UNKNOWN_PROTOCOL",
    "RECORD_LAYER_FAILURE",
    "HTTP_REQUEST",
    "PACKET_LENGTH_TOO_LONG",
    "DATA_LENGTH_TOO_LONG",
)


@dataclass(frozen=True, slots=True)
class Peer:
    """The other side, in the terms of errors."""

    name: str
    place: str
    """Under which name an error has its address."""
    keys: str
    """The section of a conf that holds `ca_file` and its neighbours."""
    switch: str
    """The key that enables TLS."""
    port: str
    """What to check if the port does not speak TLS."""
    trust: str
    """Its own settings: whom it trusts, who it is, and how it encrypts."""
    identity: str
    ciphers: str
    no_tls: type[EtlError]
    """What a port without TLS is."""

    def key(self, name: str) -> str:
        """Return the conf key."""
        return f"{self.keys}.{name}"


BROKER = Peer(
    "the broker",
    "broker",
    "source.security.tls",
    "source.security.protocol",
    "source.security.protocol, and the port: brokers have one for each of their listeners",
    "ssl.truststore",
    "ssl.keystore",
    "ssl.enabled.protocols and ssl.cipher.suites",
    NotKafka,
)
ZOOKEEPER = Peer(
    "the server",
    "server",
    "zookeeper.tls",
    "zookeeper.tls.enabled",
    "the port of zookeeper.connect: secureClientPort is the one for TLS; or leave zookeeper.tls out",
    "ssl.trustStore",
    "ssl.keyStore",
    "ssl.enabledProtocols and ssl.ciphersuites",
    SettingsError,
)


def wrap(
    connected: socket.socket, host: str, tls: Tls, address: str, peer: Peer = BROKER
) -> ssl.SSLSocket:
    """Return the connection after a handshake, within the socket's timeout. The socket is closed on
    failure. Raises TimeoutError; ConnectionBroken if the other side closes; SettingsError,
    PermissionDenied and NotKafka.
    """
    with _closing_on_failure(connected):
        context, timeout_s = _context(tls, peer), connected.gettimeout()
        try:
            there = connected.getpeername()[:2]
            return context.wrap_socket(connected, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise _untrusted(
                error, lambda: _names(context, there, host, timeout_s), host, tls, address, peer
            ) from None
        except ssl.SSLError as error:
            raise refused(error, address, peer) or _no_handshake(error, address, peer) from None
        except TimeoutError:
            raise
        except OSError as error:
            raise _no_tls(error.strerror or str(error), address, peer) from None


def refused(error: ssl.SSLError, address: str, peer: Peer = BROKER) -> PermissionDenied | None:
    """Return the meaning of a TLS error, in a handshake or later; None: not about authentication.
    From TLS 1.3 on a server checks our certificate after the handshake, and its answer comes with
    the first read.
    """
    reason = error.reason or ""
    if "ALERT" in reason and any(word in reason for word in _OF_CERTIFICATES):
        message, own = (
            f"{peer.name} does not take our certificate, or has to have one: {reason}",
            peer.key("cert_file"),
        )
        action = f"{own}: a certificate of an authority that {peer.name} trusts ({peer.trust}), not expired"
        return PermissionDenied(message, key=own, **{peer.place: address}, action=action)
    return None


def _no_handshake(error: ssl.SSLError, address: str, peer: Peer) -> EtlError | ConnectionBroken:
    """Return the meaning of an error in a handshake; later the port is known to speak TLS, and the
    same errors are broken connections.
    """
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return _no_tls("the other side hung up in the middle of the handshake", address, peer)
    if (error.reason or "") in _NO_TLS:
        return _speaks_no_tls("the port does not speak TLS", address, peer)
    message = f"{peer.name} and this machine agree on no way to encrypt: {error.reason or error}"
    return SettingsError(
        message,
        key=peer.switch,
        **{peer.place: address},
        action=f"Check {peer.ciphers} of {peer.name}",
    )


def _no_tls(why: str, address: str, peer: Peer) -> ConnectionBroken:
    """A server that is being started again may do this once, and a port that is none does it each
    time.
    """
    each_time = _speaks_no_tls(f"the port does not speak TLS: {why}", address, peer)
    return ConnectionBroken(f"in the handshake of TLS: {why}", answered=False, each_time=each_time)


def _speaks_no_tls(message: str, address: str, peer: Peer) -> EtlError:
    return peer.no_tls(
        message, key=peer.switch, **{peer.place: address}, action=f"Check {peer.port}"
    )


def _untrusted(
    error: ssl.SSLCertVerificationError,
    names: Callable[[], list[str]],
    host: str,
    tls: Tls,
    address: str,
    peer: Peer,
) -> SettingsError:
    trusted, file = (
        peer.key("ca_file"),
        "the system's authorities" if tls.ca_file is None else str(tls.ca_file),
    )
    place = {"key": trusted, "host": host, "file": file, peer.place: address}
    if error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
        message = f"{peer.name}'s certificate is of another host: {', '.join(names()) or 'which, is not known'}"
        action = "Check the address: it must be one of these names; or the certificate's names (subjectAltName)"
        return SettingsError(message, host=host, **{peer.place: address}, action=action)
    if error.verify_code in (_EXPIRED, _NOT_YET):
        when = "has expired" if error.verify_code == _EXPIRED else "is not valid yet"
        action = f"Check the certificates of {peer.name} ({peer.identity}) and of its authority, and this machine's clock"
        return SettingsError(
            f"{peer.name}'s certificate, or one above it, {when}", **place, action=action
        )
    message = f"Nobody whom we trust has signed {peer.name}'s certificate: {error.verify_message}"
    return SettingsError(
        message,
        **place,
        action=f"Set {trusted} to the certificate (PEM) of the authority that signed {peer.name}'s",
    )


def _names(
    context: ssl.SSLContext, peer: tuple[str, int], host: str, timeout_s: float | None
) -> list[str]:
    """Return the names of a certificate that is trusted but for its names, read on a connection of
    its own with the same SNI.
    """
    context.check_hostname = False
    try:
        with (
            socket.create_connection(peer, timeout=timeout_s) as other,
            context.wrap_socket(other, server_hostname=host) as connection,
        ):
            found: Any = connection.getpeercert() or {}
    except OSError:
        return []
    return [str(name) for _, name in found.get("subjectAltName", ())]


def _context(tls: Tls, peer: Peer) -> ssl.SSLContext:
    with _telling(peer.key("ca_file"), tls.ca_file, peer):
        context = ssl.create_default_context(
            cafile=None if tls.ca_file is None else place_of_file(tls.ca_file)
        )
    if tls.cert_file is not None:
        _load_own(context, tls.cert_file, tls, peer)
    return context


def _load_own(context: ssl.SSLContext, cert_file: LocalFile, tls: Tls, peer: Peer) -> None:
    cert, key = peer.key("cert_file"), peer.key("key_file")
    for name, file in ((cert, cert_file), (key, tls.key_file)):
        with _telling(name, file, peer):
            if file is not None:
                open(place_of_file(file), "rb").close()
    password = _Password(tls.key_password, peer.key("key_password"))
    key_file = None if tls.key_file is None else place_of_file(tls.key_file)
    with _telling(key if tls.key_file else cert, tls.key_file or cert_file, peer, password):
        context.load_cert_chain(place_of_file(cert_file), key_file, password)


class _Password:
    """Password of the key. Without it OpenSSL would ask on the terminal."""

    def __init__(self, reference: SecretRef | None, key: str) -> None:
        self._reference, self.key = reference, key
        self.was_asked = False

    def __call__(self) -> str:
        self.was_asked = True
        return "" if self._reference is None else resolve_secret(self._reference, self.key)


@contextmanager
def _telling(
    key: str, file: LocalFile | None, peer: Peer, password: _Password | None = None
) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        if password is not None and password.was_asked and error.reason != "KEY_VALUES_MISMATCH":
            message, key, action = (
                "The password does not open the key",
                password.key,
                f"{password.key}, and that the key is whole",
            )
        elif error.reason == "KEY_VALUES_MISMATCH":
            message, action = (
                "The key is not the certificate's",
                f"{peer.key('cert_file')} and {peer.key('key_file')}",
            )
        else:
            message, action = (
                f"The file holds nothing of the kind in PEM: {error.reason or 'it cannot be read'}",
                f"{key}, a PEM file",
            )
        _reject_file(message, key, file, action)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        _reject_file(
            f"the file cannot be read: {why}",
            key,
            file,
            "that it is there on every machine that connects",
        )


def _reject_file(message: str, key: str, file: LocalFile | None, action: str) -> NoReturn:
    named = None if file is None else place_of_file(file)
    raise SettingsError(
        message, key=key, file=named, host=socket.gethostname(), action=action
    ) from None


@contextmanager
def _closing_on_failure(connected: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connected.close()
        raise
