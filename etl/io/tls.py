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

from etl.errors import (
    BrokerUnreachable,
    EtlError,
    NotKafka,
    PermissionDenied,
    SettingsError,
    ZooKeeperUnreachable,
)
from etl.model.security import LocalFile, SecretRef, Tls
from etl.settings.secrets import open_regular, place_of_file, resolve_secret


class ConnectionBroken(ConnectionError):
    """The other side hung up.

    `answered`: a byte of the response had come, so asking again is not the same question. `check`:
    what the request makes of it. `each_time`: what it is where it happens on the next connection,
    too. `may_pass`: it is then a fault of the network or of a restart, and is tried longer.
    """

    def __init__(
        self,
        why: str,
        *,
        answered: bool,
        action: str = "",
        each_time: EtlError | None = None,
        may_pass: bool = False,
    ) -> None:
        super().__init__(why)
        self.answered, self.action, self.each_time = answered, action, each_time
        self.may_pass = may_pass


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
    """The names of the other side in errors."""

    name: str
    """Its name inside a sentence, with the article."""
    place: str
    """The name of its address in an error's places."""
    keys: str
    """The conf section with `ca_file` and the other TLS keys."""
    switch: str
    """The conf key that enables TLS."""
    addresses: str
    """Where its address is set, after "Check"."""
    port: str
    """The advice if the port does not use TLS, after "Check"."""
    trust: str
    """Its own setting for trusted CAs."""
    identity: str
    """Its own setting for its certificate."""
    ciphers: str
    """Its own settings for TLS versions and ciphers."""
    no_tls: type[EtlError]
    """The class of the error for a port without TLS."""
    unreachable: type[EtlError]
    """The class of the error for handshakes that are cut off."""

    @property
    def title(self) -> str:
        """Its name at the beginning of a sentence."""
        return self.name.capitalize()

    def key(self, name: str) -> str:
        """Return the conf key."""
        return f"{self.keys}.{name}"


BROKER = Peer(
    "the broker",
    "broker",
    "source.security.tls",
    "source.security.protocol",
    "source.bootstrap_servers, or the broker's own advertised.listeners",
    "source.security.protocol, and the port: brokers have one for each of their listeners",
    "ssl.truststore",
    "ssl.keystore",
    "ssl.enabled.protocols and ssl.cipher.suites",
    NotKafka,
    BrokerUnreachable,
)
ZOOKEEPER = Peer(
    "the server",
    "server",
    "zookeeper.tls",
    "zookeeper.tls.enabled",
    "zookeeper.connect",
    "the port of zookeeper.connect: secureClientPort is the one for TLS; or leave "
    "zookeeper.tls out",
    "ssl.trustStore",
    "ssl.keyStore",
    "ssl.enabledProtocols and ssl.ciphersuites",
    SettingsError,
    ZooKeeperUnreachable,
)
_with_tls: set[str] = set()
"""Addresses with which this process had a handshake: their ports speak TLS."""


def wrap(
    connected: socket.socket, host: str, tls: Tls, address: str, peer: Peer = BROKER
) -> ssl.SSLSocket:
    """Return the connection after a handshake, within the socket's timeout.

    The socket is closed on failure. Raises TimeoutError; ConnectionBroken if the other side closes;
    SettingsError, PermissionDenied and NotKafka.
    """
    with _closing_on_failure(connected):
        context = _context(tls, peer)
        timeout_s = connected.gettimeout()
        try:
            there = connected.getpeername()[:2]
            wrapped = context.wrap_socket(connected, server_hostname=host)
            _with_tls.add(address)
            return wrapped
        except ssl.SSLCertVerificationError as error:
            raise _untrusted(
                error, lambda: _names(context, there, host, timeout_s), host, tls, address, peer
            ) from None
        except ssl.SSLError as error:
            raise refused(error, address, peer) or _no_handshake(error, address, peer) from None
        except TimeoutError:
            raise
        except OSError as error:
            raise _cut_off(error.strerror or str(error), address, peer) from None


def refused(error: ssl.SSLError, address: str, peer: Peer = BROKER) -> PermissionDenied | None:
    """Return the error if the other side rejected our certificate, in a handshake or later; else
    None.

    From TLS 1.3 on a server checks our certificate after the handshake, and its answer comes with
    the first read.
    """
    reason = error.reason or ""
    if "ALERT" not in reason or not any(word in reason for word in _OF_CERTIFICATES):
        return None
    own = peer.key("cert_file")
    return PermissionDenied(
        f"{peer.title} rejects our certificate, or requires one: {reason}",
        key=own,
        **{peer.place: address},
        action=f"Set {own} to a certificate of a CA that {peer.name} trusts ({peer.trust}), and "
        f"check "
        "that it has not expired",
    )


def _no_handshake(error: ssl.SSLError, address: str, peer: Peer) -> EtlError | ConnectionBroken:
    """Return the error for a failed handshake.

    After the handshake the port is known to use TLS, and the same exceptions are broken
    connections.
    """
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return _no_tls("the other side closed the connection in the handshake", address, peer)
    if (error.reason or "") in _NO_TLS:
        return _port_without_tls("The port does not use TLS", address, peer)
    return SettingsError(
        f"{peer.title} and this machine have no common TLS version and cipher: "
        f"{error.reason or error}",
        key=peer.switch,
        **{peer.place: address},
        action=f"Check {peer.ciphers} of {peer.name}",
    )


def _no_tls(reason: str, address: str, peer: Peer) -> ConnectionBroken:
    """Return a broken connection that means a port without TLS if it is broken each time.

    A server that restarts may break a handshake once.
    """
    if address in _with_tls:
        return _cut_off(reason, address, peer)
    each_time = _port_without_tls(f"The port does not use TLS: {reason}", address, peer)
    return ConnectionBroken(f"in the TLS handshake: {reason}", answered=False, each_time=each_time)


def _cut_off(reason: str, address: str, peer: Peer) -> ConnectionBroken:
    """Return a broken connection that proves nothing about the port: a firewall, a proxy or a
    restart cuts handshakes off, too.
    """
    each_time = peer.unreachable(
        f"The TLS handshake was cut off: {reason}",
        **{peer.place: address},
        action=f"Check the network and the load of {peer.name}. If it never worked, check "
        f"{peer.port}",
    )
    return ConnectionBroken(
        f"in the TLS handshake: {reason}", answered=False, each_time=each_time, may_pass=True
    )


def _port_without_tls(message: str, address: str, peer: Peer) -> EtlError:
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
    trusted = peer.key("ca_file")
    file = "the system's CAs"
    if tls.ca_file is not None:
        file = place_of_file(tls.ca_file)
    place = {"key": trusted, "host": host, "file": file, peer.place: address}
    if error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
        known = ", ".join(names()) or "its names are unknown"
        return SettingsError(
            f"{peer.title}'s certificate belongs to another host: {known}",
            host=host,
            **{peer.place: address},
            action=f"Check {peer.addresses}: the address must be one of the certificate's names"
            " (subjectAltName)",
        )
    if error.verify_code in (_EXPIRED, _NOT_YET):
        state = "is not valid yet"
        if error.verify_code == _EXPIRED:
            state = "has expired"
        return SettingsError(
            f"{peer.title}'s certificate, or one of its CAs', {state}",
            **place,
            action=f"Check the certificates of {peer.name} ({peer.identity}) and of its CA, and "
            f"this "
            "machine's clock",
        )
    return SettingsError(
        f"{peer.title}'s certificate is not signed by a trusted CA: {error.verify_message}",
        **place,
        action=f"Set {trusted} to the certificate (PEM) of the CA that signed {peer.name}'s",
    )


def _names(
    context: ssl.SSLContext, peer: tuple[str, int], host: str, timeout_s: float | None
) -> list[str]:
    """Return the names of a trusted certificate, read on a new connection with the same SNI."""
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
    ca_file = None
    with _translating(peer.key("ca_file"), tls.ca_file, peer):
        if tls.ca_file is not None:
            ca_file = place_of_file(tls.ca_file)
            open_regular(ca_file).close()
        context = ssl.create_default_context(cafile=ca_file)
    if tls.cert_file is not None:
        _load_own(context, tls.cert_file, tls, peer)
    return context


def _load_own(context: ssl.SSLContext, cert_file: LocalFile, tls: Tls, peer: Peer) -> None:
    cert = peer.key("cert_file")
    key = peer.key("key_file")
    for name, file in ((cert, cert_file), (key, tls.key_file)):
        with _translating(name, file, peer):
            if file is not None:
                open_regular(place_of_file(file)).close()
    password = _Password(tls.key_password, peer.key("key_password"))
    if tls.key_file is None:
        with _translating(cert, cert_file, peer, password):
            context.load_cert_chain(place_of_file(cert_file), None, password)
        return
    with _translating(key, tls.key_file, peer, password):
        context.load_cert_chain(place_of_file(cert_file), place_of_file(tls.key_file), password)


class _Password:
    """The password of the key, as a callback: without one OpenSSL prompts on the terminal."""

    def __init__(self, reference: SecretRef | None, key: str) -> None:
        self._reference = reference
        self.key = key
        self.was_used = False

    def __call__(self) -> str:
        self.was_used = True
        if self._reference is None:
            return ""
        return resolve_secret(self._reference, self.key)


@contextmanager
def _translating(
    key: str, file: LocalFile | None, peer: Peer, password: _Password | None = None
) -> Iterator[None]:
    """Context manager: raise SettingsError for a certificate or key file that cannot be loaded."""
    try:
        yield
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            message = "The key does not belong to the certificate"
            action = f"Check {peer.key('cert_file')} and {peer.key('key_file')}"
        elif password is not None and password.was_used:
            message = "The password does not decrypt the key"
            key = password.key
            action = f"Check {password.key}, and that the key file is complete"
        else:
            message = f"The file has no valid PEM content: {error.reason or 'it cannot be read'}"
            action = f"Check {key}: it must be a PEM file"
        _reject_file(message, key, file, action)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        _reject_file(
            f"The file cannot be read: {reason}",
            key,
            file,
            "Check that the file exists on every machine that connects",
        )


def _reject_file(message: str, key: str, file: LocalFile | None, action: str) -> NoReturn:
    named = None
    if file is not None:
        named = place_of_file(file)
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
